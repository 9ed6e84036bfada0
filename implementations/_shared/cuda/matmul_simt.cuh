// x @ W on the float32 units (precision "ieee").
//
//   matmul_simt     a whole kernel but for the epilogue, as matmul_mma of matmul_mma.cuh; matmul_simt_strips is one, too
//   SimtTile        TensorTile on the float32 units, from the same slabs in shared memory
//   TileOf<SIMT, …>::Type, add_part, each_pair      for kernels that work with either
#pragma once
#include "_shared/cuda/matmul_mma.cuh"

// Bytes from the start of a ColumnLoader's slab of COLUMNS columns to element n of row k of K.
template <typename T, int COLUMNS>
__device__ __forceinline__ int column_place(int k, int n) {
    constexpr int SIZE = Vector<T>::SIZE, CHUNKS = COLUMNS / SIZE;
    return (k * CHUNKS + (n / SIZE ^ column_swizzle<T, CHUNKS>(k))) * 16 + n % SIZE * static_cast<int>(sizeof(T));
}

// The sums of a block: WM × WN warps, each with TM × TN of the BM × BN; float alone, products and sums in IEEE float32.
// A warp's lanes are 4 × 8: a lane has every 4th row, and of every 16 columns two neighbours, like TensorTile's. XT as there.
template <bool NK, int BM, int BN, int WM, int WN, bool XT = false>
struct SimtTile {
    static constexpr int THREADS = WM * WN * 32, TM = BM / WM, TN = BN / WN, COLUMNS = BN;
    static constexpr int ROWS = TM / 4, PAIRS = TN / 16;                   // of a lane
    static constexpr int X_BYTES = BM * 128, STAGE = X_BYTES + BN * 128;  // of a slab of x; of x and W
    static_assert(TM % 4 == 0 && TN % 16 == 0, "whole lanes");

    float c[ROWS][PAIRS][2] = {};
    int row0 = threadIdx.x / 32 / WN * TM + threadIdx.x % 32 / 8;
    int column0 = threadIdx.x / 32 % WN * TN + threadIdx.x % 8 * 2;

    __device__ __forceinline__ void begin(const unsigned char*) {}

