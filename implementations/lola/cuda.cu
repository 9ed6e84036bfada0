// lola: y = act((x @ W - mean * colsum(W)) / sqrt(var + eps) + b), each variant one launch.
//
//   row_kn, row_nk   one row (M = 1): _row.cuh.
//   tile_simt        a tile of y per block on the float32 units (precision "ieee").
//   tile_tensor      a tile of y per block on the tensor cores: float16, bfloat16, and float32 as tf32.
//
// Where the statistics come from. Nobody reads x or W a second time:
//   - `row` and `tile_simt` pass every element through registers anyway; they add it up there.
//   - `tile_tensor` copies asynchronously, past the registers. Its warps add up the fragments that they load for the
//     products: the warps that share rows of x (or columns of W) take every so-many-th step of K each, so no element is
//     added twice and none is read from shared memory for its sum alone.
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
#include "_row.cuh"
#include "_tile.cuh"

// ---- a tile of rows, float32 units ----------------------------------------------------------------------------------

// Adds the sums of the same row, which 4 neighbouring lanes hold, and leaves what the epilogue needs of it.
__device__ __forceinline__ void finish_row(float sum, float sum2, long long K, float& mean_d, float& rstd) {
    mean_d = lane_sum<4>(sum) / K;
    rstd = inverse_deviation(mean_d, lane_sum<4>(sum2) / K);
}

// A thread computes 8×8 of y as 2×2 blocks of 4×4, so that neighbouring lanes read neighbouring 16 bytes of shared
// memory. Slabs of 16 in K: while one is multiplied, the next is on its way to registers; there x is shifted and both
// are summed.
template <Activation ACT, bool ALIGNED, bool NK, bool PREPARED, int BM, int BN>
__global__ void __launch_bounds__(BM* BN / 64, 128 * 128 * 2 / (BM * BN))
    tile_simt(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ b,
              const float* __restrict__ prepared, float* __restrict__ y, long long M, long long K, long long N) {
    constexpr int BK = 16, THREADS = BM * BN / 64, PAD = 4;
    constexpr int X_LOADS = BM * 4 / THREADS, W_LOADS = BN * 4 / THREADS;  // vectors a thread brings in per slab
    constexpr int QUADS = THREADS / 4, W_GROUPS = THREADS / (BN / 4);
    __shared__ float xs[2][BK][BM + PAD], ws[2][BK][BN + PAD];
    __shared__ float row_mean[BM], row_rstd[BM];

    int tid = threadIdx.x, quad = tid / 4, part = tid % 4 * 4;
    long long m0, n0;
    place_of_block(M, N, BM, BN, m0, n0);
    int w_column = tid % (BN / 4) * 4, w_k = tid / (BN / 4);  // of a (K, N) slab

    const float* x_from = x + (m0 + quad) * K + part;
    const float* w_from = NK ? W + (n0 + quad) * K + part : W + w_k * N + n0 + w_column;
    int rows = static_cast<int>(min(M - m0, static_cast<long long>(BM))) - quad;
    int columns = static_cast<int>(min(N - n0, static_cast<long long>(BN))) - (NK ? quad : w_column);

    Vector<float> xv[X_LOADS], wv[W_LOADS];
    auto request = [&](int k_left) {  // the next slab; what lies outside of x or W becomes 0
#pragma unroll
        for (int i = 0; i < X_LOADS; ++i)
            xv[i] = load_part<ALIGNED>(x_from + i * QUADS * K, i * QUADS < rows ? k_left - part : 0);
#pragma unroll
        for (int i = 0; i < W_LOADS; ++i) {
            if constexpr (NK) {
                wv[i] = load_part<ALIGNED>(w_from + i * QUADS * K, i * QUADS < columns ? k_left - part : 0);
            } else {
                int count = w_k + i * W_GROUPS < k_left ? columns : 0;
                wv[i] = load_part<ALIGNED>(w_from + i * W_GROUPS * N, count);
            }
        }
        x_from += BK;
        w_from += NK ? BK : BK * N;
    };

    float shift[X_LOADS], sum[X_LOADS] = {}, sum2[X_LOADS] = {}, colsum[NK ? W_LOADS : 4] = {};
    auto deposit = [&](int k_left, int stage) {
#pragma unroll
        for (int i = 0; i < X_LOADS; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float d = part + (ALIGNED ? 0 : j) < k_left ? xv[i].at[j] - shift[i] : 0.0f;
                sum[i] += d;
                sum2[i] = fmaf(d, d, sum2[i]);
                xs[stage][part + j][quad + i * QUADS] = d;
            }
#pragma unroll
        for (int i = 0; i < W_LOADS; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if constexpr (NK) ws[stage][part + j][quad + i * QUADS] = wv[i].at[j];
                if constexpr (!PREPARED) colsum[NK ? i : j] += wv[i].at[j];
            }
        if constexpr (!NK) {
#pragma unroll
            for (int i = 0; i < W_LOADS; ++i)
                *reinterpret_cast<Vector<float>*>(&ws[stage][w_k + i * W_GROUPS][w_column]) = wv[i];
        }
    };

    // The thread's place in the tile: a warp covers 4×8 threads.
    constexpr int WARPS_ACROSS = BN / 64;
    int warp = tid / 32, lane = tid % 32;
    int row = (warp / WARPS_ACROSS * 4 + lane / 8) * 4, column = (warp % WARPS_ACROSS * 8 + lane % 8) * 4;
    float c[8][8] = {};
    auto multiply = [&](int stage) {
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            float av[8], bv[8];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float *a = &xs[stage][k][row + h * BM / 2], *b4 = &ws[stage][k][column + h * BN / 2];
                *reinterpret_cast<float4*>(&av[h * 4]) = *reinterpret_cast<const float4*>(a);
                *reinterpret_cast<float4*>(&bv[h * 4]) = *reinterpret_cast<const float4*>(b4);
            }
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) c[i][j] = fmaf(av[i], bv[j], c[i][j]);
        }
    };

    int k_left = static_cast<int>(K);
    request(k_left);
