// dlrm_train: the launches between the perceptrons where layers are launches of their own (cuda_layers.cu), up to 32 vectors a sample, on the
// tensor cores. A warp has one sample, and reads the float32 rows of the tables straight into its fragments.
#pragma once
#include "_model.cuh"
#include "_shared/cuda/interactions.cuh"

// ---- dots ---------------------------------------------------------------------------------------------------------------

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

// BANDS of 8 vectors each hold a sample's F + 1. Lane (g, t) = (lane / 4, lane % 4) loads vector 8 b + g of each band b,
// 16 bytes at a time; 4 lanes together have STEP elements of it, UNROLL such steps are on their way at once.
template <typename T, bool STAGED, int BANDS, int UNROLL, int SAMPLES, typename Source>
__device__ __forceinline__ void tensor_dots(const Source& source, T* __restrict__ y, long long M, int F, int D, int pitch) {
    constexpr int SIZE = Vector<T>::SIZE, STEP = 4 * SIZE, TILES = (BANDS + 1) / 2;
    extern __shared__ uint4 shared[];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    long long first = static_cast<long long>(blockIdx.x) * SAMPLES, sample = first + warp;
    bool exists = sample < M;

    Index own_row = exists && lane > 0 && lane <= F ? source.row(sample, lane, F) : 0, row[2 * TILES];  // of the vectors that this lane loads
#pragma unroll
    for (int b = 0; b < 2 * TILES; ++b) row[b] = __shfl_sync(0xffffffffu, own_row, 8 * b + g);

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
                x[u][b] = load_part<true>(source.of(sample, f, row[b], D) + k, count);
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

// Where a vector lies: the dense one as it is, or a table row, whose floats become T.
template <typename T>
struct CastVector {
    const T* dense;
    const float* table;  // null where it is the dense one

    __device__ __forceinline__ CastVector operator+(int k) const { return {dense + k, table ? table + k : nullptr}; }
};

// As that of T in memory, for tensor_dots, which asks for whole vectors alone.
template <bool ALIGNED, typename T>
__device__ __forceinline__ Vector<T> load_part(const CastVector<T>& from, int count) {
    static_assert(ALIGNED && sizeof(T) == 2, "two vectors of floats");
    if (!from.table) return load_part<true>(from.dense, count);
    Vector<T> v;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        auto floats = load_part<true>(from.table + 4 * half, count);
#pragma unroll
        for (int e = 0; e < 4; ++e) v.at[4 * half + e] = from_float<T>(floats.at[e]);
    }
    return v;
}

// A source of tensor_dots: the tables' rows of the sample's ids, which are left in `rows` (M, F).
template <typename T, bool IMPROVED>
struct CastRows {
    const T* dense;
    LookedUp<float, IMPROVED> looked_up;
    int* rows;

    __device__ __forceinline__ Index row(long long sample, int f, int F) const {
        Index row = looked_up.row(sample, f, F);
        rows[sample * F + f - 1] = static_cast<int>(row);
        return row;
    }
    __device__ __forceinline__ CastVector<T> of(long long sample, int f, Index row, int D) const {
        return {dense + sample * D, f == 0 ? nullptr : looked_up.tables + row * D};
    }
};

template <typename T, bool IMPROVED, bool STAGED, int BANDS, int UNROLL, int SAMPLES>
__global__ void __launch_bounds__(SAMPLES * 32)
    cross(const T* __restrict__ dense, const Index* __restrict__ ids, const float* __restrict__ tables, const Index* __restrict__ offsets,
          const int* __restrict__ keys, const int* __restrict__ positions, int* __restrict__ rows, T* __restrict__ crossed, long long M, int F,
          int D, int pitch) {
    CastRows<T, IMPROVED> source{dense, {nullptr, ids, tables, offsets, keys, positions}, rows};
    if (blockIdx.x == 0 && threadIdx.x == 0) rows[M * F] = 0;  // as `pass` leaves it
    tensor_dots<T, STAGED, BANDS, UNROLL, SAMPLES>(source, crossed, M, F, D, pitch);
}

// ---- their gradient -----------------------------------------------------------------------------------------------------

template <typename T>
__device__ __forceinline__ unsigned both(T low, T high) {
    return low.bits | static_cast<unsigned>(high.bits) << 16;
}

