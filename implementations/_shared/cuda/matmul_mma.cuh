// x @ W on the tensor cores, a tile in one block, with an epilogue that does something with the product before it is stored.
//
//   x (M, K), W (K, PARTS * N) or (PARTS * N, K) where NK, y (M, N). PARTS matrices of N columns lie side by side in W and
//   are multiplied together: a thread ends up with the same columns of all of them, so a gate needs no exchange.
//
//   matmul_mma<T, ALIGNED, NK, BM, BN, WM, WN, STAGES, PARTS>(x, W, y, M, K, N, f)   here: 16 bits, and float as tf32
//   matmul_simt<ALIGNED, NK, BM, BN, PARTS>(x, W, y, M, K, N, f)                     matmul_simt.cuh: precision "ieee"
//   matmul_wgmma<T, NK, BM, BN, STAGES, CLUSTER, PARTS>(x, W, y, M, K, N, f)         hopper/matmul.cuh: 16 bits, tf32 where NK
//
// are whole kernels but for the epilogue f: f(f.row(m), f.column(n), v) is y[m, n] as a float, where v[p] is the sum of column n
// of part p. XT, a last argument that is false unless given, says that x is stored (K, M). row and column are called once each, for places inside of y alone, so that they may read what belongs to them (a
// bias). BM × BN is the tile of the product, so the block's tile of y is BM × BN / PARTS; the grid has
// ceil(M / BM) * ceil(N / (BN / PARTS)) blocks in one dimension.
// Sizes are arbitrary. ALIGNED promises that K and N are multiples of a 16-byte vector; without it, elements are loaded one
// by one. matmul.py chooses the tile and counts the shared memory.
//
// The pieces, for kernels that put them together otherwise (an operand that is made in shared memory, say):
//   slab                what a pipeline stage has of x or of W: 128 bytes of K (64 elements of 16 bits, 32 of float) of all rows
//                       or columns of a tile, in 16-byte chunks whose place is exclusive-ored with their row so that the chunks
//                       that a warp reads at once lie in different banks. slab_place() says where an element of x's slab (or of
//                       W's, where NK) is.
//   RowLoader           copies slabs of x, or of W where NK: rows of K.   load(memory) begins with the next one
//   ColumnLoader        copies slabs of W where not NK: rows of N.
//   TensorTile          the sums of a block, in registers: add(x slab, W slab), epilogue(…, f).
//   mainloop<STAGES>    all slabs of two loaders through a pipeline of STAGES, STAGES - 1 of them on their way.
// Unaligned loaders write to shared memory as ordinary stores; others use cp.async. Both want copy_wait and __syncthreads
// before the slab is read, as in mainloop().
#pragma once
#include "_shared/cuda/device.cuh"

struct None {};
// The base of epilogues: it needs nothing of a row or a column, and does not look at x and W on their way to matmul_simt's shared
// memory, where begin() has the thread's vectors of x's first slab, x() and W() each vector that it brings (number i of its slab, `left`
// elements of K from its first on); end() comes when all are multiplied, and merge() once all blocks that share the K of a tile have come
// there, none of which changes what others may read of it in shared memory.
struct Epilogue {
    static constexpr int OUTPUTS = 1;  // results of an element: see result(); tiles of Hopper's warpgroups, and of few rows, may have several
    static constexpr bool FILLED = true;  // whether zeros behind K may fill up rows of x and W (N, K) in matmul_simt.cuh
    static constexpr bool PAIRED = true;  // whether the registers of its sums are paired there
    __device__ __forceinline__ None row(long long) const { return {}; }
    __device__ __forceinline__ None column(long long) const { return {}; }
    template <int COUNT>
    __device__ __forceinline__ void begin(const Vector<float> (&)[COUNT]) {}
    __device__ __forceinline__ void x(int, Vector<float>&, int) {}
    __device__ __forceinline__ void W(int, const Vector<float>&) {}
    __device__ __forceinline__ void end() {}
    template <int ROWS, int COLUMNS, typename RowOf, typename ColumnOf>
    __device__ __forceinline__ void add(float (&)[ROWS][COLUMNS], RowOf, ColumnOf) {}
    template <int SPLIT>
    __device__ __forceinline__ void merge() {}
    // Where row m of an output begins, and elements from it to the next row.
    template <typename T>
    __device__ __forceinline__ T* place(int, T* y, long long m, long long N) const {
        return y + m * N;
    }
    static __device__ __forceinline__ long long stride(int, long long N) { return N; }
    // Stores results in their place: a vector, of which `count` elements are inside of y, or an element or a pair.
    template <bool WHOLE, typename T>
    __device__ __forceinline__ void store(T* to, const Vector<T>& v, int count) const {
        store_part<WHOLE>(to, v, count);
    }
    template <typename V>
    __device__ __forceinline__ void store(V* to, const V& v) const {
        *to = v;
    }
};

