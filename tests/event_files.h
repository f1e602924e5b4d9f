// event_files.h — a strict reader of TensorBoard files, to check what the program writes.
#pragma once

#include <algorithm>

#include "data/sources/crc32c.h"
#include "tests/process.h"
#include "tests/protobuf_reader.h"

namespace convoy {

// The records of a file. Checksums must be right, and nothing may follow the last record.
inline std::vector<std::string> events_of(const std::string& path) {
    const std::string file = read_file(path);
    const auto number = [&]<class T>(size_t at, T value) {
        REQUIRE(at + sizeof value <= file.size());
        std::memcpy(&value, file.data() + at, sizeof value);
        return value;
    };
    const auto crc = [&](size_t at, size_t n) {
        return masked_crc32c({reinterpret_cast<const uint8_t*>(file.data()) + at, n});
    };
    std::vector<std::string> events;
    for (size_t at = 0; at < file.size();) {
        const size_t length = number(at, uint64_t());
        CHECK(number(at + 8, uint32_t()) == crc(at, 8));
        REQUIRE(length < file.size());
        CHECK(number(at + 12 + length, uint32_t()) == crc(at + 12, length));
        events.push_back(file.substr(at + 12, length));
        at += 12 + length + 4;
    }
    return events;
}
inline std::vector<std::string> files_of(const std::string& folder) {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
        files.push_back(entry.path());
    std::ranges::sort(files);
    return files;
}
inline uint64_t step_of(const std::string& event) {
    const auto step = proto_all(event, 2);
    return step.empty() ? 0 : step[0].value;
}
// (step, value) of each point of a curve, in the order of files and records.
inline std::vector<std::pair<uint64_t, float>> points(const std::string& folder,
                                                      const std::string& tag) {
    std::vector<std::pair<uint64_t, float>> all;
    for (const std::string& file : files_of(folder))
        for (const std::string& event : events_of(file))
            for (const ProtoField& summary : proto_all(event, 5))
                for (const ProtoField& value : proto_all(summary.bytes, 1))
                    if (proto_text(value.bytes, 1) == tag)
                        all.emplace_back(step_of(event), proto_one(value.bytes, 2).real());
    return all;
}

}  // namespace convoy
