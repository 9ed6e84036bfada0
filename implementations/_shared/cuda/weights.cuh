// dW = xᵀ @ dz, or its transpose where W is stored (N, K): kernels of their own, for backward passes whose other launches differ. y (M, N) is
// the gradient, x (K, M) and W (K, N) are its operands, whatever they are, of float in rows of whole vectors with zeros behind. By warpgroups they may both lie turned, NK: x (M, K) and W (N, K), as tf32 is multiplied.
#pragma once
#include "_shared/cuda/hopper/matmul_split.cuh"
#include "_shared/cuda/matmul_simt.cuh"

template <bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    weights_simt(const float* __restrict__ x, const float* __restrict__ W, float* __restrict__ y, long long M, long long K,
                 long long N) {
    matmul_simt<ALIGNED, NK, BM, BN, 1, true>(x, W, y, M, K, N, Stored{});
}

template <typename T, bool ALIGNED, bool NK, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    weights_tensor(const T* __restrict__ x, const T* __restrict__ W, T* __restrict__ y, long long M, long long K, long long N) {
    matmul_mma_filled<T, ALIGNED, NK, BM, BN, WM, WN, STAGES, true>(x, W, y, M, K, N, Stored{});
}

#if __CUDA_ARCH__ >= 900
template <typename T, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    weights_warpgroup(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, T* __restrict__ y, long long M,
                      long long K, long long N) {
    matmul_wgmma<T, NK, BM, BN, STAGES, CLUSTER, 1, GivenRows, Producer, !NK>(x, W, y, M, K, N, Stored{});
}

// Of many rows and few tiles, of operands that lie turned: the blocks of a cluster share K.
template <typename T, bool NK, int BM, int BN, int STAGES, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    weights_split(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, T* __restrict__ y, long long M, long long K,
                  long long N) {
    static_assert(NK, "rows of K");
    matmul_split<T, NK, BM, BN, STAGES, SPLIT>(x, W, y, M, K, N, Stored{});
}
#endif

// dz (M, N) and x (M, K) with rows as columns: N and K rows of `pitch` elements, M filled up to whole vectors with zeros. A block turns a square.
template <bool DZ_ALIGNED, bool X_ALIGNED>
__global__ void __launch_bounds__(256)
    turned_operands(const float* __restrict__ dz, const float* __restrict__ x, float* __restrict__ dz_turned, float* __restrict__ x_turned, long long M,
           long long K, long long N, long long pitch) {
    wait_for_previous_launch();
    constexpr int SIDE = 64, VECTORS = SIDE / 4;  // of a row of the square
    __shared__ float square[SIDE][SIDE + 1];
    long long down = (pitch + SIDE - 1) / SIDE, of_dz = down * ((N + SIDE - 1) / SIDE);
    bool is_dz = blockIdx.x < of_dz;
    long long index = is_dz ? blockIdx.x : blockIdx.x - of_dz, columns = is_dz ? N : K, m0 = index % down * SIDE, n0 = index / down * SIDE;
    const float* from = is_dz ? dz : x;
    float* to = is_dz ? dz_turned : x_turned;
#pragma unroll
    for (int i = 0; i < SIDE * VECTORS / 256; ++i) {
        int at = i * 256 + threadIdx.x, row = at / VECTORS, column = at % VECTORS * 4;
        const float* there = from + (m0 + row) * columns + n0 + column;
        int count = m0 + row < M ? static_cast<int>(min(columns - n0 - column, 4LL)) : 0;
        Vector<float> v;
        if (is_dz ? DZ_ALIGNED : X_ALIGNED) v = load_part<true>(there, count);
        else v = load_part<false>(there, count);
#pragma unroll
        for (int e = 0; e < 4; ++e) square[row][column + e] = v.at[e];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SIDE * VECTORS / 256; ++i) {
        int at = i * 256 + threadIdx.x, column = at / VECTORS, row = at % VECTORS * 4;
        Vector<float> v;
#pragma unroll
        for (int e = 0; e < 4; ++e) v.at[e] = square[row + e][column];
        if (n0 + column < columns && m0 + row < pitch) store_part<true>(to + (n0 + column) * pitch + m0 + row, v, 4);
    }
}
