// factors.cpp — see factors.h.
#include "src/train/factors.h"

#include <fmt/format.h>

#include "src/base/check.h"

namespace convoy {

std::vector<FactorChoice> choose_factors(Params& params, int64_t batch, int world,
                                         FactorMode mode) {
    std::vector<FactorChoice> choices;
    for (Param* w : params.all()) {
        if (w->dims != 2 || w->frozen) continue;  // in files a linear layer has two dimensions
        Param* b = params.find(layer_name(w->name) + ".bias");
        if (b && b->frozen) b = nullptr;
        const LinearTraffic traffic = linear_traffic(w->shape.C, w->shape.N, b, batch, world);
        choices.push_back(
            {w, b, traffic.dense_bytes, traffic.factor_bytes, traffic.as_factors(mode)});
    }
    return choices;
}

std::string traffic_text(const Params& params, std::span<const FactorChoice> choices, int world,
                         bool bf16_wire) {
    const double unit = bf16_wire ? 2e6 : 1e6;  // fp32 bytes of a MB sent
    const double ring = 2.0 * (world - 1) / world * sizeof(float) * double(params.grads_size);
    double sent = ring;
    std::string as_factors;
    for (const FactorChoice& choice : choices) {
        if (!choice.use) continue;
        sent += choice.factor_bytes - choice.dense_bytes;
        const std::string name = layer_name(choice.w->name);
        as_factors += fmt::format("{}{} {:.1f} MB as factors instead of {:.1f}",
                                  as_factors.empty() ? ": " : ", ", name,
                                  choice.factor_bytes / unit, choice.dense_bytes / unit);
    }
    return fmt::format("{:.1f} MB a rank and step{}", sent / unit,
                       as_factors.empty() ? ", all gradients as they are" : as_factors);
}

Factors::Factors(const FactorChoice& layer, int64_t batch, Backend& backend,
                 Communicator& communicator)
    : layer_(layer),
      backend_(backend),
      communicator_(communicator),
      in_(int(layer.w->shape.row_elems())),
      out_(layer.w->shape.N),
      x_(backend.alloc(size_t(batch) * size_t(in_))),
      dy_(backend.alloc(size_t(batch) * size_t(out_))),
      x_host_(backend.host_visible() ? x_ : backend.alloc_host(size_t(batch) * size_t(in_))),
      dy_host_(backend.host_visible() ? dy_ : backend.alloc_host(size_t(batch) * size_t(out_))) {
    const Type type = backend.activations();
    if (type == Type::kFloat32) return;
    x_operand_ = backend.alloc(Shape{int(batch), 1, 1, in_}, type);
    dy_operand_ = backend.alloc(Shape{int(batch), 1, 1, out_}, type);
}

void Factors::start(std::span<const int64_t> rows) {
    ENSURE(int(rows.size()) == communicator_.world(), rows.size(), " counts of rows");
    first_row_.assign(1, 0);
    for (int64_t n : rows) first_row_.push_back(first_row_.back() + n);
    gathers_.clear();
    const size_t rank = size_t(communicator_.rank());
    const size_t first = size_t(first_row_[rank]), count = size_t(rows[rank]);
    backend_.fill(x_ + first * size_t(in_), count * size_t(in_), 0);
    backend_.fill(dy_ + first * size_t(out_), count * size_t(out_), 0);
}

void Factors::put(Tensor x, Tensor dy) {
    const size_t rank = size_t(communicator_.rank());
    ENSURE(x.N == dy.N && x.N <= first_row_[rank + 1] - first_row_[rank], x.N, " and ", dy.N,
           " rows");
    const size_t first = size_t(first_row_[rank]);
    backend_.copy(Tensor(x_ + first * size_t(in_), x.shape()), x);
    backend_.copy(Tensor(dy_ + first * size_t(out_), dy.shape()), dy);
}

void Factors::stage() {
    if (backend_.host_visible()) return;
    const size_t rank = size_t(communicator_.rank()), first = size_t(first_row_[rank]);
    const size_t count = size_t(first_row_[rank + 1]) - first, in = size_t(in_), out = size_t(out_);
    backend_.start_download(x_host_ + first * in, x_ + first * in, count * in);
    download_ = backend_.start_download(dy_host_ + first * out, dy_ + first * out, count * out);
}

void Factors::send() {
    if (backend_.host_visible())
        backend_.synchronize();
    else
        backend_.wait_download(download_);
    for (auto [all, width] : {std::pair{x_host_, in_}, {dy_host_, out_}}) {
        std::vector<std::span<float>> blocks;
        for (size_t r = 0; r + 1 < first_row_.size(); ++r)
            blocks.emplace_back(all + size_t(first_row_[r]) * size_t(width),
                                size_t(first_row_[r + 1] - first_row_[r]) * size_t(width));
        gathers_.push_back(communicator_.gather(std::move(blocks)));
    }
}

void Factors::wait() {
    for (std::future<void>& gather : gathers_) gather.wait();
    for (std::future<void>& gather : gathers_) gather.get();
}

void Factors::add_gradient() {
    const int rows = int(first_row_.back());
    if (rows == 0) return;
    if (!backend_.host_visible()) {
        backend_.to_device(x_host_, x_, size_t(rows) * size_t(in_));
        backend_.to_device(dy_host_, dy_, size_t(rows) * size_t(out_));
    }
    Tensor x(x_, rows, 1, 1, in_), dy(dy_, rows, 1, 1, out_);
    if (x_operand_) {  // nothing is rounded: the rows were bf16 before they travelled
        backend_.copy(x_operand_.first(rows), x);
        backend_.copy(dy_operand_.first(rows), dy);
        x = x_operand_.first(rows), dy = dy_operand_.first(rows);
    }
    backend_.linear_grad_w(x, dy, layer_.w->grad, layer_.b ? layer_.b->grad.floats() : nullptr);
}

}  // namespace convoy
