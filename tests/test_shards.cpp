// test_shards.cpp — shards of every format, made by other tools (golden_shards.h) or damaged by us,
// their index, and how --data finds them.
#include <cstring>
#include <nlohmann/json.hpp>

#include "data/check_data.h"
#include "data/sources/crc32c.h"
#include "data/sources/find_sets.h"
#include "data/sources/index.h"
#include "data_files.h"
#include "golden.h"
#include "golden_shards.h"
#include "pictures.h"
#include "support.h"

using namespace convoy;
namespace fs = std::filesystem;

namespace {

Bytes golden_shard(const char* text) {
    return inflate(*in_memory("golden", from_base64(text)), 1 << 20);
}

// Two records of CIFAR as its authors describe them: the labels of each, then its pixels, channel
// by channel. Byte i of all pixels is 7i mod 251.
Bytes cifar(const Bytes& first, const Bytes& second) {
    Bytes file = first;
    for (int i = 0; i < 2 * 3072; ++i) {
        if (i == 3072) file.insert(file.end(), second.begin(), second.end());
        file.push_back(uint8_t(i * 7 % 251));
    }
    return file;
}

// What a scanner finds: labels as "3", "hat" or "3 hat", and faults.
struct Found {
    std::vector<std::string> labels, faults;
    LeftOut left_out;
    std::vector<uint64_t> offsets;
    std::vector<Bytes> images;
};
Found scan(const Bytes& bytes, ShardFormat format, std::span<const uint8_t> idx_labels = {}) {
    Found found;
    const Findings findings{
        [&](const Record& record) {
            std::string label = record.label.number ? cat(*record.label.number) : "";
            if (!record.label.name.empty()) label += (label.empty() ? "" : " ") + record.label.name;
            found.labels.push_back(label), found.offsets.push_back(record.offset);
            found.images.emplace_back(record.bytes.begin(), record.bytes.end());
        },
        [&](uint64_t at, const std::string& why) {
            found.faults.push_back(cat("byte ", at, ": ", why));
        },
        [&](const std::string& what, uint64_t count) { found.left_out[what] += count; }};
    // A block of 1,000 bytes: nothing fits into one.
    ByteStream stream(in_memory("shard", bytes), 1000);
    scan_records(format, stream, findings, idx_labels);
    return found;
}
Found scan(const Bytes& bytes) {
    return scan(bytes, shard_format(std::span(bytes).first(std::min(bytes.size(), kHeadBytes)),
                                    bytes.size()));
}

// The number of a golden picture: its colour says it.
int picture_of(const Bytes& png) { return decoded(png).pixels[0] / 20; }
std::vector<int> pictures_of(const Found& found) {
    std::vector<int> numbers;
    for (const Bytes& image : found.images) numbers.push_back(picture_of(image));
    return numbers;
}

using Texts = std::vector<std::string>;

// A header and `bytes` zeros; size: as octal digits. type: '0' a file, '1' a hard link to `target`,
// '2' a symbolic one.
Bytes member(const std::string& name, const std::string& size, size_t bytes, char type = '0',
             const std::string& target = "") {
    Bytes block(512 + (bytes + 511) / 512 * 512);
    std::copy(name.begin(), name.end(), block.begin());
    std::copy(size.begin(), size.end(), block.begin() + 124);
    std::copy(target.begin(), target.end(), block.begin() + 157);
    block[156] = uint8_t(type);
    std::copy_n("ustar\00000", 8, block.begin() + 257);
    std::fill_n(block.begin() + 148, 8, ' ');
    unsigned sum = 0;
    for (size_t i = 0; i < 512; ++i) sum += block[i];
    const std::string digits = fmt::format("{:06o}", sum);
    std::copy(digits.begin(), digits.end(), block.begin() + 148);
    block[154] = 0;
    return block;
}

// Members one after the other: images of 8 bytes, or texts. "name > target": a hard link, "name ->
// target": a symbolic one.
Bytes tar_of(const Texts& members, const std::string& text = "") {
    Bytes tar;
    for (const std::string& name : members) {
        const bool is_text = !has_image_name(name.substr(0, name.find(" "))) && !text.empty();
        const size_t at = name.find(" >") < name.size() ? name.find(" >") : name.find(" ->");
        Bytes one = member(name.substr(0, at),
                           is_text ? fmt::format("{:011o}", text.size()) : "00000000010",
                           is_text ? text.size() : 8);
        if (is_text) std::copy(text.begin(), text.end(), one.begin() + 512);
        if (at < name.size())
            one = member(name.substr(0, at), "00000000000", 0, name[at + 1] == '>' ? '1' : '2',
                         name.substr(name.find("> ") + 2));
        tar.insert(tar.end(), one.begin(), one.end());
    }
    return tar;
}

}  // namespace

