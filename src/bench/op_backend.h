// op_backend.h — a device that shows each op of a step before it runs. `bench kernels` times the
// ops of real training steps with it, and `bench train --compute` sleeps instead of computing. All
// other calls (memory, copies to and from the host) go to the device behind it.
#pragma once

#include <functional>
#include <string>

#include "kernels/backend.h"
#include "kernels/shapes.h"
#include "src/model/model_text.h"

namespace convoy {

// One call of an op, and its cost as backend.h counts it.
struct Op {
    const char* name;
    std::string shapes;
    double bytes;      // that the op reads and writes at least
    double flops = 0;  // 0: the op is bound by memory
};

class OpBackend : public Backend {
 public:
    // The device must outlive this.
    explicit OpBackend(Backend& device) : to_(device) {}

    // Called instead of every op below. `run` runs the op on the device.
    virtual void call(const Op& op, const std::function<void()>& run) = 0;

    std::string name() const override { return to_.name(); }
    std::string description() const override { return to_.description(); }
    int threads() const override { return to_.threads(); }
    Type activations() const override { return to_.activations(); }
    using Backend::alloc;
    float* alloc(size_t elems) override { return to_.alloc(elems); }
    float* alloc_host(size_t elems) override { return to_.alloc_host(elems); }
    size_t blocks() const override { return to_.blocks(); }
    void release_after(size_t count) override { to_.release_after(count); }
    const float* to_device(const float* host, float* device, size_t elems) override {
        return to_.to_device(host, device, elems);
    }
    void start_upload(const float* host, float* device, size_t elems) override {
        to_.start_upload(host, device, elems);
    }
    void wait_upload() override { to_.wait_upload(); }
    void upload(void* device, const void* host, size_t bytes) override {
        to_.upload(device, host, bytes);
    }
    void download(void* host, const void* device, size_t bytes) override {
        to_.download(host, device, bytes);
    }
    void copy(float* to, const float* from, size_t elems) override { to_.copy(to, from, elems); }
    void fill(float* to, size_t elems, float value) override { to_.fill(to, elems, value); }
    void synchronize() override { to_.synchronize(); }
    size_t device_bytes() const override { return to_.device_bytes(); }
    bool host_visible() const override { return to_.host_visible(); }
    int64_t start_download(float* host, const float* device, size_t elems) override {
        return to_.start_download(host, device, elems);
    }
    void wait_download(int64_t number) override { to_.wait_download(number); }
    double measure_peak_gflops() override { return to_.measure_peak_gflops(); }

    void copy(Tensor to, Tensor from) override {
        call(over("copy", {from, to}), [&] { to_.copy(to, from); });
    }
    void conv2d(Tensor x, Tensor w, const float* b, Window window, bool relu, Tensor y,
                const Moments* of_y) override {
        call(conv2d_op(of_y ? "conv2d_moments" : "conv2d", x, w, y, window),
             [&] { to_.conv2d(x, w, b, window, relu, y, of_y); });
    }
    void conv2d_grad_x(Tensor dy, Tensor w, Window window, Tensor mask, Tensor dx,
                       bool add) override {
        Op op = conv2d_op("conv2d_grad_x", dx, w, dy, window);
        if (add) op.bytes += double(dx.bytes());
        call(op, [&] { to_.conv2d_grad_x(dy, w, window, mask, dx, add); });
    }
    void conv2d_grad_w(Tensor x, Tensor dy, Window window, Tensor dw, float* db) override {
        call(conv2d_op("conv2d_grad_w", x, dw, dy, window),
             [&] { to_.conv2d_grad_w(x, dy, window, dw, db); });
    }
    void linear(Tensor x, Tensor w, const float* b, bool relu, Tensor y) override {
        call(linear_op("linear", x, w, y), [&] { to_.linear(x, w, b, relu, y); });
    }
    void linear_grad_x(Tensor dy, Tensor w, Tensor mask, Tensor dx) override {
        call(linear_op("linear_grad_x", dx, w, dy), [&] { to_.linear_grad_x(dy, w, mask, dx); });
    }
    void linear_grad_w(Tensor x, Tensor dy, Tensor dw, float* db) override {
        Op op = linear_op("linear_grad_w", x, dw, dy);
        op.bytes += double(dw.bytes());  // dw += …
        call(op, [&] { to_.linear_grad_w(x, dy, dw, db); });
    }

