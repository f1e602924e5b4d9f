// cpu_backend.h — the Backend of the CPU. Ops are done when they return. Each op is in the file of
// its family (conv2d.cpp, pool.cpp, …), the rest in cpu_backend.cpp.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/gemm.h"

namespace convoy {

class CpuBackend : public Backend {
 public:
    // why: the reason for this device, which description() adds.
    CpuBackend(const BackendOptions& options, const Micro& micro, std::string why = "");

    std::string name() const override { return "cpu"; }
    std::string description() const override;
    int threads() const override { return cpu_.pool.size(); }
    Type activations() const override { return type_; }

    float* alloc(size_t elems) override { return owned_.emplace_back(elems).data(); }
    float* alloc_host(size_t elems) override { return alloc(elems); }
    size_t blocks() const override { return owned_.size(); }
    void release_after(size_t count) override { owned_.resize(count); }
    const float* to_device(const float* host, float*, size_t) override { return host; }
    void upload(void* device, const void* host, size_t bytes) override;
    void download(void* host, const void* device, size_t bytes) override {
        upload(host, device, bytes);
    }
    void copy(float* to, const float* from, size_t elems) override;
    void copy(Tensor to, Tensor from) override;
    void fill(float* to, size_t elems, float value) override;
    void synchronize() override {}
    bool host_visible() const override { return true; }
    double measure_peak_gflops() override;

#define OP override
#include "kernels/ops_body.h"
#undef OP

 private:
    void depthwise(Tensor x, Tensor w, const float* b, Window window, bool relu, Tensor y);
    void depthwise_grad_x(Tensor dy, Tensor w, Window window, Tensor mask, Tensor dx);
    void depthwise_grad_w(Tensor x, Tensor dy, Window window, Tensor dw);
    template <class T>
    bool use_winograd(const PatchesOf<T>& x, int K) const;
    // Calls f with the types of x and y: f(float(), float()), or in bf16 f(Bf16(), type of y).
    template <class F>
    void with_product_types(Tensor x, Tensor y, F&& f) {
        ENSURE(x.type == type_, "this backend multiplies ", name_of(type_), ", the tensor ",
               x.shape().text(), " is ", name_of(x.type));
        if (type_ == Type::kFloat32) return f(float(), float());
        with_type(y.type, [&](auto out) { f(Bf16(), out); });
    }

    Cpu cpu_;
    ConvMethod conv_;
    const Type type_;
    std::string why_;
    std::vector<Memory> owned_;
};

}  // namespace convoy