TEST_CASE("tar: WebDataset's samples, with offsets as Python's tarfile has them") {
    const Found ustar = scan(golden_shard(golden::kTarUstar));
    CHECK(ustar.labels == Texts{"3", "0", "1"});
    CHECK(ustar.faults.empty());
    CHECK(std::ranges::equal(ustar.offsets, golden::kTarUstarOffsets));
    CHECK(pictures_of(ustar) == std::vector<int>{1, 2, 3});
    const Found pax = scan(golden_shard(golden::kTarPax)),
                gnu = scan(golden_shard(golden::kTarGnu));
    CHECK(pax.labels == Texts{"Mütze", "hat"});
    CHECK(std::ranges::equal(pax.offsets, golden::kTarPaxOffsets));
    CHECK(pictures_of(pax) == std::vector<int>{4, 5});
    CHECK(gnu.labels == Texts{"Mütze", "hat"});
    CHECK(std::ranges::equal(gnu.offsets, golden::kTarGnuOffsets));
}

TEST_CASE("tar: archives one after the other in a file are read to the end") {
    Bytes both = golden_shard(golden::kTarUstar);
    const Bytes second = golden_shard(golden::kTarPax);
    both.insert(both.end(), second.begin(), second.end());
    const Found found = scan(both);
    CHECK(found.faults.empty());
    CHECK(pictures_of(found) == std::vector<int>{1, 2, 3, 4, 5});
}

TEST_CASE("tar: the name before a member's content, short or long; elsewhere none") {
    TempDir dir;
    const std::string end = "Mütze/0001.png";
    for (const auto& [text, offsets] : {std::pair(golden::kTarPax, golden::kTarPaxOffsets),
                                        {golden::kTarGnu, golden::kTarGnuOffsets}}) {
        put(dir / "long.tar", golden_shard(text));
        const StoragePtr tar = open_local(dir / "long.tar");
        const std::string name = tar_member_name(*tar, offsets[0]);
        CHECK(name.size() == 319);
        CHECK(name.ends_with(end));
        CHECK(tar_member_name(*tar, offsets[1]) == "set/hat/0002.png");
        for (const uint64_t no_member :
             {uint64_t(0), uint64_t(7), uint64_t(1024), tar->size() + 512})
            CHECK(tar_member_name(*tar, no_member) == "");
    }
    put(dir / "a.tfrecord", golden_shard(golden::kTfrecordFromOne));
    const DataSet set = open({.train = dir / "a.tfrecord", .label_offset = 1});
    CHECK(set.train->title(0) == set.train->name(0));
}

TEST_CASE("tar: keys end at the last dot, unless an image or a label has a first-dot key") {
    const Found dotted = scan(tar_of({"c/IMG.2024.0.jpg", "c/IMG.2024.1.JPG", "d/cat.0.jpeg",
                                      "d/cat.0.txt", "d/cat.0.cls", "d/x.y.z.jfif"},
                                     "7"));
    CHECK(dotted.labels == Texts{"c", "c", "7", "d"});
    CHECK(dotted.offsets == std::vector<uint64_t>{512, 1536, 2560, 5632});
    CHECK((dotted.faults.empty() && dotted.left_out.empty()));

    const Found views = scan(tar_of(
        {"v/1.cls", "v/1.left.jpg", "v/1.png", "v/1.right.jpg", "v/2.left.jpg", "v/2.cls"}, "3"));
    CHECK(views.labels == Texts{"3"});
    REQUIRE(views.faults.size() == 1);
    CHECK(contains(views.faults[0], "'v/2'"));
    REQUIRE(views.left_out.size() == 1);
    CHECK(views.left_out.begin()->second == 3);

    // Of many images of one first key, those before the limit of what is kept are not lost.
    Texts many;
    for (int i = 0; i < 500; ++i) many.push_back(cat("c/cat.", i, ".jpg"));
    CHECK(scan(tar_of(many)).labels.size() == 500);
    Bytes cut = tar_of({"c/cat.1.jpg", "c/cat.2.jpg", "c/cat.3.jpg"});
    cut.resize(cut.size() - 300);
    CHECK(scan(cut).labels.size() == 2);
    CHECK(scan(cut).faults.size() == 1);
}

TEST_CASE("tar: what is no sample is counted by what it is, without files of operating systems") {
    const Found found =
        scan(tar_of({"a/1.jpg", "a/1.txt", "a/2.heic", "a/3.HEIC", "a/notes", "b.txt",
                     "__MACOSX/a/1.jpg", "a/._1.jpg", "a/Thumbs.db", "__meta__/1.x"}));
    CHECK(found.labels == Texts{"a"});
    CHECK(found.left_out == LeftOut{{".heic", 2}, {".txt", 1}, {".x", 1}, {"of other names", 1}});
}

