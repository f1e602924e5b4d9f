// torch_file.cpp — see torch_file.h. Zip: PKWARE's APPNOTE.TXT, 4.3.
#include "src/checkpoint/torch_file.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "src/base/check.h"
#include "src/base/text.h"
#include "src/checkpoint/pickle.h"

namespace convoy {
namespace {

uint64_t little(std::string_view bytes, size_t at, size_t n) {
    if (at > bytes.size() || n > bytes.size() - at) fail("is a zip file that is cut short");
    uint64_t value = 0;
    std::memcpy(&value, bytes.data() + at, n);
    return value;
}

// The members of a zip file, by the directory at its end.
class ZipFile {
 public:
    explicit ZipFile(const std::string& path)
        : size_(std::filesystem::file_size(path)), file_(path, std::ios::binary) {
        // The last record has 22 bytes and a comment of up to 65535.
        const uint64_t tail_size = std::min<uint64_t>(size_, 22 + 65535);
        const std::string tail = bytes(size_ - tail_size, tail_size);
        const size_t end = tail.rfind("PK\5\6");
        if (end == std::string::npos) fail("is a zip file that is cut short: it has no directory");
        little(tail, end + 20, 2);  // all of the record is there
        uint64_t count = little(tail, end + 10, 2), length = little(tail, end + 12, 4);
        uint64_t begin = little(tail, end + 16, 4);
        if (end >= 20 && little(tail, end - 20, 4) == kZip64Locator) {
            const std::string record = bytes(little(tail, end - 20 + 8, 8), 56);
            count = little(record, 32, 8), length = little(record, 40, 8);
            begin = little(record, 48, 8);
        }
        const std::string directory = bytes(begin, length);
        for (size_t at = 0; count-- > 0;) at = add(directory, at);
    }

    uint64_t size() const { return size_; }
    bool has(const std::string& name) const { return members_.contains(name); }
    // Of the members that end with `end`, the first; "" if there is none.
    std::string find(std::string_view end) const {
        for (const auto& [name, member] : members_)
            if (name.ends_with(end)) return name;
        return "";
    }
    // All of a member; each once, or the members would overlap.
    std::string read(const std::string& name) {
        const auto found = members_.find(name);
        if (found == members_.end()) fail("has no member '", printable(name), "'");
        const Member& member = found->second;
        if (!member.is_stored)
            fail("its member '", printable(name),
                 "' is compressed or encrypted, which torch.save does not do; unpack the file and "
                 "pack it with `zip -0`");
        if ((read_ += member.size) > size_) fail("is a zip file whose members overlap");
        const std::string head = bytes(member.offset, 30);
        if (little(head, 0, 4) != kLocal) fail("its member '", printable(name), "' is not there");
        const std::string content =
            bytes(member.offset + 30 + little(head, 26, 2) + little(head, 28, 2), member.size);
        const auto* data = reinterpret_cast<const Bytef*>(content.data());
        if (crc32_z(0, data, content.size()) != member.crc)
            fail("the checksum of its member '", printable(name),
                 "' is wrong: the file is damaged (or was saved with set_crc32_options(False))");
        return content;
    }

 private:
    static constexpr uint64_t kLocal = 0x04034b50, kCentral = 0x02014b50,
                              kZip64Locator = 0x07064b50;
    struct Member {
        uint64_t offset, size;
        uint32_t crc;
        bool is_stored;
    };

    // Takes the entry of the directory that begins at `at`; returns where the next one does.
    size_t add(std::string_view directory, size_t at) {
        const auto number = [&](size_t place, size_t n) {
            return little(directory, at + place, n);
        };
        if (number(0, 4) != kCentral) fail("is a zip file whose directory is damaged");
        const bool is_stored = number(10, 2) == 0 && (number(8, 2) & 1) == 0;
        Member member{number(42, 4), number(24, 4), uint32_t(number(16, 4)), is_stored};
        const size_t name = 46, extra = name + number(28, 2), end = extra + number(30, 2);
        // What does not fit into 4 bytes is in the extra field 1: size, packed size, offset.
        for (size_t field = extra; field + 4 <= end;) {
            size_t value = field + 4;
            if (number(field, 2) == 1) {
                if (member.size == UINT32_MAX) member.size = number(value, 8), value += 8;
                if (number(20, 4) == UINT32_MAX) value += 8;
                if (member.offset == UINT32_MAX) member.offset = number(value, 8);
            }
            field += 4 + number(field + 2, 2);
        }
        if (at + end > directory.size()) fail("is a zip file whose directory is damaged");
        members_[std::string(directory.substr(at + name, extra - name))] = member;
        return at + end + number(32, 2);
    }

