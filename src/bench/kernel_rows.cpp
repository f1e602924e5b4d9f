// kernel_rows.cpp — walks the text of a model; a function for each kind of layer names its ops.
#include "src/bench/bench_kernels.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "src/base/bf16.h"
#include "src/base/random.h"
#include "src/model/model.h"
#include "src/model/model_text.h"

namespace convoy {

namespace {

constexpr int kClasses = 1000;

// Hands out buffers of random numbers. All layers use the same ones, one layer after the other.
class Buffers {
 public:
    explicit Buffers(Backend* backend) : backend_(backend) {}
    void reset() { next_ = 0; }
    float* take(size_t floats) {
        if (next_ == blocks_.size()) blocks_.push_back({});
        auto& [data, size] = blocks_[next_++];
        if (size < floats) {
            data = backend_->alloc(floats), size = floats;
            fill(data, floats);
        }
        return data;
    }
    // An activation, or weights as products read them.
    Tensor take(Shape shape) {
        const Type type = backend_->activations();
        return {take((shape.elems() * bytes_of(type) + 3) / sizeof(float)), shape, type};
    }
    // The gradient of weights: floats whatever activations are.
    Tensor take_floats(Shape shape) { return {take(shape.elems()), shape}; }

 private:
    // Both halves of a float are the same bf16, so the numbers lie in (-1, 1) read either way.
    void fill(float* data, size_t floats) {
        std::vector<float> values(std::min<size_t>(floats, 1 << 16));
        Random random(1, 0, next_, kBench);
        for (float& v : values) {
            const uint32_t half = to_bf16(random.uniform(-1, 1));
            v = std::bit_cast<float>(half << 16 | half);
        }
        backend_->upload(data, values.data(), values.size() * sizeof(float));
        for (size_t at = values.size(); at < floats; at *= 2)
            backend_->copy(data + at, data, std::min(at, floats - at));
    }

    Backend* backend_;
    std::vector<std::pair<float*, size_t>> blocks_;
    size_t next_ = 0;
};

double bytes_of(std::initializer_list<Tensor> tensors) {
    double bytes = 0;
    for (const Tensor& x : tensors) bytes += double(x.bytes());
    return bytes;
}

std::vector<int> groups_of(int N) {
    std::vector<int> bounds{0};
    while (bounds.back() < N) bounds.push_back(std::min(N, bounds.back() + 32));
    return bounds;
}

class Walk {
 public:
    Walk(Backend* backend, std::string model, const WantedRow& wanted, const MeasureRow& measure)
        : backend_(backend),
          buffers_(backend),
          model_(std::move(model)),
          wanted_(wanted),
          measure_(measure) {}

    // Shape of the output of these layers.
    Shape layers(const std::vector<LayerText>& texts, Shape x) {
        for (size_t i = 0; i < texts.size(); ++i)
            x = layer(texts[i], x, i + 1 < texts.size() && texts[i + 1].kind == "batchnorm");
        return x;
    }
    void loss(Shape s) {
        if (!begin({"softmax_cross_entropy"}, s.text())) return;
        const Tensor logits = buffers_.take_floats(s), dlogits = buffers_.take(s);
        const std::vector<int32_t> labels(size_t(s.N), 1);
        float* sums = buffers_.take(BatchSums::kFloats);
        emit("softmax_cross_entropy", bytes_of({logits, dlogits}),
             [&](Backend& b) { b.softmax_cross_entropy(logits, labels, 0.1f, dlogits, sums); });
    }
    void optimizer() {
        if (!begin({"sgd"}, cat(params_, " parameters"))) return;
        float *w = buffers_.take(params_), *g = buffers_.take(params_), *v = buffers_.take(params_);
        // No -1 in it, which as a float would be a NaN for the rows to come.
        const StepState state{.lr = 1e-4f, .scale = 0.01f, .first_bad = 0};
        auto* step = reinterpret_cast<StepState*>(buffers_.take(sizeof state / sizeof(float)));
        backend_->upload(step, &state, sizeof state);
        emit("sgd", 20.0 * double(params_),
             [&](Backend& b) { b.sgd(w, g, v, params_, step, 0.9f, 1e-4f, false); });
    }

