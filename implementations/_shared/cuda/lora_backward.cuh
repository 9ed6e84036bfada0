// The backward pass of a linear layer with an adapter. Forward (lora.cuh: down, up) leaves x @ A and, before an activation, z behind:
//
//   filled       first, copies of x, W, A and B where their rows are no whole vectors of 16 bytes, with zeros behind them: backward reads whole
//                vectors alone, and Hopper's warpgroups, too. x @ A is as `down` leaves it.
//   activated    y = act(z), as z is stored.
//
// Backward, two launches; one more where many rows have an activation, one more where rows of dy are no whole vectors (`filled`), two more
// where there are many rows, and in tf32 three:
//
//   few          dxa = scale * dz @ Bᵀ (M, R) of few rows, a block for a row and four of R; dz = dy * act'(z) on the way.
//   pulled       dz of many rows, filled up; then
//   low          dxa, a tile of rows a block, or a cluster that shares N.
//   products     a block makes one of: a tile of dx = dz @ Wᵀ + dxa @ Aᵀ, into the same sums; a tile of dW = xᵀ @ dz, or of its
//                transpose where W is stored (N, K); some rows of dA = xᵀ @ dxa; some columns of dB = scale * (x @ A)ᵀ @ dz and
//                of db, the sums of the same slabs of dz. What takes long begins first.
//
// Where there are many rows, three launches are in place of the last one, on Hopper and everywhere in IEEE float32, and in tf32 four:
//
//   turned_operands  dz and x with rows as columns (weights.cuh), which tf32 reads dW's operands by; then
//   inputs_…, weights_…, narrow      dx; dW; and dA, dB and db, whose blocks share M where they are few.
//
// Of few rows of float, where W is (K, N) and N is large, there are the same launches (KERNEL=few), and in inputs_few_rows the warps of a block share N.
//
// Where there are few rows of 16 bits, one launch makes everything but dz: `whole` (lora_few_rows.cuh), behind `pulled`.
#pragma once
#include "_shared/cuda/adapted_few_rows.cuh"
#include "_shared/cuda/adapted_simt.cuh"
#include "_shared/cuda/hopper/adapted_split.cuh"
#include "_shared/cuda/lora_down_simt.cuh"
#include "_shared/cuda/lora_few_rows.cuh"
#include "_shared/cuda/weights.cuh"

// ---- element by element --------------------------------------------------------------------------------------------------

// out = f(a, b) of all elements, as one long array of which a thread has a vector.
template <typename T, typename F>
__device__ __forceinline__ void each_element(const T* a, const T* b, T* out, long long total, F f) {
    constexpr int SIZE = Vector<T>::SIZE;
    long long begin = (blockIdx.x * 256LL + threadIdx.x) * SIZE;
    if (begin >= total) return;
    int count = static_cast<int>(min(total - begin, static_cast<long long>(SIZE)));
    bool whole = count == SIZE;
    auto v = whole ? load_part<true>(a + begin, SIZE) : load_part<false>(a + begin, count);
    auto w = whole ? load_part<true>(b + begin, SIZE) : load_part<false>(b + begin, count);
#pragma unroll
    for (int e = 0; e < SIZE; ++e) v.at[e] = from_float<T>(f(element(v, e), element(w, e)));
    if (whole) store_part<true>(out + begin, v, SIZE);
    else store_part<false>(out + begin, v, count);
}

template <typename T, Activation ACT>
__global__ void __launch_bounds__(256) activated(const T* __restrict__ z, T* __restrict__ y, long long total) {
    each_element(z, z, y, total, [](float before, float) { return activate<ACT>(before); });
}

// In rows of whole vectors, with zeros behind N. ALIGNED says that those of z and dy are.
template <typename T, Activation ACT, bool ALIGNED>
__global__ void __launch_bounds__(256)
    pulled(const T* __restrict__ z, const T* __restrict__ dy, T* __restrict__ dz, long long M, long long N) {
    wait_for_previous_launch();
    auto pull = [](float before, float behind) { return behind * slope_as<ACT, T>(before); };
    if constexpr (ALIGNED) {
        each_element(z, dy, dz, M * N, pull);
    } else {
        constexpr int SIZE = Vector<T>::SIZE;
        long long vectors = filled_up<T>(N) / SIZE, i = blockIdx.x * 256LL + threadIdx.x, m = i / vectors, n = i % vectors * SIZE;
        if (m >= M) return;
        int count = static_cast<int>(min(N - n, static_cast<long long>(SIZE)));
        auto v = load_part<false>(z + m * N + n, count), w = load_part<false>(dy + m * N + n, count);
#pragma unroll
        for (int e = 0; e < SIZE; ++e) v.at[e] = from_float<T>(e < count ? pull(element(v, e), element(w, e)) : 0.0f);
        store_vector(dz + i * SIZE, v);
    }
}

