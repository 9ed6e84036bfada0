// padded_attention: y = softmax(q kᵀ / √D) v, causal, from token n_padd on; one launch in either variant, or two.
//
//   flash       tiles of tokens with a running maximum: flash.cuh.
//   flash_warpgroup   the same on Hopper: hopper/flash.cuh.
//   flash_cluster, flash_split    the same of few heads of few rows: the blocks of a cluster share the tokens of a tile of rows (flash_cluster.cuh, and
//               by warpgroups hopper/flash_split.cuh).
//   whole_rows  before it, q, k and v in rows of whole vectors, which the copy engine wants; of backward modes dy.
//   whole_row   a block has 16 rows. It goes through k once and keeps all scores in shared memory, each where the lane that
//               summed it will read it; then, with the maximum of the whole row, through v. Nothing is ever rescaled.
//
// Tiles of tokens begin at n_padd, so that padding is never read and only tiles on the diagonal are masked; a warp leaves out
// tiles that none of its rows sees. Long rows, the last ones of a head, begin first. Rows are `pitch` elements apart in q, k and
// v, D in y. ALIGNED promises that rows begin at multiples of 16 bytes and hold whole vectors,
// in flash_warpgroup those of y.
#include "_shared/cuda/flash_cluster.cuh"
#include "_shared/cuda/hopper/flash_split.cuh"

#if __CUDA_ARCH__ >= 900
template <typename T, bool ALIGNED, int DP, int BM, int KEYS, int STAGES>
__global__ void __launch_bounds__(BM * 2 + 128, ATTENTION_BLOCKS<DP, BM>)
    flash_warpgroup(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                    const __grid_constant__ TensorMap v, const int* __restrict__ n_padd, T* __restrict__ y, long long heads,
                    long long tokens, long long D, long long, float scale) {
    flash_warpgroup_tile<T, DP, BM, KEYS, STAGES, ALIGNED>(q, k, v, n_padd, y, nullptr, heads, tokens, D, scale);
}

// q, k and v of a head.
template <int DP, int BM, int KEYS>
struct OfHead {
    const TensorMap &q, &k, &v;
    int head;

    __device__ __forceinline__ void prefetch() const { ::prefetch(q), ::prefetch(k), ::prefetch(v); }
    __device__ __forceinline__ void rows(unsigned to, int first, unsigned barrier) const { load_panels<DP, BM>(to, q, first, head, barrier); }
    __device__ __forceinline__ void tokens(unsigned to, int values, int first, unsigned barrier) const {
        load_panels<DP, KEYS>(to, values ? v : k, first, head, barrier);
    }
};

template <typename T, int DP, int BM, int KEYS, int STAGES, int SPLIT, int COLUMNS>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(BM * 2 + 128, ATTENTION_BLOCKS<DP, BM>)
    flash_split(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                const int* __restrict__ n_padd, T* __restrict__ y, long long heads, long long tokens, long long, long long, float scale) {
    int tiles = (static_cast<int>(tokens) + BM - 1) / BM, number = static_cast<int>(blockIdx.x) / SPLIT, head = number / tiles;
    int first = (tiles - 1 - number % tiles) * BM;  // long rows begin first
    OfHead<DP, BM, KEYS> source{q, k, v, head};
    flash_split_tile<T, DP, BM, KEYS, STAGES, SPLIT, COLUMNS>(source, first, n_padd + head / heads, y + head * tokens * COLUMNS,
                                                             static_cast<int>(tokens), scale);
}
#endif

// `rows` rows of D elements of q, k and v, or of the first COUNT of them, to such of PITCH, with zeros behind D. A block has one of these, EACH
// vectors a thread.
template <typename T, int COUNT, int PITCH, int EACH>
__global__ void __launch_bounds__(256)
    whole_rows(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, T* __restrict__ whole_q,
               T* __restrict__ whole_k, T* __restrict__ whole_v, long long rows, long long D) {
    wait_for_previous_launch();
    constexpr int SIZE = Vector<T>::SIZE, VECTORS = PITCH / SIZE;
    static_assert(PITCH % SIZE == 0, "whole vectors");
    unsigned which = blockIdx.x % COUNT;
    const T* from = which == 0 ? q : which == 1 ? k : v;
    auto* to = reinterpret_cast<Vector<T>*>(which == 0 ? whole_q : which == 1 ? whole_k : whole_v);
    long long first = blockIdx.x / COUNT * (EACH * 256LL), first_row = first / VECTORS;  // what is left to divide has 32 bits
    int before = static_cast<int>(first % VECTORS);
    Vector<T> found[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        int i = before + e * 256 + threadIdx.x, d = i % VECTORS * SIZE;
        long long row = first_row + i / VECTORS;
        int count = row < rows ? min(static_cast<int>(D) - d, SIZE) : 0;
        found[e] = {};
        if (count > 0) found[e] = load_covered(from + row * D + d, count, from, from + rows * D);
    }
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        long long i = first + e * 256 + threadIdx.x;
        if (i < rows * VECTORS) store_vector(reinterpret_cast<T*>(to + i), found[e]);
    }
}

