// The dots of DLRM's feature interaction: the products of a sample's vectors below the diagonal, for interactions.cuh's dot_….
//
// WARPS warps ask for all of a sample's vectors at once, which come to shared memory, and multiply them there by each other. The products
// below the diagonal are shared out in squares: to warps on the tensor cores, to threads on the float32 units. What a row of shared memory has past a vector's end is 0; rows past the last vector do not exist: who wants one reads the
// last vector again, because its products are stored nowhere.
//
// More vectors than `band` are bands of so many, and a block has one band against itself or an earlier one. Vectors of more than `depth`
// elements come in pieces of that, again for each pass of the squares over the warps.
//
// A sample's row of y, D + F (F + 1) / 2 elements and zeros up to `pitch`, may start at any address. STAGED blocks collect it in shared memory, as
// far past a multiple of 16 bytes as it is in y, so that it leaves in whole vectors.
#pragma once

#include "_shared/cuda/lookup.cuh"

// ---- where a sample's vectors lie: the dense one is vector 0 ----------------------------------------------------------

// In an array of sparse vectors (M, F, D).
template <typename T>
struct Given {
    static constexpr bool LOOKS_UP = false;
    const T *dense, *sparse;

    __device__ __forceinline__ Index row(long long sample, int f, int F) const { return sample * F + f - 1; }
    __device__ __forceinline__ const T* of(long long sample, int f, Index row, int D) const {
        return f == 0 ? dense + sample * D : sparse + row * D;
    }
};

// In the tables, at the rows of the sample's ids (M, F).
template <typename T, bool IMPROVED>
struct LookedUp {
    static constexpr bool LOOKS_UP = true;
    const T* dense;
    const Index* ids;
    const T* tables;
    const Index* offsets;
    const int *keys, *positions;

    __device__ __forceinline__ Index row(long long sample, int f, int F) const {
        Index id = ids[sample * F + f - 1], begin = offsets[f - 1], end = offsets[f];
        if (!valid(id)) return offsets[F];
        if constexpr (IMPROVED) return improved_row(id, begin, end, keys, positions);
        else return modulus_row(id, begin, end);
    }
    __device__ __forceinline__ const T* of(long long sample, int f, Index row, int D) const {
        return f == 0 ? dense + sample * D : tables + row * D;
    }
};

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

// ---- dots: vectors in shared memory, and rows of y out of it ------------------------------------------------------------

// Copies BYTES, 16, 8 or 4, or writes as many zero bytes where `valid` is false.
template <int BYTES>
__device__ __forceinline__ void copy_bytes_async(unsigned to, const void* from, bool valid) {
    if constexpr (BYTES == 16) copy_async(to, from, valid);
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(valid ? BYTES : 0)
                     : "memory");
}

// Of a sample's vectors two bands, or one, are `count` rows of `stride` bytes: vectors from `first` on, behind `band` of them those from `second` on.
// Of each come `depth` elements from `start` on, and 0 past its end. `rows` says where they lie. The widest pieces that divide a vector are COPY
// bytes; single elements pass through registers.
template <int COPY, int THREADS, typename T, typename Source>
__device__ __forceinline__ void bring_vectors(const Source& source, const Index* rows, unsigned char* x, long long sample, bool exists, int first,
                                              int second, int band, int count, int start, int depth, int stride, int F, int D, int thread) {
    constexpr int SIZE = COPY / sizeof(T), AHEAD = COPY < 4 ? 8 : 1;
    unsigned pieces = depth / SIZE, own = thread;
    int n = own / pieces, piece = own % pieces, down = THREADS / pieces, across = THREADS % pieces;
#pragma unroll 1
    while (n < count) {
        T v[AHEAD];
        int to[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            int k = start + piece * SIZE, f = n < band ? first + n : second + n - band;
            bool inside = exists && n < count && f <= F && k < D;
            Index row = !inside ? 0 : Source::LOOKS_UP ? rows[n] : source.row(sample, f, F);
            const T* from = inside ? source.of(sample, f, row, D) + k : source.dense;
            to[i] = n < count ? n * stride + piece * COPY : -1;
            if constexpr (COPY < 4) v[i] = inside ? *from : T{};
            else copy_bytes_async<COPY>(shared_address(x + to[i]), from, inside);
            n += down, piece += across;
            if (piece >= depth / SIZE) piece -= depth / SIZE, ++n;
        }
#pragma unroll
        for (int i = 0; i < AHEAD && COPY < 4; ++i)
            if (to[i] >= 0) *reinterpret_cast<T*>(x + to[i]) = v[i];
    }
}

