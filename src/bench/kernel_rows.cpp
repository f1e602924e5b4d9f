// kernel_rows.cpp — see kernel_rows.h.
#include "src/bench/kernel_rows.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "data/pack.h"
#include "src/base/random.h"
#include "src/model/model.h"
#include "src/model/model_text.h"
#include "src/train/input.h"

namespace convoy {

namespace {

constexpr int kClasses = 1000;

// Hands out buffers of random numbers; the same blocks are used for all rows, one after the other.
class Buffers {
 public:
    explicit Buffers(Backend& backend) : backend_(backend) {}
    void reset() { next_[0] = next_[1] = 0; }
    float* take(size_t elems) { return static_cast<float*>(take(elems, Type::kFloat32)); }
    // An activation, or what products read of weights.
    Tensor take(Shape shape) {
        const Type type = backend_.activations();
        return {take(shape.elems(), type), shape, type};
    }
    // The gradient of weights, floats whatever activations are.
    Tensor take_floats(Shape shape) { return {take(shape.elems()), shape}; }

 private:
    void* take(size_t elems, Type type) {
        auto& blocks = blocks_[int(type)];
        const size_t next = next_[int(type)]++;
        if (next == blocks.size()) blocks.push_back({});
        auto& [data, size] = blocks[next];
        if (size < elems) {
            data = backend_.alloc((elems * bytes_of(type) + 3) / sizeof(float)), size = elems;
            fill(static_cast<char*>(data), elems, type, next + 1);
        }
        return data;
    }
    void fill(char* data, size_t elems, Type type, uint64_t index) {
        const size_t count = std::min<size_t>(elems, 1 << 16), bytes = bytes_of(type);
        std::vector<uint16_t> halves;
        std::vector<float> values(count);
        Random random(1, 0, index, kBench);
        for (float& v : values) v = random.uniform(-1, 1);
        for (float v : values) halves.push_back(uint16_t(std::bit_cast<uint32_t>(v) >> 16));
        const void* from = type == Type::kFloat32 ? (const void*)values.data() : halves.data();
        for (size_t at = 0; at < elems; at += count)
            backend_.upload(data + at * bytes, from, std::min(count, elems - at) * bytes);
    }

    Backend& backend_;
    std::vector<std::pair<void*, size_t>> blocks_[2];  // by type
    size_t next_[2] = {};
};

double bytes_of(std::initializer_list<Tensor> tensors) {
    double bytes = 0;
    for (const Tensor& x : tensors) bytes += double(x.bytes());
    return bytes;
}

// Walks a model's text and calls `measure` for each op of each layer.
class Walk {
 public:
    Walk(Backend& backend, Backend* cublas, std::string model, WantedRow wanted, MeasureRow measure)
        : backend_(backend),
          cublas_(cublas),
          buffers_(backend),
          model_(std::move(model)),
          wanted_(std::move(wanted)),
          measure_(std::move(measure)) {}

