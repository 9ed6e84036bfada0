// lola: y = act((x @ W - mean * colsum(W)) / sqrt(var + eps) + b), one launch but for the last.
//
//   row_kn, row_ring, row_nk             one row (M = 1): _row.cuh.
//   tile_simt        a tile of y per block on the float32 units (precision "ieee").
//   tile_tensor      a tile of y per block on the tensor cores: float16, bfloat16, and float32 as tf32.
//   tile_few_rows    the same of few rows: the warps of a block share K.
//   tile_warpgroup, counted_warpgroup    the same on Hopper's warpgroup products: float16 and bfloat16; float32 as tf32 where W is (N, K).
//   row_statistics, normed_warpgroup     two launches: the statistics of rows, and a product that is given them (_sums.cuh), whose blocks
//                                        share K where y has few tiles (normed_split), or make tiles of any multiple of 16 rows
//                                        (normed_turned). Of float32, also on its units (normed_simt, normed_few_rows), rows are shifted already.
//
// Where the statistics come from. In one launch nobody reads x or W a second time:
//   - `row` and `tile_simt` pass every element through registers anyway; they add it up there. `row_ring` adds x up first, while W comes.
//   - `tile_tensor` copies asynchronously, past the registers. Its warps add up the fragments that they load for the
//     products: the warps that share rows of x (or columns of W) take every so-many-th step of K each, so no element is
//     added twice and none is read from shared memory for its sum alone.
//   - `tile_warpgroup` has tensor cores that read shared memory by themselves. The producer, which has nothing else to do, adds up
//     what is there, a row a thread; but each tile of a row does so again, which `row_statistics` spares the tensor cores' memory.
//     Rows of float32 pass through the consumers' registers, where they are shifted and rounded, and added up: `counted_warpgroup`, which
//     may do so with 16 bits, and spares the tensor cores' memory as well.
//   With PREPARED, colsum(W) was summed beforehand; only the sums over x remain.
//
// Accuracy. Each row is shifted by s, the mean of its first elements, so that sum (x-s)^2 / K - (sum (x-s) / K)^2 does
// not cancel where |mean| is large against the deviation. float32 and tf32 multiply x - s as well, and correct by (mean
// - s) * colsum(W). 16-bit elements go to the tensor cores as they are, since x - s would have to be rounded again;
// there the correction is mean * colsum(W), with sums in float32. A NaN that rounding to tf32 loses comes back with the
// sums.
//
// Sizes are arbitrary: what an edge tile has outside of x or W is filled with zeros and never stored. ALIGNED promises
// that K and N are multiples of a 16-byte vector; without it, elements are loaded one by one.
#include "_counting.cuh"
#include "_row.cuh"
#include "_sums.cuh"
#include "_shared/cuda/hopper/matmul_split.cuh"
#include "_shared/cuda/hopper/matmul_turned.cuh"
#include "_shared/cuda/matmul_simt.cuh"

// ---- a tile of rows -----------------------------------------------------------------------------------------------------

// y of a sum of x @ W, or of (x - s) @ W with the mean of x - s.
template <typename T, Activation ACT>
struct Normed : Epilogue {
    using Element = T;
    const T* __restrict__ b;
    const float *mean, *rstd, *column_sum;  // of row m and column n

    __device__ __forceinline__ Normed(const T* b, const float* mean, const float* rstd, const float* column_sum)
        : b(b), mean(mean), rstd(rstd), column_sum(column_sum) {}
    __device__ __forceinline__ float2 row(long long m) const { return {mean[m], rstd[m]}; }
    __device__ __forceinline__ float2 column(long long n) const { return {column_sum[n], to_float(b[n])}; }
    __device__ __forceinline__ float operator()(float2 row, float2 column, const float (&v)[1]) const {
        return activate_as<ACT, T>((v[0] - row.x * column.x) * row.y + column.y);
    }
};

// ---- float32 units ------------------------------------------------------------------------------------------------------

