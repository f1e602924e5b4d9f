// peer_sum.cu — sums over the GPUs of one host, which read each other's memory.
//
//   block r = Σ_t block t on every rank r, added in the order of the ranks t
//
//                     memory of GPU 0   of GPU 1   of GPU 2
//   slice of rank 0         ◄───────────────●──────────●       sum: rank 0 reads its slice in all
//   slice of rank 1         ●───────────────►          ●       blocks and writes the sum to its
//   slice of rank 2         ●               ●          ►       own. gather: it copies the others.
//
//   A GPU writes only its own memory, so a process that was stopped and comes back late damages
//   nothing. The bits are those of SharedSum (net/ring/shared_sum.h).
//   grid    32 blocks of 512 threads, to leave multiprocessors to the backward pass. A thread adds
//           4 neighbouring floats, with up to 4 loads of 16 bytes in flight.
//   bytes   2·4·(W−1)/W·n from the other GPUs: bound by NVLink or PCIe.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/elements.h"

namespace convoy::CONVOY_DEVICE {

namespace {

constexpr int kMostRanks = 16, kPack = 4;

struct Blocks {
    float* of[kMostRanks] = {};
};
// What share() returns: how to open the block, and its last bytes, to see that reads return such
// bytes. They are not zero, but may be equal on all ranks.
struct Shared {
    cudaIpcMemHandle_t handle;
    float last[16];
};

template <int kWide>
__device__ __forceinline__ void sum_pack(const Blocks& blocks, int ranks, float* to, size_t i) {
    float sum[kWide], x[kWide];
    for (float& one : sum) one = -0.0f;  // −0 + x has the bits of x
#pragma unroll 4
    for (int rank = 0; rank < ranks; ++rank) {
        load_pack(x, blocks.of[rank] + i);
#pragma unroll
        for (int e = 0; e < kWide; ++e) sum[e] += x[e];
    }
    store_pack(to + i, sum);
}

__global__ void __launch_bounds__(512)
    sum_slice_kernel(const __grid_constant__ Blocks blocks, int ranks, float* to, size_t begin,
                     size_t end) {
    for (size_t i = begin / kPack * kPack + kPack * first_index(); i < end;
         i += kPack * grid_width())
        if (i >= begin && i + kPack <= end)
            sum_pack<kPack>(blocks, ranks, to, i);
        else
            for (size_t one = max(i, begin); one < min(i + kPack, end); ++one)
                sum_pack<1>(blocks, ranks, to, one);
}

class CudaPeerSum final : public PeerSum {
 public:
    CudaPeerSum(int rank, int ranks) : rank_(rank), ranks_(ranks) {
        if (ranks > kMostRanks) fail(ranks, " GPUs; at most ", kMostRanks, " add up together");
        CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    }
    ~CudaPeerSum() override {  // a failure here was reported by an earlier call
        (void)cudaStreamSynchronize(stream_);
        (void)cudaStreamDestroy(stream_);
        for (int rank = 0; rank < ranks_; ++rank)
            if (rank != rank_ && blocks_.of[rank]) (void)cudaIpcCloseMemHandle(blocks_.of[rank]);
        (void)cudaGetLastError();  // or the next launch would report it
    }
    // here: room for Shared::last in the memory of this GPU.
    void open(Backend& backend, float* here, std::span<float> own,
              std::span<const std::string> shared) {
        blocks_.of[rank_] = own.data();
        for (int rank = 0; rank < ranks_; ++rank) {
            if (rank == rank_) continue;
            Shared its;
            float got[std::size(its.last)];
            ENSURE(shared[size_t(rank)].size() == sizeof its, shared[size_t(rank)].size());
            std::memcpy(&its, shared[size_t(rank)].data(), sizeof its);
            CUDA_CHECK(cudaIpcOpenMemHandle(reinterpret_cast<void**>(&blocks_.of[rank]), its.handle,
                                            cudaIpcMemLazyEnablePeerAccess));
            backend.copy(here, blocks_.of[rank] + own.size() - std::size(got), std::size(got));
            backend.download(got, here, sizeof got);
            if (std::memcmp(got, its.last, sizeof got) != 0)
                fail("reading the GPU of rank ", rank,
                     " returns other bytes than it holds; an IOMMU may be the cause");
        }
    }
    void sum(size_t begin, size_t end) override {
        const size_t first = cut(begin, end, rank_), last = cut(begin, end, rank_ + 1);
        sum_slice_kernel<<<32, 512, 0, stream_>>>(blocks_, ranks_, blocks_.of[rank_], first, last);
        CUDA_LAUNCHED();
    }
    void gather(size_t begin, size_t end) override {
        for (int rank = 0; rank < ranks_; ++rank) {
            if (rank == rank_) continue;
            const size_t first = cut(begin, end, rank), last = cut(begin, end, rank + 1);
            CUDA_CHECK(cudaMemcpyAsync(blocks_.of[rank_] + first, blocks_.of[rank] + first,
                                       (last - first) * sizeof(float), cudaMemcpyDeviceToDevice,
                                       stream_));
        }
    }
    void wait() override { CUDA_CHECK(cudaStreamSynchronize(stream_)); }

 private:
    // Where the slice of `rank` begins: at a whole pack.
    size_t cut(size_t begin, size_t end, int rank) const {
        const size_t at = begin + (end - begin) * size_t(rank) / size_t(ranks_);
        return rank == 0 ? begin : std::min(end, (at + kPack - 1) / kPack * kPack);
    }

    const int rank_, ranks_;
    cudaStream_t stream_ = nullptr;
    Blocks blocks_;
};

}  // namespace

std::string CudaBackend::share(std::span<float> block) {
    Shared its;
    ENSURE(block.size() >= std::size(its.last), block.size(), " floats");
    CUDA_CHECK(cudaIpcGetMemHandle(&its.handle, block.data()));
    download(its.last, block.data() + block.size() - std::size(its.last), sizeof its.last);
    return {reinterpret_cast<const char*>(&its), sizeof its};
}

std::unique_ptr<PeerSum> CudaBackend::open_peers(std::span<float> own,
                                                 std::span<const std::string> shared, int rank) {
    auto sum = std::make_unique<CudaPeerSum>(rank, int(shared.size()));
    sum->open(*this, memory_.scratch<float>(kSlotSums, std::size(Shared().last)), own, shared);
    return sum;
}

}  // namespace convoy::CONVOY_DEVICE
