// The products of a layer's backward modes, z = x @ W + b: forward
//
//   linear_…            a tile of z, and with it what the epilogue F makes of it.
//
// and backward, given dz (pulled.cuh), in which F says what is made of dn = dz @ Wᵀ, StoredGradient or a kernel's own:
//
//   gradients_together  dx and dW by Hopper's warpgroups, in one launch (hopper/linear_gradients.cuh)
//   gradients_beside    the same of a few hundred rows of 16 bits: clusters share the depth of a tile of dx each, beside blocks that have one of dW
//                       (hopper/gradients_beside.cuh)
//   gradients_few_rows  the same of few rows of 16 bits: some blocks have a tile of dx each, whose depth their warps share, the others one
//                       of dW. What little dW is made of is one slab or two, so storing it is nearly all there is to do. Rows of
//                       x, W and dz are filled up to whole vectors
//   inputs_…, weights_…  a launch for dx, and one for dW = xᵀ @ dz, or its transpose where W is stored (N, K): where none of these is possible, and of few rows
//                       with a large W, where both fill all multiprocessors
//   turned_operands     before them, of floats that are multiplied as tf32: dz and x with rows as columns (weights.cuh)
//
// The first launch behind dz adds up what there is of db. n, rstd and sums, of which F is made, are null where it wants none.
#pragma once
#include "_shared/cuda/hopper/gradients_beside.cuh"
#include "_shared/cuda/matmul_few_rows.cuh"
#include "_shared/cuda/weights.cuh"

// z; b may be null. F of `linear` is made of b, z, and y, which may be null, too.
template <typename T>
struct Biased : Epilogue {
    const T* __restrict__ b;

    __device__ __forceinline__ Biased(const T* b, const T*, T*) : b(b) {}
    __device__ __forceinline__ float column(long long n) const { return b ? to_float(b[n]) : 0.0f; }
    __device__ __forceinline__ float operator()(None, float column, const float (&v)[1]) const { return v[0] + column; }
};

// dx as it is.
template <typename T>
struct StoredGradient : GradientEpilogue {
    __device__ __forceinline__ StoredGradient(const T*, const float*, const float2*, long long, long long, long long) {}
    __device__ __forceinline__ float operator()(None, None, const float (&v)[1]) const { return v[0]; }
};

// db of the parts that the launch before left.
template <typename T>
__device__ __forceinline__ void sum_bias(const float* parts, T* db, long long N, long long count) {
    wait_for_previous_launch();
    ColumnParts<T>{parts, db, N, count}.sum_up(threadIdx.x, blockDim.x, gridDim.x);
}

// In all but the launches of both products, x (M, K) and W (K, N) are the two operands, whatever they are, and y (M, N) the result. Rows of float of all
// operands, and of n, are whole vectors, with zeros behind the last element; of 16 bits they are as long as what is in them.
template <typename T>
__device__ __forceinline__ long long pitch_of(long long N) {
    return sizeof(T) == 4 ? filled_up<T>(N) : N;
}

template <typename F, bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    linear_simt(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ b, float* __restrict__ z,
                float* __restrict__ y, long long M, long long K, long long N) {
    matmul_simt<ALIGNED, NK, BM, BN, 1>(x, W, z, M, K, N, F(b, z, y));
}
template <typename F, bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    inputs_simt(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ n, const float* __restrict__ rstd,
                const float2* __restrict__ sums, const float* __restrict__ column_parts, float* __restrict__ db, float* __restrict__ y,
                long long M, long long K, long long N, long long across, long long down) {
    sum_bias(column_parts, db, K, down);
    matmul_simt<ALIGNED, NK, BM, BN, 1>(x, W, y, M, K, N, F(n, rstd, sums, N, pitch_of<float>(N), across));
}

