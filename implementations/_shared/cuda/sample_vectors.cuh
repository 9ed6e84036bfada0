// The vectors of a sample of DLRM's feature interaction, dense and sparse ones, and how they come to shared memory: for dots.cuh and its gradient.
#pragma once

#include "_shared/cuda/lookup.cuh"

// ---- where a sample's vectors lie: the dense one is vector 0 ----------------------------------------------------------

// In an array of sparse vectors (M, F, D).
template <typename T>
struct Given {
    static constexpr bool LOOKS_UP = false;
    const T *dense, *vectors;

    // Where row 0 of those lies whose first is vector f.
    __device__ __forceinline__ const T* sparse(long long sample, int f, int F, int D) const { return vectors + (sample * F + f - 1) * D; }
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
    __device__ __forceinline__ const T* sparse(long long, int, int, int) const { return tables; }
};

// ---- their way to shared memory -----------------------------------------------------------------------------------------

template <typename T>
__device__ __forceinline__ constexpr int row_bytes(int depth) {  // in shared memory: an odd number of 16-byte banks
    return depth * static_cast<int>(sizeof(T)) + 16;
}

// n / N of an n that is far below 2³² / N. The compiler's own division would be one of 64 bits beside addresses.
template <unsigned N>
__device__ __forceinline__ int quotient(unsigned n) {
    return N == 1 ? n : __umulhi(n, 0xffffffffu / N + 1);
}

// `count` vectors come to rows of shared memory: of each DEPTH elements from `start` on, and 0 past its end. vector(n) is where one begins; if they
// are CLOSE, they lie behind one another. The widest pieces that divide a vector are COPY bytes; odd ones of 16 bits pass through registers, two
// elements to a word.
template <int COPY, int THREADS, int D, int DEPTH, bool CLOSE, typename T, typename Vectors>
__device__ __forceinline__ void bring_rows(const Vectors& vector, unsigned char* x, int count, int start, int thread) {
    constexpr bool WHOLE = DEPTH >= D, RUN = CLOSE && WHOLE && COPY >= 4;  // the n-th piece of memory is the n-th of all
    constexpr int BYTES = COPY < 4 ? 4 : COPY, SIZE = BYTES / sizeof(T), PIECES = WHOLE ? (D + SIZE - 1) / SIZE : DEPTH / SIZE;
    constexpr int STRIDE = row_bytes<T>(DEPTH), AHEAD = COPY < 4 ? 16 : 8;
#pragma unroll 1
    for (int first = thread; first < count * PIECES; first += AHEAD * THREADS) {
        int first_row = quotient<PIECES>(first), first_piece = first - first_row * PIECES;
        const T* first_from = vector(0) + first * SIZE;
        unsigned v[AHEAD];
        int to[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            int n = first + i * THREADS;
            bool wanted = n < count * PIECES;
            // where threads are whole rows each has the same piece of all
            int row = THREADS % PIECES == 0 ? first_row + i * (THREADS / PIECES) : quotient<PIECES>(n);
            int k = start + (THREADS % PIECES == 0 ? first_piece : n - row * PIECES) * SIZE;
            bool inside = wanted && (WHOLE || k < D);
            const T* from = RUN ? first_from + i * THREADS * SIZE : vector(inside ? row : 0) + k;
            int place = row * STRIDE + (k - start) * static_cast<int>(sizeof(T));
            if constexpr (COPY < 4) v[i] = (inside ? from[0].bits : 0) | (inside && k + 1 < D ? from[1].bits : 0) << 16, to[i] = wanted ? place : -1;
            else if (wanted) copy_piece_async<BYTES>(shared_address(x) + place, inside ? from : vector(0), inside);
        }
#pragma unroll
        for (int i = 0; i < AHEAD && COPY < 4; ++i)
            if (to[i] >= 0) *reinterpret_cast<unsigned*>(x + to[i]) = v[i];
    }
    if constexpr (PIECES * SIZE < DEPTH)
#pragma unroll 1
        for (int row = thread; row < count; row += THREADS)
#pragma unroll
            for (int rest = PIECES * BYTES; rest < STRIDE - 16; rest += 4) *reinterpret_cast<unsigned*>(x + row * STRIDE + rest) = 0;
}

// `count` of a sample's vectors, from `first` on; `rows` says where the sparse ones lie.
template <int COPY, int THREADS, int F, int D, int DEPTH, typename T, typename Source>
__device__ __forceinline__ void bring_vectors(const Source& source, const Index* rows, unsigned char* x, long long sample, int first, int count,
                                              int start, int thread) {
    int behind = first == 0;  // the dense one
    auto dense = [from = source.dense + sample * D](int) { return from; };
    auto sparse = [table = source.sparse(sample, first + behind, F, D), rows = rows + behind](int n) {
        return table + (Source::LOOKS_UP ? rows[n] : n) * D;
    };
    if (behind) bring_rows<COPY, THREADS, D, DEPTH, true, T>(dense, x, 1, start, thread);
    bring_rows<COPY, THREADS, D, DEPTH, !Source::LOOKS_UP, T>(sparse, x + behind * row_bytes<T>(DEPTH), count - behind, start, thread);
}
