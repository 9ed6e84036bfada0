// dlrm_train: the launches between the perceptrons where layers are launches of their own (cuda_layers.cu), up to 32 vectors a sample, on the
// tensor cores. A warp has one sample, and reads the float32 rows of the tables straight into its fragments.
#pragma once
#include "_model.cuh"
#include "_shared/cuda/interactions.cuh"

// ---- dots ---------------------------------------------------------------------------------------------------------------

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
    static constexpr bool LOOKS_UP = true;
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
    tensor_dots<T, true, STAGED, BANDS, UNROLL, SAMPLES>(source, crossed, M, F, D, pitch);
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
