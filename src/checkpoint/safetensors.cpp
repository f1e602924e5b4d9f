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
#include <numeric>
#include <set>

#include "src/base/bf16.h"
#include "src/base/check.h"

namespace convoy {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are");

using nlohmann::json;

static constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit
static constexpr int kMaxDepth = 3;                  // header { tensor { shape [ … ] } }

size_t size_of(const std::string& dtype) {
    if (dtype == "F64" || dtype == "I64") return 8;
    if (dtype == "F32") return 4;
    return dtype == "F16" || dtype == "BF16" ? 2 : 0;
}

// ---- reading ---------------------------------------------------------------------------------

namespace {

struct Entry {
    std::string name;
    StoredTensor tensor;
    uint64_t begin, end;  // bytes of the data
};

float from_half(uint16_t bits) {
    // The exponent counts from 15 in a half, from 127 in a float: 127 - 15 = 112.
    const float value = std::bit_cast<float>((bits & 0x7fffu) << 13) * 0x1p112f;
    const bool finite = (bits & 0x7c00) != 0x7c00;
    return std::copysign(finite ? value : bits & 0x3ff ? NAN : INFINITY, bits & 0x8000 ? -1 : 1);
}

template <class T>
std::vector<float> convert_all(std::span<const char> bytes, float (*convert)(T)) {
    std::vector<float> values(bytes.size() / sizeof(T));
    const char* at = bytes.data();
    for (float& value : values) {
        T number;
        std::memcpy(&number, at, sizeof number);
        value = convert(number);
        at += sizeof number;
    }
    return values;
}

// Reads the next `n` bytes. `left` bytes of the file were not read before.
std::vector<char> read_bytes(std::ifstream& file, uint64_t n, uint64_t& left) {
    if (n > left) fail("is cut short: its header takes ", n, " bytes, and it has ", left, " bytes");
    std::vector<char> bytes(n);
    if (!file.read(bytes.data(), std::streamsize(n))) fail("cannot be read");
    left -= n;
    return bytes;
}

// Refuses headers with deep nesting, or with a repeated name, which the parsed header would hide. A
// callback of json::parse would take time quadratic in the number of tensors.
struct HeaderCheck final : json::json_sax_t {
    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(int64_t) override { return true; }
    bool number_unsigned(uint64_t) override { return true; }
    bool number_float(double, const std::string&) override { return true; }
    bool string(std::string&) override { return true; }
    bool binary(json::binary_t&) override { return true; }
    bool start_object(size_t) override { return enter(); }
    bool start_array(size_t) override { return enter(); }
    bool end_object() override { return --depth_, true; }
    bool end_array() override { return --depth_, true; }
    bool key(std::string& name) override {
        if (depth_ == 1 && !names_.insert(name).second) fail("its header names '", name, "' twice");
        return true;
    }
    bool parse_error(size_t, const std::string&, const json::exception& problem) override {
        fail("its header is not valid JSON: ", problem.what());
    }

