// cpu_backend.h — the Backend of this machine's processors. Ops are done when they return.
//
// Each op is in the file of its family: image.cpp, conv2d.cpp, linear.cpp, batch_norm.cpp,
// pool.cpp, elementwise.cpp, loss.cpp, optimizer.cpp; the rest is in cpu_backend.cpp.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/gemm.h"

namespace convoy {

class CpuBackend : public Backend {
 public:
    // why: what description() adds, as the reason why it is this device.
    CpuBackend(const BackendOptions& options, const Micro& micro, std::string why = "");

    std::string name() const override { return "cpu"; }
    std::string description() const override;
    int threads() const override { return cpu_.pool.size(); }

    float* alloc(size_t elems) override;
    float* alloc_host(size_t elems) override { return alloc(elems); }
    const float* to_device(const float* host, float*, size_t) override { return host; }
    void upload(void* device, const void* host, size_t bytes) override;
    void download(void* host, const void* device, size_t bytes) override;
    void copy(float* to, const float* from, size_t elems) override;
    void copy(Tensor to, Tensor from) override;
    void fill(float* to, size_t elems, float value) override;
    void synchronize() override {}
    bool host_visible() const override { return true; }
    double measure_peak_gflops() override;

    void resize(std::span<const uint8_t> packed, std::span<const Picture> pictures,
                const float* values, Tensor y) override;

    void conv2d(Tensor x, Tensor w, const float* b, Window window, bool relu, Tensor y,
                const Moments* of_y) override;
    void conv2d_grad_x(Tensor dy, Tensor w, Window window, Tensor mask, Tensor dx) override;
    void conv2d_grad_w(Tensor x, Tensor dy, Window window, Tensor dw, float* db) override;

    void linear(Tensor x, Tensor w, const float* b, bool relu, Tensor y) override;
    void linear_grad_x(Tensor dy, Tensor w, Tensor mask, Tensor dx) override;
    void linear_grad_w(Tensor x, Tensor dy, Tensor dw, float* db) override;

    void moments(Tensor x, const Moments& to) override;
    void batch_norm(Tensor x, GroupBounds groups, const float* mean_rstd, const float* gamma,
                    const float* beta, Tensor residual, bool relu, Tensor y) override;
    void batch_norm_grad(Tensor x, Tensor y, Tensor dy, GroupBounds groups, const float* gamma,
                         bool relu, const float* mean_rstd, Tensor dx, Tensor dresidual,
                         float* dgamma, float* dbeta) override;
    void batch_norm_eval(Tensor x, const float* gamma, const float* beta, const float* mean,
                         const float* var, Tensor residual, bool relu, float eps,
                         Tensor y) override;
    void batch_norm_eval_grad(Tensor y, Tensor dy, const float* gamma, const float* var, bool relu,
                              float eps, Tensor dx, Tensor dresidual) override;

    void relu(Tensor x) override;
    void relu_grad(Tensor y, Tensor dy) override;
    void add(Tensor x, Tensor y) override;
    void max_pool(Tensor x, Window window, Tensor y, uint8_t* argmax) override;
    void max_pool_grad(Tensor dy, const uint8_t* argmax, Window window, Tensor mask,
                       Tensor dx) override;
    void avg_pool(Tensor x, Tensor y) override;
    void avg_pool_grad(Tensor dy, Tensor dx) override;
    void dropout(Tensor x, float p, const Draws& draws, std::span<const uint64_t> sample_ids,
                 uint16_t purpose) override;

    void softmax_cross_entropy(Tensor logits, std::span<const int32_t> labels, float smoothing,
                               Tensor dlogits, float* sums) override;
    void softmax(Tensor x, Tensor y) override;

    void check_finite(const float* x, size_t n, const float* images, StepState* step) override;
    void sgd(float* w, const float* g, float* v, size_t n, const StepState* step, float momentum,
             float weight_decay, bool nesterov) override;
    void adamw(float* w, const float* g, float* m, float* v, size_t n, const StepState* step,
               float beta1, float beta2, float eps, float weight_decay) override;
    void moving_mean(float* w, const float* sums, size_t n, const StepState* step,
                     float part) override;
    void axpby(float a, const float* x, float b, float* y, size_t n) override;

 private:
    bool use_winograd(const Patches& x, int K) const;

    Cpu cpu_;
    ConvMethod conv_;
    std::string why_;
    std::vector<Memory> owned_;
};

}  // namespace convoy
