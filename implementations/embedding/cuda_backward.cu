// embedding's gradient: each row of dtables is the sum of dy wherever it was looked up, in float32, and in one order in every run
// unless it is ATOMIC.
//
// Three launches. The look-ups of a feature are cut into chunks of CHUNK samples, a block each:
//
//   clear        a mask of each table row says which chunks look it up: no bit so far.
//   sum_chunks   hashes the ids again and sorts the chunk by row, so that equal rows are neighbours, in the order of their samples.
//                Sums those that occur more than once, and sets the row's bit.
//   add_chunks   goes through all table rows, adds up what the chunks of its mask have, in their order, and writes it, or 0. So
//                nothing has to be zeroed or converted beforehand, and no sum depends on who came first.
//
// ATOMIC sum_chunks adds what it has of each row to float32 sums, which `clear` has zeroed, and `narrow` makes 16 bits of them.
//
// Ids are skewed: few rows have most look-ups, which is why a chunk is summed by runs of sorted look-ups, all of one length, whoever's
// they are. Most rows are looked up once or not at all: for those `where` says at once where their gradient is, others search
// the sorted chunks. A place is a look-up's number in dy, or -1 - n of the n-th partial sum; a segment that begins at place i of
// a chunk has at least two look-ups, so that i / 2 is a number of its own.
#include "_shared/cuda/lookup.cuh"

constexpr int NOWHERE = -2147483647 - 1;

// W neighbouring elements of a row, which are loaded at once.
template <typename T, int W>
struct alignas(W * sizeof(T)) Piece {
    T at[W];
};
template <typename T, int W>
__device__ __forceinline__ void store_piece(T* to, const float (&values)[W]) {
    Piece<T, W> piece;
#pragma unroll
    for (int e = 0; e < W; ++e) piece.at[e] = from_float<T>(values[e]);
    *reinterpret_cast<Piece<T, W>*>(to) = piece;
}

// Whether place i of a sorted chunk has the first, or the last, look-up of its row.
template <int LOG, typename Key>
__device__ __forceinline__ bool is_first(const Key* sorted, int i) {
    return i == 0 || sorted[i - 1] >> LOG != sorted[i] >> LOG;
}
template <int LOG, typename Key>
__device__ __forceinline__ bool is_last(const Key* sorted, int i) {
    return i + 1 == 1 << LOG || sorted[i + 1] >> LOG != sorted[i] >> LOG;
}

// The keys in ascending order, by all threads of the block (bitonic sort).
template <int LOG, int THREADS, typename Key>
__device__ __forceinline__ void sort_keys(Key* keys) {
    for (int size = 2; size <= 1 << LOG; size *= 2)
        for (int stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            for (int pair = threadIdx.x; pair < 1 << (LOG - 1); pair += THREADS) {
                int i = 2 * pair - (pair & (stride - 1));
                Key a = keys[i], b = keys[i + stride];
                if ((a > b) == ((i & size) == 0)) keys[i] = b, keys[i + stride] = a;
            }
        }
    __syncthreads();
}

// `count` words.
__global__ void __launch_bounds__(256) clear(unsigned* __restrict__ to, Index count) {
    Index first = blockIdx.x * 256 + threadIdx.x, step = gridDim.x * 256;
    for (Index i = first; i < count / 4; i += step) reinterpret_cast<uint4*>(to)[i] = make_uint4(0, 0, 0, 0);
    for (Index i = count / 4 * 4 + first; i < count; i += step) to[i] = 0;
}

// float32 sums to T, four at a time.
template <typename T>
__global__ void __launch_bounds__(256) narrow(const float* __restrict__ sums, T* __restrict__ to, Index count) {
    Index first = blockIdx.x * 256 + threadIdx.x, step = gridDim.x * 256;
    for (Index i = first; i < count / 4; i += step) {
        auto four = reinterpret_cast<const Piece<float, 4>*>(sums)[i];
        store_piece(to + 4 * i, four.at);
    }
    for (Index i = count / 4 * 4 + first; i < count; i += step) to[i] = from_float<T>(sums[i]);
}