#pragma unroll
    for (int i = 0; i < X_LOADS; ++i) {  // elements past the end of a short row were loaded as 0
        float first = xv[i].at[0] + xv[i].at[1] + xv[i].at[2] + xv[i].at[3];
        shift[i] = lane_sum<4>(first) / static_cast<float>(min(K, static_cast<long long>(BK)));
    }
    deposit(k_left, 0);
    __syncthreads();
    int stage = 0;
    for (k_left -= BK; k_left > 0; k_left -= BK, stage ^= 1) {
        request(k_left);
        multiply(stage);
        deposit(k_left, stage ^ 1);
        __syncthreads();
    }
    multiply(stage);

    // Statistics of rows and columns; the column sums go through the operands' memory.
#pragma unroll
    for (int i = 0; i < X_LOADS; ++i) {
        float mean, rstd;
        finish_row(sum[i], sum2[i], K, mean, rstd);
        if (part == 0) row_mean[quad + i * QUADS] = mean, row_rstd[quad + i * QUADS] = rstd;
    }
    __syncthreads();
    float* column_sums = &ws[0][0][0];  // (W_GROUPS, BN), or (1, BN)
    if constexpr (!PREPARED && NK) {
#pragma unroll
        for (int i = 0; i < W_LOADS; ++i) {
            float total = lane_sum<4>(colsum[i]);
            if (part == 0) column_sums[quad + i * QUADS] = total;
        }
    }
    if constexpr (!PREPARED && !NK) {
#pragma unroll
        for (int j = 0; j < 4; ++j) column_sums[w_k * BN + w_column + j] = colsum[j];
    }
    __syncthreads();

