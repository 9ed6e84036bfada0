// The pieces of attention in one block: scores of a tile of rows with a tile of tokens, a softmax, and their products with v.
//
// A block has WM × WN warps: WM × FM × 16 rows, and WN × KEYS tokens at a time. Warps that share rows have different tokens,
// and a maximum, a sum and an output of their own, which epilogue() puts together: that is how a short sequence, which has few
// tiles of rows, keeps more than one warp busy.
//
// A warp's scores s[m][f][c] are fragments of its FM × 16 rows and 8 tokens each, as multiply_add sums them: lane 4 g + t has
// rows g and g + 8, columns 2 t and 2 t + 1. The same registers, packed, are the left operand of the product with v, so that
// weights never leave them. In IEEE float32, where no tensor core multiplies, the fragments are the same, but each lane needs
// the weights of its neighbours, which pass through shared memory.
//
// Tiles are rows in shared memory of DP elements, D made up to a multiple of 16 with zeros, and 16 bytes more: 8 neighbouring
// rows then lie in different banks. Rows outside of the sequence, or that are padding, are 0 and never read from memory, so
// that NaN in them reaches nothing.
//
// Scores count in units of 1 / log2(e). The maximum of a row begins with the lowest finite number, from which a first -inf is as
// far as from any other: -inf - -inf would be NaN. Rows that see nothing have the sum 0, and epilogue() writes 0. NaN comes
// through in the sum, also where the maximum ignores it.
#pragma once
#include "_shared/cuda/attention_rows.cuh"

// What a warp knows of its rows, and does with them. IEEE: float32 without tensor cores.
template <typename T, bool IEEE, bool ALIGNED, int DP, int FM, int WM, int WN, int KEYS>
struct Attention {
    static constexpr int SIZE = Vector<T>::SIZE, THREADS = WM * WN * 32, BM = WM * FM * 16, BN = WN * KEYS;
    static constexpr int FN = KEYS / 8, FD = DP / 8, PITCH = TILE_PITCH<T, DP>, OUT = DP + 4;
    // of shared memory: a tile of rows, of tokens, the weights that pass through it, what epilogue() puts together
    static constexpr int ROWS_BYTES = BM * PITCH, TOKENS_BYTES = BN * PITCH;
    static constexpr int WEIGHTS_BYTES = IEEE ? WM * WN * FM * 16 * (KEYS + 4) * 4 : 0;
    static constexpr int MERGE_BYTES = WN > 1 ? WN * BM * (OUT + 2) * 4 : 0;
    static_assert(DP % 16 == 0 && KEYS % 16 == 0, "fragments come in pairs");

    float acc[FM][FD][4], total[FM][2], highest[FM][2];
    int lane, g, t, row, key;  // the warp's first row and first token in the block's tiles

    __device__ __forceinline__ Attention() : acc{}, total{} {
        lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        int warp = threadIdx.x / 32;
        row = warp / WN * FM * 16, key = warp % WN * KEYS;
#pragma unroll
        for (int m = 0; m < FM; ++m) highest[m][0] = highest[m][1] = LOWEST;
    }

    // s = rows of the tile q times tokens of the tile k.
    __device__ __forceinline__ void multiply(float (&s)[FM][FN][4], const unsigned char* q, const unsigned char* k) const {
#pragma unroll
        for (int m = 0; m < FM; ++m)
#pragma unroll
            for (int f = 0; f < FN; ++f)
#pragma unroll
                for (int c = 0; c < 4; ++c) s[m][f][c] = 0.0f;
        if constexpr (IEEE) {
            for (int d = 0; d < DP; d += 4) {
                Vector<float> a[FM][2];
#pragma unroll
                for (int m = 0; m < FM; ++m)
#pragma unroll
                    for (int h = 0; h < 2; ++h) a[m][h] = at(q, row + m * 16 + h * 8 + g, d);
#pragma unroll
                for (int f = 0; f < FN; ++f)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        Vector<float> b = at(k, key + f * 8 + 2 * t + e, d);
#pragma unroll
                        for (int m = 0; m < FM; ++m)
#pragma unroll
                            for (int h = 0; h < 2; ++h)
#pragma unroll
                                for (int i = 0; i < 4; ++i)
                                    s[m][f][2 * h + e] = fmaf(a[m][h].at[i], b.at[i], s[m][f][2 * h + e]);
                    }
            }
        } else {
            unsigned from_q = shared_address(q) + (row + lane % 16) * PITCH + lane / 16 * 16;
            unsigned from_k = shared_address(k) + (key + lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 16;
#pragma unroll
            for (int step = 0; step < DP * static_cast<int>(sizeof(T)) / 32; ++step) {
                unsigned a[FM][4];
#pragma unroll
                for (int m = 0; m < FM; ++m) load_matrices(a[m], from_q + m * 16 * PITCH + step * 32);
#pragma unroll
                for (int f = 0; f < FN; f += 2) {
                    unsigned r[4];
                    load_matrices(r, from_k + f * 8 * PITCH + step * 32);
                    unsigned b[2][2] = {{r[0], r[1]}, {r[2], r[3]}};
#pragma unroll
                    for (int m = 0; m < FM; ++m) {
                        multiply_add(s[m][f], a[m], b[0], T{});
                        multiply_add(s[m][f + 1], a[m], b[1], T{});
                    }
                }
            }
        }
    }

