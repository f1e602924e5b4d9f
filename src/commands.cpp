// commands.cpp — what several commands make of their options.
#include "src/commands.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/base/text.h"
#include "src/input.h"

namespace convoy {

ConvMethod parse_conv_method(const std::string& text) {
    return text == "winograd" ? ConvMethod::kWinograd
           : text == "direct" ? ConvMethod::kDirect
                              : ConvMethod::kAuto;
}

Precision parse_precision(const std::string& text) {
    return text == "tf32" ? Precision::kTf32 : text == "bf16" ? Precision::kBf16 : Precision::kFp32;
}

Gemm parse_gemm(const std::string& text) { return text == "cublas" ? Gemm::kCublas : Gemm::kOwn; }

std::unique_ptr<Backend> make_backend(const Config& config) {
    return make_backend(config.device, {.threads = config.threads,
                                        .conv = parse_conv_method(config.conv),
                                        .precision = parse_precision(config.precision),
                                        .gemm = parse_gemm(config.gemm)});
}

int class_count(const Config& config) {
    const std::string& text = config.classes;
    if (text.empty()) return 3;
    if (text.find_first_not_of("0123456789") != std::string::npos)
        return int(split(text, ',').size());
    const int count = text.size() < 8 ? std::stoi(text) : 0;
    if (count < 1 || count > 1 << 20) fail("--classes cannot be ", text, ": 1 to ", 1 << 20);
    return count;
}

std::vector<float*> lend_slots(Backend& backend, const Model& model, int count, bool packed) {
    std::vector<float*> slots;
    for (int i = 0; i < count; ++i)
        slots.push_back(backend.alloc_host(slot_elems(model.max_batch(), model.size(), packed)));
    return slots;
}

int decode_threads(const Config& config) {
    return config.decode_threads > 0 ? config.decode_threads : std::max(1, available_cpus() / 2);
}

}  // namespace convoy
