// Rows of tokens and of scores on their way to shared memory, wherever they begin.
//
//   load_rows       rows of q, k or v as a tile. Where they are no whole vectors, a warp has one at a time, in pieces of as many bytes as
//                   all rows begin at multiples of.
//   store_row       a row of a result, by a warp: neighbouring lanes store neighbouring elements, or pairs. Of vectors that are stored element
//                   by element, each store would touch as many sectors as the whole of them.
//   load_covered    a vector of 16-bit elements that begins anywhere, of the two that cover it.
//   CoveredScores   rows of att as the whole vectors that cover them. A lane shifts two of them into the one it wants, in registers,
//                   through which scores pass anyhow.
#pragma once
#include "_shared/cuda/softmax.cuh"

// Bytes from one row of a tile to the next.
template <typename T, int DP>
constexpr int TILE_PITCH = DP * static_cast<int>(sizeof(T)) + 16;

// Where row r of a tile goes that meets weights in the order of wide loads: a lane then has vector t of each 4, element 2 f + e
// of which is column 2 t + e of fragment f. Bits of r move, so that the places of two numbers without a common bit add up.
template <typename T>
__device__ __forceinline__ int place_of_token(int r) {
    constexpr int SIZE = Vector<T>::SIZE;
    return r / (4 * SIZE) * (4 * SIZE) + r % SIZE / 2 * 8 + r / SIZE % 4 * 2 + r % 2;
}

__device__ __forceinline__ unsigned long long address_of(const void* p) { return reinterpret_cast<unsigned long long>(p); }

// Copies the first `count` elements of a vector, and writes zeros for the others: all or none beside the computation, some of them, as of the
// vector with the last element of a tensor, at once. cp.async would read no more than it is told, but compute-sanitizer takes it for a read of all.
template <typename T>
__device__ __forceinline__ void copy_vector_async(unsigned to, const T* from, int count) {
    constexpr int SIZE = Vector<T>::SIZE;
    if (count <= 0 || count == SIZE) {
        copy_async(to, from, count == SIZE);
        return;
    }
    Vector<T> part = load_part<false>(from, count);
#pragma unroll
    for (int w = 0; w < 4; ++w) asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + 4 * w), "r"(words(part)[w]) : "memory");
}

// ---- rows of tokens --------------------------------------------------------------------------------------------------
// A warp's rows of a tile: number, number + WARPS, … of ROWS.
template <typename T, int ROWS, int WARPS, bool PERMUTED>
struct RowsOfWarp {
    static constexpr int COUNT = (ROWS + WARPS - 1) / WARPS;
    static constexpr bool ADDS_UP = !PERMUTED || (WARPS & (WARPS - 1)) == 0;  // places of both numbers, of which one is known beforehand

    static __device__ __forceinline__ int placed(int r) { return PERMUTED ? place_of_token<T>(r) : r; }
    // Where row `warp` + k WARPS goes, given where row `warp` does.
    static __device__ __forceinline__ int place(int warp, int first, int k) {
        return ADDS_UP ? first + placed(k * WARPS) : placed(warp + k * WARPS);
    }
    static __device__ __forceinline__ bool exists(int warp, int k) { return ROWS % WARPS == 0 || warp + k * WARPS < ROWS; }
};

// load_rows where all rows begin at multiples of BYTES and hold whole pieces of as many.
template <typename T, int BYTES, int DP, int ROWS, int THREADS, bool PERMUTED>
__device__ __forceinline__ void load_pieces(unsigned to, const T* from, long long pitch, int first, int begin, int end, int D) {
    using Rows = RowsOfWarp<T, ROWS, THREADS / 32, PERMUTED>;
    constexpr int EACH = BYTES / static_cast<int>(sizeof(T)), WARPS = THREADS / 32;
    int warp = threadIdx.x / 32, placed = Rows::placed(warp), number = first + warp;
    for (int d = threadIdx.x % 32 * EACH; d < DP; d += 32 * EACH) {
        const T* p = from + number * pitch + d;
        int rows = d < D ? max(end - begin, 0) : 0;
#pragma unroll
        for (int k = 0; k < Rows::COUNT; ++k)
            if (Rows::exists(warp, k))
                copy_piece_async<BYTES>(to + Rows::place(warp, placed, k) * TILE_PITCH<T, DP> + d * sizeof(T), p + k * WARPS * pitch,
                                        static_cast<unsigned>(number + k * WARPS - begin) < static_cast<unsigned>(rows));
    }
}

