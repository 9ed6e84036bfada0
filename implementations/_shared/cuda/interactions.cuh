// DLRM's feature interaction: each form one launch.
//
//   dot_tensor   up to 32 vectors a sample, on the tensor cores: float16, bfloat16, and float32 as tf32. A warp has one sample.
//   dot_simt     the same on the float32 units (precision "ieee").
//   dot_wide     more vectors than that: a block has one sample and a tile of 32 vectors against 32.
//   looked_up_…  each of these behind look-ups of its own: a block finds its samples' table rows and reads them from there.
//   outer_rows   outer products whose rows are whole 16-byte vectors.
//   outer_flat   all others.
//
// dot_tensor needs no shared memory for its operands. It multiplies the sample's vectors X (32, D) by their transpose, and
// the fragments of X that a warp holds for the left operand are the very ones that the right operand wants, because the
// sum over D may be taken in any order as long as both sides take the same: a lane loads 16 bytes of a vector and hands
// them to two products in turn. So every byte is read once, straight into the registers that are multiplied.
//
// A sample's row of y, D + F (F + 1) / 2 elements and zeros up to `pitch`, may start at any address. STAGED blocks collect theirs in shared memory:
// the rows of a block's samples are one piece of y that starts at a multiple of 16 bytes.
#pragma once

#include "_shared/cuda/lookup.cuh"

// ---- where a sample's vectors lie: the dense one is vector 0 ----------------------------------------------------------

// In an array of sparse vectors (M, F, D).
template <typename T>
struct Given {
    static constexpr bool LOOKS_UP = false;
    const T *dense, *sparse;

    __device__ __forceinline__ Index row(long long sample, int f, int F) const { return sample * F + f - 1; }
    __device__ __forceinline__ const T* of(long long sample, int f, Index row, int D) const {
        return f == 0 ? dense + sample * D : sparse + row * D;
    }
};

// In the tables, at the rows of the sample's ids (M, F).
template <typename T, bool IMPROVED>
struct LookedUp {
    static constexpr bool LOOKS_UP = true;
    const T* dense;
    const Index* ids;
    const T* tables;
    const Index* offsets;
    const int *keys, *positions;

    __device__ __forceinline__ Index row(long long sample, int f, int F) const {
        Index id = ids[sample * F + f - 1], begin = offsets[f - 1], end = offsets[f];
        if (!valid(id)) return offsets[F];
        if constexpr (IMPROVED) return improved_row(id, begin, end, keys, positions);
        else return modulus_row(id, begin, end);
    }
    __device__ __forceinline__ const T* of(long long sample, int f, Index row, int D) const {
        return f == 0 ? dense + sample * D : tables + row * D;
    }
};

// The rows of up to 32 vectors of a warp's sample, from vector `first` on, one in each lane; 0 where there is none.
template <typename Source>
__device__ __forceinline__ Index rows_of_lanes(const Source& source, long long sample, int first, int F, bool exists) {
    int f = first + static_cast<int>(threadIdx.x) % 32;
    return Source::LOOKS_UP && exists && f > 0 && f <= F ? source.row(sample, f, F) : 0;
}

__device__ __forceinline__ int below_diagonal(int i, int j) { return i * (i - 1) / 2 + j; }  // place of (i, j), j < i

// Products below the diagonal, of F vectors and the dense one, from a warp's fragments to a row of y: lane 4 g + t has its own.
template <int BANDS, typename T, int TILES>
__device__ __forceinline__ void store_below_diagonal(T* row_of_y, const float (&c)[TILES][2 * TILES][4], int g, int t, int F, int D) {
#pragma unroll
    for (int i = 0; i < TILES; ++i)
#pragma unroll
        for (int j = 0; j < 2 * i + 2 && j < BANDS; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                int row = 16 * i + g + e / 2 * 8, column = 8 * j + 2 * t + e % 2;
                if (column < row && row <= F) row_of_y[D + below_diagonal(row, column)] = from_float<T>(c[i][j][e]);
            }
}

// The elements of a row of y past its columns are 0, up to `pitch`.
template <typename T>
__device__ __forceinline__ void fill_rest(T* row, int F, int D, int pitch, int thread, int threads) {
    for (int d = D + F * (F + 1) / 2 + thread; d < pitch; d += threads) row[d] = from_float<T>(0.0f);
}

