// fuzz.cpp — libFuzzer on everything that reads a stranger's bytes: `make fuzz` runs each target
// for a bounded time. The environment's FUZZ_TARGET says which; findings become tests.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>
#include <regex>

#include "data/images/decode.h"
#include "data/sources/crc32c.h"
#include "data/sources/dataset.h"
#include "data/sources/index.h"
#include "net/control/tls.h"
#include "net/control/wire.h"
#include "src/base/check.h"
#include "src/base/text.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/torch_file.h"
#include "src/config/config.h"
#include "src/model/model_text.h"
#include "src/session/rank_json.h"
#include "tests/golden.h"
#include "tests/golden_shards.h"
#include "tests/torch_zip.h"

using namespace convoy;

namespace {

using Bytes = std::vector<uint8_t>;

std::string_view view(const Bytes& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Bytes text(std::string_view letters) { return {letters.begin(), letters.end()}; }

// What a scanner reports must lie within the stream and have bytes.
void scan(ShardFormat format, const Bytes& bytes, std::span<const uint8_t> labels = {}) {
    const Findings findings{[&](const Record& record) {
                                if (record.offset > bytes.size() || record.bytes.empty() ||
                                    record.bytes.size() > bytes.size() - record.offset ||
                                    std::memcmp(bytes.data() + record.offset, record.bytes.data(),
                                                record.bytes.size()) != 0)
                                    __builtin_trap();
                            },
                            [](uint64_t, const std::string&) {}};
    ByteStream stream(in_memory("fuzz", bytes), 777);
    scan_records(format, stream, findings, labels);
}

void fuzz_tar(Bytes bytes) { scan(ShardFormat::tar, bytes); }

// The bytes as they are, and as the data of a record with right checksums.
void fuzz_tfrecord(Bytes bytes) {
    scan(ShardFormat::tfrecord, bytes);
    const uint64_t length = bytes.size();
    Bytes record(12 + length + 4);
    std::memcpy(record.data(), &length, 8);
    uint32_t crc = masked_crc32c(std::span(record).first(8));
    std::memcpy(record.data() + 8, &crc, 4);
    std::copy(bytes.begin(), bytes.end(), record.begin() + 12);
    crc = masked_crc32c(bytes);
    std::memcpy(record.data() + 12 + length, &crc, 4);
    scan(ShardFormat::tfrecord, record);
}

void fuzz_idx(Bytes bytes) {
    const StoragePtr storage = in_memory("fuzz", bytes);
    shard_format(bytes, bytes.size());
    try {
        raw_shape(ShardFormat::idx, *storage);
    } catch (const Error&) {}
    scan(ShardFormat::idx, bytes, Bytes(bytes.size() > 7 ? bytes[7] : 0));
    scan(ShardFormat::cifar100, bytes);
    read_idx_labels(*storage);
}

void fuzz_gzip(Bytes bytes) { inflate(*in_memory("fuzz", bytes), 1 << 20); }

// With a checksum that fits, or no mutation would come past it.
void fuzz_index(Bytes bytes) {
    if (bytes.size() < 12) return;
    const uint32_t crc = crc32c(std::span(bytes).subspan(12));
    std::memcpy(bytes.data() + 8, &crc, 4);
    unpack_index(bytes);
}

// A path whose file has these bytes.
std::string file_of(const Bytes& bytes) {
    static const int file = memfd_create("fuzz", 0);
    if (ftruncate(file, 0) != 0 ||
        pwrite(file, bytes.data(), bytes.size(), 0) != ssize_t(bytes.size()))
        fail("no memory for a file");
    return cat("/proc/self/fd/", file);
}

void fuzz_list(Bytes bytes) {
    // Class 999,999 is allowed, but slow; more digits are refused.
    static const std::regex slow("(^|\\D)\\d{4,7}(\\D|$)");
    if (std::regex_search(view(bytes).begin(), view(bytes).end(), slow)) return;
    Log log(nullptr);
    open_data({.train = file_of(bytes), .val_split = 0.5f}, log);
}

void fuzz_safetensors(Bytes bytes) {
    for (const auto& [name, tensor] : read_safetensors(file_of(bytes)).tensors)
        if (tensor.values.size() * 2 > bytes.size()) __builtin_trap();  // bf16: 2 bytes each
}

// What is taken is taken again as it is written.
void fuzz_meta(Bytes bytes) {
    const std::string text = meta_text(parse_meta(std::string(view(bytes))));
    const auto same = [&]() noexcept { return meta_text(parse_meta(text)) == text; };
    if (!same()) __builtin_trap();
}

// A file with these bytes, and one whose pickle they are, with a checksum that fits.
void fuzz_torch(Bytes bytes) {
    Log log(nullptr);
    const std::string file = torch_file(std::string(view(bytes)));
    for (const Bytes& content : {bytes, text(file)}) {
        try {
            size_t numbers = 0;
            for (const auto& [name, tensor] : read_weights(file_of(content), log).tensors)
                numbers += tensor.values.size();
            if (numbers > 2 * content.size() + 65536) __builtin_trap();
        } catch (const Error&) {}
    }
}

// A body of each kind of message: what is taken (texts are escaped and cut then) must be taken as
// it is when it is sent again. The first bytes are a header as well.
template <class... M>
void fuzz_messages(std::string_view body) {
    const auto one = [&]<class N>(N*) {
        try {
            const std::string sent = wire::encode(wire::decode<N>(body, 7));
            const std::string_view taken = std::string_view(sent).substr(wire::kHeaderBytes);
            const auto again = [&]() noexcept { return wire::encode(wire::decode<N>(taken, 7)); };
            if (again() != sent) __builtin_trap();
        } catch (const Error&) {}
    };
    (one(static_cast<M*>(nullptr)), ...);
}
void fuzz_wire(Bytes bytes) {
    fuzz_messages<wire::Join, wire::Refuse, wire::Welcome, wire::Link, wire::Heartbeat, wire::Abort,
                  wire::Offer, wire::Health>(view(bytes));
    if (bytes.size() >= wire::kHeaderBytes)
        wire::decode(std::as_bytes(std::span(bytes)).first<wire::kHeaderBytes>(), 1 << 20);
}

void fuzz_model(Bytes bytes) { parse_model(std::string(view(bytes)), "fuzz"); }

// Lines "name=value", as rank 0 or a checkpoint sends them: what is taken is taken again as it is
// printed.
void fuzz_options(Bytes bytes) {
    Config config, again;
    for (const std::string& line : split(std::string(view(bytes)), '\n')) {
        const size_t at = line.find('=');
        const std::string name = line.substr(0, at);
        if (at == std::string::npos || !find_option(name)) continue;
        try {
            set_option(config, name, line.substr(at + 1));
        } catch (const Error&) {
            continue;
        }
        const std::string value = get_option(config, name);
        [&]() noexcept { set_option(again, name, value); }();
        if (get_option(again, name) != value) __builtin_trap();
    }
}

// What is taken is taken again as it was read.
void fuzz_settings(Bytes bytes) {
    const auto settings = read_settings(file_of(bytes));
    std::string lines;
    for (const auto& [name, value] : settings) lines += cat(name, " ", value, "\r\n");
    const auto again = [&]() noexcept { return read_settings(file_of(text(lines))); };
    if (again() != settings) __builtin_trap();
}

// As from a stranger: what is taken is taken again as it was read.
void fuzz_offer(Bytes bytes) {
    const Offer offer = parse_offer(std::string(view(bytes)));
    const std::string sent = offer_text(offer);
    const auto again = [&]() noexcept { return offer_text(parse_offer(sent)); };
    if (again() != sent) __builtin_trap();
    Config config;
    try {
        apply_settings(config, offer.settings);
    } catch (const Error&) {}
    parse_model(offer.model.text, "fuzz");
}

// A token has 64 digits. No other text is taken.
void fuzz_token(Bytes bytes) {
    if (make_tls(std::string(view(bytes))) && bytes.size() != 64) __builtin_trap();
}

void fuzz_image(Bytes bytes) {
    Decoder decoder;
    Image image;
    decoder.open(bytes, "fuzz");
    if (int64_t(decoder.H()) * decoder.W() > 1 << 20) return;  // allowed, but slow
    decoder.read(image);
    if (image.pixels.size() != size_t(decoder.H()) * size_t(decoder.W()) * 3) __builtin_trap();
}

Bytes unzipped(const char* text) {
    return inflate(*in_memory("golden", from_base64(text)), 1 << 20);
}
Bytes index_file() {
    const ShardIndex index =
        scan_shard(in_memory("", unzipped(golden::kTarUstar)), ShardFormat::tar);
    return pack_index(std::vector<NamedIndex>{{"a.tar", &index}});
}

const std::map<std::string, void (*)(Bytes)> kTargets = {
    {"tar", fuzz_tar},           {"tfrecord", fuzz_tfrecord},
    {"idx", fuzz_idx},           {"gzip", fuzz_gzip},
    {"index", fuzz_index},       {"list", fuzz_list},
    {"wire", fuzz_wire},         {"safetensors", fuzz_safetensors},
    {"torch", fuzz_torch},       {"meta", fuzz_meta},
    {"model", fuzz_model},       {"options", fuzz_options},
    {"settings", fuzz_settings}, {"offer", fuzz_offer},
    {"token", fuzz_token},       {"image", fuzz_image},
};

// Right ones, from which mutations begin.
std::vector<Bytes> seeds_of(const std::string& target) {
    if (target == "tar")
        return {unzipped(golden::kTarUstar), unzipped(golden::kTarPax), unzipped(golden::kTarGnu)};
    if (target == "tfrecord") {
        const Bytes one = unzipped(golden::kTfrecord);
        uint64_t length;
        std::memcpy(&length, one.data(), 8);
        return {one, Bytes(one.begin() + 12, one.begin() + 12 + ptrdiff_t(length))};
    }
    if (target == "idx") return {unzipped(golden::kIdxImages), unzipped(golden::kIdxLabels)};
    if (target == "gzip") return {from_base64(golden::kIdxImages)};
    if (target == "index") return {index_file()};
    if (target == "list") return {text("a/1.jpg\t0\nb.png\t1\n"), text("x\that\r\ny\tshoe\n")};
    if (target == "wire") {
        std::vector<Bytes> seeds;
        for (const std::string& message :
             {wire::encode(wire::Join{.host = "a", .address = "b"}),
              wire::encode(wire::Welcome{.peers = {{"a", "b", 1}}, .ring = {0}}),
              wire::encode(wire::Offer{.peers = {{"a", "b", 1}}, .what = "{}"}),
              wire::encode(wire::Abort{}), wire::encode(wire::Heartbeat{})}) {
            seeds.push_back(text(message));
            seeds.push_back(text(std::string_view(message).substr(wire::kHeaderBytes)));
        }
        return seeds;
    }
    if (target == "safetensors") {
        const std::string header = R"({"w":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})";
        return {text(cat(char(header.size()), std::string(7, 0), header, "abcd"))};
    }
    if (target == "torch") {
        const std::string tensor = pickled_tensor("w", {2, 3}, {3, 1});
        return {text(pickled_dict(tensor)), text(torch_file(pickled_dict(tensor))),
                text(torch_file_before_zip(pickled_dict(tensor))),
                text("\x80\x02}" + pickled("model") + "ccollections\nOrderedDict\n)R(" + tensor +
                     "uN\x86\x87]a\x8c\x01xh\x01q\x01su.")};
    }
    if (target == "meta") {
        CheckpointMeta meta;
        meta.settings = {{"batch", "64"}}, meta.spent = {{"cost", 1.5}};
        meta.sha256["model.safetensors"] = "00ff";
        std::string json = meta_text(meta);
        json.replace(json.find("\"format\": 2"), 11, "\"format\": 1");  // without a checksum
        return {text(json)};
    }
    if (target == "model")
        return {
            text("input 28x28x1\nconv2d a out 8 size 3x5 stride 2 pad 1 bias no init he\nrelu\n"
                 "layernorm n eps 0.1\ngroupnorm g groups 2 eps 0.1\npointwise p out "
                 "8\ngelu\nscale s start 0.5\n"
                 "residual b\nbatchnorm c\nshortcut\nconv2d d out 8 size 1\nend\ndropout 0.5\n"
                 "avgpool 1\nflatten\nlinear f out classes init 0.01  # end\n")};
    if (target == "options") {
        std::string lines;
        for (const auto& [name, value] : job_settings({}, kTrain))
            lines += name + "=" + value + "\n";
        return {text(lines), text("size=80x64\nbatch=12\ncache-size=3 GB\njitter=0.1,0.2,0.3\n"
                                  "shuffle=window=9\nauto-augment=trivial\nlr=1e-3\n")};
    }
    if (target == "settings") return {text("# from tune\nbatch 64\n\tlr   0.1 \r\nsize 9\n")};
    if (target == "offer")
        return {text(offer_text(
            {job_settings({}, kTrain), {"input 8\nflatten\n", {"a", "b"}, true}, {}, 1, 2.5}))};
    if (target == "token") return {text(make_token())};
    if (target == "image") {
        std::vector<Bytes> seeds = {text("P5 2 2 255\nabcd")};
        for (const golden::Kind& kind : golden::kinds()) seeds.push_back(kind.file);
        return seeds;
    }
    fail("no seeds for ", target);
}

void (*target)(Bytes) = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    const char* name = std::getenv("FUZZ_TARGET");
    target = kTargets.at(name ? name : "");
    if (const char* folder = std::getenv("FUZZ_SEEDS")) {
        int number = 0;
        for (const Bytes& seed : seeds_of(name))
            std::ofstream(cat(folder, "/golden", number++), std::ios::binary)
                .write(reinterpret_cast<const char*>(seed.data()), std::streamsize(seed.size()));
    }
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    try {
        target(Bytes(data, data + size));
    } catch (const Error&) {  // the answer to damaged bytes
    }
    return 0;
}
