// lola's backward modes. Forward leaves n = LN(x), 1 / deviations, z = n @ W + b and the column sums of W behind:
//
//   normalise    a block has a row: n in the storage dtype.
//   column_sums  float32 sums of W.
//   linear_…     a tile of z (layer_backward.cuh).
//   activated    y = act(z), as z is stored.
//
// Where products are by Hopper's warpgroups, n is left in rows of whole lines of L2, and of W a copy, where its own are no whole vectors; of few
// rows of 16 bits and in IEEE float32 both have whole vectors.
//
// Backward:
//
//   pull_back    some rows and columns of dz = dy * act'(z), their sums for db, and parts of both sums of LayerNorm's gradient, without a
//                pass over dn = dz @ Wᵀ: sum of dn = dz . colsum(W), and sum of dn * n = dz . (z - b).
//   gradients_…, or inputs_… and weights_…       dx = (dn - sum of dn / K - n * sum of dn * n / K) / deviation, dW and db (layer_backward.cuh).
#include "_shared/cuda/layer_backward.cuh"

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

// n has rows of `pitch` elements, K or whole vectors, with zeros behind K.
template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(256)
    normalise(const T* __restrict__ x, T* __restrict__ n, float* __restrict__ rstd, long long K, long long pitch) {
    wait_for_previous_launch();
    constexpr int SIZE = Vector<T>::SIZE;
    __shared__ float parts[2][8];
    x += blockIdx.x * K;
    n += blockIdx.x * pitch;
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
    for (long long k = threadIdx.x * SIZE; k < pitch; k += 256 * SIZE) {
        auto v = load_part<ALIGNED>(x + k, count(k));
#pragma unroll
        for (int e = 0; e < SIZE; ++e) v.at[e] = e < count(k) ? from_float<T>((element(v, e) - mean) * scale) : T{};
        if (ALIGNED || pitch != K) store_part<true>(n + k, v, SIZE);
        else store_part<false>(n + k, v, count(k));
    }
    if (threadIdx.x == 0) rstd[blockIdx.x] = scale;
}

// W (K, N), by a block 8 vectors of columns; or (N, K) where NK, by a warp a column. Unless `whole` is null, it gets W in rows of `pitch`
// elements, whole lines of 128 bytes, with zeros behind its own.
template <typename T, bool ALIGNED, bool NK>
__global__ void __launch_bounds__(256)
    column_sums(const T* __restrict__ W, float* __restrict__ sums, T* __restrict__ whole, long long K, long long N, long long pitch) {
    wait_for_previous_launch();
    constexpr int SIZE = Vector<T>::SIZE, COLUMNS = 8 * SIZE;
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
        __shared__ float parts[32][COLUMNS + 1];
        int lane = threadIdx.x % 8, row0 = threadIdx.x / 8;
        long long n = blockIdx.x * static_cast<long long>(COLUMNS) + lane * SIZE;
        int count = static_cast<int>(min(N - n, static_cast<long long>(SIZE)));
        float total[SIZE] = {};
#pragma unroll 4
        for (long long row = row0; row < K; row += 32) {
            auto v = load_part<ALIGNED>(W + row * N + n, count);
#pragma unroll
            for (int e = 0; e < SIZE; ++e) total[e] += element(v, e);
            if (whole) store_part<true>(whole + row * pitch + n, v, static_cast<int>(pitch - n));  // all of it has a lane
        }
#pragma unroll
        for (int e = 0; e < SIZE; ++e) parts[row0][lane * SIZE + e] = total[e];
        __syncthreads();
        long long own = blockIdx.x * static_cast<long long>(COLUMNS) + threadIdx.x;
        if (threadIdx.x >= COLUMNS || own >= N) return;
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 32; ++i) sum += parts[i][threadIdx.x];
        sums[own] = sum;
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
    __device__ __forceinline__ void operator()(const float (&z)[1], float dy, float (&dz)[1]) const { dz[0] = dy * slope<ACT>(z[0]); }
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
    static constexpr bool ROWS = true;
    struct Row {
        const T* n;
        float scale, level, along;
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
    __device__ __forceinline__ Row row(long long m, float4 of_row) const { return {n + m * pitch, of_row.x, of_row.y, of_row.z}; }
    __device__ __forceinline__ Row row(long long m) const { return row(m, of_row(m)); }
    __device__ __forceinline__ int column(long long k) const { return static_cast<int>(k); }
    __device__ __forceinline__ float operator()(const Row& row, int k, const float (&v)[1]) const {
        return row.scale * (v[0] - row.level - to_float(row.n[k]) * row.along);
    }
};
