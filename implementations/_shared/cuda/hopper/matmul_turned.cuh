// yᵀ = Wᵀ @ xᵀ on Hopper's warpgroup products, 16 bits: for a y of few tiles, or of rows that whole tiles of 64 do not share out evenly.
//
//   matmul_turned<T, NK, BM, BN, STAGES, CLUSTER, PARTS>(x, W, y, M, K, N, f)      as matmul_wgmma of matmul.cuh
//   matmul_summed<T, NK, BM, BN, STAGES, CLUSTER>(x, W, y, M, K, N, f)             and the sums of W's columns: f.keep(n, sum); the launch before
//                                                                                  makes x, but not W
//
// A tile has BM rows of y, any multiple of 16, and BN columns, 64 of each consumer warpgroup. The blocks of a cluster have neighbouring
// columns, and each brings a part of x for all of them: what a multiprocessor reads of the L2 cache is what limits tiles of few rows.
// matmul_turned.py says of which boxes x and W are. W is the left operand, in panels of 64 columns, or of rows of K (NK).
//
// A column's sum is its product with ones, which lie behind the rows of x in each stage, ONES rows of which the first is not 0: products have
// multiples of 16 rows here.
#pragma once
#include "_shared/cuda/hopper/matmul.cuh"

// f with rows and columns exchanged.
template <typename F>
struct Turned {
    static constexpr int OUTPUTS = F::OUTPUTS;
    F f;

    __device__ __forceinline__ auto row(long long n) const { return f.column(n); }
    __device__ __forceinline__ auto column(long long m) const { return f.row(m); }
    template <typename Row, typename Column, int PARTS>
    __device__ __forceinline__ float operator()(Row of_n, Column of_m, const float (&v)[PARTS]) const {
        return f(of_m, of_n, v);
    }
    template <typename Row, typename Column, int PARTS>
    __device__ __forceinline__ float of(int output, const Row& of_n, const Column& of_m, const float (&v)[PARTS]) const {
        return result(f, output, of_m, of_n, v);
    }
};

// To the rows of 16 bytes at which lanes 0 to 7, 8 to 15, … point: two 8 × 8 fragments of 16 bits a thread, turned.
__device__ __forceinline__ void store_turned(unsigned to, unsigned first, unsigned second) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(first), "r"(second) : "memory");
}

// The sums of a tile, by warpgroups 1, 2, …. That of part p in row m is c[p][m / 8]; behind the last row there are those of ONES.
template <typename T, bool NK, int BM, int BN, int PARTS, int ONES = 0>
struct TurnedTile {
    static constexpr int FN = (BM + ONES) / 8, ROWS = BN, COLUMNS = BM;  // fragments of a part; of yᵀ
    static constexpr int W_BYTES = PARTS * BN * 128, STAGE = W_BYTES + (BM + ONES) * 128;  // of a stage: of W; of W and x
    // rows of y that are made at once, and from one of them to the next in shared memory
    static constexpr int GROUP = 64, PITCH = 64 + 8, OUT_BYTES = BN * PITCH * static_cast<int>(sizeof(T));
    static_assert(BN % 64 == 0 && BM % 16 == 0 && sizeof(T) == 2, "whole warpgroups, whole fragments of 16 bits");

    float c[PARTS][FN][4] = {};
    int row0 = uniform(threadIdx.x / 32) * 16 - 64, rows = uniform(threadIdx.x / 128) * 64 - 64;  // of Wᵀ: of this warp; of this warpgroup

