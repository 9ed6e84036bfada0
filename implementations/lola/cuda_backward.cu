// lola's backward modes. Forward leaves n = LN(x), 1 / deviations, z = n @ W + b and the column sums of W behind:
//
//   statistics     a block has a row of x, n of it in the storage dtype; or some columns of W, their float32 sums, by clusters where there are any.
//   linear_…       a tile of z, and y of it as it is stored (layer_backward.cuh).
//   summed_turned  the same, with the column sums among its products, so that W is read once; `statistics` has the rows alone then
//   kept_few_rows  of few rows of 16 bits all in one launch, z by the identity of lola's forward pass (_counting.cuh).
//
// Where products are by Hopper's warpgroups, n is left in rows of whole lines of L2, and of W a copy, where its own are no whole vectors; of few
// rows of 16 bits and in IEEE float32 both have whole vectors.
//
// Backward:
//
//   pull_back    some rows and columns of dz = dy * act'(z), their sums for db, and parts of both sums of LayerNorm's gradient, without a
//                pass over dn = dz @ Wᵀ: sum of dn = dz . colsum(W), and sum of dn * n = dz . (z - b).
//   gradients_…, or turned_operands, inputs_… and weights_…       dx = (dn - sum of dn / K - n * sum of dn * n / K) / deviation, dW and db (layer_backward.cuh).
#include "_counting.cuh"
#include "_shared/cuda/hopper/matmul_turned.cuh"
#include "_shared/cuda/layer_backward.cuh"

// The sum over a warp, or where WARPS is 8 over a block of so many, in all of its threads; `parts` has 8 floats, and is used once.
template <int WARPS>
__device__ __forceinline__ float sum_of_threads(float v, float* parts) {
    v = lane_sum<32>(v);
    if (WARPS == 1) return v;
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < 8; ++w) total += parts[w];
    return total;
}

// ---- forward ------------------------------------------------------------------------------------------------------------

// By WARPS warps, the row of x that begins at `x`: n to rows of `pitch` elements, K or whole vectors, with zeros behind K; and 1 / its deviation.
template <typename T, bool ALIGNED, int WARPS>
__device__ __forceinline__ void normalise(const T* x, T* n, float* rstd, long long K, long long pitch) {
    constexpr int SIZE = Vector<T>::SIZE, STEP = WARPS * 32 * SIZE;
    __shared__ float parts[2][8];
    int thread = threadIdx.x % (WARPS * 32);
    auto count = [&](long long k) { return static_cast<int>(min(K - k, static_cast<long long>(SIZE))); };
    float total = 0.0f, squares = 0.0f;
#pragma unroll 4
    for (long long k = thread * SIZE; k < K; k += STEP) {
        auto v = load_part<ALIGNED>(x + k, count(k));  // 0 behind the row
#pragma unroll
        for (int e = 0; e < SIZE; ++e) total += element(v, e);
    }
    float mean = sum_of_threads<WARPS>(total, parts[0]) / K;
#pragma unroll 4
    for (long long k = thread * SIZE; k < K; k += STEP) {
        auto v = load_part<ALIGNED>(x + k, count(k));
#pragma unroll
        for (int e = 0; e < SIZE; ++e) {
            float d = e < count(k) ? element(v, e) - mean : 0.0f;
            squares = fmaf(d, d, squares);
        }
    }
    float scale = 1.0f / sqrtf(sum_of_threads<WARPS>(squares, parts[1]) / K + 1e-5f);
#pragma unroll 4
    for (long long k = thread * SIZE; k < pitch; k += STEP) {
        auto v = load_part<ALIGNED>(x + k, count(k));
#pragma unroll
        for (int e = 0; e < SIZE; ++e) v.at[e] = e < count(k) ? from_float<T>((element(v, e) - mean) * scale) : T{};
        if (ALIGNED || pitch != K) store_part<true>(n + k, v, SIZE);
        else store_part<false>(n + k, v, count(k));
    }
    if (thread == 0) *rstd = scale;
}

