// dx, dW and db of a layer with a gate and few rows, in one launch: a launch that makes dz, as gated_backward.cuh's, would take longer than what
// it does. Some blocks have BN columns of dx, as those of gradients_few_rows (layer_backward.cuh), and make all of dz while W is on its way. The
// other blocks have some rows of 128 columns of dW and make what they multiply of dz: a thread has the same columns of all its rows, and adds up their
// few products in registers.
#pragma once
#include "_shared/cuda/layer_backward.cuh"

namespace gated_rows {

constexpr int COLUMNS = 128, MOST_ROWS = 512;  // of dW of a block
constexpr int SECTOR = 16;                      // elements, of memory

// SIZE neighbouring elements, which are loaded or stored at once.
template <typename T, int SIZE>
struct alignas(SIZE * sizeof(T)) Packed {
    T at[SIZE];
};

// dz of both halves, from Z (M, 2N) and dy (M, N).
template <typename T, typename G>
struct Made {
    const T *z, *dy;
    long long N;

    template <int SIZE>
    struct Both {
        Packed<T, SIZE> left, right;
    };
    template <int SIZE>
    struct Given {
        Both<SIZE> z;
        Packed<T, SIZE> dy;
    };
    using Read = Given<1>;

    // What columns n to n + SIZE - 1 of both halves of row m are made of.
    template <int SIZE>
    __device__ __forceinline__ Given<SIZE> read_both(int m, long long n) const {
        using P = Packed<T, SIZE>;
        const T* row = z + 2 * m * N + n;
        return {*reinterpret_cast<const P*>(row), *reinterpret_cast<const P*>(row + N), *reinterpret_cast<const P*>(dy + m * N + n)};
    }
    template <int SIZE>
    static __device__ __forceinline__ Both<SIZE> both(const Given<SIZE>& given) {
        Both<SIZE> made;
#pragma unroll
        for (int e = 0; e < SIZE; ++e) {
            float v[2] = {to_float(given.z.left.at[e]), to_float(given.z.right.at[e])}, d[2];
            G{}(v, to_float(given.dy.at[e]), d);
            made.left.at[e] = from_float<T>(d[0]), made.right.at[e] = from_float<T>(d[1]);
        }
        return made;
    }
    // The same of element n of 2N, and the element, as it would be stored.
    __device__ __forceinline__ Read read(int m, long long n) const { return read_both<1>(m, n < N ? n : n - N); }
    __device__ __forceinline__ float value(const Read& given, long long n) const {
        Both<1> made = both(given);
        return to_float(n < N ? made.left.at[0] : made.right.at[0]);
    }
};

// x in rows of `pitch` elements.
template <typename T>
struct Rows {
    const T* x;
    long long pitch;

