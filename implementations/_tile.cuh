// A tile of x @ W in one block, for kernels that do something with the product before it is stored.
//
//   x (M, K), W (K, PARTS * N) or (PARTS * N, K) where NK, y (M, N). PARTS matrices of N columns lie side by side in W and
//   are multiplied together: a thread ends up with the same columns of all of them, so a gate needs no exchange.
//
//   tensor_tile<T, ALIGNED, NK, BM, BN, WM, WN, STAGES, PARTS>(x, W, y, M, K, N, f)   tensor cores: 16 bits, and float as tf32
//   simt_tile<ALIGNED, NK, BM, BN, PARTS>(x, W, y, M, K, N, f)                        float32 units (precision "ieee")
//
// are whole kernels but for f: f(f.row(m), f.column(n), v) is y[m, n] as a float, where v[p] is the sum of column n of part p.
// row and column are called once each, for places inside of y alone, so that they may read what belongs to them (a bias).
// BM × BN is the tile of the product, so the block's tile of y is BM × BN / PARTS; the grid has
// ceil(M / BM) * ceil(N / (BN / PARTS)) blocks in one dimension.
// Sizes are arbitrary. ALIGNED promises that K and N are multiples of a 16-byte vector; without it, elements are loaded one
// by one. _tile.py chooses the tile and counts the shared memory.
//
// The pieces, for kernels that put them together otherwise (an operand that is made in shared memory, say):
//   slab                128 bytes of K (64 elements of 16 bits, 32 of float) of all rows or columns of a tile, in 16-byte
//                       chunks whose place is exclusive-ored with their row so that the chunks that a warp reads at once
//                       lie in different banks. slab_place() says where an element of x's slab (or of W's, where NK) is.
//   RowLoader           brings slabs of x, or of W where NK: rows of K.   request(memory) asks for the next one
//   ColumnLoader        brings slabs of W where not NK: rows of N.
//   TensorTile          the sums of a block, in registers: add(x slab, W slab), store(…, f).
//   pipeline<STAGES>    all slabs of two loaders through a ring of STAGES in shared memory, STAGES - 1 of them on their way.
// Unaligned loaders write to shared memory as ordinary stores; others use cp.async. Both want copy_wait and __syncthreads
// before the slab is read, as in pipeline().
#pragma once
#include "_device.cuh"

struct None {};
// An f that needs nothing of a row or a column, and does not look at x and W on their way to simt_tile's shared memory:
// begin() has the thread's vectors of x's first slab, x() and W() each vector that it brings (number i of its slab, `left`
// elements of K from its first on); end() comes when all are multiplied.
struct OfSums {
    __device__ __forceinline__ None row(long long) const { return {}; }
    __device__ __forceinline__ None column(long long) const { return {}; }
    template <int COUNT>
    __device__ __forceinline__ void begin(const Vector<float> (&)[COUNT]) {}
    __device__ __forceinline__ void x(int, Vector<float>&, int) {}
    __device__ __forceinline__ void W(int, const Vector<float>&) {}
    __device__ __forceinline__ void end() {}
};

template <typename T>
constexpr int SLAB = 128 / sizeof(T);  // elements of K in a slab

// Where tile p of y (BM × BN) begins. GROUP rows of tiles share a pass over W, so that both stay in L2.
template <unsigned GROUP>
__device__ __forceinline__ void place_of_tile(unsigned p, long long M, long long N, int BM, int BN, long long& m0,
                                              long long& n0) {
    unsigned rows = (M + BM - 1) / BM, columns = (N + BN - 1) / BN;
    unsigned first = p / (GROUP * columns) * GROUP, height = min(GROUP, rows - first), inside = p - first * columns;
    m0 = static_cast<long long>(first + inside % height) * BM;
    n0 = static_cast<long long>(inside / height) * BN;
}
// The same of this block of the launch.
__device__ __forceinline__ void place_of_block(long long M, long long N, int BM, int BN, long long& m0, long long& n0) {
    place_of_tile<16>(blockIdx.x, M, N, BM, BN, m0, n0);
}

// Bytes from the start of a slab of rows to element k (0 … SLAB - 1) of a row.
template <typename T>
__device__ __forceinline__ int slab_place(int row, int k) {
    constexpr int SIZE = Vector<T>::SIZE;
    return (row * 8 + (k / SIZE ^ (row & 7))) * 16 + k % SIZE * static_cast<int>(sizeof(T));
}

