// dW of those layers that have too few tiles of it for all multiprocessors, of all of them in one launch. A block has a tile, and `share` rows of the batch:
//
//   weights_of_layers   dW where a block has all rows, else parts of it in float32: for each share those of all layers one behind another, each
//                       filled up to whole vectors; then
//   sum_weights         dW of its parts, in their order
//
// A layer's dW (rows, columns) is leftᵀ @ right. Rows of both are whole vectors in float32, with zeros behind their own, else they have no gaps.
// Layers that are not there have no rows, and are the last ones.
#pragma once
#include "_shared/cuda/layer_backward.cuh"

constexpr int WEIGHTS_SIDE = 64, MOST_LAYERS = 4;  // of a tile

template <typename T>
struct OfLayer {
    const T *left, *right;
    T* dW;
    long long rows, columns;

    __device__ __forceinline__ long long elements() const { return filled_up<float>(rows * columns); }  // of its parts
    __device__ __forceinline__ long long tiles() const { return (rows + WEIGHTS_SIDE - 1) / WEIGHTS_SIDE * ((columns + WEIGHTS_SIDE - 1) / WEIGHTS_SIDE); }
};

template <typename T>
using WeightsTile = TensorTile<T, false, WEIGHTS_SIDE, WEIGHTS_SIDE, 2, 2, 1, true>;

// Slabs of a tile's columns of rows that begin at any element: of a slab all are asked for before one is stored.
template <typename T>
struct OddLoader : ColumnLoader<T, false, WEIGHTS_SIDE, WeightsTile<T>::THREADS> {
    using Base = ColumnLoader<T, false, WEIGHTS_SIDE, WeightsTile<T>::THREADS>;
    using Base::Base;

    __device__ __forceinline__ void load(unsigned char* memory) {
        constexpr int COUNT = SLAB<T> / Base::STRIDE;
        Vector<T> v[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            v[i] = load_part<false>(this->from + i * Base::STRIDE * this->pitch, i * Base::STRIDE < this->left ? this->columns : 0);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) *reinterpret_cast<Vector<T>*>(memory + this->to + i * Base::STRIDE * Base::CHUNKS * 16) = v[i];
        this->skip(1);
    }
};
template <typename T, bool ALIGNED>
struct LoaderOf {
    using Type = ColumnLoader<T, true, WEIGHTS_SIDE, WeightsTile<T>::THREADS>;
};
template <typename T>
struct LoaderOf<T, false> {
    using Type = OddLoader<T>;
};

// The tile at (m0, n0) of the products of `depth` rows, on the tensor cores: to `parts` where that is not null, else to dW.
template <typename T, bool LEFT_ALIGNED, bool RIGHT_ALIGNED, int STAGES>
__device__ __forceinline__ void weights_tile(const OfLayer<T>& of, float* parts, long long m0, long long n0, int depth) {
    using Tile = WeightsTile<T>;
    extern __shared__ __align__(128) unsigned char memory[];  // STAGES * STAGE
    Tile tile;
    typename LoaderOf<T, LEFT_ALIGNED>::Type lefts(of.left, m0, pitch_of<T>(of.rows), depth);
    typename LoaderOf<T, RIGHT_ALIGNED>::Type rights(of.right, n0, pitch_of<T>(of.columns), depth);
    mainloop<STAGES>(tile, memory, lefts, rights, (depth + SLAB<T> - 1) / SLAB<T>);
    each_pair(tile, [](int) { return None{}; }, [&](int row, int column, float low, float high, None) {
        long long at = (m0 + row) * of.columns + n0 + column;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            if (m0 + row >= of.rows || n0 + column + e >= of.columns) continue;
            if (parts) parts[at + e] = e ? high : low;
            else of.dW[at + e] = from_float<T>(e ? high : low);
        }
    });
}

