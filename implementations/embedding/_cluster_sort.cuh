// The look-ups of each feature sorted by table row in one launch: a feature has a cluster of blocks (Hopper).
//
// It is a stable radix sort, the lowest digit first. Each warp of the cluster has a range of the feature's items. For each digit a warp
// counts how many of its items have which; the blocks read each other's counts in shared memory; then every warp knows where its next item
// of a digit goes. The items themselves go from one global buffer to the other, which the L2 cache holds. Between two digits all that waits
// is a cluster, so that features of few rows, which need fewer digits, end early.
//
// Most rows are never looked up: meanwhile the copy engine writes zeros to all of dtables.
#pragma once

#include "_items.cuh"
#include "_shared/cuda/hopper/pipeline.cuh"

constexpr int ZEROS = 8192;      // bytes of one copy
constexpr int ITEMS_AT_ONCE = 8; // that a thread asks for before it uses the first

// Some bits of a row.
struct Digit {
    int shift, bits;
    __device__ __forceinline__ int of(Item item) const { return row_of(item) >> shift & ((1 << bits) - 1); }
};

// A warp's part of a feature's items.
struct Range {
    int begin, end;
};

template <int WIDTH, int THREADS>
struct Sorter {
    static constexpr int BINS = 1 << WIDTH, WARPS = THREADS / 32, OWN = BINS > THREADS ? BINS / THREADS : 1;
    uint4 zeros[ZEROS / 16];
    unsigned places[WARPS][BINS];  // how many of a digit a warp has, then where its next one goes
    unsigned counts[BINS];         // how many the block has, for the others of its cluster
    unsigned sums[WARPS];
};

// Of one block of the cluster, how many items it has of a digit.
__device__ __forceinline__ unsigned count_in_block(const unsigned* count, int block) {
    return __float_as_uint(load_in_block(reinterpret_cast<const float*>(count), block));
}

// Zeros to `bytes` bytes, by all warps of the grid; the first lane of each asks for copies.
template <int WARPS>
__device__ __forceinline__ void ask_for_zeros(const uint4* zeros, unsigned char* to, Index bytes) {
    Index whole = bytes / 16 * 16, step = static_cast<Index>(gridDim.x) * WARPS * ZEROS;
    if (threadIdx.x % 32 == 0)
        for (Index at = (static_cast<Index>(blockIdx.x) * WARPS + threadIdx.x / 32) * ZEROS; at < whole; at += step)
            bulk_store(to + at, shared_address(zeros), static_cast<unsigned>(min(whole - at, static_cast<Index>(ZEROS))));
    if (blockIdx.x == 0 && threadIdx.x < bytes - whole) to[whole + threadIdx.x] = 0;
}

__device__ __forceinline__ void clear_counts(unsigned* counts, Digit digit) {
    for (int i = threadIdx.x % 32; i < 1 << digit.bits; i += 32) counts[i] = 0;
    __syncwarp();
}

// Hashes the ids of a range to items, and counts their first digit.
template <int F, bool IMPROVED>
__device__ __forceinline__ void hash_items(const Index* ids, Index begin, Index size, const int* keys, const int* positions, Item* items,
                                           Range range, Digit digit, unsigned* counts) {
    for (int first = range.begin + threadIdx.x % 32; first < range.end; first += 32 * ITEMS_AT_ONCE) {
        Index id[ITEMS_AT_ONCE];
#pragma unroll
        for (int k = 0; k < ITEMS_AT_ONCE; ++k)
            if (first + 32 * k < range.end) id[k] = ids[static_cast<Index>(first + 32 * k) * F];
#pragma unroll
        for (int k = 0; k < ITEMS_AT_ONCE; ++k) {
            int sample = first + 32 * k;
            if (sample >= range.end) break;
            Item item = hash<IMPROVED>(id[k], begin, size, keys, positions) << 32 | sample;
            items[sample] = item;
            atomicAdd(counts + digit.of(item), 1);
        }
    }
}

// `use` of each item of a range and whether there is one, by whole warps in the order of the items. They are read past the L1 cache:
// other blocks have written them.
template <typename Use>
__device__ __forceinline__ void for_items(const Item* items, Range range, Use use) {
    for (int first = range.begin + threadIdx.x % 32; first - threadIdx.x % 32 < range.end; first += 32 * ITEMS_AT_ONCE) {
        Item item[ITEMS_AT_ONCE];
#pragma unroll
        for (int k = 0; k < ITEMS_AT_ONCE; ++k) item[k] = first + 32 * k < range.end ? __ldcg(items + first + 32 * k) : 0;
#pragma unroll
        for (int k = 0; k < ITEMS_AT_ONCE; ++k) use(item[k], first + 32 * k < range.end);
    }
}

