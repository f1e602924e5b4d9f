// tar.cpp — WebDataset's rules over libarchive, which knows tar's dialects.
#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>

#include "data/records.h"
#include "src/base/check.h"
#include "src/base/text.h"

namespace convoy {
namespace {

constexpr const char* kImages[] = {"jpg", "jpeg", "png", "webp", "ppm",
                                   "pgm", "bmp",  "tif", "tiff"};
constexpr uint64_t kMaxText = 1 << 20;  // of a .cls or .json

struct Input {
    ByteStream& stream;
    std::exception_ptr failure;  // libarchive is C: exceptions go round it
};

la_ssize_t next_block(archive* tar, void* client, const void** block) {
    Input& input = *static_cast<Input*>(client);
    try {
        const std::span<const uint8_t> bytes = input.stream.next();
        *block = bytes.data();
        return la_ssize_t(bytes.size());
    } catch (...) {
        input.failure = std::current_exception();
        archive_set_error(tar, EIO, "cannot be read");
        return -1;
    }
}

// "set/hat/0012.left.jpg" → key "set/hat/0012", extension "left.jpg" in lower case.
struct MemberName {
    explicit MemberName(const std::string& path) {
        const size_t slash = path.rfind('/'), begin = slash == std::string::npos ? 0 : slash + 1;
        const size_t dot = path.find('.', begin);
        key = path.substr(0, dot);
        // A name that begins with a dot has no key.
        if (dot != std::string::npos && dot > begin) extension = path.substr(dot + 1);
        std::ranges::transform(extension, extension.begin(),
                               [](unsigned char c) { return char(std::tolower(c)); });
        const std::string file = path.substr(begin);
        is_meta = file.size() >= 4 && file.starts_with("__") && file.ends_with("__");
        if (begin > 1) {
            const size_t before = path.rfind('/', begin - 2);
            const size_t from = before == std::string::npos ? 0 : before + 1;
            folder = path.substr(from, begin - 1 - from);
        }
    }
    std::string key, extension, folder;
    bool is_meta;
};

// The members of one key.
struct Sample {
    std::string key, folder, fault;
    uint64_t begin = 0, offset = 0;  // of the first member, of the image
    bool has_image = false, has_label = false;
    std::vector<uint8_t> image;
    Label label;

    void take_label(std::string_view text) {
        const Label found = parse_label(text);
        if (found.number) label.number = found.number;
        if (!found.name.empty()) label.name = found.name;
    }
    void take_json(std::span<const uint8_t> bytes) {
        const auto content = nlohmann::json::parse(bytes.begin(), bytes.end(), nullptr, false);
        if (!content.is_object()) return;
        for (const char* field : {"label", "cls", "class", "class_name"}) {
            const auto at = content.find(field);
            if (at == content.end()) continue;
            if (at->is_number_integer() && !label.number) label.number = at->get<int64_t>();
            if (at->is_string() && label.name.empty())
                take_label(at->get_ref<const std::string&>());
        }
    }
};

class TarScan {
 public:
    TarScan(ByteStream& stream, const Findings& findings)
        : input_{stream, nullptr},
          findings_(findings),
          tar_(archive_read_new(), archive_read_free) {}

    void run() {
        archive_read_support_format_tar(tar_.get());
        // A stream may carry several, one after the other.
        archive_read_set_format_option(tar_.get(), "tar", "read_concatenated_archives", "1");
        archive_read_open(tar_.get(), &input_, nullptr, next_block, nullptr);
        archive_entry* entry;
        for (;;) {
            const int state = archive_read_next_header(tar_.get(), &entry);
            if (state == ARCHIVE_EOF) break;
            if (state == ARCHIVE_RETRY) continue;
            if (state < ARCHIVE_WARN)
                return give_up(
                    uint64_t(std::max<la_int64_t>(archive_read_header_position(tar_.get()), 0)));
            if (!take(entry)) return;
        }
        finish();
    }

 private:
    // The error that ended the archive, after what came whole before it.
    void give_up(uint64_t at) {
        const char* why = archive_error_string(tar_.get());
        const std::string text = why ? why : "damaged";
        if (input_.failure) std::rethrow_exception(input_.failure);
        sample_.has_image = false;  // its other members may be what is missing
        findings_.fault(at, "damaged or truncated tar: " + text);
    }

