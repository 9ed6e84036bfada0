// x @ W of few rows: matmul_mma.cuh's product, or matmul_simt.cuh's on the float32 units, for an x so small that reading W once is nearly all there
// is to do.
//
//   matmul_few_rows<WARPS, STAGES, ALIGNED, NK, BM, BN, PARTS, SPLIT>(tile, x, W, y, M, K, N, f, begin, finish)
//
// A block has BM rows and BN columns of the product, so that nearly all multiprocessors have one block and one round of them. Each of its
// warps multiplies the whole tile by slabs of K of its own, every WARPS-th, and brings them itself through a ring of STAGES: no warp waits
// for another before the end, and WARPS * STAGES slabs of a block are on their way at once. At the end the warps' sums meet in shared memory,
// where they are added in the order of the warps, so that results are the same in each run. Of a y with few tiles, SPLIT blocks, a cluster, share the
// slabs of one, and each ends some of its rows.
//
// W has rows of whole vectors of 16 bytes, with zeros behind the last element; x, too, where ALIGNED, else it is of float. Epilogues are those of matmul_mma.cuh,
// but column() is called before the product, so that nobody waits for a bias at its end.
#pragma once
#include "_shared/cuda/matmul_simt.cuh"

namespace few_rows {

// By one warp, slabs of ROWS rows of a matrix (PARTS * limit, K), every WARPS-th, as RowLoader's lie in shared memory. A lane brings the same
// chunk of every fourth row, whose swizzle alternates.
template <typename T, int ROWS, int WARPS, int PARTS = 1, bool ALIGNED = true>
struct RowLoader {
    const T* from;
    long long K, limit;
    int to, rows, left;  // as in RowLoader of matmul_mma.cuh

    __device__ __forceinline__ RowLoader(const T* matrix, long long first, long long limit, long long K) : K(K), limit(limit) {
        int chunk = threadIdx.x % 8, row = threadIdx.x % 32 / 8, k = threadIdx.x / 32 * SLAB<T> + chunk * Vector<T>::SIZE;
        from = matrix + (first + row) * K + k;
        to = (row * 8 + (chunk ^ row)) * 16;
        rows = static_cast<int>(min(limit - first, static_cast<long long>(ROWS))) - row;
        left = static_cast<int>(K) - k;
    }
    __device__ __forceinline__ void skip(int slabs) { from += slabs * SLAB<T>, left -= slabs * SLAB<T>; }
    __device__ __forceinline__ void load(unsigned char* memory) {
#pragma unroll
        for (int i = 0; i < ROWS; i += 4) {
            int part = i / 8 % PARTS, local = i / (8 * PARTS) * 8 + i % 8;
            unsigned address = shared_address(memory) + (to ^ i % 8 * 16) + i * 128;
            if constexpr (ALIGNED) copy_async(address, from + (part * limit + local) * K, local < rows && left > 0);
            else copy_words_async(address, from + (part * limit + local) * K, local < rows ? left : 0);
        }
        from += WARPS * SLAB<T>, left -= WARPS * SLAB<T>;
    }
};

// The same of COLUMNS columns of a matrix (K, PARTS * limit), as ColumnLoader's lie.
template <typename T, int COLUMNS, int WARPS, int PARTS = 1>
struct ColumnLoader {
    static constexpr int SIZE = Vector<T>::SIZE, CHUNKS = COLUMNS / SIZE, STRIDE = 32 / CHUNKS;
    static_assert(32 % CHUNKS == 0 && CHUNKS > 1, "lanes share rows evenly");
    const T* from;
    long long pitch;
    int to, left;
    bool inside;

