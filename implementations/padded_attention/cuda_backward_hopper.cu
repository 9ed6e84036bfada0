// padded_attention's backward modes on Hopper: the kernels of cuda_backward.cu by warpgroup products.
//
// A producer warpgroup has tiles brought and consumers have 64 rows each: of the sequence in the one launch, tokens in the other, whose
// scores are transposed. So weights and their gradients are left operands in registers, as in the forward pass, and nothing is summed
// by two blocks. q, k, v and dy are tensor maps; they and all else are contiguous. ALIGNED promises that rows of y, dq, dk and dv are whole
// vectors; those of the maps are.
//
// Products are under way while a warpgroup computes: those of dp beside the exponentials; in token_gradients those of dv beside ds; and
// the scores of the next tile are queued behind the products with this one.
//
// Boxes are whole. Tiles of tokens and of rows that are gone through begin at n_padd or later. What a box has of padding in the block's own
// rows is NaN there at most, where 0 is stored; what it has behind the sequence is 0.
#include "_shared/cuda/hopper/flash.cuh"

#if __CUDA_ARCH__ >= 900
template <typename T, bool ALIGNED, int DP, int BM, int KEYS, int STAGES>
__global__ void __launch_bounds__(BM * 2 + 128, ATTENTION_BLOCKS<DP, BM>)
    flash_warpgroup_logarithms(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                               const __grid_constant__ TensorMap v, const int* __restrict__ n_padd, T* __restrict__ y,
                               float* __restrict__ logarithms, long long heads, long long tokens, long long D, float scale) {
    flash_warpgroup_tile<T, DP, BM, KEYS, STAGES, ALIGNED>(q, k, v, n_padd, y, logarithms, heads, tokens, D, scale);
}

// Of a producer thread, which does little; and of each consumer thread of blocks with BM rows: of 64, two share a multiprocessor.
constexpr int LOADER_REGISTERS = 24;
template <int BM>
constexpr int GRADIENT_REGISTERS = BM == 64 ? 256 - LOADER_REGISTERS : CONSUMER_REGISTERS<BM / 64, LOADER_REGISTERS>;

// What a lane has of rows g and g + 8 of a warp's 16 of y, which is read while tiles are on their way: chunks t, t + 4, … of 16 bytes.
template <typename T, bool ALIGNED, int DP>
struct RowsOfY {
    static constexpr int SIZE = Vector<T>::SIZE, STEPS = DP / (4 * SIZE);
    Vector<T> at[2][STEPS];

    // Of y (tokens, D), from row `first` on; behind the last one, and behind D, 0.
    template <typename Tile>
    __device__ __forceinline__ RowsOfY(const Tile& tile, const T* y, int first, int tokens, int D) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int number = first + tile.row + h * 8 + tile.g;
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                int d = (step * 4 + tile.t) * SIZE;
                const T* from = y + static_cast<long long>(number) * D + d;
                int count = number < tokens ? D - d : 0;
                if constexpr (ALIGNED) at[h][step] = load_part<true>(from, count);
                else if (count > 0) at[h][step] = load_covered(from, min(count, SIZE), y, y + static_cast<long long>(tokens) * D);
                else at[h][step] = {};
            }
        }
    }

    // The sums of dy * y in all lanes of a row. dy is in panels of BM rows, eight chunks a row.
    template <int BM, typename Tile>
    __device__ __forceinline__ void deltas(float (&delta)[2], const Tile& tile, const unsigned char* dy) const {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int r = tile.row + h * 8 + tile.g;
            float sum = 0.0f;
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                int chunk = step * 4 + tile.t;
                auto behind = *reinterpret_cast<const Vector<T>*>(dy + chunk / 8 * (BM * 128) + r * 128 + (chunk % 8 ^ r % 8) * 16);
#pragma unroll
                for (int e = 0; e < SIZE; ++e) sum = fmaf(element(at[h][step], e), element(behind, e), sum);
            }
            delta[h] = lane_reduce<false, 4>(sum);
        }
    }
};

