// The gradient of few samples in one launch. A block has some rows of a feature's table: it finds the look-ups of these rows among all samples,
// writes zeros to the rows, sorts the look-ups by row and sample, and sums them. The last block has the row of ids out of range.
#pragma once

#include "_items.cuh"
#include "_segments.cuh"

constexpr int ASKED = 4;     // ids that a thread asks for before it hashes the first
constexpr int CHECKED = 8;   // the same where rows of those out of range are summed
constexpr int AT_ONCE = 32;  // high words of ids that it asks for where it looks whether any is out of range

// Zeros to `count` elements from number `first` of an array on, by all threads of the block.
template <int THREADS, typename T>
__device__ __forceinline__ void clear_elements(T* array, Index first, Index count) {
    constexpr int SIZE = 16 / sizeof(T);
    Index head = min(count, (SIZE - first % SIZE) % SIZE), vectors = (count - head) / SIZE, tail = head + vectors * SIZE;
    T* to = array + first;
    if (threadIdx.x < head) to[threadIdx.x] = from_float<T>(0.0f);
    for (Index i = threadIdx.x; i < vectors; i += THREADS) reinterpret_cast<uint4*>(to + head)[i] = make_uint4(0, 0, 0, 0);
    if (tail + threadIdx.x < count) to[tail + threadIdx.x] = from_float<T>(0.0f);
}

// Whether any of `count` ids is out of range, in all threads of the block. Of an id its high word says so.
template <int THREADS>
__device__ __forceinline__ bool any_out_of_range(const Index* ids, Index count) {
    auto words = reinterpret_cast<const int*>(ids);
    int found = 0;
    for (Index first = threadIdx.x; first < count; first += AT_ONCE * THREADS) {
        int high[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) high[k] = first + k * THREADS < count ? words[2 * (first + k * THREADS) + 1] : 0;
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) found |= high[k];
    }
    return __syncthreads_or(found != 0);
}

// The rows of dy of all `count` look-ups whose ids are out of range, to one row. A warp takes every WARPS-th 32 of them; `parts` is shared.
template <int W, int THREADS, typename T>
__device__ __forceinline__ void sum_out_of_range(float (&parts)[W][THREADS], const Index* ids, const T* dy, T* to, Index count, int D) {
    constexpr int WARPS = THREADS / 32;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int d = lane * W; d - lane * W < D; d += 32 * W) {
        float sum[W] = {};
        for (Index first = warp * 32; first < count; first += CHECKED * THREADS) {
            unsigned found[CHECKED];
            bool outside[CHECKED];
#pragma unroll
            for (int k = 0; k < CHECKED; ++k) {
                Index i = first + k * THREADS + lane;
                outside[k] = i < count && !valid(ids[i]);
            }
#pragma unroll
            for (int k = 0; k < CHECKED; ++k) found[k] = __ballot_sync(0xffffffff, outside[k]);
#pragma unroll
            for (int k = 0; k < CHECKED; ++k)
                for (unsigned rest = found[k]; rest; rest &= rest - 1)
                    if (d < D) add_piece(sum, load_piece<W>(dy + (first + k * THREADS + __ffs(rest) - 1) * D + d));
        }
#pragma unroll
        for (int e = 0; e < W; ++e) parts[e][threadIdx.x] = sum[e];
        __syncthreads();
        if (warp == 0 && d < D) {
            for (int w = 1; w < WARPS; ++w)
#pragma unroll
                for (int e = 0; e < W; ++e) sum[e] += parts[e][w * 32 + lane];
            store_piece(to + d, sum);
        }
        __syncthreads();
    }
}

#if __CUDA_ARCH__ >= 900
constexpr int OWNERS = 1024;  // threads of a multiprocessor
#else
constexpr int OWNERS = 768;  // with 64 registers each they would keep some values in local memory
#endif

// Each feature has a block, and more in proportion to its rows; blocks that are left over end at once. dtables (sum V_f + 1, D). A Key is
// the row among the block's << LOG | sample.
template <typename Key, typename T, int W, int LANES, int F, bool IMPROVED, int THREADS, int LOG, int AHEAD>
__global__ void __launch_bounds__(THREADS, OWNERS / THREADS)
    own_rows(const Index* __restrict__ ids, const Index* __restrict__ offsets, const int* __restrict__ keys,
             const int* __restrict__ positions, const T* __restrict__ dy, T* __restrict__ dtables, Index M, Index D) {
    constexpr int CHUNK = 1 << LOG;
    __shared__ Key sorted[CHUNK];
    __shared__ Tile<W, LANES, THREADS, CHUNK, true> tile;
    __shared__ int blocks[F], found;
    prefetch_to_cache(ids, M * F * sizeof(Index));  // beside the offsets
    prefetch_to_cache(dy, M * F * D * sizeof(T));
    Index total = offsets[F], more = gridDim.x - 1 - F;
    if (blockIdx.x == gridDim.x - 1) {
        if (!any_out_of_range<THREADS>(ids, M * F)) return clear_elements<THREADS>(dtables, total * D, D);
        return sum_out_of_range(tile.carried, ids, dy, dtables + total * D, M * F, static_cast<int>(D));
    }
    for (int f = threadIdx.x; f < F; f += THREADS) blocks[f] = 1 + static_cast<int>((offsets[f + 1] - offsets[f]) * more / total);
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    int feature = 0, own = blockIdx.x;
    while (feature < F && own >= blocks[feature]) own -= blocks[feature++];
    if (feature == F) return;
    Index begin = offsets[feature], size = offsets[feature + 1] - begin;
    Index first = size * own / blocks[feature], end = size * (own + 1) / blocks[feature];

    for (Index i = threadIdx.x; i < M; i += ASKED * THREADS) {
        Index id[ASKED];
#pragma unroll
        for (int k = 0; k < ASKED; ++k)
            if (i + k * THREADS < M) id[k] = ids[(i + k * THREADS) * F + feature];
#pragma unroll
        for (int k = 0; k < ASKED; ++k) {
            if (i + k * THREADS >= M) break;
            Index row = hash<IMPROVED>(id[k], begin, size, keys, positions);
            if (row < first || row >= end) continue;
            sorted[atomicAdd(&found, 1)] = static_cast<Key>(row - first) << LOG | static_cast<Key>(i + k * THREADS);
        }
    }
    clear_elements<THREADS>(dtables, (begin + first) * D, (end - first) * D);
    __syncthreads();  // the sums are written after the zeros
    int count = found, padded = 32;
    while (padded < count) padded *= 2;
    for (int i = count + threadIdx.x; i < padded; i += THREADS) sorted[i] = ~Key{0};
    if (count > 1) sort_keys<THREADS>(sorted, padded);
    for (int i = threadIdx.x; i < count; i += THREADS) {
        bool last = i + 1 == count || sorted[i + 1] >> LOG != sorted[i] >> LOG;
        tile.rows[i] = static_cast<int>(sorted[i] >> LOG);
        tile.look_ups[i] = (static_cast<int>(sorted[i] & (CHUNK - 1)) * F + feature) * 2 + last;
    }
    __syncthreads();
    dtables += (begin + first) * D;
    sum_segments<AHEAD>(
        tile, count, false, dy, static_cast<int>(D),
        [&](int row, const float (&sum)[W], int d) { store_piece(dtables + row * D + d, sum); }, [](bool, const float (&)[W], int) {});
}
