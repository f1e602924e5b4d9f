// The safetensors reader and writer; the reader against hostile files.
#include "src/checkpoint/safetensors.h"

#include <cstring>
#include <fstream>

#include "src/base/check.h"
#include "src/checkpoint/torch_file.h"
#include "tests/golden.h"
#include "tests/process.h"

using namespace convoy;

static void write_file(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
}
// A file of a header and so many bytes of data, 0, 1, 2, …
static std::string file_of(const std::string& header, size_t data_bytes) {
    std::string bytes(8, '\0');
    const uint64_t length = header.size();
    std::memcpy(bytes.data(), &length, 8);
    bytes += header;
    for (size_t i = 0; i < data_bytes; ++i) bytes += char(i);
    return bytes;
}

TEST_CASE("what was written is read again: values, shapes, types and metadata") {
    TempDir dir;
    SafeTensors content;
    content.tensors["w"] = {"F32", {2, 3}, random_floats(6, 1)};
    content.tensors["tracked"] = {"I64", {}, {41}};
    content.tensors["none"] = {"F32", {0, 5}, {}};
    content.metadata = {{"classes", "[\"a\\\"b\", \"ä\"]"}, {"empty", ""}};
    write_safetensors(dir / "m.safetensors", content);
    const SafeTensors back = read_safetensors(dir / "m.safetensors");
    CHECK(back.metadata == content.metadata);
    REQUIRE(back.tensors.size() == 3);
    for (auto& [name, tensor] : content.tensors) {
        CHECK(back.tensors.at(name).dtype == tensor.dtype);
        CHECK(back.tensors.at(name).shape == tensor.shape);
        CHECK(back.tensors.at(name).values == tensor.values);
    }
}

TEST_CASE("a file written by the safetensors package of Python is read, in each type") {
    // save({"f16": [1, -2.5, 6e-8], "bf16": [1, -3], "f64": [0.1], "i64": [-7], "f32": [0.5]},
    // {"by": "python"}) of safetensors.numpy / .torch 0.8, in base64.
    const std::vector<uint8_t> bytes = from_base64(
        "QAEAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJieSI6InB5dGhvbiJ9LCJpNjQiOnsiZHR5cGUiOiJJNjQiLCJzaGFw"
        "ZSI6WzFdLCJkYXRhX29mZnNldHMiOlswLDhdfSwiZjY0Ijp7ImR0eXBlIjoiRjY0Iiwic2hhcGUiOlsxXSwiZGF0"
        "YV9vZmZzZXRzIjpbOCwxNl19LCJmMzIiOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6WzFdLCJkYXRhX29mZnNldHMi"
        "OlsxNiwyMF19LCJiZjE2Ijp7ImR0eXBlIjoiQkYxNiIsInNoYXBlIjpbMl0sImRhdGFfb2Zmc2V0cyI6WzIwLDI0"
        "XX0sImYxNiI6eyJkdHlwZSI6IkYxNiIsInNoYXBlIjpbM10sImRhdGFfb2Zmc2V0cyI6WzI0LDMwXX19ICAgIPn/"
        "////////mpmZmZmZuT8AAAA/gD9AwAA8AMEBAA==");
    TempDir dir;
    write_file(dir / "python", {bytes.begin(), bytes.end()});
    SafeTensors content = read_safetensors(dir / "python");
    CHECK(content.metadata.at("by") == "python");
    CHECK(content.tensors["f16"].values == std::vector<float>{1, -2.5, 0x1p-24f});
    CHECK(content.tensors["bf16"].values == std::vector<float>{1, -3});
    CHECK(content.tensors["f64"].values == std::vector<float>{0.1f});
    CHECK(content.tensors["i64"].values == std::vector<float>{-7});
    CHECK(content.tensors["f32"].values == std::vector<float>{0.5});
    CHECK(content.tensors["f16"].shape == std::vector<int64_t>{3});
    write_safetensors(dir / "ours", content);  // `export`
    const SafeTensors back = read_safetensors(dir / "ours");
    for (auto& [name, tensor] : content.tensors) {
        CAPTURE(name);
        CHECK(back.tensors.at(name).dtype == (name == "i64" ? "I64" : "F32"));
        CHECK(back.tensors.at(name).values == tensor.values);
    }
}

TEST_CASE("tensors of other types are left out, and an error only if the model has one") {
    TempDir dir;
    write_file(dir / "a", file_of(R"({"flag":{"dtype":"BOOL","shape":[3],"data_offsets":[4,7]},)"
                                  R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                  R"("b":{"dtype":"F16","shape":[1],"data_offsets":[7,9]},)"
                                  R"("fp4":{"dtype":"F4","shape":[8],"data_offsets":[9,13]}})",
                                  13));
    const SafeTensors content = read_safetensors(dir / "a");
    CHECK(content.tensors.size() == 2);
    CHECK(content.tensors.contains("b"));
    CHECK(content.left_out == std::map<std::string, std::string>{{"flag", "BOOL"}, {"fp4", "F4"}});
}

