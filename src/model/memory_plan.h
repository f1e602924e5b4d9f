// memory_plan.h — which activation lives when, and where in one block of memory.
//
// Planning runs the step once without data: every layer says what it makes and what it reads, in
// the order of the step. A buffer lives from the tick in which it is made to the last in which it
// is used; buffers whose lives do not meet share memory. Placement is greedy by size, largest
// first, each at the lowest free offset: Pisarchyk and Lee, "Efficient Memory Management for Deep
// Neural Net Inference" (2020), section 5.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/backend.h"

namespace convoy {

// What others will still read of a tensor: decides who may work in place.
enum class Keep {
    kNothing,  // may be overwritten
    kSign,     // may be overwritten if x > 0 stays as it is, or is lost only where dx will be 0
    kValues,   // must stay
};

// A planned tensor: which buffer (-1: memory of the caller, not planned), its largest shape, and
// what it holds.
struct Value {
    int buffer = -1;
    Shape shape;
    Keep keep = Keep::kNothing;
    Type type = Type::kFloat32;
};

class MemoryPlan {
 public:
    // share = false: every value has its own memory and nobody works in place (to test against).
    // type: what activations and their gradients are held as.
    explicit MemoryPlan(bool share = true, Type type = Type::kFloat32)
        : type_(type), share_(share) {}

    Type type() const { return type_; }

    void tick() { ++now_; }                                 // the next operation of the step
    Value make(Shape shape) { return make(shape, type_); }  // born in this tick
    Value make(Shape shape, Type type);
    void use(Value value);  // read or written in this tick (not planned: nothing to do)
    static Value reshaped(Value value, Shape shape) {
        value.shape = shape;
        return value;
    }
    Value kept(Value value, Keep keep) const {
        value.keep = share_ ? keep : Keep::kValues;
        return value;
    }

    void place(Backend& backend);  // allocates the block; then at() may be called
    Tensor at(Value value) const;  // without data where not planned
    size_t block_bytes() const { return block_bytes_; }
    size_t total_bytes() const;  // what it would be without sharing

 private:
    struct Buffer {
        size_t bytes, offset;
        int birth, death;
    };
    const Type type_;
    std::vector<Buffer> buffers_;
    int now_ = 0;
    bool share_, placed_ = false;
    size_t block_bytes_ = 0;
    char* block_ = nullptr;
};

}  // namespace convoy