    using Read = T;
    __device__ __forceinline__ T read(int m, long long k) const { return x[m * pitch + k]; }
    __device__ __forceinline__ float value(T v, long long) const { return to_float(v); }
};

// Elements of a row of dz in shared memory: its slabs, and a vector, so that neighbouring rows lie in other banks.
template <typename T>
__device__ __forceinline__ int row_pitch(int slabs) {
    return slabs * SLAB<T> + Vector<T>::SIZE;
}

// dz to shared memory, with zeros behind column 2N. Where HALVES, which are whole slabs then, the right one is made with the left one, by pairs. What
// several are made of is on its way before the first is made.
template <bool HALVES, int ROWS, int THREADS, typename T, typename G>
__device__ __forceinline__ void make_rows(T* dz, const Made<T, G>& made, int slabs) {
    constexpr int TOGETHER = HALVES ? 2 : 1, AT_ONCE = HALVES ? 4 : 8;
    int N = static_cast<int>(made.N), pitch = row_pitch<T>(slabs), width = (HALVES ? slabs / 2 : slabs) * SLAB<T>, each = width / TOGETHER;
    int count = ROWS * each;
    auto row_of = [&](int i) { return ROWS == 1 ? 0 : i / each; };
    auto place_of = [&](int i) { return (i - row_of(i) * each) * TOGETHER; };
#pragma unroll 1
    for (int first = threadIdx.x; first < count; first += AT_ONCE * THREADS) {
        typename Made<T, G>::template Given<TOGETHER> given[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            int at = first + i * THREADS, n = place_of(at);
            if (at < count && n < 2 * N) given[i] = made.template read_both<TOGETHER>(row_of(at), n < N ? n : n - N);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            int at = first + i * THREADS, n = place_of(at);
            if (at >= count) break;
            auto both = made.both(given[i]);
            T* to = dz + row_of(at) * pitch + place_of(at);
            if constexpr (HALVES) {
                *reinterpret_cast<Packed<T, 2>*>(to) = both.left, *reinterpret_cast<Packed<T, 2>*>(to + width) = both.right;
            } else {
                *to = n < N ? both.left.at[0] : n < 2 * N ? both.right.at[0] : T{};
            }
        }
    }
    __syncthreads();
}

// A warp's tile of eight rows at most, whose left operand lies in shared memory as a whole: it takes no place in the ring.
template <typename T, bool NK, int BN, int WARPS, int ROWS>
struct RowsWarp : few_rows::OfWarp<TensorTile<T, NK, 16, BN, 1, 1>> {
    static_assert(ROWS <= 8, "registers of rows 8 to 15 are 0");
    static constexpr int X_BYTES = 0, STAGE = BN * 128;
    const T* own;  // what the lane multiplies next

    __device__ __forceinline__ RowsWarp(const T* rows, int pitch, int first) : own(rows + this->g * pitch + first * SLAB<T> + 2 * this->t) {}
    __device__ __forceinline__ void add(const unsigned char*, const unsigned char* w) {
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            unsigned a[4] = {}, b[RowsWarp::FN][2];
            if (this->g < ROWS) {
                a[0] = *reinterpret_cast<const unsigned*>(own + step * 16);
                a[2] = *reinterpret_cast<const unsigned*>(own + step * 16 + 8);
            }
            this->load_w(b, w, step);
#pragma unroll
            for (int j = 0; j < RowsWarp::FN; ++j) multiply_add(this->c[0][j], a, b[j], T{});
        }
        own += WARPS * SLAB<T>;
    }
    // The sums of ROWS rows, to rows of `pitch` floats.
    __device__ __forceinline__ void leave(float* sums, int pitch) const {
        if (this->g >= ROWS) return;
#pragma unroll
        for (int j = 0; j < RowsWarp::FN; ++j)
            *reinterpret_cast<float2*>(sums + this->g * pitch + j * 8 + 2 * this->t) = make_float2(this->c[0][j][0], this->c[0][j][1]);
    }
};
struct NoLoader {
    __device__ __forceinline__ void load(unsigned char*) const {}
};

// The block's tile of dx: each warp has every WARPS-th slab of 64 columns of dz and brings its own of W. Their sums lie beside the rings, as other
// warps may be still multiplying, and are added in the order of the warps.
template <bool UPRIGHT, bool HALVES, int ROWS, int BN, int WARPS, int STAGES, typename T, typename G>
__device__ __forceinline__ void inputs(const Made<T, G>& made, const T* W, T* dx, long long K, long long whole_K, long long whole_N) {
    using Tile = RowsWarp<T, UPRIGHT, BN, WARPS, ROWS>;
    constexpr int THREADS = WARPS * 32, RING = STAGES * Tile::STAGE, PITCH = few_rows::PITCH<BN>;
    extern __shared__ __align__(128) unsigned char memory[];
    float* sums = reinterpret_cast<float*>(memory + WARPS * RING);  // [warp][row][column]
    T* dz = reinterpret_cast<T*>(sums + WARPS * ROWS * PITCH);
    int warp = threadIdx.x / 32, slabs = static_cast<int>((2 * made.N + SLAB<T> - 1) / SLAB<T>), filled = (slabs + WARPS - 1) / WARPS * WARPS;
    Tile tile(dz, row_pitch<T>(filled), warp);
    NoLoader rows;
    few_rows::WeightLoader<UPRIGHT, T, BN, WARPS, 1> columns(W, blockIdx.x * static_cast<long long>(BN), UPRIGHT ? K : whole_K,
                                                             UPRIGHT ? whole_N : 2 * made.N);
    few_rows::mainloop<WARPS, STAGES>(tile, memory + warp * RING, rows, columns, slabs,
                                      [&] { make_rows<HALVES, ROWS, THREADS>(dz, made, filled); });
    tile.leave(sums + warp * (ROWS * PITCH), PITCH);
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < ROWS * BN; i += THREADS) {
        int row = i / BN, column = i % BN;
        long long k = blockIdx.x * static_cast<long long>(BN) + column;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum += sums[(w * ROWS + row) * PITCH + column];
        if (k < K) dx[row * K + k] = from_float<T>(sum);
    }
}