 private:
    using Run = std::function<void(Backend&)>;

    // A layer of these shapes begins. False if none of its ops is wanted: asked before any memory
    // is taken for it.
    bool begin(std::initializer_list<const char*> ops, const std::string& shapes) {
        shapes_ = shapes;
        buffers_.reset();
        return std::ranges::any_of(ops, [&](const char* op) {
            return wanted_(KernelRow{model_, op, shapes_}.name());
        });
    }
    void emit(const char* op, double bytes, Run run, double flops = 0, Run by_cublas = nullptr) {
        const KernelRow row{
            model_, op, shapes_, flops, bytes, std::move(run), std::move(by_cublas)};
        if (wanted_(row.name())) measure_(row);
    }

    Shape layer(const LayerText& text, Shape x, bool before_norm) {
        const int out = text.out ? text.out : kClasses;
        const Window window = window_of(text, x);
        if (text.kind == "conv2d") return conv2d(window, out, text.groups, x, before_norm);
        if (text.kind == "linear") return linear(out, x);
        if (text.kind == "batchnorm") return batch_norm(x);
        if (text.kind == "maxpool") return max_pool(window, x);
        if (text.kind == "avgpool" && !text.rows)
            return conv2d(window, x.C, x.C, x, false, /*trained=*/false);
        if (text.kind == "avgpool") return avg_pool({x.N, text.rows, text.columns, x.C}, x);
        if (text.kind == "dropout") return dropout(text.number, x);
        if (text.kind == "relu") return relu(x, {});
        if (text.kind == "relu6") return relu(x, {Rectifier::kRelu6});
        if (text.kind == "leaky_relu") return relu(x, {Rectifier::kLeakyRelu, text.number});
        if (text.kind == "elu") return relu(x, {Rectifier::kElu, text.number});
        if (text.kind == "flatten") return {x.N, 1, 1, int(x.row_elems())};
        std::vector<Shape> made;
        for (const auto& branch : text.branches) made.push_back(layers(branch, x));
        return text.kind == "residual" ? add(made[0]) : concat(made);
    }

