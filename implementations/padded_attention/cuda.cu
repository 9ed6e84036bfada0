// padded_attention: y = softmax(q kᵀ / √D) v, causal, from token n_padd on; one launch in either variant. _attention.cuh has the
// pieces.
//
//   flash       a block has a tile of rows of one head and goes through the tokens that they see, k and v together, with a
//               running maximum and sum for each row. STAGES tiles of tokens are in shared memory or on their way.
//   flash_warpgroup   the same on Hopper: one thread has the tokens brought, and warpgroups have 64 rows each. Boxes are whole: what
//               they have of padding in q and of tokens behind the tile is hidden. q, k and v are contiguous.
//   whole_row   a block has 16 rows. It goes through k once and keeps all scores in shared memory, each where the lane that
//               summed it will read it; then, with the maximum of the whole row, through v. Nothing is ever rescaled.
//
// Tiles of tokens begin at n_padd, so that padding is never read and only tiles on the diagonal are masked; a warp leaves out
// tiles that none of its rows sees. Long rows, the last ones of a head, begin first. Rows are `pitch` elements apart in q, k and
// v, D in y. ALIGNED promises that rows begin at multiples of 16 bytes and hold whole vectors.
#include "_warpgroup_attention.cuh"

// Which head and which rows a block has, and what they see.
struct Place {
    long long head;
    int first, begin, end;

    __device__ __forceinline__ Place(int BM, const int* n_padd, long long heads, int tokens) {
        int tiles = (tokens + BM - 1) / BM;
        head = blockIdx.x / tiles;
        first = (tiles - 1 - static_cast<int>(blockIdx.x % tiles)) * BM;
        begin = min(max(n_padd[head / heads], 0), tokens);
        end = min(first + BM, tokens);
    }
    __device__ __forceinline__ int count(int BN) const { return end > begin ? (end - begin + BN - 1) / BN : 0; }
};

template <typename T, bool IEEE, bool ALIGNED, int DP, int FM, int WM, int WN, int KEYS, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    flash(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const int* __restrict__ n_padd,
          T* __restrict__ y, long long heads, long long tokens, long long D, long long pitch, float scale) {
    using Tile = Attention<T, IEEE, ALIGNED, DP, FM, WM, WN, KEYS>;
    constexpr int BN = Tile::BN, STAGE = 2 * Tile::TOKENS_BYTES, RING = STAGES * STAGE;
    extern __shared__ __align__(128) unsigned char memory[];
    unsigned char* ring = memory + Tile::ROWS_BYTES;
    float* weights = reinterpret_cast<float*>(ring + (RING > Tile::MERGE_BYTES ? RING : Tile::MERGE_BYTES));

    Place at(Tile::BM, n_padd, heads, static_cast<int>(tokens));
    k += at.head * tokens * pitch;
    v += at.head * tokens * pitch;
    int count = at.count(BN);
    auto request = [&](int tile, int stage) {
        unsigned char* to = ring + stage * STAGE;
        int from = at.begin + tile * BN;
        bring_rows<T, ALIGNED, DP, BN, Tile::THREADS>(to, k, pitch, from, 0, at.end, static_cast<int>(D));
        bring_rows<T, ALIGNED, DP, BN, Tile::THREADS>(to + STAGE / 2, v, pitch, from, 0, at.end, static_cast<int>(D));
    };
    bring_rows<T, ALIGNED, DP, Tile::BM, Tile::THREADS>(memory, q + at.head * tokens * pitch, pitch, at.first, at.begin, at.end,
                                                        static_cast<int>(D));
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < count) request(i, i);
        copy_commit();
    }

    Tile tile;
    int stage = 0, next = STAGES - 1;
    for (int i = 0; i < count; ++i) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (i + STAGES - 1 < count) request(i + STAGES - 1, next);
        copy_commit();
        const unsigned char* now = ring + stage * STAGE;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
        int j = at.begin + i * BN + tile.key, first_row = at.first + tile.row;
        if (j >= first_row + FM * 16) continue;
        float s[FM][KEYS / 8][4];
        tile.multiply(s, memory, now);
        if (j + KEYS > first_row + 1)
            tile.hide(s, at.first, at.begin, [&](int f, int c) { return j + f * 8 + 2 * tile.t + c % 2; });
        tile.raise_and_rescale(s, scale);
        tile.exponentials(s, scale);
        tile.weigh(s, now + STAGE / 2, weights);
    }
    copy_wait<0>();
    __syncthreads();
    tile.finish(y + at.head * tokens * D, at.first, at.begin, static_cast<int>(tokens), static_cast<int>(D), memory, ring);
}

