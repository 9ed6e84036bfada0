// x @ W on Hopper's warpgroup products: elements of 16 bits, and float as tf32 where NK. Rows of x and W are whole vectors of 16 bytes,
// those of y any.
//
//   matmul_wgmma<T, NK, BM, BN, STAGES, CLUSTER, PARTS>(x, W, y, M, K, N, f)      as matmul_mma of matmul_mma.cuh
//
// The kernel is persistent: the grid has no more blocks than the device holds at once, and the tile scheduler (schedule.cuh) gives each
// one tile after another, or shares of tiles. The first warpgroup of a block is the producer, whose copies of the next tile run while the consumers are in the
// epilogue of this one; each of the others is a consumer with 64 rows of a tile and all of its columns. The blocks of a cluster
// have neighbouring rows, so that each brings a part of W for all of them.
//
// x and W are tensor maps; matmul.py says of which boxes. A pipeline stage has 128 bytes of K: rows of x, and of W columns as rows of K
// (NK), or panels of 64 columns; of x, where it is stored (K, M), XT, panels of 64 rows. The columns of PARTS matrices lie one behind
// the other, so that all sums of an element are a thread's. Floats are rounded to tf32 by the copy engine, where the map says so.
#pragma once
#include "_shared/cuda/hopper/pipeline.cuh"
#include "_shared/cuda/hopper/schedule.cuh"
#include "_shared/cuda/hopper/wgmma.cuh"
#include "_shared/cuda/matmul_mma.cuh"

// An element of another matrix that an epilogue wants beside its own.
struct ElementBeside {
    float v;
};

// Whether the epilogue wants something of columns: None is nothing to bring.
template <typename Column>
constexpr bool HAS_COLUMNS = sizeof(Column) > 1;

// Adds `count` stages of the pipeline from `first` on to a tile's sums. One is released when the products of the next are under way.
template <typename Tile, typename P>
__device__ __forceinline__ void mainloop(Tile& tile, const P& pipeline, int first, int count) {
    for (int i = first; i < first + count; ++i) {
        pipeline.consumer_wait(i);
        tile.fence();
        warpgroup_arrive();
        tile.multiply(uniform(shared_address(pipeline.stage(i))));  // else each product waits for its descriptor's way out of the lanes' registers
        warpgroup_commit();
        tile.fence();
        warpgroup_wait<1>();
        if (i > first) pipeline.consumer_release(i - 1);
    }
    warpgroup_wait<0>();
    tile.fence();
    pipeline.consumer_release(first + count - 1);
}
// The same by a warpgroup that has no rows.
template <typename P>
__device__ __forceinline__ void pass(const P& pipeline, int first, int count) {
    for (int i = first; i < first + count; ++i) pipeline.consumer_wait(i), pipeline.consumer_release(i);
}

// The sums of a tile, by warpgroups 1, 2, …. Those of column n of part p are c[p * FN / PARTS + n / 8].
template <typename T, bool NK, int BM, int BN, int PARTS = 1, bool XT = false>
struct WarpgroupTile {
    static constexpr int FN = BN / 8, ROWS = BM, COLUMNS = BN / PARTS, CONSUMERS = BM * 2;  // fragments; of y; threads
    static constexpr int X_BYTES = BM * 128, STAGE = X_BYTES + BN * 128;  // of a stage: of x; of x and W
    static constexpr int GROUP = COLUMNS % 64 == 0 ? 64 : 32, PANEL = 64 * 128;  // columns that are made at once; bytes
    static constexpr int PIECE = SLAB<T> < GROUP ? SLAB<T> : GROUP;  // columns of y that a warp stores at once, up to 128 bytes
    static constexpr int PITCH = SLAB<T> + 8, OUT_BYTES = BM * PITCH * static_cast<int>(sizeof(T));
    static_assert(BM % 64 == 0 && COLUMNS % GROUP == 0, "whole warpgroups, whole groups");
    static_assert(sizeof(T) == 2 || (NK && !XT), "tf32 is multiplied from rows of K alone");

