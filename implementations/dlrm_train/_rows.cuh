// dlrm_train: a tile of rows goes through one layer, forward or back, in a block or in a cluster of them.
//
// Weights go from global memory to registers, where they are cast: a lane has 4 × 4 of them, whole vectors of 16 bytes of W as of Wᵀ, and the
// same lane multiplies them. Which of K's elements a lane has does not matter as long as the rows' operand has the same. The warps of a block
// that have no columns of their own share K instead, and their sums meet in shared memory.
#pragma once
#include "_model.cuh"

// Rows r … r + 3 of W (R, N), its columns c … c + 3; 0 outside of it.
template <bool ALIGNED>
__device__ __forceinline__ void load_weights(float (&w)[4][4], const float* __restrict__ W, int r, int c, int R, int N) {
#pragma unroll
    for (int q = 0; q < 4; ++q) {
        auto v = load_part<ALIGNED>(W + static_cast<long long>(r + q) * N + c, r + q < R ? N - c : 0);
#pragma unroll
        for (int e = 0; e < 4; ++e) w[q][e] = v.at[e];
    }
}

// Sums of 16 FM rows by 32 columns in a warp, on tensor cores: lane (g, t) has elements 4t … 4t + 3 of every 16 of K, of rows g + 8 i and of columns
// 4g … 4g + 3, of which column j belongs to fragment j.
template <typename T, int FM>
struct WarpTile {
    float c[FM][4][4] = {};

    // `in` is the rows' 16 elements of K; w(k, j) is element 4t + k of column 4g + j.
    template <typename W>
    __device__ __forceinline__ void add(const T* in, int pitch, int lane, W w) {
        int g = lane / 4, t = lane % 4;
        Quad<T> x[2 * FM];
#pragma unroll
        for (int i = 0; i < 2 * FM; ++i) x[i] = *reinterpret_cast<const Quad<T>*>(in + (g + 8 * i) * pitch + 4 * t);
        if constexpr (sizeof(T) == 2) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                unsigned b[2] = {pair(w(0, j), w(1, j)), pair(w(2, j), w(3, j))};
#pragma unroll
                for (int i = 0; i < FM; ++i) {
                    auto low = reinterpret_cast<const unsigned(&)[2]>(x[2 * i]), high = reinterpret_cast<const unsigned(&)[2]>(x[2 * i + 1]);
                    unsigned a[4] = {low[0], high[0], low[1], high[1]};
                    multiply_add(c[i][j], a, b, T{});
                }
            }
        } else {
#pragma unroll
            for (int k = 0; k < 4; k += 2)
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    unsigned b[2] = {nearest(w(k, j)), nearest(w(k + 1, j))};
#pragma unroll
                    for (int i = 0; i < FM; ++i) {
                        unsigned a[4] = {nearest(x[2 * i].at[k]), nearest(x[2 * i + 1].at[k]), nearest(x[2 * i].at[k + 1]),
                                         nearest(x[2 * i + 1].at[k + 1])};
                        multiply_add(c[i][j], a, b, T{});
                    }
                }
        }
    }

    __device__ __forceinline__ void store(float* part, int lane) {
        int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < 2 * FM; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float* to = part + (g + 8 * i) * PART_PITCH + 8 * t + 4 * h;
                auto& own = c[i / 2];
                int e = i % 2 * 2 + h;
                *reinterpret_cast<float4*>(to) = make_float4(own[0][e], own[1][e], own[2][e], own[3][e]);
            }
    }

private:
    static __device__ __forceinline__ unsigned nearest(float v) { return nearest_tf32(__float_as_uint(v)); }
    static __device__ __forceinline__ unsigned pair(float low, float high) {
        if constexpr (sizeof(T) == 2) return from_float<T>(low).bits | static_cast<unsigned>(from_float<T>(high).bits) << 16;
        else return 0;
    }
};

// The same of 16 rows in IEEE float32: a lane sums all rows over its own elements of K, and four lanes add up what they have.
struct SimtWarpTile {
    float c[16][4] = {};

    template <typename W>
    __device__ __forceinline__ void add(const float* in, int pitch, int lane, W w) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            auto x = *reinterpret_cast<const Quad<float>*>(in + i * pitch + lane % 4 * 4);
#pragma unroll
            for (int k = 0; k < 4; ++k)
#pragma unroll
                for (int j = 0; j < 4; ++j) c[i][j] = fmaf(x.at[k], w(k, j), c[i][j]);
        }
    }

    __device__ __forceinline__ void store(float* part, int lane) {
        bool second = lane & 1, other = lane & 2;
#pragma unroll
        for (int i = 0; i < 8; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) c[i][j] = exchanged(c[i][j], c[i + 8][j], second, 1);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) c[i][j] = exchanged(c[i][j], c[i + 4][j], other, 2);
        int row = 8 * second + 4 * other;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            *reinterpret_cast<float4*>(part + (row + i) * PART_PITCH + lane / 4 * 4) = make_float4(c[i][0], c[i][1], c[i][2], c[i][3]);
    }

private:
    // A lane keeps the first sum, or else the second, and gives the other away for its neighbour's.
    static __device__ __forceinline__ float exchanged(float first, float second, bool keeps_second, int distance) {
        float given = keeps_second ? first : second;
        return (keeps_second ? second : first) + __shfl_xor_sync(0xffffffffu, given, distance);
    }
};

template <bool SIMT, typename T, int FM>
struct WarpTileOf {
    using Type = WarpTile<T, FM>;
};
template <>
struct WarpTileOf<true, float, 1> {
    using Type = SimtWarpTile;
};

