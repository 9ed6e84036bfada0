// The backward modes of a layer with a gate, Z = x @ W (+ b), y of both halves of Z's columns: the products are layer_backward.cuh's, of all
// columns. Forward leaves Z (M, 2N) behind, as it is stored:
//
//   kept_…   Z and y at once, in 16 bits: by those kernels of splacc's and geglu's forward pass (cuda.cu) whose epilogues have several results
//   gated    y of Z, which `linear_…` (layer_backward.cuh) has made
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
#include "_shared/cuda/hopper/matmul_turned.cuh"

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

// Both halves of Z, and y of them as they are stored. b may be null.
template <typename T, typename G>
struct Kept : Epilogue {
    static constexpr int OUTPUTS = 3;
    const T* __restrict__ b;
    T* __restrict__ Z;
    long long N;

    __device__ __forceinline__ Kept(const T* b, T* Z, long long N) : b(b), Z(Z), N(N) {}
    __device__ __forceinline__ float2 column(long long n) const { return b ? make_float2(to_float(b[n]), to_float(b[N + n])) : float2{}; }
    __device__ __forceinline__ float of(int output, None, float2 bias, const float (&v)[2]) const {
        float left = v[0] + bias.x, right = v[1] + bias.y;
        if (output < 2) return output == 0 ? left : right;
        return G::value(to_float(from_float<T>(left)), to_float(from_float<T>(right)));
    }
    __device__ __forceinline__ T* place(int output, T* y, long long m, long long N) const {
        return output < 2 ? Z + (2 * m + output) * N : y + m * N;
    }
    static __device__ __forceinline__ long long stride(int output, long long N) { return output < 2 ? 2 * N : N; }
};

template <typename T, typename G, bool SIMT, bool ALIGNED, bool NK, int BM, int BN, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32, 1)
    kept_few_rows(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b, T* __restrict__ Z, T* __restrict__ y, long long M,
                  long long K, long long N) {
    typename few_rows::WarpOf<SIMT, T, NK, BM, BN, 2>::Type tile;
    matmul_few_rows<WARPS, STAGES, ALIGNED, NK, BM, BN, 2>(tile, x, W, y, M, K, N, Kept<T, G>(b, Z, N), [] {}, [] { __syncthreads(); });
}

#if __CUDA_ARCH__ >= 900
// The same, whose K the blocks of a cluster share, too.
template <typename T, typename G, bool SIMT, bool ALIGNED, bool NK, int BM, int BN, int WARPS, int STAGES, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(WARPS * 32, 1)
    kept_few_rows_split(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b, T* __restrict__ Z, T* __restrict__ y, long long M,
                        long long K, long long N) {
    typename few_rows::WarpOf<SIMT, T, NK, BM, BN, 2>::Type tile;
    matmul_few_rows<WARPS, STAGES, ALIGNED, NK, BM, BN, 2, SPLIT>(tile, x, W, y, M, K, N, Kept<T, G>(b, Z, N), [] {}, [] { __syncthreads(); });
}

template <typename T, typename G, bool NK, int BM, int BN, int STAGES, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    kept_split(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ b, T* __restrict__ Z,
               T* __restrict__ y, long long M, long long K, long long N) {
    matmul_split<T, NK, BM, BN, STAGES, SPLIT, 2>(x, W, y, M, K, N, Kept<T, G>(b, Z, N));
}
template <typename T, typename G, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BN * 2 + 128, 1)
    kept_turned(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ b, T* __restrict__ Z,
                T* __restrict__ y, long long M, long long K, long long N) {
    matmul_turned<T, NK, BM, BN, STAGES, CLUSTER, 2>(x, W, y, M, K, N, Kept<T, G>(b, Z, N));
}
template <typename T, typename G, bool NK, int BM, int BN, int STAGES, int CLUSTER, typename Schedule = WholeTiles>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    kept_warpgroup(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ b, T* __restrict__ Z,
                   T* __restrict__ y, long long M, long long K, long long N) {
    matmul_wgmma<T, NK, BM, BN, STAGES, CLUSTER, 2>(x, W, y, M, K, N, Kept<T, G>(b, Z, N), Schedule{});
}
#endif

template <typename T, typename G, bool ALIGNED>
__global__ void __launch_bounds__(256)
    pull_gate(const T* __restrict__ Z, const T* __restrict__ dy, T* __restrict__ dZ, float2* __restrict__ row_parts, T* __restrict__ db,
              float* __restrict__ column_parts, int* __restrict__ flags, long long M, long long N, long long pitch, long long each,
              long long flag_count) {
    wait_for_previous_launch();
    clear_flags(flags, flag_count);
    pull<T, ALIGNED, 2>(Z, dy, dZ, db, column_parts, row_parts, M, N, pitch, each, G{});
}