    __device__ __forceinline__ ColumnLoader(const T* matrix, long long first, long long limit, long long K) {
        long long of_part = sizeof(T) == 2 ? limit : filled_up<T>(limit);  // of 16 bits, whole vectors always
        pitch = PARTS * of_part;
        int chunk = threadIdx.x % CHUNKS, column = chunk * SIZE, row = threadIdx.x % 32 / CHUNKS, k = threadIdx.x / 32 * SLAB<T> + row;
        int part = column / 8 % PARTS;
        long long local = first + column / (8 * PARTS) * 8 + column % 8;
        from = matrix + k * pitch + part * of_part + local;
        to = (row * CHUNKS + (chunk ^ column_swizzle<T, CHUNKS>(row))) * 16;
        inside = local < limit;
        left = static_cast<int>(K) - k;
    }
    __device__ __forceinline__ void skip(int slabs) { from += slabs * SLAB<T> * pitch, left -= slabs * SLAB<T>; }
    __device__ __forceinline__ void load(unsigned char* memory) {
#pragma unroll
        for (int i = 0; i < SLAB<T>; i += STRIDE)
            copy_async(shared_address(memory) + (to ^ column_swizzle<T, CHUNKS>(i) * 16) + i * CHUNKS * 16, from + i * pitch, inside && i < left);
        from += WARPS * SLAB<T> * pitch, left -= WARPS * SLAB<T>;
    }
};

template <bool NK, typename T, int COLUMNS, int WARPS, int PARTS>
struct WeightLoader : ColumnLoader<T, COLUMNS, WARPS, PARTS> {
    using ColumnLoader<T, COLUMNS, WARPS, PARTS>::ColumnLoader;
};
template <typename T, int COLUMNS, int WARPS, int PARTS>
struct WeightLoader<true, T, COLUMNS, WARPS, PARTS> : RowLoader<T, COLUMNS, WARPS, PARTS> {
    using RowLoader<T, COLUMNS, WARPS, PARTS>::RowLoader;
};

// The sums of a warp: those of a block of one warp, each of which begins at the tile's first row and column.
template <typename Tile>
struct OfWarp : Tile {
    template <typename... Arguments>
    __device__ __forceinline__ OfWarp(Arguments... arguments) : Tile(arguments...) {
        this->row0 = this->column0 = 0;
    }
    static constexpr bool SWAPPED = false;
    // Leaves the sums of COLUMNS columns in rows of `pitch` floats; where SWAPPED, each column in its neighbour's place.
    __device__ __forceinline__ void leave(float* sums, int pitch) const {
#pragma unroll
        for (int i = 0; i < Tile::FM; ++i)
#pragma unroll
            for (int j = 0; j < Tile::FN; ++j)
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    *reinterpret_cast<float2*>(sums + (i * 16 + h * 8 + this->g) * pitch + j * 8 + 2 * this->t) =
                        make_float2(this->c[i][j][2 * h], this->c[i][j][2 * h + 1]);
    }
};

// The sums of a warp on the float32 units, of W (N, K) where NK. What a product takes of four elements of K is fetched four before. A lane has
// every DOWN-th row; its columns are four by four, as it reads them of (K, N), or every ACROSS-th of (N, K), which lie in different banks.
template <bool NK, int BM, int BN>
struct SimtWarp {
    static constexpr int DOWN = BM >= BN ? 8 : 4, ACROSS = 32 / DOWN, ROWS = BM / DOWN, COLUMNS = BN / ACROSS;
    static constexpr int X_BYTES = BM * 128, STAGE = X_BYTES + BN * 128;  // of a slab of x; of x and W
    static constexpr bool WIDE = ROWS * COLUMNS > 64;  // whose sums leave registers for less of W
    // The registers that a product reads are in two banks, of even and odd numbers, and each bank has one read a cycle. One element of x
    // multiplies a row of W, from whose vectors columns get even and odd registers by turns; so a sum is in the other bank than its column
    // if sums leave by vectors in which neighbours have changed places.
    static constexpr bool SWAPPED = !NK;
    static_assert(COLUMNS % 4 == 0 && !(WIDE && NK), "whole vectors, of which W (K, N) has one element of K");

    float c[ROWS][COLUMNS] = {};
    // as in matmul_simt.cuh: neighbours have the same of the one, and the next two the same of the other
    int lane = threadIdx.x % 32, few = lane / 16 * 2 + lane % 2, many = lane / 2 % 8;
    int row0 = DOWN == 8 ? many : few, across = DOWN == 8 ? few : many;

