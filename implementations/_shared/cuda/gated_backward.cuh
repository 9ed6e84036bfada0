// The backward modes of a layer with a gate, Z = x @ W (+ b), y of both halves of Z's columns: the products are layer_backward.cuh's, of all
// columns. Forward leaves Z (M, 2N) behind, as it is stored:
//
//   gated          y of it
//   kept_few_rows  both at once, of few rows of 16 bits (matmul_few_rows.cuh)
//
// and backward begins with
//
//   pull_gate      some rows and columns of both halves of dZ, and for a kernel with b their sums for db
//
// unless dZ is made where it is multiplied (gated_few_rows.cuh).
//
// A kernel's G, a Pull of two parts, has value(left, right), an element of y, beside f(z, dy, dz).
#pragma once
#include "_shared/cuda/gated_few_rows.cuh"

// Blocks are pull()'s.
template <typename T, typename G, bool ALIGNED>
__global__ void __launch_bounds__(256) gated(const T* __restrict__ Z, T* __restrict__ y, long long M, long long N, long long each) {
    wait_for_previous_launch();
    constexpr int SIZE = Vector<T>::SIZE, WIDTH = PULLED_COLUMNS<T>;
    long long across = (N + WIDTH - 1) / WIDTH, first = blockIdx.x / across * each, end = min(M, first + each);
    long long n = blockIdx.x % across * WIDTH + threadIdx.x % 32 * SIZE;
    int count = static_cast<int>(min(N - n, static_cast<long long>(SIZE)));
#pragma unroll 2
    for (long long m = first + threadIdx.x / 32; m < end; m += 8) {
        auto left = load_part<ALIGNED>(Z + 2 * m * N + n, count), right = load_part<ALIGNED>(Z + (2 * m + 1) * N + n, count);
#pragma unroll
        for (int e = 0; e < SIZE; ++e) left.at[e] = from_float<T>(G::value(element(left, e), element(right, e)));
        store_part<ALIGNED>(y + m * N + n, left, count);
    }
}

// y of both sums; Z is stored beside. b may be null.
template <typename T, typename G>
struct Kept : Epilogue {
    const T* __restrict__ b;
    T* __restrict__ Z;
    long long N;

    struct Column {
        long long n;
        float left, right;
    };
    __device__ __forceinline__ Kept(const T* b, T* Z, long long N) : b(b), Z(Z), N(N) {}
    __device__ __forceinline__ T* row(long long m) const { return Z + 2 * m * N; }
    __device__ __forceinline__ Column column(long long n) const { return {n, b ? to_float(b[n]) : 0.0f, b ? to_float(b[N + n]) : 0.0f}; }
    __device__ __forceinline__ float operator()(T* row, const Column& column, const float (&v)[2]) const {
        T left = from_float<T>(v[0] + column.left), right = from_float<T>(v[1] + column.right);
        row[column.n] = left, row[N + column.n] = right;
        return G::value(to_float(left), to_float(right));
    }
};

template <typename T, typename G, bool SIMT, bool ALIGNED, bool NK, int BM, int BN, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32, 1)
    kept_few_rows(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b, T* __restrict__ Z, T* __restrict__ y, long long M,
                  long long K, long long N) {
    typename few_rows::WarpOf<SIMT, T, NK, BM, BN, 2>::Type tile;
    matmul_few_rows<WARPS, STAGES, ALIGNED, NK, BM, BN, 2>(tile, x, W, y, M, K, N, Kept<T, G>(b, Z, N), [] {}, [] { __syncthreads(); });
}

template <typename T, typename G, bool ALIGNED>
__global__ void __launch_bounds__(256)
    pull_gate(const T* __restrict__ Z, const T* __restrict__ dy, T* __restrict__ dZ, float2* __restrict__ row_parts, T* __restrict__ db,
              float* __restrict__ column_parts, int* __restrict__ flags, long long M, long long N, long long pitch, long long each,
              long long flag_count) {
    wait_for_previous_launch();
    clear_flags(flags, flag_count);
    pull<T, ALIGNED, 2>(Z, dy, dZ, db, column_parts, row_parts, M, N, pitch, each, G{});
}
