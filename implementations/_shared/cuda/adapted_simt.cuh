// A layer with a low-rank adapter on the float32 units (precision "ieee", matmul_simt.cuh): the epilogue of x @ W adds t @ B to the sums, where t has
// scale * x @ A in rows of whole vectors, before the bias and the activation. That takes R of K + R steps, so that nothing is staged for it.
// WHOLE: rows of B are whole vectors, with zeros behind N.
#pragma once
#include "_shared/cuda/lora.cuh"

template <Activation ACT, bool WHOLE>
struct Adapted : Biased<float, ACT> {
    static constexpr bool PAIRED = false;  // 2048×4096→4096 took 1.47 ms so on an H200, 1.41 without
    const float *__restrict__ t, *__restrict__ B;
    long long M, N, R;

    __device__ __forceinline__ Adapted(const float* b, const float* t, const float* B, long long M, long long N, long long R)
        : Biased<float, ACT>(b), t(t), B(B), M(M), N(N), R(R) {}

    // Adds to the sums of a thread, ROWS rows and vectors of four columns.
    template <int ROWS, int COLUMNS, typename RowOf, typename ColumnOf>
    __device__ __forceinline__ void add(float (&sums)[ROWS][COLUMNS], RowOf row_of, ColumnOf column_of) {
        long long pitch = filled_up<float>(R), pitch_of_B = WHOLE ? filled_up<float>(N) : N;
#pragma unroll 1
        for (long long r = 0; r < R; r += 4) {
            Vector<float> low[ROWS];
#pragma unroll
            for (int i = 0; i < ROWS; ++i) low[i] = load_part<true>(t + row_of(i) * pitch + r, row_of(i) < M ? 4 : 0);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                if (r + k >= R) break;
#pragma unroll
                for (int v = 0; v < COLUMNS / 4; ++v) {
                    long long n = column_of(v);
                    auto of_B = load_part<WHOLE>(B + (r + k) * pitch_of_B + n, static_cast<int>(max(min(N - n, 4LL), 0LL)));
#pragma unroll
                    for (int i = 0; i < ROWS; ++i)
#pragma unroll
                        for (int j = 0; j < 4; ++j) sums[i][v * 4 + j] = fmaf(low[i].at[k], of_B.at[j], sums[i][v * 4 + j]);
                }
            }
        }
    }
};

template <Activation ACT, bool WHOLE, bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    up_simt(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ t, const float* __restrict__ B,
            const float* __restrict__ b, float* __restrict__ y, long long M, long long K, long long N, long long R) {
    matmul_simt<ALIGNED, NK, BM, BN, 1>(x, W, y, M, K, N, Adapted<ACT, WHOLE>(b, t, B, M, N, R));
}

// The same with strips below whole tiles.
template <Activation ACT, bool WHOLE, bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    up_simt_strips(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ t, const float* __restrict__ B,
                   const float* __restrict__ b, float* __restrict__ y, long long M, long long K, long long N, long long R) {
    Adapted<ACT, WHOLE> f(b, t, B, M, N, R);
    matmul_simt_strips<ALIGNED, NK, BM, BN, 1>(x, W, y, M, K, N, Anywhere<Adapted<ACT, WHOLE>>{f});
}

#if __CUDA_ARCH__ >= 900
// The same by the blocks of a cluster, which share the K of a tile.
template <Activation ACT, bool WHOLE, bool ALIGNED, bool NK, int BM, int BN, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    up_simt_split(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ t, const float* __restrict__ B,
                  const float* __restrict__ b, float* __restrict__ y, long long M, long long K, long long N, long long R) {
    matmul_simt<ALIGNED, NK, BM, BN, 1, false, SPLIT>(x, W, y, M, K, N, Adapted<ACT, WHOLE>(b, t, B, M, N, R));
}
#endif
