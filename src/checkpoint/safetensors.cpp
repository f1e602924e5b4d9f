// safetensors.cpp — see safetensors.h for the byte table.
#include "src/checkpoint/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "src/base/check.h"

namespace convoy {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie");

using nlohmann::json;

constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr size_t kMaxDims = 16;
constexpr int kMaxDepth = 3;  // header { tensor { shape [ … ] } }

size_t size_of(const std::string& dtype) {
    if (dtype == "F64" || dtype == "I64") return 8;
    if (dtype == "F32") return 4;
    if (dtype == "F16" || dtype == "BF16") return 2;
    return 0;
}

float from_half(uint16_t half) {
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    float value = 0;
    if (exponent == 31) {
        value = mantissa ? NAN : INFINITY;
    } else if (exponent == 0) {
        value = std::ldexp(float(mantissa), -24);
    } else {
        value = std::ldexp(float(mantissa + 1024), exponent - 25);
    }
    return half & 0x8000 ? -value : value;
}

template <class T>
T number_at(const char* bytes, size_t i) {
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    return value;
}

std::vector<float> to_floats(const std::string& dtype, const std::vector<char>& bytes, size_t n) {
    std::vector<float> values(n);
    const char* from = bytes.data();
    for (size_t i = 0; i < n; ++i) {
        if (dtype == "F32") values[i] = number_at<float>(from, i);
        if (dtype == "F64") values[i] = float(number_at<double>(from, i));
        if (dtype == "I64") values[i] = float(number_at<int64_t>(from, i));
        if (dtype == "F16") values[i] = from_half(number_at<uint16_t>(from, i));
        if (dtype == "BF16")
            values[i] = std::bit_cast<float>(uint32_t(number_at<uint16_t>(from, i)) << 16);
    }
    return values;
}

struct Entry {
    std::string name;
    StoredTensor tensor;
    uint64_t begin, end;
};

class Reader {
 public:
    explicit Reader(const std::string& path) : path_(path) {
        std::error_code status;
        size_ = std::filesystem::file_size(path, status);
        if (status) error("cannot be read: ", status.message());
        file_.open(path, std::ios::binary);
        if (!file_) error("cannot be opened: ", std::strerror(errno));
    }

    SafeTensors read() {
        const json header = read_header();
        SafeTensors content;
        std::vector<Entry> entries;
        for (auto& [name, value] : header.items()) {
            if (name == "__metadata__") {
                content.metadata = metadata_of(value);
            } else {
                entries.push_back(entry_of(name, value));
            }
        }
        std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
            return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
        });
        check_ranges(entries);
        for (Entry& entry : entries) {
            std::vector<char> bytes(entry.end - entry.begin);
            file_.seekg(std::streamoff(data_at_ + entry.begin));
            read_bytes(bytes.data(), bytes.size());
            entry.tensor.values =
                to_floats(entry.tensor.dtype, bytes, bytes.size() / size_of(entry.tensor.dtype));
            content.tensors.emplace(entry.name, std::move(entry.tensor));
        }
        return content;
    }

 private:
    template <class... Parts>
    [[noreturn]] void error(const Parts&... parts) const {
        fail(path_, ": ", parts...);
    }

    void read_bytes(char* to, size_t n) {
        if (!file_.read(to, std::streamsize(n))) error("is cut short: it has ", size_, " bytes");
    }

    json read_header() {
        uint64_t length = 0;
        if (size_ < sizeof length)
            error("is cut short: it has ", size_, " bytes, its header alone more");
        read_bytes(reinterpret_cast<char*>(&length), sizeof length);
        if (length > kMaxHeader)
            error("its header says it is ", length, " bytes long, more than ", kMaxHeader,
                  "; is this a safetensors file?");
        if (length > size_ - sizeof length)
            error("is cut short: it has ", size_, " bytes, its header alone ", length);
        data_at_ = sizeof length + length;
        std::string text(length, '\0');
        read_bytes(text.data(), length);

        std::set<std::string> names;
        const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
            if (depth > kMaxDepth) error("its header is nested too deeply");
            if (event == json::parse_event_t::key && depth == 1 &&
                !names.insert(parsed.get<std::string>()).second)
                error("its header names '", parsed.get<std::string>(), "' twice");
            return true;
        };
        try {
            json header = json::parse(text, watch);
            if (!header.is_object()) error("its header is not a JSON object");
            return header;
        } catch (const json::exception& problem) {
            error("its header is not valid JSON: ", problem.what());
        }
    }

    std::map<std::string, std::string> metadata_of(const json& value) const {
        std::map<std::string, std::string> metadata;
        if (!value.is_object()) error("its __metadata__ is not an object");
        for (auto& [key, text] : value.items()) {
            if (!text.is_string()) error("its __metadata__ '", key, "' is not a string");
            metadata[key] = text.get<std::string>();
        }
        return metadata;
    }

    // A whole number >= 0, or an Error.
    uint64_t whole(const std::string& name, const json& value) const {
        if (!value.is_number_unsigned())
            error("tensor '", name,
                  "': ", value.dump(-1, ' ', true, json::error_handler_t::replace),
                  " is not a whole number");
        return value.get<uint64_t>();
    }

    Entry entry_of(const std::string& name, const json& value) const {
        Entry entry{name, {}, 0, 0};
        const bool complete = value.is_object() && value.contains("dtype") &&
                              value["dtype"].is_string() && value.contains("shape") &&
                              value["shape"].is_array() && value.contains("data_offsets") &&
                              value["data_offsets"].is_array();
        if (!complete || value["data_offsets"].size() != 2)
            error("tensor '", name, "' lacks dtype, shape or data_offsets");
        entry.tensor.dtype = value["dtype"].get<std::string>();
        entry.begin = whole(name, value["data_offsets"][0]);
        entry.end = whole(name, value["data_offsets"][1]);
        const uint64_t data_bytes = size_ - data_at_;
        if (entry.begin > entry.end || entry.end > data_bytes)
            error("tensor '", name, "' lies at bytes ", entry.begin, " to ", entry.end, " of ",
                  data_bytes, "; is the file cut short?");

        const size_t elem_bytes = size_of(entry.tensor.dtype);
        if (elem_bytes == 0)
            error("tensor '", name, "' is of type '", entry.tensor.dtype,
                  "'; expected F32, F64, F16, BF16 or I64");
        if (value["shape"].size() > kMaxDims) error("tensor '", name, "' has too many dimensions");
        const uint64_t elems = (entry.end - entry.begin) / elem_bytes;
        uint64_t product = 1;
        bool overflow = false, zero = false;
        for (const json& dim : value["shape"]) {
            const uint64_t size = whole(name, dim);
            zero = zero || size == 0;
            overflow = overflow || (size > 0 && product > data_bytes / size);
            if (size > 0 && !overflow) product *= size;
            entry.tensor.shape.push_back(int64_t(std::min<uint64_t>(size, INT64_MAX)));
        }
        if (zero) product = 0;
        if ((overflow && !zero) || product != elems ||
            elems * elem_bytes != entry.end - entry.begin)
            error("tensor '", name, "' has ", entry.end - entry.begin,
                  " bytes, which its shape does not need");
        return entry;
    }

    // The ranges, sorted, must follow one another without overlap or gap and fill the file.
    void check_ranges(const std::vector<Entry>& entries) const {
        uint64_t end = 0;
        const std::string* before = nullptr;
        for (const Entry& entry : entries) {
            if (entry.begin < end) error("tensors '", *before, "' and '", entry.name, "' overlap");
            if (entry.begin > end) error("there is a gap before tensor '", entry.name, "'");
            end = entry.end;
            before = &entry.name;
        }
        if (end != size_ - data_at_)
            error("has ", size_ - data_at_ - end, " bytes that belong to no tensor");
    }

    std::string path_;
    std::ifstream file_;
    uint64_t size_ = 0, data_at_ = 0;
};

