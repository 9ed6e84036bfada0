// A multilayer perceptron of three or four layers on Hopper's warpgroup products, in 16 bits: what a layer makes stays in registers.
//
//   mlp_warpgroup<T, LAST, N0, WIDTH1, WIDTH2, WIDTH3, OUT, ROWS, STAGES, CLUSTER>     WIDTH3 is 0 where there are three layers
//
// A consumer warpgroup has 64 rows. The sums of 128 columns of layer 1 become, with ReLU and rounded, the left operand of their part of
// layer 2 in the registers where they are: 128 of its K. All N2 columns of layer 2 are summed at once, and become the left operand of
// what follows. No warp waits for another, but where they have written to x.
//
// x of up to 16 columns is loaded into registers, and W1 stays in shared memory; a wider x is brought to shared memory for as long as
// its tile lasts, and W1 passes through the ring as W2 does, in the order of the products. W3 of four layers stays in shared memory.
// The last layer has few columns: warps multiply it by mma.sync, whose fragments of W lie in shared memory as lanes want them.
//
// The copy engine brings boxes that begin at multiples of 16 bytes. Where rows of x do not, PERIOD of them are one row of x's map, and a tile
// has rows of one remainder modulo PERIOD: all begin `shift` elements behind such a multiple. So W1's rows move down by as many in its boxes,
// with 0 above them. What a box has of the rows of x before and behind is overwritten by 0.
//
//   ROWS = 128  many rows. Blocks are persistent and have two consumer warpgroups; those of a cluster have neighbouring tiles, and
//               each brings a part of every stage for all.
//   ROWS = 64   few rows. The blocks of a cluster share a tile: each makes its part of layer 1's columns, and so multiplies that part of
//               layer 2's K. Each warp sends its sums, of 16 rows, to one block, which adds up those of all blocks and ends the rows.
//
// Weights are (K, N), with all N but the last in eights; what of a tile lies outside of them is 0. Sums begin at their bias.
#pragma once
#include "_shared/cuda/hopper/layers.cuh"
#include "_shared/cuda/hopper/perceptron_sizes.cuh"
#include "_shared/cuda/hopper/pipeline.cuh"
#include "_shared/cuda/hopper/wgmma.cuh"

// A block's rows in a tile: of the `count` rows that are `remainder` modulo PERIOD, those from `first` on.
struct TileRows {
    int remainder, first, count, shift;
};

// A block: what lies in its shared memory, and what its warps do.
template <typename T, typename S>
struct WarpgroupPerceptron {
    unsigned char* memory;
    Pipeline<S::STAGES, S::STAGE, S::SHARING_W> ring;
    unsigned front, third, resident, received;  // the places of W1 or x, of W3; barriers of weights that stay, and of others' sums
    int rank = blockIdx.x % S::CLUSTER, i = 0, read = 0;  // of the ring's stages so many have been asked for, and are released

    __device__ __forceinline__ explicit WarpgroupPerceptron(unsigned char* memory)
        : memory(memory), ring(memory + S::RING), front(shared_address(memory)), third(front + S::FRONT),
          resident(front + S::BARRIERS), received(resident + 8) {}
    __device__ __forceinline__ unsigned x_full(int slab) const { return resident + 16 + slab * 16; }
    __device__ __forceinline__ unsigned x_empty(int slab) const { return x_full(slab) + 8; }
    __device__ __forceinline__ float* biases(int from) const { return reinterpret_cast<float*>(memory + S::FLOATS) + from; }
    __device__ __forceinline__ unsigned* last_W() const { return reinterpret_cast<unsigned*>(memory + S::LAST_W); }
    __device__ __forceinline__ int first_column() const { return S::SPLIT ? rank * S::COLUMNS : 0; }

    // A cluster's tiles, of all remainders in turn, and this block's rows of one.
    __device__ __forceinline__ static int tiles(int M) { return ((M + S::PERIOD - 1) / S::PERIOD + S::TILE - 1) / S::TILE * S::PERIOD; }
    __device__ __forceinline__ TileRows rows_of(int tile, int M) const {
        int remainder = tile % S::PERIOD, first = tile / S::PERIOD * S::TILE + (S::SPLIT ? 0 : rank * S::ROWS);
        int shift = S::PERIOD > 1 ? remainder * S::N0 % 8 : 0;
        return {remainder, first, (M - remainder + S::PERIOD - 1) / S::PERIOD, shift};
    }