TEST_CASE("a wrong header is refused with a sentence that names the file and the tensor") {
    const std::string good = R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
    struct {
        std::string header;
        size_t data;
        const char* says;
    } cases[] = {
        {"{\"a\":" + good + "}", 7, "is the file cut short?"},
        {"{\"a\":" + good + "}", 9, "1 bytes that belong to no tensor"},
        {"{\"a\":" + good + ",\"b\":" + good + "}", 8, "tensors 'a' and 'b' overlap"},
        {"{\"a\":" + good + ",\"a\":" + good + "}", 8, "names 'a' twice"},
        {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12,
         "a gap before tensor 'a'"},
        {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8, "its shape does not need"},
        {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "lies at bytes 8 to 0"},
        {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8,
         "-2 is not a whole number"},
        {R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,8]}})", 8, "1.5 is not a whole"},
        {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8]}})", 8,
         "its shape does not need"},
        {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}})", 8,
         "lies at bytes 0 to 18446744073709551615 of 8"},
        {R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8, "lacks dtype"},
        {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8, "lacks dtype, shape or"},
        {R"({"a":7})", 0, "tensor 'a' lacks"},
        {R"([1,2])", 0, "not a JSON object"},
        {R"({"__metadata__":{"a":1}})", 0, "__metadata__ 'a' is not a string"},
        {R"({"__metadata__":[]})", 0, "__metadata__ is not an object"},
        {R"({"a":)", 0, "not valid JSON"},
        {std::string(100'000, '['), 0, "nested too deeply"},
        {"{\"a\xff\":1}", 0, "not valid JSON"},
    };
    TempDir dir;
    for (auto& [header, data, says] : cases) {
        CAPTURE(header.substr(0, 100));
        write_file(dir / "bad", file_of(header, data));
        CHECK_FAILS(read_safetensors(dir / "bad"), says);
        CHECK_FAILS(read_safetensors(dir / "bad"), (dir / "bad"));
    }
    std::string many = "{";  // must not take a time that grows with its square
    for (int i = 0; i < 200'000; ++i) many += cat("\"", i, "\":{},");
    write_file(dir / "bad", file_of(many + "\"0\":{}}", 0));
    CHECK_FAILS(read_safetensors(dir / "bad"), "names '0' twice");
    write_file(dir / "bad", file_of(many + "\"x\":{}}", 0));
    CHECK_FAILS(read_safetensors(dir / "bad"), "lacks dtype");
    write_file(dir / "empty", "");
    CHECK_FAILS(read_safetensors(dir / "empty"), "has 0 bytes");
    write_file(dir / "long", std::string(8, '\xff'));
    CHECK_FAILS(read_safetensors(dir / "long"), "is no safetensors file");
    CHECK_FAILS(read_safetensors(dir / "missing"), "cannot be read");
    CHECK_THROWS_AS(read_safetensors(dir.path().string()), Error);
}

TEST_CASE("cut anywhere, or with any byte changed, a file is an Error or another valid file") {
    TempDir dir;
    SafeTensors content;
    content.tensors["conv.weight"] = {"F32", {2, 1, 1, 3}, random_floats(6, 2)};
    content.tensors["n"] = {"I64", {}, {0}};
    content.metadata["by"] = "me";
    write_safetensors(dir / "good", content);
    const std::string good = read_file(dir / "good");
    for (size_t length = 0; length < good.size(); ++length) {
        CAPTURE(length);
        write_file(dir / "cut", good.substr(0, length));
        CHECK_THROWS_AS(read_safetensors(dir / "cut"), Error);
    }
    size_t refused = 0;
    Random random(1, 0, 0, kTest);
    for (size_t at = 0; at < good.size(); ++at)
        for (int turn = 0; turn < 4; ++turn) {
            std::string bad = good;
            bad[at] = char(bad[at] ^ (1 + random.below(255)));
            write_file(dir / "bad", bad);
            try {
                for (auto& [name, tensor] : read_safetensors(dir / "bad").tensors) {
                    size_t elems = 1;
                    for (int64_t dim : tensor.shape) elems *= size_t(dim);
                    CHECK(tensor.values.size() == elems);
                }
            } catch (const Error&) {
                ++refused;
            }
        }
    CHECK(refused > good.size());  // of 4 · size: most changes of the header are noticed
}

#ifndef __SANITIZE_ADDRESS__  // it reserves terabytes
TEST_CASE("weights that are not there: the error says where to get some") {
    Quiet quiet;
    CHECK_FAILS((void)read_weights("none.pth", quiet.log), "none.pth");
    CHECK_FAILS((void)read_weights("none.pth", quiet.log), "tools/weights");
}

TEST_CASE("a file for which there is no memory is an Error naming it") {
    TempDir dir;
    const std::string path = dir / "m.safetensors";
    write_file(path, file_of(R"({"w":{"dtype":"F32","shape":[75000000000],)"
                             R"("data_offsets":[0,300000000000]}})",
                             0));
    std::filesystem::resize_file(path, std::filesystem::file_size(path) + 300'000'000'000);
    const TightLimit limit(RLIMIT_AS, 1ull << 37);  // less than the file, more than is in use
    CHECK_FAILS(read_safetensors(path), "m.safetensors: takes more memory than there is");
}
#endif

TEST_CASE("a file that cannot be written is an Error naming it and the cause") {
    TempDir dir;
    CHECK_FAILS(write_safetensors(dir / "no/such/folder", {}), "No such file or directory");
    SafeTensors large;
    large.tensors["w"] = {"F32", {1000}, std::vector<float>(1000)};
    CHECK_FAILS(write_safetensors("/dev/full", large),
                "/dev/full cannot be written: No space left on device");
}
