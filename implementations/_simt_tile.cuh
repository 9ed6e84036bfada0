// SimtTile: _tile.cuh's TensorTile on the float32 units, from the same slabs in shared memory; and what kernels need that
// work with either: TileOf<SIMT, …>::Type, add_part and each_pair.
#pragma once
#include "_tile.cuh"

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
template <typename T, bool NK, int BM, int BN, int WM, int WN, typename C, typename F>
__device__ __forceinline__ void each_pair(const TensorTile<T, NK, BM, BN, WM, WN>& tile, C of_columns, F f) {
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
