// Sums of segments: rows of dy whose look-ups have one table row, and stand next to each other in a block's shared memory.
//
// A tile is summed by runs of one length, whoever's rows they are, because few rows have most look-ups. A segment that goes on in other runs
// is completed by the one in which it began, in their order.
#pragma once

#include "_shared/cuda/lookup.cuh"

// W neighbouring elements of a row in the units that move them. Structs of 16-bit elements would move one by one.
template <int BYTES>
struct UnitOf {
    typedef uint4 Unit;
};
template <>
struct UnitOf<8> {
    typedef uint2 Unit;
};
template <>
struct UnitOf<4> {
    typedef unsigned Unit;
};
template <>
struct UnitOf<2> {
    typedef unsigned short Unit;
};
template <typename T, int W>
struct Piece {
    typedef typename UnitOf<W * sizeof(T)>::Unit Unit;
    static constexpr int UNITS = W * sizeof(T) / sizeof(Unit);
    Unit at[UNITS];
};
template <int W, typename T>
__device__ __forceinline__ Piece<T, W> load_piece(const T* from) {
    Piece<T, W> piece;
#pragma unroll
    for (int u = 0; u < piece.UNITS; ++u) piece.at[u] = reinterpret_cast<const typename Piece<T, W>::Unit*>(from)[u];
    return piece;
}
template <typename T, int W>
__device__ __forceinline__ void add_piece(float (&sum)[W], const Piece<T, W>& piece) {
    auto words = reinterpret_cast<const unsigned*>(piece.at);
#pragma unroll
    for (int e = 0; e < W; ++e) {
        if constexpr (sizeof(T) == 4) sum[e] += __uint_as_float(words[e]);
        else if constexpr (W == 1) sum[e] += to_float(T{piece.at[0]});
        else sum[e] += e % 2 ? high_half<T>(words[e / 2]) : low_half<T>(words[e / 2]);
    }
}
template <typename T, int W>
__device__ __forceinline__ void store_piece(T* to, const float (&values)[W]) {
    Piece<T, W> piece;
    auto words = reinterpret_cast<unsigned*>(piece.at);
#pragma unroll
    for (int e = 0; e < W; ++e) {
        if constexpr (sizeof(T) == 4) words[e] = __float_as_uint(values[e]);
        else if constexpr (W == 1) piece.at[0] = from_float<T>(values[e]).bits;
        else if (e % 2 == 0) words[e / 2] = from_float<T>(values[e]).bits | from_float<T>(values[e + 1]).bits << 16;
    }
#pragma unroll
    for (int u = 0; u < piece.UNITS; ++u) store_once(reinterpret_cast<typename Piece<T, W>::Unit*>(to) + u, piece.at[u]);
}

// A tile of CHUNK sorted look-ups, in runs of equal length. LANES threads have a run, and of its rows of dy W elements each, as often as it
// takes. LONG: most segments go on in many runs, so that it pays to add up those of a warp together.
template <int W, int LANES, int THREADS, int CHUNK, bool LONG = false>
struct Tile {
    int rows[CHUNK];
    int look_ups[CHUNK];          // 2 × its number in dy, 1 more if it is the last of its segment
    float carried[W][THREADS];    // of each run: the sum of a segment that began before it
    float passed[LONG ? W : 1][LONG ? THREADS / 32 * LANES : 1];  // of each warp's runs together, if no segment ends in them
    unsigned ends[THREADS / 32];  // of each thread a bit: whether a segment ends in its run
};

