// through_device.h — a Backend whose ops take host memory, and run on a device that cannot read it.
//
// So each op test, written for the CPU, runs on every device. The arguments of an op are copied to
// the device between guards of 64 sentinels. Then outputs are copied back and the guards checked.
// Arguments that share memory on the host share it on the device.
//
// If activations are bf16, tests still pass and receive floats, which are rounded by the copy.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <list>

#include "kernels/backend.h"
#include "tests/device.h"
#include "tests/reference.h"
#include "tests/support.h"

namespace convoy {

class ThroughDevice final : public Backend {
 public:
    explicit ThroughDevice(std::unique_ptr<Backend> device) : device_(std::move(device)) {}

    std::string name() const override { return device_->name(); }
    std::string description() const override { return device_->description(); }
    int threads() const override { return device_->threads(); }
    float* alloc(size_t elems) override { return device_->alloc_host(elems); }
    float* alloc_host(size_t elems) override { return device_->alloc_host(elems); }
    size_t blocks() const override { return device_->blocks(); }
    void release_after(size_t count) override { device_->release_after(count); }
    const float* to_device(const float* host, float*, size_t) override { return host; }
    void upload(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
    void download(void* to, const void* from, size_t n) override { std::memcpy(to, from, n); }
    void copy(float* to, const float* from, size_t n) override {
        Call call(*this);
        device_->copy(call.out(to, n), call.in(from, n), n);
    }
    void copy(Tensor to, Tensor from) override {
        Call c(*this);
        device_->copy(c.out_as_is(to), c.in_as_is(from));
    }
    void fill(float* to, size_t elems, float value) override {
        Call call(*this);
        device_->fill(call.out(to, elems), elems, value);
    }
    void synchronize() override { device_->synchronize(); }
    bool host_visible() const override { return true; }

    void conv2d(Tensor x, Tensor w, const float* b, Window window, bool relu, Tensor y,
                const Moments* of_y = nullptr) override {
        Call c(*this);
        const Moments there = of_y ? c.out(*of_y, y.C) : Moments{};
        device_->conv2d(c.in(x), c.in(w), c.in(b, w.N), window, relu, c.out(y),
                        of_y ? &there : nullptr);
    }
    void conv2d_grad_x(Tensor dy, Tensor w, Window window, Tensor mask, Tensor dx,
                       bool add) override {
        Call c(*this);
        device_->conv2d_grad_x(c.in(dy), c.in(w), window, c.in(mask), c.out(dx), add);
    }
    void conv2d_grad_w(Tensor x, Tensor dy, Window window, Tensor dw, float* db) override {
        Call c(*this);
        device_->conv2d_grad_w(c.in(x), c.in(dy), window, c.out_floats(dw), c.out(db, dw.N));
    }
    void linear(Tensor x, Tensor w, const float* b, bool relu, Tensor y) override {
        Call c(*this);
        device_->linear(c.in(x), c.in(w), c.in(b, w.N), relu, c.out(y));
    }
    void linear_grad_x(Tensor dy, Tensor w, Tensor mask, Tensor dx) override {
        Call c(*this);
        device_->linear_grad_x(c.in(dy), c.in(w), c.in(mask), c.out(dx));
    }
    void linear_grad_w(Tensor x, Tensor dy, Tensor dw, float* db) override {
        Call c(*this);
        device_->linear_grad_w(c.in(x), c.in(dy), c.out_floats(dw), c.out(db, dw.N));
    }
    void moments(Tensor x, const Moments& to) override {
        Call c(*this);
        device_->moments(c.in(x), c.out(to, x.C));
    }
    void batch_norm(Tensor x, GroupBounds groups, const float* mean_rstd, const float* gamma,
                    const float* beta, Tensor residual, Activation act, Tensor y) override {
        Call c(*this);
        device_->batch_norm(c.in(x), groups, c.in(mean_rstd, kept(groups, x.C)), c.in(gamma, x.C),
                            c.in(beta, x.C), c.in(residual), act, c.out(y));
    }
    void batch_norm_grad(Tensor x, Tensor y, Tensor dy, GroupBounds groups, const float* gamma,
                         const float* beta, Activation act, const float* mean_rstd, Tensor dx,
                         Tensor dresidual, float* dgamma, float* dbeta) override {
        Call c(*this);
        device_->batch_norm_grad(c.in(x), c.in(y), c.in(dy), groups, c.in(gamma, x.C),
                                 c.in(beta, x.C), act, c.in(mean_rstd, kept(groups, x.C)),
                                 c.out(dx), c.out(dresidual), c.out(dgamma, x.C),
                                 c.out(dbeta, x.C));
    }
    void batch_norm_eval(Tensor x, const float* gamma, const float* beta, const float* mean,
                         const float* var, Tensor residual, Activation act, float eps,
                         Tensor y) override {
        Call c(*this);
        device_->batch_norm_eval(c.in(x), c.in(gamma, x.C), c.in(beta, x.C), c.in(mean, x.C),
                                 c.in(var, x.C), c.in(residual), act, eps, c.out(y));
    }
    void batch_norm_eval_grad(Tensor x, Tensor y, Tensor dy, const float* gamma, const float* beta,
                              const float* mean, const float* var, Activation act, float eps,
                              Tensor dx, Tensor dresidual) override {
        Call c(*this);
        device_->batch_norm_eval_grad(c.in(x), c.in(y), c.in(dy), c.in(gamma, x.C), c.in(beta, x.C),
                                      c.in(mean, x.C), c.in(var, x.C), act, eps, c.out(dx),
                                      c.out(dresidual));
    }
    void group_norm(Tensor x, int groups, float eps, Tensor y, float* rstd) override {
        Call c(*this);
        const size_t count = size_t(x.N) * size_t(std::max(groups, 0));
        device_->group_norm(c.in(x), groups, eps, c.out(y), c.out(rstd, count));
    }
    void group_norm_grad(Tensor y, int groups, const float* rstd, Tensor dy, Tensor dx) override {
        Call c(*this);
        const size_t count = size_t(y.N) * size_t(std::max(groups, 0));
        device_->group_norm_grad(c.in(y), groups, c.in(rstd, count), c.in(dy), c.out(dx));
    }
    void activate(Tensor x, Activation f) override {
        Call c(*this);
        device_->activate(c.out(x), f);
    }
    void activate_grad(Tensor of, Tensor dy, Activation f) override {
        Call c(*this);
        device_->activate_grad(c.in(of), c.out(dy), f);
    }
    void scale_channels(Tensor x, Tensor s, Tensor y) override {
        Call c(*this);
        device_->scale_channels(c.in(x), c.in(s), c.out(y));
    }
    void scale_channels_grad(Tensor x, Tensor s, Tensor dy, Tensor dx, Tensor ds) override {
        Call c(*this);
        device_->scale_channels_grad(c.in(x), c.in(s), c.in(dy), c.out(dx), c.out(ds));
    }
    void copy_channels(Tensor to, Tensor from, int first, bool add) override {
        Call c(*this);
        device_->copy_channels(c.out(to), c.in(from), first, add);
    }
    void add(Tensor x, Tensor y) override {
        Call c(*this);
        device_->add(c.out(x), c.in(y));
    }
    void max_pool(Tensor x, Window window, Tensor y, uint8_t* argmax) override {
        Call c(*this);
        device_->max_pool(c.in(x), window, c.out(y), c.out(argmax, y.elems()));
    }
    void max_pool_grad(Tensor dy, const uint8_t* argmax, Window window, Tensor mask,
                       Tensor dx) override {
        Call c(*this);
        device_->max_pool_grad(c.in(dy), c.in(argmax, dy.elems()), window, c.in(mask), c.out(dx));
    }
    void avg_pool(Tensor x, Tensor y) override {
        Call c(*this);
        device_->avg_pool(c.in(x), c.out(y));
    }
    void avg_pool_grad(Tensor dy, Tensor dx, bool add) override {
        Call c(*this);
        device_->avg_pool_grad(c.in(dy), c.out(dx), add);
    }
    void dropout(Tensor x, float p, const Draws& draws, std::span<const uint64_t> sample_ids,
                 uint16_t purpose) override {
        Call c(*this);
        device_->dropout(c.out(x), p, draws, sample_ids, purpose);
    }
    void softmax_cross_entropy(Tensor logits, std::span<const int32_t> labels, float smoothing,
                               Tensor dlogits, float* sums, const MixedLabels& mixed) override {
        Call c(*this);
        device_->softmax_cross_entropy(c.in_floats(logits), labels, smoothing, c.out(dlogits),
                                       c.out(sums, BatchSums::kFloats), mixed);
    }
    void softmax(Tensor x, Tensor y) override {
        Call c(*this);
        device_->softmax(c.in_floats(x), c.out_floats(y));
    }
    void check_finite(const float* x, size_t n, const float* images, StepState* step) override {
        Call c(*this);
        device_->check_finite(c.in(x, n), n, c.in(images, 1), c.out(step, 1));
    }
    void sum_squares(const float* x, size_t n, float* sum) override {
        Call c(*this);
        device_->sum_squares(c.in(x, n), n, c.out(sum, 1));
    }
    void clip(const float* squares, float limit, StepState* step) override {
        Call c(*this);
        device_->clip(c.in(squares, 1), limit, c.out(step, 1));
    }
    void sgd(float* w, const float* g, float* v, size_t n, const Segments& segments,
             const StepState* step, float momentum, bool nesterov) override {
        Call c(*this);
        device_->sgd(c.out(w, n), c.in(g, n), c.out(v, n), n, segments, c.in(step, 1), momentum,
                     nesterov);
    }
    void adamw(float* w, const float* g, float* m, float* v, size_t n, const Segments& segments,
               const StepState* step, float beta1, float beta2, float eps) override {
        Call c(*this);
        device_->adamw(c.out(w, n), c.in(g, n), c.out(m, n), c.out(v, n), n, segments,
                       c.in(step, 1), beta1, beta2, eps);
    }
    void average(float* mean, const float* w, size_t n, const StepState* step) override {
        Call c(*this);
        device_->average(c.out(mean, n), c.in(w, n), n, c.in(step, 1));
    }
    void moving_mean(float* w, const float* sums, size_t n, const StepState* step,
                     float part) override {
        Call c(*this);
        device_->moving_mean(c.out(w, n), c.in(sums, n), n, c.in(step, 1), part);
    }
    void axpby(float a, const float* x, float b, float* y, size_t n) override {
        Call c(*this);
        device_->axpby(a, c.in(x, n), b, c.out(y, n), n);
    }

 private:
    static size_t kept(GroupBounds groups, int C) { return (groups.size() - 1) * 2 * size_t(C); }

    // The arguments of one call, copied to the device and back.
    class Call {
     public:
        explicit Call(ThroughDevice& owner) : owner_(owner) {}
        Call(const Call&) = delete;
        ~Call() {
            for (Block& block : blocks_) {
                owner_.device_->download(block.staged.data(), block.there, block.staged.size());
                const char* data = block.staged.data();
                bool intact = true;
                for (size_t i = 0; i < kGuard; ++i)
                    intact = intact && data[i] == kGuardByte &&
                             data[kGuard + block.bytes + i] == kGuardByte;
                CHECK_MESSAGE(intact, "an operation wrote outside of its output on ",
                              owner_.device_->name());
                if (block.comes_back && block.bytes)
                    std::memcpy(block.here, data + kGuard, block.bytes);
            }
            for (const Halves& h : halves_)
                for (size_t i = 0; h.comes_back && i < h.bits.size(); ++i)
                    h.here[i] = std::bit_cast<float>(uint32_t(h.bits[i]) << 16);
            owner_.free_.splice(owner_.free_.end(), owner_.used_);
        }

        template <class T>
        T* in(const T* here, size_t n) {
            return const_cast<T*>(place(here, n, false));
        }
        template <class T>
        T* out(T* here, size_t n) {
            return const_cast<T*>(place(here, n, true));
        }
        Tensor in(Tensor t) { return activation(t, false); }
        Tensor out(Tensor t) { return activation(t, true); }
        Tensor in_floats(Tensor t) { return {in(t.floats(), t.elems()), t.shape()}; }
        Tensor out_floats(Tensor t) { return {out(t.floats(), t.elems()), t.shape()}; }
        Tensor in_as_is(Tensor t) {
            return {in(static_cast<char*>(t.data), t.bytes()), t.shape(), t.type};
        }
        Tensor out_as_is(Tensor t) {
            return {out(static_cast<char*>(t.data), t.bytes()), t.shape(), t.type};
        }
        Moments out(const Moments& m, int C) {
            return {m.groups, m.eps, out(m.mean_rstd, kept(m.groups, C)),
                    out(m.sums, 2 * size_t(C))};
        }

     private:
        static constexpr size_t kGuard = 256;
        static constexpr char kGuardByte = 0x5A;
        struct Block {
            void* here;
            size_t bytes;
            float* there;
            bool comes_back;
            std::vector<char> staged;
        };
        struct Halves {
            float* here;
            bool comes_back;
            std::vector<uint16_t> bits;
        };

        Tensor activation(Tensor t, bool comes_back) {
            const Type type = owner_.device_->activations();
            if (type == Type::kFloat32 || !t)
                return {const_cast<float*>(place(t.floats(), t.elems(), comes_back)), t.shape(),
                        type};
            for (Halves& h : halves_)
                if (h.here == t.data && h.bits.size() == t.elems()) {
                    h.comes_back |= comes_back;
                    return {out(h.bits.data(), h.bits.size()), t.shape(), type};
                }
            halves_.push_back({t.floats(), comes_back, std::vector<uint16_t>(t.elems())});
            Halves& h = halves_.back();
            for (size_t i = 0; i < h.bits.size(); ++i) {
                const float rounded = reference::rounded(h.here[i], Precision::kBf16);
                h.bits[i] = uint16_t(std::bit_cast<uint32_t>(rounded) >> 16);
            }
            return {out(h.bits.data(), h.bits.size()), t.shape(), type};
        }
        template <class T>
        const T* place(const T* here, size_t n, bool comes_back) {
            if (!here) return nullptr;
            const size_t bytes = n * sizeof(T);
            for (Block& block : blocks_)
                if (block.here == here && block.bytes == bytes) {
                    block.comes_back |= comes_back;
                    return after_guard<T>(block.there);
                }
            Block block{const_cast<T*>(here), bytes, owner_.take(bytes + 2 * kGuard), comes_back,
                        std::vector<char>(bytes + 2 * kGuard, kGuardByte)};
            if (bytes) std::memcpy(block.staged.data() + kGuard, here, bytes);
            owner_.device_->upload(block.there, block.staged.data(), block.staged.size());
            blocks_.push_back(std::move(block));
            return after_guard<T>(blocks_.back().there);
        }
        template <class T>
        static const T* after_guard(float* there) {
            return reinterpret_cast<const T*>(reinterpret_cast<const char*>(there) + kGuard);
        }

        ThroughDevice& owner_;
        std::list<Halves> halves_;
        std::list<Block> blocks_;
    };

    // Device memory lives as long as the backend, so blocks are reused.
    float* take(size_t bytes) {
        const auto fits = std::find_if(free_.begin(), free_.end(),
                                       [&](const Piece& piece) { return piece.bytes == bytes; });
        if (fits != free_.end())
            used_.splice(used_.end(), free_, fits);
        else
            used_.push_back({device_->alloc((bytes + 3) / 4), bytes});
        return used_.back().data;
    }

    struct Piece {
        float* data;
        size_t bytes;
    };
    std::unique_ptr<Backend> device_;
    std::list<Piece> free_, used_;
};

// Runs the test case once on the CPU (not for tf32), once on the CUDA emulator, and once on a GPU
// if there is one; with CONVOY_TEST_DEVICE only on that device. Returns the backend of the current
// run. Call it once, at the top of the test case.
inline std::unique_ptr<Backend> each_backend(int threads = 2,
                                             Precision precision = Precision::kFp32) {
    std::unique_ptr<Backend> backend;
    const BackendOptions options{.threads = threads, .precision = precision};
    if (!given_test_device().empty()) {
        backend = std::make_unique<ThroughDevice>(make_backend(kernel_device(), options));
        current_backend() = backend->name();
        return backend;
    }
    static const bool has_gpu = [] {
        try {
            make_backend("cuda");
            return true;
        } catch (const Error& error) {
            std::printf("tests: not run on a GPU: %s\n", error.what());
            return false;
        }
    }();
    if (precision == Precision::kFp32) {
        SUBCASE("cpu") { backend = make_backend("cpu", options); }
    } else if (precision == Precision::kBf16) {
        SUBCASE("cpu") { backend = std::make_unique<ThroughDevice>(make_backend("cpu", options)); }
    }
    SUBCASE("simt") { backend = std::make_unique<ThroughDevice>(make_backend("simt", options)); }
    if (has_gpu) {
        SUBCASE("cuda") {
            backend = std::make_unique<ThroughDevice>(make_backend("cuda", options));
        }
    }
    ENSURE(backend, "each_backend() is called twice in a test case");
    current_backend() = backend->name();
    return backend;
}

}  // namespace convoy
