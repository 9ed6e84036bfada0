// Flash attention of few heads of few rows on Hopper: SPLIT blocks of a cluster share the tokens that a tile of rows sees, each with a
// running maximum and sum of its own, and each ends a part of the columns. `source` has q, k and v brought, of DP columns in panels of 64:
//
//   prefetch()                           asks for its tensor maps
//   rows(to, first, barrier)             BM rows of q
//   tokens(to, values, first, barrier)   KEYS tokens of k, or of v where `values`
//
// The block's rows begin at `first`. y, of one head, has COLUMNS columns; the others, which are zeros, make the rows of q, k and v whole.
#pragma once
#include "_shared/cuda/hopper/exchange.cuh"
#include "_shared/cuda/hopper/flash.cuh"

template <typename T, int DP, int BM, int KEYS, int STAGES, int SPLIT, int COLUMNS, typename Source>
__device__ __forceinline__ void flash_split_tile(const Source& source, int first, const int* n_padd, T* y, int tokens, float scale) {
    using Tile = WarpgroupAttention<T, DP, BM, KEYS>;
    using Stages = Pipeline<2 * STAGES, Tile::STAGE>;  // as flash_warpgroup_tile's
    constexpr int PART = Tile::FD / SPLIT;             // fragments that a block ends
    using Sums = Exchange<SPLIT, PART + 1, BM * 2>;    // and what its rows have: two maxima, two sums
    static_assert(Tile::FD % SPLIT == 0 && Sums::BYTES <= Tile::Q_BYTES + 2 * STAGES * Tile::STAGE, "in the place of q, k and v");
    extern __shared__ __align__(1024) unsigned char memory[];  // q, Stages::BYTES, and a barrier
    Stages pipeline(memory + Tile::Q_BYTES);
    Sums sums(memory, shared_address(memory) + Tile::Q_BYTES + Stages::BYTES);
    int own = static_cast<int>(blockIdx.x) % SPLIT;
    if (threadIdx.x == 32) source.prefetch();
    wait_for_previous_launch();
    int end = min(first + BM, tokens), padding = *n_padd;  // which comes while barriers are initialised
    if (threadIdx.x == 0) {
        pipeline.init(1, BM / 16);
        if (SPLIT > 1) sums.init();
    }
    __syncthreads();
    padding = uniform(min(max(padding, 0), tokens));
    auto tiles = [&](int last) { return last > padding ? (last - padding + KEYS - 1) / KEYS : 0; };
    int from = tiles(end) * own / SPLIT, to = tiles(end) * (own + 1) / SPLIT, begin = padding + from * KEYS;
    if (threadIdx.x < 128) {
        if constexpr (HANDS_REGISTERS<DP, BM>) warpgroup_reg_dealloc<PRODUCER_REGISTERS>();
        if (threadIdx.x < 32 && elect_one()) {
#pragma unroll 1
            for (int i = 0; i < 2 * (to - from); ++i) {
                unsigned stage = pipeline.producer_acquire_for_tma(i, i == 0 ? Tile::Q_BYTES : 0), barrier = pipeline.full(i);
                if (i == 0) source.rows(shared_address(memory), first, barrier);
                source.tokens(stage, i % 2, begin + i / 2 * KEYS, barrier);
            }
        }
        cluster_meet<SPLIT>();  // with the consumers
        return;
    }
    if constexpr (HANDS_REGISTERS<DP, BM>)
        warpgroup_reg_alloc<BM == 64 ? 256 - PRODUCER_REGISTERS : CONSUMER_REGISTERS<BM / 64>>();  // as in flash.cuh
    Tile tile;
    int count = min(tiles(min(first + (tile.warpgroup + 1) * 64, end)), to) - from;  // of this warpgroup's rows
    flash_mainloop<T, DP, BM, KEYS>(tile, pipeline, memory, first, begin, count, scale);
    cluster_meet<SPLIT>();
    int thread = threadIdx.x - 128;
    Vector<float> of_rows[SPLIT];  // maxima and sums of this block's two rows; of the same in the other blocks, in turn
#pragma unroll
    for (int h = 0; h < 2; ++h)
        of_rows[0].at[h] = tile.highest[0][h], of_rows[0].at[2 + h] = lane_reduce<false, 4>(tile.total[0][h]);
    if constexpr (SPLIT > 1)
        sums.send(thread, [&](int to, int i) -> const float(&)[4] {
            if (i == PART) return of_rows[0].at;
            return tile.acc[0][to * PART + i];
        });
    float acc[PART][4], total[2] = {of_rows[0].at[2], of_rows[0].at[3]};
#pragma unroll
    for (int block = 0; block < SPLIT; ++block)
#pragma unroll
        for (int i = 0; i < PART * 4; ++i)
            if (block == own) acc[i / 4][i % 4] = tile.acc[0][block * PART + i / 4][i % 4];
    if constexpr (SPLIT > 1) {
        sums.wait();
#pragma unroll
        for (int turn = 1; turn < SPLIT; ++turn) of_rows[turn] = sums.received(turn, PART, thread);
        float share[SPLIT][2];  // by what a block's sums are multiplied
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float highest = LOWEST;
#pragma unroll
            for (int turn = 0; turn < SPLIT; ++turn) highest = fmaxf(highest, of_rows[turn].at[h]);
            total[h] = 0.0f;
#pragma unroll
            for (int turn = 0; turn < SPLIT; ++turn) {
                share[turn][h] = exp2_approximate(of_rows[turn].at[h] - highest);
                total[h] = fmaf(of_rows[turn].at[2 + h], share[turn][h], total[h]);
            }
        }
#pragma unroll
        for (int j = 0; j < PART; ++j) {
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[j][e] *= share[0][e / 2];
#pragma unroll
            for (int turn = 1; turn < SPLIT; ++turn) {
                Vector<float> v = sums.received(turn, j, thread);
#pragma unroll
                for (int e = 0; e < 4; ++e) acc[j][e] = fmaf(v.at[e], share[turn][e / 2], acc[j][e]);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        int row = first + tile.row + h * 8 + tile.g;
        if (row >= tokens) continue;
        float inverse = 1.0f / total[h];
#pragma unroll
        for (int j = 0; j < PART; ++j) {
            float low = acc[j][2 * h] * inverse, high = acc[j][2 * h + 1] * inverse;
            int column = (own * PART + j) * 8 + 2 * tile.t;
            T* to = y + static_cast<long long>(row) * COLUMNS + column;
            unsigned pair = row < padding ? 0 : pack(low, high, T{});
            if constexpr (COLUMNS % 2 == 0) {
                if (column < COLUMNS) *reinterpret_cast<unsigned*>(to) = pair;
            } else {
                if (column < COLUMNS) to[0] = T{static_cast<unsigned short>(pair)};
                if (column + 1 < COLUMNS) to[1] = T{static_cast<unsigned short>(pair >> 16)};
            }
        }
    }
}
