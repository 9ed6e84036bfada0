// What kernels share that do one step for each element of a matrix and the bias of its column (_shared/gpu.py says how
// they share out the work). The matrix is taken as one row of elements, so every 16-byte vector is aligned whatever N
// is. A thread divides once, for the column of its first vector; from there on columns count up and wrap at N.
#pragma once
#include "_shared/cuda/device.cuh"

// A matrix of `count` elements in rows of N. `step` is BLOCK vectors % N, `reciprocal` is floor((2^63 - 1) / N).
struct Rows {
    long long count, N, step, reciprocal;

    // n % N for n < 2^62. The quotient comes out right or one too small: n / N - n * reciprocal / 2^63 is below 1/2.
    __device__ __forceinline__ long long column(long long n) const {
        long long quotient = __umul64hi(2 * static_cast<unsigned long long>(n), reciprocal);
        return wrapped(n - quotient * N);
    }
    __device__ __forceinline__ long long wrapped(long long column) const { return column < N ? column : column - N; }
};

// The biases of a vector that begins in `column`. ALIGNED: N is a multiple of a vector, and no vector goes past a row.
template <bool ALIGNED, typename T>
__device__ __forceinline__ Vector<T> load_bias(const T* b, long long column, const Rows& rows) {
    if constexpr (ALIGNED) return *reinterpret_cast<const Vector<T>*>(b + column);
    Vector<T> v;
#pragma unroll
    for (int j = 0; j < Vector<T>::SIZE; ++j) {
        v.at[j] = b[column];
        column = rows.wrapped(column + 1);
    }
    return v;
}

// y = f(elements of the inputs at the same place, the bias of their column). A block has UNROLL * BLOCK vectors, a
// thread every BLOCK-th of them. Everything is requested before anything is used. An input may be y, because a thread
// writes nothing that another one reads.
template <bool ALIGNED, int UNROLL, int BLOCK, typename T, int INPUTS, typename F>
__device__ __forceinline__ void pointwise(const T* const (&in)[INPUTS], const T* b, T* y, const Rows& rows, F f) {
    constexpr int SIZE = Vector<T>::SIZE, STRIDE = BLOCK * SIZE;
    long long start = static_cast<long long>(blockIdx.x) * (UNROLL * STRIDE), first = start + threadIdx.x * SIZE;
    Vector<T> v[UNROLL][INPUTS], bias[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i)
#pragma unroll
        for (int k = 0; k < INPUTS; ++k)
            if (first + i * STRIDE + SIZE <= rows.count) v[i][k] = load_once(in[k] + first + i * STRIDE);
    long long column = rows.column(first);
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        bias[i] = load_bias<ALIGNED>(b, column, rows);  // inside b even where the vector is outside of x
        column = rows.wrapped(column + rows.step);
    }
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        if (first + i * STRIDE + SIZE > rows.count) break;
        Vector<T> result;
#pragma unroll
        for (int j = 0; j < SIZE; ++j) {
            float values[INPUTS];
#pragma unroll
            for (int k = 0; k < INPUTS; ++k) values[k] = element(v[i][k], j);
            result.at[j] = from_float<T>(f(values, element(bias[i], j)));
        }
        *reinterpret_cast<Vector<T>*>(y + first + i * STRIDE) = result;
    }
    if constexpr (ALIGNED) return;
    // What fills no vector, fewer than SIZE elements, is in the last block: one of its threads for each.
    static_assert(BLOCK >= SIZE, "one thread for each element");
    long long last = rows.count - rows.count % SIZE + threadIdx.x;
    if (last >= rows.count || last >= start + UNROLL * STRIDE) return;
    float values[INPUTS];
#pragma unroll
    for (int k = 0; k < INPUTS; ++k) values[k] = to_float(in[k][last]);
    y[last] = from_float<T>(f(values, to_float(b[rows.column(last)])));
}
