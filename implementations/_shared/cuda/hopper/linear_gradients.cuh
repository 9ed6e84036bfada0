// The gradients of z = x @ W, given dz (M, N), by one persistent launch of Hopper's warpgroup products (matmul.cuh; 16 bits):
//
//   dx (M, K) = f(dz @ Wᵀ)        dW = xᵀ @ dz (K, N), or its transpose dzᵀ @ x (N, K) where W is stored so
//
// Either alone would leave multiprocessors idle: dx is deep and has few tiles, dW many. Here all slabs of both are shared out evenly. A
// cluster makes whole tiles first, as many of dx as all others, and of dW. What is left, the pool, is one row of slabs, those of dx before
// those of dW, of which each cluster has a piece. Its ends come together as in schedule.cuh; a piece that would begin within `snap` slabs of
// a tile's end begins there, so that hardly anything is exchanged for it, and with a large `snap` nothing at all.
#pragma once
#include "_shared/cuda/hopper/matmul.cuh"
#include "_shared/cuda/pulled.cuh"

// The base of what is made of dn = dz @ Wᵀ: f(row, column, v) as of any epilogue, or, where BESIDE, f(row(of_row(m)), beside, v), of which the
// producer brings of_row().
struct GradientEpilogue : Epilogue {
    static constexpr bool BESIDE = false;
};

#if __CUDA_ARCH__ >= 900

// What linear_gradients.py hands over: whole tiles of each cluster, of dx and of dW.
struct GradientSchedule {
    SharedTiles shared;
    int dx, dW, snap;
};

__device__ __forceinline__ GradientSchedule gradient_schedule(float4* sums, int* flags, long long dx, long long dW, long long snap) {
    return {{sums, flags}, static_cast<int>(dx), static_cast<int>(dW), static_cast<int>(snap)};
}

// A share of one of both.
struct GradientShare : Share {
    bool of_weights;
};

template <int BM, int BN, int CLUSTER>
struct GradientScheduler {
    using Grid = TileGrid<BM, BN, CLUSTER>;
    Grid dx, dW;
    SharedTiles shared;
    int depth_dx, depth_dW, whole_dx, whole_dW;  // slabs of a tile; whole tiles of a cluster
    int left, begin, end, count, snap;           // tiles of dx in the pool; slabs of the piece; shares of this block

    __device__ __forceinline__ GradientScheduler(int M, int K, int N, int rows, int columns, const GradientSchedule& schedule)
        : dx(M, K), dW(rows, columns), shared(schedule.shared), depth_dx((N + 63) / 64), depth_dW((M + 63) / 64),
          whole_dx(schedule.dx), whole_dW(schedule.dW), snap(schedule.snap) {
        left = dx.tiles - whole_dx * dx.clusters;
        begin = begin_of(dx.own), end = begin_of(dx.own + 1);
        count = whole_dx + whole_dW + (begin < end ? tile_at(end - 1) - tile_at(begin) + 1 : 0);
    }
    // Of the pool: which tile a slab belongs to, where that begins and how deep it is.
    __device__ __forceinline__ int tile_at(int slab) const {
        return slab < left * depth_dx ? slab / depth_dx : left + (slab - left * depth_dx) / depth_dW;
    }
    __device__ __forceinline__ int start_of(int tile) const {
        return tile < left ? tile * depth_dx : left * depth_dx + (tile - left) * depth_dW;
    }
    __device__ __forceinline__ int depth_of(int tile) const { return tile < left ? depth_dx : depth_dW; }
    __device__ __forceinline__ int begin_of(int cluster) const {
        int pool = start_of(left + dW.tiles - whole_dW * dW.clusters);
        int at = cluster * (pool / dx.clusters) + cluster * (pool % dx.clusters) / dx.clusters;  // cluster * pool / clusters, which may be no int
        int tile = tile_at(at), start = start_of(tile);
        if (at == pool || at - start <= snap) return at == pool ? at : start;
        return start + depth_of(tile) - at <= snap ? start + depth_of(tile) : at;
    }
    __device__ __forceinline__ int stages() const { return whole_dx * depth_dx + whole_dW * depth_dW + end - begin; }
    __device__ __forceinline__ GradientShare share(int i) const {
        if (i < whole_dx) return {dx.share(dx.own + i * dx.clusters, 0, depth_dx), false};
        i -= whole_dx;
        if (i < whole_dW) return {dW.share(dW.own + i * dW.clusters, 0, depth_dW), true};
        int tile = tile_at(end - 1) - (i - whole_dW), start = start_of(tile), first = max(begin - start, 0);
        int slabs = min(end - start, depth_of(tile)) - first;
        if (tile < left) return {dx.share(whole_dx * dx.clusters + tile, first, slabs), false};
        return {dW.share(whole_dW * dW.clusters + tile - left, first, slabs), true};
    }
    // As TileScheduler<SharedTiles>'s.
    template <typename Tile>
    __device__ __forceinline__ bool completes(Tile& tile, const GradientShare& share) const {
        bool has_rows = share.m0 + tile.row0 < (share.of_weights ? dW.M : dx.M);
        if (share.first + share.count < (share.of_weights ? depth_dW : depth_dx)) {
            if (has_rows) shared.leave(tile);
            return false;
        }
        for (int cluster = dx.own, to = begin; to > begin - share.first;) {
            int from = begin_of(--cluster);
            if (from < to && has_rows) shared.add(tile, cluster * CLUSTER + blockIdx.x % CLUSTER);
            to = from;
        }
        return true;
    }
};

