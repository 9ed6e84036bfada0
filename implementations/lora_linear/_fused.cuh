// lora_linear in one launch on Hopper's warpgroup products, 16 bits: one instruction multiplies x by W and A side by side.
//
// A pipeline stage has BN columns of W and 64 of A in panels, of which RB are multiplied. At the end a warp's sums of x @ A, scaled and rounded,
// are the left operand of one more product, from registers, whose right operand is B, in one more stage of the pipeline. Each tile sums x @ A
// anew: it is for a y of few columns, where a launch of its own would take long to read x beside what the product takes.
#pragma once
#include "_shared/cuda/hopper/matmul.cuh"
#include "_shared/cuda/lora.cuh"

template <typename T, Activation ACT>
struct ScaledBiased : Biased<T, ACT> {
    const T* __restrict__ scale;
    int rank;

    __device__ __forceinline__ ScaledBiased(const T* b, const T* scale, int rank) : Biased<T, ACT>(b), scale(scale), rank(rank) {}
};

// The tile of y, whose stages have a panel of A too.
template <typename T, int BM, int BN>
struct FusedTile : WarpgroupTile<T, false, BM, BN> {
    static constexpr int STAGE = (BM + BN + 64) * 128;
};

// `depth` slabs of x, W and A; behind them B in W's place, beside zeros.
struct FusedCopies {
    const TensorMap &x, &W, &A, &B;
    int depth, N;

    template <int ROWS, int WIDTH, int CLUSTER>
    __device__ __forceinline__ int missing(const Share& of) const {
        return (WIDTH - brought<WIDTH>(of.n0, N)) * 128;
    }
    template <int ROWS, int WIDTH, int CLUSTER>
    __device__ __forceinline__ void bring(unsigned to, unsigned barrier, const Share& of, int slab) const {
        static_assert(CLUSTER == 1, "a block brings its own");
        int k0 = slab * 64;
        tma_load(to, x, k0, of.m0, barrier);
        tma_load(to + (ROWS + WIDTH) * 128, A, 0, k0, barrier);
#pragma unroll
        for (int column = 0; column < WIDTH; column += 64) {
            if (of.n0 + column >= N) break;
            if (slab < depth) tma_load(to + (ROWS + column) * 128, W, of.n0 + column, k0, barrier);
            else tma_load(to + (ROWS + column) * 128, B, of.n0 + column, 0, barrier);
        }
    }
};

template <typename T, int BM, int BN, int RB>
struct FusedRows {
    // Of x @ W, and of x @ A behind it.
    struct Sums {
        float c[(BN + RB) / 8][4] = {};
        int rows = uniform(threadIdx.x / 128) * 64 - 64;

        __device__ __forceinline__ void fence() { warpgroup_fence_operand(c); }
        __device__ __forceinline__ void multiply(unsigned x) {
#pragma unroll
            for (int step = 0; step < 4; ++step)
                wgmma<1>(c, behind(descriptor(x + rows * 128), step * 32), FusedTile<T, BM, BN>::of_w(x, step), T{});
        }
    };

    template <typename F>
    struct Of {
        Sums sums;
        None of_row[2];
        float scale;
        int rank;

        __device__ __forceinline__ Of(const F& f, long long, long long) : scale(to_float(*f.scale)), rank(f.rank) {}
        template <typename Tile, typename P>
        __device__ __forceinline__ void multiply(Tile& tile, const P& pipeline, int first, int count, long long) {
            int last = first + count - 1;
            mainloop(sums, pipeline, first, count - 1);
            unsigned t[RB / 16][4];  // registers 0 and 2 are row g, 1 and 3 row g + 8; 2 and 3 the second eight columns
#pragma unroll
            for (int i = 0; i < RB / 4; ++i) {
                Pair<T> pair;
                int fragment = i / 4 * 2 + i % 4 / 2, column = fragment * 8 + threadIdx.x % 4 * 2;
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    pair.at[e] = from_float<T>(column + e < rank ? scale * sums.c[BN / 8 + fragment][i % 2 * 2 + e] : 0.0f);
                t[i / 4][i % 4] = *reinterpret_cast<unsigned*>(&pair);
            }
#pragma unroll
            for (int j = 0; j < BN / 8; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) tile.c[j][e] = sums.c[j][e];
            pipeline.consumer_wait(last);
            unsigned stage = uniform(shared_address(pipeline.stage(last)));
            tile.fence();
            warpgroup_arrive();
#pragma unroll
            for (int step = 0; step < RB / 16; ++step) wgmma<1>(tile.c, t[step], Tile::of_w(stage, step), T{});
            warpgroup_commit();
            tile.fence();
            warpgroup_wait<0>();
            tile.fence();
            pipeline.consumer_release(last);
        }
        __device__ __forceinline__ void finish(const float2*) {}
    };
};

#if __CUDA_ARCH__ >= 900
template <typename T, Activation ACT, int BM, int BN, int RB, int STAGES>
__global__ void __launch_bounds__(BM * 2 + 128, 1)
    fused_warpgroup(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const __grid_constant__ TensorMap A,
                    const __grid_constant__ TensorMap B, const T* __restrict__ scale, const T* __restrict__ b, T* __restrict__ y,
                    long long M, long long K, long long N, long long R) {
    int depth = static_cast<int>((K + SLAB<T> - 1) / SLAB<T>);
    if (threadIdx.x == 32) prefetch(A), prefetch(B);
    persistent_tiles<FusedTile<T, BM, BN>, BM, BN, STAGES, 1, FusedRows<T, BM, BN, RB>::template Of, Producer, false>(
        FusedCopies{x, W, A, B, depth, static_cast<int>(N)}, y, M, (depth + 1) * static_cast<long long>(SLAB<T>), N,
        ScaledBiased<T, ACT>(b, scale, static_cast<int>(R)), WholeTiles{});
}
#endif