// masks (sum V_f + 1, words); where (sum V_f + 1,); rows and samples (F, chunks, CHUNK): the sorted look-ups, V_f for an id out of
// range, V_f + 1 for none; partials (F * chunks * CHUNK / 2, D). A Key is row << LOG | sample of the chunk. LANES threads have a row
// of dy, W elements each, as often as it takes. ATOMIC: partials are the sums (sum V_f + 1, D) themselves, and of the others there are none.
template <typename Key, typename T, int W, int LANES, int F, bool IMPROVED, bool ATOMIC, int THREADS, int LOG>
__global__ void __launch_bounds__(THREADS)
    sum_chunks(const Index* __restrict__ ids, const Index* __restrict__ offsets, const int* __restrict__ keys,
               const int* __restrict__ positions, const T* __restrict__ dy, unsigned* __restrict__ masks,
               int* __restrict__ where, int* __restrict__ rows, int* __restrict__ samples, float* __restrict__ partials,
               Index M, Index D, Index words) {
    constexpr int CHUNK = 1 << LOG, GROUPS = THREADS / LANES, RUN = CHUNK / GROUPS, AHEAD = RUN < 4 ? RUN : 4;
    static_assert(THREADS <= CHUNK, "every thread has a look-up");
    __shared__ Key sorted[CHUNK];
    __shared__ float carried[W][THREADS];  // of each group: the sum of a segment that began before its run
    __shared__ bool ends[GROUPS];          // and whether that ends in the run
    int feature = blockIdx.x % F, chunk = blockIdx.x / F, chunks = gridDim.x / F;
    Index begin = offsets[feature], size = offsets[feature + 1] - begin, first = static_cast<Index>(chunk) * CHUNK;
    for (int i = threadIdx.x; i < CHUNK; i += THREADS) {
        Index row = size + 1;
        if (first + i < M) {
            Index id = ids[(first + i) * F + feature];
            row = size;
            if (valid(id)) {
                if constexpr (IMPROVED) row = improved_row(id, begin, begin + size, keys, positions) - begin;
                else row = modulus_row(id, begin, begin + size) - begin;
            }
        }
        sorted[i] = static_cast<Key>(row) << LOG | static_cast<Key>(i);
    }
    sort_keys<LOG, THREADS>(sorted);

    Index base = (static_cast<Index>(feature) * chunks + chunk) * CHUNK;
    for (int i = threadIdx.x; i < CHUNK && !ATOMIC; i += THREADS) {
        Index row = sorted[i] >> LOG;
        int sample = static_cast<int>(sorted[i] & (CHUNK - 1));
        rows[base + i] = static_cast<int>(row);
        samples[base + i] = sample;
        if (row < size && is_first<LOG>(sorted, i)) {
            atomicOr(masks + (begin + row) * words + chunk / 32, 1u << chunk % 32);
            // of several chunks any may be the last to write this: then nobody reads it
            where[begin + row] = static_cast<int>(is_last<LOG>(sorted, i) ? (first + sample) * F + feature : -1 - (base + i) / 2);
        }
    }

    int group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    for (int d = lane * W; d - lane * W < D; d += LANES * W) {
        float sum[W] = {};
        int begun = -1;  // where the segment began that is summed, if in this run
        bool open = false;
        auto store = [&] {
            if (d >= D) return;
            if constexpr (ATOMIC) {
                Index row = sorted[begun] >> LOG;
                float* to = partials + (row < size ? begin + row : offsets[F]) * D + d;
#pragma unroll
                for (int e = 0; e < W; ++e) atomicAdd(to + e, sum[e]);
            } else {
                store_piece(partials + (base + begun) / 2 * D + d, sum);
            }
        };
        for (int k = 0; k < RUN; k += AHEAD) {
            Piece<T, W> piece[AHEAD];
            bool adds[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) {
                int i = group * RUN + k + a;
                bool alone = is_first<LOG>(sorted, i) && is_last<LOG>(sorted, i);
                adds[a] = static_cast<Index>(sorted[i] >> LOG) <= size && (ATOMIC || !alone);
                piece[a] = {};
                if (adds[a] && d < D)
                    piece[a] = *reinterpret_cast<const Piece<T, W>*>(
                        dy + ((first + static_cast<int>(sorted[i] & (CHUNK - 1))) * F + feature) * D + d);
            }
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) {
                int i = group * RUN + k + a;
                if (!adds[a]) continue;
                if (is_first<LOG>(sorted, i)) {
                    begun = i;
#pragma unroll
                    for (int e = 0; e < W; ++e) sum[e] = 0.0f;
                }
#pragma unroll
                for (int e = 0; e < W; ++e) sum[e] += to_float(piece[a].at[e]);
                open = !is_last<LOG>(sorted, i);
                if (open) continue;
                if (begun >= 0) {
                    store();
                } else {
#pragma unroll
                    for (int e = 0; e < W; ++e) carried[e][threadIdx.x] = sum[e];
                    if (lane == 0) ends[group] = true;
                }
                begun = -1;
            }
        }
        if (open && begun < 0) {  // all of the run is of one segment
#pragma unroll
            for (int e = 0; e < W; ++e) carried[e][threadIdx.x] = sum[e];
            if (lane == 0) ends[group] = false;
        }
        __syncthreads();
        if (open && begun >= 0) {
            for (int next = group + 1; next < GROUPS; ++next) {
#pragma unroll
                for (int e = 0; e < W; ++e) sum[e] += carried[e][next * LANES + lane];
                if (ends[next]) break;
            }
            store();
        }
        __syncthreads();
    }
}

