// image.cpp — pixels become the network's input: resized by tables of weights, then looked up.
//
// One image a thread at a time. Input rows are resized across as they come into the reach of an
// output row, and kept in a ring of as many rows as an output row takes; of neighbouring output
// rows each finds most of its rows there. Plain loops: decode threads that leave this to the
// backend pay more here (data/resize_passes.cpp has the same sums in vectors).
#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/numbers.h"
#include "kernels/shapes.h"

namespace convoy {

namespace {

constexpr uint32_t kHalf = 1u << (Picture::kWeightBits - 1);

uint8_t to_byte(uint32_t sum) { return uint8_t(std::min(sum >> Picture::kWeightBits, 255u)); }

// One row of a table: which places of the input count for a place of the output.
struct Place {
    int first, count;
    const int32_t* weights;
    Place(const uint8_t* table, int taps, int place) {
        const auto* row = reinterpret_cast<const int32_t*>(table) + size_t(place) * (2 + taps);
        first = row[0], count = row[1], weights = row + 2;
    }
};

// A row of pixels to Q pixels.
template <int kC>
void resize_across(const uint8_t* pixels, const uint8_t* columns, int taps, int Q, uint8_t* out) {
    for (int q = 0; q < Q; ++q, out += kC) {
        const Place place(columns, taps, q);
        const uint8_t* from = pixels + size_t(place.first) * kC;
        uint32_t sums[] = {kHalf, kHalf, kHalf};
        for (int k = 0; k < place.count; ++k, from += kC)
            for (int c = 0; c < kC; ++c) sums[c] += uint32_t(place.weights[k]) * from[c];
        for (int c = 0; c < kC; ++c) out[c] = to_byte(sums[c]);
    }
}

size_t ring_bytes(const Picture& picture, Tensor y) { return size_t(picture.row_taps) * y.W * y.C; }

// ring: ring_bytes(); sums: Q·C.
template <class T>
void resize_image(const uint8_t* packed, const Picture& picture, const float* values, Tensor y,
                  uint32_t* sums, uint8_t* ring) {
    const size_t C = size_t(y.C), n = size_t(y.W) * C;
    const auto across = C == 1 ? resize_across<1> : resize_across<3>;
    int next = 0;  // input rows before it were resized across, or nobody needs them
    for (int p = 0; p < y.H; ++p) {
        const Place place(packed + picture.rows, picture.row_taps, p);
        const auto in_ring = [&](int h) { return ring + size_t(h % picture.row_taps) * n; };
        for (next = std::max(next, place.first); next < place.first + place.count; ++next)
            across(packed + picture.pixels + size_t(next) * picture.W * C, packed + picture.columns,
                   picture.column_taps, y.W, in_ring(next));
        std::fill_n(sums, n, kHalf);
        for (int k = 0; k < place.count; ++k) {
            const uint8_t* from = in_ring(place.first + k);
            const uint32_t weight = uint32_t(place.weights[k]);
            for (size_t i = 0; i < n; ++i) sums[i] += weight * from[i];
        }
        T* out = numbers<T>(y) + size_t(p) * n;
        for (size_t i = 0; i < n; ++i) out[i] = values[i % C * 256 + to_byte(sums[i])];
    }
}

}  // namespace

void CpuBackend::resize(std::span<const uint8_t> packed, std::span<const Picture> pictures,
                        const float* values, Tensor y) {
    check_resize(packed.size(), pictures, y);
    size_t ring = 0;
    for (const Picture& picture : pictures) ring = std::max(ring, ring_bytes(picture, y));
    const size_t sums = size_t(y.W) * y.C;
    float* const* scratch = cpu_.for_threads(sums + ring / sizeof(float) + 1);
    with_type(y.type, [&]<class T>(T) {
        cpu_.pool.for_each(y.N, [&](int n, int thread) {
            T* image = numbers<T>(y) + size_t(n) * y.shape().row_elems();
            auto* room = reinterpret_cast<uint32_t*>(scratch[thread]);
            resize_image<T>(packed.data(), pictures[size_t(n)], values,
                            {image, {1, y.H, y.W, y.C}, y.type}, room,
                            reinterpret_cast<uint8_t*>(room + sums));
        });
    });
}

}  // namespace convoy
