// Tiles of x @ W on Hopper's warpgroup products: elements of 16 bits, K and N multiples of 8.
//
//   warpgroup_tiles<T, NK, BM, BN, STAGES, CLUSTER, PARTS>(x, W, y, M, K, N, f)      as tensor_tile of _tile.cuh
//
// The grid has no more blocks than the device holds at once, and each makes one tile after another. Its first warpgroup brings
// slabs, of the next tile too while this one is finished; each of the others has 64 rows of a tile and all of its columns. The
// blocks of a cluster have neighbouring rows, so that each brings a part of W's slab for all of them.
//
// x and W are tensor maps; _tile.py says of which boxes. A slab is 64 of K: rows of x, and of W columns as rows of K (NK), or
// panels of 64 columns. The columns of PARTS matrices lie one behind the other, so that all sums of an element are a thread's.
#pragma once
#include "_tile.cuh"
#include "_warpgroup.cuh"

// Whether f wants something of columns: None is nothing to keep.
template <typename Column>
constexpr bool KEPT = sizeof(Column) > 1;

// The sums of a tile, by warpgroups 1, 2, …. Those of column n of part p are c[p * FN / PARTS + n / 8].
template <typename T, bool NK, int BM, int BN, int PARTS = 1>
struct WarpgroupTile {
    static constexpr int FN = BN / 8, COLUMNS = BN / PARTS;                // fragments; columns of y
    static constexpr int X_BYTES = BM * 128, STAGE = X_BYTES + BN * 128;  // of a slab of x; of x and W
    static constexpr int PIECE = 64, PITCH = PIECE + 8;                    // columns of y that a warp stores at once
    static constexpr int OUT_BYTES = BM * PITCH * static_cast<int>(sizeof(T));
    static_assert(BM % 64 == 0 && COLUMNS % PIECE == 0, "whole warpgroups, whole pieces");

    float c[FN][4] = {};
    int row0 = threadIdx.x / 32 * 16 - 64, rows = threadIdx.x / 128 * 64 - 64;  // of this warp; of this warpgroup

    // Adds `slabs` slabs of the ring from `first` on. One is given back when the products of the next are under way. Meanwhile
    // beside(i, x) may look at slab i of this warp's 16 rows of x.
    template <typename R, typename B>
    __device__ __forceinline__ void multiply(const R& ring, int first, int slabs, B beside) {
        for (int i = first; i < first + slabs; ++i) {
            ring.await(i);
            hold(c);
            products_begin();
            add(shared_address(ring.slab(i)));
            products_commit();
            beside(i - first, ring.slab(i) + row0 * 128);
            hold(c);
            products_wait<1>();
            if (i > first) ring.release(i - 1);
        }
        products_wait<0>();
        hold(c);
        ring.release(first + slabs - 1);
    }
    __device__ __forceinline__ void add(unsigned x) {
        unsigned w = x + X_BYTES;
#pragma unroll
        for (int step = 0; step < 4; ++step)  // 16 of K: 32 bytes of a row of K, 16 rows of a panel
            warpgroup_product<NK ? 0 : 1>(c, matrix(x + rows * 128 + step * 32),
                                          NK ? matrix(w + step * 32) : matrix(w + step * 2048, PIECE * 128), T{});
    }

