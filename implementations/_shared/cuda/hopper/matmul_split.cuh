// x @ W on Hopper's warpgroup products for a y of few tiles: the SPLIT blocks of a cluster share the K of a tile, and each ends a part of
// its columns. Operands as in matmul.cuh; rows of y are whole vectors of 16 bytes.
//
//   matmul_split<T, NK, BM, BN, STAGES, SPLIT, PARTS>(x, W, y, M, K, N, f)        f and PARTS as in matmul_mma.cuh
//
// matmul_split.py says of which boxes x and W are. A block has one tile, so its first warpgroup is a producer without a scheduler, and gives
// up no registers.
#pragma once
#include "_shared/cuda/hopper/exchange.cuh"
#include "_shared/cuda/hopper/matmul.cuh"

template <typename T, bool NK, int BM, int BN, int STAGES, int SPLIT, int PARTS = 1, typename F>
__device__ __forceinline__ void matmul_split(const TensorMap& x, const TensorMap& W, T* __restrict__ y, long long M, long long K,
                                             long long N, F f) {
    using Tile = WarpgroupTile<T, NK, BM, BN, PARTS>;
    using Stages = Pipeline<STAGES, Tile::STAGE>;
    constexpr int PART = Tile::FN / SPLIT, EACH = PART / PARTS;  // fragments that a block ends, in all and of each matrix
    using Sums = Exchange<SPLIT, PART, BM * 2>;
    static_assert(Tile::FN % (SPLIT * PARTS) == 0 && Sums::BYTES <= STAGES * Tile::STAGE, "the sums take the place of the stages");
    extern __shared__ __align__(1024) unsigned char memory[];  // Stages::BYTES, and a barrier
    unsigned split = blockIdx.x % SPLIT;
    Stages pipeline(memory);
    Sums sums(memory, shared_address(memory) + Stages::BYTES);
    long long m0, n0;
    tile_origin<16>(blockIdx.x / SPLIT, M, N, BM, Tile::COLUMNS, m0, n0);
    int all = static_cast<int>((K + SLAB<T> - 1) / SLAB<T>);
    int begin = all * static_cast<int>(split) / SPLIT, count = all * static_cast<int>(split + 1) / SPLIT - begin;
    if (threadIdx.x == 32) prefetch(x), prefetch(W);
    if (threadIdx.x == 0) {
        pipeline.init(1, BM / 16);
        if (SPLIT > 1) sums.init();
    }
    __syncthreads();
    wait_for_previous_launch();
    if (threadIdx.x < 128) {
        if (threadIdx.x < 32 && elect_one()) {
#pragma unroll 1
            for (int i = 0; i < count; ++i) {
                unsigned to = pipeline.producer_acquire_for_tma(i), barrier = pipeline.full(i);
                int k0 = (begin + i) * SLAB<T>;
                tma_load(to, x, k0, static_cast<int>(m0), barrier);
                to += Tile::X_BYTES;
#pragma unroll
                for (int part = 0; part < PARTS; ++part, to += Tile::COLUMNS * 128) {
                    int column = static_cast<int>(part * N + n0);
                    if constexpr (NK) {
                        tma_load(to, W, k0, column, barrier);
                    } else {
#pragma unroll
                        for (int panel = 0; panel < Tile::COLUMNS; panel += 64) tma_load(to + panel * 128, W, column + panel, k0, barrier);
                    }
                }
            }
        }
        cluster_meet<SPLIT>();  // with the consumers
        return;
    }
    Tile tile;
    int thread = threadIdx.x - 128, lane = threadIdx.x % 32;
    tile.mainloop(pipeline, 0, count);
    cluster_meet<SPLIT>();
    auto fragment = [](int to, int i) { return i / EACH * (Tile::FN / PARTS) + to * EACH + i % EACH; };  // number i of what block `to` ends
    if constexpr (SPLIT > 1) sums.send(thread, [&](int to, int i) -> const float(&)[4] { return tile.c[fragment(to, i)]; });
    float own[PART][4];
#pragma unroll
    for (unsigned to = 0; to < SPLIT; ++to)
#pragma unroll
        for (int i = 0; i < PART * 4; ++i)
            if (to == split) own[i / 4][i % 4] = tile.c[fragment(to, i / 4)][i % 4];
    // what is wanted of rows and columns comes while sums do
    long long m = m0 + thread / 32 * 16 + lane / 4, n = n0 + split * (EACH * 8) + lane % 4 * 2;
    decltype(f.row(0)) of_row[2];
    decltype(f.column(0)) of_column[EACH][2];
#pragma unroll
    for (int h = 0; h < 2; ++h) of_row[h] = f.row(min(m + h * 8, M - 1));
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
        for (int j = 0; j < EACH; ++j) {
            struct alignas(2 * sizeof(T)) {
                T at[2];
            } pair;
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float v[PARTS];
#pragma unroll
                for (int p = 0; p < PARTS; ++p) v[p] = own[p * EACH + j][h * 2 + e];
                pair.at[e] = from_float<T>(f(of_row[h], of_column[j][e], v));
            }
            if (m + h * 8 < M && n + j * 8 < N) *reinterpret_cast<decltype(pair)*>(y + (m + h * 8) * N + n + j * 8) = pair;
        }
}
