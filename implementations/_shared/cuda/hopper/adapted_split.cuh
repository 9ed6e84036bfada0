// adapted.cuh's product where y has few tiles, whose K, and the adapter's slabs behind it, the blocks of a cluster share (matmul_split.cuh).
#pragma once
#include "_shared/cuda/hopper/adapted.cuh"
#include "_shared/cuda/hopper/matmul_split.cuh"

// EARLY as in matmul_wgmma, but that f waits.
template <typename T, bool EARLY, bool NK, int BM, int BN, int STAGES, int SPLIT, typename F>
__device__ __forceinline__ void adapted_split(const TensorMap& x, const TensorMap& W, const TensorMap& t, const TensorMap& B,
                                              T* __restrict__ y, long long M, long long K, long long N, long long R, F f) {
    using Tile = WarpgroupTile<T, NK, BM, BN>;
    constexpr bool LIFT_NK = B_IS_TURNED<T>;
    using Lift = WarpgroupTile<T, LIFT_NK, BM, BN>;
    using Stages = Pipeline<STAGES, Tile::STAGE>;
    if (threadIdx.x == 32) prefetch(x), prefetch(W), prefetch(t), prefetch(B);
    int depth = static_cast<int>((K + SLAB<T> - 1) / SLAB<T>), more = static_cast<int>((R + SLAB<T> - 1) / SLAB<T>);
    int rows = static_cast<int>(M), columns = static_cast<int>(N);
    AdaptedCopies<Copies<T, NK, 1, false>, Copies<T, LIFT_NK, 1, false>> copies{{x, W, rows, columns}, {t, B, rows, columns}, depth};
    auto sum = [&](Lift& sums, const Stages& pipeline, int first, int count) { add_adapted<NK == LIFT_NK, Tile>(sums, pipeline, 0, first, count, depth); };
    split_tile<EARLY, true, Lift, BM, STAGES, SPLIT, 1>(y, M, N, depth + more, copies, sum, f);
}

#if __CUDA_ARCH__ >= 900
// The second launch of lora.cuh's layer, as up_warpgroup.
template <typename T, Activation ACT, bool EARLY, bool NK, int BM, int BN, int STAGES, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    up_split(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const __grid_constant__ TensorMap t,
             const __grid_constant__ TensorMap B, const T* __restrict__ b, T* __restrict__ y, long long M, long long K, long long N,
             long long R) {
    adapted_split<T, EARLY, NK, BM, BN, STAGES, SPLIT>(x, W, t, B, y, M, K, N, R, Biased<T, ACT>(b));
}
#endif
