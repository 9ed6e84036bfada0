// splacc: y = sigmoid(A @ B_left) * tanh(A @ B_right), one launch; two_launches has whole_rows (matmul_mma.cuh) before it.
//
//   two_accumulators_tensor   a block multiplies a tile of A's rows by the same columns of both halves of B on the tensor
//                             cores: float16, bfloat16, and float32 as tf32. The halves alternate every 8 columns in shared
//                             memory, so a thread ends up with both sums of its elements and combines them in registers.
//   two_accumulators_few_rows     the same of few rows: the warps of a block share K (matmul_few_rows.cuh)
//   two_accumulators_warpgroup    the same on Hopper's warpgroup products (16 bits; tf32 where B is (2N, K), as prepared), the halves
//                             one behind the other
//   two_accumulators_split        the same where y has few tiles: the blocks of a cluster share K (hopper/matmul_split.cuh)
//   two_accumulators_turned   the same in tiles of any multiple of 16 rows (hopper/matmul_turned.cuh): 16 bits
//   two_accumulators_simt     the same on the float32 units (precision "ieee"): a thread has 8 × 4 of either half.
//
// A is read once for both halves, and C is never stored. _shared/cuda/matmul_mma.cuh says how a tile is multiplied.
#include "_shared/cuda/hopper/matmul_split.cuh"
#include "_shared/cuda/hopper/matmul_turned.cuh"
#include "_shared/cuda/matmul_few_rows.cuh"
#include "_shared/cuda/matmul_simt.cuh"

// sigmoid(v[0]) * tanh(v[1]) with one division for both: s / (1 + e) * (1 - t) / (1 + t), where e = exp(-|v[0]|) and
// t = exp(-2 |v[1]|). For small v[1], 1 - t cancels; there tanh is its series, with coefficients fitted to half an ulp; or, for results
// of 16 bits, its first two terms where they err by 2^-20, behind which 1 - t does not err by more.
template <typename T>
struct Gate : Epilogue {
    static constexpr bool PAIRED = false;  // 1024×2048→2048 took 347 µs so on an H200, 344 without
    __device__ __forceinline__ float operator()(None, None, const float (&v)[2]) const {
        constexpr bool HALF = sizeof(T) == 2;
        float e = exp_minus_abs(v[0]), t = exp_minus_abs(2.0f * v[1]), square = v[1] * v[1];
        float series = fmaf(square, fmaf(square, fmaf(square, 0.016432421f, -0.052668273f), 0.13320647f), -0.33332941f);
        float near = fmaf(square * v[1], HALF ? -0.33333334f : series, v[1]) * (1.0f + t), far = copysignf(1.0f - t, v[1]);
        float both = fabsf(v[1]) < (HALF ? 0.05f : 0.55f) ? near : far;
        return (v[0] < 0.0f ? e : 1.0f) * both * reciprocal_approximate((1.0f + e) * (1.0f + t));
    }
};

template <typename T, bool ALIGNED, bool NK, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    two_accumulators_tensor(const T* __restrict__ A, const T* __restrict__ B, T* __restrict__ y, long long M,
                            long long K, long long N) {
    matmul_mma<T, ALIGNED, NK, BM, BN, WM, WN, STAGES, 2>(A, B, y, M, K, N, Gate<T>{});
}

template <typename T, bool SIMT, bool ALIGNED, bool NK, int BM, int BN, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32, 1)
    two_accumulators_few_rows(const T* __restrict__ A, const T* __restrict__ B, T* __restrict__ y, long long M, long long K,
                              long long N) {
    typename few_rows::WarpOf<SIMT, T, NK, BM, BN, 2>::Type tile;
    matmul_few_rows<WARPS, STAGES, ALIGNED, NK, BM, BN, 2>(tile, A, B, y, M, K, N, Gate<T>{}, [] {}, [] { __syncthreads(); });
}

#if __CUDA_ARCH__ >= 900
// The same, whose K the blocks of a cluster share, too.
template <typename T, bool SIMT, bool ALIGNED, bool NK, int BM, int BN, int WARPS, int STAGES, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(WARPS * 32, 1)
    two_accumulators_few_rows_split(const T* __restrict__ A, const T* __restrict__ B, T* __restrict__ y, long long M, long long K,
                                    long long N) {
    typename few_rows::WarpOf<SIMT, T, NK, BM, BN, 2>::Type tile;
    matmul_few_rows<WARPS, STAGES, ALIGNED, NK, BM, BN, 2, SPLIT>(tile, A, B, y, M, K, N, Gate<T>{}, [] {}, [] { __syncthreads(); });
}
#endif

template <bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    two_accumulators_simt(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ y, long long M,
                          long long K, long long N) {
    matmul_simt<ALIGNED, NK, BM, BN, 2>(A, B, y, M, K, N, Gate<float>{});
}

// The same with strips below whole tiles.
template <bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    two_accumulators_simt_strips(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ y,
                                 long long M, long long K, long long N) {
    matmul_simt_strips<ALIGNED, NK, BM, BN, 2>(A, B, y, M, K, N, Anywhere<Gate<float>>{Gate<float>{}});
}

#if __CUDA_ARCH__ >= 900
template <typename T, bool NK, int BM, int BN, int STAGES, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    two_accumulators_split(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, T* __restrict__ y,
                           long long M, long long K, long long N) {
    matmul_split<T, NK, BM, BN, STAGES, SPLIT, 2>(A, B, y, M, K, N, Gate<T>{});
}

// In tiles of any multiple of 16 rows.
template <typename T, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BN * 2 + 128, 1)
    two_accumulators_turned(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, T* __restrict__ y,
                            long long M, long long K, long long N) {
    matmul_turned<T, NK, BM, BN, STAGES, CLUSTER, 2>(A, B, y, M, K, N, Gate<T>{});
}

// The same by the blocks of a cluster, which share the K of a tile.
template <bool ALIGNED, bool NK, int BM, int BN, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    two_accumulators_simt_split(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ y, long long M,
                                long long K, long long N) {
    matmul_simt<ALIGNED, NK, BM, BN, 2, false, SPLIT>(A, B, y, M, K, N, Gate<float>{});
}

template <typename T, bool NK, int BM, int BN, int STAGES, int CLUSTER, typename Schedule = WholeTiles>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    two_accumulators_warpgroup(const __grid_constant__ TensorMap A, const __grid_constant__ TensorMap B, T* __restrict__ y,
                               float4* sums, int* flags, long long M, long long K, long long N) {
    Gate<T> f;
    matmul_wgmma<T, NK, BM, BN, STAGES, CLUSTER, 2>(A, B, y, M, K, N, f, schedule_of<Schedule>(sums, flags));
}
#endif
