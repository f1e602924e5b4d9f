// Products of bf16 on the CPU (kernels/cpu/pack.h): widened to fp32 on every processor, or as pairs
// for processors that multiply them. Slow tiles of pairs stand in for the hardware, so the packing
// is tested on every machine; the hardware's tiles are tested if this machine has them.
#include <bit>

#include "kernels/cpu/cpu_backend.h"
#include "tests/amx_emulator.h"
#include "tests/check_ops.h"

namespace convoy {

namespace {

float low(float word) { return std::bit_cast<float>(std::bit_cast<uint32_t>(word) << 16); }
float high(float word) { return std::bit_cast<float>(std::bit_cast<uint32_t>(word) & 0xFFFF0000); }
float multiply_pairs(float a, float b) { return low(a) * low(b) + high(a) * high(b); }

template <int M>
void slow_tile(int depth, const float* a, ptrdiff_t a_row, ptrdiff_t a_step, ptrdiff_t a_chunk,
               const float* b, ptrdiff_t step, const TileOut& out) {
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < out.cols; ++j) {
            float& to = out.rows[i][j];
            float sum = out.accumulate ? to : 0;
            for (int k = 0; k < depth; ++k)
                sum += multiply_pairs(a[i * a_row + k / kChunk * a_chunk + k % kChunk * a_step],
                                      b[k * step + j]);
            if (out.bias) sum += out.bias[j];
            if (out.relu && sum < 0) sum = 0;
            if (out.mask && out.rows[i][*out.mask + j] <= 0) sum = 0;
            to = sum;
        }
}
constexpr int kLane = 16, kSlowColumns = 32;
template <int M>
void slow_by_row(int depth, const float* a, const float* b, const TileOut& out) {
    slow_tile<M>(depth, a, kRowStride, 1, kChunk, b, kSlowColumns, out);
}
template <int M>
void slow_by_depth(int depth, const float* a, const float* b, ptrdiff_t step, const TileOut& out) {
    slow_tile<M>(depth, a, 1, kLane, kChunk * kLane, b, step, out);
}
template <int M>  // and 16 at a time, as AMX does
void slow_in_chunks(int depth, const float* a, const float* b, ptrdiff_t step, const TileOut& out) {
    slow_tile<M>(depth, a, kChunk, 1, kChunk * kLane, b, step, out);
}
// In place, if need be.
void slow_transpose(const float* from, ptrdiff_t step, int depth, int columns, float* to,
                    ptrdiff_t to_step) {
    std::vector<float> all;
    for (int k = 0; k < depth; ++k)
        for (int j = 0; j < columns; ++j) all.push_back(from[j * step + k]);
    for (int k = 0; k < depth; ++k)
        std::copy_n(&all[size_t(k * columns)], columns, to + k * to_step);
}

struct SlowTiles {
    Tile by_row[kLane + 1];
    TileByDepth by_depth[kLane + 1], in_chunks[kLane + 1];
};
template <int... M>
constexpr SlowTiles slow_tiles(std::integer_sequence<int, M...>) {
    return {{nullptr, slow_by_row<M + 1>...},
            {nullptr, slow_by_depth<M + 1>...},
            {nullptr, slow_in_chunks<M + 1>...}};
}
constexpr SlowTiles kSlow = slow_tiles(std::make_integer_sequence<int, kLane>());

Micro slow_pairs(bool amx) {
    Micro micro = micro_base();
    micro.nr = kSlowColumns, micro.lane = kLane, micro.mr = amx ? 16 : 11;
    micro.tile_by_row = kSlow.by_row;
    micro.tile_by_depth = amx ? kSlow.in_chunks : kSlow.by_depth;
    micro.transpose = slow_transpose;
    micro.amx = amx;
    return micro;
}

// All ways in which this machine can multiply bf16.
const std::vector<const Micro*>& all_micros() {
    static const Micro plain = slow_pairs(false), amx = slow_pairs(true);
    static const auto with = [](const char* name, const Micro& pairs) {
        Micro micro = micro_base();
        micro.name = name, micro.pairs = &pairs;
        return micro;
    };
    static const Micro with_plain = with("slow pairs", plain), with_amx = with("slow AMX", amx);
    static const std::vector<const Micro*> all = [] {
        std::vector<const Micro*> micros{&micro_base(), &with_plain, &with_amx};
        for (const Micro* micro : {&pick_micro(false), &pick_micro(true)})
            if (std::ranges::find(micros, micro) == micros.end()) micros.push_back(micro);
#if defined(__x86_64__)  // pick_micro() leaves VDPBF16PS of Intel out
        if (__builtin_cpu_supports("avx512bf16"))
            for (const Micro* micro : {&micro_avx512_bf16(), &micro_amx()})
                if (std::ranges::find(micros, micro) == micros.end()) micros.push_back(micro);
#endif
        for (const Micro* micro : micros) MESSAGE("products of bf16: ", std::string(micro->name));
        return micros;
    }();
    return all;
}

// First layers, odd channels, strides, rectangles, several blocks of depth, columns, and rows.
const ConvCase kTileCases[] = {
    {{2, 6, 5, 72}, 130, Window::square(3, 1, 1)},
    {{1, 9, 11, 40}, 200, Window::square(5, 1, 2)},
    {{1, 61, 57, 3}, 20, Window::square(7, 2, 3)},
    {{3, 33, 31, 64}, 48, Window::square(1, 2)},
    {{1, 60, 60, 32}, 33, Window::square(1)},
    {{2, 9, 8, 33}, 47, Window::square(3, 2, 1)},
    {{2, 23, 27, 3}, 40, Window::square(11, 4, 2)},
    {{3, 9, 8, 1}, 9, Window::square(5, 1, 2)},
    {{1, 7, 6, 32}, 8, Window{2, 4, 3, 1, 1, 2}},
    {{1, 4, 5, 1200}, 24, Window::square(1)},
    {{2, 19, 17, 150}, 66, Window{1, 2, 1, 1, 0, 1}},
};

std::unique_ptr<Backend> backend_of(const Micro& micro, int threads) {
    return std::make_unique<CpuBackend>(
        BackendOptions{
            .threads = threads, .conv = ConvMethod::kDirect, .precision = Precision::kBf16},
        micro);
}

}  // namespace

