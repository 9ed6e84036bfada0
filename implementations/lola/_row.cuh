// lola of one row (M = 1), limited by how fast W streams in. W's contiguous axis decides who sums what: a lane owns columns (row_kn,
// row_ring), or a warp owns columns and its lanes share their K (row_nk). cuda.cu says where the statistics come from. Rows of W hold whole
// vectors of 16 bytes: they are `pitch` elements apart, and `prepare` puts zeros behind those of other sizes.
#pragma once
#include "_shared/cuda/device.cuh"

constexpr float EPS = 1e-5f;

// Variance from the sums of d = x - s over K elements. Rounding may make it negative; NaN must stay NaN.
__device__ __forceinline__ float inverse_deviation(float mean_d, float mean_d2) {
    float variance = mean_d2 - mean_d * mean_d;
    return 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + EPS);
}

// The mean of the row's first elements, the same in every warp and block.
template <typename T>
__device__ __forceinline__ float row_shift(const T* x, long long K) {
    int lane = threadIdx.x % 32;
    float first = lane < K ? to_float(x[lane]) : 0.0f;
    return lane_sum<32>(first) / static_cast<float>(min(K, 32LL));
}

// W (K, N). LANES lanes of a warp sit side by side on 16-byte vectors of one row of W, 32 / LANES rows at a time; the
// warps of a block share K. Few LANES make many blocks (small N), many make long contiguous reads (large N). A thread has two
// batches of UNROLL vectors on their way: while it uses one, the other still comes, so that memory never waits for arithmetic.
template <typename T, Activation ACT, int LANES, int WARPS, int UNROLL>
// 16 bits take 128 registers, sums of eight columns among them
__global__ void __launch_bounds__(WARPS * 32, (sizeof(T) == 4 ? 128 / UNROLL : 16) / WARPS)
    row_kn(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b, T* __restrict__ y, long long K, long long N,
           long long pitch) {
    constexpr int SIZE = Vector<T>::SIZE, COLUMNS = LANES * SIZE, GROUPS = 32 / LANES, ROWS = WARPS * GROUPS, STEP = UNROLL * ROWS;
    int column = threadIdx.x % LANES, group = threadIdx.x / LANES, lane = threadIdx.x % 32;
    long long n = static_cast<long long>(blockIdx.x) * COLUMNS + column * SIZE;

    // A thread finishes the column of its number; its bias is asked for now, so that nobody waits for it at the end.
    static_assert(COLUMNS <= WARPS * 32, "one thread a column");
    long long own = static_cast<long long>(blockIdx.x) * COLUMNS + threadIdx.x;
    bool finishes = threadIdx.x < COLUMNS && own < N;
    float bias = finishes ? to_float(b[own]) : 0.0f;

    float sum = 0.0f, sum2 = 0.0f, product[SIZE] = {}, colsum[SIZE] = {};
    constexpr int HELD = (UNROLL * GROUPS + 31) / 32;  // elements of x that a lane loads for its warp
    struct Batch {
        Vector<T> w[UNROLL];
        float x[HELD];
    } one, other;
    int left = static_cast<int>(K) - group;  // rows from the next one to be requested on, and of x likewise
    const T *w_from = W + group * pitch + n, *x_from = x + group - lane / LANES;
    auto request = [&](Batch& batch) {  // every ROWS-th row; past K they are 0
        int in_warp = left + lane / LANES;
#pragma unroll
        for (int h = 0; h < HELD; ++h) {
            int at = (lane + h * 32) / GROUPS * ROWS + lane % GROUPS;
            batch.x[h] = at < in_warp && lane + h * 32 < UNROLL * GROUPS ? to_float(x_from[at]) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            batch.w[i] = i * ROWS < left && n < N ? load_streaming(w_from) : Vector<T>{};
            w_from += ROWS * pitch;
        }
        left -= STEP, x_from += STEP;
    };
    request(one);
    request(other);
    float shift = row_shift(x, K);
    auto add = [&](const Batch& batch, int k) {
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            float v = __shfl_sync(0xffffffffu, batch.x[i * GROUPS / 32], i * GROUPS % 32 + lane / LANES);
            float d = k + group + i * ROWS < K ? v - shift : 0.0f;
            sum += d;
            sum2 = fmaf(d, d, sum2);
#pragma unroll
            for (int j = 0; j < SIZE; ++j) {
                float wj = element(batch.w[i], j);
                product[j] = fmaf(d, wj, product[j]);
                colsum[j] += wj;
            }
        }
    };
    for (int k = 0; k < K; k += 2 * STEP) {
        add(one, k);
        request(one);
        add(other, k + STEP);
        request(other);
    }

    // Lanes on the same columns first, then warps.
    __shared__ float products[WARPS][COLUMNS], colsums[WARPS][COLUMNS], sums[WARPS], sums2[WARPS];
    int warp = threadIdx.x / 32;