// ---- slabs from global to shared memory --------------------------------------------------------------------------------

// The next vector of a thread: `count` elements are inside of the matrix, the others become 0.
template <bool ALIGNED, typename T>
__device__ __forceinline__ void bring(unsigned char* to, const T* from, int count) {
    if constexpr (ALIGNED) copy_async(shared_address(to), from, count > 0);
    else *reinterpret_cast<Vector<T>*>(to) = load_part<false>(from, count);
}

// Slabs of ROWS rows of a matrix (PARTS * limit, K), from row `first` of each part; rows past `limit` are 0. Eight rows of
// part 0 come first, then eight of part 1, …, then the next eight of part 0: the fragments of a warp alternate.
// A thread brings the same chunk of every STRIDE-th row, which keeps the swizzle, so that addresses advance by constants.
template <typename T, bool ALIGNED, int ROWS, int THREADS, int PARTS = 1>
struct RowLoader {
    static constexpr int SIZE = Vector<T>::SIZE, STRIDE = THREADS / 8;
    static_assert(STRIDE % (8 * PARTS) == 0, "keeps the swizzle and the part");
    const T* from;
    long long K;
    int to, row, rows, left;  // rows inside of the matrix and elements of K, counted from the thread's own

    __device__ __forceinline__ RowLoader(const T* matrix, long long first, long long limit, long long K) : K(K) {
        int chunk = threadIdx.x % 8;
        row = threadIdx.x / 8;
        int part = row / 8 % PARTS, local = row / (8 * PARTS) * 8 + row % 8;
        from = matrix + (part * limit + first + local) * K + chunk * SIZE;
        to = (row * 8 + (chunk ^ (row & 7))) * 16;
        rows = static_cast<int>(min(limit - first, static_cast<long long>(ROWS))) - local;
        left = static_cast<int>(K) - chunk * SIZE;
    }
    __device__ __forceinline__ void request(unsigned char* memory) {
#pragma unroll(ALIGNED ? 32 : 1)
        for (int i = 0; i * STRIDE < ROWS; ++i) {
            if (ROWS % STRIDE && row + i * STRIDE >= ROWS) break;
            bring<ALIGNED>(memory + to + i * STRIDE * 128, from + i * (STRIDE / PARTS) * K,
                           i * (STRIDE / PARTS) < rows ? left : 0);
        }
        from += SLAB<T>;
        left -= SLAB<T>;
    }
};

// Where the chunks of row k of a (K, N) slab are moved to. Words of float are read from 4 rows and 2 chunks at once.
template <typename T, int CHUNKS>
__device__ __forceinline__ int column_swizzle(int k) {
    return (sizeof(T) == 4 ? (k & 3) << 1 : k & 7) & (CHUNKS - 1);
}

// Slabs of COLUMNS columns of a matrix (K, PARTS * limit), as RowLoader's; the same order of columns.
template <typename T, bool ALIGNED, int COLUMNS, int THREADS, int PARTS = 1>
struct ColumnLoader {
    static constexpr int SIZE = Vector<T>::SIZE, CHUNKS = COLUMNS / SIZE, STRIDE = THREADS / CHUNKS;
    static_assert(THREADS % CHUNKS == 0 && STRIDE % (sizeof(T) == 4 ? 4 : 8) == 0, "keeps the swizzle");
    const T* from;
    long long pitch;
    int to, row, columns, left;  // as in RowLoader; left counts rows of K

    __device__ __forceinline__ ColumnLoader(const T* matrix, long long first, long long limit, long long K)
        : pitch(PARTS * limit) {
        int chunk = threadIdx.x % CHUNKS, column = chunk * SIZE;
        row = threadIdx.x / CHUNKS;
        int part = column / 8 % PARTS, local = column / (8 * PARTS) * 8 + column % 8;
        from = matrix + row * pitch + part * limit + first + local;
        to = (row * CHUNKS + (chunk ^ column_swizzle<T, CHUNKS>(row))) * 16;
        columns = static_cast<int>(min(limit - first, static_cast<long long>(COLUMNS))) - local;
        left = static_cast<int>(K) - row;
    }
    __device__ __forceinline__ void request(unsigned char* memory) {
#pragma unroll(ALIGNED ? 32 : 1)
        for (int i = 0; i * STRIDE < SLAB<T>; ++i) {
            if (SLAB<T> % STRIDE && row + i * STRIDE >= SLAB<T>) break;
            bring<ALIGNED>(memory + to + i * STRIDE * CHUNKS * 16, from + i * STRIDE * pitch,
                           i * STRIDE < left ? columns : 0);
        }
        from += SLAB<T> * pitch;
        left -= SLAB<T>;
    }
};

