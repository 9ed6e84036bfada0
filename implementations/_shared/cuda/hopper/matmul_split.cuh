// x @ W on Hopper's warpgroup products for a y of few tiles: the SPLIT blocks of a cluster share the K of a tile, and each ends a part of
// its columns. Operands as in matmul.cuh.
//
//   matmul_split<T, NK, BM, BN, STAGES, SPLIT, PARTS, EARLY, ANY_N>(x, W, y, M, K, N, f)        f and PARTS as in matmul_mma.cuh
//
// matmul_split.py says of which boxes x and W are. A block has one tile, so its first warpgroup is a producer without a scheduler, and gives
// up registers only where 256 columns want them.
#pragma once
#include "_shared/cuda/hopper/exchange.cuh"
#include "_shared/cuda/hopper/matmul.cuh"

// By the producer's first warp: the slabs of a block's one tile.
template <int BM, int BN, typename P, typename C>
__device__ __forceinline__ void bring_slabs(const P& pipeline, const C& copies, const Share& share) {
    if (!elect_one()) return;
    int missing = copies.template missing<BM, BN, 1>(share);
#pragma unroll 1
    for (int i = 0; i < share.count; ++i) {
        unsigned to = pipeline.producer_acquire_for_tma(i, -missing);
        copies.template bring<BM, BN, 1>(to, pipeline.full(i), share, share.first + i);
    }
}

struct NothingBeside {
    __device__ __forceinline__ void operator()(int, int) const {}
};

// y of `all` slabs, which `copies` brings; sum(tile, pipeline, first, count) adds up so many of them, from slab `first` on. EARLY: they wait for the
// launch before where they must, and f may not begin earlier. Without ANY_N, N is even, which saves a few registers. beside(thread, threads) is what
// the producer's other warps do meanwhile, once the launch before has ended.
template <bool EARLY, bool ANY_N, typename Tile, int BM, int STAGES, int SPLIT, int PARTS, typename T, typename C, typename Sum, typename F,
          typename Beside = NothingBeside>
