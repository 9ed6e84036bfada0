// The sums of lola's tiles on the tensor cores, and of its few rows, taken up beside the products.
#pragma once
#include "_row.cuh"
#include "_shared/cuda/matmul_few_rows.cuh"

// What warps have of the sums of the same row, or column of W, and what these add up to, in shared memory.
template <bool PREPARED, int BM, int BN, int ROW_PARTS, int COLUMN_PARTS>
struct Statistics {
    float *shift, *row_mean, *row_rstd, *column_sum, *row_parts, *column_parts;  // …, (ROW_PARTS, 2, BM), (COLUMN_PARTS, BN)

    __device__ __forceinline__ explicit Statistics(float* memory) {
        shift = memory;
        row_mean = shift + BM;
        row_rstd = row_mean + BM;
        column_sum = row_rstd + BM;
        row_parts = column_sum + BN;
        column_parts = row_parts + ROW_PARTS * 2 * BM;
    }
    __device__ __forceinline__ void set_row(int part, int row, float total, float total2) {
        row_parts[part * 2 * BM + row] = total, row_parts[(part * 2 + 1) * BM + row] = total2;
    }
    __device__ __forceinline__ void set_column(int part, int column, float total) { column_parts[part * BN + column] = total; }

    // SHIFTED: the mean is of x less the shift.
    template <bool SHIFTED, int THREADS>
    __device__ __forceinline__ void add_up(long long K) {
        __syncthreads();
        for (int row = threadIdx.x; row < BM; row += THREADS) {
            float total = 0.0f, total2 = 0.0f;
#pragma unroll
            for (int i = 0; i < ROW_PARTS; ++i)
                total += row_parts[i * 2 * BM + row], total2 += row_parts[(i * 2 + 1) * BM + row];
            float mean = total / K;
            row_rstd[row] = inverse_deviation(mean, total2 / K);
            row_mean[row] = SHIFTED ? mean : shift[row] + mean;
        }
        for (int column = threadIdx.x; column < BN && !PREPARED; column += THREADS) {
            float total = 0.0f;
#pragma unroll
            for (int i = 0; i < COLUMN_PARTS; ++i) total += column_parts[i * BN + column];
            column_sum[column] = total;
        }
        __syncthreads();
    }
};

// Sums x and W up as their fragments are read: of x each of the WN warps that read the same rows every WN-th step, of W each
// of WM. Floats are multiplied as x - s. SHARES such groups of warps share K.
template <typename T, bool NK, bool PREPARED, int BM, int BN, int WM, int WN, int SHARES = 1>
struct CountingTile : TensorTile<T, NK, BM, BN, WM, WN>, Statistics<PREPARED, BM, BN, SHARES * WN, SHARES * WM> {
    using Base = TensorTile<T, NK, BM, BN, WM, WN>;
    using Sums = Statistics<PREPARED, BM, BN, SHARES * WN, SHARES * WM>;
    using Base::FM, Base::FN, Base::SIZE, Base::row0, Base::column0, Base::g, Base::t;
    static constexpr bool SHIFTED = sizeof(T) == 4;
    using Sums::shift;
    static constexpr int THREADS = SHARES * Base::THREADS, STEP = 2 * SIZE;

    long long K;
    int left, share = SHARES > 1 ? threadIdx.x / Base::THREADS : 0, warp_m = threadIdx.x / 32 / WN - share * WM, warp_n = threadIdx.x / 32 % WN;
    float s[FM][2], sum[FM][2] = {}, sum2[FM][2] = {}, colsum[FN] = {};

    __device__ __forceinline__ CountingTile(float* memory, long long K) : Sums(memory), K(K), left(static_cast<int>(K)) {}

    __device__ __forceinline__ void add(const unsigned char* x, const unsigned char* w) {
        Base::add(
            x, w, [&](unsigned(&a)[FM][4], int step) { of_x(a, step); },
            [&](unsigned(&b)[FN][2], int step) { of_w(b, step); });
        left -= SLAB<T>;
    }

