// dlrm_train: the launch `update` of cuda.cu.
#pragma once
#include "_model.cuh"
#include "_shared/cuda/lookup.cuh"

constexpr int SIDE = 64;  // of a tile of a layer's gradient

// Its sums in IEEE float32, from ColumnLoader's slabs: a thread has 4 × 4.
struct SimtOuterTile {
    static constexpr int X_BYTES = SIDE * 128, STAGE = 2 * X_BYTES;
    float c[4][4] = {};
    int row0 = threadIdx.x / 16 * 4, column0 = threadIdx.x % 16 * 4;

    __device__ __forceinline__ void begin(const unsigned char*) {}

    __device__ __forceinline__ void add(const unsigned char* x, const unsigned char* w) {
#pragma unroll 8
        for (int k = 0; k < SLAB<float>; ++k) {
            auto a = at(x, k, row0), b = at(w, k, column0);
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) c[i][j] = fmaf(a.at[i], b.at[j], c[i][j]);
        }
    }

private:
    static __device__ __forceinline__ Quad<float> at(const unsigned char* slab, int k, int n) {
        constexpr int CHUNKS = SIDE / 4;
        return *reinterpret_cast<const Quad<float>*>(slab + (k * CHUNKS + (n / 4 ^ column_swizzle<float, CHUNKS>(k))) * 16);
    }
};
template <typename C, typename F>
__device__ __forceinline__ void each_pair(const SimtOuterTile& tile, C, F f) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; j += 2) f(tile.row0 + i, tile.column0 + j, tile.c[i][j], tile.c[i][j + 1], None{});
}

template <bool SIMT, typename T>
struct OuterTileOf {
    using Type = TensorTile<T, false, SIDE, SIDE, 4, 2, 1, true>;
};
template <>
struct OuterTileOf<true, float> {
    using Type = SimtOuterTile;
};

// Blocks that read what lies in the largest layer's gradient count themselves when they have; blocks that write that gradient come behind all of them in
// the grid, so that these have begun, and wait for the count.
struct Readers {
    int *finished, count;  // null: nothing is lent

    // By all threads, once all have read.
    __device__ __forceinline__ void one_more() const {
        if (!finished || threadIdx.x > 0) return;
        __threadfence();
        atomicAdd(finished, 1);
    }
    __device__ __forceinline__ void wait() const {
        if (!finished) return;
        if (threadIdx.x == 0) {
            int found;
            do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(found) : "l"(finished) : "memory");
            while (found < count);
        }
        __syncthreads();
    }
};

// Tile n of hᵀ dz, and of the step by it.
template <typename T, bool SIMT, int STAGES>
__device__ __forceinline__ void update_weights(const TrainedLayer<T>& layer, float* dW, long long M, int n, float rate, Readers readers, bool waits) {
    using Tile = typename OuterTileOf<SIMT, T>::Type;
    extern __shared__ __align__(128) unsigned char memory[];
    int across = (layer.N + SIDE - 1) / SIDE, k0 = n / across * SIDE, n0 = n % across * SIDE;
    Tile tile;
    ColumnLoader<T, true, SIDE, THREADS> x(layer.h, k0, layer.h_pitch(), M), w(layer.dz, n0, layer.dz_pitch(), M);
    mainloop<STAGES>(tile, memory, x, w, static_cast<int>((M + SLAB<T> - 1) / SLAB<T>));
    if (waits) readers.wait();
    else readers.one_more();
    each_pair(tile, [](int) { return None{}; }, [&](int row, int column, float v0, float v1, None) {
        int k = k0 + row, n = n0 + column;
        if (k >= layer.K || n >= layer.N) return;
        long long at = static_cast<long long>(k) * layer.N + n;
        if (layer.N % 2 == 0) {
            float2 old = *reinterpret_cast<const float2*>(layer.W + at);
            *reinterpret_cast<float2*>(dW + at) = make_float2(v0, v1);
            *reinterpret_cast<float2*>(layer.W + at) = make_float2(old.x - rate * v0, old.y - rate * v1);
        } else {
            dW[at] = v0, layer.W[at] -= rate * v0;
            if (n + 1 < layer.N) dW[at + 1] = v1, layer.W[at + 1] -= rate * v1;
        }
    });
}

