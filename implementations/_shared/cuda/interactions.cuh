// DLRM's feature interaction: each form one launch.
//
//   dot_tensor   the products of a sample's vectors on the tensor cores: float16, bfloat16, and float32 as tf32.
//   dot_simt     the same on the float32 units (precision "ieee").
//   looked_up_…  each of these behind look-ups of its own: a block finds its samples' table rows and reads them from there.
//   outer_rows   outer products whose rows are whole 16-byte vectors.
//   outer_flat   all others.
//
// dots.cuh has how dots are made.
#pragma once

#include "_shared/cuda/dots.cuh"

// ---- dot --------------------------------------------------------------------------------------------------------------

#define GIVEN(T) const T *__restrict__ dense, const T *__restrict__ sparse, T *__restrict__ y
#define LOOKED_UP(T)                                                                                             \
    const T *__restrict__ dense, const Index *__restrict__ ids, const T *__restrict__ tables,                    \
        const Index *__restrict__ offsets, const int *__restrict__ keys, const int *__restrict__ positions,      \
        T *__restrict__ y
// Of dot_…: so many blocks of a multiprocessor leave a thread 128 registers: the compiler takes less of its own, and spills in some.
#define TILES_OF_DOTS typename S, int SIDE, int COPY, bool STAGED, int WARPS, int SAMPLES

template <typename T>
struct Tensor {
    template <int SIDE>
    using Square = TensorSquare<T, SIDE>;
};

template <typename T, TILES_OF_DOTS>
__global__ void __launch_bounds__(SAMPLES * WARPS * 32, 16 / (SAMPLES * WARPS)) dot_tensor(GIVEN(T), long long M) {
    wait_for_previous_launch();
    dots<Tensor<T>::template Square, S, SIDE, COPY, STAGED, WARPS, SAMPLES>(Given<T>{dense, sparse}, y, M);
}

template <typename T, bool IMPROVED, TILES_OF_DOTS>
__global__ void __launch_bounds__(SAMPLES * WARPS * 32, 16 / (SAMPLES * WARPS)) looked_up_dot_tensor(LOOKED_UP(T), long long M) {
    wait_for_previous_launch();
    dots<Tensor<T>::template Square, S, SIDE, COPY, STAGED, WARPS, SAMPLES>(
        LookedUp<T, IMPROVED>{dense, ids, tables, offsets, keys, positions}, y, M);
}

template <TILES_OF_DOTS>
__global__ void __launch_bounds__(SAMPLES * WARPS * 32, 16 / (SAMPLES * WARPS)) dot_simt(GIVEN(float), long long M) {
    wait_for_previous_launch();
    dots<SimtSquare, S, SIDE, COPY, STAGED, WARPS, SAMPLES>(Given<float>{dense, sparse}, y, M);
}

template <bool IMPROVED, TILES_OF_DOTS>
__global__ void __launch_bounds__(SAMPLES * WARPS * 32, 16 / (SAMPLES * WARPS)) looked_up_dot_simt(LOOKED_UP(float), long long M) {
    wait_for_previous_launch();
    dots<SimtSquare, S, SIDE, COPY, STAGED, WARPS, SAMPLES>(
        LookedUp<float, IMPROVED>{dense, ids, tables, offsets, keys, positions}, y, M);
}
#undef GIVEN
#undef LOOKED_UP
#undef TILES_OF_DOTS

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