    std::string bytes(uint64_t begin, uint64_t n) {
        if (begin > size_ || n > size_ - begin)
            fail("is a zip file that is cut short: bytes ", begin, " to ", begin + n,
                 " are wanted of ", size_);
        std::string content(n, '\0');
        file_.seekg(std::streamoff(begin));
        if (!file_.read(content.data(), std::streamsize(n))) fail("cannot be read");
        return content;
    }

    const uint64_t size_;
    uint64_t read_ = 0;
    std::ifstream file_;
    std::map<std::string, Member> members_;
};

struct StorageType {
    std::string_view name;
    const char* dtype;
};
constexpr StorageType kStorages[] = {{"torch.FloatStorage", "F32"},
                                     {"torch.HalfStorage", "F16"},
                                     {"torch.BFloat16Storage", "BF16"},
                                     {"torch.DoubleStorage", "F64"},
                                     {"torch.LongStorage", "I64"}};
constexpr std::string_view kTensor = "torch._utils._rebuild_tensor_v2",
                           kParameter = "torch._utils._rebuild_parameter";
constexpr std::string_view kGlobals[] = {
    "collections.OrderedDict", kTensor,           kParameter,        kStorages[0].name,
    kStorages[1].name,         kStorages[2].name, kStorages[3].name, kStorages[4].name};

constexpr size_t kMostDims = 8;

// A tensor of the pickle: _rebuild_tensor_v2(storage, offset, shape, strides, …).
struct View {
    std::string name, key;  // key: of its storage
    const char* dtype;
    uint64_t offset;
    std::vector<int64_t> shape, strides;
};

View view_of(const std::string& name, const PickleValue& call, const Pickle& pickle) {
    const auto wrong = [&] { fail("tensor '", name, "' is damaged"); };
    View view{name, "", nullptr, 0, {}, {}};
    if (call.items.size() < 4) wrong();
    // ("storage", its type, key, device, count of numbers)
    const std::vector<uint32_t>& storage = pickle.at(call.items[0]).items;
    if (pickle.at(call.items[0]).kind != PickleValue::kPersistent || storage.size() < 3) wrong();
    const std::string& type = pickle.at(storage[1]).text;
    const auto* known = std::ranges::find(kStorages, type, &StorageType::name);
    if (known == std::end(kStorages)) wrong();
    view.dtype = known->dtype;
    view.key = pickle.at(storage[2]).text;
    const auto numbers = [&](uint32_t place) {
        std::vector<int64_t> values;
        if (pickle.at(place).items.size() > kMostDims) wrong();
        for (const uint32_t item : pickle.at(place).items) values.push_back(pickle.at(item).number);
        return values;
    };
    view.shape = numbers(call.items[2]), view.strides = numbers(call.items[3]);
    view.offset = uint64_t(pickle.at(call.items[1]).number);
    if (view.shape.size() != view.strides.size()) wrong();
    return view;
}

// The tensor's numbers in C order. `left`: numbers that may still be taken of this file.
std::vector<float> take(const View& view, std::string_view storage, uint64_t& left) {
    const uint64_t size = size_of(view.dtype), there = storage.size() / size;
    uint64_t count = 1, last = view.offset, step;
    bool fits = true;
    for (const int64_t n : view.shape)
        fits &= n >= 0 && !__builtin_mul_overflow(count, uint64_t(n), &count);
    for (size_t d = 0; fits && count > 0 && d < view.shape.size(); ++d)
        fits &= view.strides[d] >= 0 &&
                !__builtin_mul_overflow(uint64_t(view.shape[d] - 1), uint64_t(view.strides[d]),
                                        &step) &&
                !__builtin_add_overflow(last, step, &last);
    if (!fits || (count > 0 && last >= there))
        fail("tensor '", view.name, "' goes beyond its storage of ", there, " numbers");
    if (count > left) fail("its tensors take far more memory than the file has bytes");
    left -= count;
    if (count == 0) return {};
    const std::vector<float> numbers =
        to_floats(view.dtype, storage.substr(view.offset * size, (last - view.offset + 1) * size));
    std::vector<float> values(count);
    std::vector<int64_t> index(view.shape.size());
    size_t at = 0;
    for (float& value : values) {
        value = numbers[at];
        for (size_t d = index.size(); d-- > 0;) {  // the next index: the last dimension first
            at += size_t(view.strides[d]);
            if (++index[d] < view.shape[d]) break;
            at -= size_t(view.shape[d]) * size_t(view.strides[d]);
            index[d] = 0;
        }
    }
    return values;
}

SafeTensors read_torch(const std::string& path) {
    ZipFile zip(path);
    const std::string pickle_name = zip.find("/data.pkl");
    if (pickle_name.empty()) fail("is a zip file, but not one that torch.save wrote");
    const std::string folder = pickle_name.substr(0, pickle_name.size() - 8);
    if (zip.has(folder + "constants.pkl"))
        fail("is a TorchScript program: load it in PyTorch and torch.save() its state_dict()");
    if (zip.has(folder + "byteorder") && zip.read(folder + "byteorder") != "little")
        fail("was saved on a big-endian machine");
    const Pickle pickle = read_pickle(zip.read(pickle_name), kGlobals);

    const PickleValue* dict = &pickle.at(pickle.root);
    const auto tensors_of = [&](const PickleValue& from) {
        std::vector<View> views;
        for (size_t i = 0; from.kind == PickleValue::kDict && i + 1 < from.items.size(); i += 2) {
            const PickleValue &key = pickle.at(from.items[i]),
                              *value = &pickle.at(from.items[i + 1]);
            if (value->kind == PickleValue::kCall && value->text == kParameter &&
                !value->items.empty())
                value = &pickle.at(value->items[0]);
            if (value->kind != PickleValue::kCall || value->text != kTensor) continue;
            if (key.kind != PickleValue::kText || !is_utf8(key.text))
                fail("a tensor has a name that is no text");
            views.push_back(view_of(key.text, *value, pickle));
        }
        return views;
    };
    std::vector<View> views = tensors_of(*dict);
    for (const char* inner : {"state_dict", "model", "model_state_dict"})
        for (size_t i = 0; views.empty() && i + 1 < dict->items.size(); i += 2)
            if (pickle.at(dict->items[i]).text == inner)
                views = tensors_of(pickle.at(dict->items[i + 1]));
    if (views.empty())
        fail(
            "holds no dict of tensors, at the top or as state_dict or model: save "
            "model.state_dict()");

    SafeTensors content;
    std::ranges::sort(views, {}, &View::key);  // each storage is read once
    uint64_t left = 2 * zip.size() + 65536;    // tensors may share storages
    std::string storage;
    for (size_t i = 0; i < views.size(); ++i) {
        const View& view = views[i];
        if (i == 0 || view.key != views[i - 1].key)
            storage = zip.read(cat(folder, "data/", view.key));
        std::vector<float> values = take(view, storage, left);
        content.tensors[view.name] = {std::string(view.dtype) == "I64" ? "I64" : "F32", view.shape,
                                      std::move(values)};
    }
    return content;
}

}  // namespace

SafeTensors read_weights(const std::string& path, Log& log) {
    std::string head(512, '\0');
    std::ifstream(path, std::ios::binary).read(head.data(), std::streamsize(head.size()));
    SafeTensors content;
    if (head.starts_with("PK\3\4")) {
        try {
            content = read_torch(path);
        } catch (const Error& error) {
            fail(path, ": ", error.what());
        }
    } else if (head.starts_with("\x80\2\x8a\n") || head.substr(257, 5) == "ustar") {
        fail(path,
             " is in PyTorch's format from before 1.6; convert it: python3 -c \"import torch; "
             "torch.save(torch.load('",
             path, "', weights_only=True), 'converted.pth')\"");
    } else if (std::filesystem::is_regular_file(path) && head[8] != '{') {  // of the header
        fail(path,
             " is neither a safetensors file nor one that PyTorch's torch.save() wrote: give "
             "weights as .safetensors, .pth or .pt");
    } else {
        content = read_safetensors(path);
    }
    const std::string_view prefix = "module.";
    if (std::ranges::all_of(content.tensors,
                            [&](auto& one) { return one.first.starts_with(prefix); }) &&
        !content.tensors.empty()) {
        log.info(path, ": '", prefix, "' is dropped from the names of its tensors");
        std::map<std::string, StoredTensor> tensors;
        for (auto& [name, tensor] : content.tensors)
            tensors[name.substr(prefix.size())] = std::move(tensor);
        content.tensors = std::move(tensors);
    }
    return content;
}

}  // namespace convoy
