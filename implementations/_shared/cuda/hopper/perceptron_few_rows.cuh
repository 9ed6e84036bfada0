// A multilayer perceptron of few rows in float32, on the float32 units: all of it is latency, so little is waited for, and at once.
//
//   mlp_few_rows<NK, LAST, ROWS, COLUMNS, CLUSTER>
//
// The blocks of a cluster share a tile of ROWS rows and the columns of every layer, up to COLUMNS a block, with four threads for each. A
// block asks for all of its weights and biases before the first product, and then makes one layer after the other on chip. Its part of
// a layer it sends to every block of the cluster, where a barrier counts the bytes.
//
// A thread sums 4 × 4 of its block's part over every `phases`-th of K, so that few columns have all threads at work too; the sums meet in
// shared memory. One loop makes all layers, so that the later ones find its code on chip.
//
// Layers read from two places in turn: x and layer 2 are in the first, layers 1 and 3 in the second. A layer's sums meet in the place that
// it has read. No block writes to what another still uses: layer l is complete when every block has sent its part or, having none, said
// that it is there; that it does once it has received and read all of layer l - 1. Only then does anybody send of layer l + 1.
#pragma once
#include "_shared/cuda/hopper/pipeline.cuh"
#include "_shared/cuda/matmul_mma.cuh"

namespace few_rows {

// A layer, and this block's part of it: `own` columns from `first` on. In shared memory their weights lie from `place` on (in floats), a
// row of `pitch` for each of K, and the biases behind them.
struct Layer {
    const float *W, *b;
    int K, N, first, own, pitch, place;
    bool vectors;  // rows of W (K, N) and b come in 16 bytes
};

__device__ __forceinline__ int log2_above(int n) { return 32 - __clz(n - 1); }  // the least e with 2^e >= n

template <typename A>
__device__ __forceinline__ A one_of(int number, A a, A b, A c, A d) {
    return number == 0 ? a : number == 1 ? b : number == 2 ? c : d;
}

// Asks for the weights and biases of a layer's part. Four threads have a column at least, so powers of two share out the threads.
template <bool NK, int THREADS>
__device__ __forceinline__ void request(Layer layer, unsigned to) {
    int tid = threadIdx.x;
    if (!NK && layer.vectors) {
        int shift = log2_above(layer.own / 4), column = (tid & (1 << shift) - 1) * 4, step = THREADS >> shift, k = tid >> shift;
        if (column >= layer.own) return;
        to += column * 4;
        if (k == 0) copy_async(to + layer.K * layer.pitch * 4, layer.b + layer.first + column, true);
        const float* from = layer.W + k * layer.N + layer.first + column;
        to += k * layer.pitch * 4;
#pragma unroll 2
        for (; k < layer.K; k += step, from += step * layer.N, to += step * layer.pitch * 4) copy_async(to, from, true);
    } else {
        constexpr int TOGETHER = NK ? 4 : 1;  // threads on neighbours along K, which lie side by side in (N, K)
        int shift = log2_above(layer.own), column = tid / TOGETHER & (1 << shift) - 1, n = layer.first + column;
        if (column >= layer.own) return;
#pragma unroll 1
        for (int k = (tid / TOGETHER >> shift) * TOGETHER + tid % TOGETHER; k <= layer.K; k += THREADS >> shift) {
            const float* from = k == layer.K ? layer.b + n : NK ? layer.W + n * layer.K + k : layer.W + k * layer.N + n;
            copy_piece_async<4>(to + (k * layer.pitch + column) * 4, from, true);
        }
    }
}

}  // namespace few_rows