#pragma unroll
    for (int h = 0; h < 2; ++h) {
        int at = column + h * BN / 2;
        int count = static_cast<int>(min(N - n0 - at, 4LL));
        float cs[4] = {}, bias[4] = {};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (j >= count) continue;
            bias[j] = b[n0 + at + j];
            if constexpr (PREPARED) cs[j] = prepared[n0 + at + j];
            else
                for (int g = 0; g < (NK ? 1 : W_GROUPS); ++g) cs[j] += column_sums[g * BN + at + j];
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            int r = row + i / 4 * BM / 2 + i % 4;
            if (m0 + r >= M) continue;
            Vector<float> out;
#pragma unroll
            for (int j = 0; j < 4; ++j)
                out.at[j] = activate<ACT>((c[i][h * 4 + j] - row_mean[r] * cs[j]) * row_rstd[r] + bias[j]);
            store_part<ALIGNED>(y + (m0 + r) * N + n0 + at, out, count);
        }
    }
}

// ---- a tile of rows, tensor cores -----------------------------------------------------------------------------------

// Shared memory of a stage, all in 16-byte chunks: x as (BM rows, 8 chunks), W as (BN rows, 8 chunks) in the layout (N,
// K) or (BK rows, BN / SIZE chunks) in (K, N). A chunk's place is exclusive-ored with its row so that what a warp reads
// at once, the same chunk of 8 rows, lies in different banks; W in (K, N) by column_swizzle.
//
// WM × WN warps, each with BM / WM × BN / WN of the tile; STAGES slabs of 128 bytes of K in flight.
template <typename T, Activation ACT, bool ALIGNED, bool NK, bool PREPARED, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    tile_tensor(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b,
                const float* __restrict__ prepared, T* __restrict__ y, long long M, long long K, long long N) {
    constexpr int SIZE = Vector<T>::SIZE, BK = 8 * SIZE, STEP = 2 * SIZE, THREADS = WM * WN * 32;
    constexpr int TM = BM / WM, TN = BN / WN, FM = TM / 16, FN = TN / 8;  // a warp's tile, and its fragments
    constexpr int STAGE = (BM + BN) * 128, OUT = BM * (BN + 8) * sizeof(T);
    constexpr bool SHIFTED = sizeof(T) == 4;  // the product is of x - s
    extern __shared__ __align__(128) unsigned char memory[];
    // Behind the stages, which the output tile uses again:
    float* shift = reinterpret_cast<float*>(memory + (STAGES * STAGE > OUT ? STAGES * STAGE : OUT));
    float* row_mean = shift + BM;
    float* row_rstd = row_mean + BM;
    float* column_sum = row_rstd + BM;
    float* bias = column_sum + BN;
    float* row_parts = bias + BN;                // (WN, 2, BM)
    float* column_parts = row_parts + WN * 2 * BM;  // (WM, BN)

    int tid = threadIdx.x, lane = tid % 32, g = lane / 4, t = lane % 4;
    int warp_m = tid / 32 / WN, warp_n = tid / 32 % WN;
    long long m0, n0;
    place_of_block(M, N, BM, BN, m0, n0);
    unsigned base = shared_address(memory);

    // A thread brings the same chunk of every X_ROWS-th row of x, and of every W_ROWS-th row of W as it is stored. The
    // row steps keep the swizzle, so that addresses advance by constants. What lies outside of x or W becomes 0.
    constexpr int W_CHUNKS = NK ? 8 : BN / SIZE, X_ROWS = THREADS / 8, W_ROWS = THREADS / W_CHUNKS;
    static_assert(X_ROWS % 8 == 0 && W_ROWS % (sizeof(T) == 4 && !NK ? 4 : 8) == 0, "keeps the swizzle");
    int x_row = tid / 8, x_k = tid % 8 * SIZE, w_row = tid / W_CHUNKS, w_chunk = tid % W_CHUNKS;
    int x_to = (x_row * 8 + (tid % 8 ^ (x_row & 7))) * 16;
    int w_to = BM * 128 + (w_row * W_CHUNKS + (w_chunk ^ (NK ? w_row & 7 : column_swizzle<T, W_CHUNKS>(w_row)))) * 16;
    const T* x_from = x + (m0 + x_row) * K + x_k;
    const T* w_from = NK ? W + (n0 + w_row) * K + w_chunk * SIZE : W + w_row * N + n0 + w_chunk * SIZE;
    int x_rows = static_cast<int>(min(M - m0, static_cast<long long>(BM))) - x_row;
    int columns = static_cast<int>(min(N - n0, static_cast<long long>(BN)));
    int k_left = static_cast<int>(K);

    auto request = [&](int stage) {  // the next slab
        int x_count = k_left - x_k, to = stage * STAGE;
        if constexpr (ALIGNED) {
#pragma unroll
            for (int i = 0; i < BM / X_ROWS; ++i)
                copy_async(base + to + x_to + i * X_ROWS * 128, x_from + i * X_ROWS * K,
                           x_count > 0 && i * X_ROWS < x_rows);
        } else {
#pragma unroll 1
            for (int i = 0; i < BM / X_ROWS; ++i)
                *reinterpret_cast<Vector<T>*>(memory + to + x_to + i * X_ROWS * 128) =
                    load_part<false>(x_from + i * X_ROWS * K, i * X_ROWS < x_rows ? x_count : 0);
        }
        constexpr int ROWS = NK ? BN : BK;
        int w_count = NK ? k_left - w_chunk * SIZE : columns - w_chunk * SIZE;
        int w_rows = (NK ? columns : k_left) - w_row;
        long long pitch = NK ? K : N;
        if constexpr (ALIGNED) {
#pragma unroll
            for (int i = 0; i < ROWS / W_ROWS; ++i)
                copy_async(base + to + w_to + i * W_ROWS * W_CHUNKS * 16, w_from + i * W_ROWS * pitch,
                           w_count > 0 && i * W_ROWS < w_rows);
        } else {
#pragma unroll 1
            for (int i = 0; i < ROWS / W_ROWS; ++i)
                *reinterpret_cast<Vector<T>*>(memory + to + w_to + i * W_ROWS * W_CHUNKS * 16) =
                    load_part<false>(w_from + i * W_ROWS * pitch, i * W_ROWS < w_rows ? w_count : 0);
        }
        x_from += BK;
        w_from += NK ? BK : BK * N;
        k_left -= BK;
    };

    float c[FM][FN][4] = {}, sum[FM][2] = {}, sum2[FM][2] = {}, colsum[FN] = {}, s[FM][2];

    // x's fragments of one step of K, shifted and rounded where that is due, and their sums where it is this warp's
    // turn.
    auto load_x = [&](unsigned (&a)[FM][4], int left, int stage, int step) {
        bool mine = step % WN == warp_n;
#pragma unroll
        for (int f = 0; f < FM; ++f) {
            int row = warp_m * TM + f * 16 + lane % 16, chunk = step * 2 + lane / 16;
            load_matrices(a[f], base + stage * STAGE + row * 128 + ((chunk ^ (row & 7)) << 4));
        }
        if constexpr (SHIFTED) {
#pragma unroll
            for (int f = 0; f < FM; ++f)
#pragma unroll
                for (int r = 0; r < 4; ++r) a[f][r] = __float_as_uint(__uint_as_float(a[f][r]) - s[f][r % 2]);
        }
        if (mine) {
#pragma unroll
            for (int r = 0; r < 4; ++r)  // registers 0 and 2 are row g, 1 and 3 row g + 8; 2 and 3 the second chunk
#pragma unroll
                for (int e = 0; e < (SHIFTED ? 1 : 2); ++e) {
                    // K's filling is 0, not s: it must not count.
                    bool counts = step * STEP + r / 2 * SIZE + (SHIFTED ? t : 2 * t + e) < left;
#pragma unroll
                    for (int f = 0; f < FM; ++f) {
                        float d = __uint_as_float(a[f][r]);
                        if constexpr (!SHIFTED) d = (e ? high_half<T>(a[f][r]) : low_half<T>(a[f][r])) - s[f][r % 2];
                        d = counts ? d : 0.0f;
                        sum[f][r % 2] += d;
                        sum2[f][r % 2] = fmaf(d, d, sum2[f][r % 2]);
                    }
                }
        }
        if constexpr (SHIFTED) {
#pragma unroll
            for (int f = 0; f < FM; ++f)
#pragma unroll
                for (int r = 0; r < 4; ++r) a[f][r] = to_tf32(__uint_as_float(a[f][r]));
        }
    };

    // W's fragments of one step of K, two of them (16 columns) at a time, and their sums; K's filling is 0 and counts
    // as such.
    auto load_w = [&](unsigned (&w)[FN][2], int stage, int step) {
        bool mine = !PREPARED && step % WM == warp_m;
        int start = stage * STAGE + BM * 128, column = warp_n * TN;
#pragma unroll
        for (int f = 0; f < FN; f += 2) {
            int i = lane / 8, j = lane % 8;  // this lane addresses row j of matrix i
            unsigned r[4];
            if constexpr (NK) {
                int row = column + f * 8 + i / 2 * 8 + j, chunk = step * 2 + i % 2;
                load_matrices(r, base + start + row * 128 + ((chunk ^ (row & 7)) << 4));
            } else if constexpr (sizeof(T) == 2) {
                int row = step * STEP + i % 2 * 8 + j, chunk = (column + f * 8) / SIZE + i / 2;
                load_matrices_transposed(r, base + start + (row * (BN / SIZE) + (chunk ^ (row & 7))) * 16);
            } else {
#pragma unroll
                for (int q = 0; q < 4; ++q) {  // word by word: (t, g), (t + 4, g), and the same 8 columns on
                    int row = step * STEP + q % 2 * 4 + t, n = column + (f + q / 2) * 8 + g;
                    int at = (row * (BN / SIZE) + (n / 4 ^ column_swizzle<T, BN / SIZE>(row))) * 16 + n % 4 * 4;
                    r[q] = *reinterpret_cast<const unsigned*>(memory + start + at);
                }
            }
#pragma unroll
            for (int q = 0; q < 4; ++q) w[f + q / 2][q % 2] = r[q];
        }
        if (mine) {
#pragma unroll
            for (int f = 0; f < FN; ++f)
#pragma unroll
                for (int q = 0; q < 2; ++q) {
                    if constexpr (SHIFTED) colsum[f] += __uint_as_float(w[f][q]);
                    else colsum[f] += low_half<T>(w[f][q]) + high_half<T>(w[f][q]);
                }
        }
        if constexpr (SHIFTED) {
#pragma unroll
            for (int f = 0; f < FN; ++f)
#pragma unroll
                for (int q = 0; q < 2; ++q) w[f][q] = to_tf32(__uint_as_float(w[f][q]));
        }
    };

    int slabs = static_cast<int>((K + BK - 1) / BK);
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < slabs) request(i);
        copy_commit();
    }
    for (int i = tid; i < BN; i += THREADS) {
        bias[i] = n0 + i < N ? to_float(b[n0 + i]) : 0.0f;
        if constexpr (PREPARED) column_sum[i] = n0 + i < N ? prepared[n0 + i] : 0.0f;
    }
    copy_wait<STAGES - 2>();
    __syncthreads();
    // The shift is the mean of what the first slab has of the row, 8 lanes a row.