TEST_CASE("tar: a label under an unknown name is named, and the folder does not take its place") {
    for (const auto& [member, text] : {std::pair("v/1.class", "hat"),
                                       {"v/1.cls", ""},
                                       {"v/1.json", R"({"width": 3, "Category": "hat"})"},
                                       {"v/1.json", R"({"label": {"name": "hat"}})"}}) {
        CAPTURE(member);
        const Found found = scan(tar_of({"v/1.jpg", member}, cat(text, " ")));
        CHECK(found.labels == Texts{""});
        REQUIRE(found.left_out.size() == 1);
        CHECK(found.left_out.begin()->first.starts_with(fs::path(member).extension().native()));
    }
    const Found found = scan(tar_of({"v/1.jpg", "v/1.json", "v/1.txt"}, R"({"width": 3})"));
    CHECK(found.labels == Texts{"v"});
    CHECK(found.left_out == LeftOut{{".json with width", 1}});
    CHECK(scan(tar_of({"v/1.jpg", "v/1.json"}, R"({"cls": 2, "category": 3})")).labels ==
          Texts{"2"});
    const Found damaged = scan(tar_of({"v/1.jpg", "v/1.json"}, R"({"label": 3,})"));
    CHECK((damaged.labels.empty() && damaged.faults.size() == 1));
}

TEST_CASE("tar: masks, hidden folders and images of another part of the set are no samples") {
    const Found masks =
        scan(tar_of({"a/1.jpg", "a/10.jpg", "a/10_mask.png", "a/1_mask.png", "a/gas_mask.jpg",
                     ".ipynb_checkpoints/1.jpg", "./b/.c/1.jpg"}));
    CHECK(masks.labels == Texts{"a", "a", "a"});
    REQUIRE(masks.faults.size() == 2);
    CHECK(contains(masks.faults[0], "a/10_mask"));
    const Found parts = scan(tar_of({"s/train/a/1.jpg", "s/train/test/1.jpg", "s/val/a/1.jpg"}));
    CHECK(parts.labels == Texts{"a", "test"});
    REQUIRE(parts.faults.size() == 1);
    CHECK(contains(parts.faults[0], "val/a/1"));
    CHECK(scan(tar_of({"train/1.jpg", "train/1.cls", "val/1.jpg", "val/1.cls"}, "7")).labels ==
          Texts{"7"});
    CHECK(scan(tar_of({"train/1.jpg", "val/1.jpg"})).labels == Texts{"train", "val"});
    CHECK(scan(tar_of({"a/1.jpg", "a/1.cls"}, "h\x01t")).faults.size() == 1);
}

TEST_CASE("tar: a link is left out by its name, and says how to make the tar") {
    const Found found =
        scan(tar_of({"a/1.jpg", "a/2.jpg > a/1.jpg", "a/3.jpg -> 1.jpg", "a/4.cls > a/5.cls",
                     "a/4.jpg", "a/6.jpg -> 7.jpg", "a/7.jpg -> 6.jpg", "b -> a"}));
    CHECK(found.labels == Texts{"a"});
    REQUIRE(found.faults.size() == 5);
    CHECK(contains(found.faults[0], "2.jpg"));
    CHECK(contains(found.faults[0], "--hard-dereference"));
    CHECK(contains(found.faults[1], "--dereference"));
    CHECK(contains(found.faults[2], "4.cls"));
    CHECK(found.left_out == LeftOut{{"links", 1}});
}

TEST_CASE("TFRecord: protobuf's Examples; a record without an image is a fault") {
    const Found found = scan(golden_shard(golden::kTfrecord));
    CHECK(found.labels == Texts{"3 hat", "1 shoe", "3 hat"});
    CHECK(pictures_of(found) == std::vector<int>{1, 2, 3});
    REQUIRE(found.faults.size() == 1);
    CHECK(found.faults[0].ends_with("image/encoded nor image in it"));
}

TEST_CASE("several labels of one image are a fault, in a TFRecord and in a tar") {
    const auto field = [](int number, const std::string& bytes) {
        return std::string{char(number << 3 | 2), char(bytes.size())} + bytes;
    };
    const auto entry = [&](const std::string& name, const std::string& feature) {
        return field(1, field(1, name) + field(2, feature));
    };
    const auto record_of = [&](const std::string& features) {
        const std::string example = field(1, features);
        Bytes shard;
        const auto put_number = [&](uint64_t value, int bytes) {
            for (int i = 0; i < bytes; ++i) shard.push_back(uint8_t(value >> 8 * i));
        };
        put_number(example.size(), 8);
        put_number(masked_crc32c(shard), 4);
        const Bytes data(example.begin(), example.end());
        shard.insert(shard.end(), data.begin(), data.end());
        put_number(masked_crc32c(data), 4);
        return scan(shard);
    };
    const auto faults_of = [&](const std::string& label, const std::string& texts) {
        return record_of(entry("image/encoded", field(1, field(1, "picture"))) +
                         entry("image/class/label", label) +
                         entry("image/class/text", field(1, texts)))
            .faults;
    };
    const auto faults = [&](const std::string& numbers, const std::string& texts) {
        return faults_of(field(3, field(1, numbers)), texts).size();
    };
    // TFDS's names count where the others are not, in any order.
    const std::string image = entry("image", field(1, field(1, "picture"))),
                      seven = entry("label", field(3, field(1, "\7"))),
                      two = entry("image/class/label", field(3, field(1, "\2")));
    CHECK(record_of(seven + image).labels == Texts{"7"});
    CHECK(record_of(seven + image + two).labels == Texts{"2"});
    CHECK(record_of(two + image + seven).labels == Texts{"2"});
    const std::string bytes = field(1, field(1, "7"));
    CHECK(faults_of(bytes, field(1, "cat")).empty());
    REQUIRE(faults_of(bytes, "").size() == 1);
    CHECK(contains(faults_of(bytes, "")[0], "int64"));
    CHECK(faults("\3", field(1, "cat")) == 0);
    CHECK(faults("\3\1", field(1, "cat")) == 1);
    CHECK(faults("\3", field(1, "cat") + field(1, "dog")) == 1);
    CHECK(scan(tar_of({"v/1.jpg", "v/1.json"}, R"({"cls": 2, "label": 2})")).faults.empty());
    CHECK(scan(tar_of({"v/1.jpg", "v/1.json"}, R"({"cls": 2, "label": 3})")).faults.size() == 1);
}

