// A multilayer perceptron of up to four layers, one launch.
//
// A block takes a tile of BM rows through all layers. What a layer makes stays in shared memory, in the slabs that
// matmul_mma.cuh multiplies: x streams in with W1, the weights of all layers stream through one ring of STAGES slabs, and nothing
// else is read. The ring does not stop between layers: while a layer ends, the first slabs of the next are on their way.
//
//   mlp           one block for a tile of rows. A layer that fits in the tile's width waits until all have read its input
//                 and then overwrites it; a wider one is made in passes, beside its input.
//   mlp_cluster   few rows are few tiles, and each would read all weights through one multiprocessor. So a cluster of
//                 CLUSTER blocks shares a tile of rows: each makes its share of every layer's columns, reads that share of
//                 the weights alone, and writes what it made to the shared memory of all blocks of the cluster. It goes
//                 beside the layer's input, always: a block that is done does not know which others still read theirs.
//
// Layers of up to NARROW columns use another arrangement of warps, so that all of them have work.
// Rows of x may take more elements than N0, `pitch` of them; those past N0 are 0. Sizes are arbitrary; whether rows start on 16 bytes is decided for each matrix. What a tile has outside of its matrices
// is 0, and so are the columns past a layer's width: an inf in x would make them NaN (inf * 0), which the next layer's
// zeros do not remove.
#pragma once

#include "_shared/cuda/matmul_simt.cuh"

constexpr int NARROW = 64;

template <typename T>
struct Layer {
    const T* W;
    const T* b;
    int K, N;
    bool aligned;  // rows of W as it is stored
};

// Of a layer's columns those that a block makes, up to `end`, which lies past N where a block fills the last slab with 0.
struct Span {
    int first, end;
};

template <typename T, int CLUSTER>
__device__ __forceinline__ Span span_of(int N, int rank) {
    int share = (N + 16 * CLUSTER - 1) / (16 * CLUSTER) * 16, first = rank * share, end = min(first + share, N);
    if (first >= N) return {0, 0};
    return {first, end < N ? end : (N + SLAB<T> - 1) / SLAB<T> * SLAB<T>};
}

// Whether layer l is a last one of one column, as a prediction ends: it streams no slabs, warps sum along K instead.
template <typename T>
__device__ __forceinline__ bool is_column(const Layer<T>* layers, int l, int count) {
    return l > 0 && l + 1 == count && layers[l].N == 1;
}

// The next slab of a matrix whose rows run along K (x, or W in (N, K)), ROWS of them. A thread brings one vector of every
// STRIDE-th row: the first is at `from` and goes to `to`; `inside` rows and `left` elements of K are there from it on.
template <typename T>
struct Stream {
    const T* from;
    long long pitch;
    int to, inside, left;

    template <int ROWS, int THREADS, bool ALIGNED>
    __device__ __forceinline__ void rows(unsigned char* memory) {
        constexpr int STRIDE = THREADS / 8;
#pragma unroll(ALIGNED ? 32 : 1)
        for (int i = 0; i * STRIDE < ROWS; ++i) {
            if (ROWS % STRIDE && static_cast<int>(threadIdx.x) / 8 + i * STRIDE >= ROWS) break;
            bring<ALIGNED>(memory + to + i * STRIDE * 128, from + i * STRIDE * pitch, i * STRIDE < inside ? left : 0);
        }
        from += SLAB<T>;
        left -= SLAB<T>;
    }

    // The same of W in (K, N): `inside` columns and `left` rows of K.
    template <int COLUMNS, int THREADS, bool ALIGNED>
    __device__ __forceinline__ void columns(unsigned char* memory) {
        constexpr int CHUNKS = COLUMNS / Vector<T>::SIZE, STRIDE = THREADS / CHUNKS;
        static_assert(THREADS % CHUNKS == 0 && STRIDE % (sizeof(T) == 4 ? 4 : 8) == 0, "keeps the swizzle");
#pragma unroll(ALIGNED ? 32 : 1)
        for (int i = 0; i * STRIDE < SLAB<T>; ++i) {
            if (SLAB<T> % STRIDE && static_cast<int>(threadIdx.x) / CHUNKS + i * STRIDE >= SLAB<T>) break;
            bring<ALIGNED>(memory + to + i * STRIDE * CHUNKS * 16, from + i * STRIDE * pitch,
                           i * STRIDE < left ? inside : 0);
        }
        from += SLAB<T> * pitch;
        left -= SLAB<T>;
    }
};