#pragma unroll
    for (int i = 0; i < BM * 8 / THREADS; ++i) {
        int row = tid / 8 + i * (THREADS / 8), chunk = tid % 8;
        auto v = *reinterpret_cast<const Vector<T>*>(memory + row * 128 + chunk * 16);
        float first = 0.0f;
#pragma unroll
        for (int j = 0; j < SIZE; ++j) first += element(v, j);
        first = lane_sum<8>(first) / static_cast<float>(min(K, static_cast<long long>(BK)));
        if (chunk == 0) shift[row] = first;
    }
    __syncthreads();
#pragma unroll
    for (int f = 0; f < FM; ++f) {
        s[f][0] = shift[warp_m * TM + f * 16 + g];
        s[f][1] = shift[warp_m * TM + f * 16 + g + 8];
    }

    int stage = 0, next = STAGES - 1;
    for (int slab = 0; slab < slabs; ++slab) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (slab + STAGES - 1 < slabs) request(next);
        copy_commit();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            unsigned a[FM][4], w[FN][2];
            load_x(a, static_cast<int>(K) - slab * BK, stage, step);
            load_w(w, stage, step);
#pragma unroll
            for (int i = 0; i < FM; ++i)
#pragma unroll
                for (int j = 0; j < FN; ++j) multiply_add(c[i][j], a[i], w[j], T{});
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    copy_wait<0>();

    // Lanes that hold the same row or column, then the warps that took turns.
