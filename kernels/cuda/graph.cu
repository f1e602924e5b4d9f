// graph.cu — ops as one graph: recorded by capture of their stream, then launched as a whole.
//
// A launch takes the host some microseconds, and a small step has hundreds of launches: the GPU
// then waits for its host. In a graph the GPU goes from one kernel to the next by itself.
//
// The arguments of a captured launch are frozen; only small host data (DeviceMemory::pass) may
// change. While ops are captured, these data get places of their own in device memory (PassedData),
// and each replay begins by copying the data from the host to these places.
#include "kernels/cuda/cuda_backend.h"

namespace convoy::CONVOY_DEVICE {

namespace {

class GraphRecording final : public Recording {
 public:
    GraphRecording(DeviceMemory& memory, cudaStream_t stream, const std::function<void()>& ops)
        : memory_(memory), stream_(stream), passed_(memory) {
        capture(ops);
        moves_ = memory_.moves();
    }
    ~GraphRecording() override {
        if (graph_) (void)cudaGraphExecDestroy(graph_);  // CUDA waits until it has run
    }

    bool replay() override {
        if (moves_ != memory_.moves()) return false;
        passed_.refresh(stream_);
        CUDA_CHECK(cudaGraphLaunch(graph_, stream_));
        return true;
    }

 private:
    void capture(const std::function<void()>& ops);

    DeviceMemory& memory_;
    cudaStream_t stream_;
    PassedData passed_;
    cudaGraphExec_t graph_ = nullptr;
    int moves_ = 0;  // memory_.moves() then
};

void GraphRecording::capture(const std::function<void()>& ops) {
    // Relaxed: other threads of the process may call CUDA meanwhile.
    CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    memory_.start_recording(passed_);
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
        (void)cudaGetLastError();  // reported here; the next op must not find it
    }
    if (failed) std::rethrow_exception(failed);
    CUDA_CHECK(ended);
    const cudaError_t made = cudaGraphInstantiateWithFlags(&graph_, graph, 0);
    (void)cudaGraphDestroy(graph);  // only graph_ is launched
    CUDA_CHECK(made);
}

}  // namespace

std::unique_ptr<Recording> CudaBackend::record(const std::function<void()>& ops) {
    try {
        return std::make_unique<GraphRecording>(memory_, stream_, ops);
    } catch (const Error& error) {
        fail("recording a step as a CUDA graph: ", error.what(), "; --graph off does without");
    }
}

}  // namespace convoy::CONVOY_DEVICE
