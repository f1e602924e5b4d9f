// pipeline.cpp — `--sync pipeline:S:M`: each rank holds a range of the layers, a stage. A batch
// goes through the stages in M micro-batches, so that all stages work at once.
//
//   1f1b, 2 stages, 4 micro-batches     time ──►
//   stage 0   F0  F1  B0  F2  B1  F3  B2      B3       F: forward of a micro-batch, B: backward
//   stage 1       F0  B0  F1  B1  F2  B2  F3  B3       ──► activations of the stage (forward)
//                                                      ◄── their gradient (backward)
//   ranks    pipeline 0: stage 0 … S−1, pipeline 1: stage 0 … S−1, …     rank = pipeline·S + stage
//
//   time of a step    (M + S − 1)/M · T/S    for a model that takes T, if all stages take as long:
//                     the rest is the bubble, with M = 8 and S = 2 a ninth
//   bytes per cut     2 · images · floats at the cut · 4, half with --wire bf16
//   memory            weights, gradients and optimizer state of one stage (on CPUs), and the
//                     activations of up to S − s + 1 micro-batches in stage s
//
// The order is 1f1b: Narayanan et al., "PipeDream" (SOSP 2019), with one update per step, as in
// Megatron-LM. Neighbours exchange activations over direct links (net/ring/messenger.h). The
// ranks of a stage sum their gradients on a ring of their own. Rank 0 gets the weights and the
// optimizer state of all stages for a checkpoint. See modes.md.
#include <algorithm>
#include <bit>
#include <memory>
#include <vector>

#include "net/ring/messenger.h"
#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/step/grad_reducer.h"
#include "src/step/stages.h"

namespace convoy {
namespace {

class Pipeline final : public Sync {
 public:
    // The model is this rank's stage, and expects batches as large as its pipeline's share. The
    // model must not be planned, because twins of it compute the passes.
    explicit Pipeline(const SyncParts& parts)
        : Sync(parts.communicator, parts.model.params(), parts.backend),
          stages_(parts.options.config.pipeline),
          stage_(communicator_.rank() % stages_),
          pipelines_(communicator_.world() / stages_),
          images_(stage_images(parts.options.config, pipelines_, parts.model.has_batch_norm())),
          wire_type_(parts.options.config.wire == WireType::kBf16 ? Type::kBfloat16
                                                                  : parts.backend.activations()),
          cuts_(parts.options.cuts),
          model_(parts.model),
          optimizer_(parts.optimizer) {
        const int rank = communicator_.rank();
        ENSURE(communicator_.world() == pipelines_ * stages_, communicator_.world(), " ranks");
        std::vector<int> neighbours, twins;
        if (stage_ > 0) neighbours.push_back(rank - 1);
        if (!is_last()) neighbours.push_back(rank + 1);
        messenger_ = communicator_.open_messenger(neighbours);
        for (int r = 0; r < pipelines_; ++r) twins.push_back(r * stages_ + stage_);
        group_ =
            pipelines_ > 1 ? communicator_.open_group(twins) : std::make_unique<Communicator>();
        Config summing = parts.options.config;
        summing.factors = FactorMode::kOff;
        reducer_ = std::make_unique<GradReducer>(params_, backend_, *group_, summing,
                                                 parts.options.bucket_bytes, parts.options.track);

        // One more than 1f1b needs, so that the next stage does not wait for the network.
        const size_t held = std::min(BatchCutter::most(images_, model_.max_batch()),
                                     size_t(stages_ - stage_ + !is_last()));
        for (size_t i = 0; i < held; ++i) {
            models_.push_back(model_.twin());
            activation_bytes_ += models_.back()->plan(std::min(images_, model_.max_batch()), true);
        }
        const auto& outline = model_.outline();
        if (stage_ > 0) {
            const Shape image = outline[cuts_[size_t(stage_)]].input;
            x_ = make_crossing(image), dx_ = make_crossing(image);
            const Type type = backend_.activations();
            for (const Tensor& wire : x_.wire)
                inputs_.push_back(wire.type == type ? wire : backend_.alloc(wire.shape(), type));
        }
        if (!is_last()) {
            const Shape image = outline[cuts_[size_t(stage_) + 1]].input;
            y_ = make_crossing(image), dy_ = make_crossing(image);
        }
        // n and `wanted`, whether labels are mixed, and five numbers per image.
        meta_.resize(3 + 5 * size_t(model_.max_batch()));
    }

