// foreign.cpp — names files of formats that are not read here, and says what to do with them.
#include <algorithm>

#include "data/index.h"

namespace convoy {

using namespace std::string_view_literals;

static constexpr const char* kUnpack = ": unpack it, and give the folder of its images";
static constexpr const char* kExport =
    ": write its images to files in a folder per class, or to tar shards (WebDataset)";
static constexpr const char* kText = ": convert it by iconv -f UTF-16 -t UTF-8";
static constexpr const char* kVideo = ": write its frames to files in a folder per class";

// What begins with `mark` at byte `at`, and has a name that ends with `end`.
static constexpr struct Other {
    std::string_view mark;
    size_t at;
    std::string_view end, what;
    const char* advice;
} kOthers[] = {
    {"PK\3\4"sv, 0, ".npz", "an archive of NumPy arrays", kExport},
    {"PK\3\4"sv, 0, "", "a zip archive", kUnpack},
    {"7z\xBC\xAF"sv, 0, "", "a 7-Zip archive", kUnpack},
    {"Rar!"sv, 0, "", "a RAR archive", kUnpack},
    {"\x1F\x8B"sv, 0, "", "packed by gzip", kUnpack},
    {"BZh"sv, 0, "", "packed by bzip2", kUnpack},
    {"\xFD\x37zXZ"sv, 0, "", "packed by xz", kUnpack},
    {"\x28\xB5\x2F\xFD"sv, 0, "", "packed by zstd", kUnpack},
    {"PAR1"sv, 0, "", "Parquet", kExport},
    {"ARROW1"sv, 0, "", "Arrow", kExport},
    {"\x89HDF\r\n"sv, 0, "", "HDF5", kExport},
    {"\x93NUMPY"sv, 0, "", "a NumPy array", kExport},
    {"\xDE\xC0\xEF\xBE"sv, 16, "", "an LMDB database", kExport},
    {"SQLite format 3"sv, 0, "", "an SQLite database", kExport},
    {"MATLAB 5.0"sv, 0, "", "a MATLAB file", kExport},
    {"\x0A\x23\xD7\xCE"sv, 0, "", "MXNet RecordIO", kExport},
    {"\x80"sv, 0, "", "a Python pickle",
     ": write its images to files in a folder per class (CIFAR: take the binary version)"},
    {"\xFF\xFE"sv, 0, "", "text in UTF-16", kText},
    {"\xFE\xFF"sv, 0, "", "text in UTF-16", kText},
    {"\xFF\xD8\xFF"sv, 0, "", "an image", ": name a folder of class folders"},
    {"\x89PNG"sv, 0, "", "an image", ": name a folder of class folders"},
    {"AVI "sv, 8, "", "a video", kVideo},
    {"\x1A\x45\xDF\xA3"sv, 0, "", "a video", kVideo},
    {"ftyp"sv, 4, ".mp4", "a video", kVideo},
    {"ftyp"sv, 4, ".mov", "a video", kVideo},
};

std::string foreign_format(const std::string& name) {
    if (name.find('\\', name.rfind('/') + 1) < name.size())
        return "named with backslashes: unpack it again by a tool that makes folders of them, such "
               "as 7-Zip";
    const StoragePtr file = open_local(name);
    std::vector<uint8_t> head(std::min<uint64_t>(32, file->size()));
    file->read(0, head);
    const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
    for (const Other& one : kOthers)
        if (text.substr(std::min(one.at, text.size())).starts_with(one.mark) &&
            name.ends_with(one.end))
            return std::string(one.what) + one.advice;
    return "";
}

}  // namespace convoy
