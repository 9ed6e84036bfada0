// padded_attention's backward modes, on the pieces of attention.cuh.
//
//   flash_logarithms   forward: flash.cuh's tiles, which leave y and the logarithm of each row's sum of exponentials, so that a weight
//                      is p = exp2(score * scale - logarithm). One launch.
//
// Backward, two launches; with ds = p * (dp - delta), dp = dy vᵀ and delta = sum(dy * y) of each row,
//
//   query_gradients    a block has a tile of rows and goes through the tokens that they see: dq = ds k / √D. It leaves delta.
//   token_gradients    a block has a tile of tokens and goes through the rows that see them: dv = pᵀ dy, dk = dsᵀ q / √D. Its scores are
//                      transposed: tokens are the rows of its tile, and rows of the sequence its columns.
//
// Each gradient has one block, and nothing is added atomically. Scores are multiplied once more in each; that costs two products of
// seven, and no gradient passes through memory in float32. Warps have 16 rows each. What is padding is loaded as 0 and stored as 0.
#include "_shared/cuda/flash.cuh"

constexpr int STAGES = 2;

template <typename T, bool IEEE, bool ALIGNED, int DP, int FM, int WM, int WN, int KEYS, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    flash_logarithms(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const int* __restrict__ n_padd,
                     T* __restrict__ y, float* __restrict__ logarithms, long long heads, long long tokens, long long D,
                     float scale) {
    wait_for_previous_launch();
    flash_tile<T, IEEE, ALIGNED, DP, FM, WM, WN, KEYS, STAGES>(q, k, v, n_padd, y, logarithms, heads, tokens, D, D, scale);
}

// The sum of dy * y of rows g and g + 8 of the warp's 16, in all lanes of a row. dy is a tile; y (tokens, D) is read, of rows
// first … tokens.
template <bool ALIGNED, typename Tile, typename T>
__device__ __forceinline__ void row_deltas(float (&delta)[2], const Tile& tile, const unsigned char* dy, const T* y, int first,
                                           int tokens, int D) {
    constexpr int SIZE = Vector<T>::SIZE;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        int r = tile.row + h * 8 + tile.g, number = first + r;
        float sum = 0.0f;
        for (int d = tile.t * SIZE; d < D; d += 4 * SIZE) {
            auto own = load_part<ALIGNED>(y + static_cast<long long>(number) * D + d, number < tokens ? D - d : 0);
            auto behind = *reinterpret_cast<const Vector<T>*>(dy + r * Tile::PITCH + d * sizeof(T));
#pragma unroll
            for (int e = 0; e < SIZE; ++e) sum = fmaf(element(own, e), element(behind, e), sum);
        }
        delta[h] = lane_reduce<false, 4>(sum);
    }
}

template <typename T, bool IEEE, bool ALIGNED, int DP, int WM, int KEYS>
__global__ void __launch_bounds__(WM * 32, 1)
    query_gradients(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const T* __restrict__ dy,
                    const int* __restrict__ n_padd, const T* __restrict__ y, const float* __restrict__ logarithms,
                    float* __restrict__ deltas, T* __restrict__ dq, long long heads, long long tokens, long long D, float scale,
                    float root) {
    wait_for_previous_launch();
    using Tile = Attention<T, IEEE, ALIGNED, DP, 1, WM, 1, KEYS>;
    constexpr int STAGE = 2 * Tile::TOKENS_BYTES;
    extern __shared__ __align__(128) unsigned char memory[];
    unsigned char *behind = memory + Tile::ROWS_BYTES, *stages = behind + Tile::ROWS_BYTES;
    float* weights = reinterpret_cast<float*>(stages + STAGES * STAGE);

    QueryTile at(Tile::BM, n_padd, heads, static_cast<int>(tokens));
    int width = static_cast<int>(D), length = static_cast<int>(tokens), count = at.count(KEYS);
    long long base = at.head * tokens;
    auto load = [&](int i, int stage) {
        unsigned char* to = stages + stage * STAGE;
        int from = at.begin + i * KEYS;
        load_rows<T, ALIGNED, DP, KEYS, Tile::THREADS>(to, k + base * D, D, from, 0, at.end, width);
        load_rows<T, ALIGNED, DP, KEYS, Tile::THREADS>(to + STAGE / 2, v + base * D, D, from, 0, at.end, width);
    };
    load_rows<T, ALIGNED, DP, Tile::BM, Tile::THREADS>(memory, q + base * D, D, at.first, at.begin, at.end, width);
    load_rows<T, ALIGNED, DP, Tile::BM, Tile::THREADS>(behind, dy + base * D, D, at.first, at.begin, at.end, width);
    if (count > 0) load(0, 0);
    copy_commit();
    copy_wait<0>();
    __syncthreads();

    Tile tile;
    float delta[2], logarithm[2];
    row_deltas<ALIGNED>(delta, tile, behind, y + base * D, at.first, length, width);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        int number = at.first + tile.row + h * 8 + tile.g;
        logarithm[h] = logarithms[base + min(number, length - 1)];
        if (tile.t == 0 && number < length) deltas[base + number] = delta[h];
    }
    for (int i = 0; i < count; ++i) {
        copy_wait<0>();
        __syncthreads();  // tile i is here, and all have read what the next one takes the place of
        if (i + 1 < count) load(i + 1, (i + 1) % STAGES);
        copy_commit();
        const unsigned char* now = stages + i % STAGES * STAGE;
        int j = at.begin + i * KEYS, first_row = at.first + tile.row;
        if (j >= first_row + 16) continue;
        float s[1][Tile::FN][4], dp[1][Tile::FN][4];
        tile.multiply(s, memory, now);
        tile.multiply(dp, behind, now + STAGE / 2);
        if (j + KEYS > first_row + 1)
            tile.mask(s, at.first, at.begin, [&](int f, int c) { return j + f * 8 + 2 * tile.t + c % 2; });
#pragma unroll
        for (int f = 0; f < Tile::FN; ++f)
#pragma unroll
            for (int c = 0; c < 4; ++c)
                s[0][f][c] = exp2_approximate(fmaf(s[0][f][c], scale, -logarithm[c / 2])) * (dp[0][f][c] - delta[c / 2]);
        tile.multiply_values(s, now, weights);
    }
    copy_wait<0>();
    tile.divide_by(root);
    tile.epilogue(dq + base * D, at.first, at.begin, length, width, memory, nullptr);
}

