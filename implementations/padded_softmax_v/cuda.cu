// padded_softmax_v: y = softmax(att) v, causal, from token n_padd on; one launch in every variant.
//
//   flash_of_scores   blocks of scores with a running maximum: flash.cuh.
//   whole_row   a block has 16 rows and asks for all that they see of att at once. Each lane finds what it asked for in shared
//               memory, takes the maximum of the whole row, and then streams v. Nothing is ever rescaled.
//   cluster     flash_of_scores by the blocks of a thread-block cluster, for the same rows: each has every so-many-th tile of tokens, and
//               their maxima, sums and outputs are put together through distributed shared memory. So a few rows keep all
//               multiprocessors busy, and more rows share what is read of v. Compute capability 9.0.
//
// att is read once. A lane's vectors are the columns of its fragments in another order; v is put into the same order on its
// way to shared memory (place_of_token). Tiles of tokens begin at the last whole vector before n_padd; scores that are hidden are
// replaced by -inf, whatever they are, and vectors that are hidden altogether are not read. Long rows begin first.
// Rows of v are `pitch` elements apart. ALIGNED: rows of v begin at multiples of 16 bytes and hold whole vectors. WHOLE: so do
// those of att. More than 128 columns are shared out to blocks beside one another, which read the same rows of att, the second time
// from the L2 cache.
#include "_shared/cuda/flash_cluster.cuh"

template <typename T, bool IEEE, bool ALIGNED, int DP, bool WHOLE, int WN, int KEYS, int STAGES>
__global__ void __launch_bounds__(WN * 32, 1)
    whole_row(const T* __restrict__ att, const T* __restrict__ v, const int* __restrict__ n_padd, T* __restrict__ y,
              long long tokens, long long D, long long pitch) {
    using Tile = Attention<T, IEEE, ALIGNED, DP, 1, 1, WN, KEYS>;
    using Part = ScoreVectors<T, KEYS>;
    constexpr int BN = Tile::BN, STAGE = Tile::TOKENS_BYTES, ALL = STAGES * STAGE;
    constexpr int AFTER = ALL > Tile::MERGE_BYTES ? ALL : Tile::MERGE_BYTES;
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ float maxima[WN][16];
    unsigned char* stages = memory + Tile::ROWS_BYTES;
    float* weights = reinterpret_cast<float*>(stages + AFTER);
    // (count, warps, groups, 2, lanes): all scores, as they were read. If they are no WHOLE vectors, those that cover them, and a group
    // behind the last
    int warp = threadIdx.x / 32;
    Vector<T>* kept = reinterpret_cast<Vector<T>*>(stages + AFTER + Tile::WEIGHTS_BYTES) + warp * Part::GROUPS * 64 + threadIdx.x % 32;

    Tile tile;
    Columns<DP> columns(blockIdx.x, gridDim.x, D);
    ScoreTile<T> at(columns.block, columns.blocks, 16, n_padd, static_cast<int>(tokens));
    CoveredScores<T> rows(att, at.first + tile.g, at.begin, tokens);
    int count = at.count(BN), row = at.first + tile.g, own = at.start + tile.key + tile.t * Part::SIZE;
    const T* from = att + row * tokens;
    auto place = [&](int i, int group, int h) { return kept + ((i * WN * Part::GROUPS + group) * 2 + h) * 32; };
    auto load = [&](int i, int stage) {
        load_rows<T, ALIGNED, DP, BN, Tile::THREADS, true>(stages + stage * STAGE, v + columns.first, pitch, at.start + i * BN, at.begin,
                                                            at.end, columns.count);
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
                else rows.copy(shared_address(place(i, group, h)), h, j + group * 4 * Part::SIZE);
            }
    }
    if constexpr (!WHOLE)
        if (warp == 0)
