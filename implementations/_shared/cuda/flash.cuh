// Flash attention, one kernel for q, k and v and one for scores that are given: a block has a tile of rows and goes through the
// tokens that they see with a running maximum and sum for each row. For kernels that have a mask of causality and of padding;
// attention.cuh has the pieces.
//
//   flash             softmax(q kᵀ / √D) v: k and v pass through shared memory, STAGES tiles of both.
//   flash_of_scores   softmax(att) v. A lane reads the scores that it needs itself, 16 bytes at a time, the next ones while it
//                     computes; where rows of att begin anywhere they pass through shared memory, as v does. NORMALISED: att are
//                     weights already, and no softmax is taken.
//
// Tiles of tokens begin at n_padd, or at the last whole vector of att before it, so that padding is hardly ever read and few
// tiles are masked; a warp leaves out tiles that none of its rows sees. Long rows, the last ones of a head, begin first.
// Rows are `pitch` elements apart in q, k and v, D in y. ALIGNED promises that rows begin at multiples of 16 bytes and hold whole
// vectors; WHOLE the same of att. Where D columns of v do not fit in a warp's registers, blocks beside one another have the same rows.
#pragma once
#include "_shared/cuda/attention.cuh"

// Which head and which rows a block has, and what they see.
struct QueryTile {
    long long head;
    int first, begin, end;

    __device__ __forceinline__ QueryTile(unsigned block, int BM, const int* n_padd, long long heads, int tokens) {
        int tiles = (tokens + BM - 1) / BM;
        head = block / tiles;
        first = (tiles - 1 - static_cast<int>(block % tiles)) * BM;
        begin = min(max(n_padd[head / heads], 0), tokens);
        end = min(first + BM, tokens);
    }
    __device__ __forceinline__ QueryTile(int BM, const int* n_padd, long long heads, int tokens)
        : QueryTile(blockIdx.x, BM, n_padd, heads, tokens) {}
    __device__ __forceinline__ int count(int BN) const { return end > begin ? (end - begin + BN - 1) / BN : 0; }
};

// What tiles begin, begin + STEP, … of tokens add to the sums of a block's rows.
template <bool ALIGNED, int DP, int FM, int KEYS, int STAGES, int STEP, typename T, typename Tile>
__device__ __forceinline__ void flash_mainloop(Tile& tile, const QueryTile& at, int begin, const T* q, const T* k, const T* v, long long tokens,
                                               long long D, long long pitch, unsigned char* rows, unsigned char* stages, float* weights,
                                               float scale) {
    constexpr int BN = Tile::BN, STAGE = 2 * Tile::TOKENS_BYTES;
    k += at.head * tokens * pitch;
    v += at.head * tokens * pitch;
    int count = at.count(BN);
    auto load = [&](int i, int stage) {
        unsigned char* to = stages + stage * STAGE;
        int from = at.begin + i * BN;
        load_rows<T, ALIGNED, DP, BN, Tile::THREADS>(to, k, pitch, from, 0, at.end, static_cast<int>(D));
        load_rows<T, ALIGNED, DP, BN, Tile::THREADS>(to + STAGE / 2, v, pitch, from, 0, at.end, static_cast<int>(D));
    };
    load_rows<T, ALIGNED, DP, Tile::BM, Tile::THREADS>(rows, q + at.head * tokens * pitch, pitch, at.first, at.begin, at.end,
                                                        static_cast<int>(D));
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (begin + i * STEP < count) load(begin + i * STEP, i);
        copy_commit();
    }
    int stage = 0, next = STAGES - 1;
    for (int i = begin; i < count; i += STEP) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (i + (STAGES - 1) * STEP < count) load(i + (STAGES - 1) * STEP, next);
        copy_commit();
        const unsigned char* now = stages + stage * STAGE;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
        int j = at.begin + i * BN + tile.key, first_row = at.first + tile.row;
        if (j >= first_row + FM * 16) continue;
        float s[FM][KEYS / 8][4];
        tile.multiply(s, rows, now);
        if (j + KEYS > first_row + 1)
            tile.mask(s, at.first, at.begin, [&](int f, int c) { return j + f * 8 + 2 * tile.t + c % 2; });
        tile.update_maximum_and_rescale(s, scale);
        tile.exponentials(s, scale);
        tile.multiply_values(s, now + STAGE / 2, weights);
    }
    copy_wait<0>();
    __syncthreads();
}