// store(row, sum, d) of each segment: elements d … d + W. Of `count` look-ups the first goes on with a segment if `continued`. What the
// tile has of that, and of a segment without a last look-up, are its head and its tail: leave(head, sum, d).
template <int AHEAD, int W, int LANES, int THREADS, int CHUNK, bool LONG, typename T, typename Store, typename Leave>
__device__ __forceinline__ void sum_segments(Tile<W, LANES, THREADS, CHUNK, LONG>& tile, int count, bool continued, const T* dy, int D,
                                             Store store, Leave leave) {
    constexpr int GROUPS = THREADS / LANES, OF_WARP = 32 / LANES, RUN = CHUNK / GROUPS, BATCH = RUN < AHEAD ? RUN : AHEAD;
    int each = min((count + GROUPS - 1) / GROUPS, RUN);  // look-ups of a run; that there are no more than RUN is news to the compiler alone
    int group = threadIdx.x / LANES, lane = threadIdx.x % LANES, first = group * each, last = min(first + each, count) - 1;
    bool begins = first <= last && (first == 0 ? !continued : tile.look_ups[first - 1] & 1);
    bool open = first <= last && !(tile.look_ups[last] & 1);
    for (int d = lane * W; d - lane * W < D; d += LANES * W) {
        float sum[W] = {};
        bool own = begins;  // the segment began in this run
        auto give = [&] {
#pragma unroll
            for (int e = 0; e < W; ++e) tile.carried[e][threadIdx.x] = sum[e];
        };
        auto take = [&](int next) {  // what the runs from `next` on have of the segment; whether it ends
            int until = GROUPS;
            for (int w = next * LANES / 32; w < THREADS / 32 && until == GROUPS; ++w) {
                unsigned ends = tile.ends[w] & (w * 32 < next * LANES ? 0xffffffff << next * LANES % 32 : 0xffffffff);
                if (ends) until = (w * 32 + __ffs(ends) - 1) / LANES;
            }
            if constexpr (LONG) {
                int from = (next + OF_WARP - 1) / OF_WARP, whole = until / OF_WARP;  // warps
                if (from < whole) {
                    for (; next < from * OF_WARP; ++next)
#pragma unroll
                        for (int e = 0; e < W; ++e) sum[e] += tile.carried[e][next * LANES + lane];
                    for (; from < whole; ++from, next += OF_WARP)
#pragma unroll
                        for (int e = 0; e < W; ++e) sum[e] += tile.passed[e][from * LANES + lane];
                }
            }
#pragma unroll 4
            for (int n = next; n < min(until + 1, GROUPS); ++n)
#pragma unroll
                for (int e = 0; e < W; ++e) sum[e] += tile.carried[e][n * LANES + lane];
            return until < GROUPS;
        };
        unsigned ended = 0;
#pragma unroll 1
        for (int k = first; k <= last; k += BATCH) {
            Piece<T, W> piece[BATCH];
            unsigned lasts = 0;  // a bit of each look-up
#pragma unroll
            for (int a = 0; a < BATCH; ++a) {
                piece[a] = {};
                if (k + a > last) continue;
                int look_up = tile.look_ups[k + a];
                lasts |= (look_up & 1) << a;
                if (d < D) piece[a] = load_piece<W>(dy + static_cast<Index>(look_up >> 1) * D + d);
            }
            ended |= lasts;
#pragma unroll
            for (int a = 0; a < BATCH; ++a) {
                add_piece(sum, piece[a]);
                if (!(lasts >> a & 1)) continue;
                if (!own) give();
                else if (d < D) store(tile.rows[k + a], sum, d);
                own = true;
#pragma unroll
                for (int e = 0; e < W; ++e) sum[e] = 0.0f;
            }
        }
        if (!own) give();
        unsigned ends = __ballot_sync(0xffffffff, ended != 0);
        if (threadIdx.x % 32 == 0) tile.ends[threadIdx.x / 32] = ends;
        if (LONG && !ends) {
#pragma unroll
            for (int e = 0; e < W; ++e) {
                float all = lane_sum<OF_WARP, LANES>(sum[e]);
                if (threadIdx.x % 32 < LANES) tile.passed[e][threadIdx.x / 32 * LANES + lane] = all;
            }
        }
        __syncthreads();
        if (own && open) {
            bool closed = take(group + 1);
            if (d < D && closed) store(tile.rows[last], sum, d);
            if (d < D && !closed) leave(false, sum, d);
        }
        if (group == 0 && continued) {
#pragma unroll
            for (int e = 0; e < W; ++e) sum[e] = 0.0f;
            take(0);
            if (d < D) leave(true, sum, d);
        }
        __syncthreads();
    }
}