template <typename T, bool ALIGNED, int DP, int BM, int KEYS, int STAGES>
__global__ void __launch_bounds__(BM * 2 + 128, BM == 64 ? 2 : 1)
    query_gradients_warpgroup(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                              const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap dy,
                              const int* __restrict__ n_padd, const T* __restrict__ y, const float* __restrict__ logarithms,
                              float* __restrict__ deltas, T* __restrict__ dq, long long heads, long long tokens, long long D,
                              float scale, float root) {
    using Tile = WarpgroupAttention<T, DP, BM, KEYS, ALIGNED>;
    using Stages = Pipeline<2 * STAGES, Tile::STAGE>;  // tile i of k is 2 i-th, that of v 2 i + 1-th; q and dy come with the first
    static_assert((BM - 64) / KEYS < STAGES, "what the last warpgroup alone waits for is behind all that is filled again");
    extern __shared__ __align__(1024) unsigned char memory[];
    unsigned char* behind = memory + Tile::Q_BYTES;
    Stages pipeline(behind + Tile::Q_BYTES);
    if (threadIdx.x == 0) pipeline.init(1, BM / 16);
    __syncthreads();
    wait_for_previous_launch();
    QueryTile at(BM, n_padd, heads, static_cast<int>(tokens));
    at.begin = uniform(at.begin);
    if (threadIdx.x < 128) {
        warpgroup_reg_dealloc<LOADER_REGISTERS>();
        int head = static_cast<int>(at.head), count = threadIdx.x == 0 ? 2 * at.count(KEYS) : 0;
        for (int i = 0; i < count; ++i) {
            unsigned to = pipeline.producer_acquire_for_tma(i, i < 2 ? Tile::Q_BYTES : 0), barrier = pipeline.full(i);
            if (i == 0) load_panels<DP, BM>(shared_address(memory), q, at.first, head, barrier);
            if (i == 1) load_panels<DP, BM>(shared_address(behind), dy, at.first, head, barrier);
            load_panels<DP, KEYS>(to, i % 2 ? v : k, at.begin + i / 2 * KEYS, head, barrier);
        }
        return;
    }
    warpgroup_reg_alloc<GRADIENT_REGISTERS<BM>>();
    Tile tile;
    float s[1][Tile::FN][4], dp[1][Tile::FN][4], delta[2], logarithm[2];
    int length = static_cast<int>(tokens), width = static_cast<int>(D);
    long long base = at.head * tokens;
    int last = min(at.first + (tile.warpgroup + 1) * 64, at.end);  // behind this warpgroup's rows
    int count = last > at.begin ? (last - at.begin + KEYS - 1) / KEYS : 0;
    auto issue_scores = [&](float(&of)[1][Tile::FN][4], const unsigned char* rows, int stage) {
        pipeline.consumer_wait(stage);
        warpgroup_fence_operand(of[0]);
        warpgroup_arrive();
        tile.issue_scores(of, rows, pipeline.stage(stage));
        warpgroup_commit();
    };
    auto issue_sums = [&](int i) {
        warpgroup_fence_operand(tile.acc[0]);
        warpgroup_arrive();
        tile.issue_values(pipeline.stage(2 * i));
        warpgroup_commit();
    };
    auto exponentials = [&](int i) {
        warpgroup_fence_operand(s[0]);
        int j = at.begin + i * KEYS;
        if (j + KEYS > at.first + tile.row + 1)
            tile.mask(s, at.first, at.begin, [&](int f, int c) { return j + f * 8 + 2 * tile.t + c % 2; });
#pragma unroll
        for (int f = 0; f < Tile::FN; ++f)
#pragma unroll
            for (int c = 0; c < 4; ++c) s[0][f][c] = exp2_approximate(fmaf(s[0][f][c], scale, -logarithm[c / 2]));
        tile.keep_before_wait(s, memory);
    };
    auto gradients = [&](int i) {
        warpgroup_fence_operand(dp[0]);
        pipeline.consumer_release(2 * i + 1);
#pragma unroll
        for (int f = 0; f < Tile::FN; ++f)
#pragma unroll
            for (int c = 0; c < 4; ++c) s[0][f][c] *= dp[0][f][c] - delta[c / 2];
    };
    if (count > 0) {
        RowsOfY<T, ALIGNED, DP> rows(tile, y + base * D, at.first, length, width);
#pragma unroll
        for (int h = 0; h < 2; ++h)
            logarithm[h] = logarithms[base + min(at.first + tile.row + h * 8 + tile.g, length - 1)];
        issue_scores(s, memory, 0);
        issue_scores(dp, behind, 1);
        rows.template deltas<BM>(delta, tile, behind);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int number = at.first + tile.row + h * 8 + tile.g;
            if (tile.t == 0 && number < length) deltas[base + number] = delta[h];
        }
        warpgroup_wait<1>();
        exponentials(0);
        warpgroup_wait<0>();
        gradients(0);
        tile.pack_weights(s);
    }
    for (int i = 1; i < count; ++i) {
        issue_scores(s, memory, 2 * i);
        issue_scores(dp, behind, 2 * i + 1);
        issue_sums(i - 1);
        warpgroup_wait<2>();
        exponentials(i);
        warpgroup_wait<1>();
        gradients(i);
        warpgroup_wait<0>();
        warpgroup_fence_operand(tile.acc[0]);
        pipeline.consumer_release(2 * i - 2);
        tile.pack_weights(s);
    }
    if (count > 0) {
        issue_sums(count - 1);
        warpgroup_wait<0>();
        warpgroup_fence_operand(tile.acc[0]);
    }
    asm volatile("bar.sync 1, %0;" ::"n"(BM * 2) : "memory");  // nobody multiplies q any more
    tile.divide_by(root);
    tile.epilogue(dq + base * D, at.first, at.begin, length, width, memory, nullptr);
}

