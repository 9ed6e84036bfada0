// embedding's gradient: each row of dtables is the sum of dy wherever it was looked up, in float32, and in one order in every run
// unless it is atomic.
//
// deterministic sorts the look-ups of each feature by table row, stably, and then reads dy once, in that order:
//
//   sort     does it in one launch with a cluster of blocks a feature (_cluster_sort.cuh). Elsewhere it is these two:
//   count    hashes the ids to items, row << 32 | sample, and counts the lowest digit of the rows.
//   place    moves items to their places by one digit, the lowest first (radix sort). A feature of few rows needs fewer digits.
//   sum      adds up the segments (equal rows) of a tile of the sorted items and writes their rows.
//   finish   adds up segments of several tiles, and the row of ids out of range.
//
// A few samples are sorted and summed by the blocks that have their rows, in one launch: own_rows (_own_rows.cuh).
//
// Most rows are never looked up: zeros are written to all of dtables during the sort, by the copy engine in sort, and in count and place by
// blocks of their own, while the others wait for memory.
//
// atomic sorts a tile of samples within a block and adds the sums of its segments to float32 sums, which `clear` has zeroed; `narrow`
// makes 16 bits of them.
//
// Ids are skewed: few rows have most look-ups. So a tile is summed by runs of one length, whoever's rows they are (_segments.cuh).
#include "_items.cuh"
#include "_own_rows.cuh"
#include "_segments.cuh"
#if __CUDA_ARCH__ >= 900
#include "_cluster_sort.cuh"
#endif

constexpr int SORTERS = 256;  // threads of a block of count and place
constexpr int REQUESTS = 4;   // that each makes before it uses the first

template <int WIDTH>
__device__ __forceinline__ int digit_of(Item item, int pass) {
    return row_of(item) >> pass * WIDTH & ((1 << WIDTH) - 1);
}

// Zeros to one of `shares` parts of `count` 16-bit words, by the blocks from number `begin` on.
__device__ __forceinline__ void clear_share(unsigned short* to, Index count, Index share, Index shares, int begin) {
    Index vectors = count / 8, end = vectors * (share + 1) / shares, step = static_cast<Index>(gridDim.x - begin) * blockDim.x;
    Index first = static_cast<Index>(blockIdx.x - begin) * blockDim.x + threadIdx.x;
    for (Index i = vectors * share / shares + first; i < end; i += step) reinterpret_cast<uint4*>(to)[i] = make_uint4(0, 0, 0, 0);
    if (share == 0 && first < count % 8) to[vectors * 8 + first] = 0;
}

// ---- sorting ----------------------------------------------------------------------------------------------------------

// A block has PART samples of a feature; those behind clear. items (F, M); counts (passes, F, parts, BINS), those of later
// digits 0 so far.
template <int F, bool IMPROVED, int WIDTH, int PART>
__global__ void __launch_bounds__(SORTERS)
    count(const Index* __restrict__ ids, const Index* __restrict__ offsets, const int* __restrict__ keys,
          const int* __restrict__ positions, Item* __restrict__ items, unsigned* __restrict__ counts,
          unsigned short* __restrict__ dtables, Index M, Index passes, Index words) {
    constexpr int BINS = 1 << WIDTH;
    __shared__ unsigned bins[BINS];
    int feature = blockIdx.x % F, part = blockIdx.x / F, parts = static_cast<int>((M + PART - 1) / PART);
    if (part >= parts) return clear_share(dtables, words, 0, passes + 1, F * parts);
    Index begin = offsets[feature], size = offsets[feature + 1] - begin, first = static_cast<Index>(part) * PART;
    for (int i = threadIdx.x; i < BINS; i += SORTERS) bins[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < PART && first + i < M; i += SORTERS * REQUESTS) {
        Index id[REQUESTS];
#pragma unroll
        for (int k = 0; k < REQUESTS; ++k) {
            Index sample = first + i + k * SORTERS;
            if (sample < M) id[k] = ids[sample * F + feature];
        }
#pragma unroll
        for (int k = 0; k < REQUESTS; ++k) {
            Index sample = first + i + k * SORTERS;
            if (sample >= M) break;
            Item item = hash<IMPROVED>(id[k], begin, size, keys, positions) << 32 | sample;
            items[feature * M + sample] = item;
            atomicAdd(bins + digit_of<WIDTH>(item, 0), 1);
        }
    }
    __syncthreads();
    for (int pass = 0; pass < passes; ++pass)
        for (int i = threadIdx.x; i < BINS; i += SORTERS)
            counts[((pass * F + feature) * parts + part) * BINS + i] = pass == 0 ? bins[i] : 0;
}

