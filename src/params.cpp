// params.cpp — the layout of the arenas, and the start values.
#include "src/params.h"

#include <algorithm>
#include <bit>
#include <climits>

#include "src/base/random.h"

namespace convoy {
namespace {

constexpr size_t kAlign = 16;  // floats: 64 bytes

size_t aligned(size_t elems) { return (elems + kAlign - 1) / kAlign * kAlign; }

}  // namespace

uint64_t checksum(std::span<const float> values) {
    // Four chains of multiply and add, so that one need not wait for the other.
    constexpr uint64_t kPrime = 0x9E3779B97F4A7C15ull;  // 2^64 divided by the golden ratio
    uint64_t chain[4] = {1, 2, 3, 4};
    for (size_t i = 0; i < values.size(); ++i) {
        const uint64_t bits = std::bit_cast<uint32_t>(values[i]);
        chain[i % 4] = (chain[i % 4] ^ bits) * kPrime;
    }
    uint64_t sum = values.size();
    for (uint64_t c : chain) sum = (sum ^ (c >> 32) ^ c) * kPrime;
    return sum;
}

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
    ENSURE(weights_size <= INT_MAX, weights_size, " weights");
    weights = backend.alloc(weights_size);
    grads = backend.alloc(updated_size + sizeof(StepBlock) / sizeof(float));

    const Type type = backend.activations();
    if (type != Type::kFloat32) copies_ = backend.alloc({1, 1, 1, int(weights_size)}, type);
    std::vector<float> staged;
    for (auto& row : rows_) {
        row->value = row->operand = Tensor(weights + row->offset, row->shape);
        if (copies_)
            row->operand = {static_cast<char*>(copies_.data) + row->offset * bytes_of(type),
                            row->shape, type};
        if (!row->frozen) row->grad = Tensor(grads + row->offset, row->shape);
        const size_t n = row->shape.elems();
        if (row->init.kind == Init::kConstant) {
            if (row->init.value != 0) backend.fill(row->value.floats(), n, row->init.value);
            continue;
        }
        const uint64_t key = hash_bytes(row->name, hash_bytes(cat(seed, ":")));
        float* out = row->value.floats();
        if (!backend.host_visible()) staged.resize(n), out = staged.data();
        draw_start_values(row->init, key, n, out, backend.threads());
        if (!backend.host_visible()) backend.upload(row->value.floats(), out, n * sizeof(float));
    }
    backend.synchronize();
}

void Params::refresh(Backend& backend) {
    if (copies_) backend.copy(copies_, Tensor(weights, copies_.shape()));
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
