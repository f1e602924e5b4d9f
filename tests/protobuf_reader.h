// protobuf_reader.h — a strict reader of protocol buffers, to check what the program writes.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support.h"

namespace convoy {

struct ProtoField {
    int number = 0, type = 0;
    uint64_t value = 0;           // of a varint, or the bits of a fixed number
    std::string_view bytes = {};  // of type 2
    float real() const {
        REQUIRE(type == 5);
        return std::bit_cast<float>(uint32_t(value));
    }
    double real64() const {
        REQUIRE(type == 1);
        return std::bit_cast<double>(value);
    }
};

inline std::vector<ProtoField> proto_fields(std::string_view rest) {
    const auto varint = [&] {
        uint64_t value = 0;
        for (int shift = 0;; shift += 7) {
            REQUIRE_MESSAGE((!rest.empty() && shift < 64), "a varint is cut short");
            const uint8_t byte = uint8_t(rest[0]);
            rest.remove_prefix(1);
            value |= uint64_t(byte & 0x7f) << shift;
            if (byte < 0x80) return value;
        }
    };
    std::vector<ProtoField> fields;
    while (!rest.empty()) {
        const uint64_t key = varint();
        ProtoField field{int(key >> 3), int(key & 7)};
        REQUIRE(field.number > 0);
        REQUIRE((field.type == 0 || field.type == 1 || field.type == 2 || field.type == 5));
        if (field.type == 0) {
            field.value = varint();
        } else {
            const size_t size = field.type == 2 ? varint() : field.type == 1 ? 8 : 4;
            REQUIRE(size <= rest.size());
            field.bytes = rest.substr(0, size);
            if (field.type != 2) std::memcpy(&field.value, field.bytes.data(), size);
            rest.remove_prefix(size);
        }
        fields.push_back(field);
    }
    return fields;
}

// All fields with this number.
inline std::vector<ProtoField> proto_all(std::string_view message, int number) {
    std::vector<ProtoField> fields = proto_fields(message);
    std::erase_if(fields, [&](const ProtoField& field) { return field.number != number; });
    return fields;
}
// The only field with this number.
inline ProtoField proto_one(std::string_view message, int number) {
    const std::vector<ProtoField> fields = proto_all(message, number);
    CAPTURE(number);
    REQUIRE(fields.size() == 1);
    return fields[0];
}
inline std::string proto_text(std::string_view message, int number) {
    return std::string(proto_one(message, number).bytes);
}

// Runs tests/<script>; fails if the script fails. Returns false, with a message, if Python
// (CONVOY_TEST_PYTHON, or python3) lacks an imported module.
inline bool python_agrees(const std::string& script, const std::string& arguments) {
    const char* python = std::getenv("CONVOY_TEST_PYTHON");
    const std::string folder = std::filesystem::path(__FILE__).parent_path();
    const int status =
        shell(cat(python ? python : "python3", " ", folder, "/", script, " ", arguments));
    if (WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 127) {
        MESSAGE("skipped: Python lacks what tests/" << script << " imports");
        return false;
    }
    CHECK(status == 0);
    return true;
}

}  // namespace convoy
