// padded_softmax_v: y = softmax(att) v, causal, from token n_padd on; one launch in either variant. _attention.cuh has the
// pieces.
//
//   flash       a block has WM × 16 rows and goes through what they see of att, WN × KEYS tokens at a time, with a running
//               maximum and sum for each row. A lane reads the scores that it needs itself, 16 bytes at a time, the next ones
//               while it computes; v passes through shared memory, STAGES tiles of it. READY: att are weights already, and
//               no softmax is taken of them; for kernels that have one of their own.
//   whole_row   a block has 16 rows and asks for all that they see of att at once. Each lane finds what it asked for in shared
//               memory, takes the maximum of the whole row, and then streams v. Nothing is ever rescaled.
//
// att is read once. A lane's vectors are the columns of its fragments in another order; v is put into the same order on its
// way to shared memory (place_of_token). Tiles of tokens begin at the last whole vector before n_padd; scores that are hidden are
// replaced by -inf, whatever they are, and vectors that are hidden altogether are not read. Long rows begin first.
// Rows of v are `pitch` elements apart. ALIGNED: rows of v begin at multiples of 16 bytes and hold whole vectors. WHOLE: so do those of att.
#include "_attention.cuh"

// What a block has: rows first …, tokens begin … end, of which the tiles start at `start`.
template <typename T>
struct Place {
    int first, begin, end, start;

    __device__ __forceinline__ Place(int BM, const int* n_padd, int tokens) {
        first = (static_cast<int>(gridDim.x) - 1 - static_cast<int>(blockIdx.x)) * BM;
        begin = min(max(*n_padd, 0), tokens);
        end = min(first + BM, tokens);
        start = begin / Vector<T>::SIZE * Vector<T>::SIZE;
    }
    __device__ __forceinline__ int count(int BN) const { return end > begin ? (end - start + BN - 1) / BN : 0; }
};

// The vectors of a lane in one tile: [h] of row g + 8 h, and of each group of 4 × SIZE tokens.
template <typename T, int KEYS>
struct Scores {
    static constexpr int SIZE = Vector<T>::SIZE, GROUPS = KEYS / (4 * SIZE), FRAGMENTS = SIZE / 2;  // of a group
    static_assert(KEYS % (4 * SIZE) == 0, "whole groups");
    Vector<T> at[GROUPS][2];

    // How many elements of vector (group, h) there are to read: none where all are hidden. j is the lane's first token.
    static __device__ __forceinline__ int count(int j, int group, int i, int begin, int tokens) {
        int column = j + group * 4 * SIZE;
        return i < tokens && column <= i && column + SIZE > begin ? tokens - column : 0;
    }
    // Fragments of vector (group, h).
    __device__ __forceinline__ void unpack(float (&s)[1][KEYS / 8][4]) const {
#pragma unroll
        for (int f = 0; f < KEYS / 8; ++f)
#pragma unroll
            for (int c = 0; c < 4; ++c) s[0][f][c] = element(at[f / FRAGMENTS][c / 2], f % FRAGMENTS * 2 + c % 2);
    }
    // The token of fragment f, column c % 2, for a lane whose first token is j.
    static __device__ __forceinline__ int token(int j, int f, int c) {
        return j + f / FRAGMENTS * 4 * SIZE + f % FRAGMENTS * 2 + c % 2;
    }
};

template <typename T, bool IEEE, bool ALIGNED, int DP, bool WHOLE, bool READY, int WM, int WN, int KEYS,
          int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    flash(const T* __restrict__ att, const T* __restrict__ v, const int* __restrict__ n_padd, T* __restrict__ y,
          long long tokens, long long D, long long pitch) {
    using Tile = Attention<T, IEEE, ALIGNED, DP, 1, WM, WN, KEYS>;
    using Part = Scores<T, KEYS>;
    constexpr int BN = Tile::BN, STAGE = Tile::TOKENS_BYTES, RING = STAGES * STAGE;
    extern __shared__ __align__(128) unsigned char memory[];
    unsigned char* ring = memory + Tile::ROWS_BYTES;
    float* weights = reinterpret_cast<float*>(ring + (RING > Tile::MERGE_BYTES ? RING : Tile::MERGE_BYTES));

    Tile tile;
    Place<T> at(Tile::BM, n_padd, static_cast<int>(tokens));
    int count = at.count(BN), row = at.first + tile.row + tile.g, own = at.start + tile.key + tile.t * Part::SIZE;
    const T* from = att + row * tokens;
    auto request = [&](int i, int stage) {
        bring_rows<T, ALIGNED, DP, BN, Tile::THREADS, true>(ring + stage * STAGE, v, pitch, at.start + i * BN, at.begin,
                                                            at.end, static_cast<int>(D));
    };
    auto read = [&](Part& part, int i) {
        int j = own + i * BN;
#pragma unroll
        for (int group = 0; group < Part::GROUPS; ++group)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                part.at[group][h] = load_part<WHOLE>(from + h * 8 * tokens + j + group * 4 * Part::SIZE,
                                                     Part::count(j, group, row + h * 8, at.begin, static_cast<int>(tokens)));
    };
    Part ahead;
    read(ahead, 0);
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < count) request(i, i);
        copy_commit();
    }
    int stage = 0, next = STAGES - 1;
    for (int i = 0; i < count; ++i) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (i + STAGES - 1 < count) request(i + STAGES - 1, next);
        copy_commit();
        const unsigned char* now = ring + stage * STAGE;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
        int j = at.start + i * BN + tile.key;
        if (j >= at.first + tile.row + 16) continue;
        Part part = ahead;
        read(ahead, i + 1);
        float s[1][KEYS / 8][4];
        part.unpack(s);
        if (j + KEYS > at.first + tile.row + 1 || j < at.begin)
            tile.hide(s, at.first, at.begin, [&](int f, int c) { return Part::token(own + i * BN, f, c); });
        if constexpr (READY) {
#pragma unroll
            for (int f = 0; f < KEYS / 8; ++f)
#pragma unroll
                for (int c = 0; c < 4; ++c)
                    if (s[0][f][c] == minus_infinity()) s[0][f][c] = 0.0f;  // hidden
        } else {
            tile.raise_and_rescale(s, LOG2_E);
            tile.exponentials(s, LOG2_E);
        }
        tile.weigh(s, now, weights);
    }
    if constexpr (READY) tile.sums_are_one();
    copy_wait<0>();
    __syncthreads();
    tile.finish(y, at.first, at.begin, static_cast<int>(tokens), static_cast<int>(D), memory, ring);
}