template <typename T, bool ALIGNED, int DP, int BM, int ROWS, int STAGES>
__global__ void __launch_bounds__(BM * 2 + 128, BM == 64 ? 2 : 1)
    token_gradients_warpgroup(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                              const __grid_constant__ TensorMap v, const __grid_constant__ TensorMap dy,
                              const int* __restrict__ n_padd, const float* __restrict__ logarithms,
                              const float* __restrict__ deltas, T* __restrict__ dk, T* __restrict__ dv, long long heads,
                              long long tokens, long long D, float scale, float root) {
    using Tile = WarpgroupAttention<T, DP, BM, ROWS, ALIGNED>;
    using Stages = Pipeline<2 * STAGES, Tile::STAGE>;  // tile n of q is 2 n-th, that of dy 2 n + 1-th; k and v come with the first
    using Statistics = Pipeline<STAGES, ROWS * 8>;     // of two rows each: both logarithms, both deltas
    extern __shared__ __align__(1024) unsigned char memory[];
    unsigned char* values = memory + Tile::Q_BYTES;
    Stages pipeline(values + Tile::Q_BYTES);
    Statistics statistics(values + Tile::Q_BYTES + Stages::BYTES);
    if (threadIdx.x == 0) pipeline.init(1, BM / 16), statistics.init(32, BM / 16);
    __syncthreads();
    wait_for_previous_launch();
    // tiles of the first tokens, which most rows see, begin first
    int width = static_cast<int>(D), length = static_cast<int>(tokens), tiles = (length + BM - 1) / BM;
    long long head = blockIdx.x / tiles, base = head * tokens;
    int first = static_cast<int>(blockIdx.x % tiles) * BM, begin = uniform(min(max(n_padd[head / heads], 0), length));
    int start = max(first, begin), count = first + BM > begin && start < length ? (length - start + ROWS - 1) / ROWS : 0;
    if (threadIdx.x < 128) {
        warpgroup_reg_dealloc<LOADER_REGISTERS>();
        if (threadIdx.x == 0) {
            for (int i = 0; i < 2 * count; ++i) {
                unsigned to = pipeline.producer_acquire_for_tma(i, i < 2 ? Tile::Q_BYTES : 0), barrier = pipeline.full(i);
                if (i == 0) load_panels<DP, BM>(shared_address(memory), k, first, static_cast<int>(head), barrier);
                if (i == 1) load_panels<DP, BM>(shared_address(values), v, first, static_cast<int>(head), barrier);
                load_panels<DP, ROWS>(to, i % 2 ? dy : q, start + i / 2 * ROWS, static_cast<int>(head), barrier);
            }
        } else if (threadIdx.x >= 32 && threadIdx.x < 64) {
            int lane = threadIdx.x % 32;
            for (int n = 0; n < count; ++n) {
                auto to = reinterpret_cast<float4*>(statistics.producer_acquire(n));
                for (int pair = lane; pair < ROWS / 2; pair += 32) {
                    float logarithm[2], delta[2];
#pragma unroll
                    for (int e = 0; e < 2; ++e) {  // behind the sequence weights are exp2(-∞)
                        int i = start + n * ROWS + pair * 2 + e;
                        logarithm[e] = i < length ? logarithms[base + i] : -minus_infinity();
                        delta[e] = i < length ? deltas[base + i] : 0.0f;
                    }
                    to[pair] = make_float4(logarithm[0], logarithm[1], delta[0], delta[1]);
                }
                statistics.producer_commit(n);
            }
        }
        return;
    }
    warpgroup_reg_alloc<GRADIENT_REGISTERS<BM>>();
    Tile of_keys, of_values;
    float s[1][Tile::FN][4], dp[1][Tile::FN][4];
    int own = first + of_keys.warpgroup * 64;           // this warpgroup's first token
    int unseen = own > start ? min((own - start) / ROWS, count) : 0;           // tiles of rows that see none of them
    auto issue_scores = [&](float(&of)[1][Tile::FN][4], const unsigned char* rows, int stage) {
        pipeline.consumer_wait(stage);
        warpgroup_fence_operand(of[0]);
        warpgroup_arrive();
        of_keys.issue_scores(of, rows, pipeline.stage(stage));
        warpgroup_commit();
    };
    auto issue_sums = [&](Tile& tile, int stage) {
        warpgroup_fence_operand(tile.acc[0]);
        warpgroup_arrive();
        tile.issue_values(pipeline.stage(stage));
        warpgroup_commit();
    };
    if (unseen > 0) pipeline.consumer_wait(0), pipeline.consumer_wait(1);  // k and v are there
    for (int n = 0; n < unseen; ++n)
        pipeline.consumer_release(2 * n), pipeline.consumer_release(2 * n + 1), statistics.consumer_release(n);
    for (int n = unseen; n < count; ++n) {
        issue_scores(s, memory, 2 * n);
        issue_scores(dp, values, 2 * n + 1);
        statistics.consumer_wait(n);
        warpgroup_wait<1>();
        warpgroup_fence_operand(s[0]);
        auto of_rows = reinterpret_cast<const float4*>(statistics.stage(n)) + of_keys.t;
        int i0 = start + n * ROWS + 2 * of_keys.t, token = first + of_keys.row + of_keys.g;
#pragma unroll
        for (int f = 0; f < Tile::FN; ++f) {
            float2 logarithm = *reinterpret_cast<const float2*>(of_rows + f * 4);
#pragma unroll
            for (int c = 0; c < 4; ++c)
                s[0][f][c] = exp2_approximate(fmaf(s[0][f][c], scale, -(c % 2 ? logarithm.y : logarithm.x)));
        }
        if (start + n * ROWS < first + of_keys.row + 15) {
#pragma unroll
            for (int f = 0; f < Tile::FN; ++f)
#pragma unroll
                for (int c = 0; c < 4; ++c)
                    if (i0 + f * 8 + c % 2 < token + c / 2 * 8) s[0][f][c] = 0.0f;
        }
        of_values.pack_weights(s);
        issue_sums(of_values, 2 * n + 1);
        warpgroup_wait<1>();
        warpgroup_fence_operand(dp[0]);
#pragma unroll
        for (int f = 0; f < Tile::FN; ++f) {
            float4 row = of_rows[f * 4];
#pragma unroll
            for (int c = 0; c < 4; ++c) dp[0][f][c] = s[0][f][c] * (dp[0][f][c] - (c % 2 ? row.w : row.z));
        }
        statistics.consumer_release(n);
        warpgroup_wait<0>();
        warpgroup_fence_operand(of_values.acc[0]);
        pipeline.consumer_release(2 * n + 1);
        of_keys.pack_weights(dp);
        issue_sums(of_keys, 2 * n);
        warpgroup_wait<0>();
        warpgroup_fence_operand(of_keys.acc[0]);
        pipeline.consumer_release(2 * n);
    }
    asm volatile("bar.sync 1, %0;" ::"n"(BM * 2) : "memory");  // nobody multiplies k, v or stages any more
    of_keys.divide_by(root);
    of_values.divide_by(1.0f);
    of_keys.epilogue(dk + base * D, first, begin, length, width, memory, nullptr);
    of_values.epilogue(dv + base * D, first, begin, length, width, memory + Tile::ROWS_BYTES, nullptr);
}
#endif
