// PyTorch's files, src/checkpoint/torch_file.h: what torch.save() writes, and what nobody should.
#include "src/checkpoint/torch_file.h"

#include <fstream>

#include "tests/process.h"
#include "tests/protobuf_reader.h"
#include "tests/torch_zip.h"

using namespace convoy;

struct Reader {
    SafeTensors read(const std::string& bytes) {
        std::ofstream(folder / "m.pth", std::ios::binary) << bytes;
        return read_weights(folder / "m.pth", told.log);
    }
    std::vector<float> floats(const std::string& items) {
        return read(torch_file(pickled_dict(items))).tensors.at("w").values;
    }
    std::string error(const std::string& bytes) {
        return error_of([&] { read(bytes); });
    }
    TempDir folder;
    Quiet told;
};

TEST_CASE("torch files: strides and offsets are those of the storage") {
    Reader reader;
    CHECK(reader.floats(pickled_tensor("w", {2, 3}, {3, 1})) ==
          std::vector<float>{0, 1, 2, 3, 4, 5});
    CHECK(reader.floats(pickled_tensor("w", {3, 2}, {1, 3})) ==
          std::vector<float>{0, 3, 1, 4, 2, 5});
    CHECK(reader.floats(pickled_tensor("w", {2}, {2}, 3)) == std::vector<float>{3, 5});
    CHECK(reader.floats(pickled_tensor("w", {2, 2}, {0, 1}, 4)) == std::vector<float>{4, 5, 4, 5});
    CHECK(reader.floats(pickled_tensor("w", {}, {}, 5)) == std::vector<float>{5});
    CHECK(reader.floats(pickled_tensor("w", {0, 7}, {7, 1}, 6)).empty());
    CHECK(
        reader
            .read(torch_file(pickled_dict(pickled_tensor("w", {3}, {1}, 0, "torch\nLongStorage"))))
            .tensors.at("w")
            .dtype == "I64");
}

TEST_CASE("torch files: a tensor beyond its storage, or far larger than the file, is an error") {
    Reader reader;
    const auto error = [&](std::vector<int64_t> shape, std::vector<int64_t> strides,
                           int64_t offset = 0) {
        return reader.error(torch_file(pickled_dict(pickled_tensor("w", shape, strides, offset))));
    };
    const std::string beyond = "'w' goes beyond its storage of 6 numbers";
    const int64_t big = int64_t(1) << 62;
    CHECK(contains(error({7}, {1}), beyond));
    CHECK(contains(error({2, 3}, {4, 1}), beyond));
    CHECK(contains(error({1}, {1}, 6), beyond));
    CHECK(contains(error({1}, {1}, -1), beyond));
    CHECK(contains(error({-1}, {1}), beyond));
    CHECK(contains(error({2}, {-1}, 3), beyond));
    CHECK(contains(error({big, big}, {0, 0}), beyond));
    CHECK(contains(error({5, 5}, {big, big}), beyond));
    CHECK(contains(error({1 << 20, 1 << 20}, {0, 0}), "far more memory"));
    CHECK(contains(error({2}, {1, 1}), "'w' is damaged"));
    CHECK(contains(error(std::vector<int64_t>(9, 1), std::vector<int64_t>(9, 1)), "damaged"));
}

TEST_CASE("torch files: what is no tensor is passed over, and never run") {
    Reader reader;
    const std::string w = pickled_tensor("w", {2}, {1});
    const std::string call = "cposix\nsystem\n" + pickled("true") + "\x85";
    const std::vector<std::string> others = {
        call + "R",                                                   // REDUCE
        call + "\x81",                                                // NEWOBJ
        call + "}\x92",                                               // NEWOBJ_EX
        "cargparse\nNamespace\n)\x81}(" + pickled("lr") + "K\x01ub",  // BUILD
        "ccollections\nCounter\n}(K\x1eK\x01u\x85R",                  // of MultiStepLR
        "ccollections\ndefaultdict\n)R(" + pickled("a") + "K\x01u",
        std::string("ctorch\nfloat16\n"),
        "\x8a\x09" + std::string(9, '\1'),  // a large number
        std::string("\x8f(K\x01\x90"),      // EMPTY_SET, ADDITEMS
        std::string("B\2\0\0\0ab", 7),      // BINBYTES
    };
    for (const std::string& other : others) {
        CAPTURE(other);
        CHECK(reader.floats(w + pickled("x") + other) == std::vector<float>{0, 1});
    }
}