    using Small = WarpgroupTile<T, NK, 64, 128, PARTS>;  // of strips: 64 rows and half the columns, in whose stages are two slabs

    float c[FN][4] = {};
    int row0 = uniform(threadIdx.x / 32) * 16 - 64, rows = uniform(threadIdx.x / 128) * 64 - 64;  // of this warp; of this warpgroup

    template <int STAGES, typename P>
    static __device__ __forceinline__ void prepare(const P&) {}
    __device__ __forceinline__ void fence() { warpgroup_fence_operand(c); }
    // Whether this warpgroup has any of the tile's rows, which begin at m0, and of M.
    __device__ __forceinline__ bool has_rows(int m0, int M) const { return rows < BM && m0 + rows < M; }
    __device__ __forceinline__ void multiply(unsigned x) {
#pragma unroll
        for (int step = 0; step < 4; ++step)
            wgmma<NK ? 0 : 1, 1, XT ? 1 : 0>(c, behind(descriptor(x + rows * 128), step * (XT ? 2048 : 32)), of_w(x, step), T{});
    }
    // W's operand of a step: 32 bytes of a row of K, 16 rows of a panel.
    static __device__ __forceinline__ unsigned long long of_w(unsigned stage, int step) {
        return behind(descriptor(stage + X_BYTES, NK ? 16 : PANEL), step * (NK ? 32 : 2048));
    }

    // The same with x from registers: operand(a, i, x) makes the fragments of all steps of what stage i has of this warp's 16 rows.
    // While one stage is multiplied, those of the next are made in other registers.
    template <typename P, typename O>
    __device__ __forceinline__ void mainloop_of_registers(const P& pipeline, int first, int count, O operand) {
        unsigned a[2][4][4];
        auto add = [&](int i, unsigned(&x)[4][4]) {
            pipeline.consumer_wait(i);
            operand(x, i - first, pipeline.stage(i) + row0 * 128);
            unsigned stage = uniform(shared_address(pipeline.stage(i)));
            warpgroup_fence_operand(c);
            warpgroup_arrive();
#pragma unroll
            for (int step = 0; step < 4; ++step)
                wgmma<NK ? 0 : 1>(c, x[step], of_w(stage, step), T{});
            warpgroup_commit();
            warpgroup_fence_operand(c);
            warpgroup_wait<1>();
            if (i > first) pipeline.consumer_release(i - 1);
        };
        int end = first + count;
#pragma unroll 1
        for (int i = first; i + 1 < end; i += 2) add(i, a[0]), add(i + 1, a[1]);
        if (count % 2) add(end - 1, a[0]);
        warpgroup_wait<0>();
        warpgroup_fence_operand(c);
        pipeline.consumer_release(end - 1);
    }