// What chunks have of table rows: where, and the sum of it.
template <typename T, int W, int LOG>
struct Chunks {
    const int *rows, *samples;
    const T* dy;
    const float* partials;
    int chunks, features, D;

    // The place of a row of a feature in one chunk, or NOWHERE.
    __device__ __forceinline__ int find(int feature, int chunk, int row) const {
        int base = (feature * chunks + chunk) << LOG;
        int i = 0;
#pragma unroll
        for (int step = 1 << (LOG - 1); step > 0; step /= 2)
            if (rows[base + i + step - 1] < row) i += step;
        if (rows[base + i] != row) return NOWHERE;
        bool alone = i + 1 == 1 << LOG || rows[base + i + 1] != row;
        return alone ? ((chunk << LOG) + samples[base + i]) * features + feature : -1 - (base + i) / 2;
    }
    // Adds elements d … d + W of what is at a place.
    __device__ __forceinline__ void add(float (&sum)[W], int place, int d) const {
        if (place >= 0) add(sum, *reinterpret_cast<const Piece<T, W>*>(dy + static_cast<Index>(place) * D + d));
        else add(sum, *reinterpret_cast<const Piece<float, W>*>(partials + (-1LL - place) * D + d));
    }
    template <typename E>
    static __device__ __forceinline__ void add(float (&sum)[W], const Piece<E, W>& piece) {
#pragma unroll
        for (int e = 0; e < W; ++e) sum[e] += to_float(piece.at[e]);
    }
};

// The row of ids out of range, which every feature may have: by a block of its own, in the order of features and chunks.
template <int THREADS, typename T, int W, int LOG>
__device__ __forceinline__ void add_invalid(const Chunks<T, W, LOG>& chunks, const Index* offsets, T* to) {
    __shared__ int found[THREADS];
    int thread = threadIdx.x, lists = chunks.features * chunks.chunks;
    for (int d = thread * W; d - thread * W < chunks.D; d += THREADS * W) {
        float sum[W] = {};
        for (int n = 0; n < lists; n += THREADS) {
            int own = n + thread, feature = own / chunks.chunks;
            __syncthreads();
            found[thread] = NOWHERE;
            if (own < lists)
                found[thread] = chunks.find(feature, own % chunks.chunks, static_cast<int>(offsets[feature + 1] - offsets[feature]));
            if (!__syncthreads_or(found[thread] != NOWHERE)) continue;  // as good as always
            for (int i = 0; i < THREADS; ++i)
                if (d < chunks.D && found[i] != NOWHERE) chunks.add(sum, found[i], d);
        }
        if (d < chunks.D) store_piece(to + d, sum);
    }
}

