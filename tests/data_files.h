// data_files.h — writes files for tests and opens them with --data.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "data/sources/dataset.h"
#include "support.h"

using Bytes = std::vector<uint8_t>;

inline void put(const std::string& path, const std::string& content = "bytes") {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << content;
}
inline void put(const std::string& path, const Bytes& bytes) {
    put(path, std::string(bytes.begin(), bytes.end()));
}

inline convoy::DataSet open(const convoy::DataOptions& options, std::string* logged = nullptr) {
    convoy::Quiet quiet;
    convoy::DataSet set = convoy::open_data(options, quiet.log);
    if (logged) *logged = quiet.text();
    return set;
}
inline void refuses(const convoy::DataOptions& options, const std::string& why) {
    convoy::Quiet quiet;
    CHECK_FAILS(convoy::open_data(options, quiet.log), why);
}