    // By all threads, before a barrier of all: what no copy brings of the stages.
    template <int STAGES, typename P>
    static __device__ __forceinline__ void prepare(const P& pipeline) {
        if constexpr (ONES > 0) {
            constexpr int VECTORS = ONES * 8;  // of a stage
            for (int i = threadIdx.x; i < STAGES * VECTORS; i += BN * 2 + 128) {
                Vector<T> v;
#pragma unroll
                for (int e = 0; e < Vector<T>::SIZE; ++e) v.at[e] = from_float<T>(i % VECTORS < 8 ? 1.0f : 0.0f);
                reinterpret_cast<Vector<T>*>(pipeline.stage(i / VECTORS) + W_BYTES + BM * 128)[i % VECTORS] = v;
            }
            fence_proxy_async();  // products read it as what copies bring
        }
    }
    __device__ __forceinline__ void fence() {
#pragma unroll
        for (int p = 0; p < PARTS; ++p) warpgroup_fence_operand(c[p]);
    }
    __device__ __forceinline__ bool has_rows(int n0, int N) const { return rows < BN && n0 + rows < N; }
    __device__ __forceinline__ void multiply(unsigned stage) {
#pragma unroll
        for (int step = 0; step < 4; ++step)
#pragma unroll
            for (int p = 0; p < PARTS; ++p)
                wgmma<0, 1, NK ? 0 : 1>(c[p], behind(descriptor(stage + rows * 128), p * BN * 128 + step * (NK ? 32 : 2048)),
                                        behind(descriptor(stage + W_BYTES), step * 32), T{});
    }

    // f of every element inside of M × N, to y: a warpgroup's 64 columns are one line of each row, which it turns through shared memory. What f
    // wants of columns lane / 4 and lane / 4 + 8 of the warp's is `of_row`, and of rows `columns`.
    template <typename F, typename Row, typename Column>
    __device__ __forceinline__ void epilogue(unsigned char* memory, T* y, long long N, long long M, long long n0, long long m0, F f,
                                             const Row (&of_row)[2], const Column* columns) {
        constexpr int SIZE = Vector<T>::SIZE, LANES = 64 / SIZE;  // that store a row
        T* out = reinterpret_cast<T*>(memory) + rows * PITCH;
        int thread = threadIdx.x % 128, lane = threadIdx.x % 32, t = lane % 4;
        int height = static_cast<int>(min(M - m0, static_cast<long long>(BM)));
        int width = static_cast<int>(min(N - n0 - rows, 64LL));
        if (width <= 0) return;
        bool whole = N % SIZE == 0;
        if constexpr (ONES > 0)
            if (m0 == 0 && t == 0)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    long long n = n0 + row0 + h * 8 + lane / 4;
                    if (n < N) f.f.keep(n, c[0][BM / 8][h * 2]);
                }
        T* of_output[F::OUTPUTS];  // where this warpgroup's columns begin
#pragma unroll
        for (int i = 0; i < F::OUTPUTS; ++i) of_output[i] = f.f.place(i, y, m0, N) + n0 + rows;
        auto sync = [] { asm volatile("bar.sync %0, 128;" ::"r"(threadIdx.x / 128) : "memory"); };
        unsigned turned = shared_address(out + lane % 8 * PITCH + row0 - rows + lane / 8 % 2 * 8);
#pragma unroll 1
        for (int group = 0; group < height; group += GROUP) {
#pragma unroll
            for (int output = 0; output < F::OUTPUTS; ++output) {
                unsigned pairs[GROUP / 8][2];  // all are made before one is stored, so that many are under way at once
#pragma unroll
                for (int j = 0; j < GROUP / 8 && j < FN; ++j) {
                    Pair<Column> of_m = {};
                    if constexpr (HAS_COLUMNS<Column>)
                        if (group + j * 8 < BM) of_m = reinterpret_cast<const Pair<Column>*>(columns + group)[j * 4 + t];
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        Pair<T> pair;
#pragma unroll
                        for (int e = 0; e < 2; ++e) {
                            float v[PARTS];
#pragma unroll
                            for (int p = 0; p < PARTS; ++p) v[p] = c[p][j][h * 2 + e];
                            pair.at[e] = from_float<T>(result(f, output, of_row[h], of_m.at[e], v));
                        }
                        pairs[j][h] = *reinterpret_cast<unsigned*>(&pair);
                    }
                }
#pragma unroll
                for (int j = 0; j < GROUP / 8 && j < FN; ++j) store_turned(turned + j * 8 * PITCH * static_cast<int>(sizeof(T)), pairs[j][0], pairs[j][1]);
                sync();
                T* to = of_output[output];
                long long stride = f.f.stride(output, N);
                if (whole) {
#pragma unroll
                    for (int i = 0; i < GROUP; i += 128 / LANES) {
                        int row = i + thread / LANES, column = thread % LANES * SIZE;
                        auto v = *reinterpret_cast<const Vector<T>*>(out + row * PITCH + column);
                        if (group + row < height) f.f.template store<true>(to + (group + row) * stride + column, v, width - column);
                    }
                } else {
#pragma unroll 4
                    for (int row = thread / 32; row < min(GROUP, height - group); row += 4)
#pragma unroll
                        for (int column = lane; column < 64; column += 32)
                            if (column < width) f.f.store(to + (group + row) * stride + column, out[row * PITCH + column]);
                }
                sync();
            }
#pragma unroll
            for (int p = 0; p < PARTS; ++p)
#pragma unroll
                for (int j = 0; j + GROUP / 8 < FN; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) c[p][j][e] = c[p][j + GROUP / 8][e];
        }
    }
};