// A float to block `rank` of the cluster, where this one has `to` in its shared memory.
__device__ __forceinline__ void store_in_block(float* to, unsigned rank, float v) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address_in_block(shared_address(to), rank)), "f"(v) : "memory");
}

// W (K, N), LANES vectors of columns, of which the SHARERS blocks of a cluster have some rows each; or (N, K) where NK, a column by a warp. Unless
// `whole` is null, it gets W in rows of `pitch` elements, whole lines of 128 bytes, with zeros behind its own.
template <typename T, bool ALIGNED, bool NK, int LANES, int SHARERS>
__device__ __forceinline__ void sum_columns(const T* W, float* sums, T* whole, long long K, long long N, long long pitch) {
    constexpr int SIZE = Vector<T>::SIZE, COLUMNS = LANES * SIZE, ROWS = 256 / LANES;
    constexpr int AT_ONCE = 8;  // vectors that a thread has on their way
    if constexpr (NK) {
        long long n = blockIdx.x * 8LL + threadIdx.x / 32;
        if (n >= N) return;
        float total = 0.0f;
        for (long long k = threadIdx.x % 32 * SIZE; k < (whole ? pitch : K); k += 32 * SIZE) {
            auto v = load_part<ALIGNED>(W + n * K + k, static_cast<int>(min(K - k, static_cast<long long>(SIZE))));
#pragma unroll
            for (int e = 0; e < SIZE; ++e) total += element(v, e);
            if (whole) store_part<true>(whole + n * pitch + k, v, SIZE);
        }
        total = lane_sum<32>(total);
        if (threadIdx.x % 32 == 0) sums[n] = total;
    } else {
        constexpr int OWN = COLUMNS / SHARERS;  // columns that a block of a cluster ends
        __shared__ float parts[8][COLUMNS], shared[SHARERS][OWN];  // of each warp, and of each block what it has of the own columns
        int lane = threadIdx.x % LANES, sharer = blockIdx.x % SHARERS;
        long long first_column = blockIdx.x / SHARERS * static_cast<long long>(COLUMNS), n = first_column + lane * SIZE;
        long long end = K * (sharer + 1) / SHARERS;
        int count = static_cast<int>(min(N - n, static_cast<long long>(SIZE)));
        if constexpr (SHARERS > 1) cluster_arrive();
        float total[SIZE] = {};
        for (long long first = K * sharer / SHARERS + threadIdx.x / LANES; first < end; first += AT_ONCE * ROWS) {
            Vector<T> v[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) v[i] = load_part<ALIGNED>(W + (first + i * ROWS) * N + n, first + i * ROWS < end ? count : 0);
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
#pragma unroll
                for (int e = 0; e < SIZE; ++e) total[e] += element(v[i], e);
                if (whole && first + i * ROWS < end)  // all of it has a lane
                    store_part<true>(whole + (first + i * ROWS) * pitch + n, v[i], static_cast<int>(pitch - n));
            }
        }
#pragma unroll
        for (int e = 0; e < SIZE; ++e) {
            float sum = lane_sum<32 / LANES, LANES>(total[e]);
            if (threadIdx.x % 32 < LANES) parts[threadIdx.x / 32][lane * SIZE + e] = sum;
        }
        if constexpr (SHARERS > 1) cluster_wait();  // all blocks have begun
        __syncthreads();
        int column = threadIdx.x;
        float sum = 0.0f;
        if (column < COLUMNS)
#pragma unroll
            for (int i = 0; i < 8; ++i) sum += parts[i][column];
        if constexpr (SHARERS > 1) {
            if (column < COLUMNS) store_in_block(&shared[sharer][column % OWN], column / OWN, sum);
            cluster_arrive(), cluster_wait();
            sum = 0.0f;
            if (column < OWN)
#pragma unroll
                for (int i = 0; i < SHARERS; ++i) sum += shared[i][column];
        }
        long long at = first_column + sharer * OWN + column;
        if (column < OWN && at < N) sums[at] = sum;
    }
}