TEST_CASE("products of bf16 match the formula in double, widened and as pairs") {
    const AmxEmulator amx;
    for (const Micro* micro : all_micros()) {
        CAPTURE(std::string(micro->name));
        ThroughDevice backend(backend_of(*micro, 2));
        for (const ConvCase& c : kTileCases) check_conv(backend, Precision::kBf16, c);
        for (const int images : {1, 5, 32, 61})  // as rows, and as whole panels of columns
            for (const int C : {6, 300, 33})
                check_linear_in(backend, Precision::kBf16, {images, 1, 1, C}, C == 300 ? 600 : 67);
    }
}

TEST_CASE("chains of multiply-adds in registers multiply and add as many as they say") {
    const AmxEmulator amx;
    for (const Micro* micro : all_micros())
        for (const Micro* kind : {micro, micro->pairs}) {
            const bool pairs = kind && kind == micro->pairs;
            if (!kind ||
                (pairs && micro->pairs->multiply_add_chains == micro_base().multiply_add_chains))
                continue;  // slow pairs have none
            CAPTURE(std::string(micro->name));
            const int rounds = 3, lanes = kind->amx ? 16 * 16 : kind->width;
            std::vector<float> numbers(kPeakNumbers, 0.5f);
            if (pairs) numbers.assign(kPeakNumbers, std::bit_cast<float>(0x3F003F00u));  // 0.5, 0.5
            const double start = kind->amx ? 0 : double(numbers[0]);
            const double count = kind->multiply_add_chains(rounds, numbers.data());
            // Each multiply-add adds 0.25 to one of the lanes of all chains.
            const int chains = kind->amx ? 4 : kChains;
            CHECK(numbers[0] == doctest::Approx(chains * start + 0.25 * count / lanes));
        }
}

TEST_CASE("a result of floats from bf16 accumulates over all of the depth") {
    const AmxEmulator amx;
    for (const Micro* micro : all_micros()) {
        CAPTURE(std::string(micro->name));
        const auto backend = backend_of(*micro, 2);
        const int N = 3, C = 2600, K = 37;
        std::vector<Bf16> x(size_t(N) * C), w(size_t(K) * C);
        for (Bf16* v : {x.data(), w.data()})
            std::ranges::copy(random_floats(v == x.data() ? x.size() : w.size(), v == x.data()), v);
        std::vector<float> y(size_t(N) * K, NAN), b = random_floats(size_t(K), 2);
        std::vector<double> want;
        for (int n = 0; n < N; ++n)
            for (int k = 0; k < K; ++k) {
                double sum = b[size_t(k)];
                for (int c = 0; c < C; ++c)
                    sum += double(x[size_t(n * C + c)]) * w[size_t(k * C + c)];
                want.push_back(sum);
            }
        const Tensor X(x.data(), {N, 1, 1, C}, Type::kBfloat16);
        const Tensor W(w.data(), {K, 1, 1, C}, Type::kBfloat16);
        backend->linear(X, W, b.data(), false, {y.data(), {N, 1, 1, K}});
        CHECK_CLOSE(y, want, sum_tolerance(C));
    }
}

TEST_CASE("products of bf16 have the same bits with any number of threads") {
    const AmxEmulator amx;
    for (size_t i = 0; i < 2 * all_micros().size(); ++i) {
        const Micro* micro = all_micros()[i / 2];
        const Window window = Window::square(3, 1 + int(i % 2), 1);
        const Shape xs{2, 21, 19, 34}, ws{70, 3, 3, 34}, ys = reference::conv_shape(xs, ws, window);
        std::vector<Bf16> first;
        for (const int threads : {1, 2, 5}) {
            const auto backend = backend_of(*micro, threads);
            std::vector<Bf16> x(xs.elems()), w(ws.elems()), dy(ys.elems());
            std::ranges::copy(random_floats(x.size(), 1), x.begin());
            std::ranges::copy(random_floats(w.size(), 2), w.begin());
            std::ranges::copy(random_floats(dy.size(), 3), dy.begin());
            std::vector<Bf16> results(ys.elems() + xs.elems() + 2 * 70);
            const auto half = [](auto* data, Shape shape) {
                return Tensor(data, shape, Type::kBfloat16);
            };
            Bf16* to = results.data();
            backend->conv2d(half(x.data(), xs), half(w.data(), ws), nullptr, window, false,
                            half(to, ys), nullptr);
            backend->conv2d_grad_x(half(dy.data(), ys), half(w.data(), ws), window, nullptr,
                                   half(to + ys.elems(), xs));
            const Shape rows{2, 1, 1, 34 * 9}, out{2, 1, 1, 70};
            backend->linear(half(x.data(), rows), half(w.data(), {70, 1, 1, 34 * 9}), nullptr,
                            false, half(to + ys.elems() + xs.elems(), out));
            if (first.empty()) first = results;
            CAPTURE(cat(micro->name, ", ", threads, " threads"));
            CHECK(std::ranges::equal(results, first, {}, &Bf16::bits, &Bf16::bits));
        }
    }
}

}  // namespace convoy
