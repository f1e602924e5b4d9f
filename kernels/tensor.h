// tensor.h — a view of elements with a shape. It never owns memory, which belongs to a Backend.
//
// One layout from the decoded JPEG to the logits: NHWC, the channel fastest. Weights of a
// convolution are K×R×S×C (so N is K, H is R, W is S), of a linear layer out×in (N×1×1×C). Each
// letter has one meaning everywhere; the lower-case letter is an index along that dimension:
//   N    images of the batch          K    output channels
//   H W C  input rows, columns, channels   P Q  output rows, columns
//   R S  filter rows, columns         x y w  input, output, weights; dx dy dw  their gradients
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "src/base/check.h"

namespace convoy {

struct Shape {
    int N = 0, H = 1, W = 1, C = 1;

    size_t elems() const { return size_t(N) * H * W * C; }
    size_t row_elems() const { return size_t(H) * W * C; }  // of one image
    bool operator==(const Shape&) const = default;
    std::string text() const { return cat(N, "x", H, "x", W, "x", C); }
};

// Floats, or their upper halves (bfloat16: 1 bit of sign, 8 of exponent, 7 of mantissa).
enum class Type : uint8_t { kFloat32, kBfloat16 };
constexpr size_t bytes_of(Type type) { return type == Type::kFloat32 ? 4 : 2; }
constexpr const char* name_of(Type type) { return type == Type::kFloat32 ? "fp32" : "bf16"; }

struct Tensor {
    void* data = nullptr;
    int N = 0, H = 1, W = 1, C = 1;
    Type type = Type::kFloat32;

    Tensor(std::nullptr_t = nullptr) {}  // no tensor, for an optional argument
    Tensor(float* data, int N, int H, int W, int C) : data(data), N(N), H(H), W(W), C(C) {}
    Tensor(float* data, Shape s) : Tensor(data, s, Type::kFloat32) {}
    Tensor(void* data, Shape s, Type type)
        : data(data), N(s.N), H(s.H), W(s.W), C(s.C), type(type) {}

    Shape shape() const { return {N, H, W, C}; }
    size_t elems() const { return shape().elems(); }
    size_t bytes() const { return elems() * bytes_of(type); }
    explicit operator bool() const { return data != nullptr; }

    // Throws Error if the elements are not floats.
    float* floats() const {
        ENSURE(type == Type::kFloat32, "a tensor ", shape().text(), " of ", name_of(type));
        return static_cast<float*>(data);
    }
    // The same memory in another shape, or only its first images.
    Tensor as(Shape shape) const { return {data, shape, type}; }
    Tensor first(int images) const { return {data, {images, H, W, C}, type}; }
    // Images [begin, end).
    Tensor images(int begin, int end) const {
        const size_t skipped = size_t(begin) * shape().row_elems() * bytes_of(type);
        return {static_cast<char*>(data) + skipped, {end - begin, H, W, C}, type};
    }
};

// The elements of a tensor, which must have type T; null if there is no tensor.
template <class T>
T* elements(Tensor x) {
    constexpr Type type = sizeof(T) == sizeof(float) ? Type::kFloat32 : Type::kBfloat16;
    ENSURE(!x || x.type == type, "a tensor ", x.shape().text(), " of ", name_of(x.type),
           " among others of ", name_of(type));
    return static_cast<T*>(x.data);
}

}  // namespace convoy