// ---- rows of whole vectors ------------------------------------------------------------------------------------------------

// By all blocks: `from` (rows, width) to `to`, whose rows are filled up with zeros, and of which there are `all`, unless that is null.
template <typename T>
__device__ __forceinline__ void fill_up(const T* from, T* to, long long rows, long long width, long long all) {
    if (!to) return;
    constexpr int SIZE = Vector<T>::SIZE;
    long long vectors = filled_up<T>(width) / SIZE;
#pragma unroll 2
    for (long long i = blockIdx.x * 256LL + threadIdx.x; i < all * vectors; i += gridDim.x * 256LL) {
        long long row = i / vectors, column = i % vectors * SIZE;
        int count = row < rows ? static_cast<int>(min(width - column, static_cast<long long>(SIZE))) : 0;
        store_vector(to + i * SIZE, load_part<false>(from + row * width + column, count));
    }
}

// NK is how W is stored.
template <typename T, bool NK>
__global__ void __launch_bounds__(256)
    filled(const T* __restrict__ dz, const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ A, const T* __restrict__ B,
           T* __restrict__ of_dz, T* __restrict__ of_x, T* __restrict__ of_W, T* __restrict__ of_A, T* __restrict__ of_B, long long M,
           long long K, long long N, long long R) {
    wait_for_previous_launch();
    fill_up(W, of_W, NK ? N : K, NK ? K : N, NK ? N : K);
    fill_up(dz, of_dz, M, N, M);
    fill_up(x, of_x, M, K, M);
    fill_up(A, of_A, K, R, filled_up<T>(K));  // with as many rows as x has columns
    fill_up(B, of_B, R, N, R);
}

// ---- dxa ----------------------------------------------------------------------------------------------------------------

constexpr int RANKS = 4;  // rows of B of a block

// Block (m, r / RANKS). Without an activation dz is dy, and nobody stores it; with one, N is whole vectors.
template <typename T, Activation ACT>
__global__ void __launch_bounds__(256)
    few(const T* __restrict__ z, const T* __restrict__ dy, const T* __restrict__ scale, const T* __restrict__ B,
        T* __restrict__ dz, T* __restrict__ dxa, long long N, long long R) {
    constexpr int SIZE = Vector<T>::SIZE;
    __shared__ float parts[8][RANKS];
    long long width = filled_up<T>(N), rank = filled_up<T>(R);
    unsigned groups = static_cast<unsigned>(rank / RANKS);
    wait_for_previous_launch();
    long long m = blockIdx.x / groups, r0 = blockIdx.x % groups * RANKS;
    float sums[RANKS] = {};
#pragma unroll 2
    for (long long n = threadIdx.x * SIZE; n < width; n += 256 * SIZE) {
        Vector<T> through = load_part<true>(dy + m * width + n, SIZE), rows[RANKS];
#pragma unroll
        for (int r = 0; r < RANKS; ++r) rows[r] = load_part<true>(B + min(r0 + r, R - 1) * width + n, SIZE);
        if constexpr (ACT != NONE) {
            auto before = load_part<true>(z + m * width + n, SIZE);
#pragma unroll
            for (int e = 0; e < SIZE; ++e) through.at[e] = from_float<T>(element(through, e) * slope_as<ACT, T>(element(before, e)));
            if (r0 == 0) store_vector(dz + m * width + n, through);
        }
#pragma unroll
        for (int e = 0; e < SIZE; ++e)
#pragma unroll
            for (int r = 0; r < RANKS; ++r)
                sums[r] = fmaf(element(through, e), element(rows[r], e), sums[r]);  // 0 past N
    }
#pragma unroll
    for (int r = 0; r < RANKS; ++r) {
        sums[r] = lane_sum<32>(sums[r]);
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32][r] = sums[r];
    }
    __syncthreads();
    if (threadIdx.x >= RANKS) return;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < 8; ++w) total += parts[w][threadIdx.x];
    dxa[m * rank + r0 + threadIdx.x] = from_float<T>(r0 + threadIdx.x < R ? to_float(*scale) * total : 0.0f);
}