// `logarithms` (…, tokens) are written where they are given: epilogue() of attention.cuh.
template <typename T, bool IEEE, bool ALIGNED, int DP, int FM, int WM, int WN, int KEYS, int STAGES>
__device__ __forceinline__ void flash_tile(const T* q, const T* k, const T* v, const int* n_padd, T* y, float* logarithms,
                                           long long heads, long long tokens, long long D, long long pitch, float scale) {
    using Tile = Attention<T, IEEE, ALIGNED, DP, FM, WM, WN, KEYS>;
    constexpr int ALL = STAGES * 2 * Tile::TOKENS_BYTES;
    extern __shared__ __align__(128) unsigned char memory[];
    unsigned char* stages = memory + Tile::ROWS_BYTES;
    float* weights = reinterpret_cast<float*>(stages + (ALL > Tile::MERGE_BYTES ? ALL : Tile::MERGE_BYTES));

    QueryTile at(Tile::BM, n_padd, heads, static_cast<int>(tokens));
    Tile tile;
    flash_mainloop<ALIGNED, DP, FM, KEYS, STAGES, 1>(tile, at, 0, q, k, v, tokens, D, pitch, memory, stages, weights, scale);
    tile.epilogue(y + at.head * tokens * D, at.first, at.begin, static_cast<int>(tokens), static_cast<int>(D), memory, stages,
                  logarithms ? logarithms + at.head * tokens : nullptr);
}

template <typename T, bool IEEE, bool ALIGNED, int DP, int FM, int WM, int WN, int KEYS, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    flash(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const int* __restrict__ n_padd,
          T* __restrict__ y, long long heads, long long tokens, long long D, long long pitch, float scale) {
    wait_for_previous_launch();
    flash_tile<T, IEEE, ALIGNED, DP, FM, WM, WN, KEYS, STAGES>(q, k, v, n_padd, y, nullptr, heads, tokens, D, pitch, scale);
}

// Which columns of v and y a block has, DP at most, and the number of its rows among those of `blocks`.
template <int DP>
struct Columns {
    int first, count;
    unsigned block, blocks;

    __device__ __forceinline__ Columns(unsigned number, unsigned all, long long D)
        : first(0), count(static_cast<int>(D)), block(number), blocks(all) {
        if (count <= DP) return;
        unsigned parts = (count + DP - 1) / DP;
        block = number / parts, blocks = all / parts;
        first = static_cast<int>(number % parts) * DP;
        count = min(DP, count - first);
    }
};

// What a block has: rows first …, tokens begin … end, of which the tiles start at `start`.
template <typename T>
struct ScoreTile {
    int first, begin, end, start;

    // Of tile `number`, counted from the last.
    __device__ __forceinline__ ScoreTile(unsigned number, unsigned count, int BM, const int* n_padd, int tokens) {
        first = (static_cast<int>(count) - 1 - static_cast<int>(number)) * BM;
        begin = min(max(*n_padd, 0), tokens);
        end = min(first + BM, tokens);
        start = begin / Vector<T>::SIZE * Vector<T>::SIZE;
    }
    __device__ __forceinline__ int count(int BN) const { return end > begin ? (end - start + BN - 1) / BN : 0; }
};

// The vectors of a lane in one tile: [h] of row g + 8 h, and of each group of 4 × SIZE tokens.
template <typename T, int KEYS>
struct ScoreVectors {
    static constexpr int SIZE = Vector<T>::SIZE, GROUPS = KEYS / (4 * SIZE), FRAGMENTS = SIZE / 2;  // of a group
    static_assert(KEYS % (4 * SIZE) == 0, "whole groups");
    static constexpr int COVERED = GROUPS * 64 + 16;  // vectors of shared memory that cover a warp's: a row begins within one of them
    Vector<T> at[GROUPS][2];