    // f of every element inside of M × N, to y in 16-byte vectors, or by elements where rows of y are no whole vectors; each warp
    // through its own part of OUT_BYTES of shared memory. What f wants of rows lane / 4 and lane / 4 + 8 is `of_row`. What it wants of
    // columns is in shared memory: read from global memory here, it would keep all others waiting.
    //
    // One group of columns after another takes the place of the first in c, so that there is one group's code: that of all of them does
    // not fit in the cache of instructions, and fetching it takes longer than running it.
    //
    // With BESIDE, f wants an element of another matrix, whose rows are whole vectors, in place of what belongs to a column: f.beside(m, n) is where that
    // lies, and f.pitch how far apart its rows are.
    template <bool BESIDE = false, typename F, typename Row, typename Column>
    __device__ __forceinline__ void epilogue(unsigned char* memory, T* y, long long M, long long N, long long m0,
                                             long long n0, F f, const Row (&of_row)[2], const Column* columns) {
        constexpr int FRAGMENTS = FN / PARTS, AT_ONCE = PIECE / 8;                // of a part; in a piece
        constexpr int SIZE = Vector<T>::SIZE, LANES = PIECE / SIZE;  // that store a row of a piece
        T* out = reinterpret_cast<T*>(memory) + row0 * PITCH;
        int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        int inside = static_cast<int>(min(min(M - m0, static_cast<long long>(BM)) - row0, 16LL));  // rows
        int width = static_cast<int>(min(N - n0, static_cast<long long>(COLUMNS)));
        if (inside <= 0) return;
        bool whole = N % SIZE == 0;
        T* of_output[F::OUTPUTS];  // where this warp's rows begin
#pragma unroll
        for (int i = 0; i < F::OUTPUTS; ++i) of_output[i] = f.place(i, y, m0 + row0, N) + n0;
        auto store = [&](int output, int from) {
            T* to = of_output[output];
            long long stride = f.stride(output, N);
            if (whole) {
#pragma unroll
                for (int i = 0; i < 16; i += 32 / LANES) {
                    int row = i + lane / LANES, column = lane % LANES * SIZE;
                    auto v = *reinterpret_cast<const Vector<T>*>(out + row * PITCH + column);
                    if (row < inside) f.template store<true>(to + row * stride + from + column, v, width - from - column);
                }
            } else {
#pragma unroll 4
                for (int row = 0; row < inside; ++row)
#pragma unroll
                    for (int column = lane; column < PIECE; column += 32)
                        if (from + column < width) f.store(to + row * stride + from + column, out[row * PITCH + column]);
            }
        };
        // To the place of what is made of it, in vectors: a load of elements would touch a line for each row.
        auto bring_beside = [&](int from) {
            if constexpr (BESIDE) {
                int column = lane % LANES * SIZE, row = lane / LANES;
                bool wanted = from + column < width;
                unsigned to = shared_address(out + row * PITCH + column);
                const T* there = f.beside(m0 + row0 + row, n0 + from + column);
#pragma unroll
                for (int i = 0; i < 16; i += 32 / LANES)
                    copy_async(to + i * PITCH * static_cast<int>(sizeof(T)), there + i * f.pitch, wanted && row + i < inside);
                copy_commit(), copy_wait<0>();
                __syncwarp();
            }
        };
#pragma unroll 1
        for (int group = 0; group < width; group += GROUP) {
#pragma unroll
            for (int piece = 0; piece < GROUP; piece += PIECE)
#pragma unroll
                for (int output = 0; output < F::OUTPUTS; ++output) {
                    bring_beside(group + piece);
                    Pair<T> pairs[AT_ONCE][2];  // all are made before one is stored, so that many are under way at once
#pragma unroll
                    for (int j = 0; j < AT_ONCE; ++j) {
                        Pair<Column> of_columns = {};
                        if constexpr (HAS_COLUMNS<Column>)
                            of_columns = reinterpret_cast<const Pair<Column>*>(columns + group + piece)[j * 4 + t];
#pragma unroll
                        for (int h = 0; h < 2; ++h)
#pragma unroll
                            for (int e = 0; e < 2; ++e) {
                                float v[PARTS];
#pragma unroll
                                for (int p = 0; p < PARTS; ++p) v[p] = c[p * FRAGMENTS + piece / 8 + j][h * 2 + e];
                                if constexpr (BESIDE) {
                                    ElementBeside beside{to_float(out[(h * 8 + g) * PITCH + j * 8 + 2 * t + e])};
                                    pairs[j][h].at[e] = from_float<T>(f(of_row[h], beside, v));
                                } else {
                                    pairs[j][h].at[e] = from_float<T>(result(f, output, of_row[h], of_columns.at[e], v));
                                }
                            }
                    }
#pragma unroll
                    for (int j = 0; j < AT_ONCE; ++j)
#pragma unroll
                        for (int h = 0; h < 2; ++h)
                            *reinterpret_cast<Pair<T>*>(out + (h * 8 + g) * PITCH + j * 8 + 2 * t) = pairs[j][h];
                    __syncwarp();
                    store(output, group + piece);
                    __syncwarp();
                }
#pragma unroll
            for (int p = 0; p < PARTS; ++p)
#pragma unroll
                for (int j = 0; j + GROUP / 8 < FRAGMENTS; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) c[p * FRAGMENTS + j][e] = c[p * FRAGMENTS + j + GROUP / 8][e];
        }
    }
};

