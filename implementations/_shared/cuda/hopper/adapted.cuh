// A product with a low-rank one in the same sums, on Hopper's warpgroup products: x @ W + t @ B, where t is (M, R) and R is small.
//
//   adapted_wgmma<T, NK, LIFT_NK, BM, BN, STAGES, CLUSTER>(x, W, t, B, y, M, K, N, R, f)      as matmul_wgmma of matmul.cuh
//
// The slabs of t and B follow those of x and W through the same pipeline: the adapter of R up to 64, or of 32 floats, costs one slab more a
// tile. NK says that W is stored (N, K), LIFT_NK that B is (N, R), as both are of floats. Of what is past R the copy engine makes zeros.
#pragma once
#include "_shared/cuda/hopper/matmul.cuh"
#include "_shared/cuda/lora.cuh"

// What the producer brings of each tile: `depth` slabs of the product, then those of the adapter, which the launch before has made.
template <typename Product, typename Adapter>
struct AdaptedCopies {
    Product product;
    Adapter adapter;
    int depth;

    template <int ROWS, int WIDTH, int CLUSTER>
    __device__ __forceinline__ int missing(const Share& of) const {
        return product.template missing<ROWS, WIDTH, CLUSTER>(of);
    }
    template <int ROWS, int WIDTH, int CLUSTER>
    __device__ __forceinline__ void bring(unsigned to, unsigned barrier, const Share& of, int slab) const {
        if (slab < depth) product.template bring<ROWS, WIDTH, CLUSTER>(to, barrier, of, slab);
        else wait_for_previous_launch(), adapter.template bring<ROWS, WIDTH, CLUSTER>(to, barrier, of, slab - depth);
    }
};

// The sums of a share in Tile's fragments, then Lift's, unless they are the SAME: `count` stages of the pipeline from `begin` on, the first of them slab `first` of K.
template <bool SAME, typename Tile, typename Lift, typename P>
__device__ __forceinline__ void add_adapted(Lift& sums, const P& pipeline, int begin, int first, int count, int depth) {
    if constexpr (SAME) {
        mainloop(sums, pipeline, begin, count);
    } else {
        Tile tile;
        int of_product = max(min(first + count, depth) - first, 0);
        if (of_product > 0) mainloop(tile, pipeline, begin, of_product);
#pragma unroll
        for (int j = 0; j < Tile::FN; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) sums.c[j][e] = tile.c[j][e];
        if (of_product < count) mainloop(sums, pipeline, begin + of_product, count - of_product);
    }
}

// A share by the consumer warpgroups, as `consume` of matmul.cuh.
template <bool SAME, typename Tile, typename Lift, typename T, typename Scheduler, typename P, typename C, typename F>
__device__ __forceinline__ void consume_adapted(const Scheduler& scheduler, const Share& share, const P& pipeline, int begin, int count,
                                                int depth, const C& columns, int i, unsigned char* out, T* y, F f) {
    using Column = decltype(f.column(0));
    Lift sums;
    if (sums.has_rows(share.m0, scheduler.M)) add_adapted<SAME, Tile>(sums, pipeline, begin, share.first, count, depth);
    else pass(pipeline, begin, count);
    wait_for_previous_launch();
    if (HAS_COLUMNS<Column>) columns.consumer_wait(i);
    const None of_row[2] = {};
    if (scheduler.completes(sums, share))
        sums.epilogue(out, y, scheduler.M, scheduler.N, share.m0, share.n0, f, of_row, reinterpret_cast<const Column*>(columns.stage(i)));
    if (HAS_COLUMNS<Column>) columns.consumer_release(i);
}