    // By one thread, before a barrier of all.
    __device__ __forceinline__ void init() const {
        barrier_init(resident, 1), barrier_init(received, 1);
        for (int slab = 0; slab < S::SLABS; ++slab) barrier_init(x_full(slab), 1), barrier_init(x_empty(slab), S::CONSUMERS);
        ring.init(1, S::CONSUMERS);
        if (S::SPLIT) barrier_arrive_and_expect(received, 4 * S::SENT);
    }

    // ---- the producer: one thread of a warp each ----

    __device__ __forceinline__ void load_resident(const TensorMap& W1, const TensorMap& W3) const {
        if constexpr (S::RESIDENT > 0) {
            barrier_arrive_and_expect(resident, S::RESIDENT);
#pragma unroll 1
            for (int n = 0; n < S::W1_BYTES / 32; n += 64) tma_load(front + n * 32, W1, first_column() + n, 0, resident);
            if (S::N3 > 0) tma_load(third, W3, 0, 0, resident);
        }
    }
    // What the products of a tile read of W1 and W2, in their order.
    __device__ __forceinline__ void load_weights(const TensorMap& W1, const TensorMap& W2, int shift) {
        int part = S::SPLIT ? 0 : rank * 64;
#pragma unroll 1
        for (int chunk = first_column(), end = chunk + S::COLUMNS; chunk < end; chunk += S::CHUNK) {
#pragma unroll 1
            for (int slab = 0; slab < S::SLABS; ++slab, ++i) {
                unsigned to = ring.producer_acquire_for_tma(i);
#pragma unroll 1
                for (int n = part; n < S::CHUNK; n += S::SHARING_W * 64)
                    tma_load<S::SHARING_W>(to + n * 128, W1, chunk + n, slab * 64 - shift, ring.full(i));
            }
#pragma unroll 1
            for (int piece = 0; piece < S::CHUNK; piece += S::DEPTH, ++i) {
                unsigned to = ring.producer_acquire_for_tma(i);
#pragma unroll 1
                for (int n = part; n < S::N2; n += S::SHARING_W * 64)
                    tma_load<S::SHARING_W>(to + n * S::DEPTH * 2, W2, n, chunk + piece, ring.full(i));
            }
        }
    }
    // Rows of x for the tile-th tile of this block, which blocks that share it bring for each other.
    __device__ __forceinline__ void load_x(const TensorMap& x, TileRows rows, int tile) const {
        int column = rows.remainder * S::N0 - rows.shift;
#pragma unroll 1
        for (int slab = 0; slab < S::SLABS; ++slab) {
            barrier_wait(x_empty(slab), tile & 1 ^ 1);
            barrier_arrive_and_expect(x_full(slab), S::SLAB_BYTES);
            if (slab % S::SHARING_K == (S::SPLIT ? rank : 0))
                tma_load<S::SHARING_K>(front + slab * S::SLAB_BYTES, x, column + slab * 64, rows.first, x_full(slab));
        }
    }

    // ---- the consumers ----

    // Biases, and the last W in mma.sync's fragments: [step][eight of columns][lane][half] of pairs of K.
    __device__ __forceinline__ void load_small(const T* b1, const T* b2, const T* b3, const T* W, const T* b) const {
        constexpr int SECOND = S::N1, THIRD = SECOND + S::N2, LAST = THIRD + S::N3, K = S::N3 ? S::WIDTH3 : S::WIDTH2;
        constexpr int THREADS = S::ROWS * 2, WORDS = S::LAST_K / 16 * S::TILES * 64;
        int thread = threadIdx.x - 128;
        auto inside = [](const T* bias, int n, int width) { return n < width ? to_float(bias[n]) : 0.0f; };
        float found[(S::BIASES + THREADS - 1) / THREADS];
#pragma unroll
        for (int i = 0, n = thread; n - thread < S::BIASES; ++i, n += THREADS)
            found[i] = n < SECOND  ? inside(b1, n, S::WIDTH1)
                       : n < THIRD ? inside(b2, n - SECOND, S::WIDTH2)
                       : n < LAST  ? inside(b3, n - THIRD, S::WIDTH3)
                                   : inside(b, n - LAST, S::OUT);
#pragma unroll 4
        for (int first = 0; first < WORDS; first += THREADS) {
            int n = first + thread, lane = n / 2 % 32, k = n / 64 / S::TILES * 16 + lane % 4 * 2 + n % 2 * 8;
            int column = n / 64 % S::TILES * 8 + lane / 4;
            const T* from = W + k * S::OUT + column;
            bool in_W = k < K && column < S::OUT;
            unsigned pair = in_W ? from[0].bits | static_cast<unsigned>(from[S::OUT].bits) << 16 : 0;
            if (WORDS % THREADS == 0 || n < WORDS) last_W()[n] = pair;
        }
#pragma unroll
        for (int i = 0, n = thread; n - thread < S::BIASES; ++i, n += THREADS)
            if (n < S::BIASES) *biases(n) = found[i];
        sync_consumers();
        if (S::RESIDENT > 0) barrier_wait(resident, 0);
    }
    __device__ __forceinline__ void sync_consumers() const { asm volatile("bar.sync 1, %0;" ::"n"(S::ROWS * 2) : "memory"); }