// One digit: the items of `from` to their places in `to`. Counts the next digit there.
template <int F, int WIDTH, int PART>
__global__ void __launch_bounds__(SORTERS)
    place(const Item* __restrict__ from, Item* __restrict__ to, unsigned* __restrict__ counts, const Index* __restrict__ offsets,
          unsigned short* __restrict__ dtables, Index M, Index pass, Index passes, Index words) {
    constexpr int BINS = 1 << WIDTH, WARPS = SORTERS / 32, RANGE = PART / WARPS, OWN = BINS / SORTERS;
    __shared__ unsigned places[WARPS][BINS];  // how many of a digit a warp has, then where its next one goes
    __shared__ unsigned totals[WARPS];
    int feature = blockIdx.x % F, part = blockIdx.x / F, parts = static_cast<int>((M + PART - 1) / PART);
    if (part >= parts) return clear_share(dtables, words, pass + 1, passes + 1, F * parts);
    int digits = static_cast<int>(offsets[feature + 1] - offsets[feature]) >> pass * WIDTH;  // of the largest row, from this one on
    if (pass > 0 && digits == 0) return;
    from += feature * M, to += feature * M;
    counts += (pass * F + feature) * parts * BINS;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, begin = part * PART + warp * RANGE;
    int end = static_cast<int>(min(M, static_cast<Index>(begin) + RANGE));
    for (int i = threadIdx.x; i < WARPS * BINS; i += SORTERS) places[0][i] = 0;
    __syncthreads();
#pragma unroll 8
    for (int i = begin + lane; i < end; i += 32) atomicAdd(&places[warp][digit_of<WIDTH>(from[i], pass)], 1);

    // a thread has OWN neighbouring digits: all items of smaller ones are before them, and of the same those of earlier parts and warps
    unsigned total[OWN] = {}, earlier[OWN] = {}, sum = 0;
#pragma unroll 8
    for (int p = 0; p < parts; ++p)
#pragma unroll
        for (int k = 0; k < OWN; ++k) {
            unsigned n = counts[p * BINS + threadIdx.x * OWN + k];
            total[k] += n;
            if (p < part) earlier[k] += n;
        }
#pragma unroll
    for (int k = 0; k < OWN; ++k) sum += total[k];
    unsigned smaller = sum_before<WARPS>(sum, totals);
#pragma unroll
    for (int k = 0; k < OWN; ++k) {
        unsigned next = smaller + earlier[k];
        smaller += total[k];
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
            unsigned n = places[w][threadIdx.x * OWN + k];
            places[w][threadIdx.x * OWN + k] = next;
            next += n;
        }
    }
    __syncthreads();

    bool counting = digits >> WIDTH != 0;
    for (int first = begin + lane; first - lane < end; first += 32 * REQUESTS) {
        Item item[REQUESTS];
#pragma unroll
        for (int r = 0; r < REQUESTS; ++r) item[r] = first + 32 * r < end ? from[first + 32 * r] : 0;
#pragma unroll
        for (int r = 0; r < REQUESTS; ++r) {
            bool has = first + 32 * r < end;
            int digit = digit_of<WIDTH>(item[r], pass);
            unsigned at = take_place(places[warp], digit, lanes_with<WIDTH>(digit, has));
            if (has) to[at] = item[r];
            if (has && counting) atomicAdd(counts + (F * parts + at / PART) * BINS + digit_of<WIDTH>(item[r], pass + 1), 1);
        }
    }
}

// The launch before has ended. This one was made ready before, but none of its blocks began: nothing says launch_dependents, because
// blocks that wait would hold registers and shared memory of those that work.
__device__ __forceinline__ void wait_for_end_of_previous_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- sums -------------------------------------------------------------------------------------------------------------

