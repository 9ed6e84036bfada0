// geglu: y = (x @ W_left + b_left) * GELU(x @ W_right + b_right), one launch; two_launches has whole_rows
// (matmul_mma.cuh) before it.
//
//   two_accumulators_tensor   a block multiplies a tile of x's rows by the same columns of both halves of W on the tensor
//                             cores: float16, bfloat16, and float32 as tf32. The halves alternate every 8 columns in shared
//                             memory, so a thread ends up with both sums of its elements and combines them in registers.
//   two_accumulators_few_rows     the same of few rows: the warps of a block share K (matmul_few_rows.cuh)
//   two_accumulators_warpgroup    the same on Hopper's warpgroup products (16 bits; tf32 where W is (2N, K), as prepared), the halves
//                             one behind the other
//   two_accumulators_split        the same where y has few tiles: the blocks of a cluster share K (hopper/matmul_split.cuh)
//   two_accumulators_turned   the same in tiles of any multiple of 16 rows (hopper/matmul_turned.cuh): 16 bits
//   two_accumulators_simt     the same on the float32 units (precision "ieee"): a thread has 8 × 4 of either half.
//
// x is read once for both halves, and Z is never stored. _shared/cuda/matmul_mma.cuh says how a tile is multiplied.
#include "_shared/cuda/hopper/matmul_split.cuh"
#include "_shared/cuda/hopper/matmul_turned.cuh"
#include "_shared/cuda/matmul_few_rows.cuh"
#include "_shared/cuda/matmul_simt.cuh"

template <typename T, Activation ACT>
struct Gate : Epilogue {
    static constexpr bool PAIRED = false;  // 1024×1024→4096 took 368 µs so on an H200, 357 without
    const T* __restrict__ b;
    long long N;

    __device__ __forceinline__ Gate(const T* b, long long N) : b(b), N(N) {}
    __device__ __forceinline__ float2 column(long long n) const { return {to_float(b[n]), to_float(b[N + n])}; }
    __device__ __forceinline__ float operator()(None, float2 bias, const float (&v)[2]) const {
        return (v[0] + bias.x) * activate_as<ACT, T>(v[1] + bias.y);
    }
};

template <typename T, Activation ACT, bool ALIGNED, bool NK, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    two_accumulators_tensor(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b,
                            T* __restrict__ y, long long M, long long K, long long N) {
    matmul_mma<T, ALIGNED, NK, BM, BN, WM, WN, STAGES, 2>(x, W, y, M, K, N, Gate<T, ACT>(b, N));
}

template <typename T, Activation ACT, bool SIMT, bool ALIGNED, bool NK, int BM, int BN, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32, 1)
    two_accumulators_few_rows(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b, T* __restrict__ y, long long M, long long K,
                              long long N) {
    typename few_rows::WarpOf<SIMT, T, NK, BM, BN, 2>::Type tile;
    matmul_few_rows<WARPS, STAGES, ALIGNED, NK, BM, BN, 2>(tile, x, W, y, M, K, N, Gate<T, ACT>(b, N), [] {}, [] { __syncthreads(); });
}

#if __CUDA_ARCH__ >= 900
// The same, whose K the blocks of a cluster share, too.
template <typename T, Activation ACT, bool SIMT, bool ALIGNED, bool NK, int BM, int BN, int WARPS, int STAGES, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(WARPS * 32, 1)
    two_accumulators_few_rows_split(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b, T* __restrict__ y, long long M, long long K,
                                    long long N) {
    typename few_rows::WarpOf<SIMT, T, NK, BM, BN, 2>::Type tile;
    matmul_few_rows<WARPS, STAGES, ALIGNED, NK, BM, BN, 2, SPLIT>(tile, x, W, y, M, K, N, Gate<T, ACT>(b, N), [] {}, [] { __syncthreads(); });
}
#endif

template <Activation ACT, bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    two_accumulators_simt(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ b,
                          float* __restrict__ y, long long M, long long K, long long N) {
    matmul_simt<ALIGNED, NK, BM, BN, 2>(x, W, y, M, K, N, Gate<float, ACT>(b, N));
}

// The same with strips below whole tiles.
template <Activation ACT, bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    two_accumulators_simt_strips(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ b, float* __restrict__ y,
                                 long long M, long long K, long long N) {
    matmul_simt_strips<ALIGNED, NK, BM, BN, 2>(x, W, y, M, K, N, Anywhere<Gate<float, ACT>>{Gate<float, ACT>(b, N)});
}

#if __CUDA_ARCH__ >= 900
template <typename T, Activation ACT, bool NK, int BM, int BN, int STAGES, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    two_accumulators_split(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ b, T* __restrict__ y,
                           long long M, long long K, long long N) {
    matmul_split<T, NK, BM, BN, STAGES, SPLIT, 2>(x, W, y, M, K, N, Gate<T, ACT>(b, N));
}

// In tiles of any multiple of 16 rows.
template <typename T, Activation ACT, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BN * 2 + 128, 1)
    two_accumulators_turned(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ b, T* __restrict__ y,
                            long long M, long long K, long long N) {
    matmul_turned<T, NK, BM, BN, STAGES, CLUSTER, 2>(x, W, y, M, K, N, Gate<T, ACT>(b, N));
}

// The same by the blocks of a cluster, which share the K of a tile.
template <Activation ACT, bool ALIGNED, bool NK, int BM, int BN, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    two_accumulators_simt_split(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ b, float* __restrict__ y, long long M,
                                long long K, long long N) {
    matmul_simt<ALIGNED, NK, BM, BN, 2, false, SPLIT>(x, W, y, M, K, N, Gate<float, ACT>(b, N));
}

template <typename T, Activation ACT, bool NK, int BM, int BN, int STAGES, int CLUSTER, typename Schedule = WholeTiles>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    two_accumulators_warpgroup(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ b,
                               T* __restrict__ y, float4* sums, int* flags, long long M, long long K, long long N) {
    Gate<T, ACT> f(b, N);
    matmul_wgmma<T, NK, BM, BN, STAGES, CLUSTER, 2>(x, W, y, M, K, N, f, schedule_of<Schedule>(sums, flags));
}
#endif
