// x @ A on the float32 units (precision "ieee"), the first launch of lora.cuh's layer, where rows of A are whole vectors: A has few columns, so that a
// block's warps each multiply its whole tile by slabs of K of their own, as in matmul_few_rows.cuh, and the blocks of a cluster share K, too.
#pragma once
#include "_shared/cuda/lora.cuh"
#include "_shared/cuda/matmul_few_rows.cuh"

namespace few_rows {

// A warp's sums, which also copies its slabs of x to `whole`, in rows of whole slabs, unless that is null.
template <int BM, int BN, int WARPS>
struct CopyingSimtWarp : SimtWarp<false, BM, BN> {
    float* whole;
    long long pitch;
    int rows;

    // of the tile that begins at row m0, from slab `first` on
    __device__ __forceinline__ CopyingSimtWarp(float* matrix, long long m0, long long M, long long K, int first)
        : pitch((K + SLAB<float> - 1) / SLAB<float> * SLAB<float>), rows(static_cast<int>(min(M - m0, static_cast<long long>(BM)))) {
        whole = matrix ? matrix + m0 * pitch + (first + static_cast<int>(threadIdx.x / 32)) * SLAB<float> : nullptr;
    }
    __device__ __forceinline__ void add(const unsigned char* x, const unsigned char* w) {
        SimtWarp<false, BM, BN>::add(x, w);
        if (!whole) return;
        for (int i = threadIdx.x % 32; i < rows * 8; i += 32) {
            int row = i / 8, chunk = i % 8;
            store_vector(whole + row * pitch + chunk * 4, *reinterpret_cast<const Vector<float>*>(x + (row * 8 + (chunk ^ row % 8)) * 16));
        }
        whole += WARPS * SLAB<float>;
    }
};

}  // namespace few_rows

// As down_tile of lora.cuh, by WARPS warps, each with a ring of STAGES slabs. Neighbouring clusters have the same rows and other columns, where R is
// more than RB.
template <bool ALIGNED, int BM, int RB, int WARPS, int STAGES, int PARTS>
__device__ __forceinline__ void down_tile_simt(const float* __restrict__ x, const float* __restrict__ A, const float* __restrict__ scale,
                                               float* __restrict__ xa, float* __restrict__ t, float* __restrict__ whole, long long M, long long K,
                                               long long R) {
    using Tile = few_rows::CopyingSimtWarp<BM, RB, WARPS>;
    constexpr int BYTES = few_rows::WARP_BYTES<Tile, BM, RB, STAGES>, PITCH = few_rows::PITCH<RB>, PAIRS = RB / 2, SHARE = BM / PARTS;
    extern __shared__ __align__(128) unsigned char memory[];  // WARPS * BYTES, and where PARTS blocks share K, BM * RB floats
    if constexpr (PARTS > 1) cluster_arrive();
    int across = static_cast<int>((R + RB - 1) / RB), part = blockIdx.x % PARTS, cluster = blockIdx.x / PARTS, r0 = cluster % across * RB;
    long long m0 = static_cast<long long>(cluster / across) * BM;
    OwnSlabs<float, PARTS> own(K);
    Tile tile(r0 ? nullptr : whole, m0, M, K, own.first);
    few_rows::RowLoader<float, BM, WARPS, 1, ALIGNED> rows(x, m0, M, K);
    few_rows::ColumnLoader<float, RB, WARPS> columns(A, r0, R, K);
    rows.skip(own.first), columns.skip(own.first);
    unsigned char* ring = memory + threadIdx.x / 32 * BYTES;
    few_rows::mainloop<WARPS, STAGES>(tile, ring, rows, columns, own.count, [] {});
    tile.leave(reinterpret_cast<float*>(ring), PITCH);
    __syncthreads();

    float factor = *scale;
    auto store = [&](int row, int column, float2 sums) {
        if (m0 + row >= M || r0 + column >= R) return;  // R is even
        long long to = (m0 + row) * R + r0 + column;
        if (xa) *reinterpret_cast<float2*>(xa + to) = sums;
        if (t) *reinterpret_cast<float2*>(t + to) = make_float2(factor * sums.x, factor * sums.y);
    };
    auto of_all_warps = [&](int row, int column) {
        const float* from = reinterpret_cast<const float*>(memory) + row * PITCH + column;
        float2 total = {};
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            float2 share = *reinterpret_cast<const float2*>(from + w * (BYTES / 4));  // SWAPPED
            total.x += share.y, total.y += share.x;
        }
        return total;
    };
    if constexpr (PARTS == 1) {
        for (int i = threadIdx.x; i < BM * PAIRS; i += WARPS * 32) store(i / PAIRS, i % PAIRS * 2, of_all_warps(i / PAIRS, i % PAIRS * 2));
    } else {
        auto sums = reinterpret_cast<float*>(memory + WARPS * BYTES);  // (PARTS, SHARE, RB)
        cluster_wait();                                                // all blocks have begun
        for (int i = threadIdx.x; i < BM * PAIRS; i += WARPS * 32) {
            int row = i / PAIRS, column = i % PAIRS * 2;
            float2 own_sums = of_all_warps(row, column);
            store_pair_in_block(sums + (part * SHARE + row % SHARE) * RB + column, row / SHARE, own_sums.x, own_sums.y);
        }
        cluster_arrive(), cluster_wait();
        for (int i = threadIdx.x; i < SHARE * PAIRS; i += WARPS * 32) {
            float2 total = {};
#pragma unroll
            for (int p = 0; p < PARTS; ++p) {
                float2 share = *reinterpret_cast<const float2*>(sums + p * SHARE * RB + i * 2);
                total.x += share.x, total.y += share.y;
            }
            store(part * SHARE + i / PAIRS, i % PAIRS * 2, total);
        }
    }
}

template <bool ALIGNED, int BM, int RB, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32)
    down_simt(const float* __restrict__ x, const float* __restrict__ A, const float* __restrict__ scale, float* __restrict__ xa,
              float* __restrict__ t, float* __restrict__ whole, int* __restrict__ flags, long long M, long long K, long long R, long long count) {
    wait_for_previous_launch();
    clear_flags(flags, count);
    down_tile_simt<ALIGNED, BM, RB, WARPS, STAGES, 1>(x, A, scale, xa, t, whole, M, K, R);
}

#if __CUDA_ARCH__ >= 900
template <bool ALIGNED, int BM, int RB, int WARPS, int STAGES, int PARTS>
__global__ void __cluster_dims__(PARTS, 1, 1) __launch_bounds__(WARPS * 32)
    down_simt_by_parts(const float* __restrict__ x, const float* __restrict__ A, const float* __restrict__ scale, float* __restrict__ xa,
                       float* __restrict__ t, float* __restrict__ whole, int* __restrict__ flags, long long M, long long K, long long R,
                       long long count) {
    wait_for_previous_launch();
    clear_flags(flags, count);
    down_tile_simt<ALIGNED, BM, RB, WARPS, STAGES, PARTS>(x, A, scale, xa, t, whole, M, K, R);
}
#endif