template <typename T, typename F, bool ALIGNED, bool NK, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    linear_tensor(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b, T* __restrict__ z, T* __restrict__ y,
                  long long M, long long K, long long N) {
    matmul_mma_filled<T, ALIGNED, NK, BM, BN, WM, WN, STAGES>(x, W, z, M, K, N, F(b, z, y));
}
template <typename T, typename F, bool ALIGNED, bool NK, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    inputs_tensor(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ n, const float* __restrict__ rstd,
                  const float2* __restrict__ sums, const float* __restrict__ column_parts, T* __restrict__ db, T* __restrict__ y, long long M,
                  long long K, long long N, long long across, long long down) {
    sum_bias(column_parts, db, K, down);
    matmul_mma_filled<T, ALIGNED, NK, BM, BN, WM, WN, STAGES>(x, W, y, M, K, N, F(n, rstd, sums, N, pitch_of<T>(N), across));
}

// Of few rows of float: the warps of a block share K.
template <typename T, typename F, bool SIMT, bool ALIGNED, bool NK, int BM, int BN, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32, 1)
    linear_few_rows(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b, T* __restrict__ z, T* __restrict__ y,
                    long long M, long long K, long long N) {
    typename few_rows::WarpOf<SIMT, T, NK, BM, BN>::Type tile;
    matmul_few_rows<WARPS, STAGES, ALIGNED, NK, BM, BN, 1>(tile, x, W, z, M, K, N, F(b, z, y), [] {}, [] { __syncthreads(); });
}
template <typename T, typename F, bool SIMT, bool ALIGNED, bool NK, int BM, int BN, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32, 1)
    inputs_few_rows(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ n, const float* __restrict__ rstd,
                    const float2* __restrict__ sums, const float* __restrict__ column_parts, T* __restrict__ db, T* __restrict__ y, long long M,
                    long long K, long long N, long long across, long long down) {
    sum_bias(column_parts, db, K, down);
    typename few_rows::WarpOf<SIMT, T, NK, BM, BN>::Type tile;
    matmul_few_rows<WARPS, STAGES, ALIGNED, NK, BM, BN, 1>(tile, x, W, y, M, K, N, F(n, rstd, sums, N, pitch_of<T>(N), across), [] {}, [] { __syncthreads(); });
}

// The sums of a tile to y, whose rows are no whole vectors: neighbouring lanes store neighbouring elements, or pairs. Of vectors that are stored
// element by element, each store would touch as many sectors as the whole of them.
template <typename Tile, typename T>
__device__ __forceinline__ void store_elements(const Tile& tile, T* out, T* y, long long M, long long N, long long m0, long long n0) {
    constexpr int PITCH = Tile::OUT_PITCH;
#pragma unroll
    for (int i = 0; i < Tile::FM; ++i)
#pragma unroll
        for (int j = 0; j < Tile::FN; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                Pair<T> pair;
#pragma unroll
                for (int e = 0; e < 2; ++e) pair.at[e] = from_float<T>(tile.c[i][j][h * 2 + e]);
                *reinterpret_cast<Pair<T>*>(out + (tile.row0 + i * 16 + h * 8 + tile.g) * PITCH + tile.column0 + j * 8 + 2 * tile.t) = pair;
            }
    __syncthreads();
    int rows = static_cast<int>(min(M - m0, 128LL)), columns = static_cast<int>(min(N - n0, 128LL));
    for (int row = threadIdx.x / 32; row < rows; row += Tile::THREADS / 32) {
        const T* from = out + row * PITCH;
        T* to = y + (m0 + row) * N + n0;
        if (N % 2 == 0)
            for (int i = tile.lane; 2 * i < columns; i += 32) reinterpret_cast<Pair<T>*>(to)[i] = reinterpret_cast<const Pair<T>*>(from)[i];
        else
            for (int i = tile.lane; i < columns; i += 32) to[i] = from[i];
    }
}