// The gradients by a sample's vectors are S X, S the symmetric matrix of the gradients of the dots, 0 on its diagonal; the dense one has its own
// columns besides. X (32, 32 columns) goes from memory into right operands: lane 4 g + t has columns 4 g … 4 g + 3 of vectors 2 t, 2 t + 1, …, of
// which the q-th is column g of fragment q. So its sums are 8 neighbouring columns of a vector, from 8 t on.
//
// TILES of 16 vectors hold the F + 1. `crossed` and its gradient have rows of `pitch` elements, which begin with the dense vector's.
template <typename T, int TILES, int SAMPLES>
__global__ void __launch_bounds__(SAMPLES * 32)
    uncross(const T* __restrict__ crossed, const T* __restrict__ dcrossed, const float* __restrict__ tables, const int* __restrict__ rows,
            T* __restrict__ ddense, T* __restrict__ dvectors, long long M, int F, int D, int pitch) {
    constexpr int SIZE = Vector<T>::SIZE;
    extern __shared__ uint4 shared[];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    long long sample = static_cast<long long>(blockIdx.x) * SAMPLES + warp;
    if (sample >= M) return;  // warps do not wait for one another
    T* dy = reinterpret_cast<T*>(shared) + warp * pitch;
    int row[TILES][2][2];  // of the tables, of this lane's vectors of X
#pragma unroll
    for (int s = 0; s < TILES; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int f = 16 * s + 2 * t + i / 2 * 8 + i % 2;
            row[s][i / 2][i % 2] = f > 0 && f <= F ? rows[sample * F + f - 1] : -1;
        }
    for (int n = lane * SIZE; n < pitch; n += 32 * SIZE)
        *reinterpret_cast<Vector<T>*>(dy + n) = load_part<true>(dcrossed + sample * pitch + n, SIZE);
    __syncwarp();

    auto pair = [&](int i, int j) { return i == j || i > F || j > F ? from_float<T>(0.0f) : dy[D + below_diagonal(max(i, j), min(i, j))]; };
    unsigned a[TILES][TILES][4];
#pragma unroll
    for (int i = 0; i < TILES; ++i)
#pragma unroll
        for (int s = 0; s < TILES; ++s)
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                int f = 16 * i + g + r % 2 * 8, j = 16 * s + 2 * t + r / 2 * 8;
                a[i][s][r] = both(pair(f, j), pair(f, j + 1));
            }
    for (int start = 0; start < D; start += 32) {
        int from = start + 4 * g, to = start + 8 * t;
        Quad<T> x[TILES][2][2];
#pragma unroll
        for (int s = 0; s < TILES; ++s)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int own = row[s][i / 2][i % 2];
                auto v = load_part<true>(tables + static_cast<long long>(max(own, 0)) * D + from, own < 0 ? 0 : D - from);
                auto& q = x[s][i / 2][i % 2];
                q = quad_of<T>(v.at);
                if (s == 0 && i == 0 && t == 0 && from < D) q = *reinterpret_cast<const Quad<T>*>(crossed + sample * pitch + from);
            }
        float c[TILES][4][4] = {};
#pragma unroll
        for (int s = 0; s < TILES; ++s)
#pragma unroll
            for (int q = 0; q < 4; ++q) {
                unsigned b[2] = {both(x[s][0][0].at[q], x[s][0][1].at[q]), both(x[s][1][0].at[q], x[s][1][1].at[q])};
#pragma unroll
                for (int i = 0; i < TILES; ++i) multiply_add(c[i][q], a[i][s], b, T{});
            }
        if (to >= D) continue;
#pragma unroll
        for (int i = 0; i < TILES; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                int f = 16 * i + g + 8 * h;
                if (f > F) continue;
                Vector<T> v;
#pragma unroll
                for (int e = 0; e < SIZE; ++e) {
                    float sum = c[i][e % 4][2 * h + e / 4];
                    v.at[e] = from_float<T>(f == 0 ? sum + to_float(dy[to + e]) : sum);
                }
                store_part<true>((f == 0 ? ddense + sample * D : dvectors + (sample * F + f - 1) * D) + to, v, SIZE);
            }
    }
}