#if __CUDA_ARCH__ >= 900
// Shared memory: the first place, the second at `second`, and the weights at `weights`, in bytes.
template <bool NK, Activation LAST, int ROWS, int COLUMNS, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(4 * COLUMNS, 1)
    mlp_few_rows(const float* __restrict__ x, const float* __restrict__ W1, const float* __restrict__ b1, const float* __restrict__ W2,
                 const float* __restrict__ b2, const float* __restrict__ W3, const float* __restrict__ b3, const float* __restrict__ W4,
                 const float* __restrict__ b4, float* __restrict__ y, long long M, long long count, long long N0, long long N1,
                 long long N2, long long N3, long long N4, long long second, long long weights) {
    wait_for_previous_launch();
    using namespace few_rows;
    constexpr int THREADS = 4 * COLUMNS, QUARTERS = ROWS / 4;
    // Vectors from the sums of a thread's column to those of its next one: lanes that add up neighbouring columns find them in different
    // banks.
    constexpr int PITCH = THREADS + (QUARTERS > 2 ? QUARTERS : 2);
    static_assert((COLUMNS & COLUMNS - 1) == 0 && COLUMNS >= 32 && (QUARTERS & QUARTERS - 1) == 0, "powers of two");
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ __align__(8) unsigned long long received[3];  // of each hidden layer
    __shared__ Layer layers[4];
    int tid = threadIdx.x, lane = tid % 32, rank = static_cast<int>(cluster_rank()), layer_count = static_cast<int>(count);
    long long m0 = static_cast<long long>(blockIdx.x / CLUSTER) * ROWS;
    int rows = static_cast<int>(min(M - m0, static_cast<long long>(ROWS)));

    if (tid < layer_count) {  // a thread describes a layer
        auto share_of = [](long long N) { return static_cast<int>(N + 4 * CLUSTER - 1) / (4 * CLUSTER) * 4; };
        const float *W = one_of(tid, W1, W2, W3, W4), *b = one_of(tid, b1, b2, b3, b4);
        int K = static_cast<int>(one_of(tid, N0, N1, N2, N3)), N = static_cast<int>(one_of(tid, N1, N2, N3, N4));
        int place = static_cast<int>(weights / 4);
        if (tid > 0) place += static_cast<int>(N0 + 1) * share_of(N1);
        if (tid > 1) place += static_cast<int>(N1 + 1) * share_of(N2);
        if (tid > 2) place += static_cast<int>(N2 + 1) * share_of(N3);
        int share = share_of(N), first = rank * share;
        bool vectors = N % 4 == 0 && ((reinterpret_cast<unsigned long long>(W) | reinterpret_cast<unsigned long long>(b)) & 15) == 0;
        layers[tid] = {W, b, K, N, first, max(min(share, N - first), 0), share, place, vectors};
        if (tid + 1 < layer_count) {
            int arrivals = 1;
            for (int block = 0; block < CLUSTER; ++block) arrivals += block * share >= N;  // those without a part
            barrier_init(shared_address(received + tid), arrivals);
        }
        fence_barrier_init();
    }
    // An element of what a layer reads is at k * ROWS + row.
    int N_of_x = static_cast<int>(N0);
#pragma unroll 1
    for (int i = tid; i < N_of_x * ROWS; i += THREADS)
        copy_piece_async<4>(shared_address(memory) + i * 4, x + m0 * N_of_x + i % ROWS * N_of_x + i / ROWS, i % ROWS < rows);
    __syncthreads();
    if (tid + 1 < layer_count) barrier_arrive_and_expect(shared_address(received + tid), layers[tid].N * ROWS * 4);
    cluster_arrive_relaxed();  // this block has begun, and its barriers: others may send to it
#pragma unroll 1
    for (int l = 0; l < 4; ++l) {
        if (l < layer_count && layers[l].own > 0) request<NK, THREADS>(layers[l], shared_address(memory) + layers[l].place * 4);
        copy_commit();
    }
    cluster_wait();

#pragma unroll 1
    for (int l = 0; l < layer_count; ++l) {
        const Layer layer = layers[l];
        bool last = l + 1 == layer_count;
        int from = l % 2 ? static_cast<int>(second) : 0;
        unsigned to = shared_address(memory) + (l % 2 ? 0 : static_cast<unsigned>(second)), arrived = shared_address(received + l);
        if (l == 0) copy_wait<3>();
        else if (l == 1) copy_wait<2>();
        else copy_wait<0>();
        if (l > 0) barrier_wait_of_cluster(shared_address(received + l - 1), 0);
        __syncthreads();
        if (layer.own == 0) {
            if (!last && tid < CLUSTER) barrier_arrive_remote(address_in_block(arrived, tid));
            continue;
        }

        // 4 columns × 4 rows a thread: of the group of columns and the quarter of the tile's rows that its number in the phase says
        int groups = (layer.own + 3) / 4, shift = log2_above(groups * QUARTERS), phases = THREADS >> shift, k = tid >> shift;
        int group = (tid & (1 << shift) - 1) / QUARTERS;
        float c[4][4] = {};
        auto add = [&](int h, int w) {  // of the vectors at these bytes
            float4 of_rows = *reinterpret_cast<const float4*>(memory + h), of_columns = *reinterpret_cast<const float4*>(memory + w);
            float a[4] = {of_rows.x, of_rows.y, of_rows.z, of_rows.w}, b[4] = {of_columns.x, of_columns.y, of_columns.z, of_columns.w};
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
                for (int i = 0; i < 4; ++i) c[j][i] = fmaf(a[i], b[j], c[j][i]);
        };
        if (group < groups) {
            int h = from + (k * ROWS + tid % QUARTERS * 4) * 4, w = (layer.place + k * layer.pitch + group * 4) * 4;
            int h_step = phases * ROWS * 4, w_step = phases * layer.pitch * 4;
#pragma unroll 1
            for (; k + 3 * phases < layer.K; k += 4 * phases, h += 4 * h_step, w += 4 * w_step) {
#pragma unroll
                for (int i = 0; i < 4; ++i) add(h + i * h_step, w + i * w_step);
            }
#pragma unroll 1
            for (; k < layer.K; k += phases, h += h_step, w += w_step) add(h, w);
        }
        __syncthreads();  // all have read what the sums go over
        float4* sums = reinterpret_cast<float4*>(memory + from);
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[j * PITCH + tid] = make_float4(c[j][0], c[j][1], c[j][2], c[j][3]);
        __syncthreads();

        // A vector of 4 rows of a column is added up by `sharers` lanes of a warp, `apart` from each other. Vectors are counted column by
        // column. There are four phases for each sharer at least.
        int log_sharers = min(5, __ffs(phases) - 3), sharers = 1 << log_sharers, apart = 32 >> log_sharers;
        int vector = (tid / 32 << 5 - log_sharers) + (lane & apart - 1), sharer = lane >> 5 - log_sharers, column = vector / QUARTERS;
        bool inside = column < layer.own;
        float v[4] = {};
        if (inside) {
            const float4* parts = sums + column % 4 * PITCH + column / 4 * QUARTERS + vector % QUARTERS;
#pragma unroll 1
            for (int phase = sharer; phase < phases; phase += 4 * sharers) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float4 part = parts[phase + i * sharers << shift];
                    v[0] += part.x, v[1] += part.y, v[2] += part.z, v[3] += part.w;
                }
            }
        }
#pragma unroll 1
        for (int step = apart; step < 32; step *= 2)
#pragma unroll
            for (int i = 0; i < 4; ++i) v[i] += __shfl_xor_sync(0xffffffffu, v[i], step);
        if (!inside) continue;
        float bias = reinterpret_cast<const float*>(memory)[layer.place + layer.K * layer.pitch + column];
        if (last) {
            if (sharer > 0) continue;
            int row = vector % QUARTERS * 4;
            float* of_y = y + (m0 + row) * layer.N + layer.first + column;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (row + i < rows) of_y[i * layer.N] = activate<LAST>(v[i] + bias);
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) v[i] = activate<RELU>(v[i] + bias);
            to += (layer.first * QUARTERS + vector) * 16;
#pragma unroll 1
            for (int block = sharer; block < CLUSTER; block += sharers)
                store_async(address_in_block(to, block), v, address_in_block(arrived, block));
        }
    }
}
#endif