TEST_CASE("CIFAR and IDX: labels, and pixels that the decoder reads as they are") {
    // Of 100 classes: a coarse label first.
    for (const auto& [file, labels] :
         {std::pair{cifar({9}, {2}), Texts{"9", "2"}}, {cifar({1, 99}, {1, 5}), {"99", "5"}}}) {
        const Found found = scan(file);
        CHECK(found.labels == labels);
        Bytes ppm;
        raw_to_pnm({32, 32, 3}, found.images[1], ppm);
        const Image image = decoded(ppm);
        REQUIRE((image.H == 32 && image.W == 32));
        for (int h = 0; h < 32; ++h)
            for (int w = 0; w < 32; ++w)
                for (int c = 0; c < 3; ++c)
                    REQUIRE(image.pixels[size_t(h * 32 + w) * 3 + size_t(c)] ==
                            (3072 + c * 1024 + h * 32 + w) * 7 % 251);
    }
    const Bytes labels = read_idx_labels(*in_memory("labels", golden_shard(golden::kIdxLabels)));
    const Found found = scan(golden_shard(golden::kIdxImages), ShardFormat::idx, labels);
    CHECK(found.labels == Texts{"7", "0", "1"});
    Bytes pgm;
    raw_to_pnm({5, 4, 1}, found.images[2], pgm);
    CHECK(std::string(pgm.begin(), pgm.begin() + 11) == "P5 4 5 255\n");
    CHECK(pgm[11] == 40);
    CHECK(scan(golden_shard(golden::kIdxImages), ShardFormat::idx, std::span(labels).first(2))
              .faults == Texts{"byte 0: 3 images and 2 labels"});
}

TEST_CASE("a shard that ends early gives what is before the end, and one fault that says where") {
    for (const char* text : {golden::kTarUstar, golden::kTarPax, golden::kTfrecordFromOne}) {
        const Bytes whole = golden_shard(text);
        const ShardFormat format = shard_format(whole, whole.size());
        const Found all = scan(whole, format);
        for (size_t size = 0; size < whole.size(); size += 61) {
            CAPTURE(size);
            const Found found = scan(Bytes(whole.begin(), whole.begin() + ptrdiff_t(size)), format);
            CHECK(found.faults.size() <= 1);
            REQUIRE(found.labels.size() <= all.labels.size());
            for (size_t i = 0; i < found.images.size(); ++i)
                CHECK(found.images[i] == all.images[i]);
            for (size_t i = 0; i < all.offsets.size();
                 ++i)  // the first that is not there is missed
                if (i + 1 < all.offsets.size() && all.offsets[i + 1] + 600 < size)
                    CHECK(found.images.size() > i);
        }
    }
}

TEST_CASE("a damaged record of a TFRecord is left out; a damaged length ends the file") {
    Bytes bytes = golden_shard(golden::kTfrecordFromOne);
    const Found good = scan(bytes);
    REQUIRE(good.labels == Texts{"1", "2", "3"});
    bytes[good.offsets[1]] ^= 1;
    const Found one = scan(bytes);
    CHECK(one.labels == Texts{"1", "3"});
    REQUIRE(one.faults.size() == 1);
    CHECK(one.faults[0].ends_with("the checksum of the record is wrong"));
    uint64_t length;
    std::memcpy(&length, bytes.data(), 8);
    bytes[size_t(length) + 16] ^= 1;  // of the second record
    const Found cut = scan(bytes);
    CHECK(cut.labels == Texts{"1"});
    REQUIRE(cut.faults.size() == 1);
    CHECK(cut.faults[0].starts_with(
        cat("byte ", length + 16, ": the checksum of a record's length")));
}

