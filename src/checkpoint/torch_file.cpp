#include "src/checkpoint/torch_file.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

#include "data/sources/storage.h"
#include "src/base/bytes.h"
#include "src/base/text.h"
#include "src/checkpoint/pickle.h"

namespace convoy {
namespace {

// The members of a zip file, one after the other.
class ZipFile {
 public:
    explicit ZipFile(const std::string& path) : zip_(archive_read_new(), archive_read_free) {
        archive_read_support_format_zip_seekable(zip_.get());
        archive_read_open_filename(zip_.get(), path.c_str(), 1 << 18);
    }
    // Goes to the next member, for name() and read(); false at the end.
    bool next() {
        const int state = archive_read_next_header(zip_.get(), &entry_);
        if (state < ARCHIVE_WARN) fail("is a zip file that is damaged or cut short: ", why());
        return state != ARCHIVE_EOF;
    }
    std::string name() const {
        const char* path = archive_entry_pathname_utf8(entry_);
        return path ? path : "";
    }
    // room: bytes that may still be unpacked from this file. Checks the checksum.
    std::string read(uint64_t& room) {
        std::string content;
        const void* block;
        la_int64_t at;
        for (size_t n = 0;; content.append(static_cast<const char*>(block), n)) {
            const int state = archive_read_data_block(zip_.get(), &block, &n, &at);
            if (state == ARCHIVE_EOF) return content;
            if (state != ARCHIVE_OK)
                fail("its member '", printable(name()), "' is damaged: ", why());
            if (n > room) fail("its members take far more memory than the file has bytes");
            room -= n;
        }
    }