template <bool NK, typename T, bool ALIGNED, int COLUMNS, int THREADS, int PARTS>
struct WeightLoader : ColumnLoader<T, ALIGNED, COLUMNS, THREADS, PARTS> {
    using ColumnLoader<T, ALIGNED, COLUMNS, THREADS, PARTS>::ColumnLoader;
};
template <typename T, bool ALIGNED, int COLUMNS, int THREADS, int PARTS>
struct WeightLoader<true, T, ALIGNED, COLUMNS, THREADS, PARTS> : RowLoader<T, ALIGNED, COLUMNS, THREADS, PARTS> {
    using RowLoader<T, ALIGNED, COLUMNS, THREADS, PARTS>::RowLoader;
};

// ---- tensor cores ------------------------------------------------------------------------------------------------------

// Rounds the bits of a float to tf32, to nearest, NaN included: tensor cores cut off what is left of them.
__device__ __forceinline__ unsigned nearest_tf32(unsigned bits) {
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(bits)));
    return rounded;
}

// Operands as the tensor cores want them: floats as tf32, others as they are.
template <typename T>
struct Nearest {
    template <int FRAGMENTS, int REGISTERS>
    __device__ __forceinline__ void operator()(unsigned (&r)[FRAGMENTS][REGISTERS], int) const {
#pragma unroll
        for (int i = 0; i < FRAGMENTS; ++i)
#pragma unroll
            for (int j = 0; j < REGISTERS; ++j) r[i][j] = sizeof(T) == 4 ? nearest_tf32(r[i][j]) : r[i][j];
    }
};

// The sums of a block: WM × WN warps, each with TM × TN of the BM × BN. Fragment j of a warp belongs to part j % PARTS.
template <typename T, bool NK, int BM, int BN, int WM, int WN, int PARTS = 1>
struct TensorTile {
    static constexpr int SIZE = Vector<T>::SIZE, THREADS = WM * WN * 32, TM = BM / WM, TN = BN / WN;
    static constexpr int FM = TM / 16, FN = TN / 8, COLUMNS = BN / PARTS;  // fragments of a warp; columns of y
    static constexpr int X_BYTES = BM * 128, STAGE = X_BYTES + BN * 128;   // of a slab of x; of x and W
    static constexpr int OUT_PITCH = COLUMNS + 8, OUT_BYTES = BM * OUT_PITCH * sizeof(T);
    static_assert(TM % 16 == 0 && TN % 16 == 0 && FN % PARTS == 0, "whole fragments, W's two at a time");

    float c[FM][FN][4] = {};
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int row0 = threadIdx.x / 32 / WN * TM, column0 = threadIdx.x / 32 % WN * TN;  // of this warp

    // Before the first add(), with its slab of x.
    __device__ __forceinline__ void begin(const unsigned char*) {}

