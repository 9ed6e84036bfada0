// dx, dW and db of a layer with a gate and few rows, in one launch: a launch that makes dz, as gated_backward.cuh's, would take longer than what
// it does. Some blocks have BN columns of dx, as those of gradients_few_rows (layer_backward.cuh), and make all of dz for themselves while W is on
// its way. The others have some rows of 128 columns of dW and make what they multiply of dz: a thread has the same columns of all its rows,
// and adds up their few products in registers.
#pragma once
#include "_shared/cuda/layer_backward.cuh"

namespace gated_rows {

constexpr int COLUMNS = 128;  // of dW of a block

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

    // Columns n to n + SIZE - 1 of both halves of row m.
    template <int SIZE>
    __device__ __forceinline__ void pair(int m, long long n, Packed<T, SIZE>& left, Packed<T, SIZE>& right) const {
        using P = Packed<T, SIZE>;
        const T* of_row = z + 2 * m * N + n;
        P z_left = *reinterpret_cast<const P*>(of_row), z_right = *reinterpret_cast<const P*>(of_row + N);
        P given = *reinterpret_cast<const P*>(dy + m * N + n);
#pragma unroll
        for (int e = 0; e < SIZE; ++e) {
            float v[2] = {to_float(z_left.at[e]), to_float(z_right.at[e])}, d[2];
            G{}(v, to_float(given.at[e]), d);
            left.at[e] = from_float<T>(d[0]), right.at[e] = from_float<T>(d[1]);
        }
    }
    // Element n of row m, of 2N, as it would be stored; past the end 0.
    __device__ __forceinline__ float operator()(int m, long long n) const {
        if (n >= 2 * N) return 0.0f;
        Packed<T, 1> left, right;
        pair(m, n < N ? n : n - N, left, right);
        return to_float(n < N ? left.at[0] : right.at[0]);
    }
};

// x in rows of `pitch` elements, of which there are K.
template <typename T>
struct Given {
    const T* x;
    long long K, pitch;
    __device__ __forceinline__ float operator()(int m, long long k) const { return k < K ? to_float(x[m * pitch + k]) : 0.0f; }
};

// Elements of a row of dz in shared memory: whole slabs, and a vector, so that neighbouring rows lie in other banks.
template <typename T>
__device__ __forceinline__ int row_pitch(long long N) {
    return static_cast<int>((2 * N + SLAB<T> - 1) / SLAB<T>)*SLAB<T> + Vector<T>::SIZE;
}

// A warp's tile of eight rows at most, whose left operand lies in shared memory as a whole: it takes no place in the ring.
template <typename T, bool NK, int BN, int WARPS, int ROWS>
struct RowsWarp : few_rows::OfWarp<TensorTile<T, NK, 16, BN, 1, 1>> {
    static_assert(ROWS <= 8, "registers of rows 8 to 15 are 0");
    static constexpr int X_BYTES = 0, STAGE = BN * 128;
    const T* own;  // what the lane multiplies next

    __device__ __forceinline__ RowsWarp(const T* rows, int pitch) : own(rows + this->g * pitch + threadIdx.x / 32 * SLAB<T> + 2 * this->t) {}
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
};
struct NoLoader {
    __device__ __forceinline__ void load(unsigned char*) const {}
};

// Block `block`'s part of dW (rows, columns), `each` rows of COLUMNS: the sum over m of down(m, row) * across(m, column), of which MADE_ACROSS says
// which one is dz. Rows of dW are stored SIZE elements at once. The first of the blocks that make the same of dz stores the sums of its columns in db.
template <typename T, bool COLUMN_SUMS, bool MADE_ACROSS, int ROWS, int SIZE, int THREADS, typename Down, typename Across>
__device__ __forceinline__ void weights(Down down, Across across, T* db, T* dW, long long rows, long long columns, long long each, unsigned block) {
    extern __shared__ __align__(128) unsigned char memory[];
    float *of_columns = reinterpret_cast<float*>(memory), *of_rows = of_columns + ROWS * COLUMNS;  // [m][column], [row][m]
    unsigned strips = static_cast<unsigned>((columns + COLUMNS - 1) / COLUMNS);
    long long row0 = block / strips * each, n0 = block % strips * static_cast<long long>(COLUMNS);
    int count = static_cast<int>(min(rows - row0, each));
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) of_columns[i] = across(i / COLUMNS, n0 + i % COLUMNS);
#pragma unroll
    for (int m = 0; m < ROWS; ++m)
        for (int r = threadIdx.x; r < count; r += THREADS) of_rows[r * ROWS + m] = down(m, row0 + r);
    __syncthreads();
    if constexpr (COLUMN_SUMS) {
        auto store_sums = [&](const float* made, int step, int step_of_m, long long first, int size) {
            for (int i = threadIdx.x; i < size; i += THREADS) {
                float sum = 0.0f;
#pragma unroll
                for (int m = 0; m < ROWS; ++m) sum += made[i * step + m * step_of_m];
                db[first + i] = from_float<T>(sum);
            }
        };
        if (MADE_ACROSS && row0 == 0) store_sums(of_columns, 1, COLUMNS, n0, static_cast<int>(min(columns - n0, static_cast<long long>(COLUMNS))));
        if (!MADE_ACROSS && n0 == 0) store_sums(of_rows, ROWS, 1, row0, count);
    }
    constexpr int LANES = COLUMNS / SIZE, STEP = THREADS / LANES;  // threads of a row; rows at once
    int column = threadIdx.x % LANES * SIZE;
    if (n0 + column >= columns) return;
    float own[ROWS][SIZE];