// EARLY as in matmul_wgmma.
template <typename T, bool NK, bool LIFT_NK, bool EARLY, int BM, int BN, int STAGES, int CLUSTER, typename F, typename Schedule>
__device__ __forceinline__ void adapted_wgmma(const TensorMap& x, const TensorMap& W, const TensorMap& t, const TensorMap& B,
                                              T* __restrict__ y, long long M, long long K, long long N, long long R, F f, Schedule schedule) {
    using Tile = WarpgroupTile<T, NK, BM, BN>;
    using Lift = WarpgroupTile<T, LIFT_NK, BM, BN>;
    using Stages = Pipeline<STAGES, Tile::STAGE, CLUSTER>;
    using Column = decltype(f.column(0));
    constexpr int OF_A_TILE = Tile::COLUMNS * static_cast<int>(sizeof(Column));
    extern __shared__ __align__(1024) unsigned char memory[];  // Stages::BYTES + OUT_BYTES + twice OF_A_TILE and barriers
    Stages pipeline(memory);
    Pipeline<2, OF_A_TILE> columns(memory + Stages::BYTES + Tile::OUT_BYTES);
    int depth = static_cast<int>((K + SLAB<T> - 1) / SLAB<T>), more = static_cast<int>((R + SLAB<T> - 1) / SLAB<T>);
    using Scheduler = TileScheduler<BM, Tile::COLUMNS, CLUSTER, Schedule>;
    if (threadIdx.x == 32) prefetch(x), prefetch(W), prefetch(t), prefetch(B);
    if (threadIdx.x == 0) pipeline.init(1, BM / 16), columns.init(Producer::COLUMN_THREADS, BM / 16);
    cluster_sync<CLUSTER>();
    if (!EARLY) wait_for_previous_launch();
    if (threadIdx.x < 128) {
        warpgroup_reg_dealloc<Producer::REGISTERS>();
        Scheduler scheduler(M, N, depth + more, schedule);
        using Both = AdaptedCopies<Copies<T, NK, 1, false, Scheduler::HAS_SMALL>, Copies<T, LIFT_NK, 1, false, Scheduler::HAS_SMALL>>;
        int rows = static_cast<int>(M), all = static_cast<int>(N);
        Loader<BM, BN, CLUSTER, Scheduler, Both> loader(scheduler, {{x, W, rows, all}, {t, B, rows, all}, depth});
        Producer::run<T, Tile>(scheduler, loader, pipeline, columns, K, f);
    } else {
        warpgroup_reg_alloc<CONSUMER_REGISTERS<BM / 64, Producer::REGISTERS>>();
        Scheduler scheduler(M, N, depth + more, schedule);
        unsigned char* out = memory + Stages::BYTES;
        for (int i = 0, stage = 0; i < scheduler.count; ++i) {
            Share share = scheduler.share(i);
            if constexpr (Scheduler::HAS_SMALL)
                if (share.small) {
                    static_assert(HOLDS_TWO<Tile, typename Tile::Small>, "two slabs in a stage");
                    consume_adapted<NK == LIFT_NK, typename Tile::Small, typename Lift::Small, T>(
                        scheduler, share, HalfStages<Stages>{pipeline}, 2 * stage, 2 * share.count, depth, columns, i, out, y, f);
                    stage += share.count;
                    continue;
                }
            consume_adapted<NK == LIFT_NK, Tile, Lift, T>(scheduler, share, pipeline, stage, share.count, depth, columns, i, out, y, f);
            stage += share.count;
        }
    }
    cluster_sync<CLUSTER>();
}

// Whether the second launch of lora.cuh's layer has B as (N, R): of floats alone, which tensor cores take in no other way.
template <typename T>
constexpr bool B_IS_TURNED = sizeof(T) == 4;

#if __CUDA_ARCH__ >= 900
// The second launch of lora.cuh's layer; t is what `down` made of x, scale and A.
template <typename T, Activation ACT, bool EARLY, bool NK, int BM, int BN, int STAGES, int CLUSTER, typename Schedule = WholeTiles>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    up_warpgroup(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const __grid_constant__ TensorMap t,
                 const __grid_constant__ TensorMap B, const T* __restrict__ b, T* __restrict__ y, float4* sums, int* flags, long long M,
                 long long K, long long N, long long R) {
    Biased<T, ACT> f(b);
    adapted_wgmma<T, NK, B_IS_TURNED<T>, EARLY, BM, BN, STAGES, CLUSTER>(x, W, t, B, y, M, K, N, R, f, schedule_of<Schedule>(sums, flags));
}
#endif
