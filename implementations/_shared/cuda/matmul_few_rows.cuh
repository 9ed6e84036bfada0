// x @ W of few rows on the tensor cores: matmul_mma.cuh's product, for an x so small that reading W once is nearly all there is to do.
//
//   matmul_few_rows<WARPS, STAGES, NK, BM, BN, PARTS>(tile, x, W, y, M, K, N, f, begin, finish)
//
// A block has BM rows and BN columns of the product, so that nearly all multiprocessors have one block and one round of them. Each of its
// warps multiplies the whole tile by slabs of K of its own, every WARPS-th, and brings them itself through a ring of STAGES: no warp waits
// for another before the end, and WARPS * STAGES slabs of a block are on their way at once. At the end the warps' sums meet in shared memory,
// where they are added in the order of the warps, so that results are the same in each run.
//
// x and W have rows of whole vectors of 16 bytes. Epilogues are those of matmul_mma.cuh, but column() is called before the product, so that
// nobody waits for a bias at its end.
#pragma once
#include "_shared/cuda/matmul_mma.cuh"

namespace few_rows {

// By one warp, slabs of ROWS rows of a matrix (PARTS * limit, K), every WARPS-th, as RowLoader's lie in shared memory. A lane brings the same
// chunk of every fourth row, whose swizzle alternates.
template <typename T, int ROWS, int WARPS, int PARTS = 1>
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
            copy_async(shared_address(memory) + (to ^ i % 8 * 16) + i * 128, from + (part * limit + local) * K, local < rows && left > 0);
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

    __device__ __forceinline__ ColumnLoader(const T* matrix, long long first, long long limit, long long K) : pitch(PARTS * limit) {
        int chunk = threadIdx.x % CHUNKS, column = chunk * SIZE, row = threadIdx.x % 32 / CHUNKS, k = threadIdx.x / 32 * SLAB<T> + row;
        int part = column / 8 % PARTS;
        long long local = first + column / (8 * PARTS) * 8 + column % 8;
        from = matrix + k * pitch + part * limit + local;
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
};

// Where a warp's sums lie, in floats, and its bytes of shared memory, in which it has its ring before.
template <int BN>
constexpr int PITCH = BN + 8;
template <int BM, int BN, int STAGES>
constexpr int WARP_BYTES = STAGES * (BM + BN) * 32 > BM * PITCH<BN> ? STAGES * (BM + BN) * 128 : BM * PITCH<BN> * 4;

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

// Leaves a warp's sums where its ring was.
template <int BN, typename Tile>
__device__ __forceinline__ void leave(const Tile& tile, unsigned char* own) {
    float* sums = reinterpret_cast<float*>(own);
#pragma unroll
    for (int i = 0; i < Tile::FM; ++i)
#pragma unroll
        for (int j = 0; j < Tile::FN; ++j)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                *reinterpret_cast<float2*>(sums + (i * 16 + h * 8 + tile.g) * PITCH<BN> + j * 8 + 2 * tile.t) =
                    make_float2(tile.c[i][j][2 * h], tile.c[i][j][2 * h + 1]);
}

}  // namespace few_rows

// y of `slabs` slabs, which `rows` and `columns` bring; the tile begins at m0 and n0. The rest as in matmul_few_rows.
template <int WARPS, int STAGES, int BM, int BN, int PARTS, typename Tile, typename X, typename W, typename T, typename F, typename Begin,
          typename Finish>
__device__ __forceinline__ void few_rows_of(Tile& tile, X& rows, W& columns, int slabs, T* __restrict__ y, long long M, long long N,
                                            long long m0, long long n0, F f, Begin begin, Finish finish) {
    constexpr int PAIRS = BN / PARTS / 2, THREADS = WARPS * 32, BYTES = few_rows::WARP_BYTES<BM, BN, STAGES>;  // pairs of columns of y
    static_assert(THREADS % PAIRS == 0, "a thread has the same columns of all its rows");
    extern __shared__ __align__(128) unsigned char memory[];  // WARPS * BYTES
    unsigned char* own = memory + threadIdx.x / 32 * BYTES;
    int column = threadIdx.x % PAIRS * 2;
    long long n = n0 + column;
    decltype(f.column(0)) of_columns[2];
    few_rows::mainloop<WARPS, STAGES>(tile, own, rows, columns, slabs, [&] {
        begin();
#pragma unroll
        for (int e = 0; e < 2; ++e) of_columns[e] = f.column(min(n + e, N - 1));
    });
    few_rows::leave<BN>(tile, own);
    finish();

    Pair<T> pair;
    const float* sums = reinterpret_cast<const float*>(memory) + column / 8 * 8 * PARTS + column % 8;
    for (int row = threadIdx.x / PAIRS; row < BM && m0 + row < M && n < N; row += THREADS / PAIRS) {
        float v[2][PARTS] = {};
#pragma unroll
        for (int w = 0; w < WARPS; ++w)
#pragma unroll
            for (int p = 0; p < PARTS; ++p) {
                float2 share = *reinterpret_cast<const float2*>(sums + w * (BYTES / 4) + row * few_rows::PITCH<BN> + p * 8);
                v[0][p] += share.x, v[1][p] += share.y;
            }
        auto of_row = f.row(m0 + row);
#pragma unroll
        for (int e = 0; e < 2; ++e) pair.at[e] = from_float<T>(f(of_row, of_columns[e], v[e]));
        *reinterpret_cast<Pair<T>*>(y + (m0 + row) * N + n) = pair;
    }
}

// `tile`, an OfWarp, is this warp's. begin() is called once the first copies are on their way, and finish() between the product and f, by
// all threads: it has at least one barrier.
template <int WARPS, int STAGES, bool NK, int BM, int BN, int PARTS, typename Tile, typename T, typename F, typename Begin, typename Finish>
__device__ __forceinline__ void matmul_few_rows(Tile& tile, const T* __restrict__ x, const T* __restrict__ W, T* __restrict__ y, long long M,
                                                long long K, long long N, F f, Begin begin, Finish finish) {
    wait_for_previous_launch();
    long long m0, n0;
    block_origin(M, N, BM, BN / PARTS, m0, n0);
    few_rows::RowLoader<T, BM, WARPS> rows(x, m0, M, K);
    few_rows::WeightLoader<NK, T, BN, WARPS, PARTS> columns(W, n0, N, K);
    few_rows_of<WARPS, STAGES, BM, BN, PARTS>(tile, rows, columns, static_cast<int>((K + SLAB<T> - 1) / SLAB<T>), y, M, N, m0, n0, f, begin,
                                              finish);
}