// Adds steps `begin` … `end` of 16 elements of K, TRANSPOSED: of N. n is the lane's first column.
template <bool TRANSPOSED, bool ALIGNED, typename Tile, typename T>
__device__ __forceinline__ void multiply(Tile& tile, const T* in, int pitch, const float* W, int K, int N, int n, int begin, int end) {
    constexpr int AHEAD = sizeof(tile.c) <= 256 ? 4 : 2;  // steps whose weights are requested before the first is multiplied
    int lane = threadIdx.x % 32, own = lane % 4 * 4;
    for (int step = begin; step < end; step += AHEAD) {
        float w[AHEAD][4][4];
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            int k = (step + a) * 16 + own;
            if (step + a >= end) k = whole(TRANSPOSED ? N : K, 16);  // none
            if constexpr (TRANSPOSED) load_weights<ALIGNED>(w[a], W, n, k, K, N);
            else load_weights<ALIGNED>(w[a], W, k, n, K, N);
        }
#pragma unroll
        for (int a = 0; a < AHEAD; ++a)
            if (step + a < end)
                tile.add(in + (step + a) * 16, pitch, lane, [&](int k, int j) { return TRANSPOSED ? w[a][j][k] : w[a][k][j]; });
    }
}

// What a block knows of its tile of rows.
template <typename T, bool SIMT, int FM, int CLUSTER>
struct RowTile {
    static constexpr int ROWS = 16 * FM;
    int rank, pitch;   // of shared memory's rows, in elements
    long long m0, M;
    float* parts;      // WARPS tiles of sums

    __device__ __forceinline__ static void meet() {
        if constexpr (CLUSTER > 1) cluster_arrive(), cluster_wait();
        else __syncthreads();
    }

    // out(row, column, v) of four neighbouring columns at a time: v is in @ W, TRANSPOSED: in @ Wᵀ. Of all 32-column tiles this block has its
    // share; columns past the last are 0.
    template <bool TRANSPOSED, typename Out>
    __device__ __forceinline__ void product(const T* in, const TrainedLayer<T>& layer, Out out) {
        int reduced = TRANSPOSED ? layer.N : layer.K, columns = TRANSPOSED ? layer.K : layer.N;
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32, all = (columns + COLUMNS - 1) / COLUMNS, steps = (reduced + 15) / 16;
        int share = (all + CLUSTER - 1) / CLUSTER, first = rank * share, end = min(first + share, all);
        for (; first < end; first += WARPS) {
            int here = min(end - first, WARPS), splits = WARPS / here, split = warp / here;
            if (split < splits) {
                typename WarpTileOf<SIMT, T, FM>::Type tile;
                int each = (steps + splits - 1) / splits, begin = split * each, n = (first + warp % here) * COLUMNS + lane / 4 * 4;
                if (layer.N % 4 == 0) multiply<TRANSPOSED, true>(tile, in, pitch, layer.W, layer.K, layer.N, n, begin, min(begin + each, steps));
                else multiply<TRANSPOSED, false>(tile, in, pitch, layer.W, layer.K, layer.N, n, begin, min(begin + each, steps));
                tile.store(parts + warp * ROWS * PART_PITCH, lane);
            }
            __syncthreads();
            for (int i = threadIdx.x; i < here * ROWS * (COLUMNS / 4); i += THREADS) {
                int column = i % (COLUMNS / 4) * 4, row = i / (COLUMNS / 4) % ROWS, own = i / (ROWS * COLUMNS / 4);
                float v[4] = {};
                for (int s = 0; s < splits; ++s) {
                    auto part = *reinterpret_cast<const Quad<float>*>(parts + ((s * here + own) * ROWS + row) * PART_PITCH + column);
#pragma unroll
                    for (int e = 0; e < 4; ++e) v[e] += part.at[e];
                }
                out(row, (first + own) * COLUMNS + column, v);
            }
            __syncthreads();
        }
    }

    // Four elements of a row: to `place` of all blocks, if there is one, and to the array that `update` reads.
    __device__ __forceinline__ void deliver(T* place, T* array, int array_pitch, int row, int n, const float (&v)[4]) {
        Quad<T> q = quad_of<T>(v);
        if (place) give<CLUSTER>(reinterpret_cast<Quad<T>*>(place + row * pitch + n), q);
        if (array && m0 + row < M && n < array_pitch) *reinterpret_cast<Quad<T>*>(array + (m0 + row) * array_pitch + n) = q;
    }

    // The next layer's input.
    __device__ __forceinline__ void forward(const T* in, T* place, const TrainedLayer<T>& layer, T* array, bool relu) {
        product<false>(in, layer, [&](int row, int n, float (&v)[4]) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float z = n + e < layer.N ? v[e] + rounded<T>(layer.b[n + e]) : 0.0f;
                v[e] = relu ? activate<RELU>(z) : z;
            }
            deliver(place, array, layer.dz_pitch(), row, n, v);
        });
        meet();
    }

    // The gradient behind the layer below: 0 where its ReLU is.
    __device__ __forceinline__ void backward(const T* in, T* place, const TrainedLayer<T>& layer, T* array, bool relu) {
        product<true>(in, layer, [&](int row, int n, float (&v)[4]) {
            if (relu && m0 + row < M && n < layer.h_pitch()) {
                auto h = *reinterpret_cast<const Quad<T>*>(layer.h + (m0 + row) * layer.h_pitch() + n);
#pragma unroll
                for (int e = 0; e < 4; ++e) v[e] = to_float(h.at[e]) > 0.0f ? v[e] : 0.0f;
            }
            deliver(place, array, layer.h_pitch(), row, n, v);
        });
        meet();
    }
};