#pragma unroll
            for (int h = 0; h < 2; ++h) rows.copy(shared_address(place(count, 0, h)), h, own + count * BN);
    copy_commit();
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < count) load(i, i);
        copy_commit();
    }
    copy_wait<STAGES - 1>();  // a lane reads what it copied itself: no barrier
    if constexpr (!WHOLE) __syncthreads();  // or also what its neighbour did
    float s[1][KEYS / 8][4];
    auto scores = [&](int i) {  // whether the warp sees anything of tile i; then s are its scores
        int j = at.start + i * BN + tile.key;
        if (j >= at.first + 16) return false;
        Part part;
#pragma unroll
        for (int group = 0; group < Part::GROUPS; ++group)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const Vector<T>* first = place(i, group, h);
                if constexpr (WHOLE) part.at[group][h] = *first;
                else part.at[group][h] = shifted(*first, first[tile.t < 3 ? 1 : 64 - 3], rows.shift);
            }
        part.unpack(s);
        if (j + KEYS > at.first + 1 || j < at.begin)
            tile.mask(s, at.first, at.begin, [&](int f, int c) { return Part::token(own + i * BN, f, c); });
        return true;
    };
    for (int i = 0; i < count; ++i)
        if (scores(i)) tile.update_maximum(s, LOG2_E);
    tile.share_maximum(maxima);
    int stage = 0, next = STAGES - 1;
    for (int i = 0; i < count; ++i) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (i + STAGES - 1 < count) load(i + STAGES - 1, next);
        copy_commit();
        const unsigned char* now = stages + stage * STAGE;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
        if (!scores(i)) continue;
        tile.exponentials(s, LOG2_E);
        tile.multiply_values(s, now, weights);
    }
    copy_wait<0>();
    __syncthreads();
    tile.epilogue(y + columns.first, at.first, at.begin, static_cast<int>(tokens), static_cast<int>(D), memory, stages, nullptr,
                  columns.count);
}

#if __CUDA_ARCH__ >= 900
// 128 registers a thread, twice as many for the sums of wide rows where weights pass through shared memory.
__device__ constexpr int cluster_blocks(int warps, bool wide) { return warps < (wide ? 8 : 16) ? (wide ? 8 : 16) / warps : 1; }

template <typename T, bool IEEE, bool ALIGNED, int DP, bool WHOLE, int CLUSTER, int WM, int WN, int KEYS, int STAGES>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(WM* WN * 32, cluster_blocks(WM* WN, IEEE && DP > 64))
    cluster(const T* __restrict__ att, const T* __restrict__ v, const int* __restrict__ n_padd, T* __restrict__ y, long long tokens,
            long long D, long long pitch) {
    using Tile = Attention<T, IEEE, ALIGNED, DP, 1, WM, WN, KEYS>;
    constexpr int SIZE = Vector<T>::SIZE, THREADS = Tile::THREADS, BM = Tile::BM, BN = Tile::BN;
    constexpr int STAGE = Tile::TOKENS_BYTES, ALL = STAGES * STAGE, MERGE = CLUSTER_MERGE<Tile, WN>;
    extern __shared__ __align__(128) unsigned char memory[];
    unsigned char* stages = memory + Tile::ROWS_BYTES;
    float* weights = reinterpret_cast<float*>(stages + (ALL > MERGE ? ALL : MERGE));

    Tile tile;
    int rank = static_cast<int>(cluster_rank());
    Columns<DP> own(blockIdx.x / CLUSTER, gridDim.x / CLUSTER, D);
    ScoreTile<T> at(own.block, own.blocks, BM, n_padd, static_cast<int>(tokens));
    v += own.first;

    // Where a pass of all threads is 2^n rows of v, what a row of it and the pass are placed at add up, and little is left to compute.
    constexpr int CHUNKS = DP / SIZE, PASS = THREADS / CHUNKS;
    constexpr bool POWERS = (CHUNKS & (CHUNKS - 1)) == 0 && (THREADS & (THREADS - 1)) == 0;
    int in_pass = static_cast<int>(threadIdx.x) / CHUNKS, chunk = static_cast<int>(threadIdx.x) % CHUNKS, apart = static_cast<int>(pitch);
    int columns = chunk * SIZE < own.count ? at.end - at.begin : 0;  // if any: tokens of which the thread copies a chunk
    unsigned place = shared_address(stages) + place_of_token<T>(in_pass) * Tile::PITCH + chunk * 16;
    auto load = [&](int i, int stage) {
        if constexpr (ALIGNED && POWERS) {
            int number = at.start + i * BN + in_pass;
            const T* p = v + number * pitch + chunk * SIZE;
#pragma unroll
            for (int k = 0; k < BN; k += PASS)
                if (BN % PASS == 0 || in_pass + k < BN)
                    copy_async(place + stage * STAGE + place_of_token<T>(k) * Tile::PITCH, p + k * apart,
                               static_cast<unsigned>(number + k - at.begin) < static_cast<unsigned>(columns));
        } else {
            load_rows<T, ALIGNED, DP, BN, THREADS, true>(stages + stage * STAGE, v, pitch, at.start + i * BN, at.begin, at.end,
                                                         own.count);
        }
    };
    scores_mainloop<WHOLE, false, KEYS, STAGES, CLUSTER>(tile, at, att, tokens, rank, stages, weights, load);

    cluster_epilogue<CLUSTER, DP, WN, KEYS>(tile, y + own.first, at.first, at.begin, static_cast<int>(tokens), static_cast<int>(D), memory, stages,
                                            own.count);
}
#endif