// Of few rows: K are the columns of x, N those of dz. `left` and `right` are the operands of dW (rows, columns), of which a block has 128 × 128. Rows
// of x, W and dz are whole vectors; where FILLED they have whole_K and whole_N elements, else K and N. EVEN says that those of dx are whole pairs,
// ALIGNED that those of dW are whole vectors.
template <typename T, typename F, bool FILLED, bool EVEN, bool ALIGNED, bool NK, int BM, int BN, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32, 2)
    gradients_few_rows(const T* __restrict__ dz, const T* __restrict__ W, const T* __restrict__ left, const T* __restrict__ right,
                       const T* __restrict__ n, const float* __restrict__ rstd, const float2* __restrict__ row_parts,
                       const float* __restrict__ column_parts, T* __restrict__ db, T* __restrict__ dx, T* __restrict__ dW, long long M,
                       long long K, long long N, long long whole_K, long long whole_N, long long across, long long down) {
    using Weights = TensorTile<T, false, 128, 128, 2, 4, 1, true>;
    static_assert(WARPS * 32 == Weights::THREADS, "blocks of one size");
    extern __shared__ __align__(128) unsigned char memory[];
    long long m0, n0;
    unsigned of_inputs = static_cast<unsigned>((M + BM - 1) / BM * ((K + BN - 1) / BN));
    if (!FILLED) whole_K = K, whole_N = N;  // so that they take no registers of their own
    sum_bias(column_parts, db, N, down);
    if (blockIdx.x < of_inputs) {
        few_rows::OfWarp<TensorTile<T, NK, BM, BN, 1, 1>> tile;
        block_origin(M, K, BM, BN, m0, n0);
        few_rows::RowLoader<T, BM, WARPS> dz_rows(dz, m0, M, whole_N);
        few_rows::WeightLoader<NK, T, BN, WARPS, 1> columns(W, n0, NK ? K : whole_K, NK ? whole_N : N);
        few_rows_of<WARPS, STAGES, BM, BN, 1, true, EVEN>(tile, dz_rows, columns, static_cast<int>((N + SLAB<T> - 1) / SLAB<T>), dx, M, K, m0, n0,
                                                          F(n, rstd, row_parts, K, whole_K, across), [] {}, [] { __syncthreads(); });
    } else {
        long long rows = NK ? K : N, columns = NK ? N : K;
        block_origin(rows, columns, 128, 128, m0, n0, blockIdx.x - of_inputs);
        int first_row = static_cast<int>(m0), first_column = static_cast<int>(n0);  // what is kept until the end has no registers for more
        Weights tile;  // not before: sums that are cleared where those of the other blocks are take registers from these
        ColumnLoader<T, true, 128, Weights::THREADS> lefts(left, m0, NK ? whole_K : whole_N, M), rights(right, n0, NK ? whole_N : whole_K, M);
        mainloop<2>(tile, memory, lefts, rights, static_cast<int>((M + SLAB<T> - 1) / SLAB<T>));
        if constexpr (ALIGNED) tile.template epilogue<true>(memory, dW, rows, columns, first_row, first_column, Stored{});
        else store_elements(tile, reinterpret_cast<T*>(memory), dW, rows, columns, first_row, first_column);
    }
}

#if __CUDA_ARCH__ >= 900
// By the blocks of a cluster, which share the K of a tile.
template <typename F, bool ALIGNED, bool NK, int BM, int BN, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    linear_simt_split(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ b, float* __restrict__ z,
                      float* __restrict__ y, long long M, long long K, long long N) {
    matmul_simt<ALIGNED, NK, BM, BN, 1, false, SPLIT>(x, W, z, M, K, N, F(b, z, y));
}
template <typename F, bool ALIGNED, bool NK, int BM, int BN, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    inputs_simt_split(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ n, const float* __restrict__ rstd,
                      const float2* __restrict__ sums, const float* __restrict__ column_parts, float* __restrict__ db,
                      float* __restrict__ y, long long M, long long K, long long N, long long across, long long down) {
    sum_bias(column_parts, db, K, down);
    matmul_simt<ALIGNED, NK, BM, BN, 1, false, SPLIT>(x, W, y, M, K, N, F(n, rstd, sums, N, pitch_of<float>(N), across));
}

template <typename T, typename F, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    linear_warpgroup(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ b,
                     T* __restrict__ z, T* __restrict__ y, long long M, long long K, long long N) {
    matmul_wgmma<T, NK, BM, BN, STAGES, CLUSTER, 1>(x, W, z, M, K, N, F(b, z, y));
}
template <typename T, typename F, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    inputs_warpgroup(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ n,
                     const float* __restrict__ rstd, const float2* __restrict__ sums, const float* __restrict__ column_parts,
                     T* __restrict__ db, T* __restrict__ y, long long M, long long K, long long N, long long across, long long down) {
    sum_bias(column_parts, db, K, down);
    matmul_wgmma<T, NK, BM, BN, STAGES, CLUSTER, 1>(x, W, y, M, K, N, F(n, rstd, sums, N, pitch_of<T>(N), across));
}