// load_rows of rows of 16-bit elements that begin anywhere, two elements a lane.
template <typename T, int DP, int ROWS, int THREADS, bool PERMUTED>
__device__ __forceinline__ void load_pairs(unsigned char* to, const T* from, long long pitch, int first, int begin, int end, int D) {
    using Rows = RowsOfWarp<T, ROWS, THREADS / 32, PERMUTED>;
    constexpr int WARPS = THREADS / 32, MOST = DP > 64 ? 4 : 8, BATCH = Rows::COUNT < MOST ? Rows::COUNT : MOST;  // rows at once
    int warp = threadIdx.x / 32;
    for (int d = threadIdx.x % 32 * 2; d < DP; d += 64)
#pragma unroll 1
        for (int done = 0; done < Rows::COUNT; done += BATCH) {
            unsigned words[BATCH];
#pragma unroll
            for (int k = 0; k < BATCH; ++k) {
                int number = first + warp + (done + k) * WARPS;
                bool shown = number >= begin && number < end;
                const T* p = from + number * pitch + d;
                words[k] = shown && d < D ? p[0].bits : 0;
                if (shown && d + 1 < D) words[k] |= static_cast<unsigned>(p[1].bits) << 16;
            }
#pragma unroll
            for (int k = 0; k < BATCH; ++k) {
                int row = warp + (done + k) * WARPS;
                if (row < ROWS) *reinterpret_cast<unsigned*>(to + Rows::placed(row) * TILE_PITCH<T, DP> + d * sizeof(T)) = words[k];
            }
        }
}

// Rows first … first + ROWS of `from`, `pitch` elements apart, of which D count; rows outside of [begin, end) become 0.
template <typename T, bool ALIGNED, int DP, int ROWS, int THREADS, bool PERMUTED = false>
__device__ __forceinline__ void load_rows(unsigned char* to, const T* from, long long pitch, int first, int begin, int end,
                                          int D) {
    constexpr int SIZE = Vector<T>::SIZE, CHUNKS = DP / SIZE, COUNT = ROWS * CHUNKS;
    if constexpr (ALIGNED) {
#pragma unroll(COUNT / THREADS <= 16 ? 16 : 1)
        for (int i = threadIdx.x; i < COUNT; i += THREADS) {
            int row = i / CHUNKS, chunk = i % CHUNKS, number = first + row;
            unsigned char* place = to + (PERMUTED ? place_of_token<T>(row) : row) * TILE_PITCH<T, DP> + chunk * 16;
            copy_async(shared_address(place), from + number * pitch + chunk * SIZE,
                       number >= begin && number < end && chunk * SIZE < D);
        }
    } else {
        int odd = static_cast<int>(address_of(from) | (pitch | D) * sizeof(T)) % 8;  // the same for all threads
        if (odd == 0) load_pieces<T, 8, DP, ROWS, THREADS, PERMUTED>(shared_address(to), from, pitch, first, begin, end, D);
        else if (sizeof(T) == 4 || odd == 4) load_pieces<T, 4, DP, ROWS, THREADS, PERMUTED>(shared_address(to), from, pitch, first, begin, end, D);
        else if constexpr (sizeof(T) == 2) load_pairs<T, DP, ROWS, THREADS, PERMUTED>(to, from, pitch, first, begin, end, D);
    }
}

