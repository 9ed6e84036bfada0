// Flash attention by the blocks of a thread-block cluster, for the same rows: each has every so-many-th tile of tokens, and their maxima,
// sums and outputs are put together through distributed shared memory. So a few rows keep all multiprocessors busy. Compute
// capability 9.0; the pieces of a block are those of flash.cuh.
#pragma once
#include "_shared/cuda/flash.cuh"

#if __CUDA_ARCH__ >= 900
// What some of the tokens make of four columns of a row.
struct Partial {
    float maximum, total;
    Vector<float> sums;
};

// Parts 0 … COUNT - 1 put together, all of which are asked for before the first is used.
template <int COUNT, typename Of>
__device__ __forceinline__ Partial merge(Of part) {
    Partial parts[COUNT], all = {LOWEST, 0.0f, {}};
#pragma unroll
    for (int n = 0; n < COUNT; ++n) parts[n] = part(n);
#pragma unroll
    for (int n = 0; n < COUNT; ++n) all.maximum = fmaxf(all.maximum, parts[n].maximum);
#pragma unroll
    for (int n = 0; n < COUNT; ++n) {
        float share = exp2_approximate(parts[n].maximum - all.maximum);
        all.total = fmaf(share, parts[n].total, all.total);
#pragma unroll
        for (int e = 0; e < 4; ++e) all.sums.at[e] = fmaf(share, parts[n].sums.at[e], all.sums.at[e]);
    }
    return all;
}

// Writes rows first … of y (tokens, D), `columns` at most, from what all blocks of the cluster have summed, 0 in those before `begin`. `rows`
// is ROWS_BYTES of shared memory that nobody uses any more, `sums` for every warp of a row BM rows of OUT + 2 floats.
template <int CLUSTER, int DP, int WN, int KEYS, typename T, typename Tile>
__device__ __forceinline__ void cluster_epilogue(const Tile& tile, T* y, int first, int begin, int tokens, int D, unsigned char* rows,
                                                 unsigned char* merged, int columns = DP) {
    constexpr int BM = Tile::BM, OUT = Tile::OUT, QUARTERS = DP / 4, SHARE = BM * QUARTERS / CLUSTER;
    // First the block's warps, each of which has a slot, then the cluster's blocks, each of which finishes a share of the rows.
    float* sums = reinterpret_cast<float*>(merged);  // (WN, BM, OUT)
    float* maxima = sums + WN * BM * OUT;            // (WN, BM)
    float* totals = maxima + WN * BM;                // (WN, BM)
    float* block = reinterpret_cast<float*>(rows);   // (2, BM): the block's maxima and totals, whose sums are in slot 0
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        int r = tile.key / KEYS * BM + tile.row + h * 8 + tile.g;
        float total = lane_reduce<false, 4>(tile.total[0][h]);
        if (tile.t == 0) maxima[r] = tile.highest[0][h], totals[r] = total;
#pragma unroll
        for (int f = 0; f < DP / 8; ++f)
            *reinterpret_cast<float2*>(sums + r * OUT + f * 8 + 2 * tile.t) = make_float2(tile.acc[0][f][2 * h], tile.acc[0][f][2 * h + 1]);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < BM * QUARTERS; i += Tile::THREADS) {
        int r = i / QUARTERS, d = i % QUARTERS * 4;
        auto* slot = reinterpret_cast<Vector<float>*>(sums + r * OUT + d);
        Partial all = merge<WN>([&](int n) { return Partial{maxima[n * BM + r], totals[n * BM + r], slot[n * BM * OUT / 4]}; });
        *slot = all.sums;
        if (d == 0) block[r] = all.maximum, block[BM + r] = all.total;
    }
    cluster_arrive();
    cluster_wait();
    int rank = static_cast<int>(cluster_rank());
    for (int i = rank * SHARE + threadIdx.x; i < (rank + 1) * SHARE; i += Tile::THREADS) {
        int r = i / QUARTERS, d = i % QUARTERS * 4;
        Partial all = merge<CLUSTER>([&](int n) {
            return Partial{load_in_block(block + r, n), load_in_block(block + BM + r, n),
                           load_in_block(reinterpret_cast<const Vector<float>*>(sums + r * OUT + d), n)};
        });
        if (first + r >= tokens) continue;
        T* own = y + static_cast<long long>(first + r) * D + d;
#pragma unroll
        for (int e = 0; e < 4; ++e)
            if (d + e < min(columns, D)) own[e] = from_float<T>(first + r < begin ? 0.0f : all.sums.at[e] / all.total);
    }
    cluster_arrive();  // no block ends before all have read
    cluster_wait();
}

// Bytes in which the blocks' results are put together, which lie over the stages of tiles.
template <typename Tile, int WN>
constexpr int CLUSTER_MERGE = WN * Tile::BM * (Tile::OUT + 2) * 4;

// As flash of flash.cuh, a warp with 16 rows; the grid is CLUSTER times as large.
template <typename T, bool IEEE, bool ALIGNED, int DP, int CLUSTER, int WM, int WN, int KEYS, int STAGES>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(WM* WN * 32, 1)
    flash_cluster(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const int* __restrict__ n_padd,
                  T* __restrict__ y, long long heads, long long tokens, long long D, long long pitch, float scale) {
    wait_for_previous_launch();
    using Tile = Attention<T, IEEE, ALIGNED, DP, 1, WM, WN, KEYS>;
    constexpr int ALL = STAGES * 2 * Tile::TOKENS_BYTES, MERGE = CLUSTER_MERGE<Tile, WN>;
    extern __shared__ __align__(128) unsigned char memory[];
    unsigned char* stages = memory + Tile::ROWS_BYTES;
    float* weights = reinterpret_cast<float*>(stages + (ALL > MERGE ? ALL : MERGE));

    QueryTile at(blockIdx.x / CLUSTER, Tile::BM, n_padd, heads, static_cast<int>(tokens));
    Tile tile;
    flash_mainloop<ALIGNED, DP, 1, KEYS, STAGES, CLUSTER>(tile, at, static_cast<int>(cluster_rank()), q, k, v, tokens, D, pitch, memory, stages,
                                                          weights, scale);
    cluster_epilogue<CLUSTER, DP, WN, KEYS>(tile, y + at.head * tokens * D, at.first, at.begin, static_cast<int>(tokens), static_cast<int>(D),
                                            memory, stages);
}
#endif