// All slabs of all layers in the order in which they are multiplied: layer by layer, pass by pass, along K.
template <typename T, bool NK, int BM, int WIDE, int THREADS, int CLUSTER>
struct Feed {
    static constexpr int SIZE = Vector<T>::SIZE;
    const T* x;
    long long m0, M;
    int pitch;  // elements of a row of x
    const Layer<T>* layers;
    int count, rank, layer = -1, at = 0, slabs = 0;  // `at` is the first column of the pass, `slabs` are left of it
    Span span = {0, 0};
    Stream<T> of_x, of_W;

    __device__ __forceinline__ Feed(const T* x, long long m0, long long M, int pitch, const Layer<T>* layers, int count,
                                    int rank)
        : x(x), m0(m0), M(M), pitch(pitch), layers(layers), count(count), rank(rank) {
        begin_pass();
    }

    __device__ __forceinline__ bool narrow() const { return span.end - span.first <= NARROW; }

    // Asks for the next slab, if there is any.
    __device__ __forceinline__ void request(unsigned char* memory) {
        if (layer == count) return;
        if (layer == 0) {
            if (pitch % SIZE == 0) of_x.template rows<BM, THREADS, true>(memory);
            else of_x.template rows<BM, THREADS, false>(memory);
        }
        unsigned char* W = memory + BM * 128;
        bool aligned = layers[layer].aligned;
        if (narrow()) {
            if (aligned) next_of_W<NARROW, true>(W);
            else next_of_W<NARROW, false>(W);
        } else {
            if (aligned) next_of_W<WIDE, true>(W);
            else next_of_W<WIDE, false>(W);
        }
        if (--slabs > 0) return;
        at += narrow() ? NARROW : WIDE;
        begin_pass();
    }

private:
    template <int COLUMNS, bool ALIGNED>
    __device__ __forceinline__ void next_of_W(unsigned char* memory) {
        if constexpr (NK) of_W.template rows<COLUMNS, THREADS, ALIGNED>(memory);
        else of_W.template columns<COLUMNS, THREADS, ALIGNED>(memory);
    }

    __device__ __forceinline__ void begin_pass() {
        while (at >= span.end) {
            if (++layer == count) return;
            span = is_column(layers, layer, count) ? Span{0, 0} : span_of<T, CLUSTER>(layers[layer].N, rank);
            at = span.first;
        }
        int K = layers[layer].K, N = min(span.end, layers[layer].N);
        int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
        slabs = (K + SLAB<T> - 1) / SLAB<T>;
        if (layer == 0) of_x = by_rows(x + m0 * pitch, pitch, static_cast<int>(min(M - m0, static_cast<long long>(BM))), row, chunk);
        const T* W = layers[layer].W;
        if constexpr (NK) {
            of_W = by_rows(W + static_cast<long long>(at) * K, K, N - at, row, chunk);
        } else {
            int chunks = (narrow() ? NARROW : WIDE) / SIZE;
            row = threadIdx.x / chunks, chunk = threadIdx.x % chunks;
            long long pitch = layers[layer].N;
            int swizzle = narrow() ? column_swizzle<T, NARROW / SIZE>(row) : column_swizzle<T, WIDE / SIZE>(row);
            of_W = {W + row * pitch + at + chunk * SIZE, pitch, (row * chunks + (chunk ^ swizzle)) * 16,
                    N - at - chunk * SIZE, K - row};
        }
    }

    __device__ __forceinline__ static Stream<T> by_rows(const T* from, int K, int inside, int row, int chunk) {
        return {from + static_cast<long long>(row) * K + chunk * SIZE, K, (row * 8 + (chunk ^ (row & 7))) * 16,
                inside - row, K - chunk * SIZE};
    }
};

// ---- clusters ----------------------------------------------------------------------------------------------------------

// Writes two neighbouring elements to the same place of shared memory in all blocks of the cluster.
template <int CLUSTER, typename Value>
__device__ __forceinline__ void store_to_all(unsigned char* to, const Value& pair) {
#pragma unroll
    for (int rank = 0; rank < CLUSTER; ++rank) {
        unsigned address = address_in_block(shared_address(to), rank);
        if constexpr (sizeof(Value) == 4)
            asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(reinterpret_cast<const unsigned&>(pair))
                         : "memory");
        else
            asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(address),
                         "l"(reinterpret_cast<const unsigned long long&>(pair))
                         : "memory");
    }
}

// ---- the kernel --------------------------------------------------------------------------------------------------------

