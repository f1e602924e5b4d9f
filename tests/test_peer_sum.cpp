// Sums over GPUs that read each other's memory: against the sum in the order of the ranks, bit for
// bit. In the emulator several backends of one process can do so, which CUDA refuses.
#include "net/ring/communicator.h"
#include "src/step/grad_reducer.h"
#include "tests/net_support.h"

namespace convoy {

namespace {

std::vector<float> addend(size_t n, int rank) { return random_floats(n, uint64_t(rank + 1)); }

// x0 + x1 + …, from the left, in [begin, end); elsewhere the floats of `rank`.
std::vector<float> expected(size_t n, int rank, int ranks, size_t begin, size_t end) {
    std::vector<float> sum = addend(n, rank), all = addend(n, 0);
    for (int r = 1; r < ranks; ++r) {
        const std::vector<float> x = addend(n, r);
        for (size_t i = 0; i < n; ++i) all[i] += x[i];
    }
    std::copy(all.begin() + begin, all.begin() + end, sum.begin() + begin);
    return sum;
}

struct Rank {
    std::unique_ptr<Backend> backend = make_backend("simt", {.threads = 1});
    float* block = nullptr;
    std::unique_ptr<PeerSum> sum = {};
};

}  // namespace

TEST_CASE("peer sum: the bits of a sum in the order of the ranks, any slice, nothing beside it") {
    constexpr size_t kFloats = 1003;
    const std::pair<size_t, size_t> ranges[] = {{0, 0}, {0, 1003}, {1, 2}, {5, 11}, {3, 1002}};
    for (const int ranks : {2, 3, 8, 16}) {
        std::vector<Rank> all(static_cast<size_t>(ranks));
        std::vector<std::string> shared;
        for (Rank& one : all)
            shared.push_back(
                one.backend->share({one.block = one.backend->alloc(kFloats), kFloats}));
        for (int r = 0; r < ranks; ++r)
            all[size_t(r)].sum =
                all[size_t(r)].backend->open_peers({all[size_t(r)].block, kFloats}, shared, r);
        for (const auto& [begin, end] : ranges) {
            CAPTURE(ranks, begin, end);
            for (int r = 0; r < ranks; ++r)
                all[size_t(r)].backend->upload(all[size_t(r)].block, addend(kFloats, r).data(),
                                               kFloats * sizeof(float));
            for (Rank& one : all) one.sum->sum(begin, end), one.sum->wait();
            for (Rank& one : all) one.sum->gather(begin, end), one.sum->wait();
            for (int r = 0; r < ranks; ++r) {
                std::vector<float> got(kFloats);
                all[size_t(r)].backend->download(got.data(), all[size_t(r)].block,
                                                 kFloats * sizeof(float));
                CHECK(got == expected(kFloats, r, ranks, begin, end));
            }
        }
    }
}

TEST_CASE("peer sum: memory that is gone, has other bytes, or is not the backend's, is an error") {
    const auto backend = make_backend("simt", {.threads = 1});
    CHECK(make_backend("cpu", {.threads = 1})->share({}) == "");
    std::vector<float> on_host(20);
    CHECK_FAILS(backend->share(on_host), "cudaIpcGetMemHandle");
    const std::span block(backend->alloc(20), 20);
    std::vector<std::string> shared(2, backend->share(block));
    CHECK(backend->open_peers(block, shared, 0));
    backend->fill(&block[19], 1, 5);
    CHECK_FAILS(backend->open_peers(block, shared, 0), "GPU of rank 1 returns other bytes");
    backend->release_after(0);
    const std::span other(backend->alloc(20), 20);
    CHECK_FAILS(backend->open_peers(other, shared, 0), "cudaIpcOpenMemHandle");
    shared.resize(17);
    CHECK_FAILS(backend->open_peers(other, shared, 0), "17 GPUs");
}

// 17 ranks are too many, so these sum in host memory, and so do those that share no memory.
TEST_CASE("reducer: GPUs of one host sum gradients as the ring would, and say how") {
    for (const auto& [ranks, shm] : {std::pair(2, true), {3, true}, {3, false}, {17, true}}) {
        CAPTURE(ranks, shm);
        const bool by_peers = shm && ranks < 17;
        std::atomic<int> wrong{0};
        run_ranks(
            ranks, [shm = shm](JoinOptions& options) { options.shm = shm; },
            [&, ranks = ranks](Job& job) {
                const auto backend = make_backend("simt", {.threads = 1});
                Params params;
                for (int i = 0; i < 10; ++i) {
                    Param param;
                    param.name = cat("row", i), param.shape = {1, 1, 1, 100 + i};
                    param.running = i == 9;
                    params.add(param);
                }
                params.allocate(*backend, 1);
                const int rank = job.communicator->rank();
                const size_t n = params.grads_size;
                std::vector<float> got(n);
                GradReducer reducer(params, *backend, *job.communicator, {}, 1000);
                for (int step = 0; step < 3; ++step) {
                    backend->upload(params.grads, addend(n, rank).data(), n * sizeof(float));
                    reducer.start();
                    for (Param* param : params.backward_order()) reducer.ready(*param);
                    reducer.finish();
                    backend->download(got.data(), params.grads, n * sizeof(float));
                    const std::vector<float> want = expected(n, rank, ranks, 0, n);
                    // Without shared memory the ring adds in another order.
                    for (size_t i = 0; i < n; ++i)
                        wrong += shm ? got[i] != want[i] : !(std::abs(got[i] - want[i]) < 1e-5);
                    const std::string notice = reducer.take_notice();
                    wrong += contains(notice, "other's memory") != (by_peers && step == 0);
                    wrong += contains(notice, "host memory") != (!by_peers && step == 0);
                    wrong += contains(notice, "17 GPUs") != (ranks == 17 && step == 0);
                }
            });
        CHECK(wrong == 0);
    }
}

}  // namespace convoy