// A box of a slab that is all outside of y is not brought, and what its place has does not matter: the copy engine makes zeros more slowly than it
// reads. lola 897×8192→1024 took an H200 49.8 µs in tiles of 128×128 with them, 41.2 without, 1024×8192→1024 43. Of SIZE rows there come in whole
// boxes, if the first is number `first` of `limit`:
template <int SIZE, int BOX = 64>
__device__ __forceinline__ int brought(int first, int limit) {
    return min(SIZE, max(limit - first + BOX - 1, 0) / BOX * BOX);
}

// The slabs of x and W that the producer has the copy engine bring, of y (M, N), by one thread: in 16 bits in small boxes, of floats, which took longer
// so, in the largest that whole tiles have, or those of SMALL ones too.
template <typename T, bool NK, int PARTS, bool XT, bool SMALL = false>
struct Copies {
    const TensorMap &x, &W;
    int M, N;

    // Rows of x or panels of a transposed one; rows of W (N, K), of which a block brings EACH of a part, or panels.
    template <int ROWS>
    static constexpr int X_BOX = XT ? 64 : sizeof(T) == 2 ? 32 : SMALL ? 64 : ROWS;
    template <int EACH>
    static constexpr int OF_ROWS = sizeof(T) == 4 && !SMALL ? EACH : EACH % 64 ? 32 : 64;
    template <int WIDTH, int CLUSTER>
    static constexpr int W_BOX = NK ? OF_ROWS<WIDTH / (PARTS > CLUSTER ? PARTS : CLUSTER)> : 64;

    // What does not come of a slab of ROWS × WIDTH / PARTS of y, in bytes.
    template <int ROWS, int WIDTH, int CLUSTER>
    __device__ __forceinline__ int missing(const Share& of) const {
        int columns = brought<WIDTH / PARTS, W_BOX<WIDTH, CLUSTER>>(of.n0, N);
        return (ROWS - brought<ROWS, X_BOX<ROWS>>(of.m0, M) + WIDTH - PARTS * columns) * 128;
    }
    // A slab to `to`; W to all blocks of the cluster, each of which brings a part.
    template <int ROWS, int WIDTH, int CLUSTER>
    __device__ __forceinline__ void bring(unsigned to, unsigned barrier, const Share& of, int slab) const {
        constexpr int COLUMNS = WIDTH / PARTS, OWN = WIDTH / CLUSTER, BOX = W_BOX<WIDTH, CLUSTER>;
        static_assert(ROWS % X_BOX<ROWS> == 0 && COLUMNS % BOX == 0 && OWN % BOX == 0 && BOX <= 256, "whole boxes");
        int k0 = slab * SLAB<T>;
#pragma unroll
        for (int row = 0; row < ROWS; row += X_BOX<ROWS>) {
            if (of.m0 + row >= M) break;
            if (XT) tma_load(to + row * 128, x, of.m0 + row, k0, barrier);
            else tma_load(to + row * 128, x, k0, of.m0 + row, barrier);
        }
        to += ROWS * 128;
#pragma unroll
        for (int box = 0; box < OWN; box += BOX) {
            int at = blockIdx.x % CLUSTER * OWN + box;  // of all columns of the stage
            if (of.n0 + at % COLUMNS >= N) continue;
            int column = at / COLUMNS * N + of.n0 + at % COLUMNS;
            if (NK) tma_load<CLUSTER>(to + at * 128, W, k0, column, barrier);
            else tma_load<CLUSTER>(to + at * 128, W, column, k0, barrier);
        }
    }
};

template <typename Tile, typename Small>
constexpr bool HOLDS_TWO = Tile::STAGE == 2 * Small::STAGE && Tile::COLUMNS == 2 * Small::COLUMNS;

// The stages of a pipeline as twice as many of half the size.
template <typename P>
struct HalfStages {
    const P& pipeline;