    // The first stage reads the batch. Each stage sends labels and sample numbers to the next.
    const Batch& take(const Batch& own) override {
        const auto bytes = std::as_writable_bytes(std::span(meta_));
        const auto image = [&](size_t i) { return meta_.data() + 3 + 5 * i; };
        wait(meta_on_way_);
        if (stage_ == 0) {
            const bool is_mixed = !own.second_labels.empty();
            meta_[0] = uint64_t(own.n), meta_[1] = uint64_t(own.wanted), meta_[2] = is_mixed;
            for (size_t i = 0; i < size_t(own.n); ++i) {
                uint64_t* const m = image(i);
                m[0] = own.samples[i], m[1] = uint64_t(own.labels[i]),
                m[2] = uint64_t(own.positions[i]);
                if (!is_mixed) continue;
                m[3] = uint64_t(own.second_labels[i]);
                m[4] = std::bit_cast<uint32_t>(own.first_parts[i]);
            }
        } else {
            std::future<void> message = messenger_->receive(communicator_.rank() - 1, bytes);
            wait(message);
            batch_.n = int(meta_[0]), batch_.wanted = int(meta_[1]);
            ENSURE(batch_.n >= 0 && batch_.n <= model_.max_batch(), batch_.n, " images");
            batch_.global_wanted = own.global_wanted, batch_.number = own.number;
            const size_t n = size_t(batch_.n), mixed = meta_[2] ? n : 0;
            batch_.samples.resize(n), batch_.labels.resize(n), batch_.positions.resize(n);
            batch_.second_labels.resize(mixed), batch_.first_parts.resize(mixed);
            for (size_t i = 0; i < n; ++i) {
                const uint64_t* const m = image(i);
                batch_.samples[i] = m[0], batch_.labels[i] = int32_t(m[1]);
                batch_.positions[i] = int32_t(m[2]);
                if (!mixed) continue;
                batch_.second_labels[i] = int32_t(m[3]);
                batch_.first_parts[i] = std::bit_cast<float>(uint32_t(m[4]));
            }
        }
        if (!is_last()) meta_on_way_ = messenger_->send(communicator_.rank() + 1, bytes);
        return stage_ == 0 ? own : batch_;
    }

    void run(std::span<MicroBatch> parts, const Work& forward, const Work& backward) override {
        if (stage_ > 0) expect(x_, communicator_.rank() - 1, parts);
        if (!is_last() && backward) expect(dy_, communicator_.rank() + 1, parts);
        for (size_t begun = 0, done = 0; done < parts.size();)
            if (begun < parts.size() && begun - done < models_.size()) {
                forward_one(parts[begun++], forward);
                if (!backward) ++done;
            } else {
                backward_one(parts[done++], backward);
            }
    }

    // The last stage counts the images, the first stage those that did not decode.
    void count_once(Counters& counters) const override {
        if (!is_last()) counters[StepCounters::kCount] = 0;
        if (stage_ > 0) counters[StepCounters::kSkipped] = 0;
    }
    int images(const Model&) const override { return images_; }
    size_t activation_bytes() const override { return activation_bytes_; }

    void start(std::span<const int64_t>) override { reducer_->start(); }
    void ready(const Param& param) override { reducer_->ready(param); }
    // If a number in one stage is not finite, no stage updates its weights.
    bool finish() override {
        reducer_->finish();
        StepBlock* const block = params_.block();
        StepBlock mine;
        bool finite = true;
        double squares = 0;
        for (const Params::Range& range : params_.owned) {
            if (optimizer_.clips() && range.end <= params_.trained_size) {
                float* const sum = block->counters + StepCounters::kSquares;
                backend_.sum_squares(params_.grads + range.begin, range.size(), sum);
            }
            backend_.check_finite(params_.grads + range.begin, range.size(),
                                  params_.counters() + StepCounters::kCount, &block->state);
            backend_.download(&mine, block, sizeof mine);
            finite &= mine.state.first_bad < 0;
            if (range.end <= params_.trained_size) squares += mine.counters[StepCounters::kSquares];
        }
        backend_.download(&mine, block, sizeof mine);
        mine.counters[StepCounters::kBad] = !finite;
        mine.counters[StepCounters::kSquares] = float(squares);
        const auto start = Clock::now();
        communicator_.allreduce_sum(mine.counters).get();
        // The rank with the bad number names its place, and ends the job.
        if (mine.counters[StepCounters::kBad] > 0 && finite) communicator_.barrier();
        // Each rank of a group has given the sums of the whole group.
        for (float& counter : mine.counters) counter /= float(pipelines_);
        waited_ += seconds_since(start);
        backend_.upload(block->counters, mine.counters, sizeof mine.counters);
        return true;
    }

    Meeting meeting(int64_t) const override { return Meeting::kLater; }
    void meet(Counters&) override {
        backend_.synchronize();
        for (int stage = 1; stage < stages_; ++stage) copy_stage(stage, stage);
    }
    bool scatter(bool fresh) override {
        for (int stage = 0; stage < stages_ && !fresh; ++stage) copy_stage(stage, 0);
        return true;
    }
    bool holds_all() const override { return false; }
    std::optional<Twins> twins(bool) override { return Twins{*group_, stage_, stages_}; }

    // For other stages, and other pipelines.
    double seconds_waited() const override { return waited_ + reducer_->seconds_waited(); }
    std::string traffic() const override {
        return cat(stages_, " stages, ", pipelines_, pipelines_ > 1 ? " pipelines" : " pipeline",
                   "; a lost rank ends the job: --elastic does not work with pipelines");
    }

