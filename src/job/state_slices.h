// state_slices.h — newcomers get the state of a job, while it trains.
//
//   newcomer   sums only, its share is 0                                    then its share
//   slices        [ 1 ]  [  2  ]  [    3    ] …
//   the others [ step ][ step ][ step ] …        forward: a slice on the ring, backward: sums
//
// Before each step the ranks that have the state send a slice of it around the ring, each a part:
// the same floats of the weights and of each arena of the optimizer's state, as they are then. A
// newcomer has the sums of all steps, and updates all its weights by them as the others do: what it
// has got stays right, what it has not got yet is overwritten. So nobody keeps sums, and nothing is
// done again.
//
// A slice is as large as the ring can carry while it has nothing else to do, so that steps take
// hardly longer; its size is agreed on by notes that go around before it. With LARS, LAMB and Muon
// the whole of a tensor is the least, however large.
#pragma once

#include <future>
#include <vector>

#include "net/communicator.h"
#include "src/train/optimizer.h"

namespace convoy {

class StateSlices {
 public:
    // newcomers: the ranks that have no state, the same on all. seconds: how long the ring may be
    // busy with one slice, for this rank; first_bytes: about the size of the first one, on
    // all ranks; the next ones follow from how fast it was. All must outlive this.
    StateSlices(Params& params, const Optimizer& optimizer, Backend& backend,
                Communicator& communicator, std::vector<int> newcomers, double seconds,
                size_t first_bytes);
    ~StateSlices();  // waits for a slice that is under way

    // On all ranks before the same step: takes the slice that was sent last and sends the next one,
    // or all of the rest. Newcomers wait for it, and have it when this returns. False: all have the
    // whole state, and nothing was sent. Throws the communicator's Error.
    bool pass(bool rest = false);

    bool is_newcomer(int rank) const;
    int slices() const { return slices_; }  // so far
    double bytes() const;                   // of all

 private:
    // What each rank tells the others before a slice.
    struct Note {
        float may_take = 0;  // seconds, on a rank that has the state
        float took = 0;      // seconds that the last slice took, on a newcomer; 0: none yet
    };
    template <class Copy>
    void for_each_run(size_t first, size_t last, Copy copy);
    size_t floats_of(size_t begin, size_t end) const;
    size_t longest() const;  // floats of the longest arena
    size_t next_end() const;
    void finish();

    Params& params_;
    const std::vector<std::span<float>> arenas_;  // Optimizer::arenas
    const bool by_tensor_;                        // then a slice has whole tensors
    Backend& backend_;
    Communicator& communicator_;
    const std::vector<int> newcomers_;
    const double seconds_;
    size_t begin_ = 0, end_ = 0;   // of the last slice, in each arena
    size_t wanted_;                // bytes of the next one
    size_t last_bytes_ = 0;        // of the slice whose time comes with the next one
    double took_ = 0;              // seconds, on a newcomer
    double bytes_per_second_ = 0;  // of the slowest newcomer
    int slices_ = 0;
    std::vector<Note> notes_;               // by rank
    std::vector<float> buffer_;             // the slice
    std::vector<std::span<float>> blocks_;  // of it, by rank
    std::future<void> notes_sent_, sent_;
};

}  // namespace convoy
