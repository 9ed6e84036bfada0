// splacc: y = sigmoid(A @ B_left) * tanh(A @ B_right), one launch.
//
//   two_accumulators_tensor   a block multiplies a tile of A's rows by the same columns of both halves of B on the tensor
//                             cores: float16, bfloat16, and float32 as tf32. The halves alternate every 8 columns in shared
//                             memory, so a thread ends up with both sums of its elements and combines them in registers.
//   two_accumulators_simt     the same on the float32 units (precision "ieee"): a thread has 8 × 4 of either half.
//
// A is read once for both halves, and C is never stored. _tile.cuh says how a tile is multiplied.
#include "_tile.cuh"

struct Gate {
    __device__ __forceinline__ float operator()(long long, long long, const float (&v)[2]) const {
        return activate<SIGMOID>(v[0]) * activate<TANH>(v[1]);
    }
};

template <typename T, bool ALIGNED, bool NK, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    two_accumulators_tensor(const T* __restrict__ A, const T* __restrict__ B, T* __restrict__ y, long long M,
                            long long K, long long N) {
    tensor_tile<T, ALIGNED, NK, BM, BN, WM, WN, STAGES, 2>(A, B, y, M, K, N, Gate{});
}

template <bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN>)
    two_accumulators_simt(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ y, long long M,
                          long long K, long long N) {
    simt_tile<ALIGNED, NK, BM, BN, 2>(A, B, y, M, K, N, Gate{});
}