// Everything that a block keeps from layer to layer.
template <typename T, bool SIMT, bool NK, Activation LAST, int BM, int WIDE, int THREADS, int STAGES, int CLUSTER>
struct Block {
    static constexpr int STAGE = (BM + WIDE) * 128, SLAB_BYTES = BM * 128;
    Feed<T, NK, BM, WIDE, THREADS, CLUSTER>& feed;
    unsigned char* ring;
    T* y;
    int stage = 0;

    // One layer's columns of this block, in passes over K. `in` is the previous layer's output (x: null, it streams),
    // `out` where its own goes (the last layer's: null, it goes to y).
    template <typename Tile>
    __device__ __forceinline__ void run(const Layer<T>& layer, Span span, const unsigned char* in, unsigned char* out) {
        for (int n0 = span.first; n0 < span.end; n0 += Tile::COLUMNS) {
            Tile tile;
            for (int left = layer.K, slab = 0; left > 0; left -= SLAB<T>, ++slab) {
                copy_wait<STAGES - 2>();  // the slab is here, as far as this thread brought it
                __syncthreads();          // as all did, and the one before it was read by all
                feed.request(ring + (stage == 0 ? STAGES - 1 : stage - 1) * STAGE);
                copy_commit();
                const unsigned char* here = ring + stage * STAGE;
                add_part(tile, in ? in + slab * SLAB_BYTES : here, here + BM * 128, left);
                stage = stage + 1 == STAGES ? 0 : stage + 1;
            }
            auto bias = [&](int column) {
                Pair<float> b;
#pragma unroll
                for (int e = 0; e < 2; ++e)
                    b.at[e] = n0 + column + e < layer.N ? to_float(layer.b[n0 + column + e]) : 0.0f;
                return b;
            };
            if (out) {
                if (CLUSTER == 1 && in == out) __syncthreads();  // all have read what is overwritten now
                each_pair(tile, bias, [&](int row, int column, float v0, float v1, Pair<float> b) {
                    int n = n0 + column;
                    if (n >= span.end) return;
                    Pair<T> h;
                    h.at[0] = from_float<T>(n < layer.N ? activate<RELU>(v0 + b.at[0]) : 0.0f);
                    h.at[1] = from_float<T>(n + 1 < layer.N ? activate<RELU>(v1 + b.at[1]) : 0.0f);
                    unsigned char* to = out + n / SLAB<T> * SLAB_BYTES + slab_place<T>(row, n % SLAB<T>);
                    if constexpr (CLUSTER > 1) store_to_all<CLUSTER>(to, h);
                    else *reinterpret_cast<Pair<T>*>(to) = h;
                });
            } else {
                each_pair(tile, bias, [&](int row, int column, float v0, float v1, Pair<float> b) {
                    int n = n0 + column;
                    if (feed.m0 + row >= feed.M || n >= min(span.end, layer.N)) return;
                    T* to = y + (feed.m0 + row) * layer.N + n;
                    Pair<T> z;
                    z.at[0] = from_float<T>(activate<LAST>(v0 + b.at[0]));
                    z.at[1] = from_float<T>(activate<LAST>(v1 + b.at[1]));
                    if (layer.N % 2 == 0) {
                        *reinterpret_cast<Pair<T>*>(to) = z;
                    } else {
                        to[0] = z.at[0];
                        if (n + 1 < layer.N) to[1] = z.at[1];
                    }
                });
            }
        }
    }

    // A last layer of one column: a warp sums a row at a time. A tile of 16 columns would have 15 of zeros, and W's rows, single
    // elements, would come in one by one; as a column they lie side by side. The warps of a cluster share the rows.
    __device__ __forceinline__ void run_column(const Layer<T>& layer, int rank, const unsigned char* in) {
        constexpr int WARPS = THREADS / 32;
        int lane = threadIdx.x % 32;
        __syncthreads();  // all have written what is read here
        for (int row = rank * WARPS + threadIdx.x / 32; row < BM; row += CLUSTER * WARPS) {
            float sum = 0.0f;
#pragma unroll 8
            for (int k = lane; k < layer.K; k += 32) {
                const unsigned char* h = in + k / SLAB<T> * SLAB_BYTES + slab_place<T>(row, k % SLAB<T>);
                sum = fmaf(to_float(*reinterpret_cast<const T*>(h)), to_float(layer.W[k]), sum);
            }
            sum = lane_sum<32>(sum);
            if (lane == 0 && feed.m0 + row < feed.M)
                y[feed.m0 + row] = from_float<T>(activate<LAST>(sum + to_float(layer.b[0])));
        }
    }
};

