// lola's backward modes. Forward leaves n = LN(x), 1 / deviations, z = n @ W + b and the column sums of W behind:
//
//   normalise    a block has a row: n in the storage dtype.
//   column_sums  float32 sums of W.
//   linear_…     a tile of z (the kinds of tiles are those of cuda.cu).
//   activated    y = act(z), as z is stored.
//
// Backward, three launches:
//
//   pull_back    a block has a row: dz = dy * act'(z), and both sums of LayerNorm's gradient without a pass over dn = dz @ Wᵀ:
//                sum of dn = dz . colsum(W), and sum of dn * n = dz . (z - b). Blocks behind them have columns instead, and sum
//                dz up to db.
//   inputs_…     a tile of dx = (dn - sum of dn / K - n * sum of dn * n / K) / deviation.
//   weights_…    a tile of dW = nᵀ @ dz, or of its transpose where W is stored (N, K).
#include "_shared/cuda/hopper/weights.cuh"
#include "_shared/cuda/matmul_simt.cuh"

// The sum over a block of 256 threads, in all of them; `parts` has 8 floats, and is used once.
__device__ __forceinline__ float block_sum(float v, float* parts) {
    v = lane_sum<32>(v);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < 8; ++w) total += parts[w];
    return total;
}

// ---- forward ------------------------------------------------------------------------------------------------------------

template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(256)
    normalise(const T* __restrict__ x, T* __restrict__ n, float* __restrict__ rstd, long long K) {
    wait_for_previous_launch();
    constexpr int SIZE = Vector<T>::SIZE;
    __shared__ float parts[2][8];
    x += blockIdx.x * K;
    n += blockIdx.x * K;
    auto count = [&](long long k) { return static_cast<int>(min(K - k, static_cast<long long>(SIZE))); };
    float total = 0.0f, squares = 0.0f;
    for (long long k = threadIdx.x * SIZE; k < K; k += 256 * SIZE) {
        auto v = load_part<ALIGNED>(x + k, count(k));  // 0 behind the row
#pragma unroll
        for (int e = 0; e < SIZE; ++e) total += element(v, e);
    }
    float mean = block_sum(total, parts[0]) / K;
    for (long long k = threadIdx.x * SIZE; k < K; k += 256 * SIZE) {
        auto v = load_part<ALIGNED>(x + k, count(k));
#pragma unroll
        for (int e = 0; e < SIZE; ++e) {
            float d = e < count(k) ? element(v, e) - mean : 0.0f;
            squares = fmaf(d, d, squares);
        }
    }
    float scale = 1.0f / sqrtf(block_sum(squares, parts[1]) / K + 1e-5f);
    for (long long k = threadIdx.x * SIZE; k < K; k += 256 * SIZE) {
        auto v = load_part<ALIGNED>(x + k, count(k));
#pragma unroll
        for (int e = 0; e < SIZE; ++e) v.at[e] = from_float<T>((element(v, e) - mean) * scale);
        store_part<ALIGNED>(n + k, v, count(k));
    }
    if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
}

// sums[n] of the float32 sum over `rows` of what `of(row, n0)` gives of 8 vectors' columns, by a block; `block` counts these.
template <typename T, typename Out, typename F>
__device__ __forceinline__ void sum_columns(Out* sums, long long rows, long long N, unsigned block, F of) {
    constexpr int SIZE = Vector<T>::SIZE, COLUMNS = 8 * SIZE;
    __shared__ float parts[32][COLUMNS + 1];
    int lane = threadIdx.x % 8, row0 = threadIdx.x / 8;
    long long n = static_cast<long long>(block) * COLUMNS + lane * SIZE;
    float total[SIZE] = {};
#pragma unroll 4
    for (long long row = row0; row < rows; row += 32) {
        Vector<float> v[SIZE / 4];
        of(v, row, n);
#pragma unroll
        for (int e = 0; e < SIZE; ++e) total[e] += v[e / 4].at[e % 4];
    }
#pragma unroll
    for (int e = 0; e < SIZE; ++e) parts[row0][lane * SIZE + e] = total[e];
    __syncthreads();
    long long own = static_cast<long long>(block) * COLUMNS + threadIdx.x;
    if (threadIdx.x >= COLUMNS || own >= N) return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 32; ++i) sum += parts[i][threadIdx.x];
    sums[own] = from_float<Out>(sum);
}