    // f of every element inside of M × N, to y in 16-byte vectors; each warp through its own part of OUT_BYTES of shared memory.
    // What f wants of rows lane / 4 and lane / 4 + 8 is `of_row`. What it wants of columns is in shared memory: read from global
    // memory here, it would keep all others waiting.
    //
    // One piece after another takes the place of the first in c, so that there is one piece's code: that of all of them does not
    // fit in the cache of instructions, and fetching it takes longer than running it.
    template <typename F, typename Row, typename Column>
    __device__ __forceinline__ void store(unsigned char* memory, T* y, long long M, long long N, long long m0,
                                          long long n0, F f, const Row (&of_row)[2], const Column* columns) {
        constexpr int FRAGMENTS = FN / PARTS, AT_ONCE = PIECE / 8;  // of a part; in a piece
        T* out = reinterpret_cast<T*>(memory) + row0 * PITCH;
        int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        int inside = static_cast<int>(min(M - m0 - row0, 16LL));  // rows
        int width = static_cast<int>(min(N - n0, static_cast<long long>(COLUMNS)));
        if (inside <= 0) return;
        y += (m0 + row0 + lane / 8) * N + n0 + lane % 8 * 8;
#pragma unroll 1
        for (int piece = 0; piece < width; piece += PIECE) {
            struct alignas(2 * sizeof(T)) Pair {
                T at[2];
            } pairs[AT_ONCE][2];  // all are made before one is stored, so that many are under way at once
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                struct alignas(2 * sizeof(Column)) {
                    Column at[2];
                } of_columns = {};
                if constexpr (KEPT<Column>)
                    of_columns = reinterpret_cast<const decltype(of_columns)*>(columns + piece)[j * 4 + t];
#pragma unroll
                for (int h = 0; h < 2; ++h)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        float v[PARTS];
#pragma unroll
                        for (int p = 0; p < PARTS; ++p) v[p] = c[p * FRAGMENTS + j][h * 2 + e];
                        pairs[j][h].at[e] = from_float<T>(f(of_row[h], of_columns.at[e], v));
                    }
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j)
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    *reinterpret_cast<Pair*>(out + (h * 8 + g) * PITCH + j * 8 + 2 * t) = pairs[j][h];
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 16; i += 4) {
                auto v = *reinterpret_cast<const Vector<T>*>(out + (i + lane / 8) * PITCH + lane % 8 * 8);
                if (i + lane / 8 < inside) store_part<true>(y + i * N + piece, v, width - piece - lane % 8 * 8);
            }
            __syncwarp();
#pragma unroll
            for (int p = 0; p < PARTS; ++p)
#pragma unroll
                for (int j = 0; j + AT_ONCE < FRAGMENTS; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) c[p * FRAGMENTS + j][e] = c[p * FRAGMENTS + j + AT_ONCE][e];
        }
    }
};

// Which tiles of y a block makes, one after another, and what it brings for them.
template <bool NK, int BM, int BN, int CLUSTER, int PARTS>
struct Tiles {
    static constexpr int COLUMNS = BN / PARTS;
    static constexpr int BOX = NK ? BN / (PARTS > CLUSTER ? PARTS : CLUSTER) : 64;  // columns of W that a copy brings
    long long M, N;
    int slabs, count;  // of a tile; of tiles
    long long m0, n0;  // of the tile that is brought, of which so many slabs are left; and which is next
    int left = 0, next = 0;
    static_assert(BN / CLUSTER % BOX == 0 && BOX <= 256, "whole boxes, as large as they may be");

    __device__ __forceinline__ Tiles(long long M, long long K, long long N)
        : M(M), N(N), slabs(static_cast<int>((K + 63) / 64)) {
        unsigned all = static_cast<unsigned>((M + BM * CLUSTER - 1) / (BM * CLUSTER) * ((N + COLUMNS - 1) / COLUMNS));
        unsigned clusters = gridDim.x / CLUSTER, own = blockIdx.x / CLUSTER;
        count = own < all ? static_cast<int>((all - own + clusters - 1) / clusters) : 0;
    }
    __device__ __forceinline__ void place(int tile, long long& m0, long long& n0) const {
        place_of_tile<16 / CLUSTER>(blockIdx.x / CLUSTER + tile * (gridDim.x / CLUSTER), M, N, BM * CLUSTER, COLUMNS, m0, n0);
        m0 += blockIdx.x % CLUSTER * BM;
    }

    // By one thread: slab i, the next of all that the block multiplies.
    template <typename R>
    __device__ __forceinline__ void bring(const TensorMap& x, const TensorMap& W, const R& ring, int i) {
        if (left == 0) place(next++, m0, n0), left = slabs;
        int k0 = (slabs - left--) * 64;
        unsigned to = ring.expect(i), barrier = ring.full(i);
        copy_box(to, x, k0, static_cast<int>(m0), barrier);
        to += BM * 128;
#pragma unroll
        for (int box = 0; box < BN / CLUSTER; box += BOX) {
            int at = blockIdx.x % CLUSTER * (BN / CLUSTER) + box;  // of all columns of the slab
            int column = static_cast<int>(at / COLUMNS * N + n0) + at % COLUMNS;
            if (NK) copy_box<CLUSTER>(to + at * 128, W, k0, column, barrier);
            else copy_box<CLUSTER>(to + at * 128, W, column, k0, barrier);
        }
    }
};