// WM × WN warps for wide layers, NM × NN for narrow ones. Shared memory: the ring, then two places for what layers make,
// the second `second` bytes after the first.
#define PARAMETERS                                                                                                  \
    const T *__restrict__ x, const T *__restrict__ W1, const T *__restrict__ b1, const T *__restrict__ W2,          \
        const T *__restrict__ b2, const T *__restrict__ W3, const T *__restrict__ b3, const T *__restrict__ W4,     \
        const T *__restrict__ b4, T *__restrict__ y, long long M, long long count, long long N0, long long N1,      \
        long long N2, long long N3, long long N4, long long pitch, long long second
#define ARGUMENTS x, W1, b1, W2, b2, W3, b3, W4, b4, y, M, count, N0, N1, N2, N3, N4, pitch, second

template <typename T, bool SIMT, bool NK, Activation LAST, int BM, int WIDE, int WM, int WN, int NM, int NN, int STAGES,
          int CLUSTER>
__device__ __forceinline__ void all_layers(PARAMETERS) {
    constexpr int THREADS = WM * WN * 32;
    static_assert(WM * WN == NM * NN && STAGES >= 2, "the same warps; one stage is read while another is written");
    using Wide = typename TileOf<SIMT, T, NK, BM, WIDE, WM, WN>::Type;
    using Narrow = typename TileOf<SIMT, T, NK, BM, NARROW, NM, NN>::Type;
    using This = Block<T, SIMT, NK, LAST, BM, WIDE, THREADS, STAGES, CLUSTER>;
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ Layer<T> layers[4];
    if (threadIdx.x == 0) {
        constexpr int SIZE = Vector<T>::SIZE;
        auto layer = [](const T* W, const T* b, long long K, long long N) {
            return Layer<T>{W, b, static_cast<int>(K), static_cast<int>(N), (NK ? K : N) % SIZE == 0};
        };
        layers[0] = layer(W1, b1, N0, N1), layers[1] = layer(W2, b2, N1, N2);
        layers[2] = layer(W3, b3, N2, N3), layers[3] = layer(W4, b4, N3, N4);
    }
    unsigned rank = 0;
    if constexpr (CLUSTER > 1) {
        rank = cluster_rank();
        cluster_arrive();  // this block has begun: others may write to its shared memory
    }
    __syncthreads();

    Feed<T, NK, BM, WIDE, THREADS, CLUSTER> feed(x, static_cast<long long>(blockIdx.x / CLUSTER) * BM, M,
                                                 static_cast<int>(pitch), layers,
                                                 static_cast<int>(count), static_cast<int>(rank));
    This block{feed, memory, y};
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; ++i) {
        feed.request(memory + i * This::STAGE);
        copy_commit();
    }
    if constexpr (CLUSTER > 1) cluster_wait();

    unsigned char *place = memory + STAGES * This::STAGE, *other = place + second;
    const unsigned char* in = nullptr;
    for (int l = 0; l < count; ++l) {
        const Layer<T>& layer = layers[l];
        Span span = span_of<T, CLUSTER>(layer.N, rank);
        if (l > 0 && !(CLUSTER == 1 && span.end <= WIDE)) {  // not over its input
            unsigned char* swap = place;
            place = other, other = swap;
        }
        unsigned char* out = l + 1 < count ? place : nullptr;
        if (is_column(layers, l, static_cast<int>(count))) {
            block.run_column(layer, static_cast<int>(rank), in);
            break;
        }
        if (span.end - span.first <= NARROW) block.template run<Narrow>(layer, span, in, out);
        else block.template run<Wide>(layer, span, in, out);
        if constexpr (CLUSTER > 1) {
            if (l + 1 < count) cluster_arrive(), cluster_wait();
        }
        in = out;
    }
}

template <typename T, bool SIMT, bool NK, Activation LAST, int BM, int WIDE, int WM, int WN, int NM, int NN, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1) mlp(PARAMETERS) {
    wait_for_previous_launch();
    all_layers<T, SIMT, NK, LAST, BM, WIDE, WM, WN, NM, NN, STAGES, 1>(ARGUMENTS);
}

#if __CUDA_ARCH__ >= 900
template <typename T, bool SIMT, bool NK, Activation LAST, int BM, int WIDE, int WM, int WN, int NM, int NN, int STAGES,
          int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(WM* WN * 32, 1) mlp_cluster(PARAMETERS) {
    wait_for_previous_launch();
    all_layers<T, SIMT, NK, LAST, BM, WIDE, WM, WN, NM, NN, STAGES, CLUSTER>(ARGUMENTS);
}
#endif