#pragma unroll
    for (int j = 0; j < SIZE; ++j) {
        float p = lane_sum<32 / LANES, LANES>(product[j]), c = lane_sum<32 / LANES, LANES>(colsum[j]);
        if (lane < LANES) products[warp][column * SIZE + j] = p, colsums[warp][column * SIZE + j] = c;
    }
    sum = lane_sum<32 / LANES, LANES>(sum);
    sum2 = lane_sum<32 / LANES, LANES>(sum2);
    if (lane == 0) sums[warp] = sum, sums2[warp] = sum2;
    __syncthreads();
    if (!finishes) return;
    float p = 0.0f, c = 0.0f, total = 0.0f, total2 = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) {
        p += products[i][threadIdx.x], c += colsums[i][threadIdx.x];
        total += sums[i], total2 += sums2[i];
    }
    float mean = total / K;
    y[own] = from_float<T>(activate<ACT>((p - mean * c) * inverse_deviation(mean, total2 / K) + bias));
}

// W (K, N), with more of it on its way than registers hold: a thread copies AHEAD vectors to places of its own in shared
// memory, and reads each when it has come, so that no thread waits for another. LANES neighbouring threads, any number, are side by side
// on a row of W. The row's statistics are taken first, while the first vectors come; what is multiplied is x less its mean.
template <typename T, Activation ACT, int LANES, int WARPS, int AHEAD>
__global__ void __launch_bounds__(WARPS * 32, 16 / WARPS)
    row_ring(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b, T* __restrict__ y, long long K, long long N,
             long long pitch) {
    constexpr int SIZE = Vector<T>::SIZE, COLUMNS = LANES * SIZE, THREADS = WARPS * 32, ROWS = THREADS / LANES;
    constexpr int BATCH = 4, STEP = BATCH * ROWS;             // vectors that a thread takes at once, and rows that the block does
    constexpr int OWN = (COLUMNS + THREADS - 1) / THREADS;    // columns that a thread finishes
    constexpr int HELD = 4;                                   // vectors of x that a thread asks for before it does for W
    extern __shared__ __align__(16) unsigned char memory[];   // (AHEAD, THREADS) vectors, then x less its shift: (steps, ROWS, BATCH)
    auto ring = reinterpret_cast<Vector<T>*>(memory) + threadIdx.x;
    auto deviations = reinterpret_cast<float*>(memory + AHEAD * THREADS * 16);
    int column = threadIdx.x % LANES, group = threadIdx.x / LANES, warp = threadIdx.x / 32;
    long long n0 = static_cast<long long>(blockIdx.x) * COLUMNS, n = n0 + column * SIZE;
    int steps = static_cast<int>((K + STEP - 1) / STEP), vectors = static_cast<int>(K / SIZE);

    float bias[OWN];
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
        int own = threadIdx.x + i * THREADS;
        bias[i] = own < COLUMNS && n0 + own < N ? to_float(b[n0 + own]) : 0.0f;
    }
    auto first = load_streaming(x);
    Vector<T> held[HELD];
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        int v = threadIdx.x + i * THREADS;
        held[i] = load_streaming(x + min(v, vectors - 1) * SIZE);
    }

    int left = group < ROWS && n < N ? static_cast<int>(K) - group : 0;  // rows from the next one to be requested on
    const T* from = W + group * pitch + n;
    auto request = [&](Vector<T>* to) {  // every ROWS-th row; past K they are 0
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            copy_async(shared_address(to + i * THREADS), from, i * ROWS < left);
            from += ROWS * pitch;
        }
        left -= STEP;
        copy_commit();
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i += BATCH) request(ring + i * THREADS);

    float shift = 0.0f, sum = 0.0f, sum2 = 0.0f;
#pragma unroll
    for (int j = 0; j < SIZE; ++j) shift += element(first, j);
    shift /= SIZE;
    auto place = [](unsigned k) { return k / STEP * STEP + k % STEP % ROWS * BATCH + k % STEP / ROWS; };
    auto deposit_one = [&](float v, int k) {
        float d = v - shift;
        sum += d;
        sum2 = fmaf(d, d, sum2);
        deviations[place(k)] = d;
    };
    auto deposit = [&](const Vector<T>& v, int k) {
#pragma unroll
        for (int j = 0; j < SIZE; ++j) deposit_one(element(v, j), k + j);
    };