__device__ __forceinline__ void split_tile(T* __restrict__ y, long long M, long long N, int all, const C& copies, Sum sum, F f, Beside beside = {}) {
    using Stages = Pipeline<STAGES, Tile::STAGE>;
    constexpr int PART = Tile::FN / SPLIT, EACH = PART / PARTS;  // fragments that a block ends, in all and of each matrix
    constexpr bool WIDE = Tile::FN > 16;  // with sums for which a thread's share of the registers is too few
    using Sums = Exchange<SPLIT, PART, BM * 2>;
    static_assert(Tile::FN % (SPLIT * PARTS) == 0 && Sums::BYTES <= STAGES * Tile::STAGE, "the sums take the place of the stages");
    extern __shared__ __align__(1024) unsigned char memory[];  // Stages::BYTES, and a barrier
    unsigned split = blockIdx.x % SPLIT;
    Stages pipeline(memory);
    Sums sums(memory, shared_address(memory) + Stages::BYTES);
    long long m0, n0;
    tile_origin<16>(blockIdx.x / SPLIT, M, N, BM, Tile::COLUMNS, m0, n0);
    int begin = all * static_cast<int>(split) / SPLIT, count = all * static_cast<int>(split + 1) / SPLIT - begin;
    if (threadIdx.x == 0) {
        pipeline.init(1, BM / 16);
        if (SPLIT > 1) sums.init();
    }
    __syncthreads();
    if (!EARLY) wait_for_previous_launch();
    if (uniform(threadIdx.x / 128) == 0) {
        if constexpr (WIDE) warpgroup_reg_dealloc<Producer::REGISTERS>();
        Share share{static_cast<int>(m0), static_cast<int>(n0), begin, count, false};
        if (threadIdx.x >= 32) beside(threadIdx.x - 32, 96);
        else bring_slabs<BM, Tile::COLUMNS * PARTS>(pipeline, copies, share);
        cluster_meet<SPLIT>();  // with the consumers
        return;
    }
    if constexpr (WIDE) warpgroup_reg_alloc<CONSUMER_REGISTERS<BM / 64, Producer::REGISTERS>>();
    Tile tile;
    int thread = threadIdx.x - 128, lane = threadIdx.x % 32;
    // what is wanted of rows comes while the first slabs do
    long long m = m0 + thread / 32 * 16 + lane / 4, n = n0 + split * (EACH * 8) + lane % 4 * 2;
    decltype(f.row(0)) of_row[2];
    auto want_rows = [&] {
#pragma unroll
        for (int h = 0; h < 2; ++h) of_row[h] = f.row(min(m + h * 8, M - 1));
    };
    if (!EARLY) want_rows();
    sum(tile, pipeline, begin, count);
    if (EARLY) wait_for_previous_launch(), want_rows();
    cluster_meet<SPLIT>();
    auto fragment = [](int to, int i) { return i / EACH * (Tile::FN / PARTS) + to * EACH + i % EACH; };  // number i of what block `to` ends
    if constexpr (SPLIT > 1) sums.send(thread, [&](int to, int i) -> const float(&)[4] { return tile.c[fragment(to, i)]; });
    float own[PART][4];
#pragma unroll
    for (unsigned to = 0; to < SPLIT; ++to)
#pragma unroll
        for (int i = 0; i < PART * 4; ++i)
            if (to == split) own[i / 4][i % 4] = tile.c[fragment(to, i / 4)][i % 4];
    decltype(f.column(0)) of_column[EACH][2];  // comes while sums do
#pragma unroll
    for (int j = 0; j < EACH; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) of_column[j][e] = f.column(min(n + j * 8 + e, N - 1));
    if constexpr (SPLIT > 1) {
        sums.wait();
#pragma unroll
        for (int turn = 1; turn < SPLIT; ++turn)
#pragma unroll
            for (int j = 0; j < PART; ++j) {
                Vector<float> v = sums.received(turn, j, thread);
#pragma unroll
                for (int e = 0; e < 4; ++e) own[j][e] += v.at[e];
            }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < EACH; ++j)
#pragma unroll
            for (int output = 0; output < F::OUTPUTS; ++output) {
                Pair<T> pair;
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float v[PARTS];
#pragma unroll
                    for (int p = 0; p < PARTS; ++p) v[p] = own[p * EACH + j][h * 2 + e];
                    pair.at[e] = from_float<T>(result(f, output, of_row[h], of_column[j][e], v));
                }
                T* to = f.place(output, y, m + h * 8, N) + n + j * 8;
                if (m + h * 8 >= M || n + j * 8 >= N) continue;
                if (!ANY_N || N % 2 == 0) {
                    f.store(reinterpret_cast<Pair<T>*>(to), pair);
                } else {
                    f.store(to, pair.at[0]);
                    if (n + j * 8 + 1 < N) f.store(to + 1, pair.at[1]);
                }
            }
}

template <typename T, bool NK, int BM, int BN, int STAGES, int SPLIT, int PARTS = 1, bool EARLY = false, bool ANY_N = true, typename F>
__device__ __forceinline__ void matmul_split(const TensorMap& x, const TensorMap& W, T* __restrict__ y, long long M, long long K,
                                             long long N, F f) {
    using Tile = WarpgroupTile<T, NK, BM, BN, PARTS>;
    if (threadIdx.x == 32) prefetch(x), prefetch(W);
    Copies<T, NK, PARTS, false> copies{x, W, static_cast<int>(M), static_cast<int>(N)};
    auto sum = [](Tile& tile, const Pipeline<STAGES, Tile::STAGE>& pipeline, int, int count) { mainloop(tile, pipeline, 0, count); };
    split_tile<EARLY, ANY_N, Tile, BM, STAGES, SPLIT, PARTS>(y, M, N, static_cast<int>((K + SLAB<T> - 1) / SLAB<T>), copies, sum, f);
}
