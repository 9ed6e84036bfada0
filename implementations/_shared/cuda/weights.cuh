// dW = xᵀ @ dz, or its transpose where W is stored (N, K): kernels of their own, for backward passes whose other launches differ. y (M, N) is
// the gradient, x (K, M) and W (K, N) are its operands, whatever they are. By warpgroups they may both lie turned, NK: x (M, K) and W (N, K), as tf32 is multiplied.
#pragma once
#include "_shared/cuda/hopper/matmul.cuh"
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
    matmul_mma<T, ALIGNED, NK, BM, BN, WM, WN, STAGES, 1, true>(x, W, y, M, K, N, Stored{});
}

#if __CUDA_ARCH__ >= 900
template <typename T, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    weights_warpgroup(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, T* __restrict__ y, long long M,
                      long long K, long long N) {
    matmul_wgmma<T, NK, BM, BN, STAGES, CLUSTER, 1, GivenRows, Producer, !NK>(x, W, y, M, K, N, Stored{});
}
#endif