    // The shift is the mean of what the first slab has of each row, 8 lanes a row.
    __device__ __forceinline__ void begin(const unsigned char* x) {
#pragma unroll
        for (int i = 0; i < BM * 8 / THREADS; ++i) {
            int row = threadIdx.x / 8 + i * (THREADS / 8), chunk = threadIdx.x % 8;
            auto v = *reinterpret_cast<const Vector<T>*>(x + row * 128 + chunk * 16);
            float first = 0.0f;
#pragma unroll
            for (int j = 0; j < SIZE; ++j) first += element(v, j);
            first = lane_sum<8>(first) / static_cast<float>(min(left, SLAB<T>));
            if (chunk == 0) shift[row] = first;
        }
        __syncthreads();
#pragma unroll
        for (int f = 0; f < FM; ++f)
#pragma unroll
            for (int h = 0; h < 2; ++h) s[f][h] = shift[row0 + f * 16 + h * 8 + g];
    }

    __device__ __forceinline__ void of_x(unsigned (&a)[FM][4], int step) {
        bool mine = step % WN == warp_n;
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
        if constexpr (SHIFTED) as_tf32(a);
    }

    // K's filling is 0 and counts as such.
    __device__ __forceinline__ void of_w(unsigned (&b)[FN][2], int step) {
        if (!PREPARED && step % WM == warp_m) {
#pragma unroll
            for (int f = 0; f < FN; ++f)
#pragma unroll
                for (int q = 0; q < 2; ++q) {
                    if constexpr (SHIFTED) colsum[f] += __uint_as_float(b[f][q]);
                    else colsum[f] += low_half<T>(b[f][q]) + high_half<T>(b[f][q]);
                }
        }
        if constexpr (SHIFTED) as_tf32(b);
    }

    // A NaN that this loses comes back with the sums.
    template <int FRAGMENTS, int REGISTERS>
    static __device__ __forceinline__ void as_tf32(unsigned (&r)[FRAGMENTS][REGISTERS]) {
#pragma unroll
        for (int i = 0; i < FRAGMENTS; ++i)
#pragma unroll
            for (int j = 0; j < REGISTERS; ++j) r[i][j] = to_tf32(__uint_as_float(r[i][j]));
    }

    // Adds what lanes and warps have of the same row or column up to row_mean, row_rstd and column_sum.
    __device__ __forceinline__ void finish() {
#pragma unroll
        for (int f = 0; f < FM; ++f)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float total = lane_sum<4>(sum[f][h]), total2 = lane_sum<4>(sum2[f][h]);
                if (t == 0) this->set_row(share * WN + warp_n, row0 + f * 16 + h * 8 + g, total, total2);
            }
#pragma unroll
        for (int f = 0; f < FN && !PREPARED; ++f) {
            float total = lane_sum<4>(colsum[f]);
            if (t == 0) this->set_column(share * WM + warp_m, column0 + f * 8 + g, total);
        }
        this->template add_up<SHIFTED, THREADS>(K);
    }
};

// One of WARPS warps that share K. Each reads the first elements of the rows for itself, whose mean is the shift.
template <typename T, bool NK, bool PREPARED, int BM, int BN, int WARPS>
struct CountingWarp : few_rows::OfWarp<CountingTile<T, NK, PREPARED, BM, BN, 1, 1, WARPS>> {
    using Base = few_rows::OfWarp<CountingTile<T, NK, PREPARED, BM, BN, 1, 1, WARPS>>;
    using Base::FM, Base::SIZE, Base::g, Base::t, Base::s, Base::K, Base::left, Base::share;

    __device__ __forceinline__ CountingWarp(float* memory, long long K) : Base(memory, K) { left -= share * SLAB<T>; }
    __device__ __forceinline__ void begin(const T* x, long long m0, long long M) {
        Vector<T> first[FM][2];
#pragma unroll
        for (int i = 0; i < 2 * FM; ++i)
            first[i / 2][i % 2] = load_part<true>(x + min(m0 + i * 8 + g, M - 1) * K + t * SIZE, static_cast<int>(K) - t * SIZE);
#pragma unroll
        for (int i = 0; i < 2 * FM; ++i) {
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < SIZE; ++j) sum += element(first[i / 2][i % 2], j);
            s[i / 2][i % 2] = lane_sum<4>(sum) / static_cast<float>(min(K, 4LL * SIZE));
            if (share == 0 && t == 0) this->shift[i * 8 + g] = s[i / 2][i % 2];
        }
    }
    __device__ __forceinline__ void add(const unsigned char* x, const unsigned char* w) {
        Base::add(x, w);
        left -= (WARPS - 1) * SLAB<T>;
    }
};

