// params.cpp — the layout of the arenas, and the start values.
#include "src/params.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "src/base/random.h"

namespace convoy {
namespace {

constexpr size_t kAlign = 16;  // floats: 64 bytes

size_t aligned(size_t elems) { return (elems + kAlign - 1) / kAlign * kAlign; }

// Elements [first, last) of a row, first a multiple of 4. All four draws of a block are used; a
// pair of them gives two normals (Box and Muller 1958).
void draw(const Init& init, uint64_t key, size_t first, size_t last, float* out) {
    for (size_t i = first; i < last; i += 4) {
        Random random(key, 0, i / 4, kInit);
        float four[4];
        for (int pair = 0; pair < 4; pair += 2) {
            const float u = random.uniform(), v = random.uniform();
            if (init.kind == Init::kUniform) {
                four[pair] = (2 * u - 1) * init.value;
                four[pair + 1] = (2 * v - 1) * init.value;
            } else {
                const float radius = init.value * std::sqrt(-2 * std::log(1 - u));  // 1 - u > 0
                const float angle = 2 * float(M_PI) * v;
                four[pair] = radius * std::cos(angle);
                four[pair + 1] = radius * std::sin(angle);
            }
        }
        std::copy_n(four, std::min<size_t>(4, last - i), out + i);
    }
}

// The row's start values on all threads; each element depends on its number alone.
void draw_parallel(const Init& init, uint64_t key, size_t n, float* out, int threads) {
    constexpr size_t kSmallest = 1 << 16;  // fewer are not worth a thread
    const size_t parts = std::clamp<size_t>(n / kSmallest, 1, std::max(threads, 1));
    const size_t share = (n / parts + 3) / 4 * 4;
    std::vector<std::thread> pool;
    for (size_t part = 1; part < parts; ++part)
        pool.emplace_back([&, part] {
            const size_t last = part + 1 == parts ? n : (part + 1) * share;
            draw(init, key, std::min(part * share, n), last, out);
        });
    draw(init, key, 0, parts == 1 ? n : share, out);
    for (std::thread& thread : pool) thread.join();
}

}  // namespace

Param& Params::add(Param row) {
    if (find(row.name)) fail("two parameters are named '", row.name, "'");
    ENSURE(!weights, "row ", row.name, " comes after allocate");
    rows_.push_back(std::make_unique<Param>(std::move(row)));
    return *rows_.back();
}

void Params::allocate(Backend& backend, uint64_t seed) {
    ENSURE(!weights, "allocated twice");
    enum Part { kTrained, kRunning, kFrozen };
    const auto part_of = [](const Param& row) {
        return row.frozen ? kFrozen : row.running ? kRunning : kTrained;
    };
    std::stable_sort(rows_.begin(), rows_.end(),
                     [&](const auto& a, const auto& b) { return part_of(*a) < part_of(*b); });
    size_t end = 0;
    for (auto& row : rows_) {
        row->offset = row->joined ? end : aligned(end);
        end = row->offset + row->shape.elems();
        const Part part = part_of(*row);
        if (part == kTrained) trained_size = aligned(end);
        if (part <= kRunning) updated_size = aligned(end);
        weights_size = aligned(end);
    }
    updated_size = std::max(updated_size, trained_size);
    grads_size = updated_size + Tail::kSize;
    weights = backend.alloc(weights_size);
    grads = backend.alloc(grads_size);

    std::vector<float> staged;
    for (auto& row : rows_) {
        row->value = Tensor(weights + row->offset, row->shape);
        if (!row->frozen) row->grad = Tensor(grads + row->offset, row->shape);
        const size_t n = row->shape.elems();
        if (row->init.kind == Init::kConstant) {
            if (row->init.value != 0) backend.fill(row->value.data, n, row->init.value);
            continue;
        }
        const uint64_t key = hash_bytes(row->name, hash_bytes(cat(seed, ":")));
        float* out = row->value.data;
        if (!backend.host_visible()) staged.resize(n), out = staged.data();
        draw_parallel(row->init, key, n, out, backend.threads());
        if (!backend.host_visible()) backend.upload(row->value.data, out, n * sizeof(float));
    }
    backend.synchronize();
}

std::vector<Param*> Params::rows() {
    std::vector<Param*> all;
    for (auto& row : rows_) all.push_back(row.get());
    return all;
}

Param* Params::find(const std::string& name) {
    for (auto& row : rows_)
        if (row->name == name) return row.get();
    return nullptr;
}

size_t Params::model_elems() const {
    size_t n = 0;
    for (auto& row : rows_)
        if (!row->running) n += row->shape.elems();
    return n;
}

size_t Params::trained_elems() const {
    size_t n = 0;
    for (auto& row : rows_)
        if (!row->running && !row->frozen) n += row->shape.elems();
    return n;
}

}  // namespace convoy