template <typename T, bool IEEE, bool ALIGNED, int DP, int WN, int KEYS, int STAGES>
__global__ void __launch_bounds__(WN * 32, 1)
    whole_row(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const int* __restrict__ n_padd,
              T* __restrict__ y, long long heads, long long tokens, long long D, long long pitch, float scale) {
    using Tile = Attention<T, IEEE, ALIGNED, DP, 1, 1, WN, KEYS>;
    constexpr int BN = Tile::BN, FN = Tile::FN, STAGE = Tile::TOKENS_BYTES, ALL = STAGES * STAGE;
    constexpr int AFTER = ALL > Tile::MERGE_BYTES ? ALL : Tile::MERGE_BYTES;
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ float maxima[WN][16];
    unsigned char* stages = memory + Tile::ROWS_BYTES;
    float* weights = reinterpret_cast<float*>(stages + AFTER);
    // (count, warps, fragments, lanes): all scores
    float4* kept = reinterpret_cast<float4*>(stages + AFTER + Tile::WEIGHTS_BYTES) + threadIdx.x / 32 * FN * 32 + threadIdx.x % 32;

    QueryTile at(16, n_padd, heads, static_cast<int>(tokens));
    k += at.head * tokens * pitch;
    v += at.head * tokens * pitch;
    int count = at.count(BN);
    auto load = [&](int i, int stage) {  // first all tiles of k, then all of v
        load_rows<T, ALIGNED, DP, BN, Tile::THREADS>(stages + stage * STAGE, i < count ? k : v, pitch,
                                                      at.begin + (i < count ? i : i - count) * BN, 0, at.end,
                                                      static_cast<int>(D));
    };
    load_rows<T, ALIGNED, DP, 16, Tile::THREADS>(memory, q + at.head * tokens * pitch, pitch, at.first, at.begin, at.end,
                                                  static_cast<int>(D));
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < 2 * count) load(i, i);
        copy_commit();
    }

    Tile tile;
    int stage = 0, next = STAGES - 1;
    auto advance = [&](int i) {  // waits for tile i, and asks for one that takes the place of the last
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (i + STAGES - 1 < 2 * count) load(i + STAGES - 1, next);
        copy_commit();
        const unsigned char* now = stages + stage * STAGE;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
        return now;
    };
    float s[1][FN][4];
    for (int i = 0; i < count; ++i) {
        const unsigned char* now = advance(i);
        int j = at.begin + i * BN + tile.key;
        if (j >= at.first + 16) continue;
        tile.multiply(s, memory, now);
        if (j + KEYS > at.first + 1)
            tile.mask(s, at.first, at.begin, [&](int f, int c) { return j + f * 8 + 2 * tile.t + c % 2; });
        tile.update_maximum(s, scale);
#pragma unroll
        for (int f = 0; f < FN; ++f)
            kept[(i * WN * FN + f) * 32] = make_float4(s[0][f][0], s[0][f][1], s[0][f][2], s[0][f][3]);
    }
    tile.share_maximum(maxima);
    for (int i = 0; i < count; ++i) {
        const unsigned char* now = advance(count + i);
        if (at.begin + i * BN + tile.key >= at.first + 16) continue;
#pragma unroll
        for (int f = 0; f < FN; ++f) {
            float4 four = kept[(i * WN * FN + f) * 32];
            s[0][f][0] = four.x, s[0][f][1] = four.y, s[0][f][2] = four.z, s[0][f][3] = four.w;
        }
        tile.exponentials(s, scale);
        tile.multiply_values(s, now, weights);
    }
    copy_wait<0>();
    __syncthreads();
    tile.epilogue(y + at.head * tokens * D, at.first, at.begin, static_cast<int>(tokens), static_cast<int>(D), memory, stages);
}