// Shifts x, and sums it and W up, on their way to shared memory: SHARERS neighbouring lanes bring what a slab has of a row of K.
// Where SPLIT blocks share K, the sums of a block come first in its arrays, and behind them what all have, as others read the first.
template <Activation ACT, bool ALIGNED, bool NK, bool PREPARED, int BM, int BN, int SPLIT = 1>
struct Counted : Normed<float, ACT> {
    static constexpr bool FILLED = false;  // it counts elements by whole vectors
    static constexpr int THREADS = SIMT_THREADS<BM, BN>, SHARERS = SIMT_DEPTH<BM, BN> / 4, QUADS = THREADS / SHARERS;
    static constexpr int X_LOADS = (BM + QUADS - 1) / QUADS, W_LOADS = BN / QUADS;
    static constexpr int GROUPS = NK ? 1 : THREADS / (BN / 4);  // of threads that sum up the same columns
    static constexpr int ROWS_AT = SPLIT > 1 ? BM : 0, COLUMNS_AT = SPLIT > 1 ? GROUPS * BN : 0;  // what the epilogue reads
    static constexpr int ROW_FLOATS = ROWS_AT + BM, COLUMN_FLOATS = PREPARED ? 1 : COLUMNS_AT + (SPLIT > 1 ? 1 : GROUPS) * BN;
    long long K;
    float *means, *rstds, *column_sums;  // in shared memory: ROW_FLOATS, ROW_FLOATS, COLUMN_FLOATS
    float shift[X_LOADS], sum[X_LOADS] = {}, sum2[X_LOADS] = {}, colsum[NK ? W_LOADS : 4] = {};

    __device__ __forceinline__ Counted(const float* b, const float* prepared, float* means, float* rstds, float* sums,
                                       long long K, long long m0, long long n0)
        : Normed<float, ACT>(b, means + ROWS_AT - m0, rstds + ROWS_AT - m0, PREPARED ? prepared : sums + COLUMNS_AT - n0), K(K), means(means),
          rstds(rstds), column_sums(sums) {}
    __device__ __forceinline__ void begin(const Vector<float> (&v)[X_LOADS]) {
#pragma unroll
        for (int i = 0; i < X_LOADS; ++i)  // elements past the end of a short row were loaded as 0
            shift[i] = lane_sum<SHARERS>(v[i].at[0] + v[i].at[1] + v[i].at[2] + v[i].at[3]) /
                       static_cast<float>(min(K, 4LL * SHARERS));
    }
    __device__ __forceinline__ void x(int i, Vector<float>& v, int left) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            float d = (ALIGNED ? 0 : j) < left ? v.at[j] - shift[i] : 0.0f;
            sum[i] += d;
            sum2[i] = fmaf(d, d, sum2[i]);
            v.at[j] = d;
        }
    }
    __device__ __forceinline__ void W(int i, const Vector<float>& v) {
#pragma unroll
        for (int j = 0; j < 4 && !PREPARED; ++j) colsum[NK ? i : j] += v.at[j];
    }
    // A row's mean and 1 / deviation, of its sum and that of squares.
    __device__ __forceinline__ void set_row(int row, float total, float total2) {
        float mean = total / K;
        means[ROWS_AT + row] = mean, rstds[ROWS_AT + row] = inverse_deviation(mean, total2 / K);
    }
    __device__ __forceinline__ void end() {
        int quad = threadIdx.x / SHARERS, column = threadIdx.x % (BN / 4) * 4, group = threadIdx.x / (BN / 4);
        bool first = threadIdx.x % SHARERS == 0, has_row = first && (QUADS <= BM || quad < BM);
#pragma unroll
        for (int i = 0; i < X_LOADS; ++i) {
            float total = lane_sum<SHARERS>(sum[i]), total2 = lane_sum<SHARERS>(sum2[i]);
            if (has_row && SPLIT > 1) means[quad + i * QUADS] = total, rstds[quad + i * QUADS] = total2;
            else if (has_row) set_row(quad + i * QUADS, total, total2);
        }
        if constexpr (!PREPARED && NK) {
#pragma unroll
            for (int i = 0; i < W_LOADS; ++i) {
                float total = lane_sum<SHARERS>(colsum[i]);
                if (first) column_sums[quad + i * QUADS] = total;
            }
        } else if constexpr (!PREPARED) {
#pragma unroll
            for (int j = 0; j < 4; ++j) column_sums[group * BN + column + j] = colsum[j];
        }
        __syncthreads();
        if constexpr (!PREPARED && !NK) {
            for (int n = threadIdx.x; n < BN; n += THREADS)
#pragma unroll
                for (int g = 1; g < GROUPS; ++g) column_sums[n] += column_sums[g * BN + n];
            __syncthreads();
        }
    }
    template <int BLOCKS>
    __device__ __forceinline__ void merge() {
        auto of_all = [](const float* sum) {
            float total = 0.0f;
#pragma unroll
            for (int block = 0; block < BLOCKS; ++block) total += load_in_block(sum, block);
            return total;
        };
        for (int row = threadIdx.x; row < BM; row += THREADS) set_row(row, of_all(means + row), of_all(rstds + row));
        for (int n = threadIdx.x; n < BN && !PREPARED; n += THREADS) column_sums[COLUMNS_AT + n] = of_all(column_sums + n);
    }
};

