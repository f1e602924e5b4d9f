// tar.cpp — applies WebDataset's rules to the members that libarchive reads.
#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "data/sources/find_sets.h"
#include "data/sources/index.h"
#include "src/base/bytes.h"
#include "src/base/random.h"
#include "src/base/text.h"

namespace convoy {
namespace {

constexpr uint64_t kMaxText = 1 << 20;  // of a .cls or .json

// "set/hat/IMG.1.jpg": keys "set/hat/IMG" and "set/hat/IMG.1", kind ".jpg", folder "hat".
struct MemberName {
    explicit MemberName(const std::string& path) : file(split_path(path).second) {
        const size_t begin = path.size() - file.size();
        first_key = path.substr(0, path.find('.', begin));
        last_key = path.substr(0, file.find('.') < file.size() ? path.rfind('.') : path.npos);
        kind = kind_of_file(file);
        const bool is_meta = file.size() >= 4 && file.starts_with("__") && file.ends_with("__");
        is_ignored = is_meta || is_hidden(file);
        for (const std::string& name : split(path.substr(0, begin), '/')) {
            if (name.empty() || name == "." || name == "..") continue;
            if (is_hidden(name)) is_ignored = true;
            part = std::min(part, role_of(std::exchange(folder, name)));
        }
    }
    std::string file, first_key, last_key, kind, folder;
    bool is_ignored = false;
    Role part = Role::none;  // of the folders around `folder`
};

// Whether the kind of a member or a field of .json looks like a label.
bool is_like_label(const std::string& name) {
    return std::ranges::any_of(
        Names{"cls", "class", "label", "target", "categor", "species", "synset"},
        [&](const std::string& word) { return lower_case(name).find(word) < name.size(); });
}

// The members of one key.
struct Sample {
    std::string key, folder, fault = {};
    Role part = Role::none;
    uint64_t begin = 0, offset = 0;  // of the first member, of the image
    bool has_image = false;
    std::vector<uint8_t> image = {};
    Label label = {};
    LeftOut members = {};  // by kind

    void take_number(int64_t number) {
        if (label.number && *label.number != number)
            fault = cat("its labels contradict each other: ", *label.number, " and ", number);
        label.number = number;
    }
    void take_label(std::string_view text) {
        const Label found = parse_label(text);
        if (found.number) take_number(*found.number);
        if (!found.name.empty()) label.name = found.name;
    }
    void take_json(std::span<const uint8_t> bytes) {
        const auto content = nlohmann::json::parse(bytes.begin(), bytes.end(), nullptr, false);
        if (content.is_discarded() && fault.empty()) fault = "its .json is damaged";
        for (const char* field : {"label", "cls", "class", "class_name"}) {
            const auto at = content.find(field);
            if (at == content.end()) continue;
            if (at->is_number_integer()) take_number(at->get<int64_t>());
            if (at->is_string() && label.name.empty())
                take_label(at->get_ref<const std::string&>());
        }
        if (label != Label{}) return;
        Names fields;
        if (!content.is_object()) fields.push_back("no class");
        for (const auto& [field, value] : content.items())
            fields.insert(is_like_label(field) ? fields.begin() : fields.end(), printable(field));
        members.erase(".json"), ++members[".json with " + some_of(fields, 4)];
    }
};

class TarScan {
 public:
    TarScan(ByteStream& stream, const Findings& findings)
        : stream_(stream), findings_(findings), tar_(archive_read_new(), archive_read_free) {}

