// Sums of columns of W beside a product by Hopper's warpgroups that reads it anyway: all warps of the producer but the first add up slabs.
#pragma once
#include "_shared/cuda/hopper/matmul.cuh"

// What a thread of THREADS adds up of slabs with BN columns, in vectors of 8: of W in rows of K (NK) the same rows' of each slab, of panels the same
// columns'.
template <typename T, bool NK, int BN, int THREADS>
struct SlabSums {
    static constexpr int VECTORS = BN * 8, EACH = (VECTORS + THREADS - 1) / THREADS;  // of a slab; of a thread
    static constexpr int ACROSS = BN / 8, DOWN = THREADS / ACROSS;                    // of panels, threads side by side, and rows of K at once
    static constexpr int COUNT = NK ? EACH : 8;
    static_assert(THREADS % ACROSS == 0 && THREADS % 8 == 0, "whole rows");
    float sum[COUNT] = {};

    __device__ __forceinline__ void add(const unsigned char* slab, int thread) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            int at = NK ? i * THREADS + thread : 0, row = NK ? at / 8 : i * DOWN + thread / ACROSS, chunk = NK ? at % 8 : thread % ACROSS % 8;
            if (row >= (NK ? BN : 64)) break;
            const unsigned char* from = NK ? slab : slab + thread % ACROSS / 8 * (64 * 128);
            auto v = *reinterpret_cast<const Vector<T>*>(from + row * 128 + ((chunk ^ row) & 7) * 16);
#pragma unroll
            for (int j = 0; j < 8; ++j) sum[NK ? i : j] += element(v, j);
        }
    }

    // keep(n, sum) of each column n of the tile, by one thread. `parts` has DOWN × BN floats.
    template <typename F>
    __device__ __forceinline__ void finish(int thread, float* parts, F keep) const {
        if constexpr (NK) {
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                float total = lane_sum<8>(sum[i]);
                if (thread % 8 == 0 && i * THREADS + thread < VECTORS) keep((i * THREADS + thread) / 8, total);
            }
        } else {
#pragma unroll
            for (int j = 0; j < 8; ++j) parts[thread / ACROSS * BN + thread % ACROSS * 8 + j] = sum[j];
            asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
            for (int n = thread; n < BN; n += THREADS) {
                float total = 0.0f;
#pragma unroll
                for (int i = 0; i < DOWN; ++i) total += parts[i * BN + n];
                keep(n, total);
            }
            asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");  // before `parts` is written for another tile
        }
    }
};

// A producer as in matmul.cuh, which hands the sums of all of K to f.keep(n, sum): beside the tiles of the first rows.
template <bool NK, int BN>
struct KeepingProducer {
    static constexpr int THREADS = 96, CONSUMER_WARPS = 3, COLUMN_THREADS = THREADS, ROW_BYTES = 0, REGISTERS = 112;

    template <typename T, typename Tile, typename Scheduler, typename L, typename P, typename C, typename F>
    static __device__ __forceinline__ void run(const Scheduler& scheduler, L& loader, const P& pipeline, const C& columns,
                                               long long, F f) {
        using Sums = SlabSums<T, NK, BN, THREADS>;
        using Column = decltype(f.column(0));
        __shared__ float parts[NK ? 1 : Sums::DOWN * BN];
        if (threadIdx.x < 32) return bring_stages(scheduler, loader, pipeline);
        int thread = threadIdx.x - 32;
        for (int tile = 0, stage = 0; tile < scheduler.count; ++tile) {
            Share share = scheduler.share(tile);
            auto to = reinterpret_cast<Column*>(columns.producer_acquire(tile));
            bring_columns<Tile::COLUMNS, THREADS>(to, thread, share.n0, scheduler.N, f);
            columns.producer_commit(tile);
            Sums sums;
#pragma unroll 1
            for (int end = stage + share.count; stage < end; ++stage) {
                pipeline.consumer_wait(stage);
                if (share.m0 == 0) sums.add(pipeline.stage(stage) + Tile::X_BYTES, thread);
                fence_proxy_async();
                pipeline.consumer_release(stage);
            }
            if (share.m0 == 0)
                sums.finish(thread, parts, [&](int n, float sum) {
                    if (share.n0 + n < scheduler.N) f.keep(share.n0 + n, sum);
                });
        }
    }
};