template <Activation ACT, bool PREPARED, bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    tile_simt(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ b,
              const float* __restrict__ prepared, float* __restrict__ y, long long M, long long K, long long N) {
    using F = Counted<ACT, ALIGNED, NK, PREPARED, BM, BN>;
    __shared__ float means[F::ROW_FLOATS], rstds[F::ROW_FLOATS], column_sums[F::COLUMN_FLOATS];
    long long m0, n0;
    block_origin(M, N, BM, BN, m0, n0);
    matmul_simt<ALIGNED, NK, BM, BN, 1>(x, W, y, M, K, N, F(b, prepared, means, rstds, column_sums, K, m0, n0));
}

// What matmul_simt_strips makes of tiles and of strips, in arrays that have room for either.
template <Activation ACT, bool ALIGNED, bool NK, bool PREPARED>
struct CountedTiles {
    const float *b, *prepared;
    float *means, *rstds, *column_sums;
    long long K;

    template <int BM, int BN>
    __device__ __forceinline__ auto at(long long m0, long long n0) const {
        return Counted<ACT, ALIGNED, NK, PREPARED, BM, BN>(b, prepared, means, rstds, column_sums, K, m0, n0);
    }
};

// A product of rows that are shifted, whose statistics are given.
template <Activation ACT, bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    normed_simt(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ b, const float* __restrict__ mean,
                const float* __restrict__ rstd, const float* __restrict__ prepared, float* __restrict__ y, long long M, long long K,
                long long N) {
    matmul_simt<ALIGNED, NK, BM, BN, 1>(x, W, y, M, K, N, Normed<float, ACT>(b, mean, rstd, prepared));
}

// The same with strips below whole tiles.
template <Activation ACT, bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    normed_simt_strips(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ b,
                       const float* __restrict__ mean, const float* __restrict__ rstd, const float* __restrict__ prepared,
                       float* __restrict__ y, long long M, long long K, long long N) {
    Normed<float, ACT> f(b, mean, rstd, prepared);
    matmul_simt_strips<ALIGNED, NK, BM, BN, 1>(x, W, y, M, K, N, Anywhere<Normed<float, ACT>>{f});
}
template <Activation ACT, bool PREPARED, bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    tile_simt_strips(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ b,
                     const float* __restrict__ prepared, float* __restrict__ y, long long M, long long K, long long N) {
    __shared__ float means[BM], rstds[BM], column_sums[PREPARED ? 1 : 4 * BN];
    CountedTiles<ACT, ALIGNED, NK, PREPARED> tiles{b, prepared, means, rstds, column_sums, K};
    matmul_simt_strips<ALIGNED, NK, BM, BN, 1>(x, W, y, M, K, N, tiles);
}

#if __CUDA_ARCH__ >= 900
// Both by the blocks of a cluster, which share the K of a tile.
template <Activation ACT, bool ALIGNED, bool NK, int BM, int BN, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    normed_simt_split(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ b,
                      const float* __restrict__ mean, const float* __restrict__ rstd, const float* __restrict__ prepared,
                      float* __restrict__ y, long long M, long long K, long long N) {
    matmul_simt<ALIGNED, NK, BM, BN, 1, false, SPLIT>(x, W, y, M, K, N, Normed<float, ACT>(b, mean, rstd, prepared));
}
template <Activation ACT, bool PREPARED, bool ALIGNED, bool NK, int BM, int BN, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    tile_simt_split(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ b,
                    const float* __restrict__ prepared, float* __restrict__ y, long long M, long long K, long long N) {
    using F = Counted<ACT, ALIGNED, NK, PREPARED, BM, BN, SPLIT>;
    __shared__ float means[F::ROW_FLOATS], rstds[F::ROW_FLOATS], column_sums[F::COLUMN_FLOATS];
    long long m0, n0;
    tile_origin<16>(blockIdx.x / SPLIT, M, N, BM, BN, m0, n0);
    matmul_simt<ALIGNED, NK, BM, BN, 1, false, SPLIT>(x, W, y, M, K, N, F(b, prepared, means, rstds, column_sums, K, m0, n0));
}
#endif