// The same on the float32 units: each slab of x is shifted where it lies in shared memory, and summed up there, as W is.
template <bool ALIGNED, bool NK, bool PREPARED, int BM, int BN, int WARPS>
struct CountingSimtWarp : few_rows::SimtWarp<NK, BM, BN>, Statistics<PREPARED, BM, BN, WARPS, WARPS> {
    using Base = few_rows::SimtWarp<NK, BM, BN>;
    using Sums = Statistics<PREPARED, BM, BN, WARPS, WARPS>;
    // of a lane: rows of x, whose chunk of 16 bytes it has; vectors of W, of 32 / CHUNKS rows at once
    static constexpr int ROWS = BM / 4, CHUNKS = NK ? 8 : BN / 4, VECTORS = BN / 4;
    long long K;
    int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 8, chunk = threadIdx.x % 8, left;
    float s[ROWS], sum[ROWS] = {}, sum2[ROWS] = {}, colsum[NK ? VECTORS : 4] = {};

    __device__ __forceinline__ CountingSimtWarp(float* memory, long long K) : Sums(memory), K(K), left(static_cast<int>(K) - warp * 32 - chunk * 4) {}
    __device__ __forceinline__ void begin(const float* x, long long m0, long long M) {
        Vector<float> first[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) first[i] = load_part<ALIGNED>(x + min(m0 + row + i * 4, M - 1) * K + chunk * 4, static_cast<int>(K) - chunk * 4);
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
            s[i] = lane_sum<8>(first[i].at[0] + first[i].at[1] + first[i].at[2] + first[i].at[3]) / static_cast<float>(min(K, 32LL));
    }
    __device__ __forceinline__ void add(unsigned char* x, const unsigned char* w) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            auto& v = *reinterpret_cast<Vector<float>*>(x + slab_place<float>(row + i * 4, chunk * 4));
            Vector<float> shifted;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float d = (ALIGNED ? 0 : j) < left ? v.at[j] - s[i] : 0.0f;  // K's filling is 0, not s: it must not count
                sum[i] += d;
                sum2[i] = fmaf(d, d, sum2[i]);
                shifted.at[j] = d;
            }
            v = shifted;
        }
#pragma unroll
        for (int i = 0; i < VECTORS && !PREPARED; ++i) {
            int lane = threadIdx.x % 32, n = NK ? row + i * 4 : lane % CHUNKS * 4, k = NK ? chunk * 4 : lane / CHUNKS + i * (32 / CHUNKS);
            auto v = *reinterpret_cast<const Vector<float>*>(w + (NK ? slab_place<float>(n, k) : column_place<float, BN>(k, n)));
#pragma unroll
            for (int j = 0; j < 4; ++j) colsum[NK ? i : j] += v.at[j];
        }
        __syncwarp();
        Base::add(x, w);
        left -= WARPS * 32;
    }
    __device__ __forceinline__ void finish() {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            float total = lane_sum<8>(sum[i]), total2 = lane_sum<8>(sum2[i]);
            if (chunk == 0) this->set_row(warp, row + i * 4, total, total2);
        }
#pragma unroll
        for (int i = 0; i < (NK ? VECTORS : 4) && !PREPARED; ++i) {
            int lane = threadIdx.x % 32;
            float total = NK ? lane_sum<8>(colsum[i]) : lane_sum<32 / CHUNKS, CHUNKS>(colsum[i]);
            if (NK ? chunk == 0 : lane < CHUNKS) this->set_column(warp, NK ? row + i * 4 : lane * 4 + i, total);
        }
        this->template add_up<true, WARPS * 32>(K);
    }
};
template <bool SIMT, typename T, bool ALIGNED, bool NK, bool PREPARED, int BM, int BN, int WARPS>
struct CountingWarpOf {
    using Type = CountingWarp<T, NK, PREPARED, BM, BN, WARPS>;
};
template <bool ALIGNED, bool NK, bool PREPARED, int BM, int BN, int WARPS>
struct CountingWarpOf<true, float, ALIGNED, NK, PREPARED, BM, BN, WARPS> {
    using Type = CountingSimtWarp<ALIGNED, NK, PREPARED, BM, BN, WARPS>;
};
