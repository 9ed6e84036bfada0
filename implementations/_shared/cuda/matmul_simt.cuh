// x @ W on the float32 units (precision "ieee").
//
//   matmul_simt     a whole kernel but for the epilogue, as matmul_mma of matmul_mma.cuh
//   SimtTile        TensorTile on the float32 units, from the same slabs in shared memory
//   TileOf<SIMT, …>::Type, add_part, each_pair      for kernels that work with either
#pragma once
#include "_shared/cuda/matmul_mma.cuh"

// The sums of a block: WM × WN warps, each with TM × TN of the BM × BN; float alone, products and sums in IEEE float32.
// A warp's lanes are 4 × 8: a lane has every 4th row, and of every 16 columns two neighbours, like TensorTile's.
template <bool NK, int BM, int BN, int WM, int WN>
struct SimtTile {
    static constexpr int THREADS = WM * WN * 32, TM = BM / WM, TN = BN / WN, COLUMNS = BN;
    static constexpr int ROWS = TM / 4, PAIRS = TN / 16;                   // of a lane
    static constexpr int X_BYTES = BM * 128, STAGE = X_BYTES + BN * 128;  // of a slab of x; of x and W
    static_assert(TM % 4 == 0 && TN % 16 == 0, "whole lanes");

    float c[ROWS][PAIRS][2] = {};
    int row0 = threadIdx.x / 32 / WN * TM + threadIdx.x % 32 / 8;
    int column0 = threadIdx.x / 32 % WN * TN + threadIdx.x % 8 * 2;

    __device__ __forceinline__ void begin(const unsigned char*) {}

