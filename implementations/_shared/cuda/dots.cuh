// The dots of DLRM's feature interaction: the products of a sample's vectors below the diagonal, for interactions.cuh's dot_….
//
// WARPS warps ask for all of a sample's vectors at once, which come to shared memory, and multiply them there by each other. The products
// below the diagonal are shared out in squares: to warps on the tensor cores, to threads on the float32 units. What a row of shared memory has
// past a vector's end is 0; rows past the last vector do not exist: who wants one reads the last vector again, because its products are stored
// nowhere.
//
// More vectors than `band` are bands of so many, and a block has one band against itself or an earlier one. Vectors of more than `depth`
// elements come in pieces of that, again for each pass of the squares over the warps.
//
// A sample's row of y, D + F (F + 1) / 2 elements and zeros up to `pitch`, may start at any address. STAGED blocks collect it in shared memory, as
// far past a multiple of 16 bytes as it is in y, so that it leaves in whole vectors.
#pragma once

#include "_shared/cuda/sample_vectors.cuh"

__device__ __forceinline__ int below_diagonal(int i, int j) { return i * (i - 1) / 2 + j; }  // place of (i, j), j < i

// What the tensor cores get of 4 bytes; NaN stays NaN.
template <typename T>
__device__ __forceinline__ unsigned operand(unsigned word) {
    return word;
}
template <>
__device__ __forceinline__ unsigned operand<float>(unsigned word) {
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(__uint_as_float(word)));
    return rounded;
}

// Products below the diagonal, of F vectors and the dense one, from a warp's fragments to a row of y: lane 4 g + t has its own.
template <int BANDS, typename T, int TILES>
__device__ __forceinline__ void store_below_diagonal(T* row_of_y, const float (&c)[TILES][2 * TILES][4], int g, int t, int F, int D) {
#pragma unroll
    for (int i = 0; i < TILES; ++i)
#pragma unroll
        for (int j = 0; j < 2 * i + 2 && j < BANDS; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                int row = 16 * i + g + e / 2 * 8, column = 8 * j + 2 * t + e % 2;
                if (column < row && row <= F) row_of_y[D + below_diagonal(row, column)] = from_float<T>(c[i][j][e]);
            }
}

// The elements of a row of y past its columns are 0, up to `pitch`.
template <typename T>
__device__ __forceinline__ void fill_rest(T* row, int F, int D, int pitch, int thread, int threads) {
#pragma unroll 1
    for (int d = D + F * (F + 1) / 2 + thread; d < pitch; d += threads) row[d] = from_float<T>(0.0f);
}

// ---- dots: rows of y out of shared memory, and squares ------------------------------------------------------------------

// The n-th square below the diagonal or on it, row by row; there are up to ROWS rows of them.
template <int ROWS>
__device__ __forceinline__ int row_of_square(int n) {
    int i = 0;
    if constexpr (ROWS <= 16) {
#pragma unroll
        for (int row = 1; row < ROWS; ++row) i += n >= row * (row + 1) / 2;
    } else {
        i = static_cast<int>((sqrtf(8.0f * n + 1.0f) - 1.0f) * 0.5f);
        while (i * (i + 1) / 2 > n) --i;
        while ((i + 1) * (i + 2) / 2 <= n) ++i;
    }
    return i;
}

// The COUNT elements that stand from staged[place] on go to y, which is as far past a multiple of 16 bytes.
template <int THREADS, int COUNT, typename T>
__device__ __forceinline__ void write_row(const T* staged, T* y, int place, int thread) {
    constexpr int SIZE = Vector<T>::SIZE;
    T* to = y - place;
    int end = place + COUNT, first = (place + SIZE - 1) / SIZE * SIZE, last = max(end / SIZE * SIZE, first);  // of whole vectors
#pragma unroll 2
    for (int n = first + thread * SIZE; n < last; n += THREADS * SIZE) store_vector(to + n, *reinterpret_cast<const Vector<T>*>(staged + n));
    if (place + thread < min(first, end)) to[place + thread] = staged[place + thread];
    if (last + thread < end) to[last + thread] = staged[last + thread];
}

