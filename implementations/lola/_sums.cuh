// The sums of lola's tiles on Hopper's warpgroup products, added up from shared memory beside the tensor cores; or of whole rows, in
// a kernel of their own.
#pragma once
#include "_row.cuh"
#include "_shared/cuda/hopper/matmul.cuh"

// Sums of rows of x, beside the products: a thread of the producer has a row.
template <typename T>
struct RowSums {
    static constexpr int SIZE = Vector<T>::SIZE;
    float shift = 0.0f, sum = 0.0f, sum2 = 0.0f;

    // Adds a slab with `left` elements of K, a multiple of SIZE. The shift is the mean of what the first one has of the row.
    __device__ __forceinline__ void add(const unsigned char* slab, int left, bool first) {
        auto vector = [&](int i) {
            return *reinterpret_cast<const Vector<T>*>(slab + threadIdx.x * 128 + ((i ^ threadIdx.x) & 7) * 16);
        };
        if (first) {
            float total = 0.0f;
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < SIZE; ++j) total += element(vector(i), j);
            shift = total / static_cast<float>(min(left, SLAB<T>));
        }
        float part[4] = {}, part2[4] = {};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            auto v = vector(i);
            float from = i * SIZE < left ? shift : 0.0f;  // K's filling is 0, and counts as that
#pragma unroll
            for (int j = 0; j < SIZE; ++j) {
                float d = element(v, j) - from;
                part[j % 4] += d;
                part2[j % 4] = fmaf(d, d, part2[j % 4]);
            }
        }
        sum += part[0] + part[1] + (part[2] + part[3]);
        sum2 += part2[0] + part2[1] + (part2[2] + part2[3]);
    }

    // Mean and 1 / deviation.
    __device__ __forceinline__ float2 finish(long long K) const {
        float mean = sum / K;
        return {shift + mean, inverse_deviation(mean, sum2 / K)};
    }
};

// What the producer has made of a warp's rows, for its consumers.
template <typename F>
struct SummedRows {
    float2 of_row[2];

    __device__ __forceinline__ SummedRows(const F&, long long, long long) {}

    template <typename Tile, typename P>
    __device__ __forceinline__ void multiply(Tile& tile, const P& pipeline, int first, int count, long long) {
        mainloop(tile, pipeline, first, count);
    }
    __device__ __forceinline__ void finish(const float2* rows) {
#pragma unroll
        for (int h = 0; h < 2; ++h) of_row[h] = rows[threadIdx.x % 32 / 4 + h * 8];
    }
};

// Sums of rows that consumers add up on their way to the tensor cores by registers; floats go there less the shift, rounded to tf32, and
// 16 bits as they are. A lane has a word of every fourth of K of rows lane / 4 and lane / 4 + 8.
template <typename F>
struct CountedRows {
    using T = typename F::Element;
    static constexpr bool SHIFTED = sizeof(T) == 4;
    static constexpr int SIZE = Vector<T>::SIZE, ELEMENTS = SHIFTED ? 1 : 2;  // of a chunk of 16 bytes, of a word
    float shift[2], sum[2] = {}, sum2[2] = {};
    float2 of_row[2];  // of floats, of x less the shift

    __device__ __forceinline__ CountedRows(const F&, long long, long long) {}

    template <typename Tile, typename P>
    __device__ __forceinline__ void multiply(Tile& tile, const P& pipeline, int first, int count, long long K) {
        tile.mainloop_of_registers(pipeline, first, count, [&](unsigned(&a)[4][4], int k, const unsigned char* x) {
            int lane = threadIdx.x % 32, row = lane % 16, left = static_cast<int>(K) - k * SLAB<T>;
#pragma unroll
            for (int step = 0; step < 4; ++step)  // registers 0 and 2 are of row g, 1 and 3 of row g + 8; 2 and 3 of the second chunk
                load_matrices(a[step], shared_address(x) + row * 128 + (((step * 2 + lane / 16) ^ row) & 7) * 16);
            fence_proxy_async();
            if (k == 0) begin(a, left);
            if (left >= SLAB<T>) add<true>(a, left);
            else add<false>(a, left);
        });
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float mean = lane_sum<4>(sum[h]) / K;
            of_row[h] = {SHIFTED ? mean : shift[h] + mean, inverse_deviation(mean, lane_sum<4>(sum2[h]) / K)};
        }
    }
    __device__ __forceinline__ void finish(const float2*) {}

    static __device__ __forceinline__ float value(unsigned word, int e) {
        if constexpr (SHIFTED) return __uint_as_float(word);
        else return e ? high_half<T>(word) : low_half<T>(word);
    }

    // The shift is the mean of what the first slab has of each row; K's filling is 0.
    __device__ __forceinline__ void begin(const unsigned (&a)[4][4], int left) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float total = 0.0f;