    struct Operands {
        float x[ROWS][4], w[4][COLUMNS];
    };

    __device__ __forceinline__ int column(int j) const { return NK ? across + j * ACROSS : (j / 4 * ACROSS + across) * 4 + j % 4; }

    // Adds the product of a slab of x and one of W, which is (N, K) where OF_NK.
    template <bool OF_NK = NK>
    __device__ __forceinline__ void add(const unsigned char* x, const unsigned char* w) {
        if constexpr (WIDE) {
            add_wide(x, w);
        } else {
            Operands of[2];
            fetch<OF_NK>(of[0], x, w, 0);
#pragma unroll 1
            for (int chunk = 0; chunk < 8; chunk += 2) {
                fetch<OF_NK>(of[1], x, w, chunk + 1);
                multiply(of[0]);
                fetch<OF_NK>(of[0], x, w, min(chunk + 2, 7));
                multiply(of[1]);
            }
        }
    }

    // The same, with two elements of K of W at one time in registers.
    __device__ __forceinline__ void add_wide(const unsigned char* x, const unsigned char* w) {
        float of_x[2][ROWS][4], of_w[2][COLUMNS];
        rows<DOWN>(of_x[0], x, row0, 0);
        fetch_w(of_w[0], w, 0);
#pragma unroll 1
        for (int chunk = 0; chunk < 8; chunk += 2) {
#pragma unroll
            for (int step = 0; step < 8; ++step) {
                if (step % 4 == 0) rows<DOWN>(of_x[1 - step / 4], x, row0, min(chunk + step / 4 + 1, 7));
                fetch_w(of_w[(step + 1) % 2], w + min(chunk + (step + 1) / 4, 7) * (4 * BN * 4), (step + 1) % 4);
#pragma unroll
                for (int i = 0; i < ROWS; ++i)
#pragma unroll
                    for (int j = 0; j < COLUMNS; ++j) c[i][j] = fmaf(of_x[step / 4][i][step % 4], of_w[step % 2][j], c[i][j]);
            }
        }
    }
    // Element k of four of K of W (K, N).
    __device__ __forceinline__ void fetch_w(float (&to)[COLUMNS], const unsigned char* from, int k) const {
        constexpr int LOW = ACROSS - 1;  // bits of the chunk's number that differ among lanes
        int swizzle = column_swizzle<float, BN / 4>(k), lanes = (across ^ (swizzle & LOW)) * 16;
#pragma unroll
        for (int v = 0; v < COLUMNS / 4; ++v)
            *reinterpret_cast<float4*>(&to[v * 4]) = *reinterpret_cast<const float4*>(from + lanes + (k * (BN / 4) + (v * ACROSS ^ (swizzle & ~LOW))) * 16);
    }

    template <bool OF_NK>
    __device__ __forceinline__ void fetch(Operands& of, const unsigned char* x, const unsigned char* w, int chunk) const {
        rows<DOWN>(of.x, x, row0, chunk);
        if constexpr (OF_NK) {
            float v[COLUMNS][4];
            rows<ACROSS>(v, w, across, chunk);
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j)
#pragma unroll
                for (int k = 0; k < 4; ++k) of.w[k][j] = v[j][k];
        } else if constexpr (NK) {
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j)
#pragma unroll
                for (int k = 0; k < 4; ++k) of.w[k][j] = *reinterpret_cast<const float*>(w + column_place<float, BN>(chunk * 4 + k, column(j)));
        } else {
#pragma unroll
            for (int k = 0; k < 4; ++k) fetch_w(of.w[k], w + chunk * (4 * BN * 4), k);
        }
    }
    // Four elements of K of every STEP-th row of a slab of rows, from `first`, which is less than STEP, on.
    template <int STEP, int COUNT>
    static __device__ __forceinline__ void rows(float (&to)[COUNT][4], const unsigned char* slab, int first, int chunk) {
        int at = first * 128 + (chunk ^ first) * 16;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) *reinterpret_cast<float4*>(to[i]) = *reinterpret_cast<const float4*>(slab + (at ^ (i * STEP % 8 * 16)) + i * STEP * 128);
    }
    __device__ __forceinline__ void multiply(const Operands& of) {
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) c[i][j] = fmaf(of.x[i][k], of.w[k][j], c[i][j]);
    }
    __device__ __forceinline__ void leave(float* sums, int pitch) const {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            float* row = sums + (row0 + i * DOWN) * pitch;
#pragma unroll
            for (int j = 0; j < COLUMNS; j += SWAPPED ? 4 : 1)
                if constexpr (SWAPPED) *reinterpret_cast<float4*>(row + column(j)) = make_float4(c[i][j + 1], c[i][j], c[i][j + 3], c[i][j + 2]);
                else row[column(j)] = c[i][j];
        }
    }
};

