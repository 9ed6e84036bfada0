// dz of a layer, the gradient by z, from z and dy, and what the products behind it want of its sums. Blocks have ROWS or more rows and 32
// vectors of columns, a vector a lane, so that both kinds of sums are at hand:
//
//   of columns   over the block's rows: db where one block has all rows, else a row of parts, which sum_parts() adds up
//   of rows      two of each row over the block's columns, as the functor has them: a part for each block across, which row_sums() adds up
//
// PARTS matrices of N columns lie side by side in z and dz. dz has rows of `pitch` elements, whole lines of the L2 cache where products want
// them so, with zeros behind the last column.
#pragma once
#include "_shared/cuda/device.cuh"

// The base of functors: no sums. f(z, dy, dz) of an element makes dz; of_columns(n, count) comes first, for the lane's vector.
struct Pull {
    static constexpr bool COLUMN_SUMS = false, ROW_SUMS = false;
    __device__ __forceinline__ void of_columns(long long, int) {}
    // Adds what element e of the lane's vector has to both sums of its row: dz as it is stored, and z.
    __device__ __forceinline__ void add(float&, float&, int, float, float) const {}
};

template <typename T>
constexpr int PULLED_COLUMNS = 32 * Vector<T>::SIZE;  // of a block

// Elements e and e + 1 of a vector, rounded together.
__device__ __forceinline__ void store_pair(Vector<float>& to, int e, float low, float high) { to.at[e] = low, to.at[e + 1] = high; }
__device__ __forceinline__ void store_pair(Vector<float16>& to, int e, float low, float high) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(reinterpret_cast<unsigned(&)[4]>(to)[e / 2]) : "f"(high), "f"(low));
}
__device__ __forceinline__ void store_pair(Vector<bfloat16>& to, int e, float low, float high) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(reinterpret_cast<unsigned(&)[4]>(to)[e / 2]) : "f"(high), "f"(low));
}

// The sum of v[lane / 4] over all lanes: each time a lane hands on half of what it has left.
__device__ __forceinline__ float sum_of_lanes(float (&v)[8], int lane) {
#pragma unroll
    for (int count = 4; count > 0; count /= 2) {
        bool upper = lane & count * 4;
#pragma unroll
        for (int i = 0; i < count; ++i) {
            float other = __shfl_xor_sync(0xffffffffu, upper ? v[i] : v[i + count], count * 4);
            v[i] = (upper ? v[i + count] : v[i]) + other;
        }
    }
    return lane_sum<4>(v[0]);
}

