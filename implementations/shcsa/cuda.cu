// shcsa: what its variants launch, flash and flash_of_scores of flash.cuh among it.
//
//   dense_tensor, dense_simt   qkv (T, 3 D) = x @ W + b on matmul_mma.cuh, on the tensor cores or, in IEEE float32, without them. The
//                              kernels behind it take q, k and v where they lie, with rows 3 D apart.
//   dense_simt_split           dense_simt, where the blocks of a cluster share the K of a tile.
//   dense_warpgroup            the same on Hopper: qkv has few tiles, so blocks share the K of one (hopper/matmul_split.cuh).
//   whole_rows                 x in rows of whole vectors, before a Dense kernel that wants such (matmul_mma.cuh).
//   flash_cluster              flash by the blocks of a cluster, which share the tokens of a tile of rows (flash_cluster.cuh).
//   flash_warpgroup            flash on Hopper: few tiles of rows, so blocks share the tokens of one (hopper/flash_split.cuh).
//   scores                     att (T, T) = q kᵀ / √D in the storage dtype, a tile of 64 × 64 a block. MASKED: -inf where
//                              hidden; else tiles above the diagonal are left alone.
//   softmax                    a row of att a block. MASKED: of what is visible, 0 elsewhere; else of the whole row. V vectors
//                              of 16 bytes a thread are held in registers, or, with V = 0, read twice.
//
// ALIGNED: rows of q and k begin at multiples of 16 bytes and hold whole vectors. WHOLE: so do those of att.
#include "_shared/cuda/flash_cluster.cuh"
#include "_shared/cuda/hopper/flash_split.cuh"
#include "_shared/cuda/hopper/matmul_split.cuh"
#include "_shared/cuda/matmul_simt.cuh"

template <typename T>
struct Bias : Epilogue {
    const T* __restrict__ b;

    __device__ __forceinline__ explicit Bias(const T* b) : b(b) {}
    __device__ __forceinline__ float column(long long n) const { return to_float(b[n]); }
    __device__ __forceinline__ float operator()(None, float bias, const float (&v)[1]) const { return v[0] + bias; }
};

template <typename T, bool ALIGNED, bool NK, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    dense_tensor(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ b, T* __restrict__ y, long long M,
                 long long K, long long N) {
    matmul_mma<T, ALIGNED, NK, BM, BN, WM, WN, STAGES, 1>(x, W, y, M, K, N, Bias<T>(b));
}

template <bool ALIGNED, bool NK, int BM, int BN>
__global__ void __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    dense_simt(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ b, float* __restrict__ y,
               long long M, long long K, long long N) {
    matmul_simt<ALIGNED, NK, BM, BN, 1>(x, W, y, M, K, N, Bias<float>(b));
}

#if __CUDA_ARCH__ >= 900
template <bool ALIGNED, bool NK, int BM, int BN, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(SIMT_THREADS<BM, BN>, SIMT_BLOCKS<BM, BN, ALIGNED>)
    dense_simt_split(const float* __restrict__ x, const float* __restrict__ W, const float* __restrict__ b, float* __restrict__ y,
                     long long M, long long K, long long N) {
    matmul_simt<ALIGNED, NK, BM, BN, 1, false, SPLIT>(x, W, y, M, K, N, Bias<float>(b));
}

template <typename T, bool NK, int BM, int BN, int STAGES, int SPLIT>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    dense_warpgroup(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W, const T* __restrict__ b,
                    T* __restrict__ y, long long M, long long K, long long N) {
    matmul_split<T, NK, BM, BN, STAGES, SPLIT, 1, false, false>(x, W, y, M, K, N, Bias<T>(b));
}

// q, k and v are parts of DP columns, in this order, of rows that lie as the Dense layer leaves them: of_rows is their tensor map in boxes of BM
// rows, of_tokens in boxes of KEYS, 64 columns each.
template <int DP, int BM, int KEYS>
struct SideBySide {
    const TensorMap &of_rows, &of_tokens;

    __device__ __forceinline__ void prefetch() const { ::prefetch(of_rows), ::prefetch(of_tokens); }
    __device__ __forceinline__ void rows(unsigned to, int first, unsigned barrier) const {
#pragma unroll
        for (int d = 0; d < DP; d += 64) tma_load(to + d * (BM * 2), of_rows, d, first, barrier);
    }
    __device__ __forceinline__ void tokens(unsigned to, int values, int first, unsigned barrier) const {
#pragma unroll
        for (int d = 0; d < DP; d += 64) tma_load(to + d * (KEYS * 2), of_tokens, (1 + values) * DP + d, first, barrier);
    }
};