// The sums of columns n0 … n0 + SIDE of dz, and the step of the bias.
template <typename T>
__device__ __forceinline__ void update_bias(const TrainedLayer<T>& layer, float* db, long long M, int n0, float rate, Readers readers) {
    constexpr int ACROSS = SIDE / 4, DOWN = THREADS / ACROSS;
    __shared__ Quad<float> sums[DOWN][ACROSS];
    int quad = threadIdx.x % ACROSS, first = threadIdx.x / ACROSS, n = n0 + 4 * quad, pitch = layer.dz_pitch();
    float sum[4] = {};
    if (n < pitch) {
#pragma unroll 8
        for (long long m = first; m < M; m += DOWN) {
            auto v = *reinterpret_cast<const Quad<T>*>(layer.dz + m * pitch + n);
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[e] += to_float(v.at[e]);
        }
    }
    sums[first][quad] = quad_of<float>(sum);
    __syncthreads();
    readers.one_more();
    int own = threadIdx.x;
    if (own >= SIDE || n0 + own >= layer.N) return;
    float total = 0.0f;
    for (int i = 0; i < DOWN; ++i) total += sums[i][own / 4].at[own % 4];
    db[n0 + own] = total;
    layer.b[n0 + own] -= rate * total;
}

// The step of the table rows, `block` of `blocks`.
template <typename T>
__device__ __forceinline__ void update_tables(float* tables, const int* __restrict__ rows, const T* __restrict__ dvectors, Index lookups,
                                              int D, int block, int blocks, float rate) {
    Index quads = (D + 3) / 4, total = lookups * quads;
    for (Index i = static_cast<Index>(block) * THREADS + threadIdx.x; i < total; i += static_cast<Index>(blocks) * THREADS) {
        Index lookup = i / quads;
        int d = static_cast<int>(i - lookup * quads) * 4;
        float* to = tables + static_cast<Index>(rows[lookup]) * D + d;
        const T* from = dvectors + lookup * D + d;
#if __CUDA_ARCH__ >= 900
        if (D % 4 == 0) {
            auto v = *reinterpret_cast<const Quad<T>*>(from);
            asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(-rate * to_float(v.at[0])),
                         "f"(-rate * to_float(v.at[1])), "f"(-rate * to_float(v.at[2])), "f"(-rate * to_float(v.at[3]))
                         : "memory");
            continue;
        }
#endif
        for (int e = 0; e < 4 && d + e < D; ++e) atomicAdd(to + e, -rate * to_float(from[e]));
    }
}

// The mean of the tiles' losses.
__device__ __forceinline__ void mean_loss(const float* __restrict__ losses, int count, float* loss, long long M) {
    __shared__ float sums[WARPS];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < count; i += THREADS) sum += losses[i];
    sum = lane_sum<32>(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    float total = 0.0f;
    for (int w = 0; w < WARPS; ++w) total += sums[w];
    *loss = total / static_cast<float>(M);
}

// gradients: dW and db of each layer, each made up to whole 4 floats. The first blocks have tiles of weights, which take longest, the largest
// layer's behind the biases.
template <typename T, bool SIMT, int STAGES>
__global__ void __launch_bounds__(THREADS)
    update(T* workspace, WEIGHTS, float* gradients, float* tables, int* rows, const T* __restrict__ dvectors,
           const float* __restrict__ losses, float* loss, double rate, long long parts, SIZES) {
    DESCRIBE;
    int block = blockIdx.x, own = count;  // the layer of whose weights this block has a tile
    float step = static_cast<float>(rate);
    Readers readers{lent < 0 ? nullptr : rows + M * F, 0};
    auto across = [&](int l) { return (model[l].N + SIDE - 1) / SIDE; };
    auto tiles = [&](int l) { return (model[l].K + SIDE - 1) / SIDE * across(l); };
    auto dW = [&](int layer) {
        float* to = gradients;
        for (int l = 0; l < layer; ++l) to += whole(model[l].K * model[l].N, 4) + whole(model[l].N, 4);
        return to;
    };
    for (int l = 0; l < count && own == count; ++l) {
        if (l == largest) continue;
        if (block < tiles(l)) own = l;
        else block -= tiles(l);
    }
    if (own == count) {
        for (int l = 0; l < count; ++l) {
            if (block < across(l)) return update_bias(model[l], dW(l) + whole(model[l].K * model[l].N, 4), M, block * SIDE, step, readers);
            block -= across(l);
        }
        readers.count = static_cast<int>(blockIdx.x) - block;
        if (block < tiles(largest)) own = largest;
        else block -= tiles(largest);
    }
    if (own < count) return update_weights<T, SIMT, STAGES>(model[own], dW(own), M, block, step, readers, own == largest);
    if (block == 0) return mean_loss(losses, static_cast<int>(parts), loss, M);
    update_tables(tables, rows, dvectors, M * F, D, block - 1, static_cast<int>(gridDim.x - blockIdx.x) + block - 1, step);
}
