// memory_plan.h — the lifetime of each activation, and its offset in one block of memory. Planning
// runs the step once without data: every layer declares what it writes and reads, in the order of
// the step. A buffer lives from the tick (operation) that creates it to the last tick that uses it.
// Buffers whose lifetimes do not overlap share memory. Placement is greedy: the largest buffer
// first, each at the lowest free offset. Pisarchyk and Lee, "Efficient Memory Management for Deep
// Neural Net Inference" (2020), section 5.
#pragma once

#include <cstddef>
#include <deque>
#include <initializer_list>

#include "kernels/backend.h"

namespace convoy {

// What later operations still read of a tensor x. It decides which ops may work in place.
enum class Keep {
    kNothing,  // x may be overwritten
    kSign,     // only the sign of x is needed later: an op that keeps x > 0 may overwrite x
    kValues,   // x must not be changed
};

struct PlannedBuffer {
    size_t bytes = 0, offset = 0;
    int birth = 0, death = 0;  // the first and the last tick of its lifetime
    char* data = nullptr;      // set by place()
};

// A planned tensor with the size for the largest batch. It must not outlive its plan.
struct Value {
    PlannedBuffer* buffer = nullptr;  // null: memory of the caller, or no tensor
    Shape shape;
    Keep keep = Keep::kNothing;
    Type type = Type::kFloat32;

    explicit operator bool() const { return buffer; }
    Value as(Shape other) const { return {buffer, other, keep, type}; }
    // Its first N images, after place(); an empty Tensor if there is no buffer.
    Tensor first(int N) const {
        if (!buffer) return {};
        ENSURE(buffer->data, "a planned tensor is read before place()");
        return {buffer->data, {N, shape.H, shape.W, shape.C}, type};
    }
    // x, copied to this buffer if there is one.
    Tensor copy_of(Tensor x, Backend& backend) const {
        if (!buffer) return x;
        const Tensor copy = first(x.N);
        backend.copy(copy, x);
        return copy;
    }
};

class MemoryPlan {
 public:
    // share = false: values share no memory (for tests). type: of activations.
    explicit MemoryPlan(bool share = true, Type type = Type::kFloat32)
        : type_(type), share_(share) {}

    Type type() const { return type_; }

    // The next operation of the step, which reads these values: starts the next tick.
    void op(std::initializer_list<Value> reads) {
        ++now_;
        for (const Value& value : reads) use(value);
    }
    void use(Value value);                                  // this tick reads or writes it
    Value make(Shape shape) { return make(shape, type_); }  // this tick creates it
    Value make(Shape shape, Type type);
    Value kept(Value value, Keep keep) const {
        value.keep = share_ ? keep : Keep::kValues;
        return value;
    }

    void place(Backend& backend);  // allocates the block; then Value::first() may be called
    size_t block_bytes() const { return block_bytes_; }

 private:
    const Type type_;
    const bool share_;
    std::deque<PlannedBuffer> buffers_;  // Values point to them
    int now_ = 0;
    bool placed_ = false;
    size_t block_bytes_ = 0;
};

}  // namespace convoy