// Squares of products: of one band (`same`), which has `left` vectors, those that are not above the diagonal; of two all. SIDE vectors a side.
template <int SIDE, int MOST>
struct Squares {
    int across, count;
    bool same;

    __device__ __forceinline__ Squares(int left, int right, bool same) : across((right + SIDE - 1) / SIDE), same(same) {
        int down = (left + SIDE - 1) / SIDE;
        count = same ? down * (down + 1) / 2 : down * across;
    }
    __device__ __forceinline__ int row(int n) const { return same ? row_of_square<(MOST + SIDE - 1) / SIDE>(n) : n / across; }
    __device__ __forceinline__ int column(int n, int row) const { return same ? n - row * (row + 1) / 2 : n - row * across; }
};

// ---- dots: a square of products -----------------------------------------------------------------------------------------

// On the tensor cores: a warp has SIDE neighbouring vectors by as many, a multiple of 16.
template <typename T, int SIDE>
struct TensorSquare {
    static constexpr int LANES = 32, PARTS = SIDE / 16;
    float c[PARTS][2 * PARTS][4] = {};  // 16 rows by 8 columns each
    int row, column;                    // where it begins, in its bands
    bool diagonal;

    template <int MOST>
    __device__ __forceinline__ TensorSquare(const Squares<SIDE, MOST>& squares, int n, int, int)
        : row(squares.row(n)), column(squares.column(n, row)), diagonal(squares.same && row == column) {
        row *= SIDE, column *= SIDE;
    }
    // Of rows of STRIDE bytes all but the last 16, a multiple of 32; `lefts` and `rights` vectors are there.
    template <int STRIDE>
    __device__ __forceinline__ void multiply(const unsigned char* left, const unsigned char* right, int lefts, int rights) {
        if (diagonal) multiply_as<true, STRIDE>(left, right, lefts, rights);
        else multiply_as<false, STRIDE>(left, right, lefts, rights);
    }
    // Rows of vectors are what both operands want of the matrices: a left one's registers are two right ones'.
    template <bool DIAGONAL, int STRIDE>
    __device__ __forceinline__ void multiply_as(const unsigned char* left, const unsigned char* right, int lefts, int rights) {
        int lane = threadIdx.x % 32;
        unsigned from_left[PARTS], from_right[PARTS];
#pragma unroll
        for (int i = 0; i < PARTS; ++i) {
            from_left[i] = shared_address(left) + min(row + 16 * i + lane % 16, lefts - 1) * STRIDE + lane / 16 * 16;
            from_right[i] = shared_address(right) + min(column + 16 * i + lane % 16, rights - 1) * STRIDE + lane / 16 * 16;
        }
#pragma unroll 2
        for (int k = 0; k < STRIDE - 16; k += 32) {
            unsigned a[PARTS][4], b[PARTS][4];
#pragma unroll
            for (int i = 0; i < PARTS; ++i) {
                load_matrices(a[i], from_left[i] + k);
                if constexpr (!DIAGONAL) load_matrices(b[i], from_right[i] + k);
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    a[i][r] = operand<T>(a[i][r]);
                    b[i][r] = DIAGONAL ? a[i][r] : operand<T>(b[i][r]);
                }
            }
#pragma unroll
            for (int i = 0; i < PARTS; ++i)
#pragma unroll
                for (int j = 0; j < 2 * (DIAGONAL ? i + 1 : PARTS); ++j) {
                    unsigned right_operand[2] = {b[j / 2][j % 2], b[j / 2][j % 2 + 2]};
                    multiply_add(c[i][j], a[i], right_operand, T{});
                }
        }
    }
    // To the products of a row of y; the bands begin with vectors `first` and `second`.
    __device__ __forceinline__ void store(T* to, int first, int second, int F) const {
        if (diagonal) store_as<true>(to, first, second, F);
        else store_as<false>(to, first, second, F);
    }
    template <bool DIAGONAL>
    __device__ __forceinline__ void store_as(T* to, int first, int second, int F) const {
        int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < PARTS; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                int below = first + row + 16 * i + g + 8 * h;
                if (below > F) continue;
                T* own = to + below_diagonal(below, 0);
#pragma unroll
                for (int j = 0; j < 2 * (DIAGONAL ? i + 1 : PARTS); ++j)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        int n = second + column + 8 * j + 2 * t + e;
                        if (n < below) own[n] = from_float<T>(c[i][j][2 * h + e]);
                    }
            }
    }
};