// BM rows, in WM × WN warps. PARTS blocks, a cluster, share N, as in down_tile.
template <typename T, bool SIMT, int BM, int RB, int WM, int WN, int STAGES, int PARTS>
__device__ __forceinline__ void low_tile(const T* __restrict__ dz, const T* __restrict__ scale, const T* __restrict__ B,
                                         T* __restrict__ dxa, long long M, long long N, long long R) {
    using Tile = typename TileOf<SIMT, T, true, BM, RB, WM, WN>::Type;
    static_assert(STAGES * Tile::STAGE >= BM * RB * 4, "the sums take the place of the slabs");
    extern __shared__ __align__(128) unsigned char memory[];  // STAGES * STAGE
    long long m0 = static_cast<long long>(blockIdx.x / PARTS) * BM, rank = filled_up<T>(R);
    OwnSlabs<T, PARTS> own(N);
    wait_for_previous_launch();
    Tile tile;
    RowLoader<T, true, BM, Tile::THREADS> rows(dz, m0, M, filled_up<T>(N));
    RowLoader<T, true, RB, Tile::THREADS> columns(B, 0, R, filled_up<T>(N));
    rows.skip(own.first), columns.skip(own.first);
    mainloop<STAGES>(tile, memory, rows, columns, own.count);
    float factor = to_float(*scale);
    each_sum<PARTS, BM, RB>(tile, memory, [&](int row, int column, float sum) {
        if (m0 + row < M && column < rank) dxa[(m0 + row) * rank + column] = from_float<T>(column < R ? factor * sum : 0.0f);
    });
}

template <typename T, bool SIMT, int BM, int RB, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32)
    low(const T* __restrict__ dz, const T* __restrict__ scale, const T* __restrict__ B, T* __restrict__ dxa, long long M,
        long long N, long long R) {
    low_tile<T, SIMT, BM, RB, WM, WN, STAGES, 1>(dz, scale, B, dxa, M, N, R);
}

#if __CUDA_ARCH__ >= 900
template <typename T, bool SIMT, int BM, int RB, int WM, int WN, int STAGES, int PARTS>
__global__ void __cluster_dims__(PARTS, 1, 1) __launch_bounds__(WM* WN * 32)
    low_by_parts(const T* __restrict__ dz, const T* __restrict__ scale, const T* __restrict__ B, T* __restrict__ dxa, long long M,
                 long long N, long long R) {
    low_tile<T, SIMT, BM, RB, WM, WN, STAGES, PARTS>(dz, scale, B, dxa, M, N, R);
}
#endif

// ---- dA, dB, db ----------------------------------------------------------------------------------------------------------

// A tile, and the sums of the columns of its slabs of x: a thread has a column of them, and one of two halves of their rows.
template <typename T, typename Tile, int COLUMNS>
struct WithSums {
    static constexpr int THREADS = Tile::THREADS, X_BYTES = Tile::X_BYTES, STAGE = Tile::STAGE, SHARE = THREADS / COLUMNS;
    Tile tile;
    float sum = 0.0f;

    __device__ __forceinline__ void begin(const unsigned char*) {}
    __device__ __forceinline__ void add(const unsigned char* x, const unsigned char* w) {
        tile.add(x, w);
#pragma unroll 8
        for (int k = threadIdx.x / COLUMNS; k < SLAB<T>; k += SHARE)
            sum += to_float(*reinterpret_cast<const T*>(x + column_place<T, COLUMNS>(k, threadIdx.x % COLUMNS)));
    }
};