    // -inf where column j(f, c) of a fragment is hidden from row i of the sequence: j > i or j < begin. `first` is the block's
    // first row.
    template <typename Column>
    __device__ __forceinline__ void mask(float (&s)[FM][FN][4], int first, int begin, Column j) const {
#pragma unroll
        for (int m = 0; m < FM; ++m)
#pragma unroll
            for (int f = 0; f < FN; ++f)
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    int i = first + row + m * 16 + c / 2 * 8 + g;
                    if (j(f, c) > i || j(f, c) < begin) s[m][f][c] = minus_infinity();
                }
    }

    // Takes the maximum of what each row has in s, times `scale`, into `highest`: of the lane's own columns.
    __device__ __forceinline__ void update_maximum(const float (&s)[FM][FN][4], float scale) {
#pragma unroll
        for (int m = 0; m < FM; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float v = s[m][0][2 * h];
#pragma unroll
                for (int f = 0; f < FN; ++f) v = fmaxf(v, fmaxf(s[m][f][2 * h], s[m][f][2 * h + 1]));
                highest[m][h] = fmaxf(highest[m][h], v * scale);
            }
    }

    // After all tokens, where a block has 16 rows: the maximum of each row over all of its tokens, in all warps, through `maxima`.
    __device__ __forceinline__ void share_maximum(float (&maxima)[WN][16]) {
        static_assert(FM == 1 && WM == 1, "16 rows");
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float m = lane_reduce<true, 4>(highest[0][h]);
            if (t == 0) maxima[threadIdx.x / 32][h * 8 + g] = m;
        }
        __syncthreads();
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int w = 0; w < WN; ++w) highest[0][h] = fmaxf(highest[0][h], maxima[w][h * 8 + g]);
    }

    // update_maximum() in all lanes of a row, and what is summed so far brought to the new maximum.
    __device__ __forceinline__ void update_maximum_and_rescale(const float (&s)[FM][FN][4], float scale) {
        float before[FM][2];
#pragma unroll
        for (int m = 0; m < FM; ++m) before[m][0] = highest[m][0], before[m][1] = highest[m][1];
        update_maximum(s, scale);
#pragma unroll
        for (int m = 0; m < FM; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                highest[m][h] = lane_reduce<true, 4>(highest[m][h]);
                float rescale = exp2_approximate(before[m][h] - highest[m][h]);
                total[m][h] *= rescale;
#pragma unroll
                for (int f = 0; f < FD; ++f) acc[m][f][2 * h] *= rescale, acc[m][f][2 * h + 1] *= rescale;
            }
    }

    // s becomes exp2(s * scale - highest), and its sums are added to the lane's part of `total`.
    __device__ __forceinline__ void exponentials(float (&s)[FM][FN][4], float scale) {
#pragma unroll
        for (int m = 0; m < FM; ++m)
#pragma unroll
            for (int f = 0; f < FN; ++f)
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    s[m][f][c] = exp2_approximate(fmaf(s[m][f][c], scale, -highest[m][c / 2]));
                    total[m][c / 2] += s[m][f][c];
                }
    }

    // Instead of sums of exponentials: the result is acc / by.
    __device__ __forceinline__ void divide_by(float by) {
#pragma unroll
        for (int m = 0; m < FM; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) highest[m][h] = 0.0f, total[m][h] = t == 0 && key == 0 ? by : 0.0f;
    }

    // acc += s times tokens of the tile v. `weights` is the block's memory for weights, WEIGHTS_BYTES.
    __device__ __forceinline__ void multiply_values(const float (&s)[FM][FN][4], const unsigned char* v, float* weights) {
        if constexpr (IEEE) {
            constexpr int W = KEYS + 4;
            float* own = weights + threadIdx.x / 32 * FM * 16 * W;
            __syncwarp();  // all have read what was there
#pragma unroll
            for (int m = 0; m < FM; ++m)
#pragma unroll
                for (int f = 0; f < FN; ++f)
#pragma unroll
                    for (int h = 0; h < 2; ++h)
                        *reinterpret_cast<float2*>(own + (m * 16 + h * 8 + g) * W + f * 8 + 2 * t) =
                            make_float2(s[m][f][2 * h], s[m][f][2 * h + 1]);
            __syncwarp();
            for (int j = 0; j < KEYS; j += 4) {
                Vector<float> a[FM][2];
#pragma unroll
                for (int m = 0; m < FM; ++m)
#pragma unroll
                    for (int h = 0; h < 2; ++h)
                        a[m][h] = *reinterpret_cast<const Vector<float>*>(own + (m * 16 + h * 8 + g) * W + j);
#pragma unroll
                for (int i = 0; i < 4; ++i)
#pragma unroll
                    for (int f = 0; f < FD; ++f) {
                        float2 b = *reinterpret_cast<const float2*>(v + (key + j + i) * PITCH + (f * 8 + 2 * t) * 4);
#pragma unroll
                        for (int m = 0; m < FM; ++m)
#pragma unroll
                            for (int h = 0; h < 2; ++h) {
                                acc[m][f][2 * h] = fmaf(a[m][h].at[i], b.x, acc[m][f][2 * h]);
                                acc[m][f][2 * h + 1] = fmaf(a[m][h].at[i], b.y, acc[m][f][2 * h + 1]);
                            }
                    }
            }
        } else if constexpr (sizeof(T) == 2) {
            unsigned from = shared_address(v) + (key + lane % 16) * PITCH + lane / 16 * 16;
#pragma unroll
            for (int j = 0; j < FN; j += 2) {
                unsigned a[FM][4];
#pragma unroll
                for (int m = 0; m < FM; ++m)
#pragma unroll
                    for (int r = 0; r < 4; ++r) {
                        const float(&pair)[4] = s[m][j + r / 2];
                        a[m][r] = pack(pair[r % 2 * 2], pair[r % 2 * 2 + 1], T{});
                    }
#pragma unroll
                for (int f = 0; f < FD; f += 2) {
                    unsigned r[4];
                    load_matrices_transposed(r, from + j * 8 * PITCH + f * 16);
                    unsigned b[2][2] = {{r[0], r[1]}, {r[2], r[3]}};
#pragma unroll
                    for (int m = 0; m < FM; ++m) {
                        multiply_add(acc[m][f], a[m], b[0], T{});
                        multiply_add(acc[m][f + 1], a[m], b[1], T{});
                    }
                }
            }
        } else {
            // tf32: the tensor cores' K is any order of tokens, as long as both operands have it: t is token 2 t, t + 4 is
            // 2 t + 1, so that a lane already holds what it needs
            const unsigned char* from = v + (key + 2 * t) * PITCH + g * 4;
#pragma unroll
            for (int j = 0; j < FN; ++j)
#pragma unroll
                for (int f = 0; f < FD; ++f) {
                    const unsigned char* p = from + j * 8 * PITCH + f * 32;
                    unsigned b[2] = {*reinterpret_cast<const unsigned*>(p), *reinterpret_cast<const unsigned*>(p + PITCH)};
#pragma unroll
                    for (int m = 0; m < FM; ++m) {
                        unsigned a[4] = {__float_as_uint(s[m][j][0]), __float_as_uint(s[m][j][2]),
                                         __float_as_uint(s[m][j][1]), __float_as_uint(s[m][j][3])};
                        multiply_add(acc[m][f], a, b, T{});
                    }
                }
        }
    }

    // Writes acc / total to rows first … of y (tokens, D), of which the block has `columns` at most, 0 in those before `begin`. `rows` is
    // ROWS_BYTES of shared memory that no other row's warp uses, `merge` MERGE_BYTES that nobody does. `highest` is the same in all lanes of a
    // row. Where it is given, `logarithms` (tokens,) has the logarithms of rows' sums of exponentials, to the base 2: exp2(s * scale - this)
    // is a weight.
    __device__ __forceinline__ void epilogue(T* y, int first, int begin, int tokens, int D, unsigned char* rows,
                                             unsigned char* merge, float* logarithms = nullptr, int columns = DP) {
        columns = min(columns, D);
#pragma unroll
        for (int m = 0; m < FM; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) total[m][h] = lane_reduce<false, 4>(total[m][h]);
        if constexpr (WN > 1) {
            float* sums = reinterpret_cast<float*>(merge);  // (WN, BM, OUT)
            float* maxima = sums + WN * BM * OUT;           // (WN, BM)
            float* totals = maxima + WN * BM;               // (WN, BM)
            int warp_n = key / KEYS;
#pragma unroll
            for (int m = 0; m < FM; ++m)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    int at_row = warp_n * BM + row + m * 16 + h * 8 + g;
                    if (t == 0) maxima[at_row] = highest[m][h], totals[at_row] = total[m][h];
#pragma unroll
                    for (int f = 0; f < FD; ++f)
                        *reinterpret_cast<float2*>(sums + at_row * OUT + f * 8 + 2 * t) =
                            make_float2(acc[m][f][2 * h], acc[m][f][2 * h + 1]);
                }
            __syncthreads();
            for (int i = threadIdx.x; i < BM * DP; i += THREADS) {
                int r = i / DP, d = i % DP;
                if (d >= columns || first + r >= tokens) continue;
                float m = LOWEST, sum = 0.0f, all = 0.0f;
#pragma unroll
                for (int n = 0; n < WN; ++n) m = fmaxf(m, maxima[n * BM + r]);
#pragma unroll
                for (int n = 0; n < WN; ++n) {
                    float share = exp2_approximate(maxima[n * BM + r] - m);
                    sum = fmaf(share, sums[(n * BM + r) * OUT + d], sum);
                    all = fmaf(share, totals[n * BM + r], all);
                }
                y[static_cast<long long>(first + r) * D + d] = from_float<T>(first + r < begin ? 0.0f : sum / all);
                if (logarithms && d == 0) logarithms[first + r] = m + log2f(all);
            }
        } else {
            __syncwarp();
#pragma unroll
            for (int m = 0; m < FM; ++m)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    int r = row + m * 16 + h * 8 + g;
                    bool padding = first + r < begin;
                    float inverse = 1.0f / total[m][h];
                    if (logarithms && t == 0 && first + r < tokens) logarithms[first + r] = highest[m][h] + log2f(total[m][h]);
#pragma unroll
                    for (int f = 0; f < FD; ++f) {
                        Pair<T> pair;
#pragma unroll
                        for (int e = 0; e < 2; ++e)
                            pair.at[e] = from_float<T>(padding ? 0.0f : acc[m][f][2 * h + e] * inverse);
                        *reinterpret_cast<Pair<T>*>(rows + r * PITCH + (f * 8 + 2 * t) * sizeof(T)) = pair;
                    }
                }
            __syncwarp();
            if constexpr (ALIGNED) {
                for (int i = lane; i < FM * 16 * (DP / SIZE); i += 32) {
                    int r = row + i / (DP / SIZE), d = i % (DP / SIZE) * SIZE;
                    if (first + r >= tokens) continue;
                    auto part = *reinterpret_cast<const Vector<T>*>(rows + r * PITCH + d * sizeof(T));
                    store_part<true>(y + static_cast<long long>(first + r) * D + d, part, columns - d);
                }
            } else {
                for (int r = row; r < min(row + FM * 16, tokens - first); ++r)
                    store_row(y + static_cast<long long>(first + r) * D, reinterpret_cast<const T*>(rows + r * PITCH), columns, lane);
            }
        }
    }

    // Elements d … d + 3 of a row of a tile of floats.
    __device__ __forceinline__ Vector<float> at(const unsigned char* tile, int r, int d) const {
        return *reinterpret_cast<const Vector<float>*>(tile + r * PITCH + d * 4);
    }
};