    // This warpgroup's row of a slab of x, and where its elements from `column` on are: whole vectors.
    __device__ __forceinline__ T* x_at(int row, int column) const {
        int place = (threadIdx.x / 128 - 1) * 64 + row, chunk = column / 8 % 8 ^ row % 8;
        return reinterpret_cast<T*>(memory + column / 64 * S::SLAB_BYTES + place * 128 + chunk * 16);
    }
    // Threads of this warpgroup have written to x, which its products will read.
    __device__ __forceinline__ void x_written() const {
        fence_proxy_async();
        asm volatile("bar.sync %0, 128;" ::"r"(1 + threadIdx.x / 128) : "memory");
    }
    // The last row where M is no multiple of PERIOD: x's map ends before it. Nothing else of this tile's x is on its way then.
    __device__ __forceinline__ void load_last_row(const T* x, TileRows rows, int M, int tile) const {
        int first = rows.first + (threadIdx.x / 128 - 1) * 64, row = M / S::PERIOD - first;
        if (rows.remainder >= M % S::PERIOD || row < 0 || row >= 64) return;
        const T* from = x + static_cast<long long>(M - M % S::PERIOD + rows.remainder) * S::N0;
#pragma unroll 1
        for (int slab = 0; slab < S::SLABS; ++slab) barrier_wait(x_full(slab), tile & 1);
#pragma unroll 1
        for (int column = threadIdx.x % 128; column < S::SLABS * 64; column += 128) {
            int k = column - rows.shift;
            x_at(row, column)[column % 8] = k >= 0 && k < S::N0 ? from[k] : T{};
        }
        x_written();
    }
    // 0 for what a slab has of the rows before and behind, where weights of 0 would make NaN of an inf. Two threads have a row.
    __device__ __forceinline__ void clear_neighbours(int slab, int shift) const {
        if (slab * 64 >= shift && slab * 64 + 64 - shift <= S::N0) return;
        int row = threadIdx.x % 64, begin = slab * 64 + threadIdx.x % 128 / 64 * 32;
#pragma unroll 1
        for (int column = begin; column < begin + 32; column += 8) {
            int k = column - shift;
            if (k >= 0 && k + 8 <= S::N0) continue;
            auto& place = *reinterpret_cast<Vector<T>*>(x_at(row, column));
            Vector<T> v = place;
#pragma unroll
            for (int e = 0; e < 8; ++e)
                if (k + e < 0 || k + e >= S::N0) v.at[e] = T{};
            place = v;
        }
        x_written();
    }

    // Products that were issued before stage `end` are done.
    __device__ __forceinline__ void release(int end) {
        if (read < end) ring.consumer_release(read++);
    }
    __device__ __forceinline__ void release_x(int slab) const {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(x_empty(slab));
    }

