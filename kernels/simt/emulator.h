// emulator.h — CUDA's execution on the CPU: grids, blocks, threads, barriers, warps, atomics.
//
// Each thread of a block is a fibre with a stack of its own. A block runs on one system thread, and
// blocks are spread over several. A fibre runs until it waits: at a barrier, or at a warp operation
// for the other lanes. Which fibre runs next is drawn from a seeded generator, so a kernel that
// lacks a barrier soon reads what has not been written yet, and fails its test.
//
// Behaviour that CUDA leaves undefined throws an Error that names kernel, block and thread.
// README.md lists what is detected, and how.
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>

#include "src/base/bf16.h"
#include "src/base/check.h"

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

namespace convoy::simt {

// ---- CUDA's types and functions that C++ does not have --------------------------------------

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

using __nv_bfloat16 = Bf16;
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {x}; }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }

template <class A, class B>
constexpr auto min(A a, B b) {
    return b < a ? b : a;
}
template <class A, class B>
constexpr auto max(A a, B b) {
    return a < b ? b : a;
}
inline float __fdividef(float x, float y) { return x / y; }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }

// ---- launches ------------------------------------------------------------------------------

constexpr int warpSize = 32;
extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;

// Streams that the calling thread creates from now on run their blocks on this many system threads.
void set_workers(int workers);
// Seed of the order in which threads and blocks run.
void set_seed(uint64_t seed);

struct Stream;
using cudaStream_t = Stream*;

class Launch {
 public:
    Launch(dim3 grid, dim3 block, size_t shared_bytes = 0, cudaStream_t stream = nullptr)
        : grid_(grid), block_(block), shared_bytes_(shared_bytes), stream_(stream) {}

    template <class... Params>
    auto kernel(const char* name, void (*function)(Params...)) {
        name_ = name;
        check(reinterpret_cast<const void*>(function));
        return [this, function](const std::type_identity_t<Params>&... args) {
            submit([launch = *this, function, args...] {  // a graph does this at each replay
                std::tuple<Params...> there(args...);
                int number = 0;
                std::apply([&](auto&... arg) { (launch.move_pointers(++number, arg), ...); },
                           there);
                launch.run([&] { std::apply(function, there); });
            });
        };
    }

 private:
    friend class Worker;
    void check(const void* function) const;
    void submit(const std::function<void()>& step) const;
    void run(const std::function<void()>& thread) const;
    // Moves all device pointers in an argument to where a kernel may use them (memory.cpp). Throws
    // where one does not point to device memory.
    template <class Arg>
    void move_pointers(int number, Arg& argument) const {
        static_assert(std::is_trivially_copyable_v<Arg>);
        if constexpr (alignof(Arg) >= alignof(void*)) {
#if __has_builtin(__builtin_clear_padding)
            __builtin_clear_padding(&argument);  // which may hold what looks like a pointer
#endif
            move_words(number, &argument, sizeof argument, std::is_pointer_v<Arg>);
        }
    }
    void move_words(int number, void* argument, size_t bytes, bool is_pointer) const;

    dim3 grid_, block_;
    size_t shared_bytes_;
    cudaStream_t stream_;
    const char* name_ = "";
};

// ---- inside a kernel -----------------------------------------------------------------------

// The source line of the caller (clang++ 14 has no std::source_location).
struct Here {
    const char* file = __builtin_FILE();
    int line = __builtin_LINE();
};

// Ends the launch with the Error "kernel …, block …, thread …: " and the text. Destroys the text,
// but no other object on the stack of the caller.
[[noreturn]] void fault(std::string&& text);
[[noreturn]] inline void __trap() { fault("__trap()"); }
std::string hex(unsigned mask);
std::string place_text();  // "kernel …, block …, thread …", empty outside of a kernel

// launch.sed replaces `__shared__` by this: one variable per block. Each has its own type `Tag`.
void* shared_bytes(const void* tag, const char* name, size_t bytes, size_t align);
template <class T, class Tag>
T& shared(const char* name, size_t align) {
    static const char tag = 0;
    return *static_cast<T*>(
        shared_bytes(&tag, name, sizeof(T), align > alignof(T) ? align : alignof(T)));
}
void* dynamic_shared_bytes();
template <class T>
T* dynamic_shared() {
    return static_cast<T*>(dynamic_shared_bytes());
}

// Waits until `threads` threads of the block are at this barrier; 0: all threads.
void barrier(int number, int threads, Here here);
inline void __syncthreads(Here here = {}) { barrier(0, 0, here); }
// A wait that is left out, so that tests/lab/barriers can see whether a test notices.
bool is_left_out(Here here);

// Waits until over(), which is asked again after each something_came().
void wait_until(const std::function<bool()>& over, const char* name, Here here);
void something_came();
// Does this when no thread of the block can go on without it.
void copy_later(std::function<void()> work);

// Every operation of a warp: each lane of `mask` brings its data and waits for the other lanes. The
// last lane to arrive calls work(lanes, mask) for all lanes. Lanes outside of the mask are null.
using WarpWork = void (*)(void* const* lanes, unsigned mask);
void warp_operation(unsigned mask, void* lane, WarpWork work, const char* name, Here here);

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, Here here = {}) {
    const unsigned own = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    struct Lane {
        T value, got;
        int from;
    } lane{value, value, int(own % warpSize) ^ bits};
    const WarpWork work = [](void* const* lanes, unsigned mask) {
        const auto lane = [&](int i) { return static_cast<Lane*>(lanes[i]); };
        for (int i = 0; i < warpSize; ++i) {
            if (!(mask >> i & 1)) continue;
            const int from = lane(i)->from;
            if (!(mask >> from & 1))
                fault(cat("lane ", i, " reads from lane ", from, ", which is not in mask ",
                          hex(mask)));
            lane(i)->got = lane(from)->value;
        }
    };
    warp_operation(mask, &lane, work, "__shfl_xor_sync", here);
    return lane.got;
}

// ---- atomics: blocks run side by side --------------------------------------------------------

// *at = min(*at, value) in one step; returns what was there before.
template <class T>
T atomicMin(T* at, std::type_identity_t<T> value) {
    std::atomic_ref<T> there(*at);
    T old = there.load();
    while (value < old && !there.compare_exchange_weak(old, value)) continue;
    return old;
}

}  // namespace convoy::simt