#pragma unroll
    for (int m = 0; m < ROWS; ++m)
#pragma unroll
        for (int e = 0; e < SIZE; ++e) own[m][e] = of_columns[m * COLUMNS + column + e];
    T* to = dW + row0 * columns + n0 + column;
#pragma unroll 2
    for (int r = threadIdx.x / LANES; r < count; r += STEP) {
        float sums[SIZE] = {};
#pragma unroll
        for (int m = 0; m < ROWS; ++m)
#pragma unroll
            for (int e = 0; e < SIZE; ++e) sums[e] = fmaf(of_rows[r * ROWS + m], own[m][e], sums[e]);
        if constexpr (SIZE == Vector<T>::SIZE) {
            Vector<T> stored;
#pragma unroll
            for (int e = 0; e < SIZE; e += 2) store_pair(stored, e, sums[e], sums[e + 1]);
            store_vector(to + r * columns, stored);
        } else {
            Packed<T, SIZE> stored;
#pragma unroll
            for (int e = 0; e < SIZE; ++e) stored.at[e] = from_float<T>(sums[e]);
            *reinterpret_cast<Packed<T, SIZE>*>(to + r * columns) = stored;
        }
    }
}

}  // namespace gated_rows

// x (ROWS, K) and W (K, 2N) where UPRIGHT, else (2N, K), have rows of whole_K and whole_N elements. TOGETHER elements of dz are made at once, and
// SIZE of a row of dW are stored so. `each` is the rows of dW of a block.
template <typename T, typename G, bool UPRIGHT, int ROWS, int TOGETHER, int SIZE, int BN, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32, 2)
    gated_few_rows(const T* __restrict__ z, const T* __restrict__ dy, const T* __restrict__ W, const T* __restrict__ x, T* __restrict__ dx,
                   T* __restrict__ dW, T* __restrict__ db, long long K, long long N, long long whole_K, long long whole_N, long long each) {
    constexpr int THREADS = WARPS * 32;
    using Tile = gated_rows::RowsWarp<T, UPRIGHT, BN, WARPS, ROWS>;
    wait_for_previous_launch();
    gated_rows::Made<T, G> made{z, dy, N};
    unsigned of_inputs = static_cast<unsigned>((K + BN - 1) / BN);
    if (blockIdx.x < of_inputs) {
        extern __shared__ __align__(128) unsigned char memory[];
        T* dz = reinterpret_cast<T*>(memory + WARPS * few_rows::WARP_BYTES<Tile, 16, BN, STAGES>);
        int pitch = gated_rows::row_pitch<T>(N);
        long long n0 = static_cast<long long>(blockIdx.x) * BN;
        Tile tile(dz, pitch);
        gated_rows::NoLoader rows;
        few_rows::WeightLoader<UPRIGHT, T, BN, WARPS, 1> columns(W, n0, UPRIGHT ? K : whole_K, UPRIGHT ? whole_N : 2 * N);
        auto make = [&] {
#pragma unroll 1
            for (int m = 0; m < ROWS; ++m) {
                T* row = dz + m * pitch;
#pragma unroll 4
                for (int n = threadIdx.x * TOGETHER; n < N; n += THREADS * TOGETHER)
                    made.pair(m, n, *reinterpret_cast<gated_rows::Packed<T, TOGETHER>*>(row + n), *reinterpret_cast<gated_rows::Packed<T, TOGETHER>*>(row + N + n));
                for (int n = 2 * N + threadIdx.x; n < pitch; n += THREADS) row[n] = T{};
            }
            __syncthreads();
        };
        few_rows_of<WARPS, STAGES, 16, BN, 1, true, false>(tile, rows, columns, static_cast<int>((2 * N + SLAB<T> - 1) / SLAB<T>), dx, ROWS, K, 0, n0,
                                                          Stored{}, make, [] { __syncthreads(); });
    } else {
        gated_rows::Given<T> given{x, K, whole_K};
        if constexpr (UPRIGHT)
            gated_rows::weights<T, G::COLUMN_SUMS, true, ROWS, SIZE, THREADS>(given, made, db, dW, K, 2 * N, each, blockIdx.x - of_inputs);
        else gated_rows::weights<T, G::COLUMN_SUMS, false, ROWS, SIZE, THREADS>(made, given, db, dW, 2 * N, K, each, blockIdx.x - of_inputs);
    }
}