template <typename T, bool IEEE, bool ALIGNED, int DP, int WM, int KEYS>
__global__ void __launch_bounds__(WM * 32, 1)
    token_gradients(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const T* __restrict__ dy,
                    const int* __restrict__ n_padd, const float* __restrict__ logarithms, const float* __restrict__ deltas,
                    T* __restrict__ dk, T* __restrict__ dv, long long heads, long long tokens, long long D, float scale,
                    float root) {
    wait_for_previous_launch();
    using Tile = Attention<T, IEEE, ALIGNED, DP, 1, WM, 1, KEYS>;
    constexpr int STAGE = 2 * Tile::TOKENS_BYTES;
    extern __shared__ __align__(128) unsigned char memory[];
    unsigned char *values = memory + Tile::ROWS_BYTES, *stages = values + Tile::ROWS_BYTES;
    float* weights = reinterpret_cast<float*>(stages + STAGES * STAGE);

    // tiles of the first tokens, which most rows see, begin first
    int width = static_cast<int>(D), length = static_cast<int>(tokens), tiles = (length + Tile::BM - 1) / Tile::BM;
    long long head = blockIdx.x / tiles, base = head * tokens;
    int first = static_cast<int>(blockIdx.x % tiles) * Tile::BM, begin = min(max(n_padd[head / heads], 0), length);
    int start = max(first, begin), count = first + Tile::BM > begin && start < length ? (length - start + KEYS - 1) / KEYS : 0;
    auto load = [&](int i, int stage) {
        unsigned char* to = stages + stage * STAGE;
        int from = start + i * KEYS;
        load_rows<T, ALIGNED, DP, KEYS, Tile::THREADS>(to, q + base * D, D, from, 0, length, width);
        load_rows<T, ALIGNED, DP, KEYS, Tile::THREADS>(to + STAGE / 2, dy + base * D, D, from, 0, length, width);
    };
    load_rows<T, ALIGNED, DP, Tile::BM, Tile::THREADS>(memory, k + base * D, D, first, begin, length, width);
    load_rows<T, ALIGNED, DP, Tile::BM, Tile::THREADS>(values, v + base * D, D, first, begin, length, width);
    if (count > 0) load(0, 0);
    copy_commit();

    Tile of_keys, of_values;
    for (int n = 0; n < count; ++n) {
        copy_wait<0>();
        __syncthreads();
        if (n + 1 < count) load(n + 1, (n + 1) % STAGES);
        copy_commit();
        const unsigned char* now = stages + n % STAGES * STAGE;
        int i0 = start + n * KEYS, first_token = first + of_keys.row;
        if (i0 + KEYS <= first_token) continue;
        float s[1][Tile::FN][4], dp[1][Tile::FN][4];
        of_keys.multiply(s, memory, now);
        of_keys.multiply(dp, values, now + STAGE / 2);
        bool masked = i0 < first_token + 15 || i0 + KEYS > length;
#pragma unroll
        for (int f = 0; f < Tile::FN; ++f)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                int i = i0 + f * 8 + 2 * of_keys.t + e;
                float logarithm = logarithms[base + min(i, length - 1)], delta = deltas[base + min(i, length - 1)];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    float &weight = s[0][f][2 * h + e], &gradient = dp[0][f][2 * h + e];
                    weight = exp2_approximate(fmaf(weight, scale, -logarithm));
                    if (masked && (i < first_token + h * 8 + of_keys.g || i >= length)) weight = 0.0f;
                    gradient = weight * (gradient - delta);
                }
            }
        of_values.multiply_values(s, now + STAGE / 2, weights);
        of_keys.multiply_values(dp, now, weights);
    }
    copy_wait<0>();
    __syncthreads();
    of_keys.divide_by(root);
    of_values.divide_by(1.0f);
    of_keys.epilogue(dk + base * D, first, begin, length, width, memory, nullptr);
    of_values.epilogue(dv + base * D, first, begin, length, width, values, nullptr);
}