    // sums += layer 2 of this block's columns of layer 1, of 16 rows of x a warp. first_layer_done() is called once nothing of
    // `front` is read any more.
    template <typename F>
    __device__ __forceinline__ void two_layers(float (&sums)[S::N2 / 8][4], const unsigned (&of_x)[4], int shift, int tile,
                                               F first_layer_done) {
        unsigned rows = front + (threadIdx.x / 128 - 1) * 64 * 128;  // of this warpgroup, in slabs of x
#pragma unroll 1
        for (int chunk = 0; chunk < S::COLUMNS; chunk += S::CHUNK) {
            bool last = chunk + S::CHUNK == S::COLUMNS;
            float first[S::CHUNK / 8][4];
            begin_at_bias(first, biases(first_column() + chunk));
            warpgroup_wait<0>();
            warpgroup_fence_operand(sums);
            release(i);
            if constexpr (S::X_IN_REGISTERS) {
                warpgroup_fence_operand(first);
                warpgroup_arrive();
                wgmma<1>(first, of_x, descriptor(front + chunk * 32, 2048), T{});
                warpgroup_commit();
            } else {
#pragma unroll 1
                for (int slab = 0; slab < S::SLABS; ++slab) {
                    if (chunk == 0) {
                        barrier_wait(x_full(slab), tile & 1);
                        if (S::PERIOD > 1) clear_neighbours(slab, shift);
                    }
                    ring.consumer_wait(i);
                    unsigned x = rows + slab * S::SLAB_BYTES, W = shared_address(ring.stage(i));
                    warpgroup_fence_operand(first);
                    warpgroup_arrive();
#pragma unroll
                    for (int step = 0; step < 4; ++step)
                        wgmma<1>(first, descriptor(x + step * 32), descriptor(W + step * 2048, 8192), T{});
                    warpgroup_commit();
                    warpgroup_fence_operand(first);
                    warpgroup_wait<1>();
                    release(i++);
                    if (last && slab > 0) release_x(slab - 1);
                }
            }
            warpgroup_wait<0>();
            warpgroup_fence_operand(first);
            release(i);
            if (last && S::SLABS > 0) release_x(S::SLABS - 1);
            if (last) first_layer_done();
            unsigned hidden[S::CHUNK / 16][4];
            pack_layer<T, S::WIDTH1 != S::N1>(hidden, first, S::WIDTH1 - first_column() - chunk);
#pragma unroll
            for (int piece = 0; piece < S::PIECES; ++piece) {
                ring.consumer_wait(i);
                unsigned W = shared_address(ring.stage(i));
                warpgroup_fence_operand(sums);
                warpgroup_arrive();
#pragma unroll
                for (int step = 0; step < S::DEPTH / 16; ++step)
                    wgmma<1>(sums, hidden[piece * (S::DEPTH / 16) + step], descriptor(W + step * 2048, S::DEPTH * 128), T{});
                warpgroup_commit();
                warpgroup_fence_operand(sums);
                if (piece > 0) warpgroup_wait<1>();
                release(i++);
            }
        }
        warpgroup_wait<0>();
        warpgroup_fence_operand(sums);
        release(i);
    }

    // sums += COUNT steps of the last layer's K, from `step` on.
    template <int COUNT>
    __device__ __forceinline__ void last_layer(float (&sums)[S::TILES][4], const unsigned (&a)[COUNT][4], int step) const {
#pragma unroll
        for (int q = 0; q < COUNT; ++q)
#pragma unroll
            for (int j = 0; j < S::TILES; ++j) {
                uint2 w = reinterpret_cast<const uint2*>(last_W())[((step + q) * S::TILES + j) * 32 + threadIdx.x % 32];
                unsigned pairs[2] = {w.x, w.y};
                multiply_add(sums[j], a[q], pairs, T{});
            }
    }

    // What follows layer 2, of 16 rows a warp, from `row` on of the M that have their remainder, the first of which is y's.
    template <Activation LAST>
    __device__ __forceinline__ void end_rows(const float (&second)[S::N2 / 8][4], T* y, int row, int M) const {
        unsigned hidden[S::N2 / 16][4];
        pack_layer<T, S::WIDTH2 != S::N2>(hidden, second, S::WIDTH2);
        float out[S::TILES][4];
        begin_at_bias(out, biases(S::N1 + S::N2 + S::N3));
        if constexpr (S::N3 > 0) {
            float sums[S::N3 / 8][4];
            begin_at_bias(sums, biases(S::N1 + S::N2));
            warpgroup_fence_operand(sums);
            warpgroup_arrive();
#pragma unroll
            for (int step = 0; step < S::N2 / 16; ++step) wgmma<1>(sums, hidden[step], descriptor(third + step * 2048), T{});
            warpgroup_commit();
            warpgroup_fence_operand(sums);
            warpgroup_wait<0>();
            warpgroup_fence_operand(sums);
            unsigned before[S::N3 / 16][4];
            pack_layer<T, S::WIDTH3 != S::N3>(before, sums, S::WIDTH3);
            last_layer(out, before, 0);
        } else {
            last_layer(out, hidden, 0);
        }
        store_rows<LAST, S::OUT, S::PERIOD * S::OUT>(y, row, M, out);
    }

    // Of the warps of a block that ends shared rows: which 16 rows of them it has, and which part of the columns.
    __device__ __forceinline__ int group() const { return threadIdx.x / 32 % S::GROUPS; }
    __device__ __forceinline__ int part() const { return (threadIdx.x / 32 - 4) / S::GROUPS; }