    Shape layers(const std::vector<LayerText>& texts, Shape x) {
        for (size_t i = 0; i < texts.size(); ++i)
            x = layer(texts[i], x, i + 1 < texts.size() && texts[i + 1].kind == "batchnorm");
        return x;
    }
    void loss_and_optimizer(Shape logits) {
        const std::string all = cat(params_, " parameters");
        if (!wanted("softmax_cross_entropy", logits.text()) && !wanted("sgd", all)) return;
        buffers_.reset();
        const Tensor x = buffers_.take_floats(logits), dx = buffers_.take(logits);
        const std::vector<int32_t> labels(size_t(logits.N), 1);
        float* sums = buffers_.take(BatchSums::kFloats);
        emit("softmax_cross_entropy", logits.text(), 0, bytes_of({x, dx}),
             [&] { backend_.softmax_cross_entropy(x, labels, 0.1f, dx, sums); });
        buffers_.reset();
        float *w = buffers_.take(params_), *g = buffers_.take(params_), *v = buffers_.take(params_);
        // No -1 in it: as a float that would be a NaN for the rows to come.
        const StepState state{.lr = 1e-4f, .scale = 0.01f, .first_bad = 0};
        auto* step = reinterpret_cast<StepState*>(buffers_.take(sizeof state / sizeof(float)));
        backend_.upload(step, &state, sizeof state);
        emit("sgd", all, 0, 20.0 * double(params_),
             [&] { backend_.sgd(w, g, v, params_, step, 0.9f, 1e-4f, false); });
    }
    // What --augment-on device has the backend do with a batch of crops of photos. To be called
    // last: it leaves other bits than floats in the buffers.
    void images(Shape shape) {
        const Image crop{250, 333, std::vector<uint8_t>(size_t(250) * 333 * 3, 200)};
        const std::string shapes = cat(shape.N, "x", crop.H, "x", crop.W, "x3 to ", shape.H);
        if (!wanted("resize", shapes)) return;
        Packer packer;
        const size_t bytes =
            packer.look(view(crop), {shape.H, shape.W, {0, 0, shape.H, shape.W}, false});
        std::vector<uint8_t> block(size_t(shape.N) * bytes);
        std::vector<Picture> pictures;
        for (size_t at = 0; at < block.size(); at += bytes)
            pictures.push_back(picture_of(packer.write(block.data(), at)));
        buffers_.reset();
        float* there = buffers_.take(block.size() / sizeof(float));
        const Tensor y = buffers_.take(shape);
        backend_.upload(there, block.data(), block.size());
        const std::vector<float> values(3 * 256, 1);
        const std::span packed(reinterpret_cast<const uint8_t*>(there), block.size());
        emit("resize", shapes, 0, double(block.size()) + bytes_of({y}),
             [&] { backend_.resize(packed, pictures, values.data(), y); });
    }

 private:
    void emit(const char* op, const std::string& shapes, double flops, double bytes,
              std::function<void()> run, std::function<void(Backend&)> by_cublas = nullptr) {
        if (!wanted(op, shapes)) return;
        KernelRow row{model_, op, shapes, flops, bytes, std::move(run), nullptr};
        if (cublas_ && by_cublas) row.by_cublas = [this, by_cublas] { by_cublas(*cublas_); };
        measure_(row);
    }
    bool wanted(const char* op, const std::string& shapes) const {
        return wanted_(cat(model_, " ", op, " ", shapes));
    }
    // Before any memory is taken for a layer.
    bool any_wanted(std::initializer_list<const char*> ops, const std::string& shapes) const {
        return std::any_of(ops.begin(), ops.end(), [&](auto* op) { return wanted(op, shapes); });
    }

    Shape layer(const LayerText& text, Shape x, bool before_norm) {
        buffers_.reset();
        const int out = text.out ? text.out : kClasses;
        if (text.kind == "conv2d") return conv2d(text.window, out, x, before_norm);
        if (text.kind == "linear") return linear(out, x);
        if (text.kind == "batchnorm") return batch_norm(x);
        if (text.kind == "maxpool") return max_pool(text.window, x);
        if (text.kind == "avgpool") return avg_pool({x.N, text.rows, text.columns, x.C}, x);
        if (text.kind == "dropout") return dropout(text.drop, x);
        if (text.kind == "relu") return relu(x);
        if (text.kind == "flatten") return {x.N, 1, 1, int(x.row_elems())};
        if (text.kind != "residual") return x;
        layers(text.shortcut, x);
        return add(layers(text.main, x));
    }

