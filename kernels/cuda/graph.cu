// graph.cu — ops as one graph: recorded by capture of their stream, then launched as a whole.
//
// A launch takes the host some microseconds, and a small step has hundreds of them: the GPU then
// waits for its host. In a graph the GPU itself goes from one kernel to the next.
//
// The arguments of a captured launch are frozen. Small host data (DeviceMemory::pass) are the one
// thing that may change: while a capture goes on they get places in device memory that stay theirs,
// and each replay begins by filling these from where the data stood on the host.
#include "kernels/cuda/cuda_backend.h"

namespace convoy::CONVOY_DEVICE {

void CudaBackend::record(const std::function<void()>& ops) {
    forget_recording();
    try {
        capture(ops);
    } catch (const Error& error) {
        fail("recording a step as a CUDA graph: ", error.what(), "; --graph off does without");
    }
    recorded_moves_ = memory_.moves();
}

void CudaBackend::capture(const std::function<void()>& ops) {
    memory_.start_recording();
    // Relaxed: other threads of the process may do with CUDA what they like meanwhile.
    const cudaError_t begun = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed);
    if (begun != cudaSuccess) memory_.stop_recording();
    CUDA_CHECK(begun);
    std::exception_ptr failed;
    try {
        ops();
    } catch (...) {
        failed = std::current_exception();  // the stream must be given back first
    }
    memory_.stop_recording();
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
    if (failed || ended != cudaSuccess) {
        if (graph) (void)cudaGraphDestroy(graph);
        (void)cudaGetLastError();  // told here: the next op must not find it
    }
    if (failed) std::rethrow_exception(failed);
    CUDA_CHECK(ended);
    const cudaError_t made = cudaGraphInstantiateWithFlags(&recording_, graph, 0);
    (void)cudaGraphDestroy(graph);  // the other one is what is launched
    CUDA_CHECK(made);
}

bool CudaBackend::replay() {
    if (!recording_ || recorded_moves_ != memory_.moves()) return false;
    memory_.pass_recorded(stream_);
    CUDA_CHECK(cudaGraphLaunch(recording_, stream_));
    return true;
}

void CudaBackend::forget_recording() {
    if (recording_) (void)cudaGraphExecDestroy(recording_);  // once it has run, if it still does
    recording_ = nullptr;
}

}  // namespace convoy::CONVOY_DEVICE