// On the float32 units: a thread has SIDE vectors by as many, 2 or 4. They are `down` and `across` apart, so that those of neighbouring
// threads are neighbours, which lie in different banks.
template <int SIDE>
struct SimtSquare {
    static constexpr int LANES = 1;
    float c[SIDE][SIDE] = {};
    int row, column, down, across;
    bool diagonal;

    template <int MOST>
    __device__ __forceinline__ SimtSquare(const Squares<SIDE, MOST>& squares, int n, int lefts, int rights)
        : row(squares.row(n)), column(squares.column(n, row)), down((lefts + SIDE - 1) / SIDE), across((rights + SIDE - 1) / SIDE),
          diagonal(squares.same && row == column) {}
    template <int STRIDE>
    __device__ __forceinline__ void multiply(const unsigned char* left, const unsigned char* right, int lefts, int rights) {
        int from_left[SIDE], from_right[SIDE];
#pragma unroll
        for (int r = 0; r < SIDE; ++r) {
            from_left[r] = min(row + r * down, lefts - 1) * STRIDE;
            from_right[r] = min(column + r * across, rights - 1) * STRIDE;
        }
#pragma unroll 1
        for (int k = 0; k < STRIDE - 16; k += 16) {
            Vector<float> a[SIDE];
#pragma unroll
            for (int r = 0; r < SIDE; ++r) a[r] = *reinterpret_cast<const Vector<float>*>(left + from_left[r] + k);
#pragma unroll
            for (int s = 0; s < SIDE; ++s) {
                auto b = *reinterpret_cast<const Vector<float>*>(right + from_right[s] + k);
#pragma unroll
                for (int r = 0; r < SIDE; ++r)
#pragma unroll
                    for (int e = 0; e < 4; ++e) c[r][s] = fmaf(a[r].at[e], b.at[e], c[r][s]);
            }
        }
    }
    __device__ __forceinline__ void store(float* to, int first, int second, int F) const {
#pragma unroll
        for (int r = 0; r < SIDE; ++r)
#pragma unroll
            for (int s = 0; s < SIDE; ++s) {
                int i = row + r * down, j = column + s * across;
                // those on the diagonal have each pair of vectors twice: it is stored where r > s
                if (diagonal && r <= s) continue;
                int below = max(first + i, second + j), other = min(first + i, second + j);
                if (below <= F) to[below_diagonal(below, other)] = c[r][s];
            }
    }
};

// ---- dots: a block ------------------------------------------------------------------------------------------------------

// What a launch is for, all known when it is compiled, so that addresses are a base and constants: F and D, elements of a row of y, vectors of a
// band and elements of each in shared memory, and bytes of shared memory of a sample.
template <int F_, int D_, int PITCH_, int BAND_, int DEPTH_, int BYTES_>
struct Sizes {
    static constexpr int F = F_, D = D_, PITCH = PITCH_, BAND = BAND_, DEPTH = DEPTH_, BYTES = BYTES_;
};