    // Sends this warp's sums of layer 2 to the block that ends its rows; and `own`, the sums of all blocks.
    __device__ __forceinline__ void exchange(const float (&second)[S::N2 / 8][4], float (&own)[S::PART / 8][4]) const {
        int lane = threadIdx.x % 32;
        unsigned to = address_in_block(front + (rank * S::GROUPS + group()) * S::SENT + lane * 16, part());
        unsigned barrier = address_in_block(received, part());
#pragma unroll
        for (int j = 0; j < S::N2 / 8; ++j) store_async(to + j * 512, second[j], barrier);
        barrier_wait_of_cluster(received, 0);
        begin_at_bias(own, biases(S::N1 + part() * S::PART));
        const float4* from = reinterpret_cast<const float4*>(memory + group() * S::SENT) + part() * (S::PART * 4) + lane;
#pragma unroll
        for (int source = 0; source < S::CLUSTER; ++source)
#pragma unroll
            for (int j = 0; j < S::PART / 8; ++j) add(own[j], from[source * (S::GROUPS * S::SENT / 16) + j * 32]);
    }
    static __device__ __forceinline__ void add(float (&c)[4], float4 v) { c[0] += v.x, c[1] += v.y, c[2] += v.z, c[3] += v.w; }

    // sums, which begin at the bias, += what the warps of these rows have of them. Through the ring, where nothing is left.
    template <int FN>
    __device__ __forceinline__ void add_parts(float (&sums)[FN][4], const float (&own)[FN][4]) const {
        int lane = threadIdx.x % 32;
        float4* parts = reinterpret_cast<float4*>(ring.memory) + group() * (S::CLUSTER * FN * 32) + lane;
#pragma unroll
        for (int j = 0; j < FN; ++j) parts[(part() * FN + j) * 32] = make_float4(own[j][0], own[j][1], own[j][2], own[j][3]);
        sync_consumers();
#pragma unroll
        for (int i = 0; i < S::CLUSTER; ++i)
#pragma unroll
            for (int j = 0; j < FN; ++j) add(sums[j], parts[(i * FN + j) * 32]);
    }

    // The same of a block's rows: each warp multiplies its part of K.
    template <Activation LAST>
    __device__ __forceinline__ void end_shared_rows(const float (&second)[S::PART / 8][4], T* y, int row, int M) const {
        constexpr int STEPS = S::PART / 16;
        int lane = threadIdx.x % 32;
        unsigned hidden[STEPS][4];
        pack_layer<T, S::WIDTH2 != S::N2>(hidden, second, S::WIDTH2 - part() * S::PART);
        float out[S::TILES][4];
        begin_at_bias(out, biases(S::N1 + S::N2 + S::N3));
        if constexpr (S::N3 > 0) {
            float own[S::N3 / 8][4] = {}, sums[S::N3 / 8][4];
#pragma unroll
            for (int q = 0; q < STEPS; ++q) {
                int k = (part() * STEPS + q) * 16 + lane % 16;  // this lane's row of W3, for load_matrices
#pragma unroll
                for (int j = 0; j < S::N3 / 8; j += 2) {
                    unsigned r[4];
                    load_matrices_transposed(r, third + k * 128 + ((j + lane / 16) ^ (k & 7)) * 16);
                    const unsigned b[2][2] = {{r[0], r[1]}, {r[2], r[3]}};
                    multiply_add(own[j], hidden[q], b[0], T{});
                    multiply_add(own[j + 1], hidden[q], b[1], T{});
                }
            }
            begin_at_bias(sums, biases(S::N1 + S::N2));
            add_parts(sums, own);
            unsigned before[S::N3 / 16][4];
            pack_layer<T, S::WIDTH3 != S::N3>(before, sums, S::WIDTH3);
            last_layer(out, before, 0);
        } else {
            float own[S::TILES][4] = {};
            last_layer(own, hidden, part() * STEPS);
            add_parts(out, own);
        }
        if (part() == 0) store_rows<LAST, S::OUT, S::PERIOD * S::OUT>(y, row + group() * 16, M, out);
    }
};

