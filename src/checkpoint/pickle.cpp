// pickle.cpp — see pickle.h. Opcodes: Python's Lib/pickletools.py describes each.
#include "src/checkpoint/pickle.h"

#include <cstring>

#include "src/base/check.h"

namespace convoy {
namespace {

// The most values, and the most entries on the stack and in the memo. All values together may have
// 16 times as many members. The largest models have ten thousand tensors of a dozen values each.
constexpr size_t kMost = 1 << 20, kMostPickleText = 64 << 20;

class Machine {
 public:
    explicit Machine(std::string_view& bytes) : rest_(bytes) {}

    Pickle run() {
        for (;;) {
            const char op = take(1)[0];
            if (op == '.') return {std::move(values_), pop()};
            step(op);
        }
    }

 private:
    using Kind = PickleValue::Kind;

    std::string_view take(uint64_t n) {
        if (n > rest_.size()) fail("its pickle is cut short");
        const std::string_view bytes = rest_.substr(0, n);
        rest_.remove_prefix(n);
        return bytes;
    }
    // A little-endian number of n bytes.
    uint64_t number(size_t n) {
        uint64_t value = 0;
        std::memcpy(&value, take(n).data(), n);
        return value;
    }
    std::string line() {
        const std::string_view text = take(rest_.find('\n') + 1);  // 0 bytes if there is none
        if (text.empty()) fail("its pickle is cut short");
        return std::string(text.substr(0, text.size() - 1));
    }

    void push(uint32_t place) {
        if (stack_.size() == kMost) fail("its pickle is nested too deeply");
        stack_.push_back(place);
    }
    void push(PickleValue value) {
        if (values_.size() == kMost) fail("its pickle has more than ", kMost, " values");
        count(value.items.size());
        if ((text_bytes_ += value.text.size()) > kMostPickleText)
            fail("its pickle's texts are too long");
        values_.push_back(std::move(value));
        push(uint32_t(values_.size() - 1));
    }
    void count(size_t items) {
        if ((items_ += items) > 16 * kMost) fail("its pickle's values have too many members");
    }
    void push(Kind kind, int64_t number) { push(PickleValue{kind, number}); }
    void push(std::string_view text) { push(PickleValue{Kind::kText, 0, std::string(text)}); }
    void push(Kind kind, std::vector<uint32_t> items) { push({kind, 0, "", std::move(items)}); }

    // Removes and returns the stack from `begin` on, which must not reach below the last mark.
    std::vector<uint32_t> pop_from(size_t begin) {
        const size_t bottom = marks_.empty() ? 0 : marks_.back();
        if (begin > stack_.size() || begin < bottom) fail("its pickle pops a missing value");
        const std::vector<uint32_t> top(stack_.begin() + ptrdiff_t(begin), stack_.end());
        stack_.resize(begin);
        return top;
    }
    std::vector<uint32_t> pop_last(size_t n) { return pop_from(stack_.size() - n); }
    uint32_t pop() { return pop_last(1)[0]; }
    std::vector<uint32_t> pop_marked() {
        if (marks_.empty()) fail("its pickle pops a missing mark");
        std::vector<uint32_t> top = pop_from(marks_.back());
        marks_.pop_back();
        return top;
    }

    // Appends the items to the value on top of the stack.
    void extend(Kind kind, const std::vector<uint32_t>& items) {
        if (stack_.empty()) fail("its pickle adds to a value on an empty stack");
        PickleValue& value = values_[stack_.back()];
        if (value.kind == Kind::kCall || value.kind == Kind::kOther) return;  // opaque
        if (value.kind != kind || (kind == Kind::kDict && items.size() % 2 != 0))
            fail("its pickle adds to a value that is no ", kind == Kind::kDict ? "dict" : "list");
        count(items.size());
        value.items.insert(value.items.end(), items.begin(), items.end());
    }

    void call() {
        const PickleValue &arguments = values_[pop()], &function = values_[pop()];
        if (function.text != "collections.OrderedDict")
            return push({Kind::kCall, 0, function.text, arguments.items});
        // Python 2 gives its pairs of key and value as an argument, Python 3 adds them later.
        std::vector<uint32_t> items;
        if (!arguments.items.empty())
            for (const uint32_t pair : values_[arguments.items[0]].items) {
                count(1);
                if (const auto& two = values_[pair].items; two.size() == 2)
                    items.insert(items.end(), two.begin(), two.end());
            }
        push({Kind::kDict, 0, function.text, std::move(items)});
    }
    void push_persistent() {
        const std::vector<uint32_t> items = values_[pop()].items;
        push({Kind::kPersistent, 0, items.size() < 2 ? "" : values_[items[1]].text, items});
    }
    void put(uint64_t index) {
        if (index >= kMost || stack_.empty()) fail("its pickle's memo is damaged");
        if (memo_.size() <= index) memo_.resize(index + 1, UINT32_MAX);
        memo_[index] = stack_.back();
        memoized_ += 1;
    }
    void get(uint64_t index) {
        if (index >= memo_.size() || memo_[index] == UINT32_MAX)
            fail("its pickle's memo is damaged");
        push(memo_[index]);
    }
    // Sign-extended. A number of more than 8 bytes is opaque.
    void push_long(size_t n) {
        if (n > 8) return take(n), push(Kind::kOther, 0);
        const int unused = int(64 - 8 * n);
        push(Kind::kNumber, n == 0 ? 0 : int64_t(number(n) << unused) >> unused);
    }