    __device__ __forceinline__ unsigned char* stage(int i) const { return pipeline.stage(i / 2) + i % 2 * (P::STAGE_BYTES / 2); }
    __device__ __forceinline__ void consumer_wait(int i) const {
        if (i % 2 == 0) pipeline.consumer_wait(i / 2);
    }
    __device__ __forceinline__ void consumer_release(int i) const {
        if (i % 2 == 1) pipeline.consumer_release(i / 2);
    }
};

// All slabs that a block multiplies, one after another.
template <int BM, int BN, int CLUSTER, typename Scheduler, typename Copies>
struct Loader {
    const Scheduler& scheduler;
    Copies copies;
    Share share = {};
    int left = 0, next = 0;  // stages of the present share; the number of the one behind it

    __device__ __forceinline__ Loader(const Scheduler& scheduler, const Copies& copies) : scheduler(scheduler), copies(copies) {}

    // The next stage, which is the i-th of all.
    template <typename P>
    __device__ __forceinline__ void load(const P& pipeline, int i) {
        if (left == 0) share = scheduler.share(next++), left = share.count;
        int stage = share.first + share.count - left--;
        unsigned barrier = pipeline.full(i);
        if (Scheduler::HAS_SMALL && share.small) {
            unsigned to = pipeline.producer_acquire_for_tma(i, -2 * copies.template missing<64, 128, 1>(share));
            for (int half = 0; half < 2; ++half)
                copies.template bring<64, 128, 1>(to + half * (P::STAGE_BYTES / 2), barrier, share, 2 * stage + half);
        } else {
            unsigned to = pipeline.producer_acquire_for_tma(i, -copies.template missing<BM, BN, CLUSTER>(share));
            copies.template bring<BM, BN, CLUSTER>(to, barrier, share, stage);
        }
    }
    // As many stages of the first share as there are places: W at once, x when the launch before has ended. Returns how many.
    template <typename P>
    __device__ __forceinline__ int begin(const P& pipeline) {
        share = scheduler.share(next++);
        int count = min(share.count, P::COUNT), missing = copies.template missing<BM, BN, CLUSTER>(share);
        left = share.count - count;
#pragma unroll 1
        for (int i = 0; i < count; ++i)
            copies.template bring_W<BM, BN, CLUSTER>(pipeline.producer_acquire_for_tma(i, -missing), pipeline.full(i), share, share.first + i);
        wait_for_previous_launch();
#pragma unroll 1
        for (int i = 0; i < count; ++i)
            copies.template bring_x<BM, BN, CLUSTER>(shared_address(pipeline.stage(i)), pipeline.full(i), share, share.first + i);
        return count;
    }
};

// How a warp multiplies its 16 rows of x, from row m of M on, and what it adds up of them: nothing. f.row() of rows lane / 4 and
// lane / 4 + 8 is what there is to know of them.
template <typename F>
struct GivenRows {
    decltype(static_cast<F*>(nullptr)->row(0)) of_row[2];

    __device__ __forceinline__ GivenRows(const F& f, long long m, long long M) {
#pragma unroll
        for (int h = 0; h < 2; ++h) of_row[h] = f.row(min(m + threadIdx.x % 32 / 4 + h * 8, M - 1));
    }
    // All products of the tile: `count` stages of the pipeline from `first` on.
    template <typename Tile, typename P>
    __device__ __forceinline__ void multiply(Tile& tile, const P& pipeline, int first, int count, long long) {
        mainloop(tile, pipeline, first, count);
    }
    // Once what the producer brings of columns is there, and of rows: this is where the latter is of the warp's.
    __device__ __forceinline__ void finish(const float2*) {}
};

// By the producer's first warp: all stages. X_BEFORE: the launch before makes x, but not W.
template <bool X_BEFORE = false, typename Scheduler, typename L, typename P>
__device__ __forceinline__ void bring_stages(const Scheduler& scheduler, L& loader, const P& pipeline) {
    if (!elect_one()) return;
    int i = 0;
    if constexpr (X_BEFORE) i = loader.begin(pipeline);
#pragma unroll 1
    for (; i < scheduler.stages(); ++i) loader.load(pipeline, i);
}