template <typename T, int DP, int BM, int KEYS, int STAGES, int SPLIT, int COLUMNS>
__global__ void __cluster_dims__(SPLIT, 1, 1) __launch_bounds__(BM * 2 + 128, ATTENTION_BLOCKS<DP, BM>)
    flash_warpgroup(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap kv, const int* __restrict__ n_padd,
                    T* __restrict__ y, long long tokens, float scale) {
    int first = (static_cast<int>(gridDim.x) - 1 - static_cast<int>(blockIdx.x)) / SPLIT * BM;  // long rows begin first
    SideBySide<DP, BM, KEYS> source{q, kv};
    flash_split_tile<T, DP, BM, KEYS, STAGES, SPLIT, COLUMNS>(source, first, n_padd, y, static_cast<int>(tokens), scale);
}
#endif

template <typename T, bool IEEE, bool ALIGNED, int DP, bool WHOLE, bool MASKED>
__global__ void __launch_bounds__(256)
    scores(const T* __restrict__ q, const T* __restrict__ k, const int* __restrict__ n_padd, T* __restrict__ att,
           long long tokens, long long D, long long pitch, float scale) {
    wait_for_previous_launch();
    using Tile = Attention<T, IEEE, ALIGNED, DP, 1, 4, 2, 32>;
    constexpr int BLOCK = 64, SIZE = Vector<T>::SIZE, OUT = BLOCK + 8;
    static_assert(Tile::BM == BLOCK && Tile::BN == BLOCK, "square");
    extern __shared__ __align__(128) unsigned char memory[];
    T* out = reinterpret_cast<T*>(memory + Tile::ROWS_BYTES + Tile::TOKENS_BYTES);
    int count = static_cast<int>(tokens), tiles = (count + BLOCK - 1) / BLOCK;
    int row = static_cast<int>(blockIdx.x / tiles) * BLOCK, column = static_cast<int>(blockIdx.x % tiles) * BLOCK;
    if (!MASKED && column > row) return;
    Tile tile;
    float s[1][Tile::FN][4] = {};
    if (column <= row) {
        load_rows<T, ALIGNED, DP, BLOCK, 256>(memory, q, pitch, row, 0, count, static_cast<int>(D));
        load_rows<T, ALIGNED, DP, BLOCK, 256>(memory + Tile::ROWS_BYTES, k, pitch, column, 0, count, static_cast<int>(D));
        copy_commit();
        copy_wait<0>();
        __syncthreads();
        tile.multiply(s, memory, memory + Tile::ROWS_BYTES);
    }
    if constexpr (MASKED)
        tile.mask(s, row, *n_padd, [&](int f, int c) { return column + tile.key + f * 8 + 2 * tile.t + c % 2; });
#pragma unroll
    for (int f = 0; f < Tile::FN; ++f)
#pragma unroll
        for (int c = 0; c < 4; ++c)
            out[(tile.row + c / 2 * 8 + tile.g) * OUT + tile.key + f * 8 + 2 * tile.t + c % 2] =
                from_float<T>(s[0][f][c] * scale);
    __syncthreads();
    for (int i = threadIdx.x; i < BLOCK * BLOCK / SIZE; i += 256) {
        int r = i / (BLOCK / SIZE), c = i % (BLOCK / SIZE) * SIZE;
        if (row + r >= count) continue;
        auto part = *reinterpret_cast<const Vector<T>*>(out + r * OUT + c);
        store_part<WHOLE>(att + (row + r) * tokens + column + c, part, count - column - c);
    }
}

template <typename T, bool WHOLE, bool MASKED, int V>
__global__ void __launch_bounds__(128)
    softmax(const T* __restrict__ att, const int* __restrict__ n_padd, T* __restrict__ y, long long tokens) {
    wait_for_previous_launch();
    int count = static_cast<int>(tokens), i = count - 1 - static_cast<int>(blockIdx.x);
    int first = MASKED ? min(max(*n_padd, 0), count) : 0;
    Row<T, WHOLE, MASKED> row(att, y, i, count, first, MASKED ? i + 1 : count);
    if constexpr (V > 0) {
        __shared__ float parts[8];
        softmax_on_chip<128, V>(row, true, parts);
    } else {
        __shared__ float2 parts[4];
        softmax_re_read<128>(row, parts);
    }
}