#if __CUDA_ARCH__ >= 900
// `third` is W3 of four layers, `wide_x` x of more than 16 columns; where there is none, any other map. W and b are the last layer's.
template <typename T, Activation LAST, int N0, int WIDTH1, int WIDTH2, int WIDTH3, int OUT, int ROWS, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(ROWS * 2 + 128, 1)
    mlp_warpgroup(const __grid_constant__ TensorMap W1, const __grid_constant__ TensorMap W2,
                  const __grid_constant__ TensorMap third, const __grid_constant__ TensorMap wide_x, const T* __restrict__ x,
                  const T* __restrict__ b1, const T* __restrict__ b2, const T* __restrict__ b3, const T* __restrict__ W,
                  const T* __restrict__ b, T* __restrict__ y, long long rows) {
    using S = PerceptronSizes<N0, WIDTH1, WIDTH2, WIDTH3, OUT, ROWS, STAGES, CLUSTER>;
    constexpr int PRODUCER = 24;
    extern __shared__ __align__(1024) unsigned char memory[];
    WarpgroupPerceptron<T, S> block(memory);
    // tiles of rows: a block's are `clusters` apart; those past M are empty, and there so that blocks of a cluster have as many
    int M = static_cast<int>(rows), clusters = gridDim.x / CLUSTER, begin = blockIdx.x / CLUSTER, end = block.tiles(M);
    if (threadIdx.x == 0) block.init();
    if (threadIdx.x == 32) prefetch(W1), prefetch(W2), prefetch(third), prefetch(wide_x);
    if constexpr (S::SPLIT) __syncthreads(), cluster_arrive_relaxed();  // weights are a block's own, and need not wait for the others
    else cluster_sync<CLUSTER>();
    wait_for_previous_launch();
    if (threadIdx.x < 128) {
        if constexpr (ROWS == 128) warpgroup_reg_dealloc<PRODUCER>();
        if (threadIdx.x < 32 && elect_one()) {
            block.load_resident(W1, third);
#pragma unroll 1
            for (int tile = begin; tile < end; tile += clusters) block.load_weights(W1, W2, block.rows_of(tile, M).shift);
        }
        if constexpr (S::SPLIT) {
            if (threadIdx.x >= 32) cluster_wait();  // all blocks have begun
        }
        if (S::SLABS > 0 && threadIdx.x / 32 == 1 && elect_one()) {
            int count = 0;
#pragma unroll 1
            for (int tile = begin; tile < end; tile += clusters) block.load_x(wide_x, block.rows_of(tile, M), count++);
        }
        if constexpr (S::SPLIT) {
            if (threadIdx.x < 32) cluster_wait();
            cluster_arrive_relaxed(), cluster_wait();
        }
    } else {
        if constexpr (ROWS == 128) warpgroup_reg_alloc<CONSUMER_REGISTERS<2, PRODUCER>>();
        int row0 = static_cast<int>(threadIdx.x) / 32 * 16 - 64, count = 0;  // of this warp, in a block's rows; tiles that are done
        RowsInRegisters<T, N0> next;
        if (S::X_IN_REGISTERS) next.load(x, block.rows_of(begin, M).first + row0, M);
        block.load_small(b1, b2, b3, W, b);
        if constexpr (S::SPLIT) {
            TileRows own = block.rows_of(begin, M);
            unsigned of_x[4] = {};
            if (S::X_IN_REGISTERS) next.pack(of_x);
            if (S::PERIOD > 1) block.load_last_row(x, own, M, 0);
            float second[S::N2 / 8][4] = {}, whole[S::PART / 8][4];
            block.two_layers(second, of_x, own.shift, 0, [] { cluster_wait(), cluster_arrive_relaxed(); });
            cluster_wait();  // nobody reads what the sums are written over
            block.exchange(second, whole);
            block.template end_shared_rows<LAST>(whole, y + own.remainder * OUT, own.first + block.rank * S::GROUPS * 16, own.count);
            return;  // with all that others send
        }
#pragma unroll 1
        for (int tile = begin; tile < end; tile += clusters) {
            TileRows own = block.rows_of(tile, M);
            unsigned of_x[4] = {};
            if (S::X_IN_REGISTERS) next.pack(of_x);
            if (S::PERIOD > 1) block.load_last_row(x, own, M, count);
            float second[S::N2 / 8][4];
            begin_at_bias(second, block.biases(S::N1));
            block.two_layers(second, of_x, own.shift, count++, [] {});
            if (S::X_IN_REGISTERS) next.load(x, block.rows_of(tile + clusters, M).first + row0, M);  // on their way while this tile ends
            block.template end_rows<LAST>(second, y + own.remainder * OUT, own.first + row0, own.count);
        }
    }
    if constexpr (!S::SPLIT) cluster_sync<CLUSTER>();
}
#endif
