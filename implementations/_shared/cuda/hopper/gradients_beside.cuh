// The gradients of z = x @ W as in linear_gradients.cuh, for few rows: dx has few tiles, which are deep, dW many, which are shallow (16 bits).
// The blocks of the first clusters share the depth of a tile of dx (matmul_split.cuh). Each of those behind them has a tile of dW, and takes the place
// of whichever has ended. Blocks that make several tiles of dW, one after another, were no faster: what all wait for is dx.
#pragma once
#include "_shared/cuda/hopper/linear_gradients.cuh"
#include "_shared/cuda/hopper/matmul_split.cuh"

#if __CUDA_ARCH__ >= 900

// Tile number `number` of y (M, N), of `count` slabs.
template <typename Tile, int BM, int STAGES, typename T, typename C>
__device__ __forceinline__ void single_tile(T* __restrict__ y, long long M, long long N, unsigned number, int count, const C& copies) {
    static_assert(Tile::FN <= 16, "sums for which a thread's share of the registers is enough");
    static_assert(Tile::OUT_BYTES <= STAGES * Tile::STAGE, "the tile on its way out takes the place of the stages");
    extern __shared__ __align__(1024) unsigned char memory[];
    Pipeline<STAGES, Tile::STAGE> pipeline(memory);
    long long m0, n0;
    tile_origin<16>(number, M, N, BM, Tile::COLUMNS, m0, n0);
    if (threadIdx.x == 0) pipeline.init(1, BM / 16);
    __syncthreads();
    wait_for_previous_launch();
    if (uniform(threadIdx.x / 128) == 0) {
        Share share{static_cast<int>(m0), static_cast<int>(n0), 0, count, false};
        if (threadIdx.x < 32) bring_slabs<BM, Tile::COLUMNS>(pipeline, copies, share);
        return;
    }
    Tile tile;
    if (tile.has_rows(static_cast<int>(m0), static_cast<int>(M))) mainloop(tile, pipeline, 0, count);
    else pass(pipeline, 0, count);
    asm volatile("bar.sync 1, %0;" ::"n"(BM * 2) : "memory");  // all slabs are read
    None none[2];
    tile.epilogue(memory, y, M, N, m0, n0, Stored{}, none, static_cast<const None*>(nullptr));
}

template <typename T, bool NK, int BM, int BN, int STAGES, int SPLIT, typename F>
__device__ __forceinline__ void gradients_beside_each_other(const TensorMap& dz_rows, const TensorMap& W, const TensorMap& left,
                                                            const TensorMap& right, T* __restrict__ dx, T* __restrict__ dW, long long M,
                                                            long long K, long long N, long long rows, long long columns, F f,
                                                            const ColumnParts<T>& bias) {
    using Inputs = WarpgroupTile<T, NK, BM, BN>;
    using Weights = WarpgroupTile<T, false, BM, BN, 1, true>;
    static_assert(Inputs::STAGE == Weights::STAGE, "of one size");
    auto tiles = [](long long m, long long n) { return static_cast<unsigned>((m + BM - 1) / BM * ((n + BN - 1) / BN)); };
    auto slabs = [](long long depth) { return static_cast<int>((depth + SLAB<T> - 1) / SLAB<T>); };
    unsigned of_inputs = tiles(M, K) * SPLIT;
    if (threadIdx.x == 32) prefetch(dz_rows), prefetch(W), prefetch(left), prefetch(right);
    if (blockIdx.x < of_inputs) {
        Copies<T, NK, 1, false> copies{dz_rows, W, static_cast<int>(M), static_cast<int>(K)};
        auto sum = [](Inputs& tile, const Pipeline<STAGES, Inputs::STAGE>& pipeline, int, int count) { mainloop(tile, pipeline, 0, count); };
        split_tile<false, true, Inputs, BM, STAGES, SPLIT, 1>(dx, M, K, slabs(N), copies, sum, f,
                                                              [&](int thread, int threads) { bias.sum_up(thread, threads, of_inputs); });
    } else if (blockIdx.x - of_inputs < tiles(rows, columns)) {  // the last cluster may have blocks without a tile
        Copies<T, false, 1, true> copies{left, right, static_cast<int>(rows), static_cast<int>(columns)};
        single_tile<Weights, BM, STAGES>(dW, rows, columns, blockIdx.x - of_inputs, slabs(M), copies);
    }
}
#endif