TEST_CASE("torch files: damage in a pickle is an error") {
    Reader reader;
    std::string doubled = "\x80\4X\x64" + std::string(3, '\0') + std::string(100, 'x') + "q";
    doubled += '\0';
    for (int i = 0; i < 60; ++i) doubled += std::string("h\0h\0\x93q\0", 7);
    CHECK(contains(reader.error(torch_file(doubled + ".")), "too long"));
    const auto fails = [&](const std::string& rest, const char* why) {
        CAPTURE(why);
        CHECK(contains(reader.error(torch_file("\x80\x02" + rest)), why));
    };
    fails("cposix\nsystem\n" + pickled("true") + "\x85R.", "an object of posix.system");
    fails("c\x1b[31m\nx\n)R.", "\\x1b[31m.x");
    fails("i", "0x69");
    fails("N.", "holds no dict of tensors");
    fails(".", "its pickle pops");
    for (const char* memo : {"h\x05.", "Nr\xff\xff\xff\xff."}) fails(memo, "memo is damaged");
    const std::string ones = "\xff\xff\xff\xff";
    for (const std::string& cut : {"X" + ones + "a.", "\x8d" + ones + ones + "a.",
                                   std::string("\x8a\xff") + "a.", std::string("cnolineend")})
        fails(cut, "cut short");
    fails(std::string(3'000'000, '('), "too deeply");
    fails(std::string(3'000'000, ']'), "more than");
    // Each tuple holds the one before it twice: as a tree that would be 2^5000 values.
    std::string twice("]q\0", 3);
    for (int i = 0; i < 5000; ++i) twice += std::string("h\0h\0\x86q\0", 7);
    fails(twice + ".", "holds no dict of tensors");
    // A long list, which each of many calls would copy.
    std::string calls = "(";
    for (int i = 0; i < 100'000; ++i) calls += ')';
    calls += std::string("tq\0", 3);
    for (int i = 0; i < 1000; ++i)
        calls += std::string("ctorch._utils\n_rebuild_tensor_v2\nh\0R", 36);
    fails(calls + ".", "too many members");
    // A dict that contains itself.
    fails(std::string("}q\0", 3) + pickled("model") + std::string("h\0s.", 4),
          "holds no dict of tensors");
}

TEST_CASE("torch files: weights are looked for under the usual keys before the top") {
    Reader reader;
    for (const char* key : {"state_dict", "model", "net", "ema", "weights", "model_ema"})
        CHECK(reader.floats(pickled_tensor("best_acc1", {}, {}) + pickled(key) + "}(" +
                            pickled_tensor("w", {2}, {1}, 2) + "u") == std::vector<float>{2, 3});
    const SafeTensors own = reader.read(
        torch_file(pickled_dict(pickled_tensor("w", {1}, {1}) + pickled("model") + "}" +
                                pickled_tensor("mask", {1}, {1}, 0, "torch\nBoolStorage"))));
    CHECK(own.tensors.size() == 1);
    CHECK(contains(reader.told.text(), "'mask'"));
}

