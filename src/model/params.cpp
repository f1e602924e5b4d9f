// params.cpp — the layout of the arenas, and the start values.
#include "src/model/params.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>

#include "src/base/random.h"

namespace convoy {

static size_t aligned(size_t elems) { return (elems + 15) / 16 * 16; }  // to 64 bytes

uint64_t checksum(std::span<const float> values) {
    constexpr uint64_t kPrime = 0x9E3779B97F4A7C15ull;  // 2^64 divided by the golden ratio
    const auto mix = [](uint64_t sum, uint64_t bits) {
        return std::rotl((sum ^ bits) * kPrime, 31);
    };
    // Four independent chains of two floats hide the latency of a multiplication.
    uint64_t a = 1, b = 2, c = 3, d = 4, words[4];
    size_t i = 0;
    for (; i + 8 <= values.size(); i += 8) {
        std::memcpy(words, &values[i], sizeof words);
        a = mix(a, words[0]), b = mix(b, words[1]), c = mix(c, words[2]), d = mix(d, words[3]);
    }
    for (; i < values.size(); ++i) a = mix(a, std::bit_cast<uint32_t>(values[i]));
    return mix(mix(mix(mix(mix(values.size(), a), b), c), d), 0);
}

Param& Params::add(Param param) {
    Param* const found = find(param.name);
    if (weights) {
        ENSURE(found && found->shape == param.shape, "another model has no param ", param.name);
        return *found;
    }
    if (found) fail("two parameters are named '", param.name, "'");
    if (!param.running) model_elems += param.shape.elems();
    if (!param.running && !param.frozen) trained_elems += param.shape.elems();
    params_.push_back(std::make_unique<Param>(std::move(param)));
    return *params_.back();
}

void Params::allocate(Backend& backend, uint64_t seed, bool draw_all, float* shared) {
    ENSURE(!weights, "allocated twice");
    enum Part { kTrained, kRunning, kFrozen };
    const auto part_of = [](const Param& param) {
        return param.frozen ? kFrozen : param.running ? kRunning : kTrained;
    };
    std::stable_sort(params_.begin(), params_.end(),
                     [&](const auto& a, const auto& b) { return part_of(*a) < part_of(*b); });
    size_t end = 0;
    for (auto& param : params_) {
        param->offset = param->joined ? end : aligned(end);
        end = param->offset + param->shape.elems();
        const Part part = part_of(*param);
        if (part == kTrained) trained_size = aligned(end);
        if (part <= kRunning) updated_size = aligned(end);
        weights_size = aligned(end);
    }
    updated_size = std::max(updated_size, trained_size);
    state_size = trained_size;
    grads_size = updated_size + StepCounters::kSize;
    owned = {{0, updated_size}};
    is_whole = std::ranges::all_of(params_, [](const auto& param) { return param->own; });
    if (!is_whole) {
        owned.clear();
        for (const Part part : {kTrained, kRunning}) {
            Range range{SIZE_MAX, 0};
            for (auto& param : params_)
                if (param->own && part_of(*param) == part)
                    range = {std::min(range.begin, param->offset),
                             aligned(param->offset + param->shape.elems())};
            if (range.end > 0) owned.push_back(range);
        }
    }
    ENSURE(weights_size <= INT_MAX, weights_size, " weights");
    weights = shared ? shared : backend.alloc(weights_size);
    grads = backend.alloc(updated_size + sizeof(StepBlock) / sizeof(float));

    const Type type = backend.activations();
    if (type != Type::kFloat32) copies_ = backend.alloc({1, 1, 1, int(weights_size)}, type);
    std::vector<float> staged;
    for (auto& param : params_) {
        param->value = param->operand = Tensor(weights + param->offset, param->shape);
        if (copies_)
            param->operand = {static_cast<char*>(copies_.data) + param->offset * bytes_of(type),
                              param->shape, type};
        if (!param->frozen) param->grad = Tensor(grads + param->offset, param->shape);
        const size_t n = param->shape.elems();
        if (shared || (!param->own && !draw_all)) continue;
        if (param->init.kind == Init::kConstant) {
            if (param->init.value != 0) backend.fill(param->value.floats(), n, param->init.value);
            continue;
        }
        const uint64_t key = hash_bytes(param->name, hash_bytes(cat(seed, ":")));
        float* out = param->value.floats();
        if (!backend.host_visible()) staged.resize(n), out = staged.data();
        draw_start_values(param->init, key, n, out, backend.threads());
        if (!backend.host_visible()) backend.upload(param->value.floats(), out, n * sizeof(float));
    }
    backend.synchronize();
}

void Params::refresh(Backend& backend) {
    if (!copies_) return;
    if (is_whole) return backend.copy(copies_, Tensor(weights, copies_.shape()));
    for (auto& param : params_)
        if (param->own) backend.copy(param->operand, param->value);
}

void Params::clear_grads(Backend& backend) {
    for (const Range& range : owned) backend.fill(grads + range.begin, range.size(), 0);
}

std::vector<Param*> Params::all() {
    std::vector<Param*> all;
    for (auto& param : params_) all.push_back(param.get());
    return all;
}

std::vector<Param*> Params::backward_order() {
    std::vector<Param*> order = all();
    std::erase_if(
        order, [](const Param* param) { return param->running || param->frozen || !param->own; });
    std::reverse(order.begin(), order.end());
    return order;
}

Param* Params::find(const std::string& name) {
    for (auto& param : params_)
        if (param->name == name) return param.get();
    return nullptr;
}

}  // namespace convoy
