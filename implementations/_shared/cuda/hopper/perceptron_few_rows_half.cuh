// A multilayer perceptron of few rows in 16 bits, on the tensor cores: perceptron_few_rows.cuh's plan, whose weights are half as many bytes.
//
//   mlp_few_rows_half<T, NK, LAST, ROWS, COLUMNS, CLUSTER>
//
// The blocks of a cluster share a tile of ROWS rows and the columns of every layer, up to COLUMNS a block, with a warp for every eight. A block
// asks for all of its weights and biases before the first product, and then makes one layer after the other on chip. Its part of a layer, rounded
// to the storage dtype, it sends to every block of the cluster, where a barrier counts the bytes; a block that is a cluster alone stores it.
//
// Where a layer has fewer than eight columns a warp, several warps share its K, and their sums meet in shared memory. Every layer has a place of its
// own in shared memory, so that nobody waits until it has been read. No block ends before it has all hidden layers, as others send to it.
//
// K is filled up to whole steps of 16 with zeros, in what is read and in W: what lies in shared memory there may be NaN. The columns of a
// hidden layer's last eight that are none are sent as 0.
#pragma once
#include "_shared/cuda/hopper/layers.cuh"
#include "_shared/cuda/hopper/perceptron_few_rows.cuh"

namespace few_rows_half {

using few_rows::log2_above;
using few_rows::one_of;

constexpr int STEP = 16;  // elements of K of a product

__device__ __forceinline__ int whole_steps(int K) { return (K + STEP - 1) / STEP * STEP; }
// Vectors of 16 bytes from one row of K to the next: an odd number, so that eight rows lie in different banks.
__device__ __forceinline__ int pitch_of(int K) { return whole_steps(K) / 8 + 1; }

// A layer, and this block's part of it: `own` columns from `first` on, of `groups` of eight. In shared memory its input lies from `input` on (in
// bytes), and its weights from `place` on, in rows of `pitch` vectors: of K (NK) or of columns.
template <typename T>
struct Layer {
    const T *W, *b;
    int K, N, first, own, groups, input, place, pitch;
    bool vectors;  // rows of W come in 16 bytes
};

template <typename T>
__device__ __forceinline__ bool comes_in_vectors(const T* matrix, int width) {
    return width % 8 == 0 && (reinterpret_cast<unsigned long long>(matrix) & 15) == 0;
}

// Asks for `count` rows of K of a matrix, of which `inside` are there, to rows of pitch_of(K) vectors: eight threads a row.
template <int THREADS, typename T>
__device__ __forceinline__ void request_rows(unsigned to, const T* from, int count, int inside, int K) {
    for (int row = threadIdx.x / 8; row < count; row += THREADS / 8)
        for (int v = threadIdx.x % 8; v < K / 8; v += 8)
            copy_async(to + (row * pitch_of(K) + v) * 16, from + (row < inside ? row : 0) * static_cast<long long>(K) + v * 8, row < inside);
}
// The same of K rows of `groups` vectors, N elements apart.
template <int THREADS, typename T>
__device__ __forceinline__ void request_columns(unsigned to, const T* from, int K, long long N, int groups, int pitch) {
    int shift = log2_above(groups), v = threadIdx.x & (1 << shift) - 1, step = THREADS >> shift;
    if (v >= groups) return;
#pragma unroll 4
    for (int k = threadIdx.x >> shift; k < K; k += step) copy_async(to + (k * pitch + v) * 16, from + k * N + v * 8, true);
}

// An element that no store of this launch changes, so that several are on their way at once.
template <typename T>
__device__ __forceinline__ T read_only(const T* from) {
    T v;
    v.bits = __ldg(&from->bits);
    return v;
}
// Elements one by one, where a matrix has no vectors: `rows` × `columns` of them to rows of `pitch` vectors, at(row, column) each.
template <int THREADS, typename T, typename F>
__device__ __forceinline__ void bring_elements(unsigned char* to, int rows, int columns, int pitch, F at) {
#pragma unroll 4
    for (int i = threadIdx.x; i < rows * columns; i += THREADS) {
        int row = i / columns, column = i % columns;
        reinterpret_cast<T*>(to + row * pitch * 16)[column] = at(row, column);
    }
}
// Zeros: `count` vectors, `pitch` of them apart.
template <int THREADS>
__device__ __forceinline__ void clear(unsigned char* to, int count, int pitch) {
    for (int i = threadIdx.x; i < count; i += THREADS) *reinterpret_cast<float4*>(to + i * pitch * 16) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

}  // namespace few_rows_half

#if __CUDA_ARCH__ >= 900
// Shared memory: x and the hidden layers, the warps' sums from `sums` on, the biases from `biases` on, and the weights behind them, in bytes.
template <typename T, bool NK, Activation LAST, int ROWS, int COLUMNS, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(4 * COLUMNS, 1)
    mlp_few_rows_half(const T* __restrict__ x, const T* __restrict__ W1, const T* __restrict__ b1, const T* __restrict__ W2,
                      const T* __restrict__ b2, const T* __restrict__ W3, const T* __restrict__ b3, const T* __restrict__ W4,
                      const T* __restrict__ b4, T* __restrict__ y, long long M, long long count, long long N0, long long N1, long long N2,
                      long long N3, long long N4, long long sums, long long biases) {
    wait_for_previous_launch();
    using namespace few_rows_half;
    constexpr int THREADS = 4 * COLUMNS, WARPS = THREADS / 32, TILES = ROWS / 16;
    static_assert((COLUMNS & COLUMNS - 1) == 0 && (ROWS == 16 || ROWS == 32), "a thread has a row of eight columns at most");
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ __align__(8) unsigned long long received[3];  // of each hidden layer
    __shared__ Layer<T> layers[4];
    int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, rank = static_cast<int>(cluster_rank()), layer_count = static_cast<int>(count);
    long long m0 = static_cast<long long>(blockIdx.x / CLUSTER) * ROWS;
    int rows = static_cast<int>(min(M - m0, static_cast<long long>(ROWS)));
    float* bias = reinterpret_cast<float*>(memory + biases);  // COLUMNS of each layer

    if (tid < layer_count) {  // a thread describes a layer
        int input = 0, place = static_cast<int>(biases) + 4 * COLUMNS * 4, share = 0, pitch = 0;
        for (int l = 0;; ++l) {
            int K = static_cast<int>(one_of(l, N0, N1, N2, N3)), N = static_cast<int>(one_of(l, N1, N2, N3, N4));
            share = (N + 8 * CLUSTER - 1) / (8 * CLUSTER) * 8;
            pitch = NK ? pitch_of(K) : share / 8 | 1;
            if (l == tid) break;
            input += ROWS * pitch_of(K) * 16, place += (NK ? share : whole_steps(K)) * pitch * 16;
        }
        const T *W = one_of(tid, W1, W2, W3, W4), *b = one_of(tid, b1, b2, b3, b4);
        int K = static_cast<int>(one_of(tid, N0, N1, N2, N3)), N = static_cast<int>(one_of(tid, N1, N2, N3, N4)), first = rank * share;
        int own = max(min(share, N - first), 0);
        layers[tid] = {W, b, K, N, first, own, (own + 7) / 8, input, place, pitch, comes_in_vectors(W, NK ? K : N)};
        if (CLUSTER > 1 && tid + 1 < layer_count) barrier_init(shared_address(received + tid), 1);
        if (CLUSTER > 1) fence_barrier_init();
    }
    __syncthreads();
    if constexpr (CLUSTER > 1) {
        if (tid + 1 < layer_count) barrier_arrive_and_expect(shared_address(received + tid), (layers[tid].N + 7) / 8 * ROWS * 16);
        cluster_arrive_relaxed();  // this block has begun, and its barriers: others may send to it
    }

    // All that comes in vectors is on its way before anybody waits for an element.
    int K0 = layers[0].K;
    bool x_in_vectors = comes_in_vectors(x, K0);
    if (x_in_vectors) request_rows<THREADS>(shared_address(memory), x + m0 * K0, ROWS, rows, K0);
#pragma unroll 1
    for (int l = 0; l < 4; ++l) {
        if (l < layer_count && layers[l].own > 0 && layers[l].vectors) {
            const Layer<T> layer = layers[l];
            unsigned to = shared_address(memory) + layer.place;
            if (NK) request_rows<THREADS>(to, layer.W + layer.first * static_cast<long long>(layer.K), layer.own, layer.own, layer.K);
            else request_columns<THREADS>(to, layer.W + layer.first, layer.K, layer.N, layer.groups, layer.pitch);
        }
        copy_commit();
    }
    auto zero = from_float<T>(0.0f);
    T of_bias[4];  // of a column of each layer; they are stored once all else was asked for
#pragma unroll
    for (int l = 0; l < 4; ++l) of_bias[l] = l < layer_count && tid < layers[l].own ? read_only(layers[l].b + layers[l].first + tid) : zero;
    if (!x_in_vectors)
        bring_elements<THREADS, T>(memory, ROWS, whole_steps(K0), pitch_of(K0), [&](int row, int k) {
            return row < rows && k < K0 ? read_only(x + (m0 + row) * K0 + k) : zero;
        });
    else if (K0 % STEP) clear<THREADS>(memory + K0 / 8 * 16, ROWS, pitch_of(K0));
#pragma unroll 1
    for (int l = 0; l < layer_count; ++l) {
        const Layer<T> layer = layers[l];
        unsigned char* to = memory + layer.place;
        int K = layer.K, own = layer.own;
        if (l > 0 && (K + 7) / 8 % 2) clear<THREADS>(memory + layer.input + (K + 7) / 8 * 16, ROWS, pitch_of(K));
        if (own == 0) continue;
        if (NK && layer.vectors) {
            if (K % STEP) clear<THREADS>(to + K / 8 * 16, own, layer.pitch);
        } else if (NK) {
            bring_elements<THREADS, T>(to, own, whole_steps(K), layer.pitch, [&](int n, int k) {
                return k < K ? read_only(layer.W + (layer.first + n) * static_cast<long long>(K) + k) : zero;
            });
        } else if (layer.vectors) {
            for (int k = K; k < whole_steps(K); ++k) clear<THREADS>(to + k * layer.pitch * 16, layer.groups, 1);
        } else {
            bring_elements<THREADS, T>(to, whole_steps(K), own, layer.pitch, [&](int k, int n) {
                return k < K ? read_only(layer.W + k * static_cast<long long>(layer.N) + layer.first + n) : zero;
            });
        }
    }
#pragma unroll
    for (int l = 0; l < 4; ++l)
        if (tid < COLUMNS) bias[l * COLUMNS + tid] = to_float(of_bias[l]);
    if constexpr (CLUSTER > 1) cluster_wait();

#pragma unroll 1
    for (int l = 0; l < layer_count; ++l) {
        const Layer<T> layer = layers[l];
        bool last = l + 1 == layer_count;
        if (l == 0) copy_wait<3>();
        else if (l == 1) copy_wait<2>();
        else copy_wait<0>();
        if (CLUSTER > 1 && l > 0) barrier_wait_of_cluster(shared_address(received + l - 1), 0);
        __syncthreads();  // what all have copied or made is here, and nobody reads the sums of the layer before
        if (layer.own == 0) continue;

        // A warp has eight columns of all rows, and every `phases`-th step of K, two at a time.
        int shift = log2_above(layer.groups), phases = WARPS >> shift, group = warp & (1 << shift) - 1, steps = whole_steps(layer.K) / STEP;
        float c[2][TILES][4] = {};
        if (group < layer.groups) {
            unsigned h = shared_address(memory) + layer.input + lane % 16 * pitch_of(layer.K) * 16 + lane / 16 * 16;
            unsigned w = shared_address(memory) + layer.place;
            w += NK ? (group * 8 + lane % 8) * layer.pitch * 16 + lane / 8 % 2 * 16 : lane % 16 * layer.pitch * 16 + group * 16;
            int of_step = NK ? 32 : STEP * layer.pitch * 16;
#pragma unroll 4
            for (int step = warp >> shift; step < steps; step += 2 * phases) {
                int other = step + phases < steps ? step + phases : step;
                unsigned b[4], a[4], from = w + (lane < 16 ? step : other) * of_step;
                if (NK) load_matrices(b, from);
                else load_matrices_transposed(b, from);
#pragma unroll
                for (int i = 0; i < TILES; ++i)
#pragma unroll
                    for (int part = 0; part < 2; ++part) {
                        if (part == 1 && other == step) continue;
                        unsigned pair[2] = {b[part * 2], b[part * 2 + 1]};
                        load_matrices(a, h + i * 16 * pitch_of(layer.K) * 16 + (part ? other : step) * 32);
                        multiply_add(c[part][i], a, pair, T{});
                    }
            }
            float* to = reinterpret_cast<float*>(memory + sums) + warp * ROWS * 8 + lane / 4 * 8 + lane % 4 * 2;
#pragma unroll
            for (int i = 0; i < TILES; ++i)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    *reinterpret_cast<float2*>(to + (i * 16 + half * 8) * 8) =
                        make_float2(c[0][i][half * 2] + c[1][i][half * 2], c[0][i][half * 2 + 1] + c[1][i][half * 2 + 1]);
        }
        __syncthreads();

        // Eight columns of a row are a thread's; as many as there are threads for add them up, and send them to other blocks each.
        int row = tid % ROWS, part = tid / ROWS & (1 << shift) - 1, sharer = tid / ROWS >> shift, sharers = THREADS / ROWS >> shift;
        if (part >= layer.groups || sharer >= (last ? 1 : CLUSTER)) continue;
        float v[8] = {};
        const float4* from = reinterpret_cast<const float4*>(memory + sums) + (part * ROWS + row) * 2;
#pragma unroll 4
        for (int phase = 0; phase < phases; ++phase, from += ROWS * 2 << shift) {
            float4 low = from[0], high = from[1];
            v[0] += low.x, v[1] += low.y, v[2] += low.z, v[3] += low.w;
            v[4] += high.x, v[5] += high.y, v[6] += high.z, v[7] += high.w;
        }
        const float* of_part = bias + l * COLUMNS + part * 8;
        int inside = layer.own - part * 8;
#pragma unroll
        for (int e = 0; e < 8; ++e) v[e] += of_part[e];
        int column = layer.first + part * 8;
        if (last) {
            Vector<T> made;
#pragma unroll
            for (int e = 0; e < 8; ++e) made.at[e] = from_float<T>(activate<LAST>(v[e]));
            T* to = y + (m0 + row) * layer.N + column;
            if (row < rows && layer.N % 8 == 0) store_part<true>(to, made, 8);
            else if (row < rows) store_part<false>(to, made, inside);
        } else {
            float words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                words[i] = __uint_as_float(pack_relu(2 * i < inside ? v[2 * i] : 0.0f, 2 * i + 1 < inside ? v[2 * i + 1] : 0.0f, T{}));
            unsigned char* place = memory + layers[l + 1].input + (row * pitch_of(layer.N) + column / 8) * 16;
            if constexpr (CLUSTER == 1) {
                *reinterpret_cast<float4*>(place) = make_float4(words[0], words[1], words[2], words[3]);
            } else {
                unsigned to = shared_address(place), arrived = shared_address(received + l);
#pragma unroll 1
                for (int block = sharer; block < CLUSTER; block += sharers)
                    store_async(address_in_block(to, block), words, address_in_block(arrived, block));
            }
        }
    }
}
#endif
