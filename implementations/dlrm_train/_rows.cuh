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
        unsigned both;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
        return both;
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

// Steps of 16 elements of K, TRANSPOSED: of N, that a warp multiplies; `n` is the lane's first column.
struct Steps {
    int n, begin, end;
};

// The weights of `AHEAD` steps from `step` on, none past the end.
template <bool TRANSPOSED, bool ALIGNED, int AHEAD>
__device__ __forceinline__ void load_steps(float (&w)[AHEAD][4][4], const float* W, int K, int N, Steps steps, int step) {
#pragma unroll
    for (int a = 0; a < AHEAD; ++a) {
        int k = (step + a) * 16 + static_cast<int>(threadIdx.x) % 4 * 4;
        if (step + a >= steps.end) k = whole(TRANSPOSED ? N : K, 16);
        if constexpr (TRANSPOSED) load_weights<ALIGNED>(w[a], W, steps.n, k, K, N);
        else load_weights<ALIGNED>(w[a], W, k, steps.n, K, N);
    }
}

// What a block knows of its tile of rows.
template <typename T, bool SIMT, int FM, int CLUSTER>
struct RowTile {
    using Tile = typename WarpTileOf<SIMT, T, FM>::Type;
    static constexpr int ROWS = 16 * FM, AHEAD = 4;  // steps whose weights are requested before the first is multiplied
    int rank, pitch;   // of shared memory's rows, in elements
    long long m0, M;
    float* parts;      // WARPS tiles of sums
    float w[AHEAD][4][4];  // the first weights of the next product

    __device__ __forceinline__ static void meet() {
        if constexpr (CLUSTER > 1) cluster_arrive(), cluster_wait();
        else __syncthreads();
    }

    // The 32-column tiles of a product that this block makes: its share of all.
    struct Share {
        int first, end;

        __device__ __forceinline__ Share(int columns, int rank) {
            int all = (columns + COLUMNS - 1) / COLUMNS, each = (all + CLUSTER - 1) / CLUSTER;
            first = rank * each, end = min(first + each, all);
        }
        // Of the next tiles, at most one for each warp, those of this one; where there are fewer, warps share K.
        __device__ __forceinline__ int here() const { return min(end - first, WARPS); }
        __device__ __forceinline__ Steps steps(int reduced) const {
            int warp = threadIdx.x / 32, tiles = here(), splits = WARPS / tiles, all = (reduced + 15) / 16, each = (all + splits - 1) / splits;
            int begin = warp / tiles * each;  // a warp past the splits has nothing
            return {(first + warp % tiles) * COLUMNS + static_cast<int>(threadIdx.x) % 32 / 4 * 4, begin, min(begin + each, all)};
        }
    };

    // Asks for the first weights of a product: they do not depend on what others are still making.
    template <bool TRANSPOSED>
    __device__ __forceinline__ void request(const TrainedLayer<T>& layer) {
        Share share(TRANSPOSED ? layer.K : layer.N, rank);
        if (share.first < share.end) load<TRANSPOSED>(layer, share.steps(TRANSPOSED ? layer.N : layer.K));
    }

    template <bool TRANSPOSED>
    __device__ __forceinline__ void load(const TrainedLayer<T>& layer, Steps steps, int step = -1) {
        if (step < 0) step = steps.begin;
        if (layer.N % 4 == 0) load_steps<TRANSPOSED, true>(w, layer.W, layer.K, layer.N, steps, step);
        else load_steps<TRANSPOSED, false>(w, layer.W, layer.K, layer.N, steps, step);
    }

    // out(row, column, v, beside(row, column)) of four neighbouring columns at a time: v is in @ W, TRANSPOSED: in @ Wᵀ, columns past the last
    // are 0. The first weights were requested.
    template <bool TRANSPOSED, typename Beside, typename Out>
    __device__ __forceinline__ void product(const T* in, const TrainedLayer<T>& layer, Beside beside, Out out) {
        Share share(TRANSPOSED ? layer.K : layer.N, rank);
        bool requested = true;
        for (; share.first < share.end; share.first += WARPS) {
            int here = share.here(), splits = WARPS / here, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
            int quads = here * ROWS * (COLUMNS / 4);
            auto row = [](int i) { return i / (COLUMNS / 4) % ROWS; };
            auto column = [&](int i) { return (share.first + i / (ROWS * COLUMNS / 4)) * COLUMNS + i % (COLUMNS / 4) * 4; };
            int own = threadIdx.x;
            decltype(beside(0, 0)) first = {};
            if (own < quads) first = beside(row(own), column(own));
            if (warp / here < splits) {
                Tile tile;
                Steps steps = share.steps(TRANSPOSED ? layer.N : layer.K);
                for (int step = steps.begin; step < steps.end; step += AHEAD) {
                    if (!requested) load<TRANSPOSED>(layer, steps, step);
                    requested = false;
#pragma unroll
                    for (int a = 0; a < AHEAD; ++a)
                        if (step + a < steps.end)
                            tile.add(in + (step + a) * 16, pitch, lane, [&](int k, int j) { return TRANSPOSED ? w[a][j][k] : w[a][k][j]; });
                }
                tile.store(parts + warp * ROWS * PART_PITCH, lane);
            }
            requested = false;
            __syncthreads();
            for (int i = own; i < quads; i += THREADS) {
                float v[4] = {};
                for (int s = 0; s < splits; ++s) {
                    const float* part = parts + ((s * here + i / (ROWS * COLUMNS / 4)) * ROWS + row(i)) * PART_PITCH + i % (COLUMNS / 4) * 4;
                    auto q = *reinterpret_cast<const Quad<float>*>(part);
#pragma unroll
                    for (int e = 0; e < 4; ++e) v[e] += q.at[e];
                }
                out(row(i), column(i), v, i == own ? first : beside(row(i), column(i)));
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
        auto bias = [&](int, int n) {
            Quad<float> b;
#pragma unroll
            for (int e = 0; e < 4; ++e) b.at[e] = n + e < layer.N ? layer.b[n + e] : 0.0f;
            return b;
        };
        product<false>(in, layer, bias, [&](int row, int n, float (&v)[4], const Quad<float>& b) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float z = n + e < layer.N ? v[e] + rounded<T>(b.at[e]) : 0.0f;
                v[e] = relu ? activate<RELU>(z) : z;
            }
            deliver(place, array, layer.dz_pitch(), row, n, v);
        });
    }

    // The gradient behind the layer below: 0 where its ReLU is.
    __device__ __forceinline__ void backward(const T* in, T* place, const TrainedLayer<T>& layer, T* array, bool relu) {
        auto input = [&](int row, int n) {
            Quad<T> h = {};
            if (relu && m0 + row < M && n < layer.h_pitch()) h = *reinterpret_cast<const Quad<T>*>(layer.h + (m0 + row) * layer.h_pitch() + n);
            return h;
        };
        product<true>(in, layer, input, [&](int row, int n, float (&v)[4], const Quad<T>& h) {
#pragma unroll
            for (int e = 0; e < 4; ++e) v[e] = relu && !(to_float(h.at[e]) > 0.0f) ? 0.0f : v[e];
            deliver(place, array, layer.h_pitch(), row, n, v);
        });
    }
};