// f.column() of the COLUMNS of a tile from n0 on, by THREADS threads.
template <int COLUMNS, int THREADS, typename Column, typename F>
__device__ __forceinline__ void bring_columns(Column* to, int thread, int n0, int N, const F& f) {
    for (int n = thread; n < COLUMNS; n += THREADS) to[n] = f.column(min(n0 + n, N - 1));
}

// The producer warpgroup: one thread has x and W brought, and three warps bring f.column() of the columns where there is
// something to bring, once the launch before has ended; with ROWS, f.row() of a tile's rows behind them. X_BEFORE as in bring_stages.
template <bool ROWS, bool BEFORE = false>
struct ProducerOf {
    static constexpr bool X_BEFORE = BEFORE;
    static constexpr int REGISTERS = PRODUCER_REGISTERS, COLUMN_THREADS = 96;
    static constexpr int CONSUMER_WARPS = 0, ROW_BYTES = ROWS ? 8 : 0;  // it reads no stage itself

    template <typename T, typename Tile, typename Scheduler, typename L, typename P, typename C, typename F>
    static __device__ __forceinline__ void run(const Scheduler& scheduler, L& loader, const P& pipeline, const C& columns,
                                               long long, F f) {
        using Column = decltype(f.column(0));
        if (threadIdx.x < 32) {
            bring_stages<X_BEFORE>(scheduler, loader, pipeline);
        } else if (HAS_COLUMNS<Column>) {
            wait_for_previous_launch();
            for (int i = 0; i < scheduler.count; ++i) {
                Share share = scheduler.share(i);
                auto to = reinterpret_cast<Column*>(columns.producer_acquire(i));
                bring_columns<Tile::COLUMNS, COLUMN_THREADS>(to, threadIdx.x - 32, share.n0, scheduler.N, f);
                if constexpr (ROWS) {
                    auto of_rows = reinterpret_cast<float2*>(to + Tile::COLUMNS);
                    for (int m = threadIdx.x - 32; m < Tile::ROWS; m += COLUMN_THREADS) of_rows[m] = f.row(min(share.m0 + m, scheduler.M - 1));
                }
                columns.producer_commit(i);
            }
        }
    }
};
using Producer = ProducerOf<false>;

// A share by the consumer warpgroups: `count` stages of the pipeline from `first` on. `columns` is the i-th that the producer has brought:
// f.column() of the columns of a whole tile, COLUMNS, and behind it what Produce knows of rows.
template <typename Tile, typename Rows, int COLUMNS, bool EARLY, typename T, typename Scheduler, typename P, typename C, typename F>
__device__ __forceinline__ void consume(const Scheduler& scheduler, const Share& share, const P& pipeline, int first, int count,
                                        const C& columns, int i, unsigned char* out, T* y, long long K, F f) {
    using Column = decltype(f.column(0));
    Tile tile;
    Rows rows(f, share.m0 + tile.row0, scheduler.M);
    if (tile.has_rows(share.m0, scheduler.M)) rows.multiply(tile, pipeline, first, count, K);
    else pass(pipeline, first, count);
    if (EARLY) wait_for_previous_launch();
    if (HAS_COLUMNS<Column>) columns.consumer_wait(i);
    auto of_columns = reinterpret_cast<const Column*>(columns.stage(i));
    rows.finish(reinterpret_cast<const float2*>(of_columns + COLUMNS) + tile.row0);
    if (scheduler.completes(tile, share))
        tile.epilogue(out, y, scheduler.M, scheduler.N, share.m0, share.n0, f, rows.of_row, of_columns);
    if (HAS_COLUMNS<Column>) columns.consumer_release(i);
}

// All tiles of a block: those of `copies`, in Tiles of BM rows for which a stage has BN columns. EARLY: the launch before has written neither x
// nor W, and what Rows reads before the first product; it may end while that is computed.
template <typename Tile, int BM, int BN, int STAGES, int CLUSTER, template <typename> class Rows, typename Produce, bool EARLY,
          typename Copies, typename T, typename F, typename Schedule>