TEST_CASE("lengths that no file has, odd names and endless JSON are faults, not crashes") {
    // TFRecord: 2^63 with a right checksum.
    Bytes record(12 + 64);
    const uint64_t huge = 1ull << 63;
    std::memcpy(record.data(), &huge, 8);
    const uint32_t masked = masked_crc32c(std::span(record).first(8));
    std::memcpy(record.data() + 8, &masked, 4);
    CHECK(scan(record).faults ==
          Texts{cat("byte 0: a record of ", huge, " bytes; the limit is ", kMaxSample)});

    // tar: names with "..", absolute ones, and a size of 2^62 in base 256.
    Bytes tar = member("../../etc/0001.png", "00000000010", 8);
    const Bytes absolute = member("/root/0002.jpg", "00000000010", 8);
    const Bytes endless =
        member("big/0003.png", std::string("\x80\0\0\0\x40\0\0\0\0\0\0\0", 12), 0);
    tar.insert(tar.end(), absolute.begin(), absolute.end());
    tar.insert(tar.end(), endless.begin(), endless.end());
    const Found found = scan(tar);
    CHECK(found.labels == Texts{"etc", "root"});  // names of classes, never paths that are opened
    REQUIRE(found.faults.size() == 1);
    CHECK(contains(found.faults[0], "tar"));

    Bytes json = member("a/1.json", "00030000000", 030000000);
    std::fill(json.begin() + 512, json.end(), uint8_t('['));
    // A key ends at the first dot: the mask belongs to the image and is none itself.
    Bytes masked_image = member("k/1.mask.png", "00000000010", 8);
    const Bytes image = member("k/1.png", "00000000010", 8);
    masked_image.insert(masked_image.end(), image.begin(), image.end());
    CHECK(scan(masked_image).labels == Texts{"k"});
    CHECK(scan(masked_image).offsets == std::vector<uint64_t>{1536});

    CHECK(scan(member("k/1.png", "00000000000", 0)).faults ==
          Texts{"byte 512: 'k/1': an empty image"});

    const Bytes end = member("a/2.png", "00000000010", 8);
    json.insert(json.end(), end.begin(), end.end());
    const Found after = scan(json);
    CHECK(after.labels == Texts{"a"});
    REQUIRE(after.faults.size() == 1);
    CHECK(contains(after.faults[0], "'a/1': more than 1048576 bytes"));
}

TEST_CASE("a gzip bomb stops at the limit, a cut one says so") {
    // 1 MB of zeros in 1,032 bytes or so: deflate's best.
    const Bytes shard = golden_shard(golden::kTarUstar), gz = from_base64(golden::kTarUstar);
    CHECK_FAILS(inflate(*in_memory("bomb", gz), shard.size() - 1), "inflates to more than");
    CHECK(inflate(*in_memory("fits", gz), shard.size()) == shard);
    CHECK_FAILS(inflate(*in_memory("cut", Bytes(gz.begin(), gz.end() - 9)), 1 << 20),
                "cut: truncated");
    Bytes bad = gz;
    bad[30] ^= 0xFF;
    CHECK_FAILS(inflate(*in_memory("bad", bad), 1 << 20), "bad: damaged");
}

TEST_CASE("an index survives the way to its file; a damaged one is refused at every byte") {
    const Bytes bytes = golden_shard(golden::kTarUstar);
    const StoragePtr storage = in_memory("shard", bytes);
    const ShardIndex index = scan_shard(storage, ShardFormat::tar);
    const NamedIndex both[] = {{"a.tar", &index}, {"b.tar", &index}};
    const Bytes packed = pack_index(both);
    const auto read = unpack_index(packed);
    REQUIRE(read.size() == 2);
    const ShardIndex& back = read.at("b.tar");
    CHECK((back.bytes == bytes.size() && back.format == ShardFormat::tar));
    CHECK(back.offsets == index.offsets);
    CHECK((back.lengths == index.lengths && back.checksums == index.checksums));
    CHECK((back.labels == index.labels && back.label_of == index.label_of));
    for (size_t i = 0; i < packed.size(); ++i) {
        Bytes bad = packed;
        bad[i] ^= 0x10;
        CHECK_THROWS_AS(unpack_index(bad), Error);
        CHECK_THROWS_AS(unpack_index(std::span(packed).first(i)), Error);
        // The same with a checksum that fits: whatever it says, no crash and no large memory.
        const uint32_t crc = crc32c(std::span(bad).subspan(12));
        std::memcpy(bad.data() + 8, &crc, 4);
        try {
            unpack_index(bad);
        } catch (const Error&) {}
    }
}