#pragma unroll
            for (int step = 0; step < 4; ++step)
#pragma unroll
                for (int e = 0; e < ELEMENTS; ++e) total += value(a[step][h], e) + value(a[step][h + 2], e);
            shift[h] = lane_sum<4>(total) / static_cast<float>(min(left, SLAB<T>));
        }
    }

    // WHOLE: no element of the slab is K's filling, which must not count. A NaN that rounding loses comes back with the sums.
    template <bool WHOLE>
    __device__ __forceinline__ void add(unsigned (&a)[4][4], int left) {
#pragma unroll
        for (int step = 0; step < 4; ++step)
#pragma unroll
            for (int r = 0; r < 4; ++r)
#pragma unroll
                for (int e = 0; e < ELEMENTS; ++e) {
                    float d = value(a[step][r], e) - shift[r % 2];
                    if (!WHOLE) d = (step * 2 + r / 2) * SIZE < left ? d : 0.0f;  // K is in whole chunks
                    sum[r % 2] += d;
                    sum2[r % 2] = fmaf(d, d, sum2[r % 2]);
                    if (SHIFTED) a[step][r] = to_tf32(d);
                }
    }
};

// Sums of 64 columns of W by each of WARPS warps. Of W in rows of K (NK) a lane has two columns; of a panel 8, and 16 rows of K
// of each slab.
template <typename T, bool NK>
struct ColumnSums {
    static constexpr int SIZE = Vector<T>::SIZE, COUNT = NK ? 2 : SIZE;
    int lane = threadIdx.x % 32;
    float sum[COUNT] = {};

    // Adds a slab of the 64 columns.
    __device__ __forceinline__ void add(const unsigned char* slab) {
        auto vector = [&](int row, int chunk) {
            return *reinterpret_cast<const Vector<T>*>(slab + row * 128 + ((chunk ^ row) & 7) * 16);
        };
        float part[8] = {};
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            auto v = NK ? vector(i / 8 * 32 + lane, i % 8) : vector(i * 4 + lane / 8, lane % 8);
#pragma unroll
            for (int j = 0; j < SIZE; ++j) part[NK ? i / 8 * 4 + j % 4 : j] += element(v, j);
        }
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            sum[i] += NK ? part[i * 4] + part[i * 4 + 1] + (part[i * 4 + 2] + part[i * 4 + 3]) : part[i];
    }

    // Each column's sum, by one lane at least.
    template <typename F>
    __device__ __forceinline__ void finish(F store) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            store(NK ? i * 32 + lane : lane % 8 * SIZE + i, NK ? sum[i] : lane_sum<4, 8>(sum[i]));
    }
};

