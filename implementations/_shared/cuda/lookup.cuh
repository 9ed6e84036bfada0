// Table rows chosen by hashed ids, each variant one launch. Elements are never looked at, so a row is read in
// the widest units that divide it: UNITS of type Unit (16 bytes, or 8, 4, 2 where rows have no such multiple).
//
//   modulus, improved   a block has LOOKUPS look-ups side by side in y, of any features. First a thread finds the table row
//                       of one look-up, then all copy: neighbouring threads write neighbouring vectors of one piece of memory.
//   naive               a block has SAMPLES samples of one feature. Its threads share the feature's list; each compares its
//                       values with all the samples' ids, so that the list passes once for all of them.
//
// An id outside of 0 … 2^32 - 1 gets row offsets[F], which is NaN: no check, no index past a table.
#pragma once

#include "_shared/cuda/device.cuh"

typedef long long Index;

// A unit that nobody here reads again: it should displace no table row in L2.
__device__ __forceinline__ void store_once(uint4* to, uint4 v) { __stcs(to, v); }
__device__ __forceinline__ void store_once(uint2* to, uint2 v) { __stcs(to, v); }
__device__ __forceinline__ void store_once(unsigned* to, unsigned v) { __stcs(to, v); }
__device__ __forceinline__ void store_once(unsigned short* to, unsigned short v) { __stcs(to, v); }

__device__ __forceinline__ bool valid(Index id) { return (id >> 32) == 0; }

// ---- hashings: the table row of one id of the feature whose rows are begin … end - 1 -------------------------------

// (id + 1) mod V_f: a 32-bit division, with 1 added behind it.
__device__ __forceinline__ Index modulus_row(Index id, Index begin, Index end) {
    unsigned size = static_cast<unsigned>(end - begin), position = static_cast<unsigned>(id) % size + 1;
    return begin + (position == size ? 0 : position);
}

// The first of the feature's sorted values that is not below the id. keys are values - 2^31; the last of a feature is none.
__device__ __forceinline__ Index improved_row(Index id, Index begin, Index end, const int* __restrict__ keys,
                                              const int* __restrict__ positions) {
    int key = static_cast<int>(id - 2147483648LL), known = static_cast<int>(end - begin - 1), low = 0, left = known;
    keys += begin;
    while (left > 0) {
        int half = left / 2;
        bool below = keys[low + half] < key;
        low = below ? low + half + 1 : low;
        left = below ? left - half - 1 : half;
    }
    return begin + (low < known && keys[low] == key ? positions[begin + low] : known);
}

// ---- kernels --------------------------------------------------------------------------------------------------------

// Copies the rows of `count` look-ups; `place(i)` says where the i-th stands in y.
template <typename Unit, int UNITS, int THREADS, int LOOKUPS, typename Place>
__device__ __forceinline__ void copy_rows(const Unit* __restrict__ tables, const Index* rows, Unit* __restrict__ y,
                                          int count, Place place) {
    constexpr int TOTAL = LOOKUPS * UNITS, AHEAD = 4;  // units that a thread requests before it stores the first
    for (int first = threadIdx.x; first < TOTAL; first += AHEAD * THREADS) {
        Unit unit[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
            int n = first + k * THREADS, i = n / UNITS;
            if (i < count) unit[k] = tables[rows[i] * UNITS + n % UNITS];
        }
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
            int n = first + k * THREADS, i = n / UNITS;
            if (i < count) store_once(y + place(i) * UNITS + n % UNITS, unit[k]);
        }
    }
}

// The vector of the output whose first unit is the n-th of the rows side by side. It is one row's or two neighbours', but of short rows
// any number's.
template <typename Unit, int UNITS, int LOOKUPS>
__device__ __forceinline__ Vector<Unit> packed(const Unit* __restrict__ tables, const Index* rows, int n) {
    constexpr int SIZE = Vector<Unit>::SIZE;
    Vector<Unit> made;
    if constexpr (UNITS >= SIZE) {
        int i = n / UNITS, column = n % UNITS;
        const Unit* own = tables + rows[i] * UNITS + column;
        const Unit* next = tables + rows[min(i + 1, LOOKUPS - 1)] * UNITS + column - UNITS;
#pragma unroll
        for (int u = 0; u < SIZE; ++u) made.at[u] = (column + u < UNITS ? own : next)[u];
    } else {
#pragma unroll
        for (int u = 0; u < SIZE; ++u) made.at[u] = tables[rows[(n + u) / UNITS] * UNITS + (n + u) % UNITS];
    }
    return made;
}