// W (K, N), or (N, K) where NK: then a warp has a column.
template <typename T, bool ALIGNED, bool NK>
__global__ void __launch_bounds__(256)
    column_sums(const T* __restrict__ W, float* __restrict__ sums, long long K, long long N) {
    wait_for_previous_launch();
    constexpr int SIZE = Vector<T>::SIZE;
    if constexpr (NK) {
        long long n = blockIdx.x * 8LL + threadIdx.x / 32;
        if (n >= N) return;
        float total = 0.0f;
        for (long long k = threadIdx.x % 32 * SIZE; k < K; k += 32 * SIZE) {
            auto v = load_part<ALIGNED>(W + n * K + k, static_cast<int>(min(K - k, static_cast<long long>(SIZE))));
#pragma unroll
            for (int e = 0; e < SIZE; ++e) total += element(v, e);
        }
        total = lane_sum<32>(total);
        if (threadIdx.x % 32 == 0) sums[n] = total;
    } else {
        sum_columns<T>(sums, K, N, blockIdx.x, [&](Vector<float> (&v)[SIZE / 4], long long row, long long n) {
            auto w = load_part<ALIGNED>(W + row * N + n, static_cast<int>(min(N - n, static_cast<long long>(SIZE))));
#pragma unroll
            for (int e = 0; e < SIZE; ++e) v[e / 4].at[e % 4] = element(w, e);
        });
    }
}

// All of z, as one long array.
template <typename T, Activation ACT>
__global__ void __launch_bounds__(256) activated(const T* __restrict__ z, T* __restrict__ y, long long total) {
    wait_for_previous_launch();
    constexpr int SIZE = Vector<T>::SIZE;
    long long begin = (blockIdx.x * 256LL + threadIdx.x) * SIZE;
    if (begin >= total) return;
    int count = static_cast<int>(min(total - begin, static_cast<long long>(SIZE)));
    auto v = count == SIZE ? load_part<true>(z + begin, SIZE) : load_part<false>(z + begin, count);
#pragma unroll
    for (int e = 0; e < SIZE; ++e) v.at[e] = from_float<T>(activate<ACT>(element(v, e)));
    if (count == SIZE) store_part<true>(y + begin, v, SIZE);
    else store_part<false>(y + begin, v, count);
}

template <typename T>
struct Biased : Epilogue {
    const T* __restrict__ b;

    __device__ __forceinline__ explicit Biased(const T* b) : b(b) {}
    __device__ __forceinline__ float column(long long n) const { return to_float(b[n]); }
    __device__ __forceinline__ float operator()(None, float column, const float (&v)[1]) const { return v[0] + column; }
};

// ---- backward -----------------------------------------------------------------------------------------------------------

// sums (M, 2); the grid has M blocks and one for each 8 vectors of columns.
template <typename T, Activation ACT, bool ALIGNED>
__global__ void __launch_bounds__(256, 2)
    pull_back(const T* __restrict__ z, const T* __restrict__ b, const float* __restrict__ colsum, const T* __restrict__ dy,
              T* __restrict__ dz, float* __restrict__ sums, T* __restrict__ db, long long M, long long N) {
    wait_for_previous_launch();
    constexpr int SIZE = Vector<T>::SIZE;
    __shared__ float parts[2][8];
    auto count = [&](long long n) { return static_cast<int>(min(N - n, static_cast<long long>(SIZE))); };
    auto pulled = [&](long long row, long long n) {
        auto before = load_part<ALIGNED>(z + row * N + n, count(n)), behind = load_part<ALIGNED>(dy + row * N + n, count(n));
#pragma unroll
        for (int e = 0; e < SIZE; ++e) behind.at[e] = from_float<T>(element(behind, e) * slope<ACT>(element(before, e)));
        return behind;
    };
    if (blockIdx.x >= M) {
        sum_columns<T>(db, M, N, static_cast<unsigned>(blockIdx.x - M),
                       [&](Vector<float> (&v)[SIZE / 4], long long row, long long n) {
                           auto own = pulled(row, n);
#pragma unroll
                           for (int e = 0; e < SIZE; ++e) v[e / 4].at[e % 4] = element(own, e);
                       });
        return;
    }
    float total = 0.0f, along = 0.0f;
    for (long long n = threadIdx.x * SIZE; n < N; n += 256 * SIZE) {
        auto own = pulled(blockIdx.x, n), before = load_part<ALIGNED>(z + blockIdx.x * N + n, count(n));
        auto bias = load_part<ALIGNED>(b + n, count(n));
        store_part<ALIGNED>(dz + blockIdx.x * N + n, own, count(n));
#pragma unroll
        for (int e = 0; e < SIZE; ++e) {
            total = fmaf(element(own, e), colsum[min(n + e, N - 1)], total);  // own is 0 behind the row
            along = fmaf(element(own, e), element(before, e) - element(bias, e), along);
        }
    }
    total = block_sum(total, parts[0]);
    along = block_sum(along, parts[1]);
    if (threadIdx.x == 0) sums[2 * blockIdx.x] = total, sums[2 * blockIdx.x + 1] = along;
}

