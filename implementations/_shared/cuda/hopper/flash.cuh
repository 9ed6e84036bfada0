// Flash attention on Hopper, as flash.cuh's: a producer warpgroup has the tokens brought, and consumers have 64 rows each. Boxes are
// whole: what they have of padding in q and of tokens behind the tile is hidden. q, k and v are contiguous;
// ALIGNED promises that rows of y are whole vectors.
#pragma once
#include "_shared/cuda/flash.cuh"
#include "_shared/cuda/hopper/attention.cuh"

// What a consumer does: its rows of the block's, which are first … of the sequence, with `count` tiles of tokens from `begin` on.
template <typename T, int DP, int BM, int KEYS, bool ALIGNED, typename Stages>
__device__ __forceinline__ void flash_mainloop(WarpgroupAttention<T, DP, BM, KEYS, ALIGNED>& tile, const Stages& pipeline,
                                               unsigned char* memory, int first, int begin, int count, float scale) {
    float s[1][KEYS / 8][4], by[2];
    auto online_softmax = [&](int i) {
        int j = begin + i * KEYS;
        if (j + KEYS > first + tile.row + 1)
            tile.mask(s, first, begin, [&](int f, int c) { return j + f * 8 + 2 * tile.t + c % 2; });
        tile.online_softmax(s, scale, by);
    };
    auto issue_scores = [&](int i) {
        pipeline.consumer_wait(2 * i);
        warpgroup_fence_operand(s[0]);
        warpgroup_arrive();
        tile.issue_scores(s, memory, pipeline.stage(2 * i));
        warpgroup_commit();
    };
    auto issue_values = [&](int i) {
        pipeline.consumer_wait(2 * i + 1);
        warpgroup_fence_operand(tile.acc[0]);
        warpgroup_arrive();
        tile.issue_values(pipeline.stage(2 * i + 1));
        warpgroup_commit();
    };
    if (count > 0) {
        issue_scores(0);
        warpgroup_wait<0>();
        warpgroup_fence_operand(s[0]);
        pipeline.consumer_release(0);
        online_softmax(0);
        tile.pack_weights(s);
    }
    for (int i = 1; i < count; ++i) {
        issue_scores(i);
        issue_values(i - 1);
        warpgroup_wait<1>();
        warpgroup_fence_operand(s[0]);
        pipeline.consumer_release(2 * i);
        online_softmax(i);
        tile.keep_before_wait(memory);
        warpgroup_wait<0>();
        warpgroup_fence_operand(tile.acc[0]);
        pipeline.consumer_release(2 * i - 1);
        tile.rescale(by);
        tile.pack_weights(s);
    }
    if (count > 0) {
        issue_values(count - 1);
        warpgroup_wait<0>();
        warpgroup_fence_operand(tile.acc[0]);
    }
}

// `logarithms` (…, tokens) are written where they are given: epilogue() of attention.cuh.
template <typename T, int DP, int BM, int KEYS, int STAGES, bool ALIGNED = true>
__device__ __forceinline__ void flash_warpgroup_tile(const TensorMap& q, const TensorMap& k, const TensorMap& v,
                                                     const int* n_padd, T* y, float* logarithms, long long heads,
                                                     long long tokens, long long D, float scale) {
    constexpr int PRODUCER = BM == 192 ? 24 : PRODUCER_REGISTERS;
    using Tile = WarpgroupAttention<T, DP, BM, KEYS, ALIGNED>;
    using Stages = Pipeline<2 * STAGES, Tile::STAGE>;  // tile i of k is 2 i-th, that of v 2 i + 1-th; q comes with the first
    static_assert(KEYS >= 64, "warpgroups differ by one tile of tokens at most, whose stages nobody waits for");
    extern __shared__ __align__(1024) unsigned char memory[];
    Stages pipeline(memory + Tile::Q_BYTES);
    if (threadIdx.x == 0) pipeline.init(1, BM / 16);
    __syncthreads();
    wait_for_previous_launch();
    QueryTile at(BM, n_padd, heads, static_cast<int>(tokens));
    at.begin = uniform(at.begin);
    if (threadIdx.x < 128) {
        if constexpr (HANDS_REGISTERS<DP, BM>) warpgroup_reg_dealloc<PRODUCER>();
        int head = static_cast<int>(at.head), count = threadIdx.x == 0 ? 2 * at.count(KEYS) : 0;
        for (int i = 0; i < count; ++i) {
            unsigned to = pipeline.producer_acquire_for_tma(i, i == 0 ? Tile::Q_BYTES : 0), barrier = pipeline.full(i);
            if (i == 0) load_panels<DP, BM>(shared_address(memory), q, at.first, head, barrier);
            load_panels<DP, KEYS>(to, i % 2 ? v : k, at.begin + i / 2 * KEYS, head, barrier);
        }
        return;
    }
    // two blocks have 128 a thread before producers give theirs
    if constexpr (HANDS_REGISTERS<DP, BM>)
        warpgroup_reg_alloc<BM == 64 ? 256 - PRODUCER : CONSUMER_REGISTERS<BM / 64, PRODUCER>>();
    Tile tile;
    int last = min(at.first + (tile.warpgroup + 1) * 64, at.end);  // behind this warpgroup's rows
    int count = last > at.begin ? (last - at.begin + KEYS - 1) / KEYS : 0;
    flash_mainloop<T, DP, BM, KEYS>(tile, pipeline, memory, at.first, at.begin, count, scale);
    asm volatile("bar.sync 1, %0;" ::"n"(BM * 2) : "memory");  // nobody multiplies q any more
    tile.epilogue(y + at.head * tokens * D, at.first, at.begin, static_cast<int>(tokens), static_cast<int>(D), memory, memory,
                  logarithms ? logarithms + at.head * tokens : nullptr);
}