#pragma unroll
    for (int f = 0; f < FM; ++f)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float total = lane_sum<4>(sum[f][h]), total2 = lane_sum<4>(sum2[f][h]);
            int row = warp_m * TM + f * 16 + h * 8 + g;
            if (t == 0) row_parts[warp_n * 2 * BM + row] = total, row_parts[(warp_n * 2 + 1) * BM + row] = total2;
        }
#pragma unroll
    for (int f = 0; f < FN && !PREPARED; ++f) {
        float total = lane_sum<4>(colsum[f]);
        if (t == 0) column_parts[warp_m * BN + warp_n * TN + f * 8 + g] = total;
    }
    __syncthreads();
    for (int row = tid; row < BM; row += THREADS) {
        float total = 0.0f, total2 = 0.0f;
#pragma unroll
        for (int i = 0; i < WN; ++i) total += row_parts[i * 2 * BM + row], total2 += row_parts[(i * 2 + 1) * BM + row];
        float mean = total / K;
        row_rstd[row] = inverse_deviation(mean, total2 / K);
        row_mean[row] = SHIFTED ? mean : shift[row] + mean;
    }
    for (int column = tid; column < BN && !PREPARED; column += THREADS) {
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < WM; ++i) total += column_parts[i * BN + column];
        column_sum[column] = total;
    }
    __syncthreads();

    // Through shared memory (the stages' bytes), so that y is written in 16-byte vectors, whole rows of the tile at a
    // time.
    T* out = reinterpret_cast<T*>(memory);
#pragma unroll
    for (int i = 0; i < FM; ++i)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int row = warp_m * TM + i * 16 + h * 8 + g;
            float mean = row_mean[row], rstd = row_rstd[row];
#pragma unroll
            for (int j = 0; j < FN; ++j) {
                int column = warp_n * TN + j * 8 + 2 * t;
                struct alignas(2 * sizeof(T)) { T at[2]; } pair;
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    pair.at[e] = from_float<T>(activate<ACT>(
                        (c[i][j][h * 2 + e] - mean * column_sum[column + e]) * rstd + bias[column + e]));
                *reinterpret_cast<decltype(pair)*>(out + row * (BN + 8) + column) = pair;
            }
        }
    __syncthreads();
    for (int i = tid; i < BM * (BN / SIZE); i += THREADS) {
        int row = i / (BN / SIZE), column = i % (BN / SIZE) * SIZE;
        if (m0 + row >= M) continue;
        auto v = *reinterpret_cast<const Vector<T>*>(out + row * (BN + 8) + column);
        store_part<ALIGNED>(y + (m0 + row) * N + n0 + column, v, columns - column);
    }
}