// The `count` elements that a block staged go to `to`, which is 16-byte aligned.
template <typename T>
__device__ __forceinline__ void write_out(const T* staged, T* to, int count) {
    constexpr int SIZE = Vector<T>::SIZE;
    for (int v = threadIdx.x; v < count / SIZE; v += blockDim.x)
        reinterpret_cast<Vector<T>*>(to)[v] = reinterpret_cast<const Vector<T>*>(staged)[v];
    for (int e = count / SIZE * SIZE + threadIdx.x; e < count; e += blockDim.x) to[e] = staged[e];
}

// A sample's dense vector on its way into y, by a warp. It is asked for before the products: behind them nothing would hide how long
// that takes. What it has beyond 128 elements is read when it is stored.
template <typename T>
struct DenseVector {
    static constexpr int KEPT = 4;
    const T* from;
    int lane, D;
    T kept[KEPT];

    __device__ __forceinline__ DenseVector(const T* from, int lane, int D) : from(from), lane(lane), D(D) {
#pragma unroll
        for (int i = 0; i < KEPT; ++i) kept[i] = lane + i * 32 < D ? from[lane + i * 32] : T{};
    }
    __device__ __forceinline__ void store(T* to) const {
#pragma unroll
        for (int i = 0; i < KEPT; ++i)
            if (lane + i * 32 < D) to[lane + i * 32] = kept[i];
        for (int d = lane + KEPT * 32; d < D; d += 32) to[d] = from[d];
    }
};

// ---- dot, tensor cores ----------------------------------------------------------------------------------------------

// What the tensor cores get of 4 bytes; NaN stays NaN.
template <typename T>
__device__ __forceinline__ unsigned operand(unsigned word) {
    return word;
}
template <>
__device__ __forceinline__ unsigned operand<float>(unsigned word) {
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(word)));
    return rounded;
}

// BANDS of 8 vectors each hold a sample's F + 1. Lane (g, t) = (lane / 4, lane % 4) loads vector 8 b + g of each band b,
// 16 bytes at a time; 4 lanes together have STEP elements of it, UNROLL such steps are on their way at once.
template <typename T, bool ALIGNED, bool STAGED, int BANDS, int UNROLL, int SAMPLES, typename Source>
__device__ __forceinline__ void tensor_dots(const Source& source, T* __restrict__ y, long long M, int F, int D, int pitch) {
    constexpr int SIZE = Vector<T>::SIZE, STEP = 4 * SIZE, TILES = (BANDS + 1) / 2;
    extern __shared__ uint4 shared[];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    long long first = static_cast<long long>(blockIdx.x) * SAMPLES, sample = first + warp;
    bool exists = sample < M;

    Index own_row = rows_of_lanes(source, sample, 0, F, exists), row[2 * TILES];  // of the vectors that this lane loads
#pragma unroll
    for (int b = 0; b < 2 * TILES; ++b) {
        int f = 8 * b + g;
        row[b] = Source::LOOKS_UP ? __shfl_sync(0xffffffffu, own_row, f) : source.row(sample, f, F);
    }

    DenseVector<T> dense(source.dense + sample * D, lane, exists ? D : 0);
    float c[TILES][2 * TILES][4] = {};  // 16 rows by 8 columns each
    for (int start = t * SIZE; start - t * SIZE < D; start += UNROLL * STEP) {
        Vector<T> x[UNROLL][2 * TILES];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
#pragma unroll
            for (int b = 0; b < 2 * TILES; ++b) {
                int f = 8 * b + g, k = start + u * STEP;
                int count = b < BANDS && exists && f <= F ? min(D - k, SIZE) : 0;
                x[u][b] = load_part<ALIGNED>(source.of(sample, f, row[b], D) + k, count);
            }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            unsigned word[2 * TILES][4];
#pragma unroll
            for (int b = 0; b < 2 * TILES; ++b)
#pragma unroll
                for (int w = 0; w < 4; ++w)
                    word[b][w] = operand<T>(reinterpret_cast<const unsigned(&)[4]>(x[u][b])[w]);
#pragma unroll
            for (int half = 0; half < 4; half += 2)  // of the 16 bytes: one product each
#pragma unroll
                for (int i = 0; i < TILES; ++i)
#pragma unroll
                    for (int j = 0; j < 2 * i + 2 && j < BANDS; ++j) {
                        unsigned left[4] = {word[2 * i][half], word[2 * i + 1][half], word[2 * i][half + 1],
                                            word[2 * i + 1][half + 1]};
                        unsigned right[2] = {word[j][half], word[j][half + 1]};
                        multiply_add(c[i][j], left, right, T{});
                    }
        }
    }

    T* own = STAGED ? reinterpret_cast<T*>(shared) + warp * pitch : y + sample * pitch;
    dense.store(own);
    if (exists) {
        fill_rest(own, F, D, pitch, lane, 32);
        store_below_diagonal<BANDS>(own, c, g, t, F, D);
    }
    if constexpr (STAGED) {
        __syncthreads();
        int samples = static_cast<int>(min(M - first, static_cast<long long>(SAMPLES)));
        write_out(reinterpret_cast<const T*>(shared), y + first * pitch, samples * pitch);
    }
}

