// torch_file.cpp — see torch_file.h.
#include "src/checkpoint/torch_file.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>

#include "data/storage.h"
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

// libarchive trusts the header in front of each member. If the directory at the end of the file
// says another compression, the file is damaged.
//
//   end        "PK\5\6", …, 12: size of the directory (4), 16: its offset (4)
//   directory  per member "PK\1\2", …, 10: compression (2), …, 28: length of the name (2), 30: of
//              extra fields (2), 32: of a comment (2), …, 42: offset of the header (4), 46: name
//   header     "PK\3\4", …, 8: compression (2)
//
// Files above 4 GB store offsets in another way (zip64) and are not checked.
void check_directory(const std::string& path) {
    const StoragePtr file = open_local(path);
    const uint64_t size = file->size();
    const auto bytes = [&](uint64_t at, uint64_t n) {
        std::vector<uint8_t> all(at < size ? std::min(n, size - at) : 0);
        if (!all.empty()) file->read(at, all);
        return all;
    };
    const uint64_t tail_at = size - std::min<uint64_t>(size, 22 + UINT16_MAX);
    const std::vector<uint8_t> tail = bytes(tail_at, size);
    const size_t end = as_text(tail).rfind("PK\5\6");
    if (end == std::string_view::npos)
        fail("is a zip file that is damaged or cut short: it has no directory");
    const std::vector<uint8_t> directory =
        bytes(little_endian(tail, end + 16), little_endian(tail, end + 12));
    for (size_t at = 0; has_text(directory, at, "PK\1\2");) {
        const size_t length = little_endian(directory, at + 28, 2);
        const uint32_t header_at = little_endian(directory, at + 42);
        const std::vector<uint8_t> header = bytes(header_at, 10);
        const std::string_view name =
            as_text(directory).substr(std::min(at + 46, directory.size()), length);
        if (header_at != UINT32_MAX &&
            (!has_text(header, 0, "PK\3\4") ||
             little_endian(header, 8, 2) != little_endian(directory, at + 10, 2)))
            fail("its member '", printable(name),
                 "' is damaged: its header contradicts the zip directory");
        at += 46 + length + little_endian(directory, at + 30, 2) +
              little_endian(directory, at + 32, 2);
    }
}

const std::map<std::string_view, const char*> kStorages = {{"torch.FloatStorage", "F32"},
                                                           {"torch.HalfStorage", "F16"},
                                                           {"torch.BFloat16Storage", "BF16"},
                                                           {"torch.DoubleStorage", "F64"},
                                                           {"torch.LongStorage", "I64"}};
constexpr std::string_view kTensor = "torch._utils._rebuild_tensor_v2",
                           kParameter = "torch._utils._rebuild_parameter";

constexpr size_t kMostDims = 8;