    void step(char op) {
        switch (uint8_t(op)) {
            case 0x80: take(1); return;  // PROTO
            case 0x95: take(8); return;  // FRAME
            case '(':                    // MARK
                if (marks_.size() == kMost) fail("its pickle is nested too deeply");
                marks_.push_back(stack_.size());
                return;
            case 'N':                                  // NONE
            case 0x8f: push(Kind::kOther, 0); return;  // EMPTY_SET
            case 0x88:
            case 0x89: push(Kind::kNumber, op & 1 ? 0 : 1); return;     // TRUE, FALSE
            case 'J': push_long(4); return;                             // BININT
            case 'K': push(Kind::kNumber, int64_t(number(1))); return;  // BININT1
            case 'M': push(Kind::kNumber, int64_t(number(2))); return;  // BININT2
            case 0x8a: push_long(number(1)); return;                    // LONG1
            case 0x8b: push_long(number(4)); return;                    // LONG4
            case 'G': take(8), push(Kind::kOther, 0); return;           // BINFLOAT
            case 'X':                                                   // BINUNICODE
            case 'T':                                                   // BINSTRING
            case 'B': push(take(number(4))); return;                    // BINBYTES
            case 0x8c:                                                  // SHORT_BINUNICODE
            case 'U':                                                   // SHORT_BINSTRING
            case 'C': push(take(number(1))); return;                    // SHORT_BINBYTES
            case 0x8d:                                                  // BINUNICODE8
            case 0x8e:                                                  // BINBYTES8
            case 0x96: push(take(number(8))); return;                   // BYTEARRAY8
            case '0': pop(); return;                                    // POP
            case '1': pop_marked(); return;                             // POP_MARK
            case ')':
            case ']': push(Kind::kSequence, 0); return;               // EMPTY_TUPLE, EMPTY_LIST
            case '}': push(Kind::kDict, 0); return;                   // EMPTY_DICT
            case 0x91:                                                // FROZENSET
            case 't': push(Kind::kSequence, pop_marked()); return;    // TUPLE
            case 0x90: pop_marked(); return;                          // ADDITEMS
            case 0x85: push(Kind::kSequence, pop_last(1)); return;    // TUPLE1
            case 0x86: push(Kind::kSequence, pop_last(2)); return;    // TUPLE2
            case 0x87: push(Kind::kSequence, pop_last(3)); return;    // TUPLE3
            case 'a': extend(Kind::kSequence, pop_last(1)); return;   // APPEND
            case 's': extend(Kind::kDict, pop_last(2)); return;       // SETITEM
            case 'e': extend(Kind::kSequence, pop_marked()); return;  // APPENDS
            case 'u': extend(Kind::kDict, pop_marked()); return;      // SETITEMS
            case 'c': {                                               // GLOBAL
                const std::string module = line();
                push({Kind::kGlobal, 0, cat(module, ".", line())});
                return;
            }
            case 0x93: {  // STACK_GLOBAL
                const std::string name = values_[pop()].text;
                push({Kind::kGlobal, 0, cat(values_[pop()].text, ".", name)});
                return;
            }
            case 0x92:
                pop();  // NEWOBJ_EX: names of arguments
                [[fallthrough]];
            case 0x81:                            // NEWOBJ
            case 'R': call(); return;             // REDUCE
            case 'b': pop(); return;              // BUILD: attributes
            case 'Q': push_persistent(); return;  // BINPERSID
            case 'q': put(number(1)); return;     // BINPUT
            case 'r': put(number(4)); return;     // LONG_BINPUT
            case 0x94: put(memoized_); return;    // MEMOIZE
            case 'h': get(number(1)); return;     // BINGET
            case 'j': get(number(4)); return;     // LONG_BINGET
            default:
                fail(fmt::format(
                    "its pickle has an opcode 0x{:02x}, which protocols 2 to 5 do not write",
                    uint8_t(op)));
        }
    }

    std::string_view& rest_;
    std::vector<PickleValue> values_;
    std::vector<uint32_t> stack_, memo_;  // places in values_
    std::vector<size_t> marks_;           // heights of the stack
    size_t memoized_ = 0, items_ = 0, text_bytes_ = 0;
};

}  // namespace

Pickle read_pickle(std::string_view& bytes) { return Machine(bytes).run(); }

}  // namespace convoy