// A block has SAMPLES samples, each WARPS warps and shared memory of its own: where its vectors lie, the vectors, and its row of y if STAGED.
// Several samples have a warp each, which wait for no other.
template <template <int> class Square, typename S, int SIDE, int COPY, bool STAGED, int WARPS, int SAMPLES, typename T, typename Source>
__device__ __forceinline__ void dots(const Source& source, T* __restrict__ y, long long M) {
    static_assert(SAMPLES == 1 || WARPS == 1);
    constexpr int THREADS = 32 * WARPS, F = S::F, D = S::D, PITCH = S::PITCH, BAND = S::BAND, DEPTH = S::DEPTH;
    constexpr int BANDS = F / BAND + 1, PAIRS = BANDS * (BANDS + 1) / 2, KEPT = BANDS > 1 ? 2 * BAND : F + 1, STRIDE = row_bytes<T>(DEPTH);
    constexpr bool WHOLE = DEPTH >= D;
    extern __shared__ uint4 shared[];
    auto sync = [] {  // of those who have the same sample
        if constexpr (WARPS == 1) __syncwarp();
        else __syncthreads();
    };
    int thread = threadIdx.x % THREADS, pair = BANDS > 1 ? blockIdx.x % PAIRS : 0, a = row_of_square<BANDS>(pair), b = pair - a * (a + 1) / 2;
    int lefts = min(BAND, F + 1 - a * BAND), rights = min(BAND, F + 1 - b * BAND);
    bool same = BANDS == 1 || a == b;
    long long sample = static_cast<long long>(blockIdx.x / PAIRS) * SAMPLES + threadIdx.x / THREADS;
    if (SAMPLES > 1 && sample >= M) return;
    unsigned char* memory = reinterpret_cast<unsigned char*>(shared) + threadIdx.x / THREADS * S::BYTES;
    Index* rows = reinterpret_cast<Index*>(memory);
    if constexpr (Source::LOOKS_UP) {
        for (int n = thread; n < KEPT; n += THREADS) {
            int f = n < BAND ? a * BAND + n : b * BAND + n - BAND;
            rows[n] = f > 0 && f <= F ? source.row(sample, f, F) : 0;
        }
        memory += (KEPT + 1) / 2 * 16;
        sync();
    }
    unsigned char *left = memory, *right = same ? left : left + BAND * STRIDE;
    memory += KEPT * STRIDE;
    int place = STAGED ? static_cast<unsigned>(sample) * PITCH % Vector<T>::SIZE : 0;
    T* own = STAGED ? reinterpret_cast<T*>(memory) + place : y + sample * PITCH;

    auto bring = [&](int start, bool first) {
        bring_vectors<COPY, THREADS, F, D, DEPTH, T>(source, rows, left, sample, a * BAND, lefts, start, thread);
        if (!same) bring_vectors<COPY, THREADS, F, D, DEPTH, T>(source, rows + BAND, right, sample, b * BAND, rights, start, thread);
        copy_commit();
        copy_wait<0>();
        sync();
        if (first && pair == 0)
#pragma unroll 4
            for (int i = 0; i < ((WHOLE ? D : DEPTH) + THREADS - 1) / THREADS; ++i) {
                int d = i * THREADS + thread;
                if (d < DEPTH && start + d < D) own[start + d] = reinterpret_cast<const T*>(left)[d];
            }
    };
    if constexpr (WHOLE) bring(0, true);

    Squares<SIDE, (F < BAND ? F + 1 : BAND)> squares(lefts, rights, same);
    constexpr int AT_ONCE = THREADS / Square<SIDE>::LANES;
#pragma unroll 1
    for (int square0 = 0; square0 < squares.count; square0 += AT_ONCE) {
        int n = square0 + thread / Square<SIDE>::LANES;
        Square<SIDE> products(squares, min(n, squares.count - 1), lefts, rights);
#pragma unroll 1
        for (int start = 0; start < (WHOLE ? 1 : D); start += DEPTH) {
            if constexpr (!WHOLE) {
                sync();  // all have read the piece before
                bring(start, square0 == 0);
            }
            if (n < squares.count) products.template multiply<STRIDE>(left, right, lefts, rights);
        }
        if (n < squares.count) products.store(own + D, a * BAND, b * BAND, F);
    }
    if (pair == 0) fill_rest(own, F, D, PITCH, thread, THREADS);
    if constexpr (STAGED) {
        sync();
        write_row<THREADS, PITCH>(reinterpret_cast<const T*>(memory), y + sample * PITCH, place, thread);
    }
}