TEST_CASE("torch files: what wrappers add to names is dropped, except in our own files") {
    Reader reader;
    const auto names = [&](const std::vector<std::string>& from) {
        std::string items;
        for (const std::string& name : from) items += pickled_tensor(name, {1}, {1});
        std::vector<std::string> plain;
        for (const auto& [name, _] : reader.read(torch_file(pickled_dict(items))).tensors)
            plain.push_back(name);
        return plain;
    };
    const std::vector<std::string> plain = {"fc.w", "features.0.w"};
    for (const char* prefix : {"module.", "_orig_mod.", "model.", "module.model.", "backbone.",
                               "model._orig_mod.", "model.backbone."})
        CHECK(names({cat(prefix, plain[0]), cat(prefix, plain[1])}) == plain);
    CHECK(names({"fc.w", "features.module.0.w"}) == plain);
    CHECK(names({"model.fc.w", "model.features.0.w", "loss.w"}) ==
          std::vector<std::string>{"fc.w", "features.0.w", "loss.w"});
    CHECK(names({"a.w", "module.a.w"}) == std::vector<std::string>{"a.w", "module.a.w"});
    SafeTensors ours;
    ours.tensors["model.w"] = {"F32", {1}, {1}};
    ours.metadata["model_text"] = "…";
    write_safetensors(reader.folder / "ours", ours);
    CHECK(read_weights(reader.folder / "ours", reader.told.log).tensors.contains("model.w"));
}

TEST_CASE("weights: NaN and infinity are reported, with their count and the first tensor") {
    Reader reader;
    SafeTensors bad;
    bad.tensors["a"] = {"F32", {2}, {1, 2}};
    bad.tensors["b"] = {"F32", {3}, {NAN, 2, INFINITY}};
    bad.tensors["c"] = {"F32", {1}, {NAN}};
    write_safetensors(reader.folder / "bad", bad);
    read_weights(reader.folder / "bad", reader.told.log);
    const std::string told = reader.told.text();
    CHECK(contains(told, "3 weights"));
    CHECK(contains(told, "'b'"));
}

TEST_CASE("torch files: cut short or changed anywhere, a file is an error or has other tensors") {
    Reader reader;
    const std::string good = torch_file(pickled_dict(pickled_tensor("w", {2, 3}, {3, 1})));
    for (size_t n = 4; n < good.size(); ++n) {
        CAPTURE(n);
        CHECK(reader.error(good.substr(0, n)) != "");
    }
    int errors = 0;
    for (size_t i = 4; i < good.size(); ++i) {
        std::string bad = good;
        bad[i] = char(bad[i] ^ 0x41);
        errors += reader.error(bad) != "";
    }
    CHECK(errors > int(good.size()) / 3);  // of pickle and storage every byte: they have checksums
    const auto has = [&](const std::string& bytes, const char* part) {
        return contains(reader.error(bytes), part);
    };
    std::string bad = good;
    bad[good.find("m/data/0") + 9] ^= 1;
    CHECK(has(bad, "'m/data/0' is damaged"));
    CHECK(has(zip_of({{"a.txt", ""}}), "not one that torch.save wrote"));
    CHECK(has(zip_of({{"m/data.pkl", ""}, {"m/byteorder", "big"}}), "big-endian"));
    CHECK(has(zip_of({{"m/data.pkl", pickled_dict(pickled_tensor("w", {1}, {1}))}}),
              "has no member 'm/data/0'"));
}

