// Layers in registers: what goes in, what goes from one to the next, and what comes out. Fragments are those of mma.sync and wgmma, 16
// rows a warp (device.cuh).
#pragma once
#include "_shared/cuda/device.cuh"

// Two sums as 16-bit elements of a register, what is below 0 as 0; NaN stays NaN.
__device__ __forceinline__ unsigned pack_relu(float low, float high, float16) {
    unsigned r;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
__device__ __forceinline__ unsigned pack_relu(float low, float high, bfloat16) {
    unsigned r;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

// A layer's sums as the left operand of the next one's product; PARTLY, only the first `width` columns, and 0 for the others: an inf in
// x makes them NaN (inf * 0), which the next layer's zeros do not remove.
template <typename T, bool PARTLY = false, int FN>
__device__ __forceinline__ void pack_layer(unsigned (&a)[FN / 2][4], const float (&c)[FN][4], int width = FN * 8) {
#pragma unroll
    for (int j = 0; j < FN / 2; ++j)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            int f = 2 * j + r / 2;
            a[j][r] = pack_relu(c[f][r % 2 * 2], c[f][r % 2 * 2 + 1], T{});
            if (PARTLY && f * 8 >= width) a[j][r] = 0;
        }
}

template <int FN>
__device__ __forceinline__ void begin_at_bias(float (&c)[FN][4], const float* bias) {
#pragma unroll
    for (int j = 0; j < FN; ++j) {
        float2 b = *reinterpret_cast<const float2*>(bias + j * 8 + threadIdx.x % 4 * 2);
        c[j][0] = c[j][2] = b.x, c[j][1] = c[j][3] = b.y;
    }
}

// This lane's part of 16 rows of x from `row` on, as it is loaded.
template <typename T, int N0>
struct RowsInRegisters {
    unsigned short raw[2][4];

    __device__ __forceinline__ void load(const T* x, int row, int M) {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                int m = row + lane / 4 + h * 8, k = lane % 4 * 2 + e % 2 + e / 2 * 8;
                raw[h][e] = m < M && k < N0 ? x[static_cast<long long>(m) * N0 + k].bits : 0;
            }
    }
    __device__ __forceinline__ void pack(unsigned (&a)[4]) const {
#pragma unroll
        for (int r = 0; r < 4; ++r) a[r] = raw[r % 2][r / 2 * 2] | static_cast<unsigned>(raw[r % 2][r / 2 * 2 + 1]) << 16;
    }
};

// The sums of 16 rows from `row` on, to those that there are. PITCH is how many elements of y lie from one of them to the next.
template <Activation LAST, int OUT, int PITCH = OUT, typename T, int TILES>
__device__ __forceinline__ void store_rows(T* y, int row, int M, const float (&out)[TILES][4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        int m = row + threadIdx.x % 32 / 4 + h * 8;
        if (m >= M) continue;
#pragma unroll
        for (int j = 0; j < TILES; ++j) {
            int column = j * 8 + threadIdx.x % 4 * 2;
            Pair<T> z = {{from_float<T>(activate<LAST>(out[j][h * 2])), from_float<T>(activate<LAST>(out[j][h * 2 + 1]))}};
            T* to = y + static_cast<long long>(m) * PITCH + column;
            if (OUT % 2 == 0 && column < OUT) *reinterpret_cast<Pair<T>*>(to) = z;
            if (OUT % 2 && column < OUT) to[0] = z.at[0];
            if (OUT % 2 && column + 1 < OUT) to[1] = z.at[1];
        }
    }
}
