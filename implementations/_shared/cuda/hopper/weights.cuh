// dW = xᵀ @ dz by warpgroups: a kernel of its own, for backward passes whose other launches differ.
#pragma once
#include "_shared/cuda/hopper/matmul.cuh"

#if __CUDA_ARCH__ >= 900
template <typename T, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    weights_warpgroup(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, T* __restrict__ y, long long M,
                      long long K, long long N) {
    matmul_wgmma<T, NK, BM, BN, STAGES, CLUSTER, 1, GivenRows, Producer, true>(x, W, y, M, K, N, Stored{});
}
#endif