// The first `count` elements of a row in shared memory, which begins at a multiple of 16 bytes there, anywhere in global memory.
template <typename T>
__device__ __forceinline__ void store_row(T* to, const T* from, int count, int lane) {
    if (count % 2 == 0 && address_of(to) % sizeof(Pair<T>) == 0)
        for (int i = lane; 2 * i < count; i += 32) reinterpret_cast<Pair<T>*>(to)[i] = reinterpret_cast<const Pair<T>*>(from)[i];
    else
        for (int i = lane; i < count; i += 32) to[i] = from[i];
}

// ---- rows of scores --------------------------------------------------------------------------------------------------
// As many elements as a vector has, from element `shift` of `a` on; `b` lies behind it.
template <typename T>
__device__ __forceinline__ Vector<T> shifted(Vector<T> a, Vector<T> b, int shift) {
    constexpr int EACH = 4 / static_cast<int>(sizeof(T));  // elements of a word
    int by = shift / EACH;
    unsigned w[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = words(a)[i], w[i + 4] = words(b)[i];
#pragma unroll
    for (int step = 2; step > 0; step /= 2)
#pragma unroll
        for (int i = 0; i < 8 - step; ++i) w[i] = by & step ? w[i + step] : w[i];
    Vector<T> r;
#pragma unroll
    for (int i = 0; i < 4; ++i) words(r)[i] = EACH == 1 ? w[i] : __funnelshift_r(w[i], w[i + 1], shift % EACH * 16);
    return r;
}

// The first `count` elements from `from` on, wherever it is, the others 0: out of the two vectors that cover them. What lies outside of
// begin … end is not read.
template <typename T>
__device__ __forceinline__ Vector<T> load_covered(const T* from, int count, const T* begin, const T* end) {
    constexpr int SIZE = Vector<T>::SIZE;
    static_assert(sizeof(T) == 2, "two elements are a word");
    int shift = static_cast<int>(address_of(from) / sizeof(T) % SIZE);
    const T* first = from - shift;
    bool both = shift + count > SIZE;
    if (first < begin || first + (both ? 2 : 1) * SIZE > end) return load_part<false>(from, count);
    Vector<T> behind = {};
    if (both) behind = *reinterpret_cast<const Vector<T>*>(first + SIZE);
    Vector<T> found = shifted(*reinterpret_cast<const Vector<T>*>(first), behind, shift);
#pragma unroll
    for (int w = 0; w < 4; ++w) words(found)[w] &= 2 * w + 1 < count ? 0xffffffffu : 2 * w < count ? 0xffffu : 0u;
    return found;
}

// Rows `row` and `row` + 8 of att (tokens, tokens), a lane's. A vector begins at the same element of both, since 8 rows are whole vectors.
template <typename T>
struct CoveredScores {
    static constexpr int SIZE = Vector<T>::SIZE;
    const T* from;  // the first vector that has any of the row
    int row, begin, tokens, shift;  // elements from there to the row

    __device__ __forceinline__ CoveredScores(const T* att, int row, int begin, long long tokens)
        : from(att + row * tokens), row(row), begin(begin), tokens(static_cast<int>(tokens)) {
        shift = static_cast<int>(address_of(from) / sizeof(T) % SIZE);
        from -= shift;
    }
    // Asks for the vector of row + 8 h that has elements column - shift …; for zeros where all of them are hidden. `column` is a multiple of
    // SIZE. What lies behind att, in the vector that has its last element, is not read: SIZE rows before it no vector ends there.
    __device__ __forceinline__ void copy(unsigned to, int h, int column) const {
        int i = row + h * 8, first = column - shift, left = min(tokens - i, SIZE) * tokens - first;
        bool shown = i < tokens && first <= i && first + SIZE > begin;
        copy_vector_async(to, from + h * 8 * static_cast<long long>(tokens) + column, shown ? min(SIZE, left) : 0);
    }
};