// `dz_rows` and `W` are the operands of dx, `left` and `right` those of dW (rows, columns).
template <typename T, bool NK, int BM, int BN, int STAGES, int CLUSTER, typename F>
__device__ __forceinline__ void linear_gradients(const TensorMap& dz_rows, const TensorMap& W, const TensorMap& left, const TensorMap& right,
                                                 T* __restrict__ dx, T* __restrict__ dW, long long M, long long K, long long N,
                                                 long long rows, long long columns, F f, const ColumnParts<T>& bias,
                                                 const GradientSchedule& schedule) {
    using Inputs = WarpgroupTile<T, NK, BM, BN>;
    using Weights = WarpgroupTile<T, false, BM, BN, 1, true>;
    static_assert(Inputs::STAGE == Weights::STAGE && Inputs::OUT_BYTES == Weights::OUT_BYTES, "of one pipeline");
    using Stages = Pipeline<STAGES, Inputs::STAGE, CLUSTER>;
    using Scheduler = GradientScheduler<BM, BN, CLUSTER>;
    extern __shared__ __align__(1024) unsigned char memory[];  // slabs, a tile on its way out, what f wants of two tiles of dx, the scheduler
    Stages pipeline(memory);
    using Wanted = Pipeline<2, BM * 16>;
    Wanted wanted(memory + Stages::BYTES + Inputs::OUT_BYTES);
    if (threadIdx.x == 32) prefetch(dz_rows), prefetch(W), prefetch(left), prefetch(right);
    // of all threads: two problems would take too many registers of each
    static_assert(sizeof(Scheduler) <= 128, "linear_gradients.py counts so many bytes");
    auto& scheduler = *reinterpret_cast<Scheduler*>(memory + Stages::BYTES + Inputs::OUT_BYTES + Wanted::BYTES);
    if (threadIdx.x == 0) {
        pipeline.init(1, BM / 16), wanted.init(96, BM / 16);
        scheduler = Scheduler(static_cast<int>(M), static_cast<int>(K), static_cast<int>(N), static_cast<int>(rows), static_cast<int>(columns), schedule);
    }
    cluster_sync<CLUSTER>();
    wait_for_previous_launch();
    if (threadIdx.x < 128) {
        warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
        if (threadIdx.x < 32) {
            if (elect_one()) {
                Copies<T, NK, 1, false> of_inputs{dz_rows, W, scheduler.dx.M, scheduler.dx.N};
                Copies<T, false, 1, true> of_weights{left, right, scheduler.dW.M, scheduler.dW.N};
                for (int i = 0, stage = 0; i < scheduler.count; ++i) {
                    GradientShare share = scheduler.share(i);
                    int missing = share.of_weights ? of_weights.template missing<BM, BN, CLUSTER>(share) : of_inputs.template missing<BM, BN, CLUSTER>(share);
#pragma unroll 1
                    for (int slab = share.first; slab < share.first + share.count; ++slab, ++stage) {
                        unsigned to = pipeline.producer_acquire_for_tma(stage, -missing), barrier = pipeline.full(stage);
                        if (share.of_weights) of_weights.template bring<BM, BN, CLUSTER>(to, barrier, share, slab);
                        else of_inputs.template bring<BM, BN, CLUSTER>(to, barrier, share, slab);
                    }
                }
            }
        } else {
            int thread = threadIdx.x - 32;
            if constexpr (F::BESIDE) {
                for (int i = 0, next = 0; i < scheduler.count; ++i) {
                    GradientShare share = scheduler.share(i);
                    if (share.of_weights) continue;
                    auto to = reinterpret_cast<float4*>(wanted.producer_acquire(next));
                    for (int m = thread; m < BM; m += 96) {
                        int row = min(share.m0 + m, scheduler.dx.M - 1);
                        to[m] = f.of_row(row);
#pragma unroll 1
                        for (int k = share.n0; k < min(share.n0 + BN, scheduler.dx.N); k += 64) prefetch_line(f.beside(row, k));  // until it is wanted
                    }
                    wanted.producer_commit(next++);
                }
            }
            bias.sum_up(thread, 96, gridDim.x);
        }
    } else {
        warpgroup_reg_alloc<CONSUMER_REGISTERS<BM / 64>>();
        unsigned char* out = memory + Stages::BYTES;
        for (int i = 0, stage = 0, next = 0; i < scheduler.count; ++i) {
            GradientShare share = scheduler.share(i);
            if (share.of_weights) {
                Weights tile;
                if (tile.has_rows(share.m0, scheduler.dW.M)) mainloop(tile, pipeline, stage, share.count);
                else pass(pipeline, stage, share.count);
                None none[2];
                if (scheduler.completes(tile, share))
                    tile.epilogue(out, dW, rows, columns, share.m0, share.n0, Stored{}, none, static_cast<const None*>(nullptr));
            } else {
                Inputs tile;
                if (tile.has_rows(share.m0, scheduler.dx.M)) mainloop(tile, pipeline, stage, share.count);
                else pass(pipeline, stage, share.count);
                bool completes = scheduler.completes(tile, share);
                auto no_columns = static_cast<const None*>(nullptr);
                if constexpr (F::BESIDE) {
                    wanted.consumer_wait(next);
                    auto of_rows = reinterpret_cast<const float4*>(wanted.stage(next)) + tile.row0 + threadIdx.x % 32 / 4;
                    decltype(f.row(of_rows[0])) of_row[2] = {f.row(of_rows[0]), f.row(of_rows[8])};
                    if (completes) tile.template epilogue<true>(out, dx, M, K, share.m0, share.n0, f, of_row, no_columns);
                    wanted.consumer_release(next++);
                } else {
                    None none[2];
                    if (completes) tile.epilogue(out, dx, M, K, share.m0, share.n0, f, none, no_columns);
                }
            }
            stage += share.count;
        }
    }
    cluster_sync<CLUSTER>();
}
#endif