template <typename T, bool ALIGNED, bool STAGED, int BANDS, int UNROLL, int SAMPLES>
__global__ void __launch_bounds__(SAMPLES * 32)
    dot_tensor(const T* __restrict__ dense, const T* __restrict__ sparse, T* __restrict__ y, long long M, int F, int D, int pitch) {
    wait_for_previous_launch();
    tensor_dots<T, ALIGNED, STAGED, BANDS, UNROLL, SAMPLES>(Given<T>{dense, sparse}, y, M, F, D, pitch);
}

#define LOOKED_UP(T)                                                                                             \
    const T *__restrict__ dense, const Index *__restrict__ ids, const T *__restrict__ tables,                    \
        const Index *__restrict__ offsets, const int *__restrict__ keys, const int *__restrict__ positions,      \
        T *__restrict__ y
#define SOURCE(T) LookedUp<T, IMPROVED>{dense, ids, tables, offsets, keys, positions}

template <typename T, bool IMPROVED, bool ALIGNED, bool STAGED, int BANDS, int UNROLL, int SAMPLES>
__global__ void __launch_bounds__(SAMPLES * 32) looked_up_dot_tensor(LOOKED_UP(T), long long M, int F, int D, int pitch) {
    wait_for_previous_launch();
    tensor_dots<T, ALIGNED, STAGED, BANDS, UNROLL, SAMPLES>(SOURCE(T), y, M, F, D, pitch);
}

// ---- dot, float32 units -----------------------------------------------------------------------------------------------

// A warp has one sample and keeps DEPTH elements of its vectors in shared memory. With P = (F + 1) / 4 rounded up, vectors
// a, a + P, a + 2P, a + 3P are group a; a lane computes the 4×4 products of a pair of groups b <= a. That gives the 28
// pairs of DLRM's 27 vectors to 28 lanes, and neighbouring lanes read neighbouring vectors, which lie in different banks.
template <bool ALIGNED, bool STAGED, int DEPTH, int SAMPLES, typename Source>
__device__ __forceinline__ void simt_dots(const Source& source, float* __restrict__ y, long long M, int F, int D, int pitch) {
    constexpr int STRIDE = DEPTH | 4, VECTORS = DEPTH / 4;  // an odd number of 16-byte banks from vector to vector
    extern __shared__ uint4 shared[];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int groups = F / 4 + 1, pairs = groups * (groups + 1) / 2;
    long long first = static_cast<long long>(blockIdx.x) * SAMPLES, sample = first + warp;
    bool exists = sample < M;
    float* x = reinterpret_cast<float*>(shared) + warp * 4 * groups * STRIDE;
    float* staged = reinterpret_cast<float*>(shared) + SAMPLES * 4 * groups * STRIDE;
    float* own = STAGED ? staged + warp * pitch : y + sample * pitch;
    DenseVector<float> dense(source.dense + sample * D, lane, exists ? D : 0);

    __shared__ Index rows[SAMPLES][32];
    rows[warp][lane] = Source::LOOKS_UP ? rows_of_lanes(source, sample, 0, F, exists) : source.row(sample, lane, F);
    __syncwarp();

    auto load = [&](int start) {  // what is no vector or past its end is 0
        for (int n = lane; n < 4 * groups * VECTORS; n += 32) {
            int f = n / VECTORS, k = n % VECTORS * 4;
            int count = exists && f <= F ? min(D - start - k, 4) : 0;
            const float* from = source.of(sample, f, rows[warp][f % 32], D) + start + k;
            float* to = x + f * STRIDE + k;
            if constexpr (ALIGNED) copy_async(shared_address(to), count > 0 ? from : source.dense, count > 0);
            else *reinterpret_cast<Vector<float>*>(to) = load_part<false>(from, count);
        }
        if constexpr (ALIGNED) copy_commit(), copy_wait<0>();
    };

    for (int pair0 = 0; pair0 < pairs; pair0 += 32) {
        int pair = min(pair0 + lane, pairs - 1), a = 0;
        while ((a + 1) * (a + 2) / 2 <= pair) ++a;
        int b = pair - a * (a + 1) / 2;
        float c[4][4] = {};
        for (int start = 0; start < D; start += DEPTH) {
            if (pair0 == 0 || D > DEPTH) {
                __syncwarp();
                load(start);
                __syncwarp();
            }
#pragma unroll 2
            for (int k = 0; k < DEPTH; k += 4) {
                Vector<float> left[4], right[4];
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    left[r] = *reinterpret_cast<const Vector<float>*>(x + (a + r * groups) * STRIDE + k);
                    right[r] = *reinterpret_cast<const Vector<float>*>(x + (b + r * groups) * STRIDE + k);
                }
#pragma unroll
                for (int r = 0; r < 4; ++r)
#pragma unroll
                    for (int s = 0; s < 4; ++s)
#pragma unroll
                        for (int e = 0; e < 4; ++e) c[r][s] = fmaf(left[r].at[e], right[s].at[e], c[r][s]);
            }
        }
        if (!exists || pair0 + lane >= pairs) continue;
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                int i = a + r * groups, j = b + s * groups, row = max(i, j), column = min(i, j);
                // a group against itself has each pair of vectors twice: it is stored where r > s
                if (row <= F && (a != b || r > s)) own[D + below_diagonal(row, column)] = c[r][s];
            }
    }
    dense.store(own);
    if (exists) fill_rest(own, F, D, pitch, lane, 32);
    if constexpr (STAGED) {
        __syncthreads();
        int samples = static_cast<int>(min(M - first, static_cast<long long>(SAMPLES)));
        write_out(staged, y + first * pitch, samples * pitch);
    }
}

