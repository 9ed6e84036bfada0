// Which tiles of y the blocks of a persistent grid make: whole ones, or, of the last that do not fill all blocks, shares of K (stream-K:
// Osama et al., 2023).
//
//   TileScheduler<BM, COLUMNS, CLUSTER>            whole tiles, one after another
//   TileScheduler<BM, COLUMNS, CLUSTER, SharedTiles>  each cluster whole tiles as long as there are more than two rounds of them. What is left
//                                                  is one row of slabs, of which each cluster has an equal piece
//
// A piece begins in the middle of one tile and ends in that of another. A cluster begins with the end of its piece: it leaves the sums
// of the tile's first slabs in global memory. Whoever has the last slabs of that tile adds them to its own, in one order in every run, and
// makes y of them. It is the last of its own piece, so that hardly anybody waits, and waits for clusters before it alone, so that all
// come to an end in whatever order they run.
#pragma once
#include "_shared/cuda/hopper/pipeline.cuh"
#include "_shared/cuda/matmul_mma.cuh"

// `count` slabs of K from `first` on of the tile at m0, n0.
struct Share {
    int m0, n0, first, count;
};

// Tiles of all clusters, and where one of them lies for a block.
template <int BM, int COLUMNS, int CLUSTER>
struct TileGrid {
    int M, N;
    unsigned clusters = gridDim.x / CLUSTER, own = blockIdx.x / CLUSTER;

    __device__ __forceinline__ TileGrid(long long M, long long N) : M(static_cast<int>(M)), N(static_cast<int>(N)) {}
    __device__ __forceinline__ unsigned tiles() const {
        return static_cast<unsigned>((M + BM * CLUSTER - 1) / (BM * CLUSTER) * ((N + COLUMNS - 1) / COLUMNS));
    }
    __device__ __forceinline__ Share share(unsigned tile, int first, int count) const {
        long long m0, n0;
        tile_origin<16 / CLUSTER>(tile, M, N, BM * CLUSTER, COLUMNS, m0, n0);
        return {static_cast<int>(m0 + blockIdx.x % CLUSTER * BM), static_cast<int>(n0), first, count};
    }
};

template <int BM, int COLUMNS, int CLUSTER, typename... E>
struct TileScheduler : TileGrid<BM, COLUMNS, CLUSTER> {
    using Grid = TileGrid<BM, COLUMNS, CLUSTER>;
    int depth, count;  // slabs of a tile; shares of this block

    __device__ __forceinline__ TileScheduler(long long M, long long N, int depth) : Grid(M, N), depth(depth) {
        unsigned all = this->tiles();
        count = this->own < all ? static_cast<int>((all - this->own + this->clusters - 1) / this->clusters) : 0;
    }
    __device__ __forceinline__ int slabs() const { return count * depth; }  // of all shares
    __device__ __forceinline__ Share share(int i) const { return Grid::share(this->own + i * this->clusters, 0, depth); }
    // Whether the sums of a share are those of its tile.
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
    SharedTiles shared;
    int depth, whole, count;  // slabs of a tile; whole tiles; shares of this block
    int pieces, begin, end;   // slabs of all pieces together; of its own

    __device__ __forceinline__ TileScheduler(long long M, long long N, int depth, SharedTiles shared)
        : Grid(M, N), shared(shared), depth(depth) {
        unsigned all = this->tiles(), rounds = all / this->clusters;
        whole = rounds > 1 ? static_cast<int>(rounds) - 1 : 0;
        pieces = static_cast<int>(all - whole * this->clusters) * depth;
        begin = begin_of(this->own), end = begin_of(this->own + 1);
        count = whole + (begin < end ? (end - 1) / depth - begin / depth + 1 : 0);
    }
    __device__ __forceinline__ int begin_of(unsigned cluster) const {
        return static_cast<int>(static_cast<long long>(cluster) * pieces / this->clusters);
    }
    __device__ __forceinline__ int slabs() const { return whole * depth + end - begin; }
    __device__ __forceinline__ Share share(int i) const {
        if (i < whole) return Grid::share(this->own + i * this->clusters, 0, depth);
        int tile = (end - 1) / depth - (i - whole), start = tile * depth, first = max(begin - start, 0);
        return Grid::share(whole * this->clusters + tile, first, min(end - start, depth) - first);
    }
    template <typename Tile>
    __device__ __forceinline__ bool completes(Tile& tile, const Share& share) const {
        if (share.first + share.count < depth) {
            shared.leave(tile);
            return false;
        }
        if (share.first > 0) {
            unsigned cluster = this->own;
            do shared.add(tile, --cluster * CLUSTER + blockIdx.x % CLUSTER);
            while (begin_of(cluster) > begin - share.first);
        }
        return true;
    }
};