    // Adds the product of the first `count` elements of K of a slab of x and one of W in shared memory.
    __device__ __forceinline__ void add(const unsigned char* x, const unsigned char* w, int count = 32) {
#pragma unroll 1
        for (int chunk = 0; chunk < 8 && chunk * 4 < count; ++chunk) {  // 4 elements of K
            float b[PAIRS][2][4];
#pragma unroll
            for (int j = 0; j < PAIRS; ++j) {
                int n = column0 + j * 16;
                if constexpr (NK) {
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        *reinterpret_cast<float4*>(b[j][e]) =
                            *reinterpret_cast<const float4*>(w + slab_place<float>(n + e, chunk * 4));
                } else {
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
                        int row = chunk * 4 + k;
                        int at = (row * (BN / 4) + (n / 4 ^ column_swizzle<float, BN / 4>(row))) * 16 + n % 4 * 4;
                        float2 two = *reinterpret_cast<const float2*>(w + at);
                        b[j][0][k] = two.x, b[j][1][k] = two.y;
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                float a[4];
                *reinterpret_cast<float4*>(a) =
                    *reinterpret_cast<const float4*>(x + slab_place<float>(row0 + i * 4, chunk * 4));
#pragma unroll
                for (int k = 0; k < 4; ++k)
#pragma unroll
                    for (int j = 0; j < PAIRS; ++j)
#pragma unroll
                        for (int e = 0; e < 2; ++e) c[i][j][e] = fmaf(a[k], b[j][e][k], c[i][j][e]);
            }
        }
    }
};

// f(row, column, v0, v1, of_columns(column)) for all sums of a tile, a pair of neighbouring columns at a time; rows and
// columns are those of the tile, and of_columns is called once for a pair of columns (to read a bias, say).
template <bool NK, int BM, int BN, int WM, int WN, typename C, typename F>
__device__ __forceinline__ void each_pair(const SimtTile<NK, BM, BN, WM, WN>& tile, C of_columns, F f) {
#pragma unroll
    for (int j = 0; j < tile.PAIRS; ++j) {
        auto data = of_columns(tile.column0 + j * 16);
#pragma unroll
        for (int i = 0; i < tile.ROWS; ++i)
            f(tile.row0 + i * 4, tile.column0 + j * 16, tile.c[i][j][0], tile.c[i][j][1], data);
    }
}
template <typename T, bool NK, int BM, int BN, int WM, int WN, bool XT, typename C, typename F>
__device__ __forceinline__ void each_pair(const TensorTile<T, NK, BM, BN, WM, WN, 1, XT>& tile, C of_columns, F f) {
#pragma unroll
    for (int j = 0; j < tile.FN; ++j) {
        int column = tile.column0 + j * 8 + 2 * tile.t;
        auto data = of_columns(column);
#pragma unroll
        for (int i = 0; i < tile.FM; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                f(tile.row0 + i * 16 + h * 8 + tile.g, column, tile.c[i][j][h * 2], tile.c[i][j][h * 2 + 1], data);
    }
}

// tile += the first `count` elements of K of a slab of x and one of W.
template <bool NK, int BM, int BN, int WM, int WN>
__device__ __forceinline__ void add_part(SimtTile<NK, BM, BN, WM, WN>& tile, const unsigned char* x,
                                         const unsigned char* w, int count) {
    tile.add(x, w, count);
}
template <typename T, bool NK, int BM, int BN, int WM, int WN>
__device__ __forceinline__ void add_part(TensorTile<T, NK, BM, BN, WM, WN>& tile, const unsigned char* x,
                                         const unsigned char* w, int count) {
    using Tile = TensorTile<T, NK, BM, BN, WM, WN>;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        if (step * 32 >= count * static_cast<int>(sizeof(T))) break;
        unsigned a[Tile::FM][4], b[Tile::FN][2];
        tile.load_x(a, x, step);
        tile.load_w(b, w, step);
        Nearest<T>{}(a, step);
        Nearest<T>{}(b, step);
#pragma unroll
        for (int i = 0; i < Tile::FM; ++i)
#pragma unroll
            for (int j = 0; j < Tile::FN; ++j) multiply_add(tile.c[i][j], a[i], b[j], T{});
    }
}

template <bool SIMT, typename T, bool NK, int BM, int BN, int WM, int WN>
struct TileOf {
    using Type = TensorTile<T, NK, BM, BN, WM, WN>;
};
template <bool NK, int BM, int BN, int WM, int WN>
struct TileOf<true, float, NK, BM, BN, WM, WN> {
    using Type = SimtTile<NK, BM, BN, WM, WN>;
};

// ---- a whole kernel -----------------------------------------------------------------------------------------------------

// A thread computes 8 × 8 of the tile as 2 × 2 blocks of 4 × 4, so that neighbouring lanes read neighbouring 16 bytes of
// shared memory; with two parts, its left blocks are of the one and its right blocks of the other. Slabs of 16 in K: while
// one is multiplied, the next is on its way to registers.
template <int BM, int BN>
constexpr int SIMT_THREADS = BM * BN / 64;
template <int BM, int BN>
constexpr int SIMT_BLOCKS = BM * BN >= 128 * 128 ? 2 : 4;  // on a multiprocessor: for __launch_bounds__

template <bool ALIGNED, bool NK, int BM, int BN, int PARTS, bool XT = false, typename F>
__device__ __forceinline__ void matmul_simt(const float* __restrict__ x, const float* __restrict__ W,
                                            float* __restrict__ y, long long M, long long K, long long N, F f) {
    static_assert(PARTS == 1 || PARTS == 2, "a thread has two blocks of columns");
    constexpr int BK = 16, THREADS = SIMT_THREADS<BM, BN>, PAD = 4, COLUMNS = BN / PARTS;
    constexpr int X_LOADS = BM * 4 / THREADS, W_LOADS = BN * 4 / THREADS;  // vectors a thread brings in per slab
    constexpr int QUADS = THREADS / 4, GROUPS = THREADS / (BN / 4);
    __shared__ float xs[2][BK][BM + PAD], ws[2][BK][BN + PAD];

    int tid = threadIdx.x, quad = tid / 4, part = tid % 4 * 4;  // 4 threads bring 16 elements of a row of K
    long long m0, n0;
    block_origin(M, N, BM, COLUMNS, m0, n0);
    int w_column = tid % (BN / 4) * 4, w_k = tid / (BN / 4);  // of a (K, N) slab

    // XT: x is stored (K, M), and brought as a (K, N) slab is
    constexpr int X_GROUPS = THREADS / (BM / 4);
    int x_row = XT ? tid % (BM / 4) * 4 : quad, x_k = tid / (BM / 4);
    const float* x_from = XT ? x + x_k * M + m0 + x_row : x + (m0 + quad) * K + part;
    int rows = static_cast<int>(min(M - m0, static_cast<long long>(BM))) - x_row;
    // Vector i of a thread is QUADS columns (NK), or GROUPS rows, on from the one before; one that crosses COLUMNS is in
    // the next part.
    static_assert(COLUMNS % QUADS == 0, "the part of a vector depends on i alone");
    int local = NK ? quad : w_column % COLUMNS;
    const float* w_from = NK ? W + (n0 + quad) * K + part
                             : W + w_k * (PARTS * N) + w_column / COLUMNS * N + n0 + local;
    int columns = static_cast<int>(min(N - n0, static_cast<long long>(COLUMNS))) - local;

    Vector<float> xv[X_LOADS], wv[W_LOADS];
    auto request = [&](int left) {  // the next slab; what lies outside of x or W becomes 0
#pragma unroll
        for (int i = 0; i < X_LOADS; ++i) {
            if constexpr (XT) xv[i] = load_part<ALIGNED>(x_from + i * X_GROUPS * M, x_k + i * X_GROUPS < left ? rows : 0);
            else xv[i] = load_part<ALIGNED>(x_from + i * QUADS * K, i * QUADS < rows ? left - part : 0);
        }
#pragma unroll
        for (int i = 0; i < W_LOADS; ++i) {
            if constexpr (NK) {
                long long row = i * QUADS / COLUMNS * N + i * QUADS % COLUMNS;
                wv[i] = load_part<ALIGNED>(w_from + row * K, i * QUADS % COLUMNS < columns ? left - part : 0);
            } else {
                wv[i] = load_part<ALIGNED>(w_from + i * GROUPS * PARTS * N, w_k + i * GROUPS < left ? columns : 0);
            }
        }
        w_from += NK ? BK : BK * PARTS * N;
        x_from += XT ? BK * M : BK;
    };
    auto deposit = [&](int stage, int left) {
#pragma unroll
        for (int i = 0; i < X_LOADS; ++i) {
            f.x(i, xv[i], left - part);
            if constexpr (XT) *reinterpret_cast<Vector<float>*>(&xs[stage][x_k + i * X_GROUPS][x_row]) = xv[i];
#pragma unroll
            for (int j = 0; j < 4 && !XT; ++j) xs[stage][part + j][quad + i * QUADS] = xv[i].at[j];
        }
#pragma unroll
        for (int i = 0; i < W_LOADS; ++i) {
            f.W(i, wv[i]);
            if constexpr (NK) {
#pragma unroll
                for (int j = 0; j < 4; ++j) ws[stage][part + j][quad + i * QUADS] = wv[i].at[j];
            } else {
                *reinterpret_cast<Vector<float>*>(&ws[stage][w_k + i * GROUPS][w_column]) = wv[i];
            }
        }
    };

    // The thread's place in the tile: a warp covers 4 × 8 threads.
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
                const float *a = &xs[stage][k][row + h * BM / 2], *b = &ws[stage][k][column + h * BN / 2];
                *reinterpret_cast<float4*>(&av[h * 4]) = *reinterpret_cast<const float4*>(a);
                *reinterpret_cast<float4*>(&bv[h * 4]) = *reinterpret_cast<const float4*>(b);
            }
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) c[i][j] = fmaf(av[i], bv[j], c[i][j]);
        }
    };

    int left = static_cast<int>(K), stage = 0;
    request(left);
    f.begin(xv);
    deposit(0, left);
    __syncthreads();
    for (left -= BK; left > 0; left -= BK, stage ^= 1) {
        request(left);
        multiply(stage);
        deposit(stage ^ 1, left);  // which everyone has read before the last barrier
        __syncthreads();
    }
    multiply(stage);
    f.end();

#pragma unroll
    for (int h = 0; h < 2 / PARTS; ++h) {
        int at = column + h * BN / 2;
        int count = static_cast<int>(min(N - n0 - at, 4LL));
        if (count <= 0) continue;
        decltype(f.column(0)) of_column[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) of_column[j] = f.column(min(n0 + at + j, N - 1));
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            long long m = m0 + row + i / 4 * BM / 2 + i % 4;
            if (m >= M) continue;
            auto of_row = f.row(m);
            Vector<float> out;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float v[PARTS];
#pragma unroll
                for (int p = 0; p < PARTS; ++p) v[p] = c[i][(h + p) * 4 + j];
                out.at[j] = f(of_row, of_column[j], v);
            }
            store_part<ALIGNED>(y + m * N + n0 + at, out, count);
        }
    }
}
