// protobuf.h — writes protocol buffers: TFRecord samples, ONNX models, TensorBoard events. A field
// is a key, (number << 3 | type) as a varint, and a value: a varint (type 0), 8 bytes (1), a length
// and that many bytes (2), or 4 bytes (5). A nested message is a field of bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace convoy {

// Fields are written in the order of the calls.
class ProtoMessage {
 public:
    // int32, int64, bool or enum.
    ProtoMessage& number(int field, int64_t value) { return varint(key(field, 0), value); }
    ProtoMessage& real(int field, double value) { return fixed(key(field, 1), value); }
    ProtoMessage& real(int field, float value) { return fixed(key(field, 5), value); }
    // string, bytes or a message.
    ProtoMessage& bytes(int field, std::string_view value) {
        head(field, value.size()).text_ += value;
        return *this;
    }
    // Only the start of a field of bytes: the caller appends `size` bytes.
    ProtoMessage& head(int field, size_t size) { return varint(key(field, 2), int64_t(size)); }

    ProtoMessage& append(const ProtoMessage& fields) {
        text_ += fields.text_;
        return *this;
    }

    operator std::string_view() const { return text_; }
    size_t size() const { return text_.size(); }

 private:
    static uint64_t key(int field, int type) { return uint64_t(field) << 3 | uint64_t(type); }
    void append_varint(uint64_t value) {
        for (; value >= 0x80; value >>= 7) text_ += char(value | 0x80);
        text_ += char(value);
    }
    ProtoMessage& varint(uint64_t key, int64_t value) {
        append_varint(key);
        append_varint(uint64_t(value));
        return *this;
    }
    template <class T>
    ProtoMessage& fixed(uint64_t key, T value) {
        append_varint(key);
        text_.append(reinterpret_cast<const char*>(&value), sizeof value);  // little-endian
        return *this;
    }

    std::string text_;
};

}  // namespace convoy
