// A product with a low-rank one in the same sums, on Hopper's warpgroup products: x @ W + t @ B, where t is (M, R) and R is small.
//
//   adapted_wgmma<T, NK, LIFT_NK, BM, BN, STAGES, CLUSTER>(x, W, t, B, y, M, K, N, R, f)      as matmul_wgmma of matmul.cuh
//
// The slabs of t and B follow those of x and W through the same pipeline: the adapter of R up to 64 costs one slab more a tile. NK says
// that W is stored (N, K), LIFT_NK that B is (N, R). Of what is past R the copy engine makes zeros.
#pragma once
#include "_shared/cuda/hopper/matmul.cuh"
#include "_shared/cuda/lora.cuh"

// What the producer brings of each tile: `depth` slabs of the product, then those of the adapter.
template <typename Product, typename Adapter>
struct AdaptedCopies {
    Product product;
    Adapter adapter;
    int depth;

    template <typename P>
    __device__ __forceinline__ void bring(const P& pipeline, int i, const Share& of, int slab, int N) const {
        if (slab < depth) product.bring(pipeline, i, of, slab, N);
        else adapter.bring(pipeline, i, of, slab - depth, N);
    }
};

template <typename T, bool NK, bool LIFT_NK, int BM, int BN, int STAGES, int CLUSTER, typename F, typename... E>
__device__ __forceinline__ void adapted_wgmma(const TensorMap& x, const TensorMap& W, const TensorMap& t, const TensorMap& B,
                                              T* __restrict__ y, long long M, long long K, long long N, long long R, F f, E... shared) {
    using Tile = WarpgroupTile<T, NK, BM, BN>;
    using Lift = WarpgroupTile<T, LIFT_NK, BM, BN>;
    using Stages = Pipeline<STAGES, Tile::STAGE, CLUSTER>;
    using Column = decltype(f.column(0));
    constexpr int OF_A_TILE = Tile::COLUMNS * static_cast<int>(sizeof(Column));
    extern __shared__ __align__(1024) unsigned char memory[];  // Stages::BYTES + OUT_BYTES + twice OF_A_TILE and barriers
    Stages pipeline(memory);
    Pipeline<2, OF_A_TILE> columns(memory + Stages::BYTES + Tile::OUT_BYTES);
    int depth = static_cast<int>((K + SLAB<T> - 1) / SLAB<T>), more = static_cast<int>((R + SLAB<T> - 1) / SLAB<T>);
    using Scheduler = TileScheduler<BM, Tile::COLUMNS, CLUSTER, E...>;
    if (threadIdx.x == 32) prefetch(x), prefetch(W), prefetch(t), prefetch(B);
    if (threadIdx.x == 0) pipeline.init(1, BM / 16), columns.init(Producer::COLUMN_THREADS, BM / 16);
    cluster_sync<CLUSTER>();
    if (threadIdx.x < 128) {
        warpgroup_reg_dealloc<Producer::REGISTERS>();
        Scheduler scheduler(M, N, depth + more, shared...);
        using Product = Copies<T, NK, BM, BN, CLUSTER, 1>;
        using Adapter = Copies<T, LIFT_NK, BM, BN, CLUSTER, 1>;
        Loader loader(scheduler, AdaptedCopies<Product, Adapter>{{x, W}, {t, B}, depth});
        Producer::run<T, Tile>(scheduler, loader, pipeline, columns, K, f);
    } else {
        warpgroup_reg_alloc<CONSUMER_REGISTERS<BM / 64, Producer::REGISTERS>>();
        Scheduler scheduler(M, N, depth + more, shared...);
        for (int i = 0, slab = 0; i < scheduler.count; ++i) {
            Share share = scheduler.share(i);
            Lift sums;
            if constexpr (NK == LIFT_NK) {
                sums.mainloop(pipeline, slab, share.count);
            } else {
                Tile tile;
                int of_product = max(min(share.first + share.count, depth) - share.first, 0);
                if (of_product > 0) tile.mainloop(pipeline, slab, of_product);
#pragma unroll
                for (int j = 0; j < Tile::FN; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) sums.c[j][e] = tile.c[j][e];
                if (of_product < share.count) sums.mainloop(pipeline, slab + of_product, share.count - of_product);
            }
            slab += share.count;
            if (HAS_COLUMNS<Column>) columns.consumer_wait(i);
            const None of_row[2] = {};
            if (scheduler.completes(sums, share))
                sums.epilogue(memory + Stages::BYTES, y, M, N, share.m0, share.n0, f, of_row,
                              reinterpret_cast<const Column*>(columns.stage(i)));
            if (HAS_COLUMNS<Column>) columns.consumer_release(i);
        }
    }
    cluster_sync<CLUSTER>();
}

#if __CUDA_ARCH__ >= 900
// The second launch of lora.cuh's layer; t is what `down` made of x, scale and A.
template <typename T, Activation ACT, bool NK, int BM, int BN, int STAGES, int CLUSTER, bool SHARED = false>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    up_warpgroup(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const __grid_constant__ TensorMap t,
                 const __grid_constant__ TensorMap B, const T* __restrict__ b, T* __restrict__ y, float4* sums, int* flags, long long M,
                 long long K, long long N, long long R) {
    Biased<T, ACT> f(b);
    if constexpr (SHARED) adapted_wgmma<T, NK, false, BM, BN, STAGES, CLUSTER>(x, W, t, B, y, M, K, N, R, f, SharedTiles{sums, flags});
    else adapted_wgmma<T, NK, false, BM, BN, STAGES, CLUSTER>(x, W, t, B, y, M, K, N, R, f);
}
#endif