// Of few rows of float, and few tiles: the warps of all blocks of a cluster share K.
template <typename T, typename F, bool SIMT, bool ALIGNED, bool NK, int BM, int BN, int WARPS, int STAGES, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(WARPS * 32, 1)
    inputs_few_rows_split(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ n, const float* __restrict__ rstd,
                          const float2* __restrict__ sums, const float* __restrict__ column_parts, T* __restrict__ db, T* __restrict__ y,
                          long long M, long long K, long long N, long long across, long long down) {
    sum_bias(column_parts, db, K, down);
    typename few_rows::WarpOf<SIMT, T, NK, BM, BN>::Type tile;
    matmul_few_rows<WARPS, STAGES, ALIGNED, NK, BM, BN, 1, SPLIT>(tile, x, W, y, M, K, N, F(n, rstd, sums, N, pitch_of<T>(N), across), [] {}, [] { __syncthreads(); });
}

// z where it has few tiles: the blocks of a cluster share K (hopper/matmul_split.cuh).
template <typename T, typename F, bool NK, int BM, int BN, int STAGES, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    linear_split(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ b, T* __restrict__ z,
                 T* __restrict__ y, long long M, long long K, long long N) {
    matmul_split<T, NK, BM, BN, STAGES, SPLIT>(x, W, z, M, K, N, F(b, z, y));
}

// dx where it has few tiles.
template <typename T, typename F, bool NK, int BM, int BN, int STAGES, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    inputs_split(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ n,
                 const float* __restrict__ rstd, const float2* __restrict__ sums, const float* __restrict__ column_parts,
                 T* __restrict__ db, T* __restrict__ y, long long M, long long K, long long N, long long across, long long down) {
    sum_bias(column_parts, db, K, down);
    matmul_split<T, NK, BM, BN, STAGES, SPLIT>(x, W, y, M, K, N, F(n, rstd, sums, N, pitch_of<T>(N), across));
}

// Both of few rows.
template <typename T, typename F, bool NK, int BM, int BN, int STAGES, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    gradients_beside(const __grid_constant__ TensorMap dz_rows, const __grid_constant__ TensorMap W, const __grid_constant__ TensorMap left,
                     const __grid_constant__ TensorMap right, const T* __restrict__ n, const float* __restrict__ rstd,
                     const float2* __restrict__ row_parts, const float* __restrict__ column_parts, T* __restrict__ db, T* __restrict__ dx,
                     T* __restrict__ dW, long long M, long long K, long long N, long long pitch, long long across, long long down) {
    gradients_beside_each_other<T, NK, BM, BN, STAGES, SPLIT>(dz_rows, W, left, right, dx, dW, M, K, N, NK ? K : N, NK ? N : K,
                                                              F(n, rstd, row_parts, K, pitch, across), ColumnParts<T>{column_parts, db, N, down});
}

// Both, with K the columns of x, N those of dz; n has rows of `pitch` elements.
template <typename T, typename F, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    gradients_together(const __grid_constant__ TensorMap dz_rows, const __grid_constant__ TensorMap W, const __grid_constant__ TensorMap left,
                       const __grid_constant__ TensorMap right, const T* __restrict__ n, const float* __restrict__ rstd,
                       const float2* __restrict__ row_parts, const float* __restrict__ column_parts, T* __restrict__ db,
                       T* __restrict__ dx, T* __restrict__ dW, float4* sums, int* flags, long long M, long long K, long long N,
                       long long pitch, long long across, long long down, long long whole_dx, long long whole_dW, long long snap) {
    linear_gradients<T, NK, BM, BN, STAGES, CLUSTER>(dz_rows, W, left, right, dx, dW, M, K, N, NK ? K : N, NK ? N : K,
                                                     F(n, rstd, row_parts, K, pitch, across), ColumnParts<T>{column_parts, db, N, down},
                                                     gradient_schedule(sums, flags, whole_dx, whole_dW, snap));
}
#endif