// ---- tensor cores: _counting.cuh ----------------------------------------------------------------------------------------

// WM × WN warps, each with BM / WM × BN / WN of the tile; STAGES slabs of 128 bytes of K in flight.
template <typename T, Activation ACT, bool PREPARED, bool ALIGNED, bool NK, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    tile_tensor(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b,
                const float* __restrict__ prepared, T* __restrict__ y, long long M, long long K, long long N) {
    using Tile = CountingTile<T, NK, PREPARED, BM, BN, WM, WN>;
    constexpr int SLABS = STAGES * Tile::STAGE > Tile::OUT_BYTES ? STAGES * Tile::STAGE : Tile::OUT_BYTES;
    extern __shared__ __align__(1024) unsigned char memory[];  // SLABS, and the sums behind it
    long long m0, n0;
    block_origin(M, N, BM, BN, m0, n0);
    Tile tile(reinterpret_cast<float*>(memory + SLABS), K);
    RowLoader<T, ALIGNED, BM, Tile::THREADS> rows(x, m0, M, K);
    WeightLoader<NK, T, ALIGNED, BN, Tile::THREADS, 1> columns(W, n0, N, K);
    mainloop<STAGES>(tile, memory, rows, columns, static_cast<int>((K + SLAB<T> - 1) / SLAB<T>));
    tile.finish();
    const float* column_sum = PREPARED ? prepared : tile.column_sum - n0;
    tile.template epilogue<ALIGNED>(memory, y, M, N, m0, n0,
                                    Normed<T, ACT>(b, tile.row_mean - m0, tile.row_rstd - m0, column_sum));
}

// ---- few rows: _counting.cuh, matmul_few_rows.cuh -----------------------------------------------------------------------

// Of rows that are shifted, whose statistics are given.
template <typename T, Activation ACT, bool SIMT, bool ALIGNED, bool NK, int BM, int BN, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32, 1)
    normed_few_rows(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b, const float* __restrict__ mean,
                    const float* __restrict__ rstd, const float* __restrict__ prepared, T* __restrict__ y, long long M, long long K, long long N) {
    typename few_rows::WarpOf<SIMT, T, NK, BM, BN>::Type tile;
    Normed<T, ACT> f(b, mean, rstd, prepared);
    matmul_few_rows<WARPS, STAGES, ALIGNED, NK, BM, BN, 1>(tile, x, W, y, M, K, N, f, [] {}, [] { __syncthreads(); });
}

#if __CUDA_ARCH__ >= 900
// The same, whose K the blocks of a cluster share, too.
template <typename T, Activation ACT, bool SIMT, bool ALIGNED, bool NK, int BM, int BN, int WARPS, int STAGES, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(WARPS * 32, 1)
    normed_few_rows_split(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b, const float* __restrict__ mean,
                          const float* __restrict__ rstd, const float* __restrict__ prepared, T* __restrict__ y, long long M, long long K, long long N) {
    typename few_rows::WarpOf<SIMT, T, NK, BM, BN>::Type tile;
    Normed<T, ACT> f(b, mean, rstd, prepared);
    matmul_few_rows<WARPS, STAGES, ALIGNED, NK, BM, BN, 1, SPLIT>(tile, x, W, y, M, K, N, f, [] {}, [] { __syncthreads(); });
}
#endif

// Normed for column() before the product, unless PREPARED with sums of columns that are in shared memory only behind it.
template <typename T, Activation ACT, bool PREPARED>
struct EarlyNormed : Normed<T, ACT> {
    using Normed<T, ACT>::Normed;
};
template <typename T, Activation ACT>
struct EarlyNormed<T, ACT, false> : Normed<T, ACT> {
    struct Column {
        const float* sum;
        float bias;
    };
    using Normed<T, ACT>::Normed;
    __device__ __forceinline__ Column column(long long n) const { return {this->column_sum + n, to_float(this->b[n])}; }
    __device__ __forceinline__ float operator()(float2 row, Column column, const float (&v)[1]) const {
        return Normed<T, ACT>::operator()(row, {*column.sum, column.bias}, v);
    }
};