// The first blocks, `across` of them, have columns, which take longer; the others have rows, each of WARPS warps.
template <typename T, bool X_ALIGNED, bool W_ALIGNED, bool NK, int LANES, int SHARERS, int WARPS>
__device__ __forceinline__ void sum_both(const T* x, const T* W, T* n, float* rstd, float* sums, T* whole, long long M, long long K, long long N,
                                         long long pitch_n, long long pitch_W, long long across) {
    wait_for_previous_launch();  // and the product may be made ready
    if (blockIdx.x < across) {
        sum_columns<T, W_ALIGNED, NK, LANES, SHARERS>(W, sums, whole, K, N, pitch_W);
    } else {
        long long m = (blockIdx.x - across) * (8 / WARPS) + threadIdx.x / (WARPS * 32);
        if (m < M) normalise<T, X_ALIGNED, WARPS>(x + m * K, n + m * pitch_n, rstd + m, K, pitch_n);
    }
}
template <typename T, bool X_ALIGNED, bool W_ALIGNED, bool NK, int LANES, int WARPS>
__global__ void __launch_bounds__(256)
    statistics(const T* __restrict__ x, const T* __restrict__ W, T* __restrict__ n, float* __restrict__ rstd, float* __restrict__ sums,
               T* __restrict__ whole, long long M, long long K, long long N, long long pitch_n, long long pitch_W, long long across) {
    sum_both<T, X_ALIGNED, W_ALIGNED, NK, LANES, 1, WARPS>(x, W, n, rstd, sums, whole, M, K, N, pitch_n, pitch_W, across);
}
#if __CUDA_ARCH__ >= 900
// The columns by clusters of SHARERS blocks; those of rows are clusters, too, of which nothing is shared.
template <typename T, bool X_ALIGNED, bool W_ALIGNED, int LANES, int SHARERS, int WARPS>
__global__ void __cluster_dims__(SHARERS, 1, 1) __launch_bounds__(256)
    statistics_shared(const T* __restrict__ x, const T* __restrict__ W, T* __restrict__ n, float* __restrict__ rstd, float* __restrict__ sums,
                      T* __restrict__ whole, long long M, long long K, long long N, long long pitch_n, long long pitch_W, long long across) {
    sum_both<T, X_ALIGNED, W_ALIGNED, false, LANES, SHARERS, WARPS>(x, W, n, rstd, sums, whole, M, K, N, pitch_n, pitch_W, across);
}
#endif

// z, and y of it as it is stored.
template <typename T, Activation ACT>
struct Activated : Biased<T> {
    const T* z;
    T* y;

    __device__ __forceinline__ Activated(const T* b, const T* z, T* y) : Biased<T>(b, z, y), z(z), y(y) {}
    static __device__ __forceinline__ T of(T z) { return from_float<T>(activate<ACT>(to_float(z))); }
    template <bool WHOLE>
    __device__ __forceinline__ void store(T* to, Vector<T> v, int count) const {
        store_part<WHOLE>(to, v, count);
#pragma unroll
        for (int e = 0; e < Vector<T>::SIZE; ++e) v.at[e] = of(v.at[e]);
        store_part<WHOLE>(y + (to - z), v, count);
    }
    __device__ __forceinline__ void store(Pair<T>* to, Pair<T> v) const {
        *to = v;
        *reinterpret_cast<Pair<T>*>(y + (reinterpret_cast<const T*>(to) - z)) = {of(v.at[0]), of(v.at[1])};
    }
    __device__ __forceinline__ void store(T* to, T v) const { *to = v, y[to - z] = of(v); }
};

// The same, and the sums of columns of W.
template <typename T, Activation ACT>
struct SummedActivated : Activated<T, ACT> {
    float* __restrict__ sums;