// Block `block`'s part of dW (rows, columns), `each` rows of COLUMNS: the sum over m of down(m, row) * across(m, column), of which MADE_ACROSS says
// which one is dz. A row's columns begin up to SECTOR before the block's, at a whole sector of memory: so all threads but those at a row's ends store
// whole vectors wherever rows begin. The first of the blocks that make the same of dz stores the sums of its columns in db.
template <typename T, bool COLUMN_SUMS, bool MADE_ACROSS, int ROWS, int THREADS, typename Down, typename Across>
__device__ __forceinline__ void weights(Down down, Across across, T* db, T* dW, long long rows, long long columns, long long each, unsigned block) {
    constexpr int SIZE = Vector<T>::SIZE, WIDTH = COLUMNS + SECTOR, PITCH = WIDTH + WIDTH / SIZE;
    constexpr int LANES = COLUMNS / SIZE, AT_ONCE = THREADS / LANES;  // threads of a row; rows at once
    static_assert(AT_ONCE % SECTOR == 0, "all rows of a thread begin at the same place of a sector");
    extern __shared__ __align__(128) unsigned char memory[];
    float *of_columns = reinterpret_cast<float*>(memory), *of_rows = of_columns + ROWS * PITCH;  // [m][column], [row][m]
    auto place = [](int column) { return column + column / SIZE; };                               // lanes read every SIZE-th
    unsigned strips = static_cast<unsigned>((columns + (columns % SECTOR ? SECTOR - 1 : 0) + COLUMNS - 1) / COLUMNS);
    long long row0 = block / strips * each, n0 = block % strips * static_cast<long long>(COLUMNS), before = n0 - SECTOR;
    int count = static_cast<int>(min(rows - row0, each)), width = static_cast<int>(min(columns - n0, static_cast<long long>(COLUMNS)));
    // outside the nearest one, which nobody stores; all are asked for before the first is used
    constexpr int OF_COLUMNS = (ROWS * WIDTH + THREADS - 1) / THREADS, OF_ROWS = MOST_ROWS / THREADS;
    auto column = [&](int i) { return max(0LL, min(before + (static_cast<int>(threadIdx.x) + i * THREADS) % WIDTH, columns - 1)); };
    auto row = [&](int i) { return row0 + min(static_cast<int>(threadIdx.x) + i * THREADS, count - 1); };
    typename Across::Read read_across[OF_COLUMNS];
    typename Down::Read read_down[ROWS][OF_ROWS];
#pragma unroll
    for (int i = 0; i < OF_COLUMNS; ++i)
        read_across[i] = across.read(min((static_cast<int>(threadIdx.x) + i * THREADS) / WIDTH, ROWS - 1), column(i));
#pragma unroll
    for (int i = 0; i < ROWS * OF_ROWS; ++i) read_down[i / OF_ROWS][i % OF_ROWS] = down.read(i / OF_ROWS, row(i % OF_ROWS));
#pragma unroll
    for (int i = 0; i < OF_COLUMNS; ++i)
        if (int at = threadIdx.x + i * THREADS; at < ROWS * WIDTH)
            of_columns[at / WIDTH * PITCH + place(at % WIDTH)] = across.value(read_across[i], column(i));
#pragma unroll
    for (int i = 0; i < ROWS * OF_ROWS; ++i)
        if (int at = threadIdx.x + i % OF_ROWS * THREADS; at < count)
            of_rows[at * ROWS + i / OF_ROWS] = down.value(read_down[i / OF_ROWS][i % OF_ROWS], row(i % OF_ROWS));
    __syncthreads();
    if (COLUMN_SUMS && (MADE_ACROSS ? row0 : n0) == 0) {
#pragma unroll 1
        for (int i = threadIdx.x; i < (MADE_ACROSS ? width : count); i += THREADS) {
            float sum = 0.0f;
#pragma unroll
            for (int m = 0; m < ROWS; ++m) sum += MADE_ACROSS ? of_columns[m * PITCH + place(i + SECTOR)] : of_rows[i * ROWS + m];
            db[(MADE_ACROSS ? n0 : row0) + i] = from_float<T>(sum);
        }
    }
    int lane = threadIdx.x % LANES, r0 = threadIdx.x / LANES;
    T* to = dW + (row0 + r0) * columns + n0;
    int first = SECTOR - static_cast<int>(reinterpret_cast<unsigned long long>(to) / sizeof(T) % SECTOR) + lane * SIZE;
    // of a vector's elements, those of the row
    int begin = static_cast<int>(max(0LL, -(before + first))), end = static_cast<int>(min(static_cast<long long>(SIZE), columns - before - first));
    if (begin >= end) return;
    float own[ROWS][SIZE];
#pragma unroll
    for (int m = 0; m < ROWS; ++m)
#pragma unroll
        for (int e = 0; e < SIZE; ++e) own[m][e] = of_columns[m * PITCH + place(first + e)];
    to += first - SECTOR;
#pragma unroll(ROWS < 4 ? 4 : 2)
    for (int r = r0; r < count; r += AT_ONCE) {
        float sums[SIZE] = {};
#pragma unroll
        for (int m = 0; m < ROWS; ++m)
#pragma unroll
            for (int e = 0; e < SIZE; ++e) sums[e] = fmaf(of_rows[r * ROWS + m], own[m][e], sums[e]);
        Vector<T> stored;
#pragma unroll
        for (int e = 0; e < SIZE; e += 2) store_pair(stored, e, sums[e], sums[e + 1]);
        if (end - begin == SIZE) {
            store_vector(to, stored);
        } else {
#pragma unroll
            for (int e = 0; e < SIZE; ++e)
                if (e >= begin && e < end) to[e] = stored.at[e];
        }
        to += AT_ONCE * columns;
    }
}

}  // namespace gated_rows

