// Which tiles of y the blocks of a persistent grid make: whole ones, or, of the last that do not fill all blocks, shares of K (stream-K:
// Osama et al., 2023).
//
//   WholeTiles   whole tiles, one after another
//   Strips       the same, and strips
//   SharedTiles  each cluster whole tiles as long as there are more than two rounds of them. What is left is one row of slabs, of which each
//                cluster has an equal piece
//
// A strip is what is left of y below the last row of whole tiles, or right of their last column, where that is at most half a tile. It is
// made in small tiles of 64 rows and half the columns, each by one block; clusters that have one whole tile less begin with them.
//
// A piece begins in the middle of one tile and ends in that of another. A cluster begins with the end of its piece: it leaves the sums
// of the tile's first slabs in global memory. Whoever has the last slabs of that tile adds them to its own, in one order in every run, and
// makes y of them. It is the last of its own piece, so that hardly anybody waits, and waits for clusters before it alone, so that all
// come to an end in whatever order they run.
#pragma once
#include "_shared/cuda/hopper/pipeline.cuh"
#include "_shared/cuda/matmul_mma.cuh"

// `count` pipeline stages of K, from stage `first` on, of the tile at m0, n0.
struct Share {
    int m0, n0, first, count;
    bool small;
};

// Whole tiles of the first `rows` and `columns` of y, of all clusters, and where one of them lies for a block.
template <int BM, int COLUMNS, int CLUSTER>
struct TileGrid {
    static constexpr int ROWS = BM * CLUSTER;
    int M, N, rows, columns, tiles, clusters = gridDim.x / CLUSTER, own = blockIdx.x / CLUSTER;

    __device__ __forceinline__ TileGrid(int M, int N, int rows, int columns) : M(M), N(N), rows(rows), columns(columns) {
        tiles = (rows + ROWS - 1) / ROWS * ((columns + COLUMNS - 1) / COLUMNS);
    }
    __device__ __forceinline__ TileGrid(int M, int N) : TileGrid(M, N, M, N) {}
    __device__ __forceinline__ Share share(int tile, int first, int count) const {
        long long m0, n0;
        tile_origin<16 / CLUSTER>(tile, rows, columns, ROWS, COLUMNS, m0, n0);
        return {static_cast<int>(m0 + blockIdx.x % CLUSTER * BM), static_cast<int>(n0), first, count, false};
    }
    // How many of `count` are at `place`, or at a multiple of `step` behind it.
    static __device__ __forceinline__ int from(int place, int count, int step) {
        return place < count ? (count - place + step - 1) / step : 0;
    }
};

template <int BM, int COLUMNS, int CLUSTER, typename Schedule>
struct TileScheduler;

struct WholeTiles {};

template <int BM, int COLUMNS, int CLUSTER>
struct TileScheduler<BM, COLUMNS, CLUSTER, WholeTiles> : TileGrid<BM, COLUMNS, CLUSTER> {
    using Grid = TileGrid<BM, COLUMNS, CLUSTER>;
    static constexpr bool HAS_SMALL = false;
    int depth, count;  // slabs of a tile; shares of this block

    __device__ __forceinline__ TileScheduler(int M, int N, int depth, WholeTiles) : Grid(M, N), depth(depth) {
        count = Grid::from(this->own, this->tiles, this->clusters);
    }
    __device__ __forceinline__ int stages() const { return count * depth; }  // of all shares
    __device__ __forceinline__ Share share(int i) const { return Grid::share(this->own + i * this->clusters, 0, depth); }
    // Whether the sums of a share are those of its tile.
    template <typename Tile>
    __device__ __forceinline__ bool completes(Tile&, const Share&) const {
        return true;
    }
};

struct Strips {};

template <int BM, int COLUMNS, int CLUSTER>
struct TileScheduler<BM, COLUMNS, CLUSTER, Strips> : TileGrid<BM, COLUMNS, CLUSTER> {
    using Grid = TileGrid<BM, COLUMNS, CLUSTER>;
    static constexpr bool HAS_SMALL = true;
    static constexpr int AT_ONCE = 2, WIDTH = COLUMNS / 2;  // small tiles in the time of a whole one; columns of one
    int depth, whole, count;                                // slabs of a tile; whole tiles and all shares of this block
    int less, early, first;  // clusters with a whole tile less, and how many small tiles this one and all of them have for it

    __device__ __forceinline__ TileScheduler(int M, int N, int depth, Strips)
        : Grid(M, N, M % Grid::ROWS <= Grid::ROWS / 2 ? M / Grid::ROWS * Grid::ROWS : M, N % COLUMNS <= WIDTH ? N / COLUMNS * COLUMNS : N),
          depth(depth) {
        int small = (below() + beside() + CLUSTER - 1) / CLUSTER, more = this->tiles % this->clusters;
        less = more > 0 ? this->clusters - more : 0;
        first = min(AT_ONCE * less, small);
        early = less > 0 && this->own >= more ? Grid::from(this->own - more, first, less) : 0;
        whole = Grid::from(this->own, this->tiles, this->clusters);
        count = whole + early + Grid::from(first + this->own, small, this->clusters);
    }
    // Small tiles of the strip below, which has all columns, and of the one beside.
    __device__ __forceinline__ int across() const { return (this->N + WIDTH - 1) / WIDTH; }
    __device__ __forceinline__ int below() const { return (this->M - this->rows + 63) / 64 * across(); }
    __device__ __forceinline__ int beside() const { return this->columns < this->N ? (this->rows + 63) / 64 : 0; }