#pragma unroll
    for (int i = 0; i < HELD; ++i) {
        int v = threadIdx.x + i * THREADS;
        if (v < vectors) deposit(held[i], v * SIZE);
    }
    for (int v = threadIdx.x + HELD * THREADS; v < vectors; v += THREADS) deposit(load_streaming(x + v * SIZE), v * SIZE);
    if (int k = vectors * SIZE + threadIdx.x; k < K) deposit_one(to_float(x[k]), k);
    for (int k = static_cast<int>(K) + threadIdx.x; k < steps * STEP; k += THREADS) deviations[place(k)] = 0.0f;
    __shared__ float sums[WARPS], sums2[WARPS];
    sum = lane_sum<32>(sum), sum2 = lane_sum<32>(sum2);
    if (threadIdx.x % 32 == 0) sums[warp] = sum, sums2[warp] = sum2;
    __syncthreads();
    float mean = 0.0f, square = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) mean += sums[i], square += sums2[i];
    mean /= K;
    float rstd = inverse_deviation(mean, square / K);

    float product[SIZE] = {};
    auto of_group = reinterpret_cast<const float4*>(deviations) + min(group, ROWS - 1);
    int slot = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
        copy_wait<AHEAD / BATCH - 1>();
        Vector<T> w[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) w[i] = ring[slot + i * THREADS];
        request(ring + slot);
        slot = slot + BATCH * THREADS == AHEAD * THREADS ? 0 : slot + BATCH * THREADS;
        float4 four = of_group[step * ROWS];
        const float d[BATCH] = {four.x - mean, four.y - mean, four.z - mean, four.w - mean};
#pragma unroll
        for (int i = 0; i < BATCH; ++i)
#pragma unroll
            for (int j = 0; j < SIZE; ++j) product[j] = fmaf(d[i], element(w[i], j), product[j]);
    }

    // The sums of a column: of every PARTS-th group by one thread each, then of these.
    constexpr int PARTS = COLUMNS < THREADS ? THREADS / COLUMNS : 1;
    auto products = reinterpret_cast<float*>(memory);  // (ROWS, COLUMNS), in place of W
    copy_wait<0>();
    __syncthreads();
    if (group < ROWS) {
#pragma unroll
        for (int j = 0; j < SIZE; j += 4)
            *reinterpret_cast<float4*>(products + group * COLUMNS + column * SIZE + j) =
                make_float4(product[j], product[j + 1], product[j + 2], product[j + 3]);
    }
    __syncthreads();
    auto total = [&](int at, int end, int step) {
        float p = 0.0f;
        for (int g = at / COLUMNS; g < end; g += step) p += products[g * COLUMNS + at % COLUMNS];
        return p;
    };
    if constexpr (PARTS > 1) {
        if (threadIdx.x < PARTS * COLUMNS) products[threadIdx.x] = total(threadIdx.x, ROWS, PARTS);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
        int own = threadIdx.x + i * THREADS;
        if (own < COLUMNS && n0 + own < N)
            y[n0 + own] = from_float<T>(activate<ACT>(total(own, PARTS > 1 ? PARTS : ROWS, 1) * rstd + bias[i]));
    }
}

// W (N, K). A warp owns COLUMNS rows of W and reads them, and x, 32 vectors at a time.
template <typename T, Activation ACT, int COLUMNS, int WARPS>
__global__ void __launch_bounds__(WARPS * 32, 2)
    row_nk(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b, T* __restrict__ y, long long K, long long N,
           long long pitch) {
    constexpr int SIZE = Vector<T>::SIZE, AHEAD = 2;
    int lane = threadIdx.x % 32;
    long long n0 = (static_cast<long long>(blockIdx.x) * WARPS + threadIdx.x / 32) * COLUMNS;
    if (n0 >= N) return;
    const T* rows[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) rows[c] = W + min(n0 + c, N - 1) * pitch;

    float bias = lane < COLUMNS && n0 + lane < N ? to_float(b[n0 + lane]) : 0.0f;

    Vector<T> w[AHEAD][COLUMNS], v[AHEAD];
    float shift, sum = 0.0f, sum2 = 0.0f, product[COLUMNS] = {}, colsum[COLUMNS] = {};
    auto request = [&](long long k0) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            long long k = k0 + i * 32 * SIZE;
            if (k >= K) continue;
            int count = static_cast<int>(min(K - k, static_cast<long long>(SIZE)));
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) w[i][c] = load_streaming(rows[c] + k);
            v[i] = count == SIZE ? load_part<true>(x + k, SIZE) : load_part<false>(x + k, count);
        }
    };
    auto add = [&](long long k0) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            long long k = k0 + i * 32 * SIZE;
            if (k >= K) continue;
#pragma unroll
            for (int j = 0; j < SIZE; ++j) {
                float d = k + j < K ? element(v[i], j) - shift : 0.0f;  // past the end W is 0 too
                sum += d;
                sum2 = fmaf(d, d, sum2);
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c) {
                    float wj = element(w[i][c], j);
                    product[c] = fmaf(d, wj, product[c]);
                    colsum[c] += wj;
                }
            }
        }
    };
    request(lane * SIZE);
    shift = row_shift(x, K);
    for (long long k0 = lane * SIZE; k0 < K; k0 += AHEAD * 32 * SIZE) {
        if (k0 != lane * SIZE) request(k0);
        add(k0);
    }

    float mean = lane_sum<32>(sum) / K, rstd = inverse_deviation(mean, lane_sum<32>(sum2) / K);
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
        float p = lane_sum<32>(product[c]), cs = lane_sum<32>(colsum[c]);
        if (lane == c && n0 + c < N)
            y[n0 + c] = from_float<T>(activate<ACT>((p - mean * cs) * rstd + bias));
    }
}