// heads and tails (F, tiles, D). Segments of ids out of range have no last look-up.
template <typename T, int W, int LANES, int F, int WIDTH, int THREADS, int CHUNK, int AHEAD>
__global__ void __launch_bounds__(THREADS, (AHEAD > 4 ? 768 : 1024) / THREADS)
    sum(const Item* __restrict__ a, const Item* __restrict__ b, const Index* __restrict__ offsets, const T* __restrict__ dy,
        float* __restrict__ heads, float* __restrict__ tails, T* __restrict__ dtables, Index M, Index D) {
    wait_for_end_of_previous_launch();
    __shared__ Tile<W, LANES, THREADS, CHUNK> tile;
    int feature = blockIdx.x % F, number = blockIdx.x / F, tiles = gridDim.x / F;
    Index begin = offsets[feature], first = static_cast<Index>(number) * CHUNK;
    int size = static_cast<int>(offsets[feature + 1] - begin), count = static_cast<int>(min(M - first, static_cast<Index>(CHUNK)));
    const Item* items = sorted_items<WIDTH>(a, b, size, feature * M) + first;
    Index part = static_cast<Index>(feature) * tiles + number;
    dtables += begin * D, heads += part * D, tails += part * D;
    for (int i = threadIdx.x; i < count; i += THREADS) {
        Item item = items[i];
        int row = tile.rows[i] = row_of(item), next = first + i + 1 < M ? row_of(items[i + 1]) : size;
        tile.look_ups[i] = (static_cast<int>(item) * F + feature) * 2 + (row != next && row < size);
    }
    bool continued = number > 0 && row_of(items[-1]) == row_of(items[0]);
    int width = static_cast<int>(D);
    __syncthreads();
    sum_segments<AHEAD>(
        tile, count, continued, dy, width,
        [&](int row, const float (&sum)[W], int d) { store_piece(dtables + static_cast<Index>(row) * width + d, sum); },
        [&](bool head, const float (&sum)[W], int d) { store_piece((head ? heads : tails) + d, sum); });
}

// How many tiles after `tile` go on with its last row, by all threads of the block.
template <int CHUNK, int THREADS>
__device__ __forceinline__ int following(const Item* items, int tile, int tiles, int row) {
    int found = 0;
#pragma unroll 1
    for (int n = tile + 1; n < tiles; n += THREADS) {
        const Item* first = items + static_cast<Index>(min(n + static_cast<int>(threadIdx.x), tiles - 1)) * CHUNK;
        int here = row_of(first[0]), before = row_of(first[-1]);  // both on their way at once
        found += __syncthreads_count(n + threadIdx.x < tiles && here == row && before == row);
    }
    return found;
}

// A block has the segment that begins in a tile and ends in another, if there is one; the last block has the row of ids out of range.
template <typename T, int W, int LANES, int F, int WIDTH, int THREADS, int CHUNK>
__global__ void __launch_bounds__(THREADS, 1)
    finish(const Item* __restrict__ a, const Item* __restrict__ b, const Index* __restrict__ offsets, const float* __restrict__ heads,
           const float* __restrict__ tails, T* __restrict__ dtables, Index M, Index D) {
    wait_for_end_of_previous_launch();
    constexpr int GROUPS = THREADS / LANES;
    __shared__ float parts[W][THREADS];
    __shared__ bool ends_out_of_range[F];  // whether a feature has such ids; all features' loads are on their way at once
    bool invalid = blockIdx.x == gridDim.x - 1;
    int group = threadIdx.x / LANES, lane = threadIdx.x % LANES, tiles = (gridDim.x - 1) / F, own = blockIdx.x / F;
    int feature = invalid ? 0 : blockIdx.x % F, features = invalid ? F : feature + 1;
    Index to = offsets[F], end = static_cast<Index>(own + 1) * CHUNK;
    if (!invalid) {
        int size = static_cast<int>(offsets[feature + 1] - offsets[feature]);
        const Item* items = sorted_items<WIDTH>(a, b, size, feature * M);
        if (end >= M) return;
        int row = row_of(items[end]), last = row_of(items[end - 1]), before = own > 0 ? row_of(items[end - CHUNK - 1]) : -1;
        if (row == size || last != row || before == row) return;
        to = offsets[feature] + row;
    } else {
        for (int f = threadIdx.x; f < F; f += THREADS) {
            int size = static_cast<int>(offsets[f + 1] - offsets[f]);
            ends_out_of_range[f] = row_of(sorted_items<WIDTH>(a, b, size, f * M)[M - 1]) == size;
        }
        __syncthreads();
    }
    for (int d = lane * W; d - lane * W < D; d += LANES * W) {
        float sum[W] = {};
        for (int f = feature; f < features; ++f) {
            int size = static_cast<int>(offsets[f + 1] - offsets[f]);
            if (invalid && !ends_out_of_range[f]) continue;
            const Item* items = sorted_items<WIDTH>(a, b, size, f * M);
            int row = invalid ? size : static_cast<int>(to - offsets[f]);
            int count = following<CHUNK, THREADS>(items, invalid ? 0 : own, tiles, row);
            Index tile = static_cast<Index>(f) * tiles + (invalid ? tiles - 1 - count : own);
            float part[W] = {};
#pragma unroll 4
            for (int n = 1 + group; n <= count && d < D; n += GROUPS) add_piece(part, load_piece<W>(heads + (tile + n) * D + d));
            __syncthreads();
#pragma unroll
            for (int e = 0; e < W; ++e) parts[e][threadIdx.x] = part[e];
            __syncthreads();
            if (group > 0 || d >= D) continue;
            add_piece(sum, load_piece<W>(tails + tile * D + d));
            for (int g = 0; g < min(GROUPS, count); ++g)
#pragma unroll
                for (int e = 0; e < W; ++e) sum[e] += parts[e][g * LANES + lane];
        }
        if (group == 0 && d < D) store_piece(dtables + to * D + d, sum);
    }
}

