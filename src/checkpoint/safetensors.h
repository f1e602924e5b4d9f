// safetensors.h — reading and writing the safetensors format (huggingface.co/docs/safetensors).
//
//   offset 0   u64 little-endian   N, length of the header, at most 100 MB
//   offset 8   N bytes             JSON: name → {"dtype", "shape", "data_offsets": [begin, end)},
//                                  offsets from the end of the header; "__metadata__": strings
//   offset 8+N                     data, little-endian, C order, no gaps
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "src/base/terminal.h"

namespace convoy {

struct StoredTensor {
    std::string dtype = "F32";  // or I64; a file's F64, F16 and BF16 are read as F32
    std::vector<int64_t> shape;
    std::vector<float> values;
};

struct SafeTensors {
    std::map<std::string, StoredTensor> tensors;
    std::map<std::string, std::string> left_out;  // other tensors of the file, and their type
    std::map<std::string, std::string> metadata;
};

// Throws Error with the file and what is wrong: cut short, header too long, range outside the file,
// overlapping ranges, a shape that does not match its range. Every number is checked against the
// file's size before memory is allocated by it. Tensors of other types (BOOL, F8_E4M3) are left
// out.
SafeTensors read_safetensors(const std::string& path);
// Writes `path` and syncs it. `bar` counts the bytes of floats. Throws Error.
void write_safetensors(const std::string& path, const SafeTensors& content,
                       ProgressBar* bar = nullptr);

// dtype: F64, F32, F16, BF16 or I64. The bytes of a number (0: another type); numbers as floats.
size_t size_of(const std::string& dtype);
std::vector<float> to_floats(const std::string& dtype, std::span<const char> bytes);

// Blocks until the disk has the file or folder, so that it survives a power failure. Returns false
// if the file system cannot do that.
bool sync_path(const std::string& path);
bool close_synced(std::ofstream& file, const std::string& path);  // throws if a write failed

}  // namespace convoy