    __device__ __forceinline__ SummedActivated(const T* b, const T* z, T* y, float* sums) : Activated<T, ACT>(b, z, y), sums(sums) {}
    __device__ __forceinline__ void keep(long long n, float sum) const { sums[n] = sum; }
};

// The same of a sum of x @ W with the statistics of a tile, which are in shared memory once it is made.
template <typename T, Activation ACT>
struct NormedActivated : Activated<T, ACT> {
    struct Column {
        const float* sum;
        float bias;
    };
    const float *mean, *rstd, *column_sum;  // of row m and column n

    __device__ __forceinline__ NormedActivated(const T* b, const T* z, T* y, const float* mean, const float* rstd, const float* column_sum)
        : Activated<T, ACT>(b, z, y), mean(mean), rstd(rstd), column_sum(column_sum) {}
    __device__ __forceinline__ float2 row(long long m) const { return {mean[m], rstd[m]}; }
    __device__ __forceinline__ Column column(long long n) const { return {column_sum + n, to_float(this->b[n])}; }
    __device__ __forceinline__ float operator()(float2 row, Column column, const float (&v)[1]) const {
        return (v[0] - row.x * *column.sum) * row.y + column.bias;
    }
};

#if __CUDA_ARCH__ >= 900
template <typename T, Activation ACT, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BN * 2 + 128, 1)
    summed_turned(const __grid_constant__ TensorMap n, const __grid_constant__ TensorMap W, const T* __restrict__ b, T* __restrict__ z,
                  T* __restrict__ y, float* __restrict__ sums, long long M, long long K, long long N) {
    matmul_summed<T, NK, BM, BN, STAGES, CLUSTER>(n, W, z, M, K, N, SummedActivated<T, ACT>(b, z, y, sums));
}
#endif

// The blocks that have the same rows share the making of their n. Rows of x and W are whole vectors.
template <typename T, Activation ACT, bool SIMT, bool ALIGNED, bool NK, int BM, int BN, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32, 1)
    kept_few_rows(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b, T* __restrict__ z, T* __restrict__ y,
                  T* __restrict__ n, float* __restrict__ rstd, float* __restrict__ colsum, long long M, long long K, long long N) {
    static_assert(!SIMT && ALIGNED, "of 16 bits, whole vectors");
    constexpr int SIZE = Vector<T>::SIZE;
    extern __shared__ __align__(128) unsigned char memory[];  // slabs and sums of the warps, and the statistics behind them
    long long m0, n0;
    block_origin(M, N, BM, BN, m0, n0);
    using Tile = CountingWarp<T, NK, false, BM, BN, WARPS>;
    Tile tile(reinterpret_cast<float*>(memory + WARPS * few_rows::WARP_BYTES<Tile, BM, BN, STAGES>), K);
    NormedActivated<T, ACT> f(b, z, y, tile.row_mean - m0, tile.row_rstd - m0, tile.column_sum - n0);
    matmul_few_rows<WARPS, STAGES, ALIGNED, NK, BM, BN, 1>(tile, x, W, z, M, K, N, f, [&] { tile.begin(x, m0, M); }, [&] { tile.finish(); });
    int rows = static_cast<int>(min(M - m0, static_cast<long long>(BM))), vectors = static_cast<int>(K / SIZE);
    int across = static_cast<int>((N + BN - 1) / BN), own = static_cast<int>(n0 / BN);
    if (m0 == 0)
        for (int i = threadIdx.x; i < BN && n0 + i < N; i += WARPS * 32) colsum[n0 + i] = tile.column_sum[i];
    if (n0 == 0)
        for (int i = threadIdx.x; i < rows; i += WARPS * 32) rstd[m0 + i] = tile.row_rstd[i];
    for (int i = own * WARPS * 32 + threadIdx.x; i < rows * vectors; i += across * WARPS * 32) {
        int row = i / vectors;
        long long at = (m0 + row) * K + i % vectors * SIZE;
        auto v = load_part<true>(x + at, SIZE);
#pragma unroll
        for (int e = 0; e < SIZE; ++e) v.at[e] = from_float<T>((element(v, e) - tile.row_mean[row]) * tile.row_rstd[row]);
        store_part<true>(n + at, v, SIZE);
    }
}

