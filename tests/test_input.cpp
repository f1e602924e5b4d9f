// Batches copied to the device, before their step and at its start.
#include "src/train/input.h"

#include <algorithm>

#include "tests/device.h"
#include "tests/support.h"

using namespace convoy;

TEST_SUITE_BEGIN("device");

TEST_CASE("a batch that was fetched ahead is what is taken next, if it is still that batch") {
    const auto backend = make_backend(kernel_device(), {.threads = 1});
    Model model("input 4\nflatten\nlinear fc out classes\n", {"net", 2, 4, 1, ""}, *backend);
    model.plan(2, /*training=*/false);
    Input input(*backend, model, /*ahead=*/true);
    const size_t elems = Shape{2, 4, 4, 3}.elems();
    std::vector<std::vector<float>> pixels;
    Batch batches[3];
    const auto fill = [&](Batch& batch) {
        pixels[batch.number] = random_floats(elems, batch.number);
        std::copy_n(pixels[batch.number].data(), elems, batch.x);
    };
    pixels.resize(4);
    for (int i = 0; i < 3; ++i) {
        batches[i].x = backend->alloc_host(elems);
        batches[i].n = 2, batches[i].number = uint64_t(i);
        fill(batches[i]);
    }
    const float* place = nullptr;
    const auto taken = [&](const Batch& batch) {
        const Tensor x = input.take(batch);
        CHECK(x.N == 2);
        std::vector<float> got(elems);
        place = x.floats();
        backend->download(got.data(), place, elems * sizeof(float));
        return got;
    };
    CHECK(taken(batches[0]) == pixels[0]);
    const float* const first = place;

    input.fetch_ahead(batches[1]);
    backend->wait_upload(), backend->synchronize();  // it is there, and not copied once more
    std::fill_n(batches[1].x, elems, NAN);
    CHECK(taken(batches[1]) == pixels[1]);
    CHECK(place != first);
    fill(batches[1]);

    input.fetch_ahead(batches[2]);  // the model copies it as late as it may
    CHECK(taken(batches[2]) == pixels[2]);
    CHECK(place == first);

    input.fetch_ahead(batches[0]);
    CHECK(taken(batches[1]) == pixels[1]);  // another one than was thought

    input.fetch_ahead(batches[0]);
    backend->wait_upload(), backend->synchronize();
    batches[0].number = 3;  // its slot was filled again, as by Loader::start
    fill(batches[0]);
    CHECK(taken(batches[0]) == pixels[3]);
}

TEST_SUITE_END();