    void moments(Tensor x, const Moments& to) override {
        call(over("moments", {x}), [&] { to_.moments(x, to); });
    }
    void batch_norm(Tensor x, GroupBounds groups, const float* mean_rstd, const float* gamma,
                    const float* beta, Tensor residual, Activation act, Tensor y) override {
        call(over("batch_norm", {x, residual, y}),
             [&] { to_.batch_norm(x, groups, mean_rstd, gamma, beta, residual, act, y); });
    }
    // Two passes over memory: first the sums and dresidual, then dx.
    void batch_norm_grad(Tensor x, Tensor y, Tensor dy, GroupBounds groups, const float* gamma,
                         const float* beta, Activation act, const float* mean_rstd, Tensor dx,
                         Tensor dresidual, float* dgamma, float* dbeta) override {
        call(
            over("batch_norm_grad", {x, dy, act && dresidual ? y : Tensor(), dresidual, x, dy, dx}),
            [&] {
                to_.batch_norm_grad(x, y, dy, groups, gamma, beta, act, mean_rstd, dx, dresidual,
                                    dgamma, dbeta);
            });
    }
    void batch_norm_eval(Tensor x, const float* gamma, const float* beta, const float* mean,
                         const float* var, Tensor residual, Activation act, float eps,
                         Tensor y) override {
        call(over("batch_norm_eval", {x, residual, y}),
             [&] { to_.batch_norm_eval(x, gamma, beta, mean, var, residual, act, eps, y); });
    }
    void batch_norm_eval_grad(Tensor x, Tensor y, Tensor dy, const float* gamma, const float* beta,
                              const float* mean, const float* var, Activation act, float eps,
                              Tensor dx, Tensor dresidual) override {
        call(over("batch_norm_eval_grad", {x, dy, dx, act && dresidual ? y : Tensor(), dresidual}),
             [&] {
                 to_.batch_norm_eval_grad(x, y, dy, gamma, beta, mean, var, act, eps, dx,
                                          dresidual);
             });
    }

    void group_norm(Tensor x, int groups, float eps, Tensor y, float* rstd) override {
        call(over("group_norm", {x, y}), [&] { to_.group_norm(x, groups, eps, y, rstd); });
    }
    void group_norm_grad(Tensor y, int groups, const float* rstd, Tensor dy, Tensor dx) override {
        call(over("group_norm_grad", {y, dy, dx}),
             [&] { to_.group_norm_grad(y, groups, rstd, dy, dx); });
    }

    void activate(Tensor x, Activation f) override {
        call(over("activate", {x, x}), [&] { to_.activate(x, f); });
    }
    void activate_grad(Tensor y, Tensor dy, Activation f) override {
        call(over("activate_grad", {y, dy, dy}), [&] { to_.activate_grad(y, dy, f); });
    }
    void scale_channels(Tensor x, Tensor s, Tensor y) override {
        call(over("scale_channels", {x, s, y}), [&] { to_.scale_channels(x, s, y); });
    }
    void scale_channels_grad(Tensor x, Tensor s, Tensor dy, Tensor dx, Tensor ds) override {
        call(over("scale_channels_grad", {x, s, dy, dx, ds}),
             [&] { to_.scale_channels_grad(x, s, dy, dx, ds); });
    }
    void add(Tensor x, Tensor y) override {
        call(over("add", {x, x, y}), [&] { to_.add(x, y); });
    }
    void copy_channels(Tensor to, Tensor from, int first, bool add) override {
        const Tensor &narrow = to.C < from.C ? to : from, &wide = to.C < from.C ? from : to;
        call({"copy_channels",
              cat(narrow.shape().text(), to.C < from.C ? " from " : " into ", wide.C),
              (add ? 3 : 2) * bytes({narrow})},
             [&] { to_.copy_channels(to, from, first, add); });
    }
    void max_pool(Tensor x, Window window, Tensor y, uint8_t* argmax) override {
        call(max_pool_op("max_pool", x, y, window), [&] { to_.max_pool(x, window, y, argmax); });
    }
    void max_pool_grad(Tensor dy, const uint8_t* argmax, Window window, Tensor mask,
                       Tensor dx) override {
        call(max_pool_op("max_pool_grad", dx, dy, window),
             [&] { to_.max_pool_grad(dy, argmax, window, mask, dx); });
    }
    void avg_pool(Tensor x, Tensor y) override {
        call({"avg_pool", cat(x.shape().text(), " to ", y.H, "x", y.W), bytes({x, y})},
             [&] { to_.avg_pool(x, y); });
    }
    void avg_pool_grad(Tensor dy, Tensor dx, bool add) override {
        call({"avg_pool_grad", cat(dx.shape().text(), " to ", dy.H, "x", dy.W), bytes({dx, dy})},
             [&] { to_.avg_pool_grad(dy, dx, add); });
    }
    void dropout(Tensor x, float p, const Draws& draws, std::span<const uint64_t> sample_ids,
                 uint16_t purpose) override {
        call(over("dropout", {x, x}), [&] { to_.dropout(x, p, draws, sample_ids, purpose); });
    }

