// worker.cpp — runs one block at a time: its threads are fibres, resumed in a random order until
// all have ended. Boost.Context switches between them in nanoseconds.
#include "kernels/simt/worker.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace convoy::simt {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

constinit thread_local uint3 threadIdx{}, blockIdx{};
constinit thread_local dim3 blockDim, gridDim;

namespace {

constinit thread_local Worker* current = nullptr;

constexpr int kMaxThreads = 1024;
constexpr uint64_t kCanary = 0x5742FA11D0C0DE5Eull;  // at the low end of each stack

constexpr size_t kStackBytes = kSanitized ? 256 << 10 : 64 << 10;
constexpr size_t kArenaBytes = 512 << 10;  // 227 KB, and gaps around some hundred variables
constexpr size_t kGap = 64;
constexpr char kGapByte = 0x6B;

std::string text_of(uint3 v) { return cat("(", v.x, ",", v.y, ",", v.z, ")"); }

// "kernels/cuda/pool.cu:31"
std::string text_of(Here here) { return cat(here.file, ":", here.line); }

}  // namespace

Worker::Worker() : arena_(static_cast<char*>(std::aligned_alloc(1024, kArenaBytes)), std::free) {
    void* region = mmap(nullptr, kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED)
        fail("simt: no address space for the stacks of ", kMaxThreads,
             " threads: ", std::strerror(errno));
    if (!arena_) fail("simt: no memory for shared memory");
    stacks_ = static_cast<char*>(region);
}

Worker::~Worker() {
    drop_fibres();
    allow(arena_.get(), kArenaBytes);
    munmap(stacks_, kMaxThreads * kStackBytes);
}

char* Worker::stack_of(int fibre) const { return stacks_ + size_t(fibre) * kStackBytes; }

int Worker::idle_fibre() {
    if (idle_.empty()) {
        idle_.push_back(int(fibres_.size()));
        char* stack = stack_of(idle_.back());
        std::memcpy(stack, &kCanary, sizeof kCanary);
        fibres_.push_back(make_fcontext(stack + kStackBytes, kStackBytes, enter));
    }
    const int fibre = idle_.back();
    idle_.pop_back();
    return fibre;
}

// The first function on a fibre's stack. Runs one thread of a block after the other.
void Worker::enter(transfer_t from) {
    Worker& worker = *static_cast<Worker*>(from.data);
    arrive_on_stack(nullptr, &worker.scheduler_stack_, &worker.scheduler_stack_bytes_);
    worker.scheduler_ = from.fctx;
    for (;;) {
        (*worker.body_)();
        worker.threads_[worker.now_].state = State::kDone;
        worker.suspend();
    }
}

void Worker::suspend() {
    void* fake = nullptr;
    leave_stack(&fake, scheduler_stack_, scheduler_stack_bytes_);
    const transfer_t from = jump_fcontext(scheduler_, nullptr);
    // The next block may be run by another system thread, on another stack.
    arrive_on_stack(fake, &scheduler_stack_, &scheduler_stack_bytes_);
    scheduler_ = from.fctx;
}

uint3 Worker::index_of(int thread) const {
    const unsigned t = unsigned(thread);
    const dim3 size = launch_->block_;
    return {t % size.x, t / size.x % size.y, t / size.x / size.y};
}

void Worker::resume(int number) {
    Thread& thread = threads_[number];
    if (thread.fibre < 0) thread.fibre = idle_fibre();
    now_ = number;
    threadIdx = index_of(number);
    void* fake = nullptr;
    leave_stack(&fake, stack_of(thread.fibre), kStackBytes);
    const transfer_t from = jump_fcontext(fibres_[thread.fibre], this);
    arrive_on_stack(fake, nullptr, nullptr);
    fibres_[thread.fibre] = from.fctx;
    if (thread.state == State::kDone) idle_.push_back(thread.fibre);
}

void Worker::run_block(const Launch& launch, const std::function<void()>& body, uint3 block,
                       uint64_t seed) {
    launch_ = &launch, body_ = &body, order_ = Order(seed), current = this;
    blockIdx = block, blockDim = launch.block_, gridDim = launch.grid_;
    begin_shared(launch.shared_bytes_);
    const int count = int(blockDim.x * blockDim.y * blockDim.z);
    threads_.assign(count, Thread{State::kReady, -1, {}, "", 0, nullptr, nullptr, 0, 0});
    std::ranges::fill(at_barrier_, 0);
    fault_.clear(), ready_.clear(), late_.clear();
    for (int thread = 0; thread < count; ++thread) make_ready(thread);
    while (fault_.empty()) {
        if (!ready_.empty()) {
            const int thread = ready_.back();
            ready_.pop_back();
            resume(thread);
        } else if (std::ranges::all_of(threads_, [](auto& t) { return t.state == State::kDone; })) {
            if (!late_.empty()) fault_ = cat(place(), ": ended before a copy of its block arrived");
            break;
        } else if (!late_.empty()) {  // in any order
            std::swap(late_[order_.below(uint32_t(late_.size()))], late_.back());
            const auto arrive = std::move(late_.back());
            late_.pop_back();
            arrive();
        } else {
            fault_ = deadlock();
        }
    }
    for (int fibre = 0; fibre < int(fibres_.size()); ++fibre)
        if (fault_.empty() && std::memcmp(stack_of(fibre), &kCanary, sizeof kCanary) != 0)
            fault_ = cat(place(), ": a thread used more than ", kStackBytes >> 10, " KB of stack");
    if (fault_.empty()) fault_ = end_shared();
    current = nullptr;
    if (fault_.empty()) return;
    drop_fibres();
    throw Error(fault_);
}