// The `count` elements that stand from staged[place] on go to y, which is as far past a multiple of 16 bytes.
template <int THREADS, typename T>
__device__ __forceinline__ void write_row(const T* staged, T* y, int place, int count, int thread) {
    constexpr int SIZE = Vector<T>::SIZE;
    T* to = y - place;
    int end = place + count, first = (place + SIZE - 1) / SIZE * SIZE, last = max(end / SIZE * SIZE, first);  // of whole vectors
#pragma unroll 1
    for (int n = first + thread * SIZE; n < last; n += THREADS * SIZE) store_vector(to + n, *reinterpret_cast<const Vector<T>*>(staged + n));
#pragma unroll 1
    for (int n = place + thread; n < min(first, end); n += THREADS) to[n] = staged[n];
#pragma unroll 1
    for (int n = last + thread; n < end; n += THREADS) to[n] = staged[n];
}

// The n-th square below the diagonal or on it, row by row.
__device__ __forceinline__ int row_of_square(int n) {
    int i = static_cast<int>((sqrtf(8.0f * n + 1.0f) - 1.0f) * 0.5f);
    while (i * (i + 1) / 2 > n) --i;
    while ((i + 1) * (i + 2) / 2 <= n) ++i;
    return i;
}

// Squares of products: of one band (`same`), which has `left` vectors, those that are not above the diagonal; of two all. SIDE vectors a side.
template <int SIDE>
struct Squares {
    int across, count;
    bool same;

    __device__ __forceinline__ Squares(int left, int right, bool same) : across((right + SIDE - 1) / SIDE), same(same) {
        int down = (left + SIDE - 1) / SIDE;
        count = same ? down * (down + 1) / 2 : down * across;
    }
    __device__ __forceinline__ int row(int n) const { return same ? row_of_square(n) : n / across; }
    __device__ __forceinline__ int column(int n, int row) const { return same ? n - row * (row + 1) / 2 : n - row * across; }
};

// ---- dots: a square of products -----------------------------------------------------------------------------------------

// On the tensor cores: a warp has SIDE neighbouring vectors by as many, 16 or 32.
template <typename T, int SIDE>
struct TensorSquare {
    static constexpr int LANES = 32, PARTS = SIDE / 16;
    float c[PARTS][2 * PARTS][4] = {};  // 16 rows by 8 columns each
    int row, column;                    // where it begins, in its bands
    bool diagonal;