__device__ __forceinline__ void persistent_tiles(const Copies& copies, T* __restrict__ y, long long M, long long K, long long N, F f,
                                                 Schedule schedule) {
    using Stages = Pipeline<STAGES, Tile::STAGE, CLUSTER>;
    using Column = decltype(f.column(0));
    constexpr int OF_A_TILE = Tile::COLUMNS * static_cast<int>(sizeof(Column)) + BM * Produce::ROW_BYTES;
    extern __shared__ __align__(1024) unsigned char memory[];  // Stages::BYTES + OUT_BYTES + twice OF_A_TILE and barriers
    Stages pipeline(memory);
    Pipeline<2, OF_A_TILE> columns(memory + Stages::BYTES + Tile::OUT_BYTES);
    using Scheduler = TileScheduler<BM, Tile::COLUMNS, CLUSTER, Schedule>;  // one of each role's own: a producer has few registers
    int depth = static_cast<int>((K + SLAB<T> - 1) / SLAB<T>);
    if (threadIdx.x == 32) prefetch(copies.x), prefetch(copies.W);
    if (threadIdx.x == 0)
        pipeline.init(1, BM / 16 + Produce::CONSUMER_WARPS), columns.init(Produce::COLUMN_THREADS, BM / 16);
    Tile::template prepare<STAGES>(pipeline);
    cluster_sync<CLUSTER>();
    if (!EARLY && !Produce::X_BEFORE) wait_for_previous_launch();
    if (threadIdx.x < 128) {
        warpgroup_reg_dealloc<Produce::REGISTERS>();
        Scheduler scheduler(M, N, depth, schedule);
        Loader<BM, BN, CLUSTER, Scheduler, Copies> loader(scheduler, copies);
        Produce::template run<T, Tile>(scheduler, loader, pipeline, columns, K, f);
    } else {
        warpgroup_reg_alloc<CONSUMER_REGISTERS<BM / 64, Produce::REGISTERS>>();
        if (!EARLY && Produce::X_BEFORE) wait_for_previous_launch();
        Scheduler scheduler(M, N, depth, schedule);
        unsigned char* out = memory + Stages::BYTES;
        for (int i = 0, stage = 0; i < scheduler.count; ++i) {
            Share share = scheduler.share(i);
            if constexpr (Scheduler::HAS_SMALL)
                if (share.small) {
                    using Small = typename Tile::Small;
                    static_assert(HOLDS_TWO<Tile, Small> && Produce::CONSUMER_WARPS == 0, "a producer that reads stages reads whole tiles'");
                    consume<Small, Rows<F>, Tile::COLUMNS, EARLY>(scheduler, share, HalfStages<Stages>{pipeline}, 2 * stage, 2 * share.count, columns, i, out, y, K, f);
                    stage += share.count;
                    continue;
                }
            consume<Tile, Rows<F>, Tile::COLUMNS, EARLY>(scheduler, share, pipeline, stage, share.count, columns, i, out, y, K, f);
            stage += share.count;
        }
    }
    cluster_sync<CLUSTER>();
}

template <typename T, bool NK, int BM, int BN, int STAGES, int CLUSTER, int PARTS, template <typename> class Rows = GivenRows,
          typename Produce = Producer, bool XT = false, bool EARLY = false, typename F, typename Schedule = WholeTiles>
__device__ __forceinline__ void matmul_wgmma(const TensorMap& x, const TensorMap& W, T* __restrict__ y, long long M,
                                             long long K, long long N, F f, Schedule schedule = {}) {
    constexpr bool HAS_SMALL = TileScheduler<BM, BN / PARTS, CLUSTER, Schedule>::HAS_SMALL;
    persistent_tiles<WarpgroupTile<T, NK, BM, BN, PARTS, XT>, BM, BN, STAGES, CLUSTER, Rows, Produce, EARLY>(
        Copies<T, NK, PARTS, XT, HAS_SMALL>{x, W, static_cast<int>(M), static_cast<int>(N)}, y, M, K, N, f, schedule);
}