// Part `block` of ceil(K / ROWS) for dA and of ceil(N / ROWS) for dB and db behind them; a warp has 16 rows of x, or columns of dz. PARTS
// blocks, a cluster, share M.
template <typename T, bool SIMT, int RB, int WARPS, int STAGES, int PARTS>
__device__ __forceinline__ void narrow_part(unsigned block, const T* __restrict__ x, const T* __restrict__ dxa,
                                            const T* __restrict__ dz, const T* __restrict__ xa, const T* __restrict__ scale,
                                            T* __restrict__ dA, T* __restrict__ dB, T* __restrict__ db, long long M,
                                            long long K, long long N, long long R) {
    constexpr int ROWS = WARPS * 16, THREADS = WARPS * 32;
    using Tile = typename TileOf<SIMT, T, false, ROWS, RB, WARPS, 1, true>::Type;
    static_assert(STAGES * Tile::STAGE >= (ROWS * RB + THREADS) * 4, "the sums take the place of the slabs");
    extern __shared__ __align__(128) unsigned char memory[];  // STAGES * STAGE
    OwnSlabs<T, PARTS> own(M);
    unsigned of_dA = static_cast<unsigned>((K + ROWS - 1) / ROWS);
    if (block < of_dA) {
        long long k0 = static_cast<long long>(block) * ROWS;
        Tile tile;
        ColumnLoader<T, true, ROWS, THREADS> rows(x, k0, filled_up<T>(K), M);
        ColumnLoader<T, true, RB, THREADS> columns(dxa, 0, filled_up<T>(R), M);
        rows.skip(own.first), columns.skip(own.first);
        mainloop<STAGES>(tile, memory, rows, columns, own.count);
        each_sum<PARTS, ROWS, RB>(tile, memory, [&](int row, int column, float sum) {
            if (k0 + row < K && column < R) dA[(k0 + row) * R + column] = from_float<T>(sum);
        });
        return;
    }
    long long n0 = static_cast<long long>(block - of_dA) * ROWS;
    WithSums<T, Tile, ROWS> sums;
    ColumnLoader<T, true, ROWS, THREADS> rows(dz, n0, filled_up<T>(N), M);
    ColumnLoader<T, true, RB, THREADS> columns(xa, 0, filled_up<T>(R), M);
    rows.skip(own.first), columns.skip(own.first);
    mainloop<STAGES>(sums, memory, rows, columns, own.count);
    float factor = to_float(*scale);
    each_sum<PARTS, ROWS, RB>(sums.tile, memory, [&](int row, int column, float sum) {
        if (n0 + row < N && column < R) dB[column * N + n0 + row] = from_float<T>(factor * sum);
    });
    float* halves = reinterpret_cast<float*>(memory) + ROWS * RB;  // behind those of each_sum
    halves[threadIdx.x] = sums.sum;
    if constexpr (PARTS == 1) __syncthreads();
    else cluster_arrive(), cluster_wait();
    if (blockIdx.x % PARTS == 0 && threadIdx.x < ROWS && n0 + threadIdx.x < N) {
        float total = halves[threadIdx.x] + halves[threadIdx.x + ROWS];
#pragma unroll
        for (int p = 1; p < PARTS; ++p) total += load_in_block(halves + threadIdx.x, p) + load_in_block(halves + threadIdx.x + ROWS, p);
        db[n0 + threadIdx.x] = from_float<T>(total);
    }
    if constexpr (PARTS > 1) cluster_arrive(), cluster_wait();  // no block ends before the first has read
}

// ---- dx and dW: x (M, K) and W (K, N) are the two operands, whatever they are, with rows filled up, and y (M, N) the result, whose rows are
// whole vectors where ALIGNED; `p` counts tiles -------------------------------------------------------------------------------

// The adapter's operands are xa (M, R) and A (N, R).
template <typename T, bool SIMT, bool ALIGNED, bool NK, int BM, int BN, int WM, int WN, int STAGES>
__device__ __forceinline__ void inputs_tile(unsigned p, const T* __restrict__ x, const T* __restrict__ W,
                                            const T* __restrict__ xa, const T* __restrict__ A, T* __restrict__ y, long long M,
                                            long long K, long long N, long long R) {
    using Tile = typename TileOf<SIMT, T, NK, BM, BN, WM, WN>::Type;
    using Lift = typename TileOf<SIMT, T, true, BM, BN, WM, WN>::Type;
    extern __shared__ __align__(128) unsigned char memory[];  // max(STAGES * STAGE, the tile of y as it is stored)
    long long m0, n0;
    tile_origin<16>(p, M, N, BM, BN, m0, n0);
    Tile tile;
    RowLoader<T, true, BM, Tile::THREADS> x_slabs(x, m0, M, filled_up<T>(K));
    WeightLoader<NK, T, true, BN, Tile::THREADS, 1> W_slabs(W, n0, NK ? N : filled_up<T>(N), NK ? filled_up<T>(K) : K);
    mainloop<STAGES>(tile, memory, x_slabs, W_slabs, static_cast<int>((K + SLAB<T> - 1) / SLAB<T>));
    Lift lift = continued<Lift>(tile);
    RowLoader<T, true, BM, Tile::THREADS> xa_slabs(xa, m0, M, filled_up<T>(R));
    RowLoader<T, true, BN, Tile::THREADS> A_slabs(A, n0, N, filled_up<T>(R));
    mainloop<STAGES>(lift, memory, xa_slabs, A_slabs, static_cast<int>((R + SLAB<T> - 1) / SLAB<T>));
    store_tile<ALIGNED>(lift, memory, y, M, N, m0, n0, Stored{});
}