// ---- backward -----------------------------------------------------------------------------------------------------------

// dz of z, and both sums of a row.
template <typename T, Activation ACT, bool ALIGNED>
struct Pulled : Pull {
    static constexpr bool COLUMN_SUMS = true, ROW_SUMS = true;
    static constexpr int SIZE = Vector<T>::SIZE;
    const T* __restrict__ b;
    const float* __restrict__ colsum;
    Vector<T> bias;
    float of_W[SIZE];

    __device__ __forceinline__ Pulled(const T* b, const float* colsum) : b(b), colsum(colsum) {}
    __device__ __forceinline__ void of_columns(long long n, int count) {
        bias = load_part<ALIGNED>(b + n, count);
#pragma unroll
        for (int e = 0; e < SIZE; ++e) of_W[e] = e < count ? colsum[n + e] : 0.0f;
    }
    __device__ __forceinline__ void operator()(const float (&z)[1], float dy, float (&dz)[1]) const { dz[0] = dy * slope_as<ACT, T>(z[0]); }
    __device__ __forceinline__ void add(float& level, float& along, int e, float dz, float z) const {
        level = fmaf(dz, of_W[e], level);
        along = fmaf(dz, z - element(bias, e), along);
    }
};

template <typename T, Activation ACT, bool ALIGNED>
__global__ void __launch_bounds__(256, 2)
    pull_back(const T* __restrict__ z, const T* __restrict__ b, const float* __restrict__ colsum, const T* __restrict__ dy,
              T* __restrict__ dz, float2* __restrict__ row_parts, T* __restrict__ db, float* __restrict__ column_parts,
              int* __restrict__ flags, long long M, long long N, long long pitch, long long each, long long flag_count) {
    wait_for_previous_launch();
    clear_flags(flags, flag_count);
    pull<T, ALIGNED, 1>(z, dy, dz, db, column_parts, row_parts, M, N, pitch, each, Pulled<T, ACT, ALIGNED>(b, colsum));
}

// dx of a sum of dz @ Wᵀ. K are its columns, `pitch` those of n; `parts` of the sums of a row.
template <typename T>
struct Denormed : GradientEpilogue {
    static constexpr bool BESIDE = true;
    struct Row {
        float scale, level, along;
        const T* n;  // where there is nobody to bring it in vectors
    };
    const T* __restrict__ n;
    const float* __restrict__ rstd;
    const float2* __restrict__ sums;
    long long pitch;
    float reciprocal;
    int parts;

    __device__ __forceinline__ Denormed(const T* n, const float* rstd, const float2* sums, long long K, long long pitch, long long parts)
        : n(n), rstd(rstd), sums(sums), pitch(pitch), reciprocal(1.0f / K), parts(static_cast<int>(parts)) {}
    __device__ __forceinline__ float4 of_row(long long m) const {
        float2 sum = row_sums(sums, m, parts);
        return make_float4(rstd[m], sum.x * reciprocal, sum.y * reciprocal, 0.0f);
    }
    __device__ __forceinline__ Row row(float4 of_row, const T* n = nullptr) const { return {of_row.x, of_row.y, of_row.z, n}; }
    __device__ __forceinline__ Row row(long long m) const { return row(of_row(m), n + m * pitch); }
    __device__ __forceinline__ int column(long long k) const { return static_cast<int>(k); }
    __device__ __forceinline__ const T* beside(long long m, long long k) const { return n + m * pitch + k; }
    __device__ __forceinline__ float operator()(const Row& row, ElementBeside n, const float (&v)[1]) const {
        return row.scale * (v[0] - row.level - n.v * row.along);
    }
    __device__ __forceinline__ float operator()(const Row& row, int k, const float (&v)[1]) const { return (*this)(row, ElementBeside{to_float(row.n[k])}, v); }
};