    // How many elements of vector (group, h) there are to read: none where all are hidden. j is the lane's first token.
    static __device__ __forceinline__ int count(int j, int group, int i, int begin, int tokens) {
        int column = j + group * 4 * SIZE;
        return i < tokens && column <= i && column + SIZE > begin ? tokens - column : 0;
    }
    // Where the first covering vector of (group, h) is; behind the last group there is one a row.
    static __device__ __forceinline__ int covering(int group, int h, int g, int t) {
        return group < GROUPS ? (group * 2 + h) * 32 + g * 4 + t : GROUPS * 64 + h * 8 + g;
    }
    // Asks for the vectors that cover the warp's, of which the lane's first token is j.
    static __device__ __forceinline__ void cover(Vector<T>* to, const CoveredScores<T>& rows, int j, int g, int t) {
#pragma unroll
        for (int group = 0; group < GROUPS; ++group)
#pragma unroll
            for (int h = 0; h < 2; ++h) rows.copy(shared_address(to + covering(group, h, g, t)), h, j + group * 4 * SIZE);
        if (t < 2) rows.copy(shared_address(to + covering(GROUPS, t, g, 0)), t, j - t * SIZE + KEYS);
    }
    // Takes the lane's vectors out of those that cover them.
    __device__ __forceinline__ void uncover(const Vector<T>* from, int shift, int g, int t) {
#pragma unroll
        for (int group = 0; group < GROUPS; ++group)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                int behind = t < 3 ? covering(group, h, g, t + 1) : covering(group + 1, h, g, 0);
                at[group][h] = shifted(from[covering(group, h, g, t)], from[behind], shift);
            }
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

// What tiles first, first + STEP, … of tokens add to the sums of a block's rows. load(i, stage) asks for tile i of v. `weights` is memory for
// weights, behind which there is that for stages of scores unless rows of att are WHOLE vectors.
template <bool WHOLE, bool NORMALISED, int KEYS, int STAGES, int STEP, typename T, typename Tile, typename L>
__device__ __forceinline__ void scores_mainloop(Tile& tile, const ScoreTile<T>& at, const T* att, long long tokens, int first,
                                                unsigned char* stages, float* weights, L load) {
    using Part = ScoreVectors<T, KEYS>;
    constexpr int BN = Tile::BN, STAGE = Tile::TOKENS_BYTES;
    int count = at.count(BN), row = at.first + tile.row + tile.g, own = at.start + tile.key + tile.t * Part::SIZE;
    const T* from = att + row * tokens;
    CoveredScores<T> rows(att, row, at.begin, tokens);
    Vector<T>* covered = reinterpret_cast<Vector<T>*>(weights + Tile::WEIGHTS_BYTES / 4) + threadIdx.x / 32 * (STAGES * Part::COVERED);
    auto ask = [&](int i, int stage) {
        load(i, stage);
        if constexpr (!WHOLE) Part::cover(covered + stage * Part::COVERED, rows, own + i * BN, tile.g, tile.t);
    };
    auto read = [&](Part& part, int i) {
        int j = own + i * BN;
#pragma unroll
        for (int group = 0; group < Part::GROUPS; ++group)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                part.at[group][h] = load_part<true>(from + h * 8 * tokens + j + group * 4 * Part::SIZE,
                                                    Part::count(j, group, row + h * 8, at.begin, static_cast<int>(tokens)));
    };
    Part ahead;
    if constexpr (WHOLE) read(ahead, first);
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (first + i * STEP < count) ask(first + i * STEP, i);
        copy_commit();
    }
    int stage = 0, next = STAGES - 1;
    for (int i = first; i < count; i += STEP) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (i + (STAGES - 1) * STEP < count) ask(i + (STAGES - 1) * STEP, next);
        copy_commit();
        const unsigned char* now = stages + stage * STAGE;
        const Vector<T>* scores = covered + stage * Part::COVERED;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
        int j = at.start + i * BN + tile.key;
        if (j >= at.first + tile.row + 16) continue;
        Part part;
        if constexpr (WHOLE) {
            part = ahead;
            read(ahead, i + STEP);
        } else {
            part.uncover(scores, rows.shift, tile.g, tile.t);
        }
        float s[1][KEYS / 8][4];
        part.unpack(s);
        if (j + KEYS > at.first + tile.row + 1 || j < at.begin)
            tile.mask(s, at.first, at.begin, [&](int f, int c) { return Part::token(own + i * BN, f, c); });
        if constexpr (NORMALISED) {
#pragma unroll
            for (int f = 0; f < KEYS / 8; ++f)
#pragma unroll
                for (int c = 0; c < 4; ++c)
                    if (s[0][f][c] == minus_infinity()) s[0][f][c] = 0.0f;  // hidden
        } else {
            tile.update_maximum_and_rescale(s, LOG2_E);
            tile.exponentials(s, LOG2_E);
        }
        tile.multiply_values(s, now, weights);
    }
    copy_wait<0>();
    __syncthreads();
}

template <typename T, bool IEEE, bool ALIGNED, int DP, bool WHOLE, bool NORMALISED, int WM, int WN, int KEYS,
          int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    flash_of_scores(const T* __restrict__ att, const T* __restrict__ v, const int* __restrict__ n_padd, T* __restrict__ y,
                    long long tokens, long long D, long long pitch) {
    wait_for_previous_launch();
    using Tile = Attention<T, IEEE, ALIGNED, DP, 1, WM, WN, KEYS>;
    constexpr int BN = Tile::BN, STAGE = Tile::TOKENS_BYTES, ALL = STAGES * STAGE;
    extern __shared__ __align__(128) unsigned char memory[];
    unsigned char* stages = memory + Tile::ROWS_BYTES;
    float* weights = reinterpret_cast<float*>(stages + (ALL > Tile::MERGE_BYTES ? ALL : Tile::MERGE_BYTES));

    Tile tile;
    Columns<DP> columns(blockIdx.x, gridDim.x, D);
    ScoreTile<T> at(columns.block, columns.blocks, Tile::BM, n_padd, static_cast<int>(tokens));
    auto load = [&](int i, int stage) {
        load_rows<T, ALIGNED, DP, BN, Tile::THREADS, true>(stages + stage * STAGE, v + columns.first, pitch, at.start + i * BN, at.begin,
                                                            at.end, columns.count);
    };
    scores_mainloop<WHOLE, NORMALISED, KEYS, STAGES, 1>(tile, at, att, tokens, 0, stages, weights, load);
    if constexpr (NORMALISED) tile.divide_by(1.0f);
    tile.epilogue(y + columns.first, at.first, at.begin, static_cast<int>(tokens), static_cast<int>(D), memory, stages, nullptr,
                  columns.count);
}
