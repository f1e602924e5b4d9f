// grad_reducer.h — sums the gradients over the ranks while the backward pass goes on.
//
//   arena      | row 0 | row 1 | … | row n−1 | statistics | tail |
//   buckets    |     bucket 2     |  bucket 1  |     bucket 0     |   cut from the back (the last
//                                                                    two in pieces of 16 KB)
//
//   compute    forward ─ loss ─ backward: row n−1 … row 0 ───────┐
//   network                 └ bucket 0 ─ bucket 1 ─ … ─ last ────┴ finish() waits for the rest
//
// The backward pass completes rows from the back to the front. A bucket whose rows are all ready
// is handed to the communicator; buckets go in the same order on every rank, also on a rank with
// nothing to train in this step. The only class that knows both Backend and Communicator.
#pragma once

#include <cstdint>
#include <future>
#include <vector>

#include "net/communicator.h"
#include "src/params.h"

namespace convoy {

class GradReducer {
 public:
    // bucket_bytes: size at which a bucket is closed; the first is a fourth of that, so that the
    // network starts early. All three must outlive the reducer.
    GradReducer(Params& params, Backend& backend, Communicator& communicator, size_t bucket_bytes);

    // A step begins: tail and statistics are complete, no row is.
    void start();
    // All additions to this row are done. Hands over what has become complete.
    void ready(const Param& row);
    // Hands over the rest (rows that were never ready count as they are) and waits until every sum
    // has arrived. Throws the communicator's Error; the gradients are then undefined, and weights
    // were not touched.
    void finish();

    double seconds_waited() const { return waited_; }  // in finish(): what was not hidden
    size_t buckets() const { return buckets_.size(); }

 private:
    struct Bucket {
        size_t begin, end;  // floats of the gradient arena
        int rows, left;     // trained rows that touch it, and those not ready yet
    };
    void send_complete();

    Params& params_;
    Backend& backend_;
    Communicator& communicator_;
    std::vector<Bucket> buckets_;
    size_t next_ = 0;  // bucket to hand over next
    std::vector<std::future<void>> sums_;
    double waited_ = 0;
};

}  // namespace convoy
