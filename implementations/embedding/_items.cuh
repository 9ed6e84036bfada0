// Look-ups on their way to be sorted by table row: what both sorts of the gradient share (cuda_backward.cu).
#pragma once

#include "_shared/cuda/lookup.cuh"

typedef unsigned long long Item;  // row << 32 | sample

__device__ __forceinline__ int row_of(Item item) { return static_cast<int>(item >> 32); }

// The row of an id in the table of its feature, V_f if it is out of range.
template <bool IMPROVED>
__device__ __forceinline__ Index hash(Index id, Index begin, Index size, const int* keys, const int* positions) {
    if (!valid(id)) return size;
    if constexpr (IMPROVED) return improved_row(id, begin, begin + size, keys, positions) - begin;
    else return modulus_row(id, begin, begin + size) - begin;
}

// How many digits of at most WIDTH bits the rows 0 … size have.
template <int WIDTH>
__device__ __forceinline__ int digits_of(int size) {
    int digits = 1;
    while (digits * WIDTH < 31 && size >> digits * WIDTH) ++digits;
    return digits;
}

// Of a feature's two buffers the one that the last digit is sorted to: odd passes write `b`, even ones `a`.
template <int WIDTH>
__device__ __forceinline__ const Item* sorted_items(const Item* a, const Item* b, int size, Index begin) {
    return (digits_of<WIDTH>(size) % 2 ? b : a) + begin;
}

// The sum of what the threads before this one have, by all threads of a block. `sums` has a word of shared memory for each warp.
template <int WARPS>
__device__ __forceinline__ unsigned sum_before(unsigned own, unsigned* sums) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    unsigned scanned = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        unsigned other = __shfl_up_sync(0xffffffff, scanned, step);
        if (lane >= step) scanned += other;
    }
    if (lane == 31) sums[warp] = scanned;
    __syncthreads();
    unsigned before = scanned - own;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) before += w < warp ? sums[w] : 0;
    return before;
}

// The lanes of the warp that have the same digit, of those that have one. The mask of a bit is arithmetic: the compiler has few predicates.
template <int WIDTH>
__device__ __forceinline__ unsigned lanes_with(int digit, bool has) {
    unsigned equal = __ballot_sync(0xffffffff, has);
#pragma unroll
    for (int b = 0; b < WIDTH; ++b) {
        int mask = digit << (31 - b) >> 31;  // all bits are bit b
        equal &= ~(__ballot_sync(0xffffffff, mask != 0) ^ mask);
    }
    return equal;
}

// Where this lane's item of a digit goes. `places` has the place of the warp's next item of each digit, and moves on.
__device__ __forceinline__ unsigned take_place(unsigned* places, int digit, unsigned equal) {
    int lane = threadIdx.x % 32, rank = __popc(equal & ((1u << lane) - 1));
    unsigned next = places[digit];
    __syncwarp();
    if ((equal >> lane & 1) && rank == 0) places[digit] = next + __popc(equal);
    __syncwarp();
    return next + rank;
}

// What the last steps of a bitonic sort by parts of PART keys make of a lane's key: those within PART of each other, up to 32.
template <int PART, typename Key>
__device__ __forceinline__ void sort_in_warp(Key& own, bool ascending) {
#pragma unroll
    for (int stride = PART / 2; stride > 0; stride /= 2) {
        Key other = __shfl_xor_sync(0xffffffff, own, stride);
        if ((other < own) == (((threadIdx.x & stride) == 0) == ascending)) own = other;
    }
}

// `count` keys, a power of two from 32 on, in ascending order, by all threads of the block (bitonic sort).
template <int THREADS, typename Key>
__device__ __forceinline__ void sort_keys(Key* keys, int count) {
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += THREADS) {
        Key own = keys[i];
        sort_in_warp<2>(own, (i & 2) == 0), sort_in_warp<4>(own, (i & 4) == 0), sort_in_warp<8>(own, (i & 8) == 0);
        sort_in_warp<16>(own, (i & 16) == 0), sort_in_warp<32>(own, (i & 32) == 0);
        keys[i] = own;
    }
    for (int size = 64; size <= count; size *= 2) {
        for (int stride = size / 2; stride >= 32; stride /= 2) {
            __syncthreads();
            for (int pair = threadIdx.x; pair < count / 2; pair += THREADS) {
                int i = 2 * pair - (pair & (stride - 1));
                Key a = keys[i], b = keys[i + stride];
                if ((a > b) == ((i & size) == 0)) keys[i] = b, keys[i + stride] = a;
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += THREADS) sort_in_warp<32>(keys[i], (i & size) == 0);
    }
    __syncthreads();
}