    // Adds the product of a slab of x and one of W, given where they are in shared memory. What is read of a step, 32 bytes of
    // K, goes through of_x(a, step) and of_w(b, step).
    template <typename X = Nearest<T>, typename W = Nearest<T>>
    __device__ __forceinline__ void add(const unsigned char* x, const unsigned char* w, X of_x = {}, W of_w = {}) {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            unsigned a[FM][4], b[FN][2];
            load_x(a, x, step);
            of_x(a, step);
            load_w(b, w, step);
            of_w(b, step);
#pragma unroll
            for (int i = 0; i < FM; ++i)
#pragma unroll
                for (int j = 0; j < FN; ++j) multiply_add(c[i][j], a[i], b[j], T{});
        }
    }

    __device__ __forceinline__ void load_x(unsigned (&a)[FM][4], const unsigned char* x, int step) const {
#pragma unroll
        for (int i = 0; i < FM; ++i) {
            int row = row0 + i * 16 + lane % 16, chunk = step * 2 + lane / 16;
            load_matrices(a[i], shared_address(x) + row * 128 + ((chunk ^ (row & 7)) << 4));
        }
    }

    // Two fragments (16 columns) at a time; a lane gives the address of row `inner` of matrix `matrix`.
    __device__ __forceinline__ void load_w(unsigned (&b)[FN][2], const unsigned char* w, int step) const {
        constexpr int CHUNKS = BN / SIZE;
        int matrix = lane / 8, inner = lane % 8;
#pragma unroll
        for (int j = 0; j < FN; j += 2) {
            unsigned r[4];
            int column = column0 + j * 8;
            if constexpr (NK) {
                int row = column + matrix / 2 * 8 + inner, chunk = step * 2 + matrix % 2;
                load_matrices(r, shared_address(w) + row * 128 + ((chunk ^ (row & 7)) << 4));
            } else if constexpr (sizeof(T) == 2) {
                int row = step * 16 + matrix % 2 * 8 + inner, chunk = column / 8 + matrix / 2;
                load_matrices_transposed(
                    r, shared_address(w) + (row * CHUNKS + (chunk ^ column_swizzle<T, CHUNKS>(row))) * 16);
            } else {
#pragma unroll
                for (int q = 0; q < 4; ++q) {  // word by word: (t, g), (t + 4, g), and the same 8 columns on
                    int row = step * 8 + q % 2 * 4 + t, n = column + q / 2 * 8 + g;
                    int at = (row * CHUNKS + (n / 4 ^ column_swizzle<T, CHUNKS>(row))) * 16 + n % 4 * 4;
                    r[q] = *reinterpret_cast<const unsigned*>(w + at);
                }
            }
#pragma unroll
            for (int q = 0; q < 4; ++q) b[j + q / 2][q % 2] = r[q];
        }
    }

    // f of every element inside of M × N, to y in 16-byte vectors, whole rows of the tile at a time; through
    // OUT_BYTES of shared memory, which nobody may be reading any more.
    template <bool ALIGNED, typename F>
    __device__ __forceinline__ void store(unsigned char* memory, T* y, long long M, long long N, long long m0,
                                          long long n0, F f) const {
        T* out = reinterpret_cast<T*>(memory);
        int rows = static_cast<int>(min(M - m0, static_cast<long long>(BM)));
        int columns = static_cast<int>(min(N - n0, static_cast<long long>(COLUMNS)));
        // past the end the last place is read again, which is cheaper than not to read it
        decltype(f.row(0)) of_row[FM][2];
#pragma unroll
        for (int i = 0; i < FM; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) of_row[i][h] = f.row(m0 + min(row0 + i * 16 + h * 8 + g, rows - 1));
#pragma unroll
        for (int j = 0; j < FN; j += PARTS) {
            int column = (column0 + j * 8) / PARTS + 2 * t;
            decltype(f.column(0)) of_column[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) of_column[e] = f.column(n0 + min(column + e, columns - 1));
#pragma unroll
            for (int i = 0; i < FM; ++i)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    int row = row0 + i * 16 + h * 8 + g;
                    struct alignas(2 * sizeof(T)) {
                        T at[2];
                    } pair;
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        float v[PARTS];
#pragma unroll
                        for (int p = 0; p < PARTS; ++p) v[p] = c[i][j + p][h * 2 + e];
                        pair.at[e] = from_float<T>(f(of_row[i][h], of_column[e], v));
                    }
                    *reinterpret_cast<decltype(pair)*>(out + row * OUT_PITCH + column) = pair;
                }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < BM * (COLUMNS / SIZE); i += THREADS) {
            int row = i / (COLUMNS / SIZE), column = i % (COLUMNS / SIZE) * SIZE;
            if (row >= rows) break;
            auto v = *reinterpret_cast<const Vector<T>*>(out + row * OUT_PITCH + column);
            store_part<ALIGNED>(y + (m0 + row) * N + n0 + column, v, columns - column);
        }
    }
};