template <bool ALIGNED, bool STAGED, int DEPTH, int SAMPLES>
__global__ void __launch_bounds__(SAMPLES * 32)
    dot_simt(const float* __restrict__ dense, const float* __restrict__ sparse, float* __restrict__ y, long long M, int F,
             int D, int pitch) {
    wait_for_previous_launch();
    simt_dots<ALIGNED, STAGED, DEPTH, SAMPLES>(Given<float>{dense, sparse}, y, M, F, D, pitch);
}

template <bool IMPROVED, bool ALIGNED, bool STAGED, int DEPTH, int SAMPLES>
__global__ void __launch_bounds__(SAMPLES * 32) looked_up_dot_simt(LOOKED_UP(float), long long M, int F, int D, int pitch) {
    wait_for_previous_launch();
    simt_dots<ALIGNED, STAGED, DEPTH, SAMPLES>(SOURCE(float), y, M, F, D, pitch);
}

// ---- dot, many vectors ------------------------------------------------------------------------------------------------

// 256 threads, 2×2 products each, of bands of 32 vectors: block → (sample, band, earlier or same band).
template <typename T, typename Source>
__device__ __forceinline__ void wide_dots(const Source& source, T* __restrict__ y, int F, int D, int pitch) {
    constexpr int BAND = 32;
    __shared__ Index rows[2][BAND];
    __shared__ float left[BAND][BAND + 1], right[BAND][BAND + 1];  // (vector, element)
    int bands = F / BAND + 1, pairs = bands * (bands + 1) / 2, pair = blockIdx.x % pairs, a = 0;
    while ((a + 1) * (a + 2) / 2 <= pair) ++a;
    int b = pair - a * (a + 1) / 2, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    long long sample = blockIdx.x / pairs;
    T* own = y + sample * pitch;
    if (pair == 0) {
        for (int d = threadIdx.x; d < D; d += 256) own[d] = source.dense[sample * D + d];
        fill_rest(own, F, D, pitch, threadIdx.x, 256);
    }
    if (threadIdx.x < 2 * BAND) {
        int f = (threadIdx.x < BAND ? a : b) * BAND + threadIdx.x % BAND;
        rows[threadIdx.x / BAND][threadIdx.x % BAND] = f > 0 && f <= F ? source.row(sample, f, F) : 0;
    }
    __syncthreads();

    float c[2][2] = {};
    for (int start = 0; start < D; start += BAND) {
        int k = threadIdx.x % BAND;
        for (int f = threadIdx.x / BAND; f < BAND; f += 256 / BAND) {
            int i = a * BAND + f, j = b * BAND + f;
            bool inside = start + k < D;
            left[f][k] = inside && i <= F ? to_float(source.of(sample, i, rows[0][f], D)[start + k]) : 0.0f;
            right[f][k] = inside && j <= F ? to_float(source.of(sample, j, rows[1][f], D)[start + k]) : 0.0f;
        }
        __syncthreads();
#pragma unroll 8
        for (int e = 0; e < BAND; ++e)
#pragma unroll
            for (int r = 0; r < 2; ++r)
#pragma unroll
                for (int s = 0; s < 2; ++s) c[r][s] = fmaf(left[ty + 16 * r][e], right[tx + 16 * s][e], c[r][s]);
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            long long i = a * BAND + ty + 16 * r, j = b * BAND + tx + 16 * s;
            if (j < i && i <= F) own[D + i * (i - 1) / 2 + j] = from_float<T>(c[r][s]);
        }
}