#if __CUDA_ARCH__ >= 900
template <typename T, int DP, int BM, int KEYS, int STAGES>
__global__ void __launch_bounds__(BM * 2 + 128, 1)
    flash_warpgroup(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                    const __grid_constant__ TensorMap v, const int* __restrict__ n_padd, T* __restrict__ y, long long heads,
                    long long tokens, long long D, long long, float scale) {
    using Tile = WarpgroupAttention<T, DP, BM, KEYS>;
    using Slabs = Ring<2 * STAGES, Tile::TOKENS>;  // tile i of k is slab 2 i, that of v slab 2 i + 1; q comes with slab 0
    static_assert(KEYS >= 64, "warpgroups differ by one tile of tokens at most, whose slabs nobody waits for");
    extern __shared__ __align__(1024) unsigned char memory[];
    Slabs ring(memory + Tile::ROWS_OF_Q);
    if (threadIdx.x == 0) ring.init(1, BM / 16);
    __syncthreads();
    Place at(BM, n_padd, heads, static_cast<int>(tokens));
    if (threadIdx.x < 128) {
        give_registers<BRINGING>();
        int head = static_cast<int>(at.head), slabs = threadIdx.x == 0 ? 2 * at.count(KEYS) : 0;
        for (int i = 0; i < slabs; ++i) {
            unsigned to = ring.expect(i, i == 0 ? Tile::ROWS_OF_Q : 0), barrier = ring.full(i);
            if (i == 0) copy_panels<DP, BM>(shared_address(memory), q, at.first, head, barrier);
            copy_panels<DP, KEYS>(to, i % 2 ? v : k, at.begin + i / 2 * KEYS, head, barrier);
        }
        return;
    }
    take_registers<MULTIPLYING<BM / 64>>();
    Tile tile;
    float s[1][Tile::FN][4], by[2];
    int last = min(at.first + (static_cast<int>(threadIdx.x) / 128) * 64, at.end);  // behind this warpgroup's rows
    int count = last > at.begin ? (last - at.begin + KEYS - 1) / KEYS : 0;
    auto soften = [&](int i) {
        int j = at.begin + i * KEYS;
        if (j + KEYS > at.first + tile.row + 1)
            tile.hide(s, at.first, at.begin, [&](int f, int c) { return j + f * 8 + 2 * tile.t + c % 2; });
        tile.soften(s, scale, by);
    };
    auto begin_weighing = [&](int i) {
        ring.await(2 * i + 1);
        hold(tile.acc[0]);
        products_begin();
        tile.begin_weighing(ring.slab(2 * i + 1));
        products_commit();
    };
    for (int i = 0; i < count; ++i) {
        ring.await(2 * i);
        hold(s[0]);
        products_begin();
        tile.begin_scores(s, memory, ring.slab(2 * i));
        products_commit();
        if (i > 0) {
            begin_weighing(i - 1);
            products_wait<1>();
        } else {
            products_wait<0>();
        }
        hold(s[0]);
        ring.release(2 * i);
        soften(i);
        products_wait<0>();
        hold(tile.acc[0]);
        if (i > 0) ring.release(2 * i - 1);
        tile.rescale(by);
        tile.keep(s);
    }
    if (count > 0) {
        begin_weighing(count - 1);
        products_wait<0>();
        hold(tile.acc[0]);
    }
    asm volatile("bar.sync 1, %0;" ::"n"(BM * 2) : "memory");  // nobody multiplies q any more
    tile.finish(y + at.head * tokens * D, at.first, at.begin, static_cast<int>(tokens), static_cast<int>(D), memory,
                memory);
}
#endif

template <typename T, bool IEEE, bool ALIGNED, int DP, int WN, int KEYS, int STAGES>
__global__ void __launch_bounds__(WN * 32, 1)
    whole_row(const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const int* __restrict__ n_padd,
              T* __restrict__ y, long long heads, long long tokens, long long D, long long pitch, float scale) {
    using Tile = Attention<T, IEEE, ALIGNED, DP, 1, 1, WN, KEYS>;
    constexpr int BN = Tile::BN, FN = Tile::FN, STAGE = Tile::TOKENS_BYTES, RING = STAGES * STAGE;
    constexpr int AFTER = RING > Tile::MERGE_BYTES ? RING : Tile::MERGE_BYTES;
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ float maxima[WN][16];
    unsigned char* ring = memory + Tile::ROWS_BYTES;
    float* weights = reinterpret_cast<float*>(ring + AFTER);
    // (count, warps, fragments, lanes): all scores
    float4* kept = reinterpret_cast<float4*>(ring + AFTER + Tile::WEIGHTS_BYTES) + threadIdx.x / 32 * FN * 32 + threadIdx.x % 32;

    Place at(16, n_padd, heads, static_cast<int>(tokens));
    k += at.head * tokens * pitch;
    v += at.head * tokens * pitch;
    int count = at.count(BN);
    auto request = [&](int i, int stage) {  // first all tiles of k, then all of v
        bring_rows<T, ALIGNED, DP, BN, Tile::THREADS>(ring + stage * STAGE, i < count ? k : v, pitch,
                                                      at.begin + (i < count ? i : i - count) * BN, 0, at.end,
                                                      static_cast<int>(D));
    };
    bring_rows<T, ALIGNED, DP, 16, Tile::THREADS>(memory, q + at.head * tokens * pitch, pitch, at.first, at.begin, at.end,
                                                  static_cast<int>(D));
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < 2 * count) request(i, i);
        copy_commit();
    }

    Tile tile;
    int stage = 0, next = STAGES - 1;
    auto advance = [&](int i) {  // waits for tile i, and asks for one that takes the place of the last
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (i + STAGES - 1 < 2 * count) request(i + STAGES - 1, next);
        copy_commit();
        const unsigned char* now = ring + stage * STAGE;
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
            tile.hide(s, at.first, at.begin, [&](int f, int c) { return j + f * 8 + 2 * tile.t + c % 2; });
        tile.raise(s, scale);
#pragma unroll
        for (int f = 0; f < FN; ++f)
            kept[(i * WN * FN + f) * 32] = make_float4(s[0][f][0], s[0][f][1], s[0][f][2], s[0][f][3]);
    }
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
    for (int i = 0; i < count; ++i) {
        const unsigned char* now = advance(count + i);
        if (at.begin + i * BN + tile.key >= at.first + 16) continue;
#pragma unroll
        for (int f = 0; f < FN; ++f) {
            float4 four = kept[(i * WN * FN + f) * 32];
            s[0][f][0] = four.x, s[0][f][1] = four.y, s[0][f][2] = four.z, s[0][f][3] = four.w;
        }
        tile.exponentials(s, scale);
        tile.weigh(s, now, weights);
    }
    copy_wait<0>();
    __syncthreads();
    tile.finish(y + at.head * tokens * D, at.first, at.begin, static_cast<int>(tokens), static_cast<int>(D), memory, ring);
}
