// The first layer of a perceptron behind outer products, which are never stored: act((v ⊗ v) @ W + b). v of a sample is N = (F + 1) D values,
// dense (M, D) and then sparse (M, F, D); row i N + j of W (N², P) multiplies v[i] v[j], rounded as an interaction would be.
//
// W is large (186 624 rows for DLRM) and nearly all that is read; samples are few. So blocks share out W:
//
//   outer_share   a block has a tile of samples and columns, and one of the pieces of K = N²: its sums go to sums (PARTS, M, P), float32
//   outer_total   adds up the pieces, in one order; bias and activation
#pragma once
#include "_shared/cuda/matmul_simt.cuh"

// As RowLoader's slabs of a matrix (M, N²), from slab `skipped` on, made of v. ALIGNED: D is whole vectors.
template <typename T, bool ALIGNED, int ROWS, int THREADS>
struct OuterLoader {
    static constexpr int SIZE = Vector<T>::SIZE, STRIDE = THREADS / 8, COUNT = ROWS / STRIDE;
    static_assert(ROWS % STRIDE == 0, "all threads have as many vectors");
    const T *dense, *sparse;  // of the thread's first sample
    int N, D, i, j, to, rows; // k = i N + j is that of its next vector

    __device__ __forceinline__ OuterLoader(const T* dense, const T* sparse, long long first, long long M, int N, int D, int skipped)
        : N(N), D(D) {
        int chunk = threadIdx.x % 8, row = threadIdx.x / 8, k = skipped * SLAB<T> + chunk * SIZE;
        i = k / N, j = k % N;
        to = (row * 8 + (chunk ^ (row & 7))) * 16;
        rows = static_cast<int>(min(M - first, static_cast<long long>(ROWS))) - row;
        this->dense = dense + (first + row) * D;
        this->sparse = sparse + (first + row) * (N - D) - D;
    }
    // Where value n of the thread's r-th sample is.
    __device__ __forceinline__ const T* value(int r, int n) const {
        long long sample = r * STRIDE;
        return n < D ? dense + sample * D + n : sparse + sample * (N - D) + n;
    }
    __device__ __forceinline__ void load(unsigned char* memory) {
        Vector<T> v[COUNT], by[COUNT];  // all are asked for before the first is stored
#pragma unroll
        for (int r = 0; r < COUNT; ++r) {
            v[r] = by[r] = {};
            if (r * STRIDE >= rows) continue;
            if constexpr (ALIGNED) {
                if (i < N) v[r] = *reinterpret_cast<const Vector<T>*>(value(r, j)), by[r].at[0] = *value(r, i);
            } else {
                for (int e = 0, own = i, other = j; e < SIZE && own < N; ++e) {
                    v[r].at[e] = *value(r, other), by[r].at[e] = *value(r, own);
                    if (++other == N) other = 0, ++own;
                }
            }
        }
#pragma unroll
        for (int r = 0; r < COUNT; ++r) {
            Vector<T> products;
#pragma unroll
            for (int e = 0; e < SIZE; ++e) products.at[e] = from_float<T>(to_float(v[r].at[e]) * to_float(by[r].at[ALIGNED ? 0 : e]));
            *reinterpret_cast<Vector<T>*>(memory + to + r * STRIDE * 128) = products;
        }
        for (j += SLAB<T>; j >= N; j -= N) ++i;
    }
};

template <typename T, bool SIMT, bool ALIGNED, bool COLUMNS_ALIGNED, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32)
    outer_share(const T* __restrict__ dense, const T* __restrict__ sparse, const T* __restrict__ W, float* __restrict__ sums,
                long long M, long long N, long long D, long long P, long long parts) {
    using Tile = typename TileOf<SIMT, T, false, BM, BN, WM, WN>::Type;
    extern __shared__ __align__(128) unsigned char memory[];  // STAGES * STAGE
    int slabs = static_cast<int>((N * N + SLAB<T> - 1) / SLAB<T>), each = (slabs + static_cast<int>(parts) - 1) / static_cast<int>(parts);
    // neighbours have neighbouring columns of the same rows of W
    long long across = (P + BN - 1) / BN, share = blockIdx.x / across % parts;
    long long m0 = blockIdx.x / (across * parts) * BM, n0 = blockIdx.x % across * BN;
    int first = min(static_cast<int>(share) * each, slabs);
    wait_for_previous_launch();
    Tile tile;
    OuterLoader<T, ALIGNED, BM, Tile::THREADS> rows(dense, sparse, m0, M, static_cast<int>(N), static_cast<int>(D), first);
    ColumnLoader<T, COLUMNS_ALIGNED, BN, Tile::THREADS> columns(W, n0, P, N * N);
    columns.skip(first);
    mainloop<STAGES>(tile, memory, rows, columns, min(each, slabs - first));
    float* to = sums + share * M * P;
    each_pair(
        tile, [](int) { return 0; },
        [&](int row, int column, float v0, float v1, int) {
            long long m = m0 + row, n = n0 + column;
            if (m < M && n < P) to[m * P + n] = v0;
            if (m < M && n + 1 < P) to[m * P + n + 1] = v1;
        });
}

// 32 elements a block, of whose pieces each warp adds up every eighth.
template <typename T, Activation ACT>
__global__ void __launch_bounds__(256)
    outer_total(const float* __restrict__ sums, const T* __restrict__ b, T* __restrict__ y, long long M, long long P, long long parts) {
    __shared__ float of_warps[8][32];
    wait_for_previous_launch();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    long long at = blockIdx.x * 32LL + lane;
    float sum = 0.0f;
    if (at < M * P)
#pragma unroll 4
        for (long long part = warp; part < parts; part += 8) sum += sums[part * M * P + at];
    of_warps[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || at >= M * P) return;
#pragma unroll
    for (int other = 1; other < 8; ++other) sum += of_warps[other][lane];
    y[at] = from_float<T>(activate<ACT>(sum + to_float(b[at % P])));
}