    __device__ __forceinline__ TensorSquare(const Squares<SIDE>& squares, int n, int, int)
        : row(squares.row(n)), column(squares.column(n, row)), diagonal(squares.same && row == column) {
        row *= SIDE, column *= SIDE;
    }
    // `bytes` of each vector, a multiple of 32; `lefts` and `rights` vectors are there.
    __device__ __forceinline__ void multiply(const unsigned char* left, const unsigned char* right, int lefts, int rights, int stride, int bytes) {
        if (diagonal) multiply_as<true>(left, right, lefts, rights, stride, bytes);
        else multiply_as<false>(left, right, lefts, rights, stride, bytes);
    }
    // Rows of vectors are what both operands want of the matrices: a left one's registers are two right ones'.
    template <bool DIAGONAL>
    __device__ __forceinline__ void multiply_as(const unsigned char* left, const unsigned char* right, int lefts, int rights, int stride, int bytes) {
        int lane = threadIdx.x % 32;
        unsigned from_left[PARTS], from_right[PARTS];
#pragma unroll
        for (int i = 0; i < PARTS; ++i) {
            from_left[i] = shared_address(left) + min(row + 16 * i + lane % 16, lefts - 1) * stride + lane / 16 * 16;
            from_right[i] = shared_address(right) + min(column + 16 * i + lane % 16, rights - 1) * stride + lane / 16 * 16;
        }
#pragma unroll 2
        for (int k = 0; k < bytes; k += 32) {
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
        int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < PARTS; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                int below = first + row + 16 * i + g + 8 * h;
                if (below > F) continue;
                T* own = to + below_diagonal(below, 0);
#pragma unroll
                for (int j = 0; j < 2 * PARTS; ++j)
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

    __device__ __forceinline__ SimtSquare(const Squares<SIDE>& squares, int n, int lefts, int rights)
        : row(squares.row(n)), column(squares.column(n, row)), down((lefts + SIDE - 1) / SIDE), across((rights + SIDE - 1) / SIDE),
          diagonal(squares.same && row == column) {}
    __device__ __forceinline__ void multiply(const unsigned char* left, const unsigned char* right, int lefts, int rights, int stride, int bytes) {
        int from_left[SIDE], from_right[SIDE];
#pragma unroll
        for (int r = 0; r < SIDE; ++r) {
            from_left[r] = min(row + r * down, lefts - 1) * stride;
            from_right[r] = min(column + r * across, rights - 1) * stride;
        }
#pragma unroll 1
        for (int k = 0; k < bytes; k += 16) {
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

// A block has SAMPLES samples, each WARPS warps and `bytes` of shared memory: where its vectors lie, the vectors, and its row of y if STAGED.
// WHOLE: a vector has no more than `depth` elements.
template <template <int> class Square, int SIDE, int COPY, bool WHOLE, bool STAGED, int WARPS, int SAMPLES, typename T, typename Source>
__device__ __forceinline__ void dots(const Source& source, T* __restrict__ y, long long M, int F, int D, int pitch, int band, int depth, int bytes) {
    constexpr int THREADS = 32 * WARPS;
    extern __shared__ uint4 shared[];
    auto sync = [] {  // of those who have the same sample
        if constexpr (WARPS == 1) __syncwarp();
        else __syncthreads();
    };
    int bands = F / band + 1, thread = threadIdx.x % THREADS, pair = 0, a = 0;
    long long group = blockIdx.x;
    if (bands > 1) {
        int pairs = bands * (bands + 1) / 2;
        pair = blockIdx.x % pairs, group = blockIdx.x / pairs, a = row_of_square(pair);
    }
    int b = pair - a * (a + 1) / 2, lefts = min(band, F + 1 - a * band), rights = min(band, F + 1 - b * band);
    long long sample = group * SAMPLES + threadIdx.x / THREADS;
    bool exists = sample < M;
    int stride = depth * static_cast<int>(sizeof(T)) + 16;  // an odd number of 16-byte banks
    unsigned char* memory = reinterpret_cast<unsigned char*>(shared) + threadIdx.x / THREADS * bytes;
    Index* rows = reinterpret_cast<Index*>(memory);
    if constexpr (Source::LOOKS_UP) {
        int kept = bands > 1 ? 2 * band : F + 1;
        for (int n = thread; n < kept; n += THREADS) {
            int f = n < band ? a * band + n : b * band + n - band;
            rows[n] = exists && f > 0 && f <= F ? source.row(sample, f, F) : 0;
        }
        memory += (kept + 1) / 2 * 16;
        sync();
    }
    unsigned char *left = memory, *right = a == b ? left : left + band * stride;
    memory += (bands > 1 ? 2 * band : F + 1) * stride;
    int place = STAGED ? sample * pitch % Vector<T>::SIZE : 0;
    T* own = STAGED ? reinterpret_cast<T*>(memory) + place : y + sample * pitch;

    auto bring = [&](int start, bool first) {
        bring_vectors<COPY, THREADS, T>(source, rows, left, sample, exists, a * band, b * band, band, a == b ? lefts : band + rights, start, depth,
                                        stride, F, D, thread);
        copy_commit();
        copy_wait<0>();
        sync();
        if (first && pair == 0 && exists)
#pragma unroll 1
            for (int d = thread; d < min(depth, D - start); d += THREADS) own[start + d] = reinterpret_cast<const T*>(left)[d];
    };
    if constexpr (WHOLE) bring(0, true);

    Squares<SIDE> squares(lefts, rights, a == b);
    constexpr int AT_ONCE = THREADS / Square<SIDE>::LANES;
#pragma unroll 1
    for (int square0 = 0; square0 < squares.count; square0 += AT_ONCE) {
        int n = square0 + thread / Square<SIDE>::LANES;
        Square<SIDE> products(squares, min(n, squares.count - 1), lefts, rights);
#pragma unroll 1
        for (int start = 0; start < (WHOLE ? 1 : D); start += depth) {
            if constexpr (!WHOLE) {
                sync();  // all have read the piece before
                bring(start, square0 == 0);
            }
            if (n < squares.count) products.multiply(left, right, lefts, rights, stride, depth * static_cast<int>(sizeof(T)));
        }
        if (exists && n < squares.count) products.store(own + D, a * band, b * band, F);
    }
    if (exists && pair == 0) fill_rest(own, F, D, pitch, thread, THREADS);
    if constexpr (STAGED) {
        sync();
        if (exists) write_row<THREADS>(reinterpret_cast<const T*>(memory), y + sample * pitch, place, pitch, thread);
    }
}