TEST_CASE("a folder of shards: train and val by name, classes by number, the same in every order") {
    TempDir dir;
    const Bytes tar = golden_shard(golden::kTarUstar), tfrecord = golden_shard(golden::kTfrecord);
    put(dir / "set/train-000.tar", tar), put(dir / "set/train-001.tar", tar);
    put(dir / "set/val-000.tar", tar), put(dir / "set/README.txt", "not a shard");
    std::string log;
    const DataSet set = open({.train = dir / "set", .threads = 2}, &log);
    CHECK(set.train->classes() == Texts{"0", "1", "2", "3"});
    REQUIRE((set.train->size() == 6 && set.val->size() == 3));
    CHECK(set.train->label(3) == 3);
    CHECK(set.train->name(4) ==
          cat(dir / "set/train-001.tar", ", byte ", golden::kTarUstarOffsets[1]));
    CHECK(set.train->title(4) == dir / "set/train-001.tar/a/0002.PNG");
    CHECK(set.train->shard_begins() == std::vector<uint64_t>{0, 3});
    Bytes bytes;
    set.train->read(4, bytes);
    CHECK(picture_of(bytes) == 2);
    CHECK(fs::exists(dir / "set/convoy.index"));
    const uint64_t print = set.train->fingerprint();

    // Elsewhere, by a pattern, and with names of the classes.
    fs::rename(dir / "set", dir / "moved");
    put(dir / "moved/dataset.json", R"({"classes": ["ant", "bee", "cat", "dog", "eel"]})");
    const DataSet named =
        open({.train = dir / "moved/train-{000..001}.tar", .val = dir / "moved/v*.tar"});
    CHECK(named.train->classes() == Texts{"ant", "bee", "cat", "dog", "eel"});
    CHECK(named.val->label(0) == 3);
    CHECK(open({.train = dir / "moved", .classes = {"bee", "dog"}}).train->size() == 4);
    fs::remove(dir / "moved/dataset.json");
    CHECK(open({.train = dir / "moved"}).train->fingerprint() == print);

    // A split goes by content: the copies in two shards stay together.
    const DataSet parts = open({.train = dir / "moved/train-*.tar", .val_split = 0.5f});
    CHECK((parts.train->size() == 3 && parts.val->size() == 3));
    CHECK(parts.train->shard_begins().size() == 2);
    // TFRecords bring the names with them, and the fault is told and counted.
    put(dir / "tf/train-00000-of-00001", tfrecord);
    const DataSet records = open({.train = dir / "tf", .label_offset = 1}, &log);
    CHECK(records.train->classes() == Texts{"shoe", "1", "hat"});
    CHECK(records.train->damaged() == 1);
    CHECK(contains(log, "image/encoded"));
}

TEST_CASE("an index is used while it fits its shards, and made anew when it does not") {
    TempDir dir;
    const std::string shard = dir / "s/a.tar", index = dir / "s/convoy.index";
    const Bytes tar = golden_shard(golden::kTarUstar);
    put(shard, tar);
    refuses({.train = dir / "s", .remote = {.stop = [] { return 15; }}},
            "stopped by signal 15 while shards");
    open({.train = dir / "s"});
    const auto written = fs::last_write_time(shard);

    // Other bytes behind the index's back, at the same time of change: reading notices.
    Bytes other = tar;
    other[golden::kTarUstarOffsets[0] + 20] ^= 1;
    put(shard, other), fs::last_write_time(shard, written);
    const DataSet stale = open({.train = dir / "s"});
    Bytes bytes;
    CHECK_FAILS(stale.train->read(0, bytes), kIndexName);
    stale.train->read(1, bytes);

    // Another size: scanned again. The same with a damaged index, and with one of another shard.
    other = golden_shard(golden::kTarPax);
    put(shard, other);
    CHECK(open({.train = dir / "s"}).train->classes() == Texts{"Mütze", "hat"});
    Bytes content = read_all(*open_local(index), 1 << 20);
    content[content.size() / 2] ^= 1;
    put(index, content);
    std::string log;
    CHECK(open({.train = dir / "s"}, &log).train->size() == 2);
    CHECK(contains(log, "convoy.index' is not used: damaged"));
    open({.train = dir / "s"}, &log);
    CHECK(!contains(log, "not used"));

    // It fits: not written again.
    fs::last_write_time(index, written);
    open({.train = dir / "s"});
    CHECK(fs::last_write_time(index) == written);

    // Another label, though size and images are the same: scanned again.
    put(shard, tar);
    const Texts before = open({.train = dir / "s"}).train->classes();
    other = tar;
    const std::string cls = ".cls";
    const size_t at = size_t(std::ranges::search(other, cls).begin() - other.begin());
    other[at / 512 * 512 + 512] ^= 1;
    put(shard, other);
    CHECK(open({.train = dir / "s"}).train->classes() != before);
}