// What an epilogue has of an element for its output of that number, which is known when it is compiled: most have one, others of().
template <typename F, typename Row, typename Column, int PARTS>
__device__ __forceinline__ float result(const F& f, int output, Row row, Column column, const float (&v)[PARTS]) {
    if constexpr (F::OUTPUTS == 1) return f(row, column, v);
    else return f.of(output, row, column, v);
}

// The sums as they are.
struct Stored : Epilogue {
    __device__ __forceinline__ float operator()(None, None, const float (&v)[1]) const { return v[0]; }
};

template <typename T>
constexpr int SLAB = 128 / sizeof(T);  // elements of K in a slab

// The tile scheduler's order: where tile p of y (BM × BN) begins. GROUP rows of tiles share a pass over W, so that both stay in
// the L2 cache. What is left, up to half as many, belongs to the last pass: a row alone would read all of W once more.
template <unsigned GROUP>
__device__ __forceinline__ void tile_origin(unsigned p, long long M, long long N, int BM, int BN, long long& m0, long long& n0) {
    unsigned rows = (M + BM - 1) / BM, columns = (N + BN - 1) / BN, last = max((rows + GROUP / 2) / GROUP, 1u) - 1;
    unsigned pass = min(p / (GROUP * columns), last), first = pass * GROUP, inside = p - first * columns;
    unsigned height = pass < last ? GROUP : rows - first;
    m0 = static_cast<long long>(first + inside % height) * BM;
    n0 = static_cast<long long>(inside / height) * BN;
}
// The same of this block, in a launch of one tile a block, whose number among those of this y is `block`.
__device__ __forceinline__ void block_origin(long long M, long long N, int BM, int BN, long long& m0, long long& n0,
                                             unsigned block = blockIdx.x) {
    tile_origin<16>(block, M, N, BM, BN, m0, n0);
}

// By all blocks of a launch before a product whose blocks share tiles (hopper/schedule.cuh): `count` flags are 0.
__device__ __forceinline__ void clear_flags(int* flags, long long count) {
    for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) flags[i] = 0;
}

// x (M, K) to rows of `pitch` elements, whole vectors of 16 bytes, with zeros behind K, unless `whole` is null; and the flags of a product
// behind it. ALIGNED says that rows of x are whole vectors.
template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(256)
    whole_rows(const T* __restrict__ x, T* __restrict__ whole, int* __restrict__ flags, long long M, long long K, long long pitch,
               long long count) {
    wait_for_previous_launch();
    constexpr int SIZE = Vector<T>::SIZE;
    clear_flags(flags, count);
    if (!whole) return;
    long long vectors = pitch / SIZE;
    for (long long i = blockIdx.x * 256LL + threadIdx.x; i < M * vectors; i += gridDim.x * 256LL) {
        long long m = i / vectors, k = i % vectors * SIZE;
        reinterpret_cast<Vector<T>*>(whole)[i] = load_part<ALIGNED>(x + m * K + k, static_cast<int>(min(K - k, static_cast<long long>(SIZE))));
    }
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
    __device__ __forceinline__ void skip(int slabs) { from += slabs * SLAB<T>, left -= slabs * SLAB<T>; }
    __device__ __forceinline__ void load(unsigned char* memory) {
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
    __device__ __forceinline__ void skip(int slabs) { from += slabs * SLAB<T> * pitch, left -= slabs * SLAB<T>; }
    __device__ __forceinline__ void load(unsigned char* memory) {
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

// The sums of a block: WM × WN warps, each with TM × TN of the BM × BN. Fragment j of a warp belongs to part j % PARTS. XT: slabs of x
// are ColumnLoader's.
template <typename T, bool NK, int BM, int BN, int WM, int WN, int PARTS = 1, bool XT = false>
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
        constexpr int CHUNKS = BM / SIZE;
#pragma unroll
        for (int i = 0; i < FM; ++i) {
            int first = row0 + i * 16;
            if constexpr (!XT) {
                int row = first + lane % 16, chunk = step * 2 + lane / 16;
                load_matrices(a[i], shared_address(x) + row * 128 + ((chunk ^ (row & 7)) << 4));
            } else if constexpr (sizeof(T) == 2) {
                int k = step * 16 + lane / 16 * 8 + lane % 8, chunk = first / 8 + lane / 8 % 2;
                load_matrices_transposed(a[i], shared_address(x) + (k * CHUNKS + (chunk ^ column_swizzle<T, CHUNKS>(k))) * 16);
            } else {
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    int k = step * 8 + r / 2 * 4 + t, m = first + r % 2 * 8 + g;
                    int at = (k * CHUNKS + (m / 4 ^ column_swizzle<T, CHUNKS>(k))) * 16 + m % 4 * 4;
                    a[i][r] = *reinterpret_cast<const unsigned*>(x + at);
                }
            }
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
    __device__ __forceinline__ void epilogue(unsigned char* memory, T* y, long long M, long long N, long long m0,
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
                    Pair<T> pair;
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        float v[PARTS];
#pragma unroll
                        for (int p = 0; p < PARTS; ++p) v[p] = c[i][j + p][h * 2 + e];
                        pair.at[e] = from_float<T>(f(of_row[i][h], of_column[e], v));
                    }
                    *reinterpret_cast<Pair<T>*>(out + row * OUT_PITCH + column) = pair;
                }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < BM * (COLUMNS / SIZE); i += THREADS) {
            int row = i / (COLUMNS / SIZE), column = i % (COLUMNS / SIZE) * SIZE;
            if (row >= rows) break;
            auto v = *reinterpret_cast<const Vector<T>*>(out + row * OUT_PITCH + column);
            f.template store<ALIGNED>(y + (m0 + row) * N + n0 + column, v, columns - column);
        }
    }
};

