// pipeline.cpp — see pipeline.h.
#include "src/train/pipeline.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/train/stages.h"
#include "src/train/trainer.h"

namespace convoy {

PipelineOptions::PipelineOptions(const Config& config)
    : stages(config.pipeline),
      pieces(config.micro),
      recompute(config.recompute),
      bf16_wire(config.wire == WireType::kBf16),
      batch(config.batch),
      bn_group(config.bn_group) {}

int piece_size(const PipelineOptions& options, int replicas, bool batch_norm) {
    return piece_images((options.batch + replicas - 1) / replicas, options.pieces,
                        batch_norm ? options.bn_group : 0);
}

Pipeline::Pipeline(const PipelineOptions& options, const ReducerOptions& reducer, Model& model,
                   Optimizer& optimizer, Backend& backend, Communicator& communicator)
    : options_(options),
      model_(model),
      optimizer_(optimizer),
      backend_(backend),
      communicator_(communicator),
      stage_(communicator.rank() % options.stages),
      replica_(communicator.rank() / options.stages),
      replicas_(communicator.world() / options.stages),
      piece_images_(piece_size(options, replicas_, model.has_batch_norm())),
      cuts_(piece_images_, model.max_batch(), model.has_batch_norm() ? options.bn_group : 0),
      wire_type_(options.bf16_wire ? Type::kBfloat16 : backend.activations()) {
    ENSURE(communicator.world() == replicas_ * options.stages && options.stages > 1,
           communicator.world(), " ranks");
    std::vector<int> neighbours;
    if (stage_ > 0) neighbours.push_back(communicator.rank() - 1);
    if (!is_last()) neighbours.push_back(communicator.rank() + 1);
    links_ = communicator.open_links(neighbours);
    if (replicas_ > 1) {
        std::vector<int> ranks;
        for (int r = 0; r < replicas_; ++r) ranks.push_back(r * options.stages + stage_);
        group_ = communicator.open_group(ranks);
    } else {
        group_ = make_single_rank();
    }
    ReducerOptions summing = reducer;
    summing.factors = FactorMode::kOff;
    reducer_ = std::make_unique<GradReducer>(model.params(), backend, *group_, summing);

    // One more than 1f1b needs, so that the next stage does not wait for the way.
    held_ = std::min(cuts_.most(), size_t(options.stages - stage_ + !is_last()));
    for (size_t i = 0; i < (options.recompute ? 1 : held_); ++i) {
        models_.push_back(model.twin());
        activation_bytes_ += models_.back()->plan(planned_images(), /*training=*/true);
    }
    const auto& outline = model.outline();
    if (stage_ > 0) {
        const Shape image = outline[options.cuts[size_t(stage_)]].input;
        x_ = make_crossing(image), dx_ = make_crossing(image);
        for (const Tensor& wire : x_.wire)
            inputs_.push_back(wire.type == backend.activations()
                                  ? wire
                                  : backend.alloc(wire.shape(), backend.activations()));
    }
    if (!is_last()) {
        const Shape image = outline[options.cuts[size_t(stage_) + 1]].input;
        y_ = make_crossing(image), dy_ = make_crossing(image);
    }
    // n and `wanted`, whether labels are mixed, and five numbers an image.
    meta_.resize(3 + 5 * size_t(model.max_batch()));
}

Pipeline::Crossing Pipeline::make_crossing(Shape image) {
    Crossing crossing;
    image.N = planned_images();
    for (size_t i = 0; i < cuts_.most(); ++i) {
        const Tensor wire = crossing.wire.emplace_back(backend_.alloc(image, wire_type_));
        activation_bytes_ += wire.bytes();
        crossing.host.push_back(reinterpret_cast<std::byte*>(
            backend_.host_visible() ? wire.data : backend_.alloc_host((wire.bytes() + 3) / 4)));
    }
    crossing.on_way.resize(cuts_.most());
    return crossing;
}

// ---- what stages tell each other ----------------------------------------------------------------

void Pipeline::wait(std::future<void>& message) {
    if (!message.valid()) return;
    const auto start = Clock::now();
    links_->wait(message);
    waited_ += seconds_since(start);
}

// The first stage reads the batch; each stage tells the next one.
const Batch& Pipeline::take(const Batch& batch) {
    const auto bytes = std::as_writable_bytes(std::span(meta_));
    wait(meta_on_way_);
    if (stage_ == 0) {
        write_batch(batch);
    } else {
        std::future<void> message = links_->receive(communicator_.rank() - 1, bytes);
        wait(message);
        read_batch(batch);
    }
    if (!is_last()) meta_on_way_ = links_->send(communicator_.rank() + 1, bytes);
    return stage_ == 0 ? batch : batch_;
}

void Pipeline::write_batch(const Batch& batch) {
    const bool is_mixed = !batch.second_labels.empty();
    meta_[0] = uint64_t(batch.n), meta_[1] = uint64_t(batch.wanted), meta_[2] = is_mixed;
    for (size_t i = 0; i < size_t(batch.n); ++i) {
        uint64_t* const m = meta_.data() + 3 + 5 * i;
        m[0] = batch.samples[i], m[1] = uint64_t(batch.labels[i]);
        m[2] = uint64_t(batch.positions[i]);
        if (!is_mixed) continue;
        m[3] = uint64_t(batch.second_labels[i]);
        m[4] = std::bit_cast<uint32_t>(batch.first_parts[i]);
    }
}

void Pipeline::read_batch(const Batch& batch) {
    batch_.n = int(meta_[0]), batch_.wanted = int(meta_[1]);
    ENSURE(batch_.n >= 0 && batch_.n <= model_.max_batch(), batch_.n, " images");
    batch_.global_wanted = batch.global_wanted, batch_.number = batch.number;
    const size_t n = size_t(batch_.n), mixed = meta_[2] ? n : 0;
    batch_.samples.resize(n), batch_.labels.resize(n), batch_.positions.resize(n);
    batch_.second_labels.resize(mixed), batch_.first_parts.resize(mixed);
    for (size_t i = 0; i < n; ++i) {
        const uint64_t* const m = meta_.data() + 3 + 5 * i;
        batch_.samples[i] = m[0], batch_.labels[i] = int32_t(m[1]);
        batch_.positions[i] = int32_t(m[2]);
        if (!mixed) continue;
        batch_.second_labels[i] = int32_t(m[3]);
        batch_.first_parts[i] = std::bit_cast<float>(uint32_t(m[4]));
    }
}

void Pipeline::keep_own(Counters& counters) const {
    using C = StepCounters;
    if (!is_last()) counters[C::kCount] = 0;
    if (stage_ > 0) counters[C::kSkipped] = 0;
}

// ---- pieces
// ---------------------------------------------------------------------------------------

// All pieces of the pass come from `rank`, in order.
void Pipeline::expect(Crossing& crossing, int rank) {
    for (size_t i = 0; i < pieces_.size(); ++i) {
        const size_t bytes = crossing.wire[i].first(pieces_[i].images()).bytes();
        crossing.on_way[i] = links_->receive(rank, {crossing.host[i], bytes});
    }
}

void Pipeline::send(Crossing& crossing, size_t piece, Tensor what, int rank) {
    wait(crossing.on_way[piece]);  // of the pass before
    const Tensor wire = crossing.wire[piece].first(what.N);
    backend_.copy(wire, what);
    if (backend_.host_visible())
        backend_.synchronize();
    else
        backend_.download(crossing.host[piece], wire.data, wire.bytes());
    crossing.on_way[piece] = links_->send(rank, {crossing.host[piece], wire.bytes()});
}

void Pipeline::receive(Crossing& crossing, size_t piece, Tensor to) {
    wait(crossing.on_way[piece]);
    const Tensor wire = crossing.wire[piece].first(to.N);
    if (!backend_.host_visible()) backend_.upload(wire.data, crossing.host[piece], wire.bytes());
    if (to.data != wire.data) backend_.copy(to, wire);
}

void Pipeline::begin_pass(Tensor x, const Batch& batch, const Pass& pass) {
    pieces_ = cuts_.cut(batch.positions, batch.global_wanted, pass);
    x_of_.assign(pieces_.size(), {}), y_of_.assign(pieces_.size(), {});
    for (size_t i = 0; i < pieces_.size(); ++i)
        x_of_[i] = stage_ == 0 ? x.images(pieces_[i].begin, pieces_[i].end)
                               : inputs_[i].first(pieces_[i].images());
    if (stage_ > 0) expect(x_, communicator_.rank() - 1);
    if (!is_last() && pass.training) expect(dy_, communicator_.rank() + 1);
}

void Pipeline::forward(size_t i, Model& model) {
    if (stage_ > 0) receive(x_, i, x_of_[i]);
    y_of_[i] = model.forward(x_of_[i], pieces_[i].pass);
    last_forward_ = i;
    if (!is_last()) send(y_, i, y_of_[i], communicator_.rank() + 1);
}

void Pipeline::loss(size_t i, const Batch& batch, float smoothing, Tensor dlogits, float* sums) {
    const Piece& piece = pieces_[i];
    backend_.softmax_cross_entropy(y_of_[i], piece.of(batch.labels), smoothing, dlogits, sums,
                                   {piece.of(batch.second_labels), piece.of(batch.first_parts)});
}

void Pipeline::backward(size_t i, const Batch& batch, float smoothing, float* sums) {
    const Piece& piece = pieces_[i];
    Model& model = *models_[i % models_.size()];
    if (options_.recompute && last_forward_ != i) {
        Pass again = piece.pass;
        again.again = true, again.refresh = false;
        y_of_[i] = model.forward(x_of_[i], again);
        last_forward_ = i;
    }
    const Tensor dy = model.dlogits(piece.images());
    if (is_last())
        loss(i, batch, smoothing, dy, sums);
    else
        receive(dy_, i, dy);
    // The gradients are complete with the last piece.
    GradListener nobody;
    const bool completes = i + 1 == pieces_.size();
    if (completes) reducer_->start();
    const Tensor dx =
        model.backward(dy, piece.pass, completes ? static_cast<GradListener&>(*reducer_) : nobody);
    if (stage_ > 0) send(dx_, i, dx, communicator_.rank() - 1);
}

void Pipeline::train(Tensor x, const Batch& batch, const Pass& pass, float smoothing, float* sums) {
    begin_pass(x, batch, pass);
    if (pieces_.empty()) reducer_->start();
    for (size_t forwards = 0, backwards = 0; backwards < pieces_.size();)
        if (forwards < pieces_.size() && forwards - backwards < held_) {
            forward(forwards, *models_[forwards % models_.size()]);
            ++forwards;
        } else {
            backward(backwards++, batch, smoothing, sums);
        }
}

void Pipeline::evaluate(Tensor x, const Batch& batch, float* sums) {
    begin_pass(x, batch, {false, {}, batch.samples, {}});
    for (size_t i = 0; i < pieces_.size(); ++i) {
        forward(i, *models_[0]);
        if (is_last()) loss(i, batch, 0, {nullptr, y_of_[i].shape()}, sums);
    }
}

// ---- the end of a step --------------------------------------------------------------------------

// A number that is not finite in one stage keeps all of them from updating.
bool Pipeline::finish() {
    const double waited = reducer_->seconds_waited();
    reducer_->finish();
    waited_ += reducer_->seconds_waited() - waited;
    Params& params = model_.params();
    StepBlock* const block = params.block();
    StepBlock mine;
    bool finite = true;
    double squares = 0;
    for (const Params::Range& range : params.owned) {
        if (optimizer_.clips() && range.end <= params.trained_size) {
            float* const sum = block->counters + StepCounters::kSquares;
            backend_.sum_squares(params.grads + range.begin, range.end - range.begin, sum);
        }
        backend_.check_finite(params.grads + range.begin, range.end - range.begin,
                              params.counters() + StepCounters::kCount, &block->state);
        backend_.download(&mine, block, sizeof mine);
        finite &= mine.state.first_bad < 0;
        if (range.end <= params.trained_size) squares += mine.counters[StepCounters::kSquares];
    }
    backend_.download(&mine, block, sizeof mine);
    mine.counters[StepCounters::kBad] = !finite;
    mine.counters[StepCounters::kSquares] = float(squares);
    const auto start = Clock::now();
    communicator_.allreduce_sum(mine.counters).get();
    // Who has the number names its place, and ends the job.
    if (mine.counters[StepCounters::kBad] > 0 && finite) communicator_.barrier();
    // Each rank of a group has given the sums of all of it.
    for (float& counter : mine.counters) counter /= float(replicas_);
    waited_ += seconds_since(start);
    backend_.upload(block->counters, mine.counters, sizeof mine.counters);
    return true;
}

// ---- weights and optimizer state ----------------------------------------------------------------

// Weights and optimizer state of a stage go from rank `from` to all ranks, a tensor at a time;
// rank 0 and the ranks of the stage keep them.
void Pipeline::copy_arenas(int stage, int from) {
    const LayerRange layers = stage_of(options_.cuts, stage);
    const bool keeps = communicator_.rank() == 0 || stage_ == stage;
    std::vector<float> host;
    for (const std::span<float> arena : optimizer_.arenas())
        for (const Param* param : model_.params().all()) {
            const size_t n = param->shape.elems();
            if (param->layer < layers.first || param->layer >= layers.end ||
                param->offset + n > arena.size())
                continue;
            float* const device = arena.data() + param->offset;
            host.resize(n);
            const auto bytes = std::as_writable_bytes(std::span(host));
            if (communicator_.rank() == from) backend_.download(host.data(), device, bytes.size());
            communicator_.broadcast(bytes, from);
            if (keeps && communicator_.rank() != from)
                backend_.upload(device, host.data(), bytes.size());
        }
}

void Pipeline::gather(Counters&) {
    backend_.synchronize();
    for (int stage = 1; stage < options_.stages; ++stage) copy_arenas(stage, stage);
}

void Pipeline::scatter() {
    for (int stage = 0; stage < options_.stages; ++stage) copy_arenas(stage, 0);
}

}  // namespace convoy