// Makes places of all warps' counts: items of smaller digits are before, and of the same digit those of earlier blocks and warps.
template <int CLUSTER, int WIDTH, int THREADS>
__device__ __forceinline__ void find_places(Sorter<WIDTH, THREADS>& s, Digit digit) {
    constexpr int OWN = Sorter<WIDTH, THREADS>::OWN, WARPS = THREADS / 32;
    int first = threadIdx.x * OWN, block = cluster_rank();
    bool has = first < 1 << digit.bits;
    unsigned total[OWN] = {}, earlier[OWN] = {}, sum = 0;
    __syncthreads();
    for (int k = 0; k < OWN && has; ++k) {
        unsigned count = 0;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) count += s.places[w][first + k];
        s.counts[first + k] = count;
    }
    cluster_arrive();
    cluster_wait();
#pragma unroll
    for (int other = 0; other < CLUSTER; ++other)
#pragma unroll
        for (int k = 0; k < OWN; ++k) {
            unsigned count = has ? count_in_block(s.counts + first + k, other) : 0;
            total[k] += count, sum += count;
            if (other < block) earlier[k] += count;
        }
    unsigned smaller = sum_before<WARPS>(sum, s.sums);
#pragma unroll
    for (int k = 0; k < OWN; ++k) {
        unsigned next = smaller + earlier[k];
        smaller += total[k];
        for (int w = 0; w < WARPS && has; ++w) {
            unsigned count = s.places[w][first + k];
            s.places[w][first + k] = next;
            next += count;
        }
    }
    __syncthreads();
}

// items, a and b (F, M). What blocks read of each other is behind a barrier of the cluster, and before one: none ends, or counts again, before.
// The features of most rows come first, so that those of few share multiprocessors. Blocks behind the last feature only write zeros.
template <int F, bool IMPROVED, int WIDTH, int CLUSTER, int THREADS>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1024 / THREADS)
    sort(const Index* __restrict__ ids, const Index* __restrict__ offsets, const int* __restrict__ keys,
         const int* __restrict__ positions, Item* a, Item* b, unsigned char* __restrict__ dtables, Index M, Index bytes) {
    constexpr int WARPS = THREADS / 32;
    extern __shared__ uint4 shared[];
    auto& s = *reinterpret_cast<Sorter<WIDTH, THREADS>*>(shared);
    int feature = F - 1 - static_cast<int>(blockIdx.x) / CLUSTER, warp = threadIdx.x / 32;
    for (int i = threadIdx.x; i < ZEROS / 16; i += THREADS) s.zeros[i] = make_uint4(0, 0, 0, 0);
    fence_proxy_async();
    __syncthreads();
    if (feature >= 0) {
        Index begin = offsets[feature], size = offsets[feature + 1] - begin;
        int digits = digits_of<WIDTH>(size), bits = (32 - __clz(static_cast<int>(size)) + digits - 1) / digits;
        int length = (static_cast<int>(M) + CLUSTER * WARPS * 32 - 1) / (CLUSTER * WARPS * 32) * 32;
        int at = (static_cast<int>(cluster_rank()) * WARPS + warp) * length;
        Range range = {at, min(at + length, static_cast<int>(M))};
        unsigned* places = s.places[warp];
        a += feature * M, b += feature * M;
        clear_counts(places, {0, bits});
        hash_items<F, IMPROVED>(ids + feature, begin, size, keys, positions, a, range, {0, bits}, places);
        ask_for_zeros<WARPS>(s.zeros, dtables, bytes);
        for (int n = 0; n < digits; ++n) {
            Digit digit = {n * bits, bits};
            const Item* from = n % 2 ? b : a;
            Item* to = n % 2 ? a : b;
            if (n > 0) {
                clear_counts(places, digit);
                for_items(from, range, [&](Item item, bool has) {
                    if (has) atomicAdd(places + digit.of(item), 1);
                });
            }
            find_places<CLUSTER>(s, digit);
            for_items(from, range, [&](Item item, bool has) {
                int value = digit.of(item);
                unsigned place = take_place(places, value, lanes_with<WIDTH>(value, has));
                if (has) to[place] = item;
            });
            cluster_arrive();
            cluster_wait();
        }
    } else {
        ask_for_zeros<WARPS>(s.zeros, dtables, bytes);
    }
    if (threadIdx.x % 32 == 0) bulk_stores_read();
}