    Shape conv2d(Window window, int K, Shape xs, bool before_norm) {
        const Shape ys{xs.N, window.out_h(xs.H), window.out_w(xs.W), K};
        const Shape ws{K, window.size_h, window.size_w, xs.C};
        params_ += ws.elems();
        const std::string shapes = cat(xs.text(), " to ", K, ", ", window_text(window));
        if (!any_wanted({"conv2d", "conv2d_moments", "conv2d_grad_x", "conv2d_grad_w"}, shapes))
            return ys;
        const Tensor x = buffers_.take(xs), w = buffers_.take(ws), y = buffers_.take(ys);
        const Tensor dw = buffers_.take_floats(ws), dx = buffers_.take(xs);
        const double flops = 2.0 * double(ys.elems()) * double(ws.row_elems());
        const double bytes = bytes_of({x, w, y});
        // For cuBLAS a product of matrices as large: a row for each pixel of y, with what its
        // window sees. Making such a matrix of x, or dx of such a one, is left out of its time.
        const Shape cs{int(ys.elems() / K), 1, 1, int(ws.row_elems())};
        const Tensor columns = cublas_ ? buffers_.take(cs) : Tensor();
        const Tensor rows = y.as({cs.N, 1, 1, K}), flat = w.as({K, 1, 1, cs.C});
        const Tensor flat_dw = dw.as(flat.shape());
        emit(
            "conv2d", shapes, flops, bytes,
            [&] { backend_.conv2d(x, w, nullptr, window, true, y); },
            [&](Backend& cublas) { cublas.linear(columns, flat, nullptr, false, rows); });
        if (before_norm) {  // with the statistics of y, as in training
            const std::vector<int> groups = groups_of(ys.N);
            const Moments of_y = moments_of(ys, groups);
            emit("conv2d_moments", shapes, flops, bytes,
                 [&] { backend_.conv2d(x, w, nullptr, window, false, y, &of_y); });
        }
        if (xs.C > 3)  // the first layer needs none
            emit(
                "conv2d_grad_x", shapes, flops, bytes,
                [&] { backend_.conv2d_grad_x(y, w, window, nullptr, dx); },
                [&](Backend& cublas) { cublas.linear_grad_x(rows, flat, nullptr, columns); });
        emit(
            "conv2d_grad_w", shapes, flops, bytes_of({x, y, dw}),
            [&] { backend_.conv2d_grad_w(x, y, window, dw, nullptr); },
            [&](Backend& cublas) { cublas.linear_grad_w(columns, rows, flat_dw, nullptr); });
        return ys;
    }
    Shape linear(int K, Shape xs) {
        const Shape ys{xs.N, 1, 1, K}, ws{K, 1, 1, int(xs.row_elems())};
        params_ += ws.elems();
        const std::string shapes = cat(xs.text(), " to ", K);
        if (!any_wanted({"linear", "linear_grad_x", "linear_grad_w"}, shapes)) return ys;
        const Tensor x = buffers_.take(xs), w = buffers_.take(ws), y = buffers_.take(ys);
        const Tensor dw = buffers_.take_floats(ws), dx = buffers_.take(xs);
        const double flops = 2.0 * double(ys.elems()) * ws.C;
        const auto all = [&](const char* op, double bytes, std::function<void(Backend&)> run) {
            emit(
                op, shapes, flops, bytes, [&, run] { run(backend_); }, run);
        };
        all("linear", bytes_of({x, w, y}),
            [&](Backend& device) { device.linear(x, w, nullptr, true, y); });
        all("linear_grad_x", bytes_of({x, w, y}),
            [&](Backend& device) { device.linear_grad_x(y, w, nullptr, dx); });
        all("linear_grad_w", bytes_of({x, dw, dw, y}),
            [&](Backend& device) { device.linear_grad_w(x, y, dw, nullptr); });
        return ys;
    }
    // By itself; after a product, a batch norm or an add it is part of that.
    Shape relu(Shape s) {
        if (!any_wanted({"relu", "relu_grad"}, s.text())) return s;
        const Tensor x = buffers_.take(s), dx = buffers_.take(s);
        emit("relu", s.text(), 0, bytes_of({x, x}), [&] { backend_.relu(x); });
        emit("relu_grad", s.text(), 0, bytes_of({x, dx, dx}), [&] { backend_.relu_grad(x, dx); });
        return s;
    }
    Shape add(Shape s) {
        if (!any_wanted({"add"}, s.text())) return s;
        buffers_.reset();
        const Tensor x = buffers_.take(s), y = buffers_.take(s);
        emit("add", s.text(), 0, bytes_of({x, x, y}), [&] { backend_.add(x, y); });
        return s;
    }
    Shape batch_norm(Shape s) {
        params_ += size_t(2) * s.C;
        if (!any_wanted({"moments", "batch_norm", "batch_norm_grad"}, s.text())) return s;
        const std::vector<int> groups = groups_of(s.N);
        const Tensor x = buffers_.take(s), y = buffers_.take(s), dy = buffers_.take(s);
        const size_t C = size_t(s.C);
        float *gamma = buffers_.take(C), *beta = buffers_.take(C);
        const Moments of_x = moments_of(s, groups);
        emit("moments", s.text(), 0, bytes_of({x}), [&] { backend_.moments(x, of_x); });
        emit("batch_norm", s.text(), 0, bytes_of({x, y}), [&] {
            backend_.batch_norm(x, groups, of_x.mean_rstd, gamma, beta, nullptr, true, y);
        });
        emit("batch_norm_grad", s.text(), 0, bytes_of({x, y, dy, x, y, dy, dy}), [&] {
            backend_.batch_norm_grad(x, y, dy, groups, gamma, true, of_x.mean_rstd, dy, nullptr,
                                     of_x.sums, of_x.sums + C);
        });
        return s;
    }
    static std::vector<int> groups_of(int N) {
        std::vector<int> bounds{0};
        while (bounds.back() < N) bounds.push_back(std::min(N, bounds.back() + 32));
        return bounds;
    }
    Moments moments_of(Shape s, const std::vector<int>& groups) {
        const size_t C = size_t(s.C);
        return {groups, 1e-5f, buffers_.take(2 * C * groups.size()), buffers_.take(2 * C)};
    }
    Shape max_pool(Window window, Shape xs) {
        const Shape ys{xs.N, window.out_h(xs.H), window.out_w(xs.W), xs.C};
        const std::string shapes = cat(xs.text(), ", ", window_text(window));
        if (!any_wanted({"max_pool", "max_pool_grad"}, shapes)) return ys;
        const Tensor x = buffers_.take(xs), y = buffers_.take(ys), dx = buffers_.take(xs);
        auto* argmax = reinterpret_cast<uint8_t*>(buffers_.take(ys.elems() / 4 + 1));
        const double bytes = bytes_of({x, y}) + double(ys.elems());
        emit("max_pool", shapes, 0, bytes, [&] { backend_.max_pool(x, window, y, argmax); });
        emit("max_pool_grad", shapes, 0, bytes,
             [&] { backend_.max_pool_grad(y, argmax, window, nullptr, dx); });
        return ys;
    }
    Shape avg_pool(Shape ys, Shape xs) {
        const std::string shapes = cat(xs.text(), " to ", ys.H, "x", ys.W);
        if (!any_wanted({"avg_pool", "avg_pool_grad"}, shapes)) return ys;
        const Tensor x = buffers_.take(xs), y = buffers_.take(ys), dx = buffers_.take(xs);
        emit("avg_pool", shapes, 0, bytes_of({x, y}), [&] { backend_.avg_pool(x, y); });
        emit("avg_pool_grad", shapes, 0, bytes_of({x, y}), [&] { backend_.avg_pool_grad(y, dx); });
        return ys;
    }
    Shape dropout(float p, Shape s) {
        if (!any_wanted({"dropout"}, s.text())) return s;
        const Tensor x = buffers_.take(s);
        const std::vector<uint64_t> ids(size_t(s.N), 7);
        emit("dropout", s.text(), 0, bytes_of({x, x}), [&] {
            backend_.dropout(x, p, {1, 0}, ids, kLayer);
        });
        return s;
    }

    Backend& backend_;
    Backend* const cublas_;
    Buffers buffers_;
    const std::string model_;
    const WantedRow wanted_;
    const MeasureRow measure_;
    size_t params_ = 0;
};

}  // namespace

void for_each_row(const std::string& model, int batch, Backend& backend, Backend* cublas,
                  const WantedRow& wanted, const MeasureRow& measure) {
    const ModelText text = parse_model(model_text(model), model);
    Walk walk(backend, cublas, model, wanted, measure);
    const Shape images{batch, text.input, text.input, 3};
    walk.loss_and_optimizer(walk.layers(text.layers, images));
    walk.images(images);
}

}  // namespace convoy