// x is stored (K, M).
template <typename T, bool SIMT, bool ALIGNED, int BM, int BN, int WM, int WN, int STAGES>
__device__ __forceinline__ void weights_tile(unsigned p, const T* __restrict__ x, const T* __restrict__ W, T* __restrict__ y,
                                             long long M, long long K, long long N) {
    using Tile = typename TileOf<SIMT, T, false, BM, BN, WM, WN, true>::Type;
    extern __shared__ __align__(128) unsigned char memory[];  // as in inputs_tile
    long long m0, n0;
    tile_origin<16>(p, M, N, BM, BN, m0, n0);
    Tile tile;
    ColumnLoader<T, true, BM, Tile::THREADS> x_slabs(x, m0, filled_up<T>(M), K);
    ColumnLoader<T, true, BN, Tile::THREADS> W_slabs(W, n0, filled_up<T>(N), K);
    mainloop<STAGES>(tile, memory, x_slabs, W_slabs, static_cast<int>((K + SLAB<T> - 1) / SLAB<T>));
    store_tile<ALIGNED>(tile, memory, y, M, N, m0, n0, Stored{});
}

// NK is how W is stored. IM × IN is the tile of dx, VM × VN that of dW.
template <typename T, bool SIMT, bool ALIGNED, bool NK, int IM, int IN, int IWM, int IWN, int I_STAGES, int VM,
          int VN, int VWM, int VWN, int V_STAGES, int RB, int STAGES>
__global__ void __launch_bounds__(IWM* IWN * 32, 1)
    products(const T* __restrict__ dz, const T* __restrict__ W, const T* __restrict__ x, const T* __restrict__ A,
             const T* __restrict__ xa, const T* __restrict__ scale, const T* __restrict__ dxa, T* __restrict__ dx,
             T* __restrict__ dW, T* __restrict__ dA, T* __restrict__ dB, T* __restrict__ db, long long M, long long K,
             long long N, long long R) {
    static_assert(IWM * IWN == VWM * VWN, "all blocks have the same warps");
    auto tiles = [](long long rows, long long columns, int BM, int BN) {
        return static_cast<unsigned>((rows + BM - 1) / BM * ((columns + BN - 1) / BN));
    };
    wait_for_previous_launch();
    unsigned block = blockIdx.x, of_dx = tiles(M, K, IM, IN), of_dW = NK ? tiles(N, K, VM, VN) : tiles(K, N, VM, VN);
    if (block < of_dx) {
        inputs_tile<T, SIMT, ALIGNED, !NK, IM, IN, IWM, IWN, I_STAGES>(block, dz, W, dxa, A, dx, M, N, K, R);
    } else if (block < of_dx + of_dW) {
        weights_tile<T, SIMT, ALIGNED, VM, VN, VWM, VWN, V_STAGES>(block - of_dx, NK ? dz : x, NK ? x : dz, dW, NK ? N : K, M,
                                                                   NK ? K : N);
    } else {
        narrow_part<T, SIMT, RB, IWM * IWN, STAGES, 1>(block - of_dx - of_dW, x, dxa, dz, xa, scale, dA, dB, db, M, K, N, R);
    }
}

// dA, dB and db alone.
template <typename T, bool SIMT, int RB, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32)
    narrow(const T* __restrict__ x, const T* __restrict__ dxa, const T* __restrict__ dz, const T* __restrict__ xa,
           const T* __restrict__ scale, T* __restrict__ dA, T* __restrict__ dB, T* __restrict__ db, long long M, long long K,
           long long N, long long R) {
    wait_for_previous_launch();
    narrow_part<T, SIMT, RB, WARPS, STAGES, 1>(blockIdx.x, x, dxa, dz, xa, scale, dA, dB, db, M, K, N, R);
}

#if __CUDA_ARCH__ >= 900
template <typename T, bool SIMT, int RB, int WARPS, int STAGES, int PARTS>
__global__ void __cluster_dims__(PARTS, 1, 1) __launch_bounds__(WARPS * 32)
    narrow_by_parts(const T* __restrict__ x, const T* __restrict__ dxa, const T* __restrict__ dz, const T* __restrict__ xa,
                    const T* __restrict__ scale, T* __restrict__ dA, T* __restrict__ dB, T* __restrict__ db, long long M, long long K,
                    long long N, long long R) {
    wait_for_previous_launch();
    narrow_part<T, SIMT, RB, WARPS, STAGES, PARTS>(blockIdx.x / PARTS, x, dxa, dz, xa, scale, dA, dB, db, M, K, N, R);
}
#endif