// All blocks of the cluster have initialised their barriers. Once more, none of them writes to another from here on.
template <int CLUSTER>
__device__ __forceinline__ void wait_for_cluster() {
    if constexpr (CLUSTER > 1) cluster_arrive(), cluster_wait();
    else __syncthreads();
}

// What a warp adds up of its 16 rows of x beside the products, from row m of M on: nothing. f.row() of rows lane / 4 and
// lane / 4 + 8 is what there is to know of them.
template <typename F>
struct GivenRows {
    decltype(static_cast<F*>(nullptr)->row(0)) of_row[2];

    __device__ __forceinline__ GivenRows(const F& f, long long m, long long M) {
#pragma unroll
        for (int h = 0; h < 2; ++h) of_row[h] = f.row(min(m + threadIdx.x % 32 / 4 + h * 8, M - 1));
    }
    __device__ __forceinline__ void add(const unsigned char*, int, bool) {}
    __device__ __forceinline__ void finish(long long) {}
};

// By the multiplying warpgroups: all tiles. `ready` brings f.column() of their columns where there is something to bring; Rows
// is what is added up of rows of x.
template <typename Tile, typename Rows, typename T, typename Tiles, typename Slabs, typename Ready, typename F>
__device__ __forceinline__ void multiply_tiles(const Tiles& tiles, const Slabs& ring, const Ready& ready, unsigned char* out,
                                               T* y, long long K, F f) {
    using Column = decltype(f.column(0));
    for (int i = 0; i < tiles.count; ++i) {
        long long m0, n0;
        tiles.place(i, m0, n0);
        Tile tile;
        Rows rows(f, m0 + tile.row0, tiles.M);
        tile.multiply(ring, i * tiles.slabs, tiles.slabs, [&](int k, const unsigned char* x) {
            rows.add(x, static_cast<int>(K) - k * SLAB<T>, k == 0);
        });
        rows.finish(K);
        if (KEPT<Column>) ready.await(i);
        tile.store(out, y, tiles.M, tiles.N, m0, n0, f, rows.of_row, reinterpret_cast<const Column*>(ready.slab(i)));
        if (KEPT<Column>) ready.release(i);
    }
}

template <typename T, bool NK, int BM, int BN, int STAGES, int CLUSTER, int PARTS, template <typename> class Rows = GivenRows,
          typename F>
__device__ __forceinline__ void warpgroup_tiles(const TensorMap& x, const TensorMap& W, T* __restrict__ y, long long M,
                                                long long K, long long N, F f) {
    using Tile = WarpgroupTile<T, NK, BM, BN, PARTS>;
    using Slabs = Ring<STAGES, Tile::STAGE, CLUSTER>;
    using Column = decltype(f.column(0));
    extern __shared__ __align__(1024) unsigned char memory[];  // Slabs::BYTES + OUT_BYTES + twice the columns and barriers
    Slabs ring(memory);
    Ring<2, Tile::COLUMNS * static_cast<int>(sizeof(Column))> ready(memory + Slabs::BYTES + Tile::OUT_BYTES);
    Tiles<NK, BM, BN, CLUSTER, PARTS> tiles(M, K, N);
    if (threadIdx.x == 0) ring.init(1, BM / 16), ready.init(96, BM / 16);
    wait_for_cluster<CLUSTER>();
    if (threadIdx.x < 128) {
        give_registers<BRINGING>();
        if (threadIdx.x == 0) {
#pragma unroll 1
            for (int i = 0; i < tiles.count * tiles.slabs; ++i) tiles.bring(x, W, ring, i);
        } else if (KEPT<Column> && threadIdx.x >= 32) {
            for (int i = 0; i < tiles.count; ++i) {
                long long m0, n0;
                tiles.place(i, m0, n0);
                auto to = reinterpret_cast<Column*>(ready.vacant(i));
                for (int n = threadIdx.x - 32; n < Tile::COLUMNS; n += 96) to[n] = f.column(min(n0 + n, N - 1));
                barrier_arrive(ready.full(i));
            }
        }
    } else {
        take_registers<MULTIPLYING<BM / 64>>();
        multiply_tiles<Tile, Rows<F>>(tiles, ring, ready, memory + Slabs::BYTES, y, K, f);
    }
    wait_for_cluster<CLUSTER>();
}