// x (ROWS, K) and W (K, 2N) where UPRIGHT, else (2N, K), have rows of whole_K and whole_N elements. HALVES: N is WARPS whole slabs, or a multiple.
// `each` is the rows of dW of a block.
template <typename T, typename G, bool UPRIGHT, bool HALVES, int ROWS, int BN, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32, 2)
    gated_few_rows(const T* __restrict__ z, const T* __restrict__ dy, const T* __restrict__ W, const T* __restrict__ x, T* __restrict__ dx,
                   T* __restrict__ dW, T* __restrict__ db, long long K, long long N, long long whole_K, long long whole_N, long long each) {
    constexpr int THREADS = WARPS * 32;
    wait_for_previous_launch();
    gated_rows::Made<T, G> made{z, dy, N};
    unsigned of_inputs = static_cast<unsigned>((K + BN - 1) / BN);
    if (blockIdx.x < of_inputs) {
        gated_rows::inputs<UPRIGHT, HALVES, ROWS, BN, WARPS, STAGES>(made, W, dx, K, whole_K, whole_N);
    } else {
        gated_rows::Rows<T> rows{x, whole_K};
        if constexpr (UPRIGHT)
            gated_rows::weights<T, G::COLUMN_SUMS, true, ROWS, THREADS>(rows, made, db, dW, K, 2 * N, each, blockIdx.x - of_inputs);
        else gated_rows::weights<T, G::COLUMN_SUMS, false, ROWS, THREADS>(made, rows, db, dW, 2 * N, K, each, blockIdx.x - of_inputs);
    }
}
