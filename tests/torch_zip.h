// torch_zip.h — writes files like torch.save(), correct and wrong ones.
#pragma once

#include <zlib.h>

#include <string>
#include <utility>
#include <vector>

namespace convoy {

template <class T>
std::string little_bytes(T value, size_t n = sizeof(T)) {
    return {reinterpret_cast<const char*>(&value), n};
}

// A zip file of uncompressed members with correct checksums.
inline std::string zip_of(const std::vector<std::pair<std::string, std::string>>& members) {
    std::string file, directory;
    for (const auto& [name, content] : members) {
        const uint32_t crc =
            uint32_t(crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size()));
        const std::string common = std::string("\0\0\0\0\0\0\0\0", 8) + little_bytes(crc) +
                                   little_bytes(uint32_t(content.size())) +
                                   little_bytes(uint32_t(content.size())) +
                                   little_bytes(uint16_t(name.size())) + std::string(2, '\0');
        directory += std::string("PK\1\2\0\0\0\0", 8) + common + std::string(10, '\0') +
                     little_bytes(uint32_t(file.size())) + name;
        file += std::string("PK\3\4\0\0", 6) + common + name + content;
    }
    const std::string count = little_bytes(uint16_t(members.size()));
    return file + directory + std::string("PK\5\6\0\0\0\0", 8) + count + count +
           little_bytes(uint32_t(directory.size())) + little_bytes(uint32_t(file.size())) +
           std::string(2, '\0');
}

// ---- parts of a pickle of protocol 2 ---------------------------------------------------------

inline std::string pickled(const std::string& text) {
    return "X" + little_bytes(uint32_t(text.size())) + text;
}
inline std::string pickled(int64_t number) { return "\x8a\x08" + little_bytes(number); }
inline std::string pickled(const std::vector<int64_t>& numbers) {
    std::string all = "(";
    for (const int64_t n : numbers) all += pickled(n);
    return all + "t";
}
// An item of a dict: a name and its tensor.
inline std::string pickled_tensor(const std::string& name, const std::vector<int64_t>& shape,
                                  const std::vector<int64_t>& strides, int64_t offset = 0,
                                  const std::string& type = "torch\nFloatStorage") {
    return pickled(name) + "ctorch._utils\n_rebuild_tensor_v2\n((" + pickled("storage") + "c" +
           type + "\n" + pickled("0") + pickled("cpu") + "K\x06tQ" + pickled(offset) +
           pickled(shape) + pickled(strides) + "\x89}tR";
}
inline std::string pickled_dict(const std::string& items) { return "\x80\x02}(" + items + "u."; }

// With one storage, of six floats: 0, 1, 2, 3, 4, 5.
inline std::string torch_file(const std::string& pickle) {
    std::string storage;
    for (int i = 0; i < 6; ++i) storage += little_bytes(float(i));
    return zip_of({{"m/data.pkl", pickle}, {"m/byteorder", "little"}, {"m/data/0", storage}});
}

// The same in the format from before PyTorch 1.6, after a storage of three bytes.
inline std::string torch_file_before_zip(const std::string& pickle) {
    std::string file = std::string("\x80\2\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\2M\xe9\3.") +
                       "\x80\2}" + pickled("little_endian") + "\x88s." + pickle + "\x80\2](";
    const bool two = pickle.find(pickled("flags")) != pickle.npos;
    if (two) file += pickled("flags");
    file += pickled("0") + "e.";
    if (two) file += little_bytes(int64_t(3)) + "abc";
    file += little_bytes(int64_t(6));
    for (int i = 0; i < 6; ++i) file += little_bytes(float(i));
    return file;
}

}  // namespace convoy