    void softmax_cross_entropy(Tensor logits, std::span<const int32_t> labels, float smoothing,
                               Tensor dlogits, float* sums, const MixedLabels& mixed) override {
        call(over("softmax_cross_entropy", {logits, dlogits}),
             [&] { to_.softmax_cross_entropy(logits, labels, smoothing, dlogits, sums, mixed); });
    }
    void softmax(Tensor x, Tensor y) override {
        call(over("softmax", {x, y}), [&] { to_.softmax(x, y); });
    }

    void check_finite(const float* x, size_t n, const float* images, StepState* step) override {
        call(arena_op("check_finite", n, 1), [&] { to_.check_finite(x, n, images, step); });
    }
    void sum_squares(const float* x, size_t n, float* sum) override {
        call(arena_op("sum_squares", n, 1), [&] { to_.sum_squares(x, n, sum); });
    }
    void clip(const float* squares, float limit, StepState* step) override {
        to_.clip(squares, limit, step);  // a few numbers
    }
    void sgd(float* w, const float* g, float* v, size_t n, const StepState* step, float momentum,
             float weight_decay, bool nesterov, float rate) override {
        call(arena_op("sgd", n, 5),
             [&] { to_.sgd(w, g, v, n, step, momentum, weight_decay, nesterov, rate); });
    }
    void adamw(float* w, const float* g, float* m, float* v, size_t n, const StepState* step,
               float beta1, float beta2, float eps, float weight_decay, float rate) override {
        call(arena_op("adamw", n, 7),
             [&] { to_.adamw(w, g, m, v, n, step, beta1, beta2, eps, weight_decay, rate); });
    }
    void average(float* mean, const float* w, size_t n, const StepState* step) override {
        call(arena_op("average", n, 3), [&] { to_.average(mean, w, n, step); });
    }
    void moving_mean(float* w, const float* sums, size_t n, const StepState* step,
                     float part) override {
        call(arena_op("moving_mean", n, 3), [&] { to_.moving_mean(w, sums, n, step, part); });
    }
    void axpby(float a, const float* x, float b, float* y, size_t n) override {
        call(arena_op("axpby", n, b == 0 ? 2 : 3), [&] { to_.axpby(a, x, b, y, n); });
    }

 private:
    static double bytes(std::initializer_list<Tensor> tensors) {
        double sum = 0;
        for (const Tensor& one : tensors) sum += one ? double(one.bytes()) : 0;
        return sum;
    }
    // An op that only reads and writes these tensors; its shape is that of the first one.
    static Op over(const char* name, std::initializer_list<Tensor> tensors) {
        return {name, tensors.begin()->shape().text(), bytes(tensors)};
    }
    // The same for all three ops. x, w, y: each tensor or its gradient.
    static Op conv2d_op(const char* name, Tensor x, Tensor w, Tensor y, const Window& window) {
        const bool depthwise = is_depthwise(x, w);
        return {name,
                cat(x.shape().text(), " to ", y.C, ", ", window_text(window),
                    depthwise ? " depthwise" : ""),
                bytes({x, w, y}),
                depthwise ? 0 : 2.0 * double(y.elems()) * double(w.shape().row_elems())};
    }
    static Op linear_op(const char* name, Tensor x, Tensor w, Tensor y) {
        const Shape row{x.N, 1, 1, int(x.shape().row_elems())};
        return {name, cat(row.text(), " to ", y.C), bytes({x, w, y}),
                2.0 * double(y.elems()) * double(row.C)};
    }
    static Op max_pool_op(const char* name, Tensor x, Tensor y, const Window& window) {
        return {name, cat(x.shape().text(), ", ", window_text(window)),
                bytes({x, y}) + double(y.elems())};
    }
    // numbers: floats read and written for each of n floats of an arena.
    static Op arena_op(const char* name, size_t n, int numbers) {
        return {name, cat(n, " parameters"), 4.0 * numbers * double(n)};
    }

    Backend& to_;
};

}  // namespace convoy