// Copies the rows of `count` look-ups side by side to y, where LOOKUPS begin at a multiple of 16 bytes. A row may begin anywhere, but
// all vectors of y are whole, so that a thread requests the units of several before it stores the first. All LOOKUPS rows exist.
template <typename Unit, int UNITS, int THREADS, int LOOKUPS>
__device__ __forceinline__ void copy_packed(const Unit* __restrict__ tables, const Index* rows, Unit* __restrict__ y, int count) {
    constexpr int SIZE = Vector<Unit>::SIZE, AHEAD = SIZE == 8 ? 2 : 4;
    static_assert(LOOKUPS % SIZE == 0, "y's part begins with a whole vector");
    int units = count * UNITS;
    for (int first = threadIdx.x * SIZE; first < units; first += AHEAD * THREADS * SIZE) {
        Vector<Unit> vector[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
            int n = first + k * THREADS * SIZE;
            if (n < units) vector[k] = packed<Unit, UNITS, LOOKUPS>(tables, rows, n);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
            int n = first + k * THREADS * SIZE;
            if (n + SIZE <= units) store_once(reinterpret_cast<uint4*>(y + n), reinterpret_cast<const uint4&>(vector[k]));
            else
#pragma unroll
                for (int u = 0; u < SIZE; ++u)
                    if (n + u < units) store_once(y + n + u, vector[k].at[u]);
        }
    }
}

// y (total, UNITS), total = M F. keys and positions are for IMPROVED alone.
template <typename Unit, int UNITS, int F, bool IMPROVED, int THREADS, int LOOKUPS>
__global__ void __launch_bounds__(THREADS)
    embed(const Index* __restrict__ ids, const Unit* __restrict__ tables, const Index* __restrict__ offsets,
          const int* __restrict__ keys, const int* __restrict__ positions, Unit* __restrict__ y, Index total) {
    wait_for_previous_launch();
    __shared__ Index rows[LOOKUPS];
    Index first = static_cast<Index>(blockIdx.x) * LOOKUPS;
    int count = static_cast<int>(min(total - first, static_cast<Index>(LOOKUPS)));
    for (int i = threadIdx.x; i < LOOKUPS; i += THREADS) {
        Index at = first + min(i, count - 1), id = ids[at], row = offsets[F];
        int feature = static_cast<int>(at % F);
        Index begin = offsets[feature], end = offsets[feature + 1];
        if (valid(id)) {
            if constexpr (IMPROVED) row = improved_row(id, begin, end, keys, positions);
            else row = modulus_row(id, begin, end);
        }
        rows[i] = row;
    }
    __syncthreads();
    copy_packed<Unit, UNITS, THREADS, LOOKUPS>(tables, rows, y + first * UNITS, count);
}

// known (sum V_f,): the last entry of each feature stands for unknown ids and is not compared. Features are neighbours in
// the grid, so that long and short lists run beside one another.
template <typename Unit, int UNITS, int F, int THREADS, int SAMPLES>
__global__ void __launch_bounds__(THREADS)
    naive(const Index* __restrict__ ids, const Unit* __restrict__ tables, const Index* __restrict__ offsets,
          const Index* __restrict__ known, Unit* __restrict__ y, Index M) {
    wait_for_previous_launch();
    __shared__ int least[SAMPLES];
    __shared__ Index rows[SAMPLES];
    int feature = blockIdx.x % F;
    Index first = static_cast<Index>(blockIdx.x / F) * SAMPLES;
    int count = static_cast<int>(min(M - first, static_cast<Index>(SAMPLES)));
    Index begin = offsets[feature];
    int last = static_cast<int>(offsets[feature + 1] - begin - 1);

    Index id[SAMPLES];
    int mine[SAMPLES];
#pragma unroll
    for (int s = 0; s < SAMPLES; ++s) {
        id[s] = ids[(first + min(s, count - 1)) * F + feature];
        mine[s] = last;
    }
    if (threadIdx.x < SAMPLES) least[threadIdx.x] = last;
    __syncthreads();
#pragma unroll 4
    for (int p = threadIdx.x; p < last; p += THREADS) {
        Index value = known[begin + p];
#pragma unroll
        for (int s = 0; s < SAMPLES; ++s)
            if (value == id[s]) mine[s] = min(mine[s], p);
    }
#pragma unroll
    for (int s = 0; s < SAMPLES; ++s)
        if (mine[s] < last) atomicMin(&least[s], mine[s]);
    __syncthreads();
    if (threadIdx.x < count) {
        Index own = ids[(first + threadIdx.x) * F + feature];
        rows[threadIdx.x] = valid(own) ? begin + least[threadIdx.x] : offsets[F];
    }
    __syncthreads();
    copy_rows<Unit, UNITS, THREADS, SAMPLES>(tables, rows, y, count,
                                             [&](int s) { return (first + s) * F + feature; });
}