 private:
    std::string why() const {
        const char* text = archive_error_string(zip_.get());
        return text ? text : "no reason is known";
    }
    const std::unique_ptr<archive, int (*)(archive*)> zip_;
    archive_entry* entry_ = nullptr;
};

// torch.NAMEStorage: the type of its numbers in a safetensors file, if weights have it, and bytes.
struct Numbers {
    const char* names;
    const char* dtype;
    size_t bytes;
};
constexpr Numbers kStorages[] = {
    {"Float", "F32", 4},          {"Half", "F16", 2},
    {"BFloat16", "BF16", 2},      {"Double", "F64", 8},
    {"Long", "I64", 8},           {"Bool Byte Char QInt8 QUInt8 storage.Untyped", nullptr, 1},
    {"Short", nullptr, 2},        {"Int QInt32", nullptr, 4},
    {"ComplexFloat", nullptr, 8}, {"ComplexDouble", nullptr, 16}};
Numbers numbers_of(const std::string& type) {
    for (const Numbers& one : kStorages)
        for (const std::string& name : split(one.names, ' '))
            if (type == cat("torch.", name, "Storage")) return one;
    return {};
}
// A tensor before PyTorch 0.4, one since, and a parameter, which holds a tensor.
constexpr std::string_view kTensors[] = {"torch._utils._rebuild_tensor",
                                         "torch._utils._rebuild_tensor_v2"},
                           kParameter = "torch._utils._rebuild_parameter";

constexpr size_t kMostDims = 8;

// A tensor of the pickle: _rebuild_tensor_v2(storage, offset, shape, strides, …).
struct View {
    std::string name;
    const char* dtype;  // null: a type that weights do not have
    uint64_t offset;
    std::vector<int64_t> shape, strides;
    std::string key;  // of its storage
};
using Views = std::multimap<std::string, View>;  // by the keys of their storages

View view_of(const std::string& name, const PickleValue& call, const Pickle& pickle) {
    const auto wrong = [&] { fail("tensor '", name, "' is damaged"); };
    View view{name, nullptr, 0, {}, {}, ""};
    if (call.items.size() < 4) wrong();
    // ("storage", its type, key, device, count of numbers, part). part: None, or before PyTorch 0.4
    // (key, offset, count) of the part of the storage that is meant.
    const PickleValue& storage = pickle.at(call.items[0]);
    if (storage.kind != PickleValue::kPersistent || storage.items.size() < 3) wrong();
    if (!(view.dtype = numbers_of(storage.text).dtype)) return view;
    view.key = pickle.at(storage.items[2]).text;
    const auto numbers = [&](uint32_t place) {
        std::vector<int64_t> values;
        const PickleValue* list = &pickle.at(place);
        if (list->text == "torch.Size" && !list->items.empty()) list = &pickle.at(list->items[0]);
        if (list->items.size() > kMostDims) wrong();
        for (const uint32_t item : list->items) values.push_back(pickle.at(item).number);
        return values;
    };
    view.shape = numbers(call.items[2]), view.strides = numbers(call.items[3]);
    view.offset = uint64_t(pickle.at(call.items[1]).number);
    if (storage.items.size() > 5)
        if (const PickleValue& part = pickle.at(storage.items[5]); part.items.size() == 3)
            view.offset += uint64_t(pickle.at(part.items[1]).number);
    if (view.shape.size() != view.strides.size()) wrong();
    return view;
}

// The tensor's numbers in C order. `left`: numbers that may still be read from this file.
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

// The tensors of a dict. left_out: its other values that a call made, and their type.
Views tensors_of(const PickleValue& dict, const Pickle& pickle,
                 std::map<std::string, std::string>& left_out) {
    Views views;
    left_out.clear();
    for (size_t i = 0; dict.kind == PickleValue::kDict && i + 1 < dict.items.size(); i += 2) {
        const PickleValue &key = pickle.at(dict.items[i]), *value = &pickle.at(dict.items[i + 1]);
        if (value->kind == PickleValue::kCall && value->text == kParameter && !value->items.empty())
            value = &pickle.at(value->items[0]);
        if (value->kind != PickleValue::kCall) continue;
        const bool is_tensor = std::ranges::count(kTensors, value->text) > 0;
        if (is_tensor) {
            if (key.kind != PickleValue::kText || !is_utf8(key.text))
                fail("a tensor has a name that is no text");
            View view = view_of(key.text, *value, pickle);
            if (view.dtype) {
                views.emplace(view.key, std::move(view));
                continue;
            }
        }
        left_out[key.text] = is_tensor ? pickle.at(value->items[0]).text : value->text;
    }
    return views;
}

std::string text_of(const std::map<std::string, std::string>& left_out) {
    std::vector<std::string> all;
    for (const auto& [name, type] : left_out)
        all.push_back(cat("'", printable(name), "' (", printable(type), ")"));
    return some_of(all, 24);
}

// The tensors of a file's main pickle.
Views wanted_of(const Pickle& pickle, SafeTensors& content) {
    const PickleValue& root = pickle.at(pickle.root);
    Views views;
    for (const char* usual :
         {"state_dict", "model", "model_state_dict", "net", "ema", "weights", "model_ema"})
        for (size_t i = 0;
             root.kind == PickleValue::kDict && views.empty() && i + 1 < root.items.size(); i += 2)
            if (pickle.at(root.items[i]).text == usual) {
                views = tensors_of(pickle.at(root.items[i + 1]), pickle, content.left_out);
                break;  // a file may repeat the name a million times
            }
    if (views.empty()) views = tensors_of(root, pickle, content.left_out);
    if (views.empty())
        fail(
            "holds no dict of tensors, at the top or as state_dict or model",
            root.kind == PickleValue::kCall ? cat(", but an object of ", printable(root.text)) : "",
            content.left_out.empty() ? "" : cat("; it has ", text_of(content.left_out)),
            ": load it in PyTorch and torch.save() its state_dict()");
    return views;
}

// Moves the tensors of a storage from `wanted` to the content.
void take_all(Views& wanted, const std::string& key, std::string_view storage, uint64_t& left,
              SafeTensors& content) {
    const auto [begin, end] = wanted.equal_range(key);
    for (auto view = begin; view != end; ++view)
        content.tensors[view->second.name] = {
            std::string(view->second.dtype) == "I64" ? "I64" : "F32", view->second.shape,
            take(view->second, storage, left)};
    wanted.erase(begin, end);
}

SafeTensors read_zip(const std::string& path, uint64_t room) {
    uint64_t left = room;  // room: of members. left: numbers of tensors, which may share storages
    std::string folder;
    std::map<std::string, std::string> heads;  // the small members
    for (ZipFile zip(path); zip.next();) {
        const std::string name = zip.name();
        const size_t slash = name.rfind('/') + 1;
        for (const char* head : {"data.pkl", "byteorder", "constants.pkl"})
            if (slash > 0 && name.substr(slash) == head) heads[name] = zip.read(room);
        if (name.ends_with("/data.pkl") && folder.empty()) folder = name.substr(0, slash);
    }
    if (folder.empty()) fail("is a zip file, but not one that torch.save wrote");
    if (heads.contains(folder + "constants.pkl"))
        fail("is a TorchScript program: load it in PyTorch and torch.save() its state_dict()");
    if (heads.contains(folder + "byteorder") && heads[folder + "byteorder"] != "little")
        fail("was saved on a big-endian machine");
    SafeTensors content;
    std::string_view bytes = heads[folder + "data.pkl"];
    Views wanted = wanted_of(read_pickle(bytes), content);
    folder += "data/";
    for (ZipFile zip(path); zip.next();)
        if (const std::string name = zip.name(); name.starts_with(folder))
            if (const std::string key = name.substr(folder.size()); wanted.contains(key))
                take_all(wanted, key, zip.read(room), left, content);
    if (!wanted.empty()) fail("has no member '", folder, printable(wanted.begin()->first), "'");
    return content;
}

constexpr std::string_view kMagic("\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.", 13);  // before 1.6

SafeTensors read_before_zip(const std::string& path, uint64_t left) {
    const StoragePtr file = open_local(path);
    std::vector<uint8_t> all(file->size());
    file->read(0, all);
    std::string_view rest = as_text(all);
    for (int i = 0; i < 3; ++i) read_pickle(rest);  // kMagic, the version 1001, sizes of C's types
    const Pickle pickle = read_pickle(rest), keys = read_pickle(rest);
    SafeTensors content;
    Views wanted = wanted_of(pickle, content);
    std::map<std::string, std::string> types;  // of storages
    for (const PickleValue& value : pickle.values)
        if (value.kind == PickleValue::kPersistent && value.items.size() > 2)
            types.try_emplace(pickle.at(value.items[2]).text, value.text);
    for (const uint32_t place : keys.at(keys.root).items) {
        const std::string& key = keys.at(place).text;
        const size_t size = numbers_of(types[key]).bytes;
        if (size == 0)
            fail("storage '", printable(key), "' is of an unknown type '", printable(types[key]),
                 "'");
        uint64_t count = 0;
        std::memcpy(&count, rest.data(), std::min(rest.size(), sizeof count));
        if (rest.size() < sizeof count || count > (rest.size() - sizeof count) / size)
            fail("is cut short in storage '", printable(key), "'");
        take_all(wanted, key, rest.substr(sizeof count, count * size), left, content);
        rest.remove_prefix(sizeof count + count * size);
    }
    if (!wanted.empty()) fail("has no storage '", printable(wanted.begin()->first), "'");
    return content;
}

}  // namespace

SafeTensors read_weights(const std::string& path, Log& log) {
    std::string head(512, '\0');
    std::ifstream(path, std::ios::binary).read(head.data(), std::streamsize(head.size()));
    SafeTensors content;
    const bool is_zip = head.starts_with("PK\3\4");
    if (is_zip || (head[0] == '\x80' && head.substr(0, 32).find(kMagic) != head.npos)) {
        try {
            const uint64_t room = 2 * std::filesystem::file_size(path) + 65536;
            content = is_zip ? read_zip(path, room) : read_before_zip(path, room);
        } catch (const Error& error) {
            fail(path, ": ", error.what());
        }
    } else if (std::filesystem::is_regular_file(path) && head[8] != '{') {  // of the header
        fail(path,
             " is neither a safetensors file nor one that PyTorch's torch.save() wrote: give "
             "weights as .safetensors, .pth or .pt");
    } else if (!std::filesystem::exists(path)) {
        fail(path,
             ": there is no such file; tools/weights downloads weights, and src/model/README.md "
             "says where others are");
    } else {
        content = read_safetensors(path);
    }
    if (!content.left_out.empty())
        log.notice(path, ": left out, because they are not tensors of weights: ",
                   text_of(content.left_out));
    if (!content.metadata.contains("model_text")) drop_wrappers(content, path, log);
    size_t count = 0;
    std::string first;
    for (const auto& [name, tensor] : content.tensors) {
        const auto bad =
            std::ranges::count_if(tensor.values, [](float x) { return !std::isfinite(x); });
        if (bad > 0 && count == 0) first = name;
        count += size_t(bad);
    }
    if (count > 0)
        log.notice(path, " holds NaN or infinity: ", counted(int64_t(count), "weight"),
                   ", the first in '", printable(first),
                   "'. Training that diverged saves such weights; use an earlier checkpoint");
    return content;
}

}  // namespace convoy