// tile += all `slabs` of x and W. memory has STAGES * Tile::STAGE bytes, and is free again afterwards.
template <int STAGES, typename Tile, typename X, typename W>
__device__ __forceinline__ void pipeline(Tile& tile, unsigned char* memory, X& x, W& w, int slabs) {
    static_assert(STAGES >= 2, "one is read while another is written");
    auto request = [&](int stage) {
        x.request(memory + stage * Tile::STAGE);
        w.request(memory + stage * Tile::STAGE + Tile::X_BYTES);
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < slabs) request(i);
        copy_commit();
    }
    copy_wait<STAGES - 2>();
    __syncthreads();
    tile.begin(memory);
    int stage = 0, next = STAGES - 1;
    for (int slab = 0; slab < slabs; ++slab) {
        copy_wait<STAGES - 2>();  // slab is here, as far as this thread brought it
        __syncthreads();          // as all did, and `next` was read by all
        if (slab + STAGES - 1 < slabs) request(next);
        copy_commit();
        tile.add(memory + stage * Tile::STAGE, memory + stage * Tile::STAGE + Tile::X_BYTES);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    copy_wait<0>();
    __syncthreads();
}

template <typename T, bool ALIGNED, bool NK, int BM, int BN, int WM, int WN, int STAGES, int PARTS, typename F>
__device__ __forceinline__ void tensor_tile(const T* __restrict__ x, const T* __restrict__ W, T* __restrict__ y,
                                            long long M, long long K, long long N, F f) {
    using Tile = TensorTile<T, NK, BM, BN, WM, WN, PARTS>;
    extern __shared__ __align__(128) unsigned char memory[];  // max(STAGES * STAGE, OUT_BYTES)
    long long m0, n0;
    place_of_block(M, N, BM, Tile::COLUMNS, m0, n0);
    Tile tile;
    RowLoader<T, ALIGNED, BM, Tile::THREADS> rows(x, m0, M, K);
    WeightLoader<NK, T, ALIGNED, BN, Tile::THREADS, PARTS> columns(W, n0, N, K);
    pipeline<STAGES>(tile, memory, rows, columns, static_cast<int>((K + SLAB<T> - 1) / SLAB<T>));
    tile.template store<ALIGNED>(memory, y, M, N, m0, n0, f);
}

// ---- float32 units -----------------------------------------------------------------------------------------------------

// A thread computes 8 × 8 of the tile as 2 × 2 blocks of 4 × 4, so that neighbouring lanes read neighbouring 16 bytes of
// shared memory; with two parts, its left blocks are of the one and its right blocks of the other. Slabs of 16 in K: while
// one is multiplied, the next is on its way to registers.
template <int BM, int BN>
constexpr int SIMT_THREADS = BM * BN / 64;
template <int BM, int BN>
constexpr int SIMT_BLOCKS = BM * BN >= 128 * 128 ? 2 : 4;  // on a multiprocessor: for __launch_bounds__