template <typename T, Activation ACT, bool PREPARED, bool SIMT, bool ALIGNED, bool NK, int BM, int BN, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32, 1)
    tile_few_rows(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b, const float* __restrict__ prepared,
                  T* __restrict__ y, long long M, long long K, long long N) {
    extern __shared__ __align__(128) unsigned char memory[];  // slabs and sums of the warps, and the statistics behind them
    long long m0, n0;
    block_origin(M, N, BM, BN, m0, n0);
    using Tile = typename CountingWarpOf<SIMT, T, ALIGNED, NK, PREPARED, BM, BN, WARPS>::Type;
    float* statistics = reinterpret_cast<float*>(memory + WARPS * few_rows::WARP_BYTES<Tile, BM, BN, STAGES>);
    Tile tile(statistics, K);
    EarlyNormed<T, ACT, PREPARED> f(b, tile.row_mean - m0, tile.row_rstd - m0, PREPARED ? prepared : tile.column_sum - n0);
    matmul_few_rows<WARPS, STAGES, ALIGNED, NK, BM, BN, 1>(tile, x, W, y, M, K, N, f, [&] { tile.begin(x, m0, M); }, [&] { tile.finish(); });
}

// ---- warpgroup products: _sums.cuh -------------------------------------------------------------------------------------

#if __CUDA_ARCH__ >= 900
template <typename T, Activation ACT, bool EARLY, bool NK, int BM, int BN, int STAGES, int CLUSTER, typename Schedule = WholeTiles>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    normed_warpgroup(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ b,
                     const float* __restrict__ mean, const float* __restrict__ rstd, const float* __restrict__ prepared,
                     T* __restrict__ y, float4* sums, int* flags, long long M, long long K, long long N) {
    Normed<T, ACT> f(b, mean, rstd, prepared);
    matmul_wgmma<T, NK, BM, BN, STAGES, CLUSTER, 1, SummedRows, ProducerOf<true>, false, EARLY>(x, W, y, M, K, N, f, schedule_of<Schedule>(sums, flags));
}

// The same where y has few tiles: the blocks of a cluster share K (hopper/matmul_split.cuh).
template <typename T, Activation ACT, bool EARLY, bool NK, int BM, int BN, int STAGES, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    normed_split(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ b,
                 const float* __restrict__ mean, const float* __restrict__ rstd, const float* __restrict__ prepared, T* __restrict__ y,
                 long long M, long long K, long long N) {
    matmul_split<T, NK, BM, BN, STAGES, SPLIT, 1, EARLY>(x, W, y, M, K, N, Normed<T, ACT>(b, mean, rstd, prepared));
}

// The same in tiles of any multiple of 16 rows (hopper/matmul_turned.cuh).
template <typename T, Activation ACT, bool EARLY, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BN * 2 + 128, 1)
    normed_turned(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ b,
                  const float* __restrict__ mean, const float* __restrict__ rstd, const float* __restrict__ prepared, T* __restrict__ y,
                  long long M, long long K, long long N) {
    matmul_turned<T, NK, BM, BN, STAGES, CLUSTER, 1, SummedRows, ProducerOf<true>, EARLY>(x, W, y, M, K, N, Normed<T, ACT>(b, mean, rstd, prepared));
}

// The sums of rows by the producer.
template <typename T, Activation ACT, bool PREPARED, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    tile_warpgroup(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ b,
                   const float* __restrict__ prepared, T* __restrict__ y, long long M, long long K, long long N) {
    using Summing = SummingProducer<NK, BN, STAGES, true, !PREPARED>;
    matmul_wgmma<T, NK, BM, BN, STAGES, CLUSTER, 1, SummedRows, Summing>(x, W, y, M, K, N, Normed<T, ACT>(b, nullptr, nullptr, prepared));
}

// The same by the consumers.
template <typename T, Activation ACT, bool PREPARED, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    counted_warpgroup(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ b,
                      const float* __restrict__ prepared, T* __restrict__ y, long long M, long long K, long long N) {
    Normed<T, ACT> f(b, nullptr, nullptr, prepared);
    using Summing = SummingProducer<NK, BN, STAGES, false, true>;
    if constexpr (PREPARED) matmul_wgmma<T, NK, BM, BN, STAGES, CLUSTER, 1, CountedRows>(x, W, y, M, K, N, f);
    else matmul_wgmma<T, NK, BM, BN, STAGES, CLUSTER, 1, CountedRows, Summing>(x, W, y, M, K, N, f);
}
#endif
