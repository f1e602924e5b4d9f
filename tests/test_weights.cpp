// Weights in torchvision's names and layouts, src/checkpoint/weights.h.
#include <algorithm>

#include "src/checkpoint/weights.h"

#include "tests/support.h"

using namespace convoy;

static const char* kNet = R"(input 6
conv2d c out 4 size 3x2 bias no
batchnorm b
relu
flatten
linear f out 5
relu
linear g out classes
)";

TEST_CASE(
    "convolutions leave as OIHW, a linear behind a flatten with its inputs in C, H, W order") {
    auto backend = make_backend("cpu");
    Model model(kNet, {.classes = 2}, *backend);
    const SafeTensors content = export_weights(model, *backend);
    CHECK(content.tensors.size() == 1 + 5 + 2 + 2);

    const StoredTensor& conv = content.tensors.at("c.weight");
    CHECK(conv.shape == std::vector<int64_t>{4, 3, 3, 2});
    const float* w = model.params().find("c.weight")->value.floats();
    for (int k = 0; k < 4; ++k)
        for (int c = 0; c < 3; ++c)
            for (int r = 0; r < 3; ++r)
                for (int s = 0; s < 2; ++s)
                    CHECK(conv.values[((k * 3 + c) * 3 + r) * 2 + s] ==
                          w[((k * 3 + r) * 2 + s) * 3 + c]);

    const StoredTensor& linear = content.tensors.at("f.weight");  // 4 rows, 5 columns, 4 channels
    CHECK(linear.shape == std::vector<int64_t>{5, 80});
    const float* f = model.params().find("f.weight")->value.floats();
    for (int k = 0; k < 5; ++k)
        for (int c = 0; c < 4; ++c)
            for (int h = 0; h < 4; ++h)
                for (int x = 0; x < 5; ++x)
                    CHECK(linear.values[k * 80 + (c * 4 + h) * 5 + x] ==
                          f[k * 80 + (h * 5 + x) * 4 + c]);

    CHECK(content.tensors.at("b.num_batches_tracked").dtype == "I64");
    CHECK(content.tensors.at("b.num_batches_tracked").shape.empty());
    CHECK(export_weights(model, *backend, 123).tensors.at("b.num_batches_tracked").values ==
          std::vector<float>{123});
    CHECK(content.tensors.at("b.running_var").values == std::vector<float>(4, 1));
    CHECK(content.tensors.at("g.bias").shape == std::vector<int64_t>{2});
}

TEST_CASE("what was exported is imported bit for bit, through a file, without the counters too") {
    auto backend = make_backend("cpu");
    Model one(kNet, {.classes = 2, .seed = 1}, *backend),
        two(kNet, {.classes = 2, .seed = 2}, *backend);
    TempDir dir;
    write_safetensors(dir / "m", export_weights(one, *backend));
    SafeTensors content = read_safetensors(dir / "m");
    content.tensors.erase("b.num_batches_tracked");
    const ImportReport report = import_weights(content, two, *backend, /*partial=*/false);
    CHECK(report.text() == "loaded 9 of 9 tensors");
    const size_t n = one.params().weights_size;
    REQUIRE(two.params().weights_size == n);
    CHECK(std::equal(one.params().weights, one.params().weights + n, two.params().weights));
}

TEST_CASE(
    "with other classes the head starts fresh as a whole and is named; strictly it is an error") {
    auto backend = make_backend("cpu");
    Model old(kNet, {.classes = 2, .seed = 1}, *backend),
        fresh(kNet, {.classes = 7, .seed = 2}, *backend);
    SafeTensors content = export_weights(old, *backend);
    content.tensors["extra"] = {"F32", {1}, {0}};
    CHECK_THROWS_WITH_AS(
        import_weights(content, fresh, *backend, false),
        "'g.weight' is 2x5 in the weights, 7x5 in the model; check --model, --classes and --size",
        Error);
    const std::vector<float> head(fresh.params().find("g.weight")->value.floats(),
                                  fresh.params().find("g.weight")->value.floats() + 35);
    const ImportReport report = import_weights(content, fresh, *backend, true);
    CHECK(report.text() ==
          "loaded 7 of 9 tensors; initialised randomly: g.weight, g.bias; not used: extra");
    CHECK(std::equal(head.begin(), head.end(), fresh.params().find("g.weight")->value.floats()));
    CHECK(*fresh.params().find("f.bias")->value.floats() ==
          *old.params().find("f.bias")->value.floats());

    content.tensors.erase("c.weight");
    Model same(kNet, {.classes = 2}, *backend);
    CHECK_THROWS_WITH_AS(import_weights(content, same, *backend, false),
                         "the weights have no 'c.weight' (4x3x3x2), which the model has", Error);
    content.left_out["c.weight"] = "F8_E4M3";
    for (const bool partial : {false, true})
        CHECK_FAILS(import_weights(content, same, *backend, partial), "'c.weight' is of type");
    CHECK_FAILS(import_weights({}, same, *backend, true),
                "no tensor of the weights fits the model");
}