// ---- shared memory -------------------------------------------------------------------------

// Only the dynamic part, if any; a variable is added when the first thread reaches it.
void Worker::begin_shared(size_t dynamic_bytes) {
    variables_.clear();
    arena_used_ = shared_bytes_ = 0;
    allow(arena_.get(), kArenaBytes);
    if (dynamic_bytes) shared(nullptr, "dynamic shared memory", dynamic_bytes, 1024);
}

void* Worker::shared(const void* tag, const char* name, size_t bytes, size_t align) {
    for (const Variable& variable : variables_)
        if (variable.tag == tag) return variable.data;
    if (!tag && bytes == 0) fault("has no dynamic shared memory: its launch asked for 0 bytes");
    shared_bytes_ += tag ? bytes : 0;
    if (shared_bytes_ > 48 << 10)
        fault(cat("its variables in shared memory take more than 48 KB, with ", name, " ",
                  shared_bytes_, " bytes"));
    // Aligned as declared and no better, so that a wider access is noticed.
    size_t begin = (arena_used_ + kGap + align - 1) / align * align;
    if (begin / align % 2 == 0 && align < 128) begin += align;
    char* data = arena_.get() + begin;
    ENSURE(begin + bytes + kGap <= kArenaBytes, "shared memory of ", bytes, " bytes");
    allow(arena_.get() + arena_used_, begin + bytes + kGap - arena_used_);
    std::memset(arena_.get() + arena_used_, kGapByte, begin - arena_used_);
    std::memset(data, 0xFF, bytes);  // a NaN
    std::memset(data + bytes, kGapByte, kGap);
    forbid(arena_.get() + arena_used_, begin - arena_used_);
    forbid(data + bytes, kGap);
    arena_used_ = begin + bytes;
    variables_.push_back({tag, name, data, bytes});
    return data;
}

// "" or what was written outside of a variable.
std::string Worker::end_shared() {
    allow(arena_.get(), kArenaBytes);
    for (const Variable& variable : variables_)
        for (size_t i = 0; i < kGap; ++i) {
            const char* end = variable.data + variable.bytes;
            const bool behind = end[i] != kGapByte;
            if (behind || variable.data[-1 - ptrdiff_t(i)] != kGapByte)
                return cat("kernel ", launch_->name_, ", block ", text_of(blockIdx),
                           ": a thread wrote up to ", kGap, " bytes ",
                           behind ? "behind" : "in front of", " the ", variable.bytes, " bytes of ",
                           variable.name);
        }
    return "";
}

// ---- the order of threads ------------------------------------------------------------------

// Puts a thread at a drawn place of the order (Fisher and Yates, one element at a time).
void Worker::make_ready(int thread) {
    threads_[thread].state = State::kReady;
    ready_.push_back(thread);
    std::swap(ready_.back(), ready_[order_.below(uint32_t(ready_.size()))]);
}

// After a fault, fibres are left where they were; nothing on their stacks needs an end.
void Worker::drop_fibres() {
    allow(stacks_, fibres_.size() * kStackBytes);
    fibres_.clear(), idle_.clear();
}

void Worker::barrier(int number, int threads, Here here) {
    if (is_left_out(here)) return;
    Thread& thread = threads_[now_];
    const Thread& other = threads_[now_ == 0 ? threads_.size() - 1 : 0];
    if (other.state == State::kAtBarrier && other.barrier == number &&
        other.here.line != here.line) {
        const int there = int(&other - threads_.data());
        std::string text = cat("waits at the barrier ", text_of(here), ", but thread ",
                               coordinates(there), " ", whereabouts(there));
        fault(std::move(text));  // which frees this string, but no temporary of the caller
    }
    thread.state = State::kAtBarrier, thread.here = here, thread.barrier = number;
    thread.meeting = threads ? threads : int(threads_.size());
    if (++at_barrier_[number] == thread.meeting) {
        at_barrier_[number] = 0;
        for (int i = 0; i < int(threads_.size()); ++i)
            if (threads_[i].state == State::kAtBarrier && threads_[i].barrier == number)
                make_ready(i);
    }
    suspend();
}

void Worker::wait_until(const std::function<bool()>& over, const char* name, Here here) {
    if (is_left_out(here)) return;
    while (!over()) {
        Thread& thread = threads_[now_];
        thread.state = State::kWaiting, thread.here = here, thread.name = name;
        suspend();
    }
}