// Mean and 1 / deviation of each row of x: SHARERS of a block's 8 warps have a row, in vectors. Unless `whole` is null, it is x with rows of
// whole lines, zeros behind K; of floats x less the row's shift, and the mean is of that.
template <typename T, bool ALIGNED, int SHARERS>
__global__ void __launch_bounds__(256)
    row_statistics(const T* __restrict__ x, T* __restrict__ whole, float* __restrict__ mean, float* __restrict__ rstd,
                   int* __restrict__ flags, long long M, long long K, long long count) {
    wait_for_previous_launch();
    constexpr int SIZE = Vector<T>::SIZE, ROWS = 8 / SHARERS;
    constexpr bool SHIFTED = sizeof(T) == 4;
    clear_flags(flags, count);
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % SHARERS;
    long long m = blockIdx.x * static_cast<long long>(ROWS) + warp / SHARERS, vectors = (K + SIZE - 1) / SIZE;
    long long pitch = (K + SLAB<T> - 1) / SLAB<T> * 8;
    if (SHARERS == 1 && m >= M) return;
    long long of_row = m < M ? vectors : 0;  // else the warp comes to the barrier alone
    if (whole && part == 0 && m < M && lane < pitch - vectors) reinterpret_cast<Vector<T>*>(whole)[m * pitch + vectors + lane] = {};
    auto left = [&](long long i) { return static_cast<int>(min(K - i * SIZE, static_cast<long long>(SIZE))); };
    auto vector = [&](long long i) { return load_part<ALIGNED>(x + m * K + i * SIZE, ALIGNED ? SIZE : left(i)); };
    float shift = 0.0f, sum = 0.0f, sum2 = 0.0f;
    if (lane < of_row) {  // by each of the warps
        auto v = vector(lane);
#pragma unroll
        for (int j = 0; j < SIZE; ++j) shift += element(v, j);
    }
    shift = lane_sum<32>(shift) / static_cast<float>(min(K, 32LL * SIZE));
#pragma unroll(ALIGNED ? 8 : 2)
    for (long long i = part * 32 + lane; i < of_row; i += 32 * SHARERS) {
        auto v = vector(i);
        if (whole && !SHIFTED) reinterpret_cast<Vector<T>*>(whole)[m * pitch + i] = v;
#pragma unroll
        for (int j = 0; j < SIZE; ++j) {
            float d = ALIGNED || j < left(i) ? element(v, j) - shift : 0.0f;
            sum += d;
            sum2 = fmaf(d, d, sum2);
            if constexpr (SHIFTED) v.at[j] = d;
        }
        if (whole && SHIFTED) reinterpret_cast<Vector<T>*>(whole)[m * pitch + i] = v;
    }
    sum = lane_sum<32>(sum), sum2 = lane_sum<32>(sum2);
    if constexpr (SHARERS > 1) {
        __shared__ float2 of_warps[8];
        if (lane == 0) of_warps[warp] = {sum, sum2};
        __syncthreads();
        if (part > 0) return;
        sum = sum2 = 0.0f;
#pragma unroll
        for (int i = 0; i < SHARERS; ++i) sum += of_warps[warp + i].x, sum2 += of_warps[warp + i].y;
    }
    float off = sum / K, square = sum2 / K;
    if (lane == 0 && m < M) mean[m] = SHIFTED ? off : shift + off, rstd[m] = inverse_deviation(off, square);
}

// A producer warpgroup that sums up ROWS of x, COLUMNS of W, or both: one of its threads has the slabs brought, each thread sums a row,
// and each warp 64 columns.
template <bool NK, int BN, int STAGES, bool ROWS, bool COLUMNS>
struct SummingProducer {
    static constexpr bool X_BEFORE = false;
    static constexpr int WARPS = ROWS ? 4 : BN / 64, AHEAD = STAGES - 1;  // slabs asked for before one is looked at
    static constexpr int REGISTERS = 112, COLUMN_THREADS = 32 * WARPS, CONSUMER_WARPS = WARPS, ROW_BYTES = ROWS ? 8 : 0;

    template <typename T, typename Tile, typename Scheduler, typename L, typename P, typename C, typename F>
    static __device__ __forceinline__ void run(const Scheduler& scheduler, L& loader, const P& pipeline, const C& columns,
                                               long long K, F f) {
        static_assert(!ROWS || Tile::X_BYTES == 128 * 128, "a thread a row");
        int warp = threadIdx.x / 32, i = -AHEAD, all = scheduler.stages();
#pragma unroll 1
        for (int tile = 0; warp < WARPS && tile < scheduler.count; ++tile) {
            int n0 = scheduler.share(tile).n0;
            RowSums<T> rows;
            ColumnSums<T, NK> sums;
#pragma unroll 1
            for (int k = tile == 0 ? -AHEAD : 0; k < scheduler.depth; ++k, ++i) {
                if (warp == 0 && i + AHEAD < all && elect_one()) loader.load(pipeline, i + AHEAD);
                if (k < 0) continue;
                if (!COLUMNS && k == 0) {  // once the first slabs are on their way
                    auto to = reinterpret_cast<float2*>(columns.producer_acquire(tile));
                    bring_columns<Tile::COLUMNS, COLUMN_THREADS>(to, threadIdx.x, n0, scheduler.N, f);
                }
                pipeline.consumer_wait(i);
                if constexpr (ROWS) rows.add(pipeline.stage(i), static_cast<int>(K) - k * SLAB<T>, k == 0);
                if (COLUMNS && warp < BN / 64) sums.add(pipeline.stage(i) + Tile::X_BYTES + warp * (64 * 128));
                fence_proxy_async();
                pipeline.consumer_release(i);
            }
            auto to = reinterpret_cast<float2*>(COLUMNS ? columns.producer_acquire(tile) : columns.stage(tile));
            if constexpr (ROWS) to[Tile::COLUMNS + threadIdx.x] = rows.finish(K);
            if (COLUMNS && warp < BN / 64)
                sums.finish([&](int n, float sum) {  // sum and bias
                    n += warp * 64;
                    to[n] = {sum, to_float(f.b[min(n0 + n, scheduler.N - 1)])};
                });
            columns.producer_commit(tile);
        }
    }
};