template <typename T>
__global__ void __launch_bounds__(256)
    dot_wide(const T* __restrict__ dense, const T* __restrict__ sparse, T* __restrict__ y, int F, int D, int pitch) {
    wait_for_previous_launch();
    wide_dots(Given<T>{dense, sparse}, y, F, D, pitch);
}

template <typename T, bool IMPROVED>
__global__ void __launch_bounds__(256) looked_up_dot_wide(LOOKED_UP(T), int F, int D, int pitch) {
    wait_for_previous_launch();
    wide_dots(SOURCE(T), y, F, D, pitch);
}
#undef LOOKED_UP
#undef SOURCE

// ---- outer ------------------------------------------------------------------------------------------------------------

// Element n of a sample's dense and sparse vectors side by side.
template <typename T>
__device__ __forceinline__ const T* side_by_side(const T* dense, const T* sparse, long long sample, int F, int D, int n) {
    return n < D ? dense + sample * D + n : sparse + sample * F * D + (n - D);
}

template <typename T>
__device__ __forceinline__ void store_streaming(T* to, const Vector<T>& v) {
    __stcs(reinterpret_cast<uint4*>(to), reinterpret_cast<const uint4&>(v));
}

// D is a multiple of a vector, so N = (F + 1) D is too. A thread keeps one vector of x and multiplies it by ROWS elements,
// each of which is a row of the product: what it stores is 16 bytes of a row, beside its neighbours'.
template <typename T, int ROWS>
__global__ void outer_rows(const T* __restrict__ dense, const T* __restrict__ sparse, T* __restrict__ y, int F, int D) {
    wait_for_previous_launch();
    constexpr int SIZE = Vector<T>::SIZE;
    int N = (F + 1) * D, across = (N / SIZE + blockDim.x - 1) / blockDim.x, down = (N + ROWS - 1) / ROWS;
    int block = blockIdx.x % (across * down);
    long long sample = blockIdx.x / (across * down);
    int j = (block % across * blockDim.x + threadIdx.x) * SIZE, i0 = block / across * ROWS;
    if (j >= N) return;
    Vector<T> x = load_part<true>(side_by_side(dense, sparse, sample, F, D, j), SIZE);
    float right[SIZE];
#pragma unroll
    for (int e = 0; e < SIZE; ++e) right[e] = element(x, e);
    T* to = y + (sample * N + i0) * N + j;
    int rows = min(N - i0, ROWS);
#pragma unroll 4
    for (int r = 0; r < rows; ++r, to += N) {
        float left = to_float(*side_by_side(dense, sparse, sample, F, D, i0 + r));
        Vector<T> product;
#pragma unroll
        for (int e = 0; e < SIZE; ++e) product.at[e] = from_float<T>(left * right[e]);
        store_streaming(to, product);
    }
}

// y as one long array of M N² elements: a thread finds where its 16 bytes begin and counts on from there, over the ends of
// rows and samples.
template <typename T>
__global__ void __launch_bounds__(256)
    outer_flat(const T* __restrict__ dense, const T* __restrict__ sparse, T* __restrict__ y, long long M, int F, int D) {
    wait_for_previous_launch();
    constexpr int SIZE = Vector<T>::SIZE;
    long long N = (F + 1LL) * D, total = M * N * N;
    long long begin = (static_cast<long long>(blockIdx.x) * 256 + threadIdx.x) * SIZE;
    if (begin >= total) return;
    int count = static_cast<int>(min(total - begin, static_cast<long long>(SIZE)));
    long long row = begin / N, sample = row / N;
    int j = static_cast<int>(begin - row * N), i = static_cast<int>(row - sample * N);
    Vector<T> product = {};
#pragma unroll
    for (int e = 0; e < SIZE; ++e) {
        if (e >= count) break;
        product.at[e] = from_float<T>(to_float(*side_by_side(dense, sparse, sample, F, D, i)) *
                                      to_float(*side_by_side(dense, sparse, sample, F, D, j)));
        if (++j == N) {
            j = 0;
            if (++i == N) i = 0, ++sample;
        }
    }
    if (count == SIZE) store_streaming(y + begin, product);
    else store_part<false>(y + begin, product, count);
}
