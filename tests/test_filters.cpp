// test_filters.cpp — filters from images, and a job whose model starts from them.
#include "data/whiten.h"

#include <cmath>
#include <fstream>

#include "data/sources/dataset.h"
#include "src/checkpoint/safetensors.h"
#include "src/session/job_setup.h"
#include "tests/jobs.h"
#include "tests/pictures.h"

using namespace convoy;

namespace {

// The generated set of `trainer --generated 48 --size 32`, and how it is preprocessed.
struct Images {
    Images() {
        Config config;
        config.generated = 48, config.augment = Augment::resize;
        Log log(nullptr);
        source = open_data(data_options(config), log).train;
    }
    std::vector<float> row(size_t i) const {
        std::vector<uint8_t> bytes;
        source->read(i, bytes);
        std::vector<float> row(how.size.elems());
        RowBuffers buffers;
        input_row(decoded(bytes), how.for_validation(), 0, 0, buffers, row.data());
        return row;
    }
    SourcePtr source;
    Preprocess how = [] {
        Preprocess all(32);
        all.augment = Augment::resize;
        return all;
    }();
};

}  // namespace

TEST_CASE(
    "whitened patches are uncorrelated, with variance λ/(λ + 0.0005), and come with both signs") {
    const Images images;
    constexpr int R = 2, S = 3, n = R * S * 3;
    const std::vector<float> filters = whitening_filters(*images.source, images.how, R, S);
    REQUIRE(filters.size() == 2 * n * n);
    std::vector<double> products(n * n);
    double patches = 0;
    for (size_t i = 0; i < images.source->size(); ++i) {
        const std::vector<float> row = images.row(i);
        for (int h = 0; h + R <= 32; ++h)
            for (int w = 0; w + S <= 32; ++w, ++patches) {
                double out[n] = {};
                for (int f = 0; f < n; ++f)
                    for (int r = 0, k = 0; r < R; ++r)
                        for (int s = 0; s < S; ++s)
                            for (int c = 0; c < 3; ++c, ++k)
                                out[f] += double(filters[size_t(f * n + k)]) *
                                          double(row[size_t(((h + r) * 32 + w + s) * 3 + c)]);
                for (int f = 0; f < n; ++f)
                    for (int g = 0; g < n; ++g) products[size_t(f * n + g)] += out[f] * out[g];
            }
    }
    double before = 1.001;
    for (int f = 0; f < n; ++f) {
        double length = 0;  // |v/√(λ + ε)|² = 1/(λ + ε)
        for (int k = 0; k < n; ++k) {
            const double w = double(filters[size_t(f * n + k)]);
            length += w * w;
            CHECK(filters[size_t((n + f) * n + k)] == -filters[size_t(f * n + k)]);
        }
        const double variance = 1 - 5e-4 * length;  // λ/(λ + ε)
        CHECK(variance <= before);                  // λ falls
        before = variance + 1e-6;
        for (int g = 0; g < n; ++g) {
            const double want = f == g ? variance : 0;
            CHECK(std::abs(products[size_t(f * n + g)] / patches - want) < 1e-3);
        }
    }
}

TEST_CASE("program: a job starts from the filters of its images, on one rank and on two") {
    TempDir folder;
    const std::string text = folder / "net.txt";
    std::ofstream(text) << "input 32\nconv2d whiten out 24 size 2 init whiten\nrelu\n"
                           "avgpool 1\nlinear fc out classes\n";
    const Words words = typed(
                            "train --generated 48 --size 32 --batch 8 --steps 2 --freeze whiten "
                            "--decode-threads 1 --threads 1 CONVOY_PREFLIGHT=off --model") +
                        Words{text};
    output_of(words + Words{"--out", folder / "one"});
    Cluster(folder, 2, words + Words{"--out", folder / "two"}, words).end();
    const Images images;
    const std::vector<float> want = whitening_filters(*images.source, images.how, 2, 2);
    for (const char* run : {"one", "two"}) {
        const SafeTensors saved = read_safetensors(cat(folder / run, "/latest/model.safetensors"));
        const auto weights = saved.tensors.at("whiten.weight");
        // Files hold [filter][c][r][s].
        for (size_t f = 0; f < 24; ++f)
            for (size_t c = 0; c < 3; ++c)
                for (size_t rs = 0; rs < 4; ++rs)
                    CHECK(weights.values[(f * 3 + c) * 4 + rs] == want[(f * 4 + rs) * 3 + c]);
    }
}