// dx of few rows: slabs of dxa and A follow those of dz and W (K, N).
template <typename T, bool SIMT, bool ALIGNED, bool NK, int BM, int BN, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32, 1)
    inputs_few_rows(const T* __restrict__ dz, const T* __restrict__ W, const T* __restrict__ dxa, const T* __restrict__ A, T* __restrict__ dx,
                    long long M, long long N, long long K, long long R) {
    static_assert(NK, "A is read as W is");
    using Rows = few_rows::RowLoader<T, BM, WARPS>;
    using Columns = few_rows::RowLoader<T, BN, WARPS>;
    wait_for_previous_launch();
    int depth = static_cast<int>((N + SLAB<T> - 1) / SLAB<T>), more = static_cast<int>((R + SLAB<T> - 1) / SLAB<T>);
    long long m0, n0, width = filled_up<T>(N), rank = filled_up<T>(R);
    block_origin(M, K, BM, BN, m0, n0);
    typename few_rows::WarpOf<SIMT, T, NK, BM, BN>::Type tile;
    few_rows::InTurn<false, WARPS, Rows, Rows> rows(Rows(dz, m0, M, width), Rows(dxa, m0, M, rank), depth);
    few_rows::InTurn<false, WARPS, Columns, Columns> columns(Columns(W, n0, K, width), Columns(A, n0, K, rank), depth);
    few_rows_of<WARPS, STAGES, BM, BN, 1>(tile, rows, columns, depth + more, dx, M, K, m0, n0, Stored{}, [] {}, [] { __syncthreads(); });
}

// dx in IEEE float32: the sums of dz @ Wᵀ and, in the epilogue, dxa @ Aᵀ, both of whose rows are whole vectors.
struct Lifted : Stored {
    const float *__restrict__ dxa, *__restrict__ A;
    long long M, K, R;

    __device__ __forceinline__ Lifted(const float* dxa, const float* A, long long M, long long K, long long R) : dxa(dxa), A(A), M(M), K(K), R(R) {}

    // An element of R at a time: with vectors the sums would leave the registers.
    template <int ROWS, int COLUMNS, typename RowOf, typename ColumnOf>
    __device__ __forceinline__ void add(float (&sums)[ROWS][COLUMNS], RowOf row_of, ColumnOf column_of) {
        long long pitch = filled_up<float>(R);
#pragma unroll 1
        for (long long r = 0; r < R; ++r) {
            float low[ROWS];
#pragma unroll
            for (int i = 0; i < ROWS; ++i) low[i] = dxa[min(row_of(i), M - 1) * pitch + r];
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                float of_A = A[min(column_of(j / 4) + j % 4, K - 1) * pitch + r];
#pragma unroll
                for (int i = 0; i < ROWS; ++i) sums[i][j] = fmaf(low[i], of_A, sums[i][j]);
            }
        }
    }
};

template <bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    inputs_simt(const float* __restrict__ dz, const float* __restrict__ W, const float* __restrict__ dxa, const float* __restrict__ A,
                float* __restrict__ dx, long long M, long long N, long long K, long long R) {
    matmul_simt<ALIGNED, NK, BM, BN, 1>(dz, W, dx, M, N, K, Lifted(dxa, A, M, K, R));
}

#if __CUDA_ARCH__ >= 900
// The same by the blocks of a cluster, which share the N of a tile.
template <bool ALIGNED, bool NK, int BM, int BN, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    inputs_simt_split(const float* __restrict__ dz, const float* __restrict__ W, const float* __restrict__ dxa, const float* __restrict__ A,
                      float* __restrict__ dx, long long M, long long N, long long K, long long R) {
    matmul_simt<ALIGNED, NK, BM, BN, 1, false, SPLIT>(dz, W, dx, M, N, K, Lifted(dxa, A, M, K, R));
}

template <typename T, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    inputs_warpgroup(const __grid_constant__ TensorMap dz, const __grid_constant__ TensorMap W,
                     const __grid_constant__ TensorMap dxa, const __grid_constant__ TensorMap A, T* __restrict__ dx, long long M,
                     long long N, long long K, long long R) {
    adapted_wgmma<T, NK, true, false, BM, BN, STAGES, CLUSTER>(dz, W, dxa, A, dx, M, N, K, R, Stored{}, WholeTiles{});
}
#endif