TEST_CASE("torch files: the format from before 1.6, of this and earlier versions and of Python 2") {
    Reader reader;
    const auto tensors = [&](const std::string& pickle) {
        return reader.read(torch_file_before_zip(pickle)).tensors;
    };
    const std::string w = pickled_tensor("w", {2, 2}, {1, 2}, 1);
    CHECK(tensors(pickled_dict(w)).at("w").values == std::vector<float>{1, 3, 2, 4});
    // Storages of other types lie before the storage that is needed.
    std::string flags = pickled_tensor("flags", {3}, {1}, 0, "torch\nBoolStorage");
    flags.replace(flags.find(pickled("0")), pickled("0").size(), pickled("flags"));
    CHECK(tensors(pickled_dict(flags + w)).size() == 1);
    CHECK(contains(reader.told.text(), "'flags'"));
    flags.replace(flags.find("BoolStorage"), 11, "OddStorage");
    CHECK(contains(reader.error(torch_file_before_zip(pickled_dict(flags + w))), "OddStorage"));
    // Python 2: a call of OrderedDict with a list of pairs, and short strings of bytes.
    const std::string pair = "](U\1w" + w.substr(pickled("w").size()) + "e";
    CHECK(tensors("\x80\x02"
                  "ccollections\nOrderedDict\n](" +
                  pair + "e\x85R.")
              .size() == 1);
    // Before 0.4: another function, shapes as torch.Size, and a part of a storage.
    std::string early = w;
    early.replace(early.find("_v2\n"), 4, "\n");
    const size_t part = early.find("tQ");
    early.insert(part, pickled("0") + "K\1K\5\x87");
    const std::string shape = pickled(std::vector<int64_t>{2, 2});
    early.insert(early.find(shape) + shape.size(), "\x85R");
    early.insert(early.find(shape), "ctorch\nSize\n");
    CHECK(tensors(pickled_dict(early)).at("w").values == std::vector<float>{2, 4, 3, 5});

    const std::string good = torch_file_before_zip(pickled_dict(w));
    for (size_t n = 0; n < good.size(); ++n) {
        CAPTURE(n);
        CHECK(reader.error(good.substr(0, n)) != "");
    }
    std::string bad = good;
    bad[good.size() - 25] = '\x7f';  // the storage's count of numbers
    CHECK(contains(reader.error(bad), "storage '0'"));
}

TEST_CASE("weights: torchvision's old names of densenet become the new ones") {
    Reader reader;
    SafeTensors old;
    const std::string layer = "features.denseblock1.denselayer12.";
    for (const char* name : {"norm.1.weight", "conv.2.weight"})
        old.tensors["module." + layer + name] = {"F32", {1}, {1}};
    old.tensors["norm.1.weight"] = {"F32", {1}, {1}};
    write_safetensors(reader.folder / "old", old);
    const auto found = read_weights(reader.folder / "old", reader.told.log).tensors;
    for (const std::string& name :
         {layer + "norm1.weight", layer + "conv2.weight", std::string("norm.1.weight")}) {
        CAPTURE(name);
        CHECK(found.contains(name));
    }
}

TEST_CASE("torch files: the tensors of torch.save are those of safetensors, bit for bit") {
    Reader reader;
    const std::string folder = reader.folder.path();
    if (!python_agrees("torch_files.py", folder)) return;
    int pairs = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        if (entry.path().extension() != ".safetensors") continue;
        CAPTURE(entry.path().stem().string());
        const SafeTensors want = read_safetensors(entry.path());
        for (const char* format : {"pth", "old"}) {
            CAPTURE(format);
            const auto torch = std::filesystem::path(entry.path()).replace_extension(format);
            if (!std::filesystem::exists(torch)) continue;  // zip64 and deflated have one format
            const SafeTensors got = read_weights(torch, reader.told.log);
            REQUIRE(got.tensors.size() == want.tensors.size());
            for (const auto& [name, tensor] : want.tensors) {
                CAPTURE(name);
                const StoredTensor& found = got.tensors.at(name);
                CHECK(found.dtype == tensor.dtype);
                CHECK(found.shape == tensor.shape);
                CHECK(found.values == tensor.values);
            }
            ++pairs;
        }
    }
    CHECK(pairs == 42);
    CHECK(contains(reader.told.text(), "'module.' is dropped"));
    for (const auto& [name, why] : std::vector<std::pair<const char*, const char*>>{
             {"bomb", "far more memory"}, {"script", "is a TorchScript program"}})
        CHECK_FAILS(read_weights(cat(folder, "/", name, ".pth"), reader.told.log), why);
    CHECK(!std::filesystem::exists(folder + "/was-run"));
}
