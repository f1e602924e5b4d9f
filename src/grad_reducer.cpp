// grad_reducer.cpp — see grad_reducer.h.
#include "src/grad_reducer.h"

#include <algorithm>
#include <chrono>

#include "src/base/check.h"

namespace convoy {

GradReducer::GradReducer(Params& params, Backend& backend, Communicator& communicator,
                         const ReducerOptions& options)
    : params_(params),
      backend_(backend),
      communicator_(communicator),
      staged_(!backend.host_visible() && communicator.world() > 1),
      arena_(staged_ ? backend.alloc_host(params.grads_size) : params.grads) {
    cut(options);
}

void GradReducer::cut(const ReducerOptions& options) {
    // Statistics and tail are ready before the backward pass begins. They hold counts and what is
    // kept for long: in pieces so small that they travel exactly whatever the wire.
    constexpr size_t kPiece = Communicator::kExactBytes / sizeof(float);
    for (size_t end = params_.grads_size; end > params_.trained_size;) {
        const size_t begin = std::max(params_.trained_size, end > kPiece ? end - kPiece : 0);
        parcels_.push_back({begin, end, 0, 0, nullptr, 0});
        end = begin;
    }
    std::vector<Param*> rows = params_.rows();
    std::erase_if(rows, [](Param* row) { return row->running || row->frozen; });
    std::reverse(rows.begin(), rows.end());
    const auto layer_of = [&](const Param* row) {
        return std::find_if(options.factors.begin(), options.factors.end(), [&](const auto& layer) {
            return layer.use && (layer.w == row || layer.b == row);
        });
    };
    std::vector<TravelRow> sizes;
    size_t end = params_.trained_size;
    for (const Param* row : rows) {
        const auto layer = layer_of(row);
        const bool as_factors = layer != options.factors.end();
        sizes.push_back({end - row->offset, as_factors, as_factors && layer->b == row});
        end = row->offset;
    }
    for (const ParcelRows& part : cut_rows(sizes, options.bucket_bytes)) {
        const Param *first = rows[part.begin], *last = rows[part.end - 1];
        parcels_.push_back({last->offset, first->offset + sizes[part.begin].floats,
                            int(part.end - part.begin), 0, nullptr, 0});
        if (part.as_factors)
            parcels_.back().factors =
                std::make_unique<Factors>(*layer_of(first), options.batch, backend_, communicator_);
    }
}

void GradReducer::start(std::span<const int64_t> rows) {
    next_ = 0;
    sums_.clear();
    for (Parcel& parcel : parcels_) {
        parcel.left = parcel.rows;
        if (parcel.factors) parcel.factors->start(rows);
    }
    take_complete();
}

Ready GradReducer::listener() {
    return {[this](const Param& row) { ready(row); },
            [this](const Param& w, const Param*, Tensor x, Tensor dy) {
                return take_factors(w, x, dy);
            }};
}

GradReducer::Parcel& GradReducer::parcel_of(const Param& row) {
    const auto parcel = std::find_if(parcels_.begin(), parcels_.end(), [&](const Parcel& p) {
        return p.begin <= row.offset && row.offset < p.end;
    });
    ENSURE(parcel != parcels_.end(), row.name, " is in no parcel");
    return *parcel;
}

void GradReducer::ready(const Param& row) {
    if (row.running || row.frozen) return;
    Parcel& parcel = parcel_of(row);
    ENSURE(parcel.left > 0, row.name, " is ready twice in a step");
    --parcel.left;
    take_complete();
}

bool GradReducer::take_factors(const Param& w, Tensor x, Tensor dy) {
    Parcel& parcel = parcel_of(w);
    if (!parcel.factors) return false;
    parcel.factors->put(x, dy);
    ready(w);
    return true;
}

void GradReducer::take_complete() {
    for (; next_ < parcels_.size() && parcels_[next_].left == 0; ++next_) {
        Parcel& parcel = parcels_[next_];
        if (!staged_)
            send(parcel);
        else if (parcel.factors)
            parcel.factors->stage();
        else
            parcel.download = backend_.start_download(
                arena_ + parcel.begin, params_.grads + parcel.begin, parcel.end - parcel.begin);
    }
}

void GradReducer::send(Parcel& parcel) {
    if (parcel.factors) {
        parcel.factors->send();
        return;
    }
    if (communicator_.world() == 1) return;
    if (staged_)
        backend_.wait_download(parcel.download);
    else
        backend_.synchronize();
    sums_.push_back(
        communicator_.allreduce_sum({arena_ + parcel.begin, parcel.end - parcel.begin}));
}

template <class Wait>
void GradReducer::wait_for(Wait&& wait, std::exception_ptr& first) {
    const auto begin = std::chrono::steady_clock::now();
    try {
        wait();
    } catch (...) {
        if (!first) first = std::current_exception();
    }
    waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void GradReducer::finish() {
    for (Parcel& parcel : parcels_) parcel.left = 0;
    take_complete();
    if (staged_)
        for (Parcel& parcel : parcels_) send(parcel);
    // Wait for all before throwing: the communicator writes into the arena until then. Gradients
    // are formed from factors while the last buckets still travel.
    std::exception_ptr first;
    for (Parcel& parcel : parcels_) {
        if (!parcel.factors) continue;
        wait_for([&] { parcel.factors->wait(); }, first);
        if (!first) parcel.factors->add_gradient();
    }
    auto sum = sums_.begin();
    for (Parcel& parcel : parcels_) {
        if (parcel.factors || sum == sums_.end()) continue;
        wait_for([&] { (sum++)->get(); }, first);
        if (staged_ && !first)
            backend_.to_device(arena_ + parcel.begin, params_.grads + parcel.begin,
                               parcel.end - parcel.begin);
    }
    if (first) std::rethrow_exception(first);
}

}  // namespace convoy