// The sums of a warp of a block: on the float32 units (precision "ieee") or the tensor cores.
template <bool SIMT, typename T, bool NK, int BM, int BN, int PARTS = 1>
struct WarpOf {
    using Type = OfWarp<TensorTile<T, NK, BM, BN, 1, 1, PARTS>>;
};
template <bool NK, int BM, int BN, int PARTS>
struct WarpOf<true, float, NK, BM, BN, PARTS> {
    using Type = SimtWarp<NK, BM, BN>;
};

// Where a warp's sums lie, in floats, and its bytes of shared memory, in which it has its ring before.
template <int BN>
constexpr int PITCH = BN + 8;
template <typename Tile, int BM, int BN, int STAGES>
constexpr int WARP_BYTES = STAGES * Tile::STAGE > BM * PITCH<BN> * 4 ? STAGES * Tile::STAGE : BM * PITCH<BN> * 4;

// tile += every WARPS-th slab of the two loaders from the warp's own on; meanwhile() is called once the first ones are on their way.
template <int WARPS, int STAGES, typename Tile, typename X, typename W, typename F>
__device__ __forceinline__ void mainloop(Tile& tile, unsigned char* ring, X& x, W& w, int slabs, F meanwhile) {
    int left = slabs - static_cast<int>(threadIdx.x / 32);  // from the next one to be loaded on
    auto load = [&](unsigned char* memory) {
        if (left > 0) w.load(memory + Tile::X_BYTES), x.load(memory);
        left -= WARPS;
        copy_commit();
    };
#pragma unroll
    for (int i = 0; i < STAGES; ++i) load(ring + i * Tile::STAGE);
    meanwhile();
    int stage = 0;
#pragma unroll 1
    for (int slab = threadIdx.x / 32; slab < slabs; slab += WARPS) {
        copy_wait<STAGES - 1>();
        __syncwarp();  // what other lanes copied is here
        unsigned char* memory = ring + stage * Tile::STAGE;
        tile.add(memory, memory + Tile::X_BYTES);
        __syncwarp();  // and was read by all
        load(memory);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    copy_wait<0>();
    __syncwarp();
}

}  // namespace few_rows

// y of `slabs` slabs, which `rows` and `columns` bring; the tile begins at m0 and n0. EARLY: f.column() may be called before finish(). EVEN: rows of
// 16 bits of y have whole pairs. The rest as in matmul_few_rows.
template <int WARPS, int STAGES, int BM, int BN, int PARTS, bool EARLY = true, bool EVEN = true, int SPLIT = 1, typename Tile, typename X, typename W,
          typename T, typename F, typename Begin, typename Finish>
