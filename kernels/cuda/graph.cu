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
    GraphRecording(DeviceMemory& memory, const std::unique_ptr<Timeline>& timeline)
        : memory_(memory), timeline_(timeline), passed_(memory) {
        // Relaxed: other threads of the process may use CUDA meanwhile.
        CUDA_CHECK(cudaStreamBeginCapture(memory_.stream, cudaStreamCaptureModeRelaxed));
        memory_.start_recording(passed_);
    }
    ~GraphRecording() override {
        cudaGraph_t graph = nullptr;
        if (capturing_) (void)end_capture(graph);  // an op threw: the stream must be given back
        if (graph) (void)cudaGraphDestroy(graph);
        if (graph_) (void)cudaGraphExecDestroy(graph_);  // CUDA waits until it has run
    }

    void end() override {
        cudaGraph_t graph = nullptr;
        CUDA_CHECK(end_capture(graph));
        const cudaError_t made = cudaGraphInstantiateWithFlags(&graph_, graph, 0);
        (void)cudaGraphDestroy(graph);  // graph_ is what is launched
        CUDA_CHECK(made);
        moves_ = memory_.moves();
    }

    bool replay() override {
        if (moves_ != memory_.moves()) return false;
        const Span span(nullptr, kTraceRecorded, 0, 0, timeline_.get());
        passed_.refresh();
        CUDA_CHECK(cudaGraphLaunch(graph_, memory_.stream));
        return true;
    }

 private:
    cudaError_t end_capture(cudaGraph_t& graph) {
        capturing_ = false;
        memory_.stop_recording();
        const cudaError_t ended = cudaStreamEndCapture(memory_.stream, &graph);
        (void)cudaGetLastError();  // was thrown or is returned: the next op must not see it
        return ended;
    }

    DeviceMemory& memory_;
    const std::unique_ptr<Timeline>& timeline_;  // as it is when the graph is replayed
    PassedData passed_;
    bool capturing_ = true;
    cudaGraphExec_t graph_ = nullptr;
    int moves_ = 0;  // memory_.moves() when it was recorded
};

}  // namespace

std::unique_ptr<Recording> CudaBackend::record() {
    return std::make_unique<GraphRecording>(memory_, timeline_);
}

}  // namespace convoy::CONVOY_DEVICE