void Worker::something_came() {
    for (int i = 0; i < int(threads_.size()); ++i)
        if (threads_[i].state == State::kWaiting) make_ready(i);
}

void Worker::warp_operation(unsigned mask, void* lane, WarpWork work, const char* name, Here here) {
    Thread& thread = threads_[now_];
    const int first = now_ / warpSize * warpSize, own = now_ - first;
    if (!(mask >> own & 1)) {
        std::string text =
            cat(name, " at ", text_of(here), ": mask ", hex(mask), " lacks the caller, lane ", own);
        fault(std::move(text));
    }
    thread.state = State::kInWarp, thread.here = here, thread.name = name;
    thread.mask = mask, thread.lane = lane, thread.work = work;

    void* lanes[warpSize] = {};
    for (int i = 0; i < warpSize; ++i) {
        if (!(mask >> i & 1)) continue;
        if (!meets(thread, first + i)) return suspend();  // the last one to come does the work
        lanes[i] = threads_[first + i].lane;
    }
    work(lanes, mask);
    thread.state = State::kReady;
    for (int i = 0; i < warpSize; ++i)
        if (lanes[i] && i != own) make_ready(first + i);
}

bool Worker::meets(const Thread& thread, int number) const {
    if (number >= int(threads_.size())) return false;
    const Thread& other = threads_[number];
    return other.state == State::kInWarp && other.mask == thread.mask &&
           other.work == thread.work && other.here.line == thread.here.line;
}

void Worker::fault(std::string&& text) {
    fault_ = cat(place(), ": ", text);
    std::string().swap(text);  // its owner never runs again
    suspend();
    std::abort();  // the scheduler never resumes a fibre after a fault
}

std::string Worker::place(int thread) const {
    return cat("kernel ", launch_->name_, ", block ", text_of(blockIdx), ", thread ",
               coordinates(thread));
}

std::string Worker::coordinates(int thread) const { return text_of(index_of(thread)); }

std::string Worker::whereabouts(int number) const {
    const Thread& thread = threads_[number];
    if (thread.state == State::kDone) return "has ended";
    if (thread.state == State::kAtBarrier)
        return cat("waits at the barrier ", text_of(thread.here));
    return cat("waits in ", thread.name, " at ", text_of(thread.here));
}

// No thread can continue: says which thread waits for which. A warp operation is named first,
// because it is the likelier cause and waits for fewer threads.
std::string Worker::deadlock() const {
    const int count = int(threads_.size());
    for (int number = 0; number < count; ++number) {
        const Thread& thread = threads_[number];
        if (thread.state != State::kInWarp) continue;
        for (int i = 0; i < warpSize; ++i) {
            const int other = number / warpSize * warpSize + i;
            if (!(thread.mask >> i & 1) || meets(thread, other)) continue;
            const std::string text = cat(place(number), ": ", whereabouts(number), " with mask ",
                                         hex(thread.mask), " for lane ", i, ", ");
            if (other >= count) return cat(text, "which this block does not have");
            return cat(text, "but thread ", coordinates(other), " ", whereabouts(other));
        }
    }
    const auto first_that = [&](auto is) {
        return int(std::ranges::find_if(threads_, is) - threads_.begin());
    };
    const int waits = first_that([](const Thread& t) { return t.state == State::kWaiting; });
    if (waits < count) return cat(place(waits), ": ", whereabouts(waits), "; no thread can go on");
    const int first = first_that([](const Thread& t) { return t.state == State::kAtBarrier; });
    const Thread& there = threads_[first];
    const int other = first_that([&](const Thread& t) {
        return t.state != State::kAtBarrier || t.barrier != there.barrier;
    });
    return cat(place(first), ": ", whereabouts(first), ", which ", at_barrier_[there.barrier],
               " of ", there.meeting, " threads have reached; thread ", coordinates(other), " ",
               whereabouts(other));
}

// ---- what kernels call -----------------------------------------------------------------------

void fault(std::string&& text) {
    ENSURE(current, "outside of a kernel: ", text);
    current->fault(std::move(text));
}
std::string hex(unsigned mask) { return fmt::format("{:#010x}", mask); }
std::string place_text() { return current ? current->place() : ""; }
void* shared_bytes(const void* tag, const char* name, size_t bytes, size_t align) {
    return current->shared(tag, name, bytes, align);
}
void* dynamic_shared_bytes() { return current->shared(nullptr, "", 0, 1); }
bool is_left_out(Here here) {
    static const char* const left_out = std::getenv("SIMT_LEAVE_OUT");  // "kernels/cuda/loss.cu:72"
    return left_out && text_of(here) == left_out;
}
void barrier(int number, int threads, Here here) { current->barrier(number, threads, here); }
void wait_until(const std::function<bool()>& over, const char* name, Here here) {
    current->wait_until(over, name, here);
}
void something_came() { current->something_came(); }
void copy_later(std::function<void()> work) { current->copy_later(std::move(work)); }
void warp_operation(unsigned mask, void* lane, WarpWork work, const char* name, Here here) {
    current->warp_operation(mask, lane, work, name, here);
}

}  // namespace convoy::simt