template <bool ALIGNED, bool NK, int BM, int BN, int PARTS, typename F>
__device__ __forceinline__ void simt_tile(const float* __restrict__ x, const float* __restrict__ W,
                                          float* __restrict__ y, long long M, long long K, long long N, F f) {
    static_assert(PARTS == 1 || PARTS == 2, "a thread has two blocks of columns");
    constexpr int BK = 16, THREADS = SIMT_THREADS<BM, BN>, PAD = 4, COLUMNS = BN / PARTS;
    constexpr int X_LOADS = BM * 4 / THREADS, W_LOADS = BN * 4 / THREADS;  // vectors a thread brings in per slab
    constexpr int QUADS = THREADS / 4, GROUPS = THREADS / (BN / 4);
    __shared__ float xs[2][BK][BM + PAD], ws[2][BK][BN + PAD];

    int tid = threadIdx.x, quad = tid / 4, part = tid % 4 * 4;  // 4 threads bring 16 elements of a row of K
    long long m0, n0;
    place_of_block(M, N, BM, COLUMNS, m0, n0);
    int w_column = tid % (BN / 4) * 4, w_k = tid / (BN / 4);  // of a (K, N) slab

    const float* x_from = x + (m0 + quad) * K + part;
    int rows = static_cast<int>(min(M - m0, static_cast<long long>(BM))) - quad;
    // Vector i of a thread is QUADS columns (NK), or GROUPS rows, on from the one before; one that crosses COLUMNS is in
    // the next part.
    static_assert(COLUMNS % QUADS == 0, "the part of a vector depends on i alone");
    int local = NK ? quad : w_column % COLUMNS;
    const float* w_from = NK ? W + (n0 + quad) * K + part
                             : W + w_k * (PARTS * N) + w_column / COLUMNS * N + n0 + local;
    int columns = static_cast<int>(min(N - n0, static_cast<long long>(COLUMNS))) - local;

    Vector<float> xv[X_LOADS], wv[W_LOADS];
    auto request = [&](int left) {  // the next slab; what lies outside of x or W becomes 0
#pragma unroll
        for (int i = 0; i < X_LOADS; ++i)
            xv[i] = load_part<ALIGNED>(x_from + i * QUADS * K, i * QUADS < rows ? left - part : 0);
#pragma unroll
        for (int i = 0; i < W_LOADS; ++i) {
            if constexpr (NK) {
                long long row = i * QUADS / COLUMNS * N + i * QUADS % COLUMNS;
                wv[i] = load_part<ALIGNED>(w_from + row * K, i * QUADS % COLUMNS < columns ? left - part : 0);
            } else {
                wv[i] = load_part<ALIGNED>(w_from + i * GROUPS * PARTS * N, w_k + i * GROUPS < left ? columns : 0);
            }
        }
        w_from += NK ? BK : BK * PARTS * N;
        x_from += BK;
    };
    auto deposit = [&](int stage, int left) {
#pragma unroll
        for (int i = 0; i < X_LOADS; ++i) {
            f.x(i, xv[i], left - part);
#pragma unroll
            for (int j = 0; j < 4; ++j) xs[stage][part + j][quad + i * QUADS] = xv[i].at[j];
        }
#pragma unroll
        for (int i = 0; i < W_LOADS; ++i) {
            f.W(i, wv[i]);
            if constexpr (NK) {
#pragma unroll
                for (int j = 0; j < 4; ++j) ws[stage][part + j][quad + i * QUADS] = wv[i].at[j];
            } else {
                *reinterpret_cast<Vector<float>*>(&ws[stage][w_k + i * GROUPS][w_column]) = wv[i];
            }
        }
    };

    // The thread's place in the tile: a warp covers 4 × 8 threads.
    constexpr int WARPS_ACROSS = BN / 64;
    int warp = tid / 32, lane = tid % 32;
    int row = (warp / WARPS_ACROSS * 4 + lane / 8) * 4, column = (warp % WARPS_ACROSS * 8 + lane % 8) * 4;
    float c[8][8] = {};
    auto multiply = [&](int stage) {
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            float av[8], bv[8];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float *a = &xs[stage][k][row + h * BM / 2], *b = &ws[stage][k][column + h * BN / 2];
                *reinterpret_cast<float4*>(&av[h * 4]) = *reinterpret_cast<const float4*>(a);
                *reinterpret_cast<float4*>(&bv[h * 4]) = *reinterpret_cast<const float4*>(b);
            }
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) c[i][j] = fmaf(av[i], bv[j], c[i][j]);
        }
    };

    int left = static_cast<int>(K), stage = 0;
    request(left);
    f.begin(xv);
    deposit(0, left);
    __syncthreads();
    for (left -= BK; left > 0; left -= BK, stage ^= 1) {
        request(left);
        multiply(stage);
        deposit(stage ^ 1, left);  // which everyone has read before the last barrier
        __syncthreads();
    }
    multiply(stage);
    f.end();

#pragma unroll
    for (int h = 0; h < 2 / PARTS; ++h) {
        int at = column + h * BN / 2;
        int count = static_cast<int>(min(N - n0 - at, 4LL));
        if (count <= 0) continue;
        decltype(f.column(0)) of_column[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) of_column[j] = f.column(min(n0 + at + j, N - 1));
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            long long m = m0 + row + i / 4 * BM / 2 + i % 4;
            if (m >= M) continue;
            auto of_row = f.row(m);
            Vector<float> out;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float v[PARTS];
#pragma unroll
                for (int p = 0; p < PARTS; ++p) v[p] = c[i][(h + p) * 4 + j];
                out.at[j] = f(of_row, of_column[j], v);
            }
            store_part<ALIGNED>(y + m * N + n0 + at, out, count);
        }
    }
}