// A file that is closed on every way out.
class Output {
 public:
    explicit Output(const std::string& path)
        : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
        if (file_ < 0) error("created");
    }
    ~Output() {
        if (file_ >= 0) ::close(file_);  // after a failure, which has its own message
    }
    Output(const Output&) = delete;
    void write(const void* bytes, size_t n) {
        const char* at = static_cast<const char*>(bytes);
        while (n > 0) {
            const ssize_t written = ::write(file_, at, n);
            if (written < 0 && errno == EINTR) continue;
            if (written < 0) error("written");
            at += written, n -= size_t(written);
        }
    }
    void finish() {
        if (::fsync(file_) != 0) error("synced");
        if (::close(std::exchange(file_, -1)) != 0) error("closed");
    }

 private:
    [[noreturn]] void error(const char* what) const {
        fail(path_, " cannot be ", what, ": ", std::strerror(errno));
    }
    std::string path_;
    int file_;
};

}  // namespace

SafeTensors read_safetensors(const std::string& path) { return Reader(path).read(); }

void write_safetensors(const std::string& path, const SafeTensors& content) {
    // Tensors of 8-byte numbers first, so that every tensor is aligned to its type.
    std::vector<const std::pair<const std::string, StoredTensor>*> order;
    for (auto& named : content.tensors) order.push_back(&named);
    std::stable_sort(order.begin(), order.end(), [](auto* a, auto* b) {
        return size_of(a->second.dtype) > size_of(b->second.dtype);
    });

    json header = json::object();
    if (!content.metadata.empty()) header["__metadata__"] = content.metadata;
    uint64_t at = 0;
    for (auto* named : order) {
        const auto& [name, tensor] = *named;
        ENSURE(tensor.dtype == "F32" || tensor.dtype == "I64", name, " is of type ", tensor.dtype);
        size_t elems = 1;
        for (int64_t dim : tensor.shape) elems *= size_t(dim);
        ENSURE(elems == tensor.values.size(), name, " has ", tensor.values.size(), " values");
        const uint64_t end = at + elems * size_of(tensor.dtype);
        header[name] = {
            {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
        at = end;
    }
    std::string text = header.dump(-1, ' ', false, json::error_handler_t::replace);
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t length = text.size();
    if (length > kMaxHeader) fail(path, ": the header would be ", length, " bytes long");

    Output file(path);
    file.write(&length, sizeof length);
    file.write(text.data(), text.size());
    for (auto* named : order) {
        const std::vector<float>& values = named->second.values;
        if (named->second.dtype == "F32") {
            file.write(values.data(), values.size() * sizeof(float));
        } else {
            std::vector<int64_t> whole(values.size());
            for (size_t i = 0; i < values.size(); ++i) whole[i] = std::llround(values[i]);
            file.write(whole.data(), whole.size() * sizeof(int64_t));
        }
    }
    file.finish();
}

}  // namespace convoy
