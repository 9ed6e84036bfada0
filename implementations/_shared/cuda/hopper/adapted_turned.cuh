// adapted.cuh's product in tiles of any multiple of 16 rows (matmul_turned.cuh): yᵀ = Wᵀ @ xᵀ + Bᵀ @ tᵀ, where t is (M, R) and B (R, N).
#pragma once
#include "_shared/cuda/hopper/adapted.cuh"
#include "_shared/cuda/hopper/matmul_turned.cuh"

// The slabs of both products, with the maps of the first at hand.
template <bool NK>
struct AdaptedTurnedCopies : AdaptedCopies<TurnedCopies<NK, 1>, TurnedCopies<false, 1>> {
    const TensorMap &x, &W;
};

// f with rows and columns exchanged, and how many slabs the product has before the adapter's.
template <typename F>
struct AdaptedTurned : Turned<F> {
    int depth;
};

// How a warp multiplies its columns of y: the slabs of the product in Product's fragments, then the adapter's in the tile's own. What f wants
// of the columns is read between them, when the launch before has ended: the adapter's slabs are multiplied while it is on its way.
template <typename Product>
struct AdaptedRows {
    template <typename F>
    struct Of {
        Product product;  // made before the branch to `multiply`, behind which its places would not be known to be uniform
        F f;
        long long n, N;
        decltype(static_cast<F*>(nullptr)->row(0)) of_row[2];

        __device__ __forceinline__ Of(const F& f, long long n, long long N) : f(f), n(n), N(N) {}
        template <typename Tile, typename P>
        __device__ __forceinline__ void multiply(Tile& tile, const P& pipeline, int first, int count, long long) {
            mainloop(product, pipeline, first, f.depth);
#pragma unroll
            for (int j = 0; j < Tile::FN; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) tile.c[0][j][e] = product.c[0][j][e];
            wait_for_previous_launch();
#pragma unroll
            for (int h = 0; h < 2; ++h) of_row[h] = f.row(min(n + threadIdx.x % 32 / 4 + h * 8, N - 1));
            mainloop(tile, pipeline, first + f.depth, count - f.depth);
        }
        __device__ __forceinline__ void finish(const float2*) {}
    };
};

#if __CUDA_ARCH__ >= 900
// The second launch of lora.cuh's layer, as up_warpgroup.
template <typename T, Activation ACT, bool EARLY, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BN * 2 + 128, 1)
    up_turned(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const __grid_constant__ TensorMap t,
              const __grid_constant__ TensorMap B, const T* __restrict__ b, T* __restrict__ y, long long M, long long K, long long N,
              long long R) {
    using Product = TurnedTile<T, NK, BM, BN, 1>;
    int depth = static_cast<int>((K + SLAB<T> - 1) / SLAB<T>), columns = static_cast<int>(N);
    if (threadIdx.x == 32) prefetch(t), prefetch(B);
    AdaptedTurnedCopies<NK> copies{{{W, x, columns}, {B, t, columns}, depth}, x, W};
    AdaptedTurned<Biased<T, ACT>> f{{Biased<T, ACT>(b)}, depth};
    persistent_tiles<TurnedTile<T, false, BM, BN, 1>, BN, BM, STAGES, CLUSTER, AdaptedRows<Product>::template Of, Producer, EARLY>(
        copies, y, N, static_cast<long long>(depth) * SLAB<T> + R, M, f, WholeTiles{});
}
#endif