// dx of a sum of dz @ Wᵀ. K are its columns.
template <typename T>
struct Denormed : Epilogue {
    struct Row {
        const T* n;
        float scale, level, along;
    };
    const T* __restrict__ n;
    const float *__restrict__ rstd, *__restrict__ sums;
    long long K;

    __device__ __forceinline__ Denormed(const T* n, const float* rstd, const float* sums, long long K)
        : n(n), rstd(rstd), sums(sums), K(K) {}
    __device__ __forceinline__ Row row(long long m) const { return {n + m * K, rstd[m], sums[2 * m] / K, sums[2 * m + 1] / K}; }
    __device__ __forceinline__ int column(long long k) const { return static_cast<int>(k); }
    __device__ __forceinline__ float operator()(const Row& row, int k, const float (&v)[1]) const {
        return row.scale * (v[0] - row.level - to_float(row.n[k]) * row.along);
    }
};

// ---- products -----------------------------------------------------------------------------------------------------------
// In each x (M, K) and W (K, N) are the two operands, whatever they are, and y (M, N) the result.

template <bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN>)
    linear_simt(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ b, float* __restrict__ y,
                long long M, long long K, long long N) {
    matmul_simt<ALIGNED, NK, BM, BN, 1>(x, W, y, M, K, N, Biased<float>(b));
}
template <bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN>)
    inputs_simt(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ n,
                const float* __restrict__ rstd, const float* __restrict__ sums, float* __restrict__ y, long long M, long long K,
                long long N) {
    matmul_simt<ALIGNED, NK, BM, BN, 1>(x, W, y, M, K, N, Denormed<float>(n, rstd, sums, N));
}
template <bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN>)
    weights_simt(const float* __restrict__ x, const float* __restrict__ W, float* __restrict__ y, long long M, long long K,
                 long long N) {
    matmul_simt<ALIGNED, NK, BM, BN, 1, true>(x, W, y, M, K, N, Stored{});
}

template <typename T, bool ALIGNED, bool NK, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    linear_tensor(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b, T* __restrict__ y, long long M,
                  long long K, long long N) {
    matmul_mma<T, ALIGNED, NK, BM, BN, WM, WN, STAGES, 1>(x, W, y, M, K, N, Biased<T>(b));
}
template <typename T, bool ALIGNED, bool NK, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    inputs_tensor(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ n, const float* __restrict__ rstd,
                  const float* __restrict__ sums, T* __restrict__ y, long long M, long long K, long long N) {
    matmul_mma<T, ALIGNED, NK, BM, BN, WM, WN, STAGES, 1>(x, W, y, M, K, N, Denormed<T>(n, rstd, sums, N));
}
template <typename T, bool ALIGNED, bool NK, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    weights_tensor(const T* __restrict__ x, const T* __restrict__ W, T* __restrict__ y, long long M, long long K, long long N) {
    matmul_mma<T, ALIGNED, NK, BM, BN, WM, WN, STAGES, 1, true>(x, W, y, M, K, N, Stored{});
}

#if __CUDA_ARCH__ >= 900
template <typename T, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    linear_warpgroup(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ b,
                     T* __restrict__ y, long long M, long long K, long long N) {
    matmul_wgmma<T, NK, BM, BN, STAGES, CLUSTER, 1>(x, W, y, M, K, N, Biased<T>(b));
}
template <typename T, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    inputs_warpgroup(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ n,
                     const float* __restrict__ rstd, const float* __restrict__ sums, T* __restrict__ y, long long M, long long K,
                     long long N) {
    matmul_wgmma<T, NK, BM, BN, STAGES, CLUSTER, 1>(x, W, y, M, K, N, Denormed<T>(n, rstd, sums, N));
}
#endif