// Elements d … d + W of one table row, by LANES lanes of a warp, `together`: `bits` are the first word of its mask, `only` is `where`
// if they are not 0.
template <int LANES, typename T, int W, int LOG>
__device__ __forceinline__ void add_row(const Chunks<T, W, LOG>& of, const unsigned* masks, const int* where, const Index* offsets,
                                        Index row, int words, unsigned bits, int only, unsigned together, T* to, int d) {
    int feature = of.features - 1, count = __popc(bits);
    for (int w = 1; w < words; ++w) {
        unsigned more = masks[row * words + w];
        if (more && count == 0) only = where[row];
        count += __popc(more);
    }
    float sum[W] = {};
    if (count == 1 && d < of.D) of.add(sum, only, d);
    if (count > 1) {
        while (offsets[feature] > row) --feature;
        int local = static_cast<int>(row - offsets[feature]);
        for (int w = 0; w < words; ++w) {
            unsigned left = w == 0 ? bits : masks[row * words + w];
            while (left) {  // each lane searches one chunk
                unsigned own = left;
                for (int s = 0; s < static_cast<int>(threadIdx.x % LANES); ++s) own &= own - 1;
                int found = own ? of.find(feature, w * 32 + __ffs(own) - 1, local) : NOWHERE;
                for (int s = 0; s < LANES && left; ++s, left &= left - 1) {
                    int next = __shfl_sync(together, found, s, LANES);
                    if (d < of.D) of.add(sum, next, d);
                }
            }
        }
    }
    if (d < of.D) store_piece(to + d, sum);
}

// LANES threads have a row, or a slice of it, and four of them at once; the last block has the row of ids out of range.
template <typename T, int W, int LANES, int F, int THREADS, int LOG>
__global__ void __launch_bounds__(THREADS, 5)
    add_chunks(const unsigned* __restrict__ masks, const int* __restrict__ where, const int* __restrict__ rows,
               const int* __restrict__ samples, const T* __restrict__ dy, const float* __restrict__ partials,
               const Index* __restrict__ offsets, T* __restrict__ dtables, Index chunks, Index D, Index words) {
    constexpr int GROUPS = THREADS / LANES, ROWS = 4;
    Chunks<T, W, LOG> of{rows, samples, dy, partials, static_cast<int>(chunks), F, static_cast<int>(D)};
    Index total = offsets[F];
    if (blockIdx.x == gridDim.x - 1) return add_invalid<THREADS>(of, offsets, dtables + total * D);
    unsigned together = LANES == 32 ? 0xffffffffu : ((1u << LANES % 32) - 1) << threadIdx.x % 32 / LANES * LANES;
    int slices = (of.D + LANES * W - 1) / (LANES * W), block = blockIdx.x / slices;
    int d = static_cast<int>(blockIdx.x % slices * LANES + threadIdx.x % LANES) * W;
    Index step = (gridDim.x - 1LL) / slices * GROUPS * ROWS;
    for (Index row0 = static_cast<Index>(block) * GROUPS * ROWS + threadIdx.x / LANES; row0 < total; row0 += step) {
        unsigned mask[ROWS];
        int place[ROWS];
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            Index row = row0 + k * GROUPS;
            mask[k] = row < total ? masks[row * words] : 0;
        }
#pragma unroll
        for (int k = 0; k < ROWS; ++k) place[k] = mask[k] ? where[row0 + k * GROUPS] : NOWHERE;
#pragma unroll 1
        for (int k = 0; k < ROWS; ++k) {
            Index row = row0 + k * GROUPS;
            if (row >= total) break;
            add_row<LANES>(of, masks, where, offsets, row, static_cast<int>(words), mask[0], place[0], together,
                           dtables + row * D, d);
#pragma unroll
            for (int next = 1; next < ROWS; ++next) mask[next - 1] = mask[next], place[next - 1] = place[next];
        }
    }
}