// By 256 threads; `each` rows of a block, `across` blocks side by side.
template <typename T, bool ALIGNED, int PARTS, typename F>
__device__ __forceinline__ void pull(const T* z, const T* dy, T* dz, T* db, float* column_parts, float2* row_parts, long long M,
                                     long long N, long long pitch, long long each, F f) {
    constexpr int SIZE = Vector<T>::SIZE, WIDTH = PULLED_COLUMNS<T>, AT_ONCE = PARTS == 1 ? 4 : 2;  // rows of a warp
    __shared__ float sums[F::COLUMN_SUMS ? 8 : 1][PARTS][F::COLUMN_SUMS ? WIDTH : 1];
    long long across = (N + WIDTH - 1) / WIDTH, block = blockIdx.x / across;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    long long n = blockIdx.x % across * WIDTH + lane * SIZE, end = min(M, (block + 1) * each);
    int count = static_cast<int>(min(N - n, static_cast<long long>(SIZE)));  // of a lane without columns 0 or less
    f.of_columns(n, count);
    float total[PARTS][SIZE] = {};
#pragma unroll 1
    for (long long first = block * each + warp; first < end; first += 8 * AT_ONCE) {
        Vector<T> before[AT_ONCE][PARTS], behind[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            long long m = min(first + 8 * i, end - 1);  // past the end the last row again, whose dz is made 0
#pragma unroll
            for (int p = 0; p < PARTS; ++p) before[i][p] = load_part<ALIGNED>(z + (m * PARTS + p) * N + n, count);
            behind[i] = load_part<ALIGNED>(dy + m * N + n, first + 8 * i < end ? count : 0);
        }
        float along[AT_ONCE * 2] = {};
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            Vector<T> made[PARTS];
#pragma unroll
            for (int e = 0; e < SIZE; e += 2) {
                float v[2][PARTS], d[2][PARTS];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
#pragma unroll
                    for (int p = 0; p < PARTS; ++p) v[h][p] = element(before[i][p], e + h);
                    f(v[h], element(behind[i], e + h), d[h]);
                }
#pragma unroll
                for (int p = 0; p < PARTS; ++p) {
                    store_pair(made[p], e, d[0][p], d[1][p]);
#pragma unroll
                    for (int h = 0; h < 2; ++h)
                        if (F::COLUMN_SUMS) total[p][e + h] += element(made[p], e + h);
                }
#pragma unroll
                for (int h = 0; h < 2; ++h) f.add(along[2 * i], along[2 * i + 1], e + h, element(made[0], e + h), v[h][0]);
            }
            long long m = first + 8 * i;
            if (m < end)
#pragma unroll
                for (int p = 0; p < PARTS; ++p) {
                    T* to = dz + m * pitch + p * N + n;
                    if (ALIGNED || (PARTS == 1 && pitch % SIZE == 0)) store_part<true>(to, made[p], count);
                    else store_part<false>(to, made[p], count);
                }
        }
        if constexpr (F::ROW_SUMS) {
            float sum = sum_of_lanes(along, lane);
            long long m = first + lane / 8 * 8;
            if (lane % 4 == 0 && m < end) reinterpret_cast<float*>(row_parts)[(m * across + blockIdx.x % across) * 2 + lane / 4 % 2] = sum;
        }
    }
    // what is behind the last columns
    long long behind_all = PARTS == 1 ? (N + SIZE - 1) / SIZE * SIZE : PARTS * N;
    if (behind_all < pitch && n - lane * SIZE + WIDTH >= N)
        for (long long m = block * each + warp; m < end; m += 8)
#pragma unroll 1
            for (long long k = behind_all + lane; k < pitch; k += 32) dz[m * pitch + k] = T{};
    if constexpr (F::COLUMN_SUMS) {
#pragma unroll
        for (int p = 0; p < PARTS; ++p)
#pragma unroll
            for (int e = 0; e < SIZE; ++e) sums[warp][p][e * 32 + lane] = total[p][e];  // one bank a lane
        __syncthreads();
        for (int i = threadIdx.x; i < PARTS * WIDTH; i += 256) {
            int p = i / WIDTH, column = i % WIDTH;
            long long at = blockIdx.x % across * WIDTH + column;
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < 8; ++w) sum += sums[w][p][column % SIZE * 32 + column / SIZE];
            if (at >= N) continue;
            if (M <= each) db[p * N + at] = from_float<T>(sum);
            else column_parts[(block * PARTS + p) * N + at] = sum;
        }
    }
}

// db (N,) of `count` rows of parts, in their order; by `threads` threads of each of the first `blocks`, of which this is number `thread`.
template <typename T>
struct ColumnParts {
    const float* parts;
    T* db;
    long long N, count;

    __device__ __forceinline__ void sum_up(int thread, int threads, unsigned blocks) const {
        if (count < 2) return;
        for (long long n = blockIdx.x * static_cast<long long>(threads) + thread; n < N; n += blocks * static_cast<long long>(threads)) {
            float sum = 0.0f;
#pragma unroll 8
            for (long long i = 0; i < count; ++i) sum += parts[i * N + n];
            db[n] = from_float<T>(sum);
        }
    }
};

// Both sums of row m, of `count` parts.
__device__ __forceinline__ float2 row_sums(const float2* parts, long long m, int count) {
    float2 sum = {};
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
        float2 part = parts[m * count + i];
        sum.x += part.x, sum.y += part.y;
    }
    return sum;
}