 private:
    bool enter() {
        if (++depth_ > kMaxDepth) fail("its header is nested too deeply");
        return true;
    }
    int depth_ = 0;
    std::set<std::string> names_;
};

json parse_header(const std::vector<char>& text) {
    try {
        HeaderCheck check;
        json::sax_parse(text, &check);
        json header = json::parse(text);
        if (!header.is_object()) fail("its header is not a JSON object");
        return header;
    } catch (const json::exception& problem) {
        fail("its header is not valid JSON: ", problem.what());
    }
}

std::map<std::string, std::string> metadata_of(const json& value) {
    if (!value.is_object()) fail("its __metadata__ is not an object");
    for (auto& [key, text] : value.items())
        if (!text.is_string()) fail("its __metadata__ '", key, "' is not a string");
    return value.get<std::map<std::string, std::string>>();
}

Entry entry_of(const std::string& name, const json& value, uint64_t data_bytes) {
    const auto whole = [&](const json& number) {
        if (!number.is_number_unsigned())
            fail("tensor '", name, "': ", number.dump(-1, ' ', true), " is not a whole number");
        return number.get<uint64_t>();
    };
    const json dtype = value.is_object() ? value.value("dtype", json()) : json();
    const json shape = value.is_object() ? value.value("shape", json()) : json();
    const json range = value.is_object() ? value.value("data_offsets", json()) : json();
    if (!dtype.is_string() || !shape.is_array() || !range.is_array() || range.size() != 2)
        fail("tensor '", name, "' lacks dtype, shape or data_offsets");
    Entry entry{name, {dtype, {}, {}}, whole(range[0]), whole(range[1])};
    if (entry.begin > entry.end || entry.end > data_bytes)
        fail("tensor '", name, "' lies at bytes ", entry.begin, " to ", entry.end, " of ",
             data_bytes, "; is the file cut short?");
    uint64_t bytes = size_of(dtype);
    bool overflow = false;
    for (const json& dim : shape) {
        entry.tensor.shape.push_back(int64_t(whole(dim)));
        overflow |= __builtin_mul_overflow(bytes, whole(dim), &bytes);
    }
    if (size_of(dtype) > 0 && (overflow || bytes != entry.end - entry.begin))
        fail("tensor '", name, "' has ", entry.end - entry.begin,
             " bytes, which its shape does not need");
    return entry;
}

SafeTensors read(std::ifstream& file, uint64_t left) {
    uint64_t length;
    std::memcpy(&length, read_bytes(file, sizeof length, left).data(), sizeof length);
    if (length > kMaxHeader)
        fail(
            "is no safetensors file, which would begin with the length of its header. Give a run's "
            "folder, one of its checkpoints or a .safetensors file; `trainer import` makes one of "
            "PyTorch's .pth");
    const json header = parse_header(read_bytes(file, length, left));
    SafeTensors content;
    std::vector<Entry> entries;
    for (auto& [name, value] : header.items())
        if (name == "__metadata__")
            content.metadata = metadata_of(value);
        else
            entries.push_back(entry_of(name, value, left));

    // Sorted by their data, entries have no overlaps, no gaps, and nothing after the last.
    std::ranges::sort(entries, {}, [](const Entry& one) { return std::pair(one.begin, one.end); });
    uint64_t end = 0;
    const Entry* before = nullptr;
    for (const Entry& entry : entries) {
        if (entry.begin < end) fail("tensors '", before->name, "' and '", entry.name, "' overlap");
        if (entry.begin > end) fail("there is a gap before tensor '", entry.name, "'");
        end = entry.end, before = &entry;
    }
    if (end != left) fail("has ", left - end, " bytes that belong to no tensor");
    for (Entry& entry : entries) {
        if (size_of(entry.tensor.dtype) == 0) {
            content.left_out.emplace(entry.name, entry.tensor.dtype);
            file.seekg(std::streamoff(entry.end - entry.begin), std::ios::cur);
            left -= entry.end - entry.begin;
            continue;
        }
        entry.tensor.values =
            to_floats(entry.tensor.dtype, read_bytes(file, entry.end - entry.begin, left));
        if (entry.tensor.dtype != "I64") entry.tensor.dtype = "F32";
        content.tensors.emplace(entry.name, std::move(entry.tensor));
    }
    return content;
}

}  // namespace

std::vector<float> to_floats(const std::string& dtype, std::span<const char> bytes) {
    if (dtype == "F16") return convert_all<uint16_t>(bytes, from_half);
    if (dtype == "BF16") return convert_all<uint16_t>(bytes, from_bf16);
    if (dtype == "F64") return convert_all<double>(bytes, [](double x) { return float(x); });
    if (dtype == "I64") return convert_all<int64_t>(bytes, [](int64_t x) { return float(x); });
    return convert_all<float>(bytes, [](float x) { return x; });
}

SafeTensors read_safetensors(const std::string& path) try {
    std::error_code status;
    const uint64_t size = std::filesystem::file_size(path, status);
    if (status) fail("cannot be read: ", status.message());
    std::ifstream file(path, std::ios::binary);
    if (!file) fail("cannot be opened: ", std::strerror(errno));
    return read(file, size);
} catch (const Error& error) {
    fail(path, ": ", error.what());
} catch (const std::bad_alloc&) {
    fail(path, ": takes more memory than there is");
}

// ---- writing ---------------------------------------------------------------------------------

bool close_synced(std::ofstream& file, const std::string& path) {
    file.close();
    if (!file) fail(path, " cannot be written: ", std::strerror(errno));
    return sync_path(path);
}

bool sync_path(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const int error = file < 0 || fsync(file) != 0 ? errno : 0;
    if (file >= 0) close(file);
    constexpr int kUnable[] = {EINVAL, ENOTSUP, ENOSYS, EISDIR};
    if (std::ranges::count(kUnable, error) > 0) return false;
    if (error) fail(path, " cannot be synced: ", std::strerror(error));
    return true;
}

void write_safetensors(const std::string& path, const SafeTensors& content, ProgressBar* bar) {
    json header = json::object();
    if (!content.metadata.empty()) header["__metadata__"] = content.metadata;
    std::vector<int64_t> whole;  // all I64 tensors. They come first, so that all are aligned
    uint64_t end = 0;
    for (const std::string dtype : {"I64", "F32"})
        for (const auto& [name, tensor] : content.tensors) {
            ENSURE(tensor.dtype == "I64" || tensor.dtype == "F32", name, " is ", tensor.dtype);
            if (tensor.dtype != dtype) continue;
            ENSURE(tensor.values.size() == std::accumulate(tensor.shape.begin(), tensor.shape.end(),
                                                           size_t(1), std::multiplies<size_t>()),
                   name, " has ", tensor.values.size(), " values");
            const uint64_t begin = end;
            end += tensor.values.size() * size_of(dtype);
            header[name] = {
                {"dtype", dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
            if (dtype == "I64")
                for (float value : tensor.values) whole.push_back(std::llround(value));
        }
    std::string text = header.dump(-1, ' ', false, json::error_handler_t::replace);
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t length = text.size();
    if (length > kMaxHeader) fail(path, ": the header would be ", length, " bytes long");

    std::ofstream file(path, std::ios::binary);
    const auto write = [&](const void* bytes, size_t n) {
        if (!file.write(static_cast<const char*>(bytes), std::streamsize(n)))
            fail(path, " cannot be written: ", std::strerror(errno));
    };
    write(&length, sizeof length);
    write(text.data(), length);
    write(whole.data(), whole.size() * sizeof(int64_t));
    for (const auto& [name, tensor] : content.tensors)
        if (tensor.dtype == "F32") {
            write(tensor.values.data(), tensor.values.size() * sizeof(float));
            if (bar) bar->add(tensor.values.size() * sizeof(float));
        }
    close_synced(file, path);
}

}  // namespace convoy