    Shape conv2d(Window window, int K, int groups, Shape xs, bool before_norm,
                 bool trained = true) {
        const Shape ys{xs.N, window.out_h(xs.H), window.out_w(xs.W), K};
        const Shape ws{K, window.size_h, window.size_w, xs.C / groups};
        if (trained) params_ += ws.elems();
        const bool depthwise = groups > 1 && groups == xs.C && groups == K;
        if (groups > 1 && !depthwise) {  // as the layer does it: each group on its own
            const Shape part{xs.N, xs.H, xs.W, xs.C / groups};
            concat({part, {xs.N, xs.H, xs.W, xs.C - part.C}});
            concat({{ys.N, ys.H, ys.W, K / groups}, {ys.N, ys.H, ys.W, K - K / groups}});
            conv2d(window, K / groups, 1, part, false, /*trained=*/false);
            return ys;
        }
        if (!begin({"conv2d", "conv2d_moments", "conv2d_grad_x", "conv2d_grad_w"},
                   cat(xs.text(), " to ", K, ", ", window_text(window),
                       depthwise ? " depthwise" : "")))
            return ys;
        const Tensor x = buffers_.take(xs), w = buffers_.take(ws), y = buffers_.take(ys);
        const Tensor dw = buffers_.take_floats(ws), dx = buffers_.take(xs);
        const double flops = depthwise ? 0 : 2.0 * double(ys.elems()) * double(ws.row_elems());
        const double bytes = bytes_of({x, w, y});
        // For cuBLAS a product of matrices of the same size: a row for each pixel of y, with what
        // its window sees. Its time leaves out how such a matrix is made of x, or dx of it.
        const Shape cs{int(ys.elems() / K), 1, 1, int(ws.row_elems())};
        const bool compared = !backend_->host_visible() && !depthwise;
        const Tensor columns = compared ? buffers_.take(cs) : Tensor();
        const Tensor rows = y.as({cs.N, 1, 1, K}), flat = w.as({K, 1, 1, cs.C});
        const Tensor flat_dw = dw.as(flat.shape());
        const auto forward = [&](Backend& b) { b.conv2d(x, w, nullptr, window, true, y); };
        const auto beside = [&](Run run) { return compared ? run : Run(); };
        emit("conv2d", bytes, forward, flops,
             beside([&](Backend& b) { b.linear(columns, flat, nullptr, false, rows); }));
        if (before_norm) {  // with the statistics of y, as in training
            const std::vector<int> groups = groups_of(ys.N);
            const Moments of_y = moments_of(ys, groups);
            const auto run = [&](Backend& b) { b.conv2d(x, w, nullptr, window, false, y, &of_y); };
            emit("conv2d_moments", bytes, run, flops);
        }
        const auto grad_x = [&](Backend& b) { b.conv2d_grad_x(y, w, window, nullptr, dx); };
        if (xs.C > 3)  // the first layer needs none
            emit("conv2d_grad_x", bytes, grad_x, flops,
                 beside([&](Backend& b) { b.linear_grad_x(rows, flat, nullptr, columns); }));
        const auto grad_w = [&](Backend& b) { b.conv2d_grad_w(x, y, window, dw, nullptr); };
        if (trained)
            emit("conv2d_grad_w", bytes_of({x, y, dw}), grad_w, flops,
                 beside([&](Backend& b) { b.linear_grad_w(columns, rows, flat_dw, nullptr); }));
        return ys;
    }
    Shape linear(int K, Shape xs) {
        const Shape ys{xs.N, 1, 1, K}, ws{K, 1, 1, int(xs.row_elems())};
        params_ += ws.elems();
        if (!begin({"linear", "linear_grad_x", "linear_grad_w"}, cat(xs.text(), " to ", K)))
            return ys;
        const Tensor x = buffers_.take(xs), w = buffers_.take(ws), y = buffers_.take(ys);
        const Tensor dw = buffers_.take_floats(ws), dx = buffers_.take(xs);
        const double flops = 2.0 * double(ys.elems()) * ws.C, bytes = bytes_of({x, w, y});
        const auto forward = [&](Backend& b) { b.linear(x, w, nullptr, true, y); };
        const auto grad_x = [&](Backend& b) { b.linear_grad_x(y, w, nullptr, dx); };
        const auto grad_w = [&](Backend& b) { b.linear_grad_w(x, y, dw, nullptr); };
        emit("linear", bytes, forward, flops, forward);
        emit("linear_grad_x", bytes, grad_x, flops, grad_x);
        emit("linear_grad_w", bytes_of({x, dw, dw, y}), grad_w, flops, grad_w);
        return ys;
    }
    // Alone; after a product, a batch norm or an add it is part of that op.
    Shape relu(Shape s, Rectifier f) {
        if (!begin({"relu", "relu_grad"}, s.text())) return s;
        const Tensor x = buffers_.take(s), dx = buffers_.take(s);
        emit("relu", bytes_of({x, x}), [&](Backend& b) { b.relu(x, f); });
        emit("relu_grad", bytes_of({x, dx, dx}), [&](Backend& b) { b.relu_grad(x, dx, f); });
        return s;
    }
    Shape add(Shape s) {
        if (!begin({"add"}, s.text())) return s;
        const Tensor x = buffers_.take(s), y = buffers_.take(s);
        emit("add", bytes_of({x, x, y}), [&](Backend& b) { b.add(x, y); });
        return s;
    }
    // A slice goes into the wide tensor, and in the gradient out of it.
    Shape concat(const std::vector<Shape>& parts) {
        Shape all = parts[0];
        for (size_t i = 1; i < parts.size(); ++i) all.C += parts[i].C;
        for (const Shape& part : parts) {
            if (!begin({"copy_channels"}, cat(part.text(), " into ", all.C))) continue;
            const Tensor wide = buffers_.take(all), slice = buffers_.take(part);
            emit("copy_channels", bytes_of({slice, slice}),
                 [&](Backend& b) { b.copy_channels(wide, slice, 0); });
        }
        return all;
    }
    Shape batch_norm(Shape s) {
        params_ += size_t(2) * s.C;
        if (!begin({"moments", "batch_norm", "batch_norm_grad"}, s.text())) return s;
        const std::vector<int> groups = groups_of(s.N);
        const Tensor x = buffers_.take(s), y = buffers_.take(s), dy = buffers_.take(s);
        const size_t C = size_t(s.C);
        float *gamma = buffers_.take(C), *beta = buffers_.take(C);
        const Moments of_x = moments_of(s, groups);
        emit("moments", bytes_of({x}), [&](Backend& b) { b.moments(x, of_x); });
        emit("batch_norm", bytes_of({x, y}), [&](Backend& b) {
            b.batch_norm(x, groups, of_x.mean_rstd, gamma, beta, nullptr, true, y);
        });
        emit("batch_norm_grad", bytes_of({x, y, dy, x, y, dy, dy}), [&](Backend& b) {
            b.batch_norm_grad(x, y, dy, groups, gamma, true, of_x.mean_rstd, dy, nullptr, of_x.sums,
                              of_x.sums + C);
        });
        return s;
    }
    Moments moments_of(Shape s, const std::vector<int>& groups) {
        const size_t C = size_t(s.C);
        return {groups, 1e-5f, buffers_.take(2 * C * groups.size()), buffers_.take(2 * C)};
    }
    Shape max_pool(Window window, Shape xs) {
        const Shape ys{xs.N, window.out_h(xs.H), window.out_w(xs.W), xs.C};
        if (!begin({"max_pool", "max_pool_grad"}, cat(xs.text(), ", ", window_text(window))))
            return ys;
        const Tensor x = buffers_.take(xs), y = buffers_.take(ys), dx = buffers_.take(xs);
        auto* argmax = reinterpret_cast<uint8_t*>(buffers_.take(ys.elems() / 4 + 1));
        const double bytes = bytes_of({x, y}) + double(ys.elems());
        emit("max_pool", bytes, [&](Backend& b) { b.max_pool(x, window, y, argmax); });
        emit("max_pool_grad", bytes,
             [&](Backend& b) { b.max_pool_grad(y, argmax, window, nullptr, dx); });
        return ys;
    }
    Shape avg_pool(Shape ys, Shape xs) {
        if (!begin({"avg_pool", "avg_pool_grad"}, cat(xs.text(), " to ", ys.H, "x", ys.W)))
            return ys;
        const Tensor x = buffers_.take(xs), y = buffers_.take(ys), dx = buffers_.take(xs);
        emit("avg_pool", bytes_of({x, y}), [&](Backend& b) { b.avg_pool(x, y); });
        emit("avg_pool_grad", bytes_of({x, y}), [&](Backend& b) { b.avg_pool_grad(y, dx); });
        return ys;
    }
    Shape dropout(float p, Shape s) {
        if (!begin({"dropout"}, s.text())) return s;
        const Tensor x = buffers_.take(s);
        const std::vector<uint64_t> ids(size_t(s.N), 7);
        emit("dropout", bytes_of({x, x}), [&](Backend& b) {
            b.dropout(x, p, {1, 0}, ids, kLayer);
        });
        return s;
    }

    Backend* backend_;
    Buffers buffers_;
    const std::string model_;
    const WantedRow& wanted_;
    const MeasureRow& measure_;
    size_t params_ = 0;
    std::string shapes_;  // of the current layer
};

}  // namespace

void for_each_row(const std::string& model, int batch, Backend* backend, const WantedRow& wanted,
                  const MeasureRow& measure) {
    const ModelText text = parse_model(model_text(model), model);
    Walk walk(backend, model, wanted, measure);
    const InputSize input = text.input.or_channels(3);
    const Shape images{batch, input.H, input.W, input.C};
    walk.loss(walk.layers(text.layers, images));
    walk.optimizer();
}

}  // namespace convoy