    void run() {
        archive_read_support_format_tar(tar_.get());
        // A file may hold several, one after the other.
        archive_read_set_format_option(tar_.get(), "tar", "read_concatenated_archives", "1");
        archive_read_open(tar_.get(), this, nullptr, next_block, nullptr);
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
    static la_ssize_t next_block(archive* tar, void* self, const void** block) {
        TarScan& scan = *static_cast<TarScan*>(self);
        try {
            const std::span<const uint8_t> bytes = scan.stream_.next();
            *block = bytes.data();
            return la_ssize_t(bytes.size());
        } catch (...) {
            scan.failure_ = std::current_exception();
            archive_set_error(tar, EIO, "cannot be read");
            return -1;
        }
    }

    // Reports the samples that are complete, then the error that ended the archive.
    void give_up(uint64_t at) {
        const char* why = archive_error_string(tar_.get());
        const std::string text = why ? why : "damaged";
        if (failure_) std::rethrow_exception(failure_);
        if (!samples_.empty()) samples_.pop_back();  // its other members may be missing
        finish();
        findings_.fault(at, "damaged or truncated tar: " + text);
    }

    bool take(archive_entry* entry) {
        const char* path = archive_entry_pathname(entry);
        if (!path) path = archive_entry_pathname_utf8(entry);
        const MemberName name(path ? path : "");
        if (archive_entry_filetype(entry) == AE_IFDIR || name.file.empty() || name.is_ignored)
            return true;
        const uint64_t offset = uint64_t(archive_filter_bytes(tar_.get(), 0));
        if (name.first_key != key_) finish();
        key_ = name.first_key;
        const bool is_image = has_image_name(name.file);
        const bool is_label = name.kind == ".cls" || name.kind == ".json";
        if (name.first_key == name.last_key)
            ends_at_first_ = ends_at_first_ || is_image || is_label;
        else if (ends_at_first_) {
            if (is_image) findings_.left_out(kFurther, 1);
            return true;
        }
        if (samples_.empty() || samples_.back().key != name.last_key) {
            if (!ends_at_first_ && (samples_.size() >= kMostSamples || waiting_ > kMostBytes))
                finish();
            samples_.push_back(
                {.key = name.last_key, .folder = name.folder, .part = name.part, .begin = offset});
        }
        Sample& sample = samples_.back();
        const char* hard = archive_entry_hardlink(entry);
        const char* link = hard ? hard : archive_entry_symlink(entry);
        const bool is_link = link && archive_entry_size(entry) == 0;  // some bring their content
        ++sample.members[is_link ? "links" : name.kind];
        if (!is_image && !is_label) return true;
        if (is_link) {
            sample.fault =
                cat("'", printable(name.file), "' is a ", hard ? "hard" : "symbolic", " link to '",
                    printable(link), "'; make the tar with --", hard ? "hard-" : "", "dereference");
            return true;
        }
        std::vector<uint8_t>& bytes = is_image && !sample.has_image ? sample.image : text_;
        if (!read(is_image ? kMaxSample : kMaxText, bytes)) return false;
        waiting_ += is_image ? bytes.size() : 0;
        if (name.kind == ".json") {
            sample.take_json(text_);
        } else if (is_label) {
            sample.take_label(as_text(text_));
        } else if (sample.has_image) {
            sample.fault = "two images with the same key (the name without its extension)";
        } else {
            sample.has_image = true, sample.offset = offset;
        }
        return true;
    }

    // Reads the content of a member. False: the archive ends within it.
    bool read(uint64_t limit, std::vector<uint8_t>& out) {
        out.clear();
        Sample& sample = samples_.back();
        for (;;) {
            const void* block;
            size_t size;
            la_int64_t at;
            const int state = archive_read_data_block(tar_.get(), &block, &size, &at);
            if (state == ARCHIVE_EOF) return true;
            if (state < ARCHIVE_WARN) return give_up(sample.begin), false;
            if (uint64_t(at) != out.size()) sample.fault = "a sparse file";
            if (out.size() + size > limit) {
                sample.fault = cat("more than ", limit, " bytes");
                out.clear();
                return true;  // the next header is found all the same
            }
            const uint8_t* bytes = static_cast<const uint8_t*>(block);
            out.insert(out.end(), bytes, bytes + size);
        }
    }

    // Reports the samples of a first key. They are one sample if an image or a label has that key.
    void finish() {
        for (const Sample& one : samples_)
            if (!ends_at_first_ || one.key == key_)
                report(one);
            else if (one.has_image)
                findings_.left_out(kFurther, 1);
        samples_.clear();
        ends_at_first_ = false, waiting_ = 0;
    }

    // Why an image cannot belong to the set: it is a mask of another one, or of another part.
    std::string misplaced(const Sample& one) {
        const bool is_class = one.label == Label{};  // its folder
        const Role part = is_class ? one.part : std::min(one.part, role_of(one.folder));
        if (part <= Role::test && part_ == Role::none) part_ = part;
        if (part <= Role::test && part_ != part)
            return "training and validation images in one tar: make two, such as train.tar and "
                   "val.tar";
        keys_.insert(hash_bytes(one.key));
        const size_t tail = one.key.find_last_of("_- ");
        if (is_class && tail < one.key.size() && role_of(one.key.substr(tail + 1)) == Role::masks &&
            keys_.contains(hash_bytes(one.key.substr(0, tail))))
            return "a mask or annotation of another image: leave it out of the tar";
        return "";
    }

    void report(const Sample& one) {
        Label label = one.label;
        if (label == Label{} && one.has_image) {
            bool has_unread = false;
            for (const auto& [kind, count] : one.members)
                if (is_like_label(kind) || kind.starts_with(".json "))
                    findings_.left_out(kind, count), has_unread |= is_like_label(kind);
            if (!has_unread) label.name = one.folder;
        }
        std::string fault = one.fault.empty() && one.has_image ? misplaced(one) : one.fault;
        if (fault.empty() && !one.has_image && one.label != Label{})
            fault = "a label without an image";
        if (fault.empty() && one.has_image && one.image.empty()) fault = "an empty image";
        if (fault.empty() && one.has_image && !is_plain_text(label.name))
            fault = "the name of its class is not UTF-8, or holds control characters";
        if (!fault.empty())
            findings_.fault(one.begin, cat("'", one.key, "': ", fault));
        else if (one.has_image)
            findings_.record({one.offset, one.image, label});
        else
            for (const auto& [kind, count] : one.members) findings_.left_out(kind, count);
    }

    static constexpr const char* kFurther = "further images of a sample (KEY.mask.png)";
    // The most samples and bytes that wait for the end of their first key.
    static constexpr size_t kMostSamples = 64, kMostBytes = 1 << 26;

    ByteStream& stream_;
    std::exception_ptr failure_;  // libarchive is C: no exception may pass through it
    const Findings& findings_;
    const std::unique_ptr<archive, int (*)(archive*)> tar_;
    std::vector<Sample> samples_;        // of the same first key
    std::string key_;                    // that key
    bool ends_at_first_ = false;         // an image or a label has that key
    uint64_t waiting_ = 0;               // bytes of their images
    Role part_ = Role::none;             // of the set: what the names of folders say
    std::unordered_set<uint64_t> keys_;  // hashes of the keys of images
    std::vector<uint8_t> text_;
};

}  // namespace

void scan_tar(ByteStream& stream, const Findings& findings) { TarScan(stream, findings).run(); }

// A member's header is the block before its content. A long name is in the two blocks before the
// header: the header of an entry of type x (pax) or L (GNU), and the name.
std::string tar_member_name(const Storage& storage, uint64_t offset) try {
    constexpr size_t kBlock = 512, kType = 156, kMagic = 257;
    if (offset % kBlock != 0 || offset == 0) return "";
    std::vector<uint8_t> head(std::min<uint64_t>(offset, 3 * kBlock));
    storage.read(offset - head.size(), head);
    const size_t last = head.size() - kBlock;
    const bool is_long =
        has_text(head, kMagic, "ustar") && (head[kType] == 'x' || head[kType] == 'L');
    if (!has_text(head, last + kMagic, "ustar")) return "";
    const std::unique_ptr<archive, int (*)(archive*)> tar(archive_read_new(), archive_read_free);
    archive_read_support_format_tar(tar.get());
    archive_read_open_memory(tar.get(), &head[is_long ? 0 : last], is_long ? head.size() : kBlock);
    archive_entry* entry;
    if (archive_read_next_header(tar.get(), &entry) < ARCHIVE_WARN) return "";
    const char* path = archive_entry_pathname(entry);
    if (!path) path = archive_entry_pathname_utf8(entry);
    return path ? path : "";
} catch (const Error&) {
    return "";  // read() reports the error
}

}  // namespace convoy