    // A small tile has two slabs in each stage.
    __device__ __forceinline__ int stages() const { return whole * depth + (count - whole) * ((depth + 1) / 2); }
    __device__ __forceinline__ Share share(int i) const {
        if (i < whole) return Grid::share(this->own + i * this->clusters, 0, depth);
        int place = i - whole < early ? this->own - (this->clusters - less) + (i - whole) * less
                                      : first + this->own + (i - whole - early) * this->clusters;
        int tile = place * CLUSTER + blockIdx.x % CLUSTER, right = tile - below(), m0, n0;
        if (right < 0) m0 = this->rows + tile / across() * 64, n0 = tile % across() * WIDTH;
        else m0 = right < beside() ? right * 64 : this->M, n0 = this->columns;  // the last of a cluster may be none
        return {m0, n0, 0, (depth + 1) / 2, true};
    }
    template <typename Tile>
    __device__ __forceinline__ bool completes(Tile&, const Share&) const {
        return true;
    }
};

// Where blocks leave the sums of a tile that another one completes: of each block those of a tile, and a flag of each consumer warp, 0
// until its sums are there.
struct SharedTiles {
    float4* sums;
    int* flags;

    template <typename Tile>
    __device__ __forceinline__ float4* place(unsigned block) const {
        return sums + block * static_cast<size_t>(Tile::FN * Tile::CONSUMERS) + threadIdx.x - 128;
    }
    template <typename Tile>
    __device__ __forceinline__ int* flag(unsigned block) const {
        return flags + block * (Tile::CONSUMERS / 32) + threadIdx.x / 32 - 4;
    }

    template <typename Tile>
    __device__ __forceinline__ void leave(const Tile& tile) const {
        float4* to = place<Tile>(blockIdx.x);
#pragma unroll
        for (int j = 0; j < Tile::FN; ++j)
            __stcg(to + j * Tile::CONSUMERS, make_float4(tile.c[j][0], tile.c[j][1], tile.c[j][2], tile.c[j][3]));
        __threadfence();
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            asm volatile("st.release.gpu.global.s32 [%0], 1;" ::"l"(flag<Tile>(blockIdx.x)) : "memory");
    }
    // Adds what that block has left, once it is there.
    template <typename Tile>
    __device__ __forceinline__ void add(Tile& tile, unsigned block) const {
        if (threadIdx.x % 32 == 0)
            for (int there = 0; there == 0;)
                asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(there) : "l"(flag<Tile>(block)) : "memory");
        const float4* from = place<Tile>(block);
#pragma unroll
        for (int j = 0; j < Tile::FN; ++j) {
            if (j % 8 == 0) __syncwarp();  // behind the flag; and there are registers for no more loads at once
            float4 v = __ldcg(from + j * Tile::CONSUMERS);
            tile.c[j][0] += v.x, tile.c[j][1] += v.y, tile.c[j][2] += v.z, tile.c[j][3] += v.w;
        }
    }
};

template <int BM, int COLUMNS, int CLUSTER>
struct TileScheduler<BM, COLUMNS, CLUSTER, SharedTiles> : TileGrid<BM, COLUMNS, CLUSTER> {
    using Grid = TileGrid<BM, COLUMNS, CLUSTER>;
    static constexpr bool HAS_SMALL = false;
    SharedTiles shared;
    int depth, whole, count;  // slabs of a tile; whole tiles; shares of this block
    int pieces, begin, end;   // slabs of all pieces together; of its own

    __device__ __forceinline__ TileScheduler(int M, int N, int depth, SharedTiles shared)
        : Grid(M, N), shared(shared), depth(depth) {
        whole = max(this->tiles / this->clusters - 1, 0);
        pieces = (this->tiles - whole * this->clusters) * depth;
        begin = begin_of(this->own), end = begin_of(this->own + 1);
        count = whole + (begin < end ? (end - 1) / depth - begin / depth + 1 : 0);
    }
    __device__ __forceinline__ int begin_of(int cluster) const {
        return static_cast<int>(static_cast<long long>(cluster) * pieces / this->clusters);
    }
    __device__ __forceinline__ int stages() const { return whole * depth + end - begin; }
    __device__ __forceinline__ Share share(int i) const {
        if (i < whole) return Grid::share(this->own + i * this->clusters, 0, depth);
        int tile = (end - 1) / depth - (i - whole), start = tile * depth, first = max(begin - start, 0);
        return Grid::share(whole * this->clusters + tile, first, min(end - start, depth) - first);
    }
    template <typename Tile>
    __device__ __forceinline__ bool completes(Tile& tile, const Share& share) const {
        bool has_rows = share.m0 + tile.row0 < this->M;  // this warp; those without have nothing to leave
        if (share.first + share.count < depth) {
            if (has_rows) shared.leave(tile);
            return false;
        }
        for (int cluster = this->own, to = begin; to > begin - share.first;) {
            int from = begin_of(--cluster);
            if (from < to && has_rows) shared.add(tile, cluster * CLUSTER + blockIdx.x % CLUSTER);  // few slabs leave some without a piece
            to = from;
        }
        return true;
    }
};

// The schedule of a kernel that was handed these, null where it wants none.
template <typename Schedule>
__device__ __forceinline__ Schedule schedule_of(float4* sums, int* flags) {
    if constexpr (sizeof(Schedule) > 1) return {sums, flags};
    else return {};
}