TEST_CASE("CIFAR and MNIST folders as their authors pack them") {
    TempDir dir;
    for (const char* name : {"c/data_batch_1.bin", "c/test_batch.bin"})
        put(dir / name, cifar({9}, {2}));
    put(dir / "c/batches.meta.txt",
        "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n");
    put(dir / "c/readme.html", "<html>");
    std::string log;
    const DataSet c = open({.train = dir / "c"}, &log);
    CHECK(c.train->classes()[9] == "truck");
    CHECK((c.train->size() == 2 && c.train->label(0) == 9 && c.val->size() == 2));
    CHECK(contains(log, "validation set"));

    put(dir / "m/train-images-idx3-ubyte.gz", from_base64(golden::kIdxImages));
    put(dir / "m/train-labels-idx1-ubyte.gz", from_base64(golden::kIdxLabels));
    put(dir / "m/t10k-images-idx3-ubyte", golden_shard(golden::kIdxImages));
    put(dir / "m/t10k-labels-idx1-ubyte", golden_shard(golden::kIdxLabels));
    const DataSet m = open({.train = dir / "m"});
    REQUIRE((m.train->size() == 3 && m.val->size() == 3));
    CHECK(m.train->classes().size() == 8);
    for (const auto& source : {m.train, m.val}) {
        Bytes pgm;
        source->read(1, pgm);
        CHECK((pgm.size() == 31 && pgm[11] == 20));
    }
    Bytes relabelled = golden_shard(golden::kIdxLabels);
    relabelled.back() ^= 1;
    put(dir / "m/t10k-labels-idx1-ubyte", relabelled);
    CHECK(open({.train = dir / "m"}).val->label(2) == (m.val->label(2) ^ 1));
    // Of a file and the same one zipped, one is read.
    put(dir / "m/train-images-idx3-ubyte", golden_shard(golden::kIdxImages));
    put(dir / "m/t10k-images-idx3-ubyte.gz", from_base64(golden::kIdxImages));
    const DataSet twins = open({.train = dir / "m"});
    CHECK((twins.train->size() == 3 && twins.val->size() == 3));
    CHECK(open({.train = dir / "m/t*-images-*"}).train->size() == 3);
    fs::remove(dir / "m/t10k-images-idx3-ubyte.gz");
    fs::remove(dir / "m/t10k-labels-idx1-ubyte");
    fs::remove(dir / "m/convoy.index");
    CHECK(open({.train = dir / "m"}, &log).val == nullptr);
    CHECK(contains(log, "t10k-labels-idx1-ubyte'"));
}

TEST_CASE("samples without a label are left out of training, and a test set of them is not used") {
    TempDir dir;
    const Bytes one = member("1.png", "00000000010", 8), two = member("x/2.png", "00000000010", 8);
    Bytes both = one;
    both.insert(both.end(), two.begin(), two.end());
    put(dir / "set/train-0.tar", golden_shard(golden::kTarUstar));
    put(dir / "set/test-0.tar", one);
    std::string log;
    const DataSet set = open({.train = dir / "set"}, &log);
    CHECK(set.val == nullptr);
    CHECK(contains(log, "(test)' is not used: "));
    CHECK(contains(log, "no sample with a label in 1 shard; the first: no label: neither .cls"));
    refuses({.train = dir / "set", .val = dir / "set/test-0.tar"}, "no sample with a label");
    put(dir / "set/train-1.tar", both);
    const auto train = open({.train = dir / "set/train-1.tar", .part = true}).train;
    CHECK((train->size() == 1 && train->damaged() == 1));
    CHECK(train->faults() == Texts{cat(dir / "set/train-1.tar",
                                       ", byte 512: no label: neither .cls, nor label, cls, class "
                                       "or class_name in .json, nor a folder")});
    // `check` names each, not the first ones.
    Bytes many = both;
    for (int i = 0; i < 30; ++i) many.insert(many.end(), both.begin(), both.end());
    put(dir / "many.tar", many);
    Quiet quiet, report;
    check_data(open({.train = dir / "many.tar", .part = true, .is_check = true}), 1,
               /*as_json=*/true, report.file, quiet.log);
    const auto found = nlohmann::json::parse(report.text())["training"];
    CHECK(found["left_out"].size() == 31);
    CHECK(found["left_out"][30] == cat(dir / "many.tar", ", byte ", 30 * 2048 + 512,
                                       ": no label: neither .cls, nor label, cls, class or "
                                       "class_name in .json, nor a folder"));
    std::vector<std::string> faults;
    const auto images = open_images({dir / "set/test-0.tar", dir / "set"}, {}, quiet.log, faults);
    REQUIRE(images.size() == 2);  // for predict
    CHECK(images[0]->size() == 1);
    CHECK(images[1]->size() > 2);
}

TEST_CASE("a list file: paths beside it or whole, labels by name or number") {
    TempDir dir;
    put(dir / "x/1.png", "one"), put(dir / "x/2.png", "two2"), put(dir / "elsewhere.png", "three");
    put(dir / "train.txt",
        "x/1.png\tshoe\r\nx/2.png\that\n\n" + (dir / "elsewhere.png") + "\that\n");
    const DataSet set = open({.train = dir / "train.txt"});
    CHECK(set.train->classes() == Texts{"hat", "shoe"});
    REQUIRE(set.train->size() == 3);
    CHECK((set.train->label(0) == 1 && set.train->label(1) == 0));
    CHECK((set.train->name(0) == dir / "x/1.png" && set.train->name(2) == dir / "elsewhere.png"));
    Bytes bytes;
    set.train->read(1, bytes);
    CHECK(bytes.size() == 4);
    put(dir / "bad.txt", "x/1.png\tshoe\nx/2.png hat\n");
    refuses({.train = dir / "bad.txt"}, "bad.txt', line 2: neither a shard nor a list");
    put(dir / "far.txt", "x/1.png\t0\nx/2.png\t900000\n");
    refuses({.train = dir / "far.txt"}, "a label of 900000, but only 2 different ones");
    put(dir / "mixed.txt", "x/1.png\tshoe\nx/2.png\t3\n");
    refuses({.train = dir / "mixed.txt"}, "some labels are numbers (3), others only names (shoe)");
    put(dir / "same.txt", "x/1.png\t1\nx/2.png\t01\n");
    refuses({.train = dir / "same.txt"}, "same.txt', line 2");
    // The validation set takes the classes of training.
    put(dir / "val.txt", "x/2.png\tshoe\n");
    CHECK(open({.train = dir / "train.txt", .val = dir / "val.txt"}).val->label(0) == 1);
    put(dir / "val.txt", "x/2.png\tcoat\n");
    refuses({.train = dir / "train.txt", .val = dir / "val.txt"}, "has a class 'coat'");
}

