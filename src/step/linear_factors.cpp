#include "src/step/linear_factors.h"

#include <fmt/format.h>

#include <numeric>

#include "src/base/check.h"

namespace convoy {

std::vector<FactorChoice> choose_factors(Params& params, int64_t batch, RingSize ring,
                                         FactorMode mode) {
    const auto a_float = [](int n) { return double(n - 1) / n * sizeof(float); };
    std::vector<FactorChoice> choices;
    for (Param* w : params.all()) {
        if (!w->is_linear || w->frozen) continue;
        Param* b = params.find(layer_name(*w) + ".bias");
        if (b && b->frozen) b = nullptr;
        const double in = w->shape.C, out = w->shape.N;
        const double dense = 2 * a_float(ring.around) * (in * out + (b ? out : 0));
        const double factors = a_float(ring.ranks) * double(batch) * (in + out);
        const bool use =
            mode == FactorMode::kOn ? factors > 0 : mode == FactorMode::kAuto && factors < dense;
        choices.push_back({w, b, dense, factors, use});
    }
    return choices;
}

double sent_bytes(const Params& params, std::span<const FactorChoice> choices, RingSize ring) {
    double sent = 2.0 * (ring.around - 1) / ring.around * sizeof(float) * double(params.grads_size);
    for (const FactorChoice& choice : choices)
        if (choice.use) sent += choice.factor_bytes - choice.dense_bytes;
    return sent;
}

std::string traffic_text(const Params& params, std::span<const FactorChoice> choices, RingSize ring,
                         bool bf16_wire) {
    const double unit = bf16_wire ? 2e6 : 1e6;  // fp32 bytes of a MB sent
    const double sent = sent_bytes(params, choices, ring);
    std::string as_factors;
    for (const FactorChoice& choice : choices) {
        if (!choice.use) continue;
        as_factors += fmt::format("{}{} {:.1f} MB as factors instead of {:.1f}",
                                  as_factors.empty() ? ": " : ", ", layer_name(*choice.w),
                                  choice.factor_bytes / unit, choice.dense_bytes / unit);
    }
    if (ring.around == 1 && ring.ranks > 1 && sent == 0) return "gradients stay on this host";
    return fmt::format("{:.1f} MB per {} and step{}", sent / unit,
                       ring.around < ring.ranks ? "host" : "rank",
                       as_factors.empty() ? ", no layer as factors" : as_factors);
}

Factors::Factors(const FactorChoice& layer, int64_t batch, Backend& backend,
                 Communicator& communicator)
    : layer_(layer),
      backend_(backend),
      communicator_(communicator),
      in_(layer.w->shape.row_elems()),
      out_(size_t(layer.w->shape.N)),
      x_(backend.alloc(size_t(batch) * in_)),
      dy_(backend.alloc(size_t(batch) * out_)),
      x_host_(backend.host_visible() ? x_ : backend.alloc_host(size_t(batch) * in_)),
      dy_host_(backend.host_visible() ? dy_ : backend.alloc_host(size_t(batch) * out_)) {
    const Type type = backend.activations();
    if (type == Type::kFloat32) return;
    x_operand_ = backend.alloc(Shape{int(batch), 1, 1, int(in_)}, type);
    dy_operand_ = backend.alloc(Shape{int(batch), 1, 1, int(out_)}, type);
}

void Factors::start(std::span<const int64_t> rows) {
    ENSURE(int(rows.size()) == communicator_.world(), rows.size(), " counts of rows");
    first_row_.assign(rows.size() + 1, 0);
    std::partial_sum(rows.begin(), rows.end(), first_row_.begin() + 1);
    backend_.fill(x_ + first_row() * in_, own_rows() * in_, 0);
    backend_.fill(dy_ + first_row() * out_, own_rows() * out_, 0);
}

void Factors::put(Tensor x, Tensor dy) {
    ENSURE(x.N == dy.N && size_t(x.N) <= own_rows(), x.N, " and ", dy.N, " rows");
    backend_.copy(Tensor(x_ + first_row() * in_, x.shape()), x);
    backend_.copy(Tensor(dy_ + first_row() * out_, dy.shape()), dy);
}

int64_t Factors::start_download() {
    const size_t x = first_row() * in_, dy = first_row() * out_;
    backend_.start_download(x_host_ + x, x_ + x, own_rows() * in_);
    return backend_.start_download(dy_host_ + dy, dy_ + dy, own_rows() * out_);
}

std::vector<std::future<void>> Factors::gather() {
    std::vector<std::future<void>> gathers;
    for (auto [all, width] : {std::pair{x_host_, in_}, {dy_host_, out_}}) {
        std::vector<std::span<float>> blocks;
        for (size_t r = 0; r + 1 < first_row_.size(); ++r)
            blocks.emplace_back(all + size_t(first_row_[r]) * width,
                                size_t(first_row_[r + 1] - first_row_[r]) * width);
        gathers.push_back(communicator_.gather(std::move(blocks)));
    }
    return gathers;
}

void Factors::add_gradient() {
    const int rows = int(first_row_.back());
    if (rows == 0) return;
    if (!backend_.host_visible()) {
        backend_.to_device(x_host_, x_, size_t(rows) * in_);
        backend_.to_device(dy_host_, dy_, size_t(rows) * out_);
    }
    Tensor x(x_, rows, 1, 1, int(in_)), dy(dy_, rows, 1, 1, int(out_));
    if (x_operand_) {  // exact: the rows were bf16 before they were sent
        backend_.copy(x_operand_.first(rows), x);
        backend_.copy(dy_operand_.first(rows), dy);
        x = x_operand_.first(rows), dy = dy_operand_.first(rows);
    }
    backend_.linear_grad_w(x, dy, layer_.w->grad, layer_.b ? layer_.b->grad.floats() : nullptr);
}

}  // namespace convoy