// ---- atomic -----------------------------------------------------------------------------------------------------------

// `count` 16-bit words.
__global__ void __launch_bounds__(256) clear(unsigned short* __restrict__ to, Index count) { clear_share(to, count, 0, 1, 0); }

// float32 sums to T, four at a time.
template <typename T>
__global__ void __launch_bounds__(256) narrow(const float* __restrict__ sums, T* __restrict__ to, Index count) {
    Index first = blockIdx.x * 256 + threadIdx.x, step = gridDim.x * 256;
    for (Index i = first; i < count / 4; i += step) {
        float four[4] = {};
        add_piece(four, load_piece<4>(sums + 4 * i));
        store_piece(to + 4 * i, four);
    }
    for (Index i = count / 4 * 4 + first; i < count; i += step) to[i] = from_float<T>(sums[i]);
}

// Four sums at a time from compute capability 9.0 on: the L2 cache works by sectors, and a warp's single ones touch all of its rows.
template <int W>
__device__ __forceinline__ void add_atomically(float* to, const float (&sum)[W]) {
#if __CUDA_ARCH__ >= 900
    if constexpr (W % 4 == 0) {
#pragma unroll
        for (int e = 0; e < W; e += 4)
            asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + e), "f"(sum[e]), "f"(sum[e + 1]), "f"(sum[e + 2]),
                         "f"(sum[e + 3])
                         : "memory");
        return;
    }
#endif
#pragma unroll
    for (int e = 0; e < W; ++e) atomicAdd(to + e, sum[e]);
}

// sums (sum V_f + 1, D). A Key is row << LOG | sample of the tile, its row V_f + 1 where there is no sample.
template <typename Key, typename T, int W, int LANES, int F, bool IMPROVED, int THREADS, int LOG, int AHEAD>
__global__ void __launch_bounds__(THREADS)
    sum_atomically(const Index* __restrict__ ids, const Index* __restrict__ offsets, const int* __restrict__ keys,
                   const int* __restrict__ positions, const T* __restrict__ dy, float* __restrict__ sums, Index M, Index D) {
    constexpr int CHUNK = 1 << LOG;
    __shared__ Key sorted[CHUNK];
    __shared__ Tile<W, LANES, THREADS, CHUNK> tile;
    int feature = blockIdx.x % F;
    Index begin = offsets[feature], size = offsets[feature + 1] - begin, first = static_cast<Index>(blockIdx.x / F) * CHUNK;
    int count = static_cast<int>(min(M - first, static_cast<Index>(CHUNK)));
    for (int i = threadIdx.x; i < CHUNK; i += THREADS) {
        Index row = i < count ? hash<IMPROVED>(ids[(first + i) * F + feature], begin, size, keys, positions) : size + 1;
        sorted[i] = static_cast<Key>(row) << LOG | static_cast<Key>(i);
    }
    sort_keys<THREADS>(sorted, CHUNK);
    for (int i = threadIdx.x; i < count; i += THREADS) {
        bool last = i + 1 == CHUNK || sorted[i + 1] >> LOG != sorted[i] >> LOG;
        int sample = static_cast<int>(first) + static_cast<int>(sorted[i] & (CHUNK - 1));
        tile.rows[i] = static_cast<int>(sorted[i] >> LOG);
        tile.look_ups[i] = (sample * F + feature) * 2 + last;
    }
    __syncthreads();
    sum_segments<AHEAD>(
        tile, count, false, dy, static_cast<int>(D),
        [&](int row, const float (&sum)[W], int d) { add_atomically(sums + (row < size ? begin + row : offsets[F]) * D + d, sum); },
        [](bool, const float (&)[W], int) {});
}