// tile += all `slabs` of x and W. memory has STAGES * Tile::STAGE bytes, and is free again afterwards.
template <int STAGES, typename Tile, typename X, typename W>
__device__ __forceinline__ void mainloop(Tile& tile, unsigned char* memory, X& x, W& w, int slabs) {
    static_assert(STAGES >= 2, "one is read while another is written");
    auto load = [&](int stage) {
        x.load(memory + stage * Tile::STAGE);
        w.load(memory + stage * Tile::STAGE + Tile::X_BYTES);
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < slabs) load(i);
        copy_commit();
    }
    copy_wait<STAGES - 2>();
    __syncthreads();
    tile.begin(memory);
    int stage = 0, next = STAGES - 1;
    for (int slab = 0; slab < slabs; ++slab) {
        copy_wait<STAGES - 2>();  // slab is here, as far as this thread copied it
        __syncthreads();          // as all did, and `next` was read by all
        if (slab + STAGES - 1 < slabs) load(next);
        copy_commit();
        tile.add(memory + stage * Tile::STAGE, memory + stage * Tile::STAGE + Tile::X_BYTES);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    copy_wait<0>();
    __syncthreads();
}

template <typename T, bool ALIGNED, bool NK, int BM, int BN, int WM, int WN, int STAGES, int PARTS, bool XT = false, typename F>
__device__ __forceinline__ void matmul_mma(const T* __restrict__ x, const T* __restrict__ W, T* __restrict__ y,
                                           long long M, long long K, long long N, F f, unsigned block = blockIdx.x) {
    using Tile = TensorTile<T, NK, BM, BN, WM, WN, PARTS, XT>;
    extern __shared__ __align__(128) unsigned char memory[];  // max(STAGES * STAGE, OUT_BYTES)
    long long m0, n0;
    block_origin(M, N, BM, Tile::COLUMNS, m0, n0, block);
    wait_for_previous_launch();
    Tile tile;
    WeightLoader<!XT, T, ALIGNED, BM, Tile::THREADS, 1> rows(x, m0, M, K);  // as W is stored: rows of K where not XT
    WeightLoader<NK, T, ALIGNED, BN, Tile::THREADS, PARTS> columns(W, n0, N, K);
    mainloop<STAGES>(tile, memory, rows, columns, static_cast<int>((K + SLAB<T> - 1) / SLAB<T>));
    tile.template epilogue<ALIGNED>(memory, y, M, N, m0, n0, f);
}

// The same with one W, where rows of x and W of float, if they are whole vectors of 16 bytes, may be longer than what is in them, with zeros behind it;
// those of y are not.
template <typename T, bool ALIGNED, bool NK, int BM, int BN, int WM, int WN, int STAGES, bool XT = false, typename F>
__device__ __forceinline__ void matmul_mma_filled(const T* __restrict__ x, const T* __restrict__ W, T* __restrict__ y, long long M, long long K,
                                                  long long N, F f) {
    if constexpr (sizeof(T) == 2 || !ALIGNED) {
        matmul_mma<T, ALIGNED, NK, BM, BN, WM, WN, STAGES, 1, XT>(x, W, y, M, K, N, f);
    } else {
        using Tile = TensorTile<T, NK, BM, BN, WM, WN, 1, XT>;
        extern __shared__ __align__(128) unsigned char memory[];  // as in matmul_mma
        long long m0, n0, depth = filled_up<T>(K);
        block_origin(M, N, BM, BN, m0, n0);
        wait_for_previous_launch();
        Tile tile;
        WeightLoader<!XT, T, true, BM, Tile::THREADS, 1> rows(x, m0, XT ? filled_up<T>(M) : M, XT ? K : depth);
        WeightLoader<NK, T, true, BN, Tile::THREADS, 1> columns(W, n0, NK ? N : filled_up<T>(N), NK ? depth : K);
        mainloop<STAGES>(tile, memory, rows, columns, static_cast<int>((K + SLAB<T> - 1) / SLAB<T>));
        if (N % Vector<T>::SIZE == 0) tile.template epilogue<true>(memory, y, M, N, m0, n0, f);
        else tile.template epilogue<false>(memory, y, M, N, m0, n0, f);
    }
}