    // Adds the product of the first `count` elements of K of a slab of x and one of W in shared memory.
    __device__ __forceinline__ void add(const unsigned char* x, const unsigned char* w, int count = 32) {
#pragma unroll 1
        for (int chunk = 0; chunk < 8 && chunk * 4 < count; ++chunk) {  // 4 elements of K
            float b[PAIRS][2][4];
#pragma unroll
            for (int j = 0; j < PAIRS; ++j) {
                int n = column0 + j * 16;
                if constexpr (NK) {
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        *reinterpret_cast<float4*>(b[j][e]) =
                            *reinterpret_cast<const float4*>(w + slab_place<float>(n + e, chunk * 4));
                } else {
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
                        int row = chunk * 4 + k;
                        int at = (row * (BN / 4) + (n / 4 ^ column_swizzle<float, BN / 4>(row))) * 16 + n % 4 * 4;
                        float2 two = *reinterpret_cast<const float2*>(w + at);
                        b[j][0][k] = two.x, b[j][1][k] = two.y;
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                float a[4];
                if constexpr (XT) {
#pragma unroll
                    for (int k = 0; k < 4; ++k) a[k] = *reinterpret_cast<const float*>(x + column_place<float, BM>(chunk * 4 + k, row0 + i * 4));
                } else {
                    *reinterpret_cast<float4*>(a) =
                        *reinterpret_cast<const float4*>(x + slab_place<float>(row0 + i * 4, chunk * 4));
                }
#pragma unroll
                for (int k = 0; k < 4; ++k)
#pragma unroll
                    for (int j = 0; j < PAIRS; ++j)
#pragma unroll
                        for (int e = 0; e < 2; ++e) c[i][j][e] = fmaf(a[k], b[j][e][k], c[i][j][e]);
            }
        }
    }
};

// f(row, column, v0, v1, of_columns(column)) for all sums of a tile, a pair of neighbouring columns at a time; rows and
// columns are those of the tile, and of_columns is called once for a pair of columns (to read a bias, say).
template <bool NK, int BM, int BN, int WM, int WN, bool XT, typename C, typename F>
__device__ __forceinline__ void each_pair(const SimtTile<NK, BM, BN, WM, WN, XT>& tile, C of_columns, F f) {
#pragma unroll
    for (int j = 0; j < tile.PAIRS; ++j) {
        auto data = of_columns(tile.column0 + j * 16);
#pragma unroll
        for (int i = 0; i < tile.ROWS; ++i)
            f(tile.row0 + i * 4, tile.column0 + j * 16, tile.c[i][j][0], tile.c[i][j][1], data);
    }
}
template <typename T, bool NK, int BM, int BN, int WM, int WN, bool XT, typename C, typename F>
__device__ __forceinline__ void each_pair(const TensorTile<T, NK, BM, BN, WM, WN, 1, XT>& tile, C of_columns, F f) {
#pragma unroll
    for (int j = 0; j < tile.FN; ++j) {
        int column = tile.column0 + j * 8 + 2 * tile.t;
        auto data = of_columns(column);
#pragma unroll
        for (int i = 0; i < tile.FM; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                f(tile.row0 + i * 16 + h * 8 + tile.g, column, tile.c[i][j][h * 2], tile.c[i][j][h * 2 + 1], data);
    }
}

// tile += the first `count` elements of K of a slab of x and one of W.
template <bool NK, int BM, int BN, int WM, int WN>
__device__ __forceinline__ void add_part(SimtTile<NK, BM, BN, WM, WN>& tile, const unsigned char* x,
                                         const unsigned char* w, int count) {
    tile.add(x, w, count);
}
template <typename T, bool NK, int BM, int BN, int WM, int WN>
__device__ __forceinline__ void add_part(TensorTile<T, NK, BM, BN, WM, WN>& tile, const unsigned char* x,
                                         const unsigned char* w, int count) {
    using Tile = TensorTile<T, NK, BM, BN, WM, WN>;
#pragma unroll
    for (int step = 0; step < 4; ++step) {
        if (step * 32 >= count * static_cast<int>(sizeof(T))) break;
        unsigned a[Tile::FM][4], b[Tile::FN][2];
        tile.load_x(a, x, step);
        tile.load_w(b, w, step);
        Nearest<T>{}(a, step);
        Nearest<T>{}(b, step);
#pragma unroll
        for (int i = 0; i < Tile::FM; ++i)
#pragma unroll
            for (int j = 0; j < Tile::FN; ++j) multiply_add(tile.c[i][j], a[i], b[j], T{});
    }
}

template <bool SIMT, typename T, bool NK, int BM, int BN, int WM, int WN, bool XT = false>
struct TileOf {
    using Type = TensorTile<T, NK, BM, BN, WM, WN, 1, XT>;
};
template <bool NK, int BM, int BN, int WM, int WN, bool XT>
struct TileOf<true, float, NK, BM, BN, WM, WN, XT> {
    using Type = SimtTile<NK, BM, BN, WM, WN, XT>;
};

// ---- a whole kernel -----------------------------------------------------------------------------------------------------

// A thread computes 8 × 16 of the tile as 2 × 4 blocks of 4 × 4, so that neighbouring lanes read neighbouring 16 bytes of shared
// memory; with two parts, its left blocks are of the one and its right blocks of the other. Each product then takes three quarters of what
// it reads of shared memory for 8 × 8, which is as fast as Hopper's float32 units are and no faster. A tile of 64 columns is of 8 × 8.
// Slabs of 8 in K, or of 16 where a block is one warp: while one is multiplied, the next is on its way through registers.
template <int BN>
constexpr int SIMT_COLUMNS = BN >= 128 ? 16 : 8;  // of a thread
template <int BM, int BN>
constexpr int SIMT_DEPTH = BM * BN > 2048 ? 8 : 16;  // of a slab
template <int BM, int BN>
constexpr int SIMT_THREADS = BM * BN / (8 * SIMT_COLUMNS<BN>);
// On a multiprocessor, for __launch_bounds__: 256 threads, so that one block multiplies where another waits at its barrier; of the smaller tiles 384,
// unless they read single elements, which takes the registers of more.
template <int BM, int BN, bool ALIGNED>
constexpr int SIMT_BLOCKS = (ALIGNED && BM * BN == 4096 ? 384 : 256) / SIMT_THREADS<BM, BN>;

constexpr int SIMT_PAD = 4;  // behind a row of a slab
// Of shared memory: three slabs, and behind them the sums that other blocks of a cluster finish.
template <int BM, int BN>
constexpr int SIMT_SLABS = 3 * SIMT_DEPTH<BM, BN> * (BM + BN + 2 * SIMT_PAD) * 4;

// The tile at (m0, n0) of y. ALIGNED: rows of x and of W hold whole vectors of 16 bytes, those of x (K, M) and W (K, N) with zeros behind M
// and the N of each part, others behind K where F::FILLED; those of y may not. SPLIT: so many blocks of a cluster share its K, and put their sums together through distributed shared memory.
// `memory` is SIMT_SLABS bytes, and with SPLIT behind them BM * BN * 4 less what the block finishes itself.
template <bool ALIGNED, bool NK, int BM, int BN, int PARTS, bool XT, int SPLIT, typename F>
__device__ __forceinline__ void simt_tile(unsigned char* memory, long long m0, long long n0, const float* __restrict__ x,
                                          const float* __restrict__ W, float* __restrict__ y, long long M, long long K, long long N, F f) {
    static_assert(PARTS == 1 || PARTS == 2, "a thread has two blocks of columns");
    static_assert(!XT || SPLIT == 1, "rows of x, whose beginning all blocks of a cluster may read");
    constexpr int BK = SIMT_DEPTH<BM, BN>, THREADS = SIMT_THREADS<BM, BN>, PAD = SIMT_PAD, COLUMNS = BN / PARTS;
    constexpr int SHARERS = BK / 4, OWN = SIMT_COLUMNS<BN>, ACROSS = OWN / 4;  // threads that bring a row of K; columns, blocks of a thread
    constexpr int QUADS = THREADS / SHARERS;
    constexpr int X_LOADS = (BM + QUADS - 1) / QUADS, W_LOADS = BN / QUADS;  // vectors a thread brings in per slab
    constexpr int GROUPS = THREADS / (BN / 4);
    auto xs = reinterpret_cast<float(*)[BK][BM + PAD]>(memory);
    auto ws = reinterpret_cast<float(*)[BK][BN + PAD]>(memory + 3 * BK * (BM + PAD) * 4);

    wait_for_previous_launch();
    int tid = threadIdx.x, quad = tid / SHARERS, part = tid % SHARERS * 4;
    int rank = SPLIT > 1 ? static_cast<int>(blockIdx.x % SPLIT) : 0;
    long long share = (K + SPLIT * BK - 1) / (SPLIT * BK) * BK, k0 = rank * share;  // of K, and where the block's begins
    int w_column = tid % (BN / 4) * 4, w_k = tid / (BN / 4);  // of a (K, N) slab

    // XT: x is stored (K, M), and brought as a (K, N) slab is
    constexpr int X_GROUPS = THREADS / (BM / 4);
    int x_row = XT ? tid % (BM / 4) * 4 : quad, x_k = tid / (BM / 4);
    auto filled = [](long long length) { return ALIGNED ? filled_up<float>(length) : length; };
    long long of_K = F::FILLED ? filled(K) : K, x_pitch = XT ? filled(M) : of_K;
    const float* x_from = XT ? x + (k0 + x_k) * x_pitch + m0 + x_row : x + (m0 + quad) * x_pitch + k0 + part;
    int rows = static_cast<int>(min(M - m0, static_cast<long long>(BM))) - x_row;
    // Vector i of a thread is QUADS columns (NK), or GROUPS rows, on from the one before; one that crosses COLUMNS is in
    // the next part.
    static_assert(COLUMNS % QUADS == 0, "the part of a vector depends on i alone");
    int local = NK ? quad : w_column % COLUMNS;
    long long pitch = NK ? of_K : filled(N);  // of a part of a (K, N) row
    const float* w_from = NK ? W + (n0 + quad) * pitch + k0 + part
                             : W + (k0 + w_k) * (PARTS * pitch) + w_column / COLUMNS * pitch + n0 + local;
    int columns = static_cast<int>(min(N - n0, static_cast<long long>(COLUMNS))) - local;

    Vector<float> xv[X_LOADS], wv[W_LOADS];
    // Of memory that may change, as the compiler sees it: such a load stays before a barrier.
    auto vector = [](const float* p, int count) {
        if constexpr (!ALIGNED) return load_part<false>(p, count);
        else return count > 0 ? load_once(p) : Vector<float>{};
    };
    auto request = [&](int left) {  // the next slab; what lies outside of x or W becomes 0
#pragma unroll
        for (int i = 0; i < X_LOADS; ++i) {
            if constexpr (XT) xv[i] = vector(x_from + i * X_GROUPS * x_pitch, x_k + i * X_GROUPS < left ? rows : 0);
            else xv[i] = vector(x_from + i * QUADS * x_pitch, i * QUADS < rows ? left - part : 0);
        }
#pragma unroll
        for (int i = 0; i < W_LOADS; ++i) {
            if constexpr (NK) {
                long long row = i * QUADS / COLUMNS * N + i * QUADS % COLUMNS;
                wv[i] = vector(w_from + row * pitch, i * QUADS % COLUMNS < columns ? left - part : 0);
            } else {
                wv[i] = vector(w_from + i * GROUPS * PARTS * pitch, w_k + i * GROUPS < left ? columns : 0);
            }
        }
        w_from += NK ? BK : BK * PARTS * pitch;
        x_from += XT ? BK * x_pitch : BK;
    };
    auto deposit = [&](int stage, int left) {
#pragma unroll
        for (int i = 0; i < X_LOADS; ++i) {
            f.x(i, xv[i], left - part);
            if constexpr (XT) *reinterpret_cast<Vector<float>*>(&xs[stage][x_k + i * X_GROUPS][x_row]) = xv[i];
#pragma unroll
            for (int j = 0; j < 4 && !XT; ++j)
                if (QUADS <= BM || quad < BM) xs[stage][part + j][quad + i * QUADS] = xv[i].at[j];
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

    // The thread's place in the tile: a warp covers 4 × 8 threads. Two neighbouring lanes have the same columns, and the next two the
    // same rows: so the hardware reads 16 bytes for each lane of half a warp at once, which it does where lanes i and i ^ 1, or
    // i and i ^ 2, want the same.
    constexpr int WARPS_ACROSS = BN / (8 * OWN);
    int warp = tid / 32, lane = tid % 32;
    int row = (warp / WARPS_ACROSS * 4 + lane / 16 * 2 + lane % 2) * 4, column = (warp % WARPS_ACROSS * 8 + lane / 2 % 8) * 4;
    float c[8][OWN] = {}, av[2][8], bv[2][OWN];
    auto fetch = [&](int stage, int k, float(&a)[8], float(&b)[OWN]) {  // what a product with element k of a slab takes
#pragma unroll
        for (int h = 0; h < 2; ++h)
            *reinterpret_cast<float4*>(&a[h * 4]) = *reinterpret_cast<const float4*>(&xs[stage][k][row + h * BM / 2]);
#pragma unroll
        for (int h = 0; h < ACROSS; ++h)
            *reinterpret_cast<float4*>(&b[h * 4]) = *reinterpret_cast<const float4*>(&ws[stage][k][column + h * BN / ACROSS]);
    };

    // A slab is asked for a whole slab before it is stored, and stored half a slab before it is multiplied. The barrier stands amid the
    // products, and what the next one takes is fetched before: nobody waits for shared memory behind it. A third slab is there for
    // those who have not come to this barrier yet, and still read the one before.
    int deep = static_cast<int>(SPLIT > 1 ? max(min(share, K - k0), 0LL) : K), left = deep, stage = 0;
    request(left);
    if constexpr (SPLIT == 1) {
        f.begin(xv);
    } else {
        Vector<float> first[X_LOADS];  // the same in all blocks of the cluster
#pragma unroll
        for (int i = 0; i < X_LOADS; ++i)
            first[i] = load_part<ALIGNED>(x + (m0 + quad + i * QUADS) * x_pitch + part, i * QUADS < rows ? static_cast<int>(min(K, 1LL * BK)) - part : 0);
        f.begin(first);
    }
    deposit(0, left);
    request(left -= BK);
    __syncthreads();
    fetch(0, 0, av[0], bv[0]);
#pragma unroll 1
    for (int slabs = (deep + BK - 1) / BK; slabs > 0; --slabs) {
        int next = stage == 2 ? 0 : stage + 1;
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            if (k == BK / 2) {
                deposit(next, left);
                request(left -= BK);
                __syncthreads();
            }
            fetch(k + 1 < BK ? stage : next, (k + 1) % BK, av[(k + 1) % 2], bv[(k + 1) % 2]);
            // down the columns: along the rows the compiler gave splacc's operands registers of one bank, 3 % of the loop's cycles
#pragma unroll
            for (int j = 0; j < OWN; ++j)
#pragma unroll
                for (int i = 0; i < 8; ++i) c[i][j] = fmaf(av[k % 2][i], bv[k % 2][j], c[i][j]);
        }
        stage = next;
    }
    // This never happens: it has the compiler keep two neighbouring rows' sums in registers beside one another, the other way round than those
    // rows of x, which one vector brings. The registers that a product reads are in two banks, of even and odd numbers, and each bank has
    // one read a cycle: a sum and its row of x are in different ones so. W's element is read once for a column. Where the compiler then
    // asks for what a product takes of shared memory too late, more is lost than won: there F is not PAIRED.
    if ((F::PAIRED || SPLIT > 1) && M < 0) {
#pragma unroll
        for (int j = 0; j < OWN; ++j)
#pragma unroll
            for (int i = 0; i < 8; i += 2) *reinterpret_cast<float2*>(y + (j * 8 + i) * 2) = make_float2(c[i + 1][j], c[i][j]);
    }
    f.end();
    auto row_of = [&](int i) { return m0 + row + i / 4 * BM / 2 + i % 4; };
    auto column_of = [&](int vector) { return n0 + column + vector * BN / ACROSS; };
    if (rank == 0) f.add(c, row_of, column_of);  // once, where several blocks share K

    // The same thread of every block has the same elements; of its 8 rows each block finishes a share.
    if constexpr (SPLIT > 1) {
        constexpr int SHARE = 8 / SPLIT, VECTORS = SHARE * ACROSS;
        auto sums = reinterpret_cast<Vector<float>*>(memory + SIMT_SLABS<BM, BN>);
        // where block `by` has the thread's i-th vector of what `of` finishes
        auto place = [&](int of, int by, int i) { return sums + ((of - (of > by)) * VECTORS + i) * THREADS + tid; };
        auto own = [&](int of, int i) -> float* { return &c[of * SHARE + i / ACROSS][i % ACROSS * 4]; };
#pragma unroll
        for (int of = 0; of < SPLIT; ++of)
#pragma unroll
            for (int i = 0; i < VECTORS; ++i)
                if (of != rank) *place(of, rank, i) = {own(of, i)[0], own(of, i)[1], own(of, i)[2], own(of, i)[3]};
        cluster_arrive();
        cluster_wait();
        f.template merge<SPLIT>();
#pragma unroll
        for (int of = 0; of < SPLIT; ++of)
#pragma unroll
            for (int i = 0; i < VECTORS && of == rank; ++i) {
                Vector<float> total = {};
#pragma unroll
                for (int n = 0; n < SPLIT; ++n) {  // in the same order wherever a row is
                    Vector<float> more = n == rank ? Vector<float>{own(of, i)[0], own(of, i)[1], own(of, i)[2], own(of, i)[3]} : load_in_block(place(of, n, i), n);
#pragma unroll
                    for (int j = 0; j < 4; ++j) total.at[j] += more.at[j];
                }
#pragma unroll
                for (int j = 0; j < 4; ++j) own(of, i)[j] = total.at[j];
            }
        cluster_arrive();  // no block ends before all have read
        cluster_wait();
    }

    bool whole = ALIGNED && N % 4 == 0;  // rows of y
#pragma unroll
    for (int h = 0; h < ACROSS / PARTS; ++h) {
        int at = column + h * BN / ACROSS;
        int count = static_cast<int>(min(N - n0 - at, 4LL));
        if (count <= 0) continue;
        decltype(f.column(0)) of_column[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) of_column[j] = f.column(min(n0 + at + j, N - 1));
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            long long m = row_of(i);
            if (m >= M || (SPLIT > 1 && i / (8 / SPLIT) != rank)) continue;
            auto of_row = f.row(m);
            Vector<float> out;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float v[PARTS];
#pragma unroll
                for (int p = 0; p < PARTS; ++p) v[p] = c[i][(h + p * (ACROSS / PARTS)) * 4 + j];
                out.at[j] = f(of_row, of_column[j], v);
            }
            if (whole) f.template store<true>(y + m * N + n0 + at, out, count);
            else f.template store<false>(y + m * N + n0 + at, out, count);
        }
    }
}

// A tile a block; with SPLIT a cluster, and dynamic shared memory of the size that matmul.py says.
template <bool ALIGNED, bool NK, int BM, int BN, int PARTS, bool XT = false, int SPLIT = 1, typename F>
__device__ __forceinline__ void matmul_simt(const float* __restrict__ x, const float* __restrict__ W, float* __restrict__ y, long long M,
                                            long long K, long long N, F f) {
    long long m0, n0;
    tile_origin<16>(blockIdx.x / SPLIT, M, N, BM, BN / PARTS, m0, n0);
    if constexpr (SPLIT == 1) {
        __shared__ __align__(16) unsigned char slabs[SIMT_SLABS<BM, BN>];
        simt_tile<ALIGNED, NK, BM, BN, PARTS, XT, 1>(slabs, m0, n0, x, W, y, M, K, N, f);
    } else {
        extern __shared__ __align__(16) unsigned char memory[];
        simt_tile<ALIGNED, NK, BM, BN, PARTS, XT, SPLIT>(memory, m0, n0, x, W, y, M, K, N, f);
    }
}

// An epilogue that is the same for tiles of all sizes.
template <typename F>
struct Anywhere {
    F f;
    template <int BM, int BN>
    __device__ __forceinline__ F at(long long, long long) const {
        return f;
    }
};

// The same where half a tile or less is left below whole ones: it is made in strips of 32 rows, as many threads to as many elements, so that
// a strip takes as long as a tile, and few are needed. tiles.at<rows, columns>(m0, n0) is the epilogue of the tile there.
template <bool ALIGNED, bool NK, int BM, int BN, int PARTS, typename Tiles>
__device__ __forceinline__ void matmul_simt_strips(const float* __restrict__ x, const float* __restrict__ W, float* __restrict__ y,
                                                   long long M, long long K, long long N, Tiles tiles) {
    constexpr int ROWS = 32, COLUMNS = BM * BN / ROWS;
    extern __shared__ __align__(16) unsigned char memory[];  // slabs of a strip, which are the larger ones
    long long below = M % BM <= BM / 2 ? M % BM : 0, above = M - below, m0, n0;
    unsigned whole = (above + BM - 1) / BM * ((N + BN / PARTS - 1) / (BN / PARTS));
    if (blockIdx.x < whole) {
        tile_origin<16>(blockIdx.x, above, N, BM, BN / PARTS, m0, n0);
        simt_tile<ALIGNED, NK, BM, BN, PARTS, false, 1>(memory, m0, n0, x, W, y, M, K, N, tiles.template at<BM, BN>(m0, n0));
    } else {
        tile_origin<1>(blockIdx.x - whole, below, N, ROWS, COLUMNS / PARTS, m0, n0);
        m0 += above;
        simt_tile<ALIGNED, NK, ROWS, COLUMNS, PARTS, false, 1>(memory, m0, n0, x, W, y, M, K, N, tiles.template at<ROWS, COLUMNS>(m0, n0));
    }
}