// A tensor of the pickle: _rebuild_tensor_v2(storage, offset, shape, strides, …).
struct View {
    std::string name, key;  // key: of its storage
    const char* dtype;      // null: a type that weights do not have
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
    const auto known = kStorages.find(pickle.at(storage[1]).text);
    if (known == kStorages.end()) return view;
    view.dtype = known->second;
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

// The tensors of a dict. left_out: names of its other values that a call made.
std::vector<View> tensors_of(const PickleValue& dict, const Pickle& pickle,
                             std::vector<std::string>& left_out) {
    std::vector<View> views;
    left_out.clear();
    for (size_t i = 0; dict.kind == PickleValue::kDict && i + 1 < dict.items.size(); i += 2) {
        const PickleValue &key = pickle.at(dict.items[i]), *value = &pickle.at(dict.items[i + 1]);
        if (value->kind == PickleValue::kCall && value->text == kParameter && !value->items.empty())
            value = &pickle.at(value->items[0]);
        if (value->kind != PickleValue::kCall) continue;
        if (value->text == kTensor) {
            if (key.kind != PickleValue::kText || !is_utf8(key.text))
                fail("a tensor has a name that is no text");
            views.push_back(view_of(key.text, *value, pickle));
            if (views.back().dtype) continue;
            views.pop_back();
        }
        left_out.push_back(cat("'", printable(key.text), "' (", printable(value->text), ")"));
    }
    return views;
}

SafeTensors read_torch(const std::string& path, Log& log) {
    uint64_t room = 2 * std::filesystem::file_size(path) + 65536;  // of members
    uint64_t left = room;  // numbers of tensors, which may share storages
    check_directory(path);
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
    const Pickle pickle = read_pickle(heads[folder + "data.pkl"]);

    const PickleValue& root = pickle.at(pickle.root);
    std::vector<View> views;
    std::vector<std::string> left_out;
    for (const char* usual :
         {"state_dict", "model", "model_state_dict", "net", "ema", "weights", "model_ema"})
        for (size_t i = 0;
             root.kind == PickleValue::kDict && views.empty() && i + 1 < root.items.size(); i += 2)
            if (pickle.at(root.items[i]).text == usual)
                views = tensors_of(pickle.at(root.items[i + 1]), pickle, left_out);
    if (views.empty()) views = tensors_of(root, pickle, left_out);
    if (views.empty())
        fail(
            "holds no dict of tensors, at the top or as state_dict or model",
            root.kind == PickleValue::kCall ? cat(", but an object of ", printable(root.text)) : "",
            left_out.empty() ? "" : cat("; it has ", join_text(left_out)),
            ": load it in PyTorch and torch.save() its state_dict()");
    if (!left_out.empty())
        log.notice(path,
                   ": left out, because they are not tensors of weights: ", join_text(left_out));

    std::map<std::string, std::vector<const View*>> wanted;  // by member
    for (const View& view : views) wanted[cat(folder, "data/", view.key)].push_back(&view);
    SafeTensors content;
    for (ZipFile zip(path); zip.next();) {
        const auto found = wanted.find(zip.name());
        if (found == wanted.end()) continue;
        const std::string storage = zip.read(room);
        for (const View* view : found->second)
            content.tensors[view->name] = {std::string(view->dtype) == "I64" ? "I64" : "F32",
                                           view->shape, take(*view, storage, left)};
        wanted.erase(found);
    }
    if (!wanted.empty()) fail("has no member '", printable(wanted.begin()->first), "'");
    return content;
}

// Drops the words that DataParallel, torch.compile and trainers add to names: module and _orig_mod
// everywhere, other prefixes if most names begin with them.
void drop_wrappers(SafeTensors& content, const std::string& path, Log& log) {
    std::map<std::string, std::string> names;  // plain → as it is
    std::set<std::string> dropped;
    for (const auto& [name, _] : content.tensors) {
        std::vector<std::string> parts;
        for (const std::string& part : split(name, '.'))
            if (part == "module" || part == "_orig_mod")
                dropped.insert(part);
            else
                parts.push_back(part);
        names[join_text(parts, ".")] = name;
    }
    for (bool again = true; again;) {
        again = false;
        for (const std::string prefix : {"model.", "backbone.", "net."}) {
            const auto has = [&](const auto& one) { return one.first.starts_with(prefix); };
            if (2 * std::ranges::count_if(names, has) <= std::ssize(names)) continue;
            std::map<std::string, std::string> shorter;
            for (const auto& one : names)
                shorter[has(one) ? one.first.substr(prefix.size()) : one.first] = one.second;
            names = shorter, again = true;
            dropped.insert(prefix.substr(0, prefix.size() - 1));
        }
    }
    if (dropped.empty() || names.size() != content.tensors.size()) return;
    std::map<std::string, StoredTensor> tensors;
    for (const auto& [plain, name] : names) tensors[plain] = std::move(content.tensors[name]);
    content.tensors = std::move(tensors);
    log.notice(path, ": '", join_text(dropped, ".', '"), ".' is dropped from the names of tensors");
}

}  // namespace

SafeTensors read_weights(const std::string& path, Log& log) {
    std::string head(512, '\0');
    std::ifstream(path, std::ios::binary).read(head.data(), std::streamsize(head.size()));
    SafeTensors content;
    if (head.starts_with("PK\3\4")) {
        try {
            content = read_torch(path, log);
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
                   "'. Training that diverged saves such weights; "
                   "use an earlier checkpoint");
    return content;
}

}  // namespace convoy