__device__ __forceinline__ void few_rows_of(Tile& tile, X& rows, W& columns, int slabs, T* __restrict__ y, long long M, long long N,
                                            long long m0, long long n0, F f, Begin begin, Finish finish) {
    constexpr int PAIRS = BN / PARTS / 2, THREADS = WARPS * 32, BYTES = few_rows::WARP_BYTES<Tile, BM, BN, STAGES>;  // pairs of columns of y
    static_assert(THREADS % PAIRS == 0, "a thread has the same columns of all its rows");
    extern __shared__ __align__(128) unsigned char memory[];  // WARPS * BYTES
    unsigned char* own = memory + threadIdx.x / 32 * BYTES;
    int column = threadIdx.x % PAIRS * 2;
    long long n = n0 + column;
    decltype(f.column(0)) of_columns[2];
    auto of_epilogue = [&] {
#pragma unroll
        for (int e = 0; e < 2; ++e) of_columns[e] = f.column(min(n + e, N - 1));
    };
    unsigned rank = SPLIT == 1 ? 0 : cluster_rank();
    few_rows::mainloop<WARPS * SPLIT, STAGES>(tile, own, rows, columns, slabs - static_cast<int>(rank) * WARPS, [&] {
        begin();
        if (EARLY) of_epilogue();
    });
    tile.leave(reinterpret_cast<float*>(own), few_rows::PITCH<BN>);  // where its ring was
    finish();
    if constexpr (SPLIT > 1) cluster_arrive(), cluster_wait();
    if (!EARLY) of_epilogue();

    const float* sums = reinterpret_cast<const float*>(memory) + column / 8 * 8 * PARTS + column % 8;
    for (int row = threadIdx.x / PAIRS * SPLIT + rank; row < BM && m0 + row < M && n < N; row += THREADS / PAIRS * SPLIT) {
        float v[2][PARTS] = {};
#pragma unroll
        for (int w = 0; w < WARPS * SPLIT; ++w)
#pragma unroll
            for (int p = 0; p < PARTS; ++p) {
                const float2* from = reinterpret_cast<const float2*>(sums + w % WARPS * (BYTES / 4) + row * few_rows::PITCH<BN> + p * 8);
                float2 share;
                if constexpr (SPLIT == 1) share = *from;
                else share = load_in_block(from, w / WARPS);
                v[0][p] += Tile::SWAPPED ? share.y : share.x, v[1][p] += Tile::SWAPPED ? share.x : share.y;
            }
        auto of_row = f.row(m0 + row);
#pragma unroll
        for (int output = 0; output < F::OUTPUTS; ++output) {
            Pair<T> pair;
#pragma unroll
            for (int e = 0; e < 2; ++e) pair.at[e] = from_float<T>(result(f, output, of_row, of_columns[e], v[e]));
            T* to = f.place(output, y, m0 + row, N) + n;
            if ((sizeof(T) == 2 && EVEN) || N % 2 == 0) {
                f.store(reinterpret_cast<Pair<T>*>(to), pair);
            } else {
                f.store(to, pair.at[0]);
                if (n + 1 < N) f.store(to + 1, pair.at[1]);
            }
        }
    }
    if constexpr (SPLIT > 1) cluster_arrive_relaxed(), cluster_wait();  // no block ends before the others have read
}

// `tile`, an OfWarp, is this warp's. begin() is called once the first copies are on their way, and finish() between the product and f, by
// all threads: it has at least one barrier.
template <int WARPS, int STAGES, bool ALIGNED, bool NK, int BM, int BN, int PARTS, int SPLIT = 1, typename Tile, typename T, typename F, typename Begin, typename Finish>
__device__ __forceinline__ void matmul_few_rows(Tile& tile, const T* __restrict__ x, const T* __restrict__ W, T* __restrict__ y, long long M,
                                                long long K, long long N, F f, Begin begin, Finish finish) {
    wait_for_previous_launch();
    long long m0, n0, length = ALIGNED ? filled_up<T>(K) : K;  // of a row of x, and of W (N, K)
    block_origin(M, N, BM, BN / PARTS, m0, n0, blockIdx.x / SPLIT);
    few_rows::RowLoader<T, BM, WARPS * SPLIT, 1, ALIGNED> rows(x, m0, M, length);
    few_rows::WeightLoader<NK, T, BN, WARPS * SPLIT, PARTS> columns(W, n0, N, NK ? length : K);
    if constexpr (SPLIT > 1) rows.skip(cluster_rank() * WARPS), columns.skip(cluster_rank() * WARPS);
    few_rows_of<WARPS, STAGES, BM, BN, PARTS, true, true, SPLIT>(tile, rows, columns, static_cast<int>((K + SLAB<T> - 1) / SLAB<T>), y, M, N, m0, n0, f, begin,
                                              finish);
}
