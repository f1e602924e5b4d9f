// tfrecord.cpp — TFRecord's framing, and the three fields of tf.train.Example that hold an image.
//
//   offset  size  type
//        0     8  u64    length n of the data, little-endian
//        8     4  u32    checksum of these 8 bytes: CRC-32C, rotated right by 15, plus 0xA282EAD8
//       12     n  data   Example { features = 1: { feature = 1: map from name to Feature } }
//   12 + n     4  u32    checksum of the data
//
//   Feature { bytes_list = 1: { value = 1 }   float_list = 2   int64_list = 3: { value = 1 } }
//
// Protobuf's library cannot do this: an index must know where in the file an image begins.
#include <optional>
#include <string_view>

#include "data/sources/crc32c.h"
#include "data/sources/records.h"
#include "src/base/bytes.h"
#include "src/base/text.h"

namespace convoy {
namespace {

using Bytes = std::span<const uint8_t>;

// One field of a protobuf message: its number, and its bytes or its varint.
struct Field {
    uint32_t number = 0;
    bool is_bytes = false;
    Bytes bytes;
    uint64_t varint = 0;
};

// Reads a message. Throws Error if it is damaged.
struct Message : ByteReader {
    bool has_next() const { return !rest.empty(); }
    uint64_t varint() {
        uint64_t value = 0;
        for (int shift = 0; shift < 64; shift += 7) {
            const uint8_t byte = number<uint8_t>();
            value |= uint64_t(byte & 0x7F) << shift;
            if (byte < 0x80) return value;
        }
        fail("a varint without end");
    }
    Field next() {
        const uint64_t key = varint();
        Field field{uint32_t(key >> 3), (key & 7) == 2, {}, 0};
        switch (key & 7) {
            case 0: field.varint = varint(); break;
            case 1: take(8); break;
            case 2: field.bytes = take(varint()); break;
            case 5: take(4); break;
            default: fail("a field of an unknown type");
        }
        return field;
    }
};

// The last field of bytes with this number (protobuf's rule), or no bytes.
Bytes find(Bytes message, uint32_t number) {
    Bytes found;
    for (Message in{{message}}; in.has_next();)
        if (const Field field = in.next(); field.number == number && field.is_bytes)
            found = field.bytes;
    return found;
}

struct LabelOfBytes {};  // instead of an integer, and no text beside it
struct Several {};       // an image, or a label, of a record that has more of them

// The only number of an Int64List: packed (one run of bytes) or not.
std::optional<int64_t> only_number(Bytes list) {
    std::optional<int64_t> only;
    const auto take = [&](uint64_t number) {
        if (only) throw Several();
        only = int64_t(number);
    };
    for (Message in{{list}}; in.has_next();) {
        const Field field = in.next();
        if (field.number == 1 && !field.is_bytes) take(field.varint);
        if (field.number == 1 && field.is_bytes)
            for (Message run{{field.bytes}}; run.has_next();) take(run.varint());
    }
    return only;
}
// The only text of a BytesList.
Bytes only_bytes(Bytes list) {
    Bytes only;
    int n = 0;
    for (Message in{{list}}; in.has_next();)
        if (const Field field = in.next(); field.number == 1 && field.is_bytes && n++ == 0)
            only = field.bytes;
    if (n > 1) throw Several();
    return only;
}

// The image and the label of an Example.
Record parse_example(Bytes message) {
    Record record;
    bool has_bytes = false;
    for (Message in{{message}}; in.has_next();) {
        const Field outer = in.next();
        if (outer.number != 1 || !outer.is_bytes) continue;
        for (Message features{{outer.bytes}}; features.has_next();) {
            const Field entry = features.next();
            if (entry.number != 1 || !entry.is_bytes) continue;
            const std::string_view name = as_text(find(entry.bytes, 1));
            const Bytes feature = find(entry.bytes, 2);
            // TFDS calls them "image" and "label"; the longer names win.
            if (name == "image/class/label" || (name == "label" && !record.label.number)) {
                record.label.number = only_number(find(feature, 3));
                has_bytes = !only_bytes(find(feature, 1)).empty();
            }
            if (name == "image/class/text")
                record.label.name = as_text(only_bytes(find(feature, 1)));
            if (name == "image/encoded" || (name == "image" && record.bytes.empty()))
                record.bytes = only_bytes(find(feature, 1));
        }
    }
    if (has_bytes && record.label.name.empty()) throw LabelOfBytes();
    return record;
}

// Reports the image of one Example whose bytes are at `offset`.
void take_example(Bytes data, uint64_t offset, const Findings& findings) {
    Record record;
    try {
        record = parse_example(data);
    } catch (const Several&) {
        return findings.fault(offset, "several images or several labels in it");
    } catch (const LabelOfBytes&) {
        return findings.fault(offset,
                              "the label holds bytes: write it as int64, or the class's "
                              "name as image/class/text");
    } catch (const Error&) {
        return findings.fault(offset, "damaged: not a tf.train.Example");
    }
    if (record.bytes.empty())
        return findings.fault(offset, "neither image/encoded nor image in it");
    if (!is_utf8(record.label.name)) return findings.fault(offset, "image/class/text is not UTF-8");
    record.offset = offset + size_t(record.bytes.data() - data.data());
    findings.record(record);
}

}  // namespace

bool begins_tfrecord(Bytes head) {
    return head.size() >= 12 && little_endian(head, 8) == masked_crc32c(head.first(8));
}

void scan_tfrecord(ByteStream& stream, const Findings& findings) {
    std::vector<uint8_t> header, data, checksum;
    for (;;) {
        const uint64_t at = stream.offset();
        stream.take(12, header);
        if (header.empty()) return;
        if (header.size() < 12) return findings.fault(at, "truncated in the header of a record");
        const uint64_t length = ByteReader{header}.number<uint64_t>();
        if (!begins_tfrecord(header))
            return findings.fault(
                at, "the checksum of a record's length is wrong: the rest of the file is left out");
        if (length > kMaxSample)
            return findings.fault(at,
                                  cat("a record of ", length, " bytes; the limit is ", kMaxSample));
        stream.take(length, data);
        stream.take(4, checksum);
        if (checksum.size() < 4) return findings.fault(at, "truncated within a record");
        if (little_endian(checksum, 0) != masked_crc32c(data))
            findings.fault(at, "the checksum of the record is wrong");
        else
            take_example(data, at + 12, findings);
    }
}

}  // namespace convoy