    bool take(archive_entry* entry) {
        const char* path = archive_entry_pathname(entry);
        if (!path) path = archive_entry_pathname_utf8(entry);
        const MemberName name(path ? path : "");
        if (archive_entry_filetype(entry) != AE_IFREG || name.is_meta || name.extension.empty())
            return true;
        const uint64_t offset = uint64_t(archive_filter_bytes(tar_.get(), 0));
        if (name.key != sample_.key) {
            finish();
            sample_ = {};
            sample_.key = name.key, sample_.folder = name.folder, sample_.begin = offset;
        }
        const bool is_image = std::ranges::count(kImages, name.extension) > 0;
        const bool is_text = name.extension == "cls" || name.extension == "json";
        if (!is_image && !is_text) return true;
        std::vector<uint8_t>& bytes = is_image && !sample_.has_image ? sample_.image : text_;
        if (!read(entry, is_image ? kMaxSample : kMaxText, bytes)) return false;
        if (!is_image) {
            if (name.extension == "json")
                sample_.take_json(text_);
            else
                sample_.take_label({reinterpret_cast<const char*>(text_.data()), text_.size()});
        } else if (sample_.has_image) {
            sample_.fault = "two images of one key; a key ends at the first dot of the file name";
        } else {
            sample_.has_image = true, sample_.offset = offset;
        }
        return true;
    }

    // The content of a member. False: the archive ends within it.
    bool read(archive_entry* entry, uint64_t limit, std::vector<uint8_t>& out) {
        out.clear();
        if (archive_entry_hardlink(entry)) sample_.fault = "a hard link, not a file";
        for (;;) {
            const void* block;
            size_t size;
            la_int64_t at;
            const int state = archive_read_data_block(tar_.get(), &block, &size, &at);
            if (state == ARCHIVE_EOF) return true;
            if (state < ARCHIVE_WARN) return give_up(sample_.begin), false;
            if (uint64_t(at) != out.size()) sample_.fault = "a sparse file";
            if (out.size() + size > limit) {
                sample_.fault = cat("more than ", limit, " bytes");
                out.clear();
                return true;  // the next header is found all the same
            }
            const uint8_t* bytes = static_cast<const uint8_t*>(block);
            out.insert(out.end(), bytes, bytes + size);
        }
    }

    void finish() {
        const Sample& one = sample_;
        Label label = one.label;
        if (!label.number && label.name.empty()) label.name = one.folder;
        std::string fault = one.fault;
        if (fault.empty() && !one.has_image && one.label != Label{})
            fault = "a label without an image";
        if (fault.empty() && one.has_image && one.image.empty()) fault = "an empty image";
        if (!one.has_image && fault.empty()) return;
        if (fault.empty() && !is_utf8(label.name)) fault = "the name of its class is not UTF-8";
        if (fault.empty())
            findings_.record({one.offset, one.image, label});
        else
            findings_.fault(one.begin, cat("'", one.key, "': ", fault));
    }

    Input input_;
    const Findings& findings_;
    const std::unique_ptr<archive, int (*)(archive*)> tar_;
    Sample sample_;
    std::vector<uint8_t> text_;
};

}  // namespace

void scan_tar(ByteStream& stream, const Findings& findings) { TarScan(stream, findings).run(); }

// A member's header is the block before its content. A long name is in two blocks before that: the
// header of an entry of type x (pax) or L (GNU), and the name.
std::string tar_member_name(const Storage& storage, uint64_t offset) try {
    constexpr size_t kBlock = 512, kType = 156, kMagic = 257;
    if (offset % kBlock != 0 || offset == 0) return "";
    std::vector<uint8_t> head(std::min<uint64_t>(offset, 3 * kBlock));
    storage.read(offset - head.size(), head);
    const auto begins = [&](size_t at) { return std::memcmp(&head[at + kMagic], "ustar", 5) == 0; };
    const size_t last = head.size() - kBlock;
    const bool is_long = begins(0) && (head[kType] == 'x' || head[kType] == 'L');
    if (!begins(last)) return "";
    const std::unique_ptr<archive, int (*)(archive*)> tar(archive_read_new(), archive_read_free);
    archive_read_support_format_tar(tar.get());
    archive_read_open_memory(tar.get(), &head[is_long ? 0 : last], is_long ? head.size() : kBlock);
    archive_entry* entry;
    if (archive_read_next_header(tar.get(), &entry) < ARCHIVE_WARN) return "";
    const char* path = archive_entry_pathname(entry);
    if (!path) path = archive_entry_pathname_utf8(entry);
    return path ? path : "";
} catch (const Error&) {
    return "";  // what cannot be read is told by read()
}

}  // namespace convoy