 private:
    // What crosses a cut in one direction, by micro-batch.
    struct Crossing {
        std::vector<Tensor> wire = {};      // in the device's memory
        std::vector<std::byte*> host = {};  // the same memory, or a copy that the network can read
        std::vector<std::future<void>> on_way = {};
    };
    bool is_last() const { return stage_ + 1 == stages_; }
    Crossing make_crossing(Shape image) {
        Crossing crossing;
        image.N = std::min(images_, model_.max_batch());
        crossing.on_way.resize(BatchCutter::most(images_, model_.max_batch()));
        for (size_t i = 0; i < crossing.on_way.size(); ++i) {
            const Tensor wire = crossing.wire.emplace_back(backend_.alloc(image, wire_type_));
            activation_bytes_ += wire.bytes();
            crossing.host.push_back(reinterpret_cast<std::byte*>(
                backend_.host_visible() ? wire.data : backend_.alloc_host((wire.bytes() + 3) / 4)));
        }
        return crossing;
    }

    // Starts to receive all micro-batches of the pass from `rank`, in order.
    void expect(Crossing& crossing, int rank, std::span<const MicroBatch> parts) {
        for (size_t i = 0; i < parts.size(); ++i) {
            const size_t bytes = crossing.wire[i].first(parts[i].images()).bytes();
            crossing.on_way[i] = messenger_->receive(rank, {crossing.host[i], bytes});
        }
    }

    void send(Crossing& crossing, size_t number, Tensor what, int rank) {
        wait(crossing.on_way[number]);  // of the pass before
        const Tensor wire = crossing.wire[number].first(what.N);
        backend_.copy(wire, what);
        if (backend_.host_visible())
            backend_.synchronize();
        else
            backend_.download(crossing.host[number], wire.data, wire.bytes());
        crossing.on_way[number] = messenger_->send(rank, {crossing.host[number], wire.bytes()});
    }

    void receive(Crossing& crossing, size_t number, Tensor to) {
        wait(crossing.on_way[number]);
        const Tensor wire = crossing.wire[number].first(to.N);
        if (!backend_.host_visible())
            backend_.upload(wire.data, crossing.host[number], wire.bytes());
        if (to.data != wire.data) backend_.copy(to, wire);
    }

    void wait(std::future<void>& message) {
        if (!message.valid()) return;
        const auto start = Clock::now();
        messenger_->wait(message);
        waited_ += seconds_since(start);
    }

    void forward_one(MicroBatch& part, const Work& forward) {
        const size_t number = size_t(part.number);
        part.model = models_[number % models_.size()].get();
        if (stage_ > 0) receive(x_, number, part.x = inputs_[number].first(part.images()));
        forward(part);
        if (!is_last()) send(y_, number, part.y, communicator_.rank() + 1);
    }

    void backward_one(MicroBatch& part, const Work& backward) {
        const size_t number = size_t(part.number);
        if (!is_last()) receive(dy_, number, part.dy = part.model->dlogits(part.images()));
        backward(part);
        if (stage_ > 0) send(dx_, number, part.dx, communicator_.rank() - 1);
    }

    // Sends weights and optimizer state of a stage from rank `from` to all ranks, one tensor at a
    // time. Only rank 0 and the ranks of the stage keep them.
    void copy_stage(int stage, int from) {
        const LayerRange layers = stage_of(cuts_, stage);
        const bool keeps = communicator_.rank() == 0 || stage_ == stage;
        std::vector<float> host;
        for (const std::span<float> arena : optimizer_.arenas())
            for (const Param* param : params_.all()) {
                const size_t n = param->shape.elems();
                if (param->layer < layers.first || param->layer >= layers.end ||
                    param->offset + n > arena.size())
                    continue;
                float* const device = arena.data() + param->offset;
                host.resize(n);
                const auto bytes = std::as_writable_bytes(std::span(host));
                if (communicator_.rank() == from)
                    backend_.download(host.data(), device, bytes.size());
                communicator_.broadcast(bytes, from);
                if (keeps && communicator_.rank() != from)
                    backend_.upload(device, host.data(), bytes.size());
            }
    }

    const int stages_, stage_, pipelines_;
    const int images_;  // most images of a micro-batch
    const Type wire_type_;
    const std::vector<size_t> cuts_;  // the first layer of each stage
    Model& model_;
    Optimizer& optimizer_;
    std::unique_ptr<Communicator> group_;  // this stage of all pipelines
    std::unique_ptr<GradReducer> reducer_;
    std::vector<std::unique_ptr<Model>> models_;  // as many micro-batches wait for their backward
    Crossing x_, y_, dx_, dy_;                    // of this stage
    std::vector<Tensor> inputs_;                  // of a later stage, by micro-batch
    size_t activation_bytes_ = 0;
    std::vector<uint64_t> meta_;            // size, labels and sample numbers of a batch
    std::future<void> meta_on_way_;         // to the next stage
    Batch batch_;                           // of a later stage than the first
    std::shared_ptr<Messenger> messenger_;  // last: its thread reads and writes the members above
};

}  // namespace

std::unique_ptr<Sync> make_pipeline(const SyncParts& parts) {
    return std::make_unique<Pipeline>(parts);
}

}  // namespace convoy