TEST_CASE("labels that begin at 1 are explained, and --label-offset makes them begin at 0") {
    TempDir dir;
    put(dir / "train.tfrecord", golden_shard(golden::kTfrecordFromOne));
    refuses({.train = dir / "train.tfrecord"}, "labels run from 1 to 3 and none is 0");
    refuses({.train = dir / "train.tfrecord"}, "--label-offset 1");
    const DataSet set = open({.train = dir / "train.tfrecord", .label_offset = 1});
    CHECK(set.train->classes() == Texts{"0", "1", "2"});
    CHECK(set.train->label(2) == 2);
    refuses({.train = dir / "train.tfrecord", .label_offset = 2},
            "a label of 1 with --label-offset 2");
    // ... and names that a file gives are for numbers from 0 on.
    put(dir / "classes.txt", "ant\nbee\n");
    refuses({.train = dir / "train.tfrecord"}, "class number 3, but only 2 classes have names");
    put(dir / "classes.txt", "ant\nbee\ncat\n");
    refuses({.train = dir / "train.tfrecord"}, "labels run from 1 to 3 and none is 0");
    CHECK(open({.train = dir / "train.tfrecord", .label_offset = 1}).train->classes()[2] == "cat");
}

TEST_CASE(
    "a pattern is divided as a folder is; folders beside shards that hold no images do not count") {
    TempDir dir;
    const Bytes tar = golden_shard(golden::kTarUstar);
    for (const char* name : {"train-0.tar", "train-1.tar", "dev-0.tar", "Testing_0.tar"})
        put(dir / cat("set/", name), tar);
    put(dir / "set/lost+found/x.jpg", "x"), put(dir / "set/docs/y.txt", "y");
    fs::create_directories(dir / "set/empty");
    for (const char* name : {"set", "set/*.tar", "set/{train-0,train-1,dev-0,Testing_0}.tar"}) {
        const DataSet set = open({.train = dir / name});
        REQUIRE(set.val != nullptr);
        CHECK((set.train->size() == 6 && set.val->size() == 3));
        Quiet quiet;  // predict takes all
        std::vector<std::string> faults;
        const auto images = open_images({dir / name}, {}, quiet.log, faults);
        REQUIRE(images.size() == 1);
        CHECK(images[0]->size() == 12);
    }
    CHECK(open({.train = dir / "set/train-*.tar", .val = dir / "set/*.tar"}).val->size() == 3);
}

TEST_CASE("a byte order mark is no part of a label, a class or a path") {
    TempDir dir;
    const std::string mark = "\xEF\xBB\xBF";
    put(dir / "set/train-0.tar", tar_of({"1.jpg", "1.cls"}, mark + "1"));
    put(dir / "set/classes.txt", mark + "ant\r\nbee\r\n");
    const auto set = open({.train = dir / "set", .part = true}).train;
    CHECK(set->classes() == Texts{"ant", "bee"});
    CHECK(set->label(0) == 1);
    put(dir / "list.txt", mark + "a.jpg\tant\r\nb.jpg\tbee\r\n");
    const auto list = open({.train = dir / "list.txt"}).train;
    CHECK(list->name(0) == dir / "a.jpg");
}

TEST_CASE("names with braces stand for many, and those that match nothing are refused") {
    CHECK(expand_braces("a{08..10}.tar") == Texts{"a08.tar", "a09.tar", "a10.tar"});
    CHECK(expand_braces("{x,y}-{1..2}") == Texts{"x-1", "x-2", "y-1", "y-2"});
    CHECK(expand_braces("plain") == Texts{"plain"});
    CHECK_THROWS_AS(expand_braces("{2..1}"), Error);
    CHECK_THROWS_AS(expand_braces("{0..99999999999}"), Error);
    CHECK_THROWS_AS(expand_braces("{1..x}"), Error);
    CHECK_THROWS_AS(expand_braces("{1..9999}{1..9999}"), Error);
    TempDir dir;
    refuses({.train = dir / "no-{0..1}.tar"}, "no-0.tar: cannot be opened");
    refuses({.train = dir / "no-*.tar"}, "no file matches");
    put(dir / "text.tar", "not a tar");
    refuses({.train = dir / "{text,text}.tar"}, "text.tar: neither tar, TFRecord");
}