template <typename T, bool SIMT, int STAGES>
__global__ void __launch_bounds__(SIMT ? SIMT_THREADS<WEIGHTS_SIDE, WEIGHTS_SIDE> : 128, SIMT ? SIMT_BLOCKS<WEIGHTS_SIDE, WEIGHTS_SIDE, true> : 3)
    weights_of_layers(const T* __restrict__ left1, const T* __restrict__ right1, const T* __restrict__ left2, const T* __restrict__ right2,
                      const T* __restrict__ left3, const T* __restrict__ right3, const T* __restrict__ left4, const T* __restrict__ right4,
                      T* __restrict__ dW1, T* __restrict__ dW2, T* __restrict__ dW3, T* __restrict__ dW4, float* __restrict__ parts, long long M,
                      long long share, long long rows1, long long columns1, long long rows2, long long columns2, long long rows3, long long columns3,
                      long long rows4, long long columns4) {
    wait_for_previous_launch();
    const OfLayer<T> layers[MOST_LAYERS] = {
        {left1, right1, dW1, rows1, columns1}, {left2, right2, dW2, rows2, columns2}, {left3, right3, dW3, rows3, columns3}, {left4, right4, dW4, rows4, columns4}};
    long long tiles = 0, elements = 0;
#pragma unroll
    for (int l = 0; l < MOST_LAYERS; ++l) tiles += layers[l].tiles(), elements += layers[l].elements();
    long long tile = blockIdx.x % tiles, part = blockIdx.x / tiles, before = 0, m0, n0;
    OfLayer<T> of = layers[0];
#pragma unroll
    for (int l = 1; l < MOST_LAYERS; ++l)
        if (tile >= of.tiles()) tile -= of.tiles(), before += of.elements(), of = layers[l];
    block_origin(of.rows, of.columns, WEIGHTS_SIDE, WEIGHTS_SIDE, m0, n0, static_cast<unsigned>(tile));
    of.left += part * share * pitch_of<T>(of.rows), of.right += part * share * pitch_of<T>(of.columns);
    long long depth = min(share, M - part * share);
    float* own = parts ? parts + part * elements + before : nullptr;
    if constexpr (SIMT) {
        __shared__ __align__(16) unsigned char slabs[SIMT_SLABS<WEIGHTS_SIDE, WEIGHTS_SIDE>];
        simt_tile<true, false, WEIGHTS_SIDE, WEIGHTS_SIDE, 1, true, 1>(slabs, m0, n0, of.left, of.right, own ? own : of.dW, of.rows, depth, of.columns, Stored{});
    } else {
        bool left = pitch_of<T>(of.rows) % Vector<T>::SIZE == 0, right = pitch_of<T>(of.columns) % Vector<T>::SIZE == 0;
        int rows = static_cast<int>(depth);
        if (left && right) weights_tile<T, true, true, STAGES>(of, own, m0, n0, rows);
        else if (left) weights_tile<T, true, false, STAGES>(of, own, m0, n0, rows);
        else if (right) weights_tile<T, false, true, STAGES>(of, own, m0, n0, rows);
        else weights_tile<T, false, false, STAGES>(of, own, m0, n0, rows);
    }
}

// dW, of which each layer has `count` elements; a thread has one.
template <typename T>
__global__ void __launch_bounds__(256)
    sum_weights(const float* __restrict__ parts, T* __restrict__ dW1, T* __restrict__ dW2, T* __restrict__ dW3, T* __restrict__ dW4, long long shares,
                long long count1, long long count2, long long count3, long long count4) {
    wait_for_previous_launch();
    T* const dWs[MOST_LAYERS] = {dW1, dW2, dW3, dW4};
    const long long counts[MOST_LAYERS] = {count1, count2, count3, count4};
    long long all = 0, first = blockIdx.x * 256LL + threadIdx.x, i = first, count = counts[0];
#pragma unroll
    for (int l = 0; l < MOST_LAYERS; ++l) all += filled_up<float>(counts[l]);
    T* dW = dWs[0];
#pragma unroll
    for (int l = 1; l < MOST_LAYERS; ++l)
        if (i >= filled_up<float>(count)) i -= filled_up<float>(count), count = counts[l], dW = dWs[l];
    if (i >= count) return;
    float sum = 0.0f;
#pragma unroll 8
    for (long long p = 0; p < shares; ++p) sum += parts[p * all + first];
    dW[i] = from_float<T>(sum);
}
