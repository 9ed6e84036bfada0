// A multilayer perceptron with a launch for each layer: y = act(x @ W + b), the products of _shared/cuda by the names that matmul.py launches them by.
//
// `next` is W of the layer behind it, of which `bytes` are brought to the L2 cache beforehand.
//
// `width` is the number of columns that the layer has. N, rows of W and of y are filled up where FILLED: what lies behind the width is 0,
// whatever x is, since an inf times the zeros of a filled up W would be NaN, which the next layer's zeros would not remove.
#pragma once
#include "_shared/cuda/hopper/matmul_split.cuh"
#include "_shared/cuda/hopper/matmul_turned.cuh"
#include "_shared/cuda/matmul_few_rows.cuh"
#include "_shared/cuda/matmul_simt.cuh"

template <typename T, Activation ACT, bool FILLED>
struct Activated : Epilogue {
    const T* __restrict__ b;
    long long width;

    __device__ __forceinline__ Activated(const T* b, long long width) : b(b), width(width) {}
    // The bias, and whether there is such a column.
    __device__ __forceinline__ auto column(long long n) const {
        if constexpr (FILLED) return n < width ? make_float2(to_float(b[n]), 1.0f) : make_float2(0.0f, 0.0f);
        else return to_float(b[n]);
    }
    __device__ __forceinline__ float operator()(None, float bias, const float (&v)[1]) const { return activate<ACT>(v[0] + bias); }
    __device__ __forceinline__ float operator()(None, float2 column, const float (&v)[1]) const {
        return column.y != 0.0f ? activate<ACT>(v[0] + column.x) : 0.0f;
    }
};

template <Activation ACT, bool FILLED, bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    layer_simt(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ b, float* __restrict__ y,
               const float* next, long long M, long long K, long long N, long long width, long long bytes) {
    prefetch_to_cache(next, bytes);
    matmul_simt<ALIGNED, NK, BM, BN, 1>(x, W, y, M, K, N, Activated<float, ACT, FILLED>(b, width));
}

template <typename T, Activation ACT, bool FILLED, bool ALIGNED, bool NK, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    layer_tensor(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b, T* __restrict__ y, const T* next,
                 long long M, long long K, long long N, long long width, long long bytes) {
    prefetch_to_cache(next, bytes);
    matmul_mma_filled<T, ALIGNED, NK, BM, BN, WM, WN, STAGES>(x, W, y, M, K, N, Activated<T, ACT, FILLED>(b, width));
}

// A layer of no more than one slab of K, of W (N, K), whose rows and those of x lie anywhere: all elements of a thread are on their way at once,
// while matmul_mma waits for those of one vector after another. WHOLE: rows of y are whole vectors.
template <typename T, Activation ACT, bool FILLED, bool WHOLE, int BM, int BN, int WM, int WN>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    layer_one_slab(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b, T* __restrict__ y, const T* next,
                   long long M, long long K, long long N, long long width, long long bytes) {
    prefetch_to_cache(next, bytes);
    using Tile = TensorTile<T, true, BM, BN, WM, WN>;
    constexpr int ROWS = Tile::THREADS / 8;  // of which a thread brings one chunk each at one time
    extern __shared__ __align__(128) unsigned char memory[];  // max(Tile::STAGE, Tile::OUT_BYTES)
    int row = threadIdx.x / 8, chunk = threadIdx.x % 8, k = chunk * Vector<T>::SIZE, left = static_cast<int>(K) - k;
    long long m0, n0;
    block_origin(M, N, BM, BN, m0, n0);
    wait_for_previous_launch();
    Vector<T> of_x[BM / ROWS], of_w[BN / ROWS];
#pragma unroll
    for (int i = 0; i < BM / ROWS; ++i) {
        long long m = m0 + row + i * ROWS;
        of_x[i] = load_part<false>(x + m * K + k, m < M ? left : 0);
    }
#pragma unroll
    for (int i = 0; i < BN / ROWS; ++i) {
        long long n = n0 + row + i * ROWS;
        of_w[i] = load_part<false>(W + n * K + k, n < N ? left : 0);
    }
    unsigned char* to = memory + (row * 8 + (chunk ^ (row & 7))) * 16;  // as RowLoader's slabs lie
#pragma unroll
    for (int i = 0; i < BM / ROWS; ++i) *reinterpret_cast<Vector<T>*>(to + i * ROWS * 128) = of_x[i];
#pragma unroll
    for (int i = 0; i < BN / ROWS; ++i) *reinterpret_cast<Vector<T>*>(to + Tile::X_BYTES + i * ROWS * 128) = of_w[i];
    __syncthreads();
    Tile tile;
    tile.add(memory, memory + Tile::X_BYTES);
    __syncthreads();
    tile.template epilogue<WHOLE>(memory, y, M, N, m0, n0, Activated<T, ACT, FILLED>(b, width));
}

template <typename T, Activation ACT, bool FILLED, bool SIMT, bool ALIGNED, bool NK, int BM, int BN, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32, 1)
    layer_few_rows(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b, T* __restrict__ y, const T* next,
                   long long M, long long K, long long N, long long width, long long bytes) {
    prefetch_to_cache(next, bytes);
    typename few_rows::WarpOf<SIMT, T, NK, BM, BN>::Type tile;
    matmul_few_rows<WARPS, STAGES, ALIGNED, NK, BM, BN, 1>(tile, x, W, y, M, K, N, Activated<T, ACT, FILLED>(b, width), [] {}, [] { __syncthreads(); });
}

#if __CUDA_ARCH__ >= 900
// The blocks of a cluster share the K of a tile.
template <Activation ACT, bool FILLED, bool ALIGNED, bool NK, int BM, int BN, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    layer_simt_split(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ b, float* __restrict__ y,
                     const float* next, long long M, long long K, long long N, long long width, long long bytes) {
    prefetch_to_cache(next, bytes);
    matmul_simt<ALIGNED, NK, BM, BN, 1, false, SPLIT>(x, W, y, M, K, N, Activated<float, ACT, FILLED>(b, width));
}

template <typename T, Activation ACT, bool FILLED, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    layer_warpgroup(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ b, T* __restrict__ y,
                    const T* next, long long M, long long K, long long N, long long width, long long bytes) {
    prefetch_to_cache(next, bytes);
    matmul_wgmma<T, NK, BM, BN, STAGES, CLUSTER, 1>(x, W, y, M, K, N, Activated<T, ACT, FILLED>(b, width));
}

// The same where y has few tiles: the blocks of a cluster share K.
template <typename T, Activation ACT, bool FILLED, bool NK, int BM, int BN, int STAGES, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    layer_split(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ b, T* __restrict__ y,
                const T* next, long long M, long long K, long long N, long long width, long long bytes) {
    prefetch_to_cache(next, bytes);
    matmul_split<T, NK, BM, BN, STAGES, SPLIT>(x, W, y, M, K, N, Activated<T, ACT, FILLED>(b, width));
}

// The same in tiles of any multiple of 16 rows.
template <typename T, Activation ACT, bool FILLED, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BN * 2 + 128, 1)
    layer_turned(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ b, T* __restrict__ y,
                 const T* next, long long M, long long K, long long N, long long width, long long bytes) {
    prefetch_to_cache(next, bytes);
    matmul_turned<T, NK, BM, BN, STAGES, CLUSTER, 1>(x, W, y, M, K, N, Activated<T, ACT, FILLED>(b, width));
}
#endif