template <typename T, bool IEEE, bool ALIGNED, int DP, bool WHOLE, int WN, int KEYS, int STAGES>
__global__ void __launch_bounds__(WN * 32, 1)
    whole_row(const T* __restrict__ att, const T* __restrict__ v, const int* __restrict__ n_padd, T* __restrict__ y,
              long long tokens, long long D, long long pitch) {
    using Tile = Attention<T, IEEE, ALIGNED, DP, 1, 1, WN, KEYS>;
    using Part = Scores<T, KEYS>;
    constexpr int BN = Tile::BN, STAGE = Tile::TOKENS_BYTES, RING = STAGES * STAGE;
    constexpr int AFTER = RING > Tile::MERGE_BYTES ? RING : Tile::MERGE_BYTES;
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ float maxima[WN][16];
    unsigned char* ring = memory + Tile::ROWS_BYTES;
    float* weights = reinterpret_cast<float*>(ring + AFTER);
    // (count, warps, groups, 2, lanes): all scores, as they were read
    Vector<T>* kept = reinterpret_cast<Vector<T>*>(ring + AFTER + Tile::WEIGHTS_BYTES) +
                      threadIdx.x / 32 * Part::GROUPS * 64 + threadIdx.x % 32;

    Tile tile;
    Place<T> at(16, n_padd, static_cast<int>(tokens));
    int count = at.count(BN), row = at.first + tile.g, own = at.start + tile.key + tile.t * Part::SIZE;
    const T* from = att + row * tokens;
    auto place = [&](int i, int group, int h) { return kept + ((i * WN * Part::GROUPS + group) * 2 + h) * 32; };
    auto request = [&](int i, int stage) {
        bring_rows<T, ALIGNED, DP, BN, Tile::THREADS, true>(ring + stage * STAGE, v, pitch, at.start + i * BN, at.begin,
                                                            at.end, static_cast<int>(D));
    };
    for (int i = 0; i < count; ++i) {
        int j = own + i * BN;
#pragma unroll
        for (int group = 0; group < Part::GROUPS; ++group)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                int number = Part::count(j, group, row + h * 8, at.begin, static_cast<int>(tokens));
                const T* p = from + h * 8 * tokens + j + group * 4 * Part::SIZE;
                if constexpr (WHOLE) copy_async(shared_address(place(i, group, h)), p, number > 0);
                else *place(i, group, h) = load_part<false>(p, number);
            }
    }
    copy_commit();
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < count) request(i, i);
        copy_commit();
    }
    copy_wait<STAGES - 1>();  // a lane reads what it copied itself: no barrier
    float s[1][KEYS / 8][4];
    auto scores = [&](int i) {  // whether the warp sees anything of tile i; then s are its scores
        int j = at.start + i * BN + tile.key;
        if (j >= at.first + 16) return false;
        Part part;
#pragma unroll
        for (int group = 0; group < Part::GROUPS; ++group)
#pragma unroll
            for (int h = 0; h < 2; ++h) part.at[group][h] = *place(i, group, h);
        part.unpack(s);
        if (j + KEYS > at.first + 1 || j < at.begin)
            tile.hide(s, at.first, at.begin, [&](int f, int c) { return Part::token(own + i * BN, f, c); });
        return true;
    };
    for (int i = 0; i < count; ++i)
        if (scores(i)) tile.raise(s, LOG2_E);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float m = lane_reduce<true, 4>(tile.highest[0][h]);
        if (tile.t == 0) maxima[threadIdx.x / 32][h * 8 + tile.g] = m;
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int w = 0; w < WN; ++w) tile.highest[0][h] = fmaxf(tile.highest[0][h], maxima[w][h * 8 + tile.g]);
    int stage = 0, next = STAGES - 1;
    for (int i = 0; i < count; ++i) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (i + STAGES - 1 < count) request(i + STAGES - 1, next);
        copy_commit();
        const unsigned char* now = ring + stage * STAGE;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
        if (!scores(i)) continue;
        tile.exponentials(s, LOG2_E);
        tile.weigh(s, now, weights);
    }
    copy_wait<0>();
    __syncthreads();
    tile.finish(y, at.first, at.begin, static_cast<int>(tokens), static_cast<int>(D), memory, ring);
}