// The slabs of Wᵀ and x, as Copies of matmul.cuh has them: of each part of W a box, or panels; x to all blocks of the cluster.
template <bool NK, int PARTS, int ONES = 0>
struct TurnedCopies {
    const TensorMap &W, &x;
    int N;

    template <int BN, int BM, int CLUSTER>
    __device__ __forceinline__ int missing(const Share& of) const {
        return (PARTS * (BN - brought<BN>(of.m0, N)) + ONES) * 128;
    }
    template <int BN, int BM, int CLUSTER>
    __device__ __forceinline__ void bring(unsigned to, unsigned barrier, const Share& of, int slab) const {
        bring_W<BN, BM, CLUSTER>(to, barrier, of, slab), bring_x<BN, BM, CLUSTER>(to, barrier, of, slab);
    }
    template <int BN, int, int>
    __device__ __forceinline__ void bring_W(unsigned to, unsigned barrier, const Share& of, int slab) const {
        int k0 = slab * 64;
#pragma unroll
        for (int box = 0; box < PARTS * BN; box += 64) {
            if (of.m0 + box % BN >= N) continue;
            int column = box / BN * N + of.m0 + box % BN;
            if (NK) tma_load(to + box * 128, W, k0, column, barrier);
            else tma_load(to + box * 128, W, column, k0, barrier);
        }
    }
    template <int BN, int BM, int CLUSTER>
    __device__ __forceinline__ void bring_x(unsigned to, unsigned barrier, const Share& of, int slab) const {
        constexpr int OWN = BM / CLUSTER;
        static_assert(OWN % 8 == 0, "whole blocks of the swizzle");
        int row = blockIdx.x % CLUSTER * OWN;
        tma_load<CLUSTER>(to + (PARTS * BN + row) * 128, x, slab * 64, of.n0 + row, barrier);
    }
};

template <typename T, bool NK, int BM, int BN, int STAGES, int CLUSTER, int PARTS, template <typename> class Rows = GivenRows,
          typename Produce = Producer, bool EARLY = false, typename F>
__device__ __forceinline__ void matmul_turned(const TensorMap& x, const TensorMap& W, T* __restrict__ y, long long M, long long K, long long N, F f) {
    persistent_tiles<TurnedTile<T, NK, BM, BN, PARTS>, BN, BM, STAGES, CLUSTER, Rows, Produce, EARLY>(
        TurnedCopies<NK, PARTS>{W, x, static_cast<int>(N)}, y, N, K, M, Turned<F>{f}, WholeTiles{});
}
template <typename T, bool NK, int BM, int BN, int STAGES, int CLUSTER, typename F>
__device__ __forceinline__ void matmul_summed(const TensorMap& x, const TensorMap& W, T* __restrict__ y, long long M, long long K, long long N, F f) {
    constexpr int ONES = 16;
    persistent_tiles<TurnedTile<T, NK, BM, BN, 1, ONES>, BN, BM, STAGES, CLUSTER, GivenRows, ProducerOf<false, true>, false>(
        TurnedCopies<NK, 1, ONES>{W, x, static_cast<int>(N)}, y, N, K, M, Turned<F>{f}, WholeTiles{});
}
