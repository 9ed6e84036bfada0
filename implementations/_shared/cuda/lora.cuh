// A linear layer with a low-rank adapter: y = act(x @ W + b + scale * (x @ A) @ B).
//
//   fused    one launch. While slabs of x and W pass through shared memory and are multiplied into a tile of y, the same slab
//            of x is multiplied by one of A, RB columns wide, into a second tile of sums. At the end that tile, scaled, goes
//            to shared memory as one more slab of x, with B's rows as one more slab of W: the adapter ends up in the same
//            sums, and y is written once. B is on its way before the last slabs of W are multiplied.
//   down     x @ A alone: the first launch of two_launches. Where it has few rows, the blocks of a cluster share K (down_by_parts). It reads
//            all of x, so that it also copies rows that are no whole vectors for the copy engine.
//   up       the second: as `fused`, but its last slab of x is what `down` made, which is all that it waits for. Of few rows, up_few_rows
//            (adapted_few_rows.cuh); of others in IEEE float32 up_simt (adapted_simt.cuh); on Hopper, up_warpgroup (hopper/adapted.cuh), up_turned (hopper/adapted_turned.cuh) in tiles of any
//            multiple of 16 rows, and, where y has few tiles, up_split (hopper/adapted_split.cuh).
//
// On the tensor cores (float16, bfloat16, and float32 as tf32), or where SIMT on the float32 units (precision "ieee").
// _shared/cuda/matmul_mma.cuh says how a tile is multiplied. Sizes are arbitrary; ALIGNED promises that K and N, RANK_ALIGNED that R is a
// multiple of a 16-byte vector. Columns past R are 0, not what the sums have: where x has an inf, that is NaN (inf * 0).
#pragma once

#include "_shared/cuda/matmul_simt.cuh"

template <typename T, Activation ACT>
struct Biased : Epilogue {
    const T* __restrict__ b;

    __device__ __forceinline__ explicit Biased(const T* b) : b(b) {}
    __device__ __forceinline__ float column(long long n) const { return to_float(b[n]); }
    __device__ __forceinline__ float operator()(None, float bias, const float (&v)[1]) const {
        return activate<ACT>(v[0] + bias);
    }
};

// f of every sum inside of M × N to y.
template <bool ALIGNED, typename T, bool NK, int BM, int BN, int WM, int WN, bool XT, typename F>
__device__ __forceinline__ void store_tile(const TensorTile<T, NK, BM, BN, WM, WN, 1, XT>& tile, unsigned char* memory, T* y,
                                           long long M, long long N, long long m0, long long n0, F f) {
    tile.template epilogue<ALIGNED>(memory, y, M, N, m0, n0, f);
}
template <bool ALIGNED, bool NK, int BM, int BN, int WM, int WN, bool XT, typename F>
__device__ __forceinline__ void store_tile(const SimtTile<NK, BM, BN, WM, WN, XT>& tile, unsigned char*, float* y,
                                           long long M, long long N, long long m0, long long n0, F f) {
    each_pair(tile, [](int) { return 0; }, [&](int row, int column, float v0, float v1, int) {
        long long m = m0 + row, n = n0 + column;
        if (m >= M || n >= N) return;
        float *to = y + m * N + n, first = f({}, f.column(n), {v0});
        if constexpr (ALIGNED) {
            *reinterpret_cast<float2*>(to) = {first, f({}, f.column(n + 1), {v1})};
        } else {
            to[0] = first;
            if (n + 1 < N) to[1] = f({}, f.column(n + 1), {v1});
        }
    });
}

// The sums of a tile go on in another whose W is stored otherwise.
template <typename To, typename From>
__device__ __forceinline__ To continued(const From& from) {
    To to;
    static_assert(sizeof(to.c) == sizeof(from.c), "the same places");
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(to.c) / sizeof(to.c[0])); ++i)
#pragma unroll
        for (int j = 0; j < static_cast<int>(sizeof(to.c[0]) / sizeof(to.c[0][0])); ++j)
#pragma unroll
            for (int e = 0; e < static_cast<int>(sizeof(to.c[0][0]) / sizeof(float)); ++e)
                to.c[i][j][e] = from.c[i][j][e];
    return to;
}

// The layer. FUSED sums x @ A itself, in RM × RN warps; otherwise `t` holds scale * x @ A, in rows of whole vectors with zeros behind R. WM × WN
// warps have the tile of y.
template <bool FUSED, typename T, bool SIMT, Activation ACT, bool ALIGNED, bool RANK_ALIGNED, bool NK, int BM, int BN,
          int WM, int WN, int RB, int RM, int RN, int STAGES>
__device__ __forceinline__ void layer(const T* __restrict__ x, const T* __restrict__ scale, const T* __restrict__ W,
                                      const T* __restrict__ b, const T* __restrict__ A, const T* __restrict__ B,
                                      const T* __restrict__ t, T* __restrict__ y, long long M, long long K, long long N,
                                      long long R) {
    constexpr int THREADS = WM * WN * 32, X = BM * 128, STAGE = X + (BN + (FUSED ? RB : 0)) * 128;
    static_assert(RM * RN == WM * WN && STAGES >= 2, "the same warps; one stage is read while another is written");
    using Tile = typename TileOf<SIMT, T, NK, BM, BN, WM, WN>::Type;
    using Lift = typename TileOf<SIMT, T, false, BM, BN, WM, WN>::Type;
    using Low = typename TileOf<SIMT, T, false, BM, RB, RM, RN>::Type;
    extern __shared__ __align__(128) unsigned char memory[];  // max(STAGES * STAGE, the tile of y as it is stored)
    long long m0, n0;
    block_origin(M, N, BM, BN, m0, n0);
    if (FUSED || !ALIGNED) wait_for_previous_launch();  // for what is not copied asynchronously
    RowLoader<T, ALIGNED, BM, THREADS> x_slabs(x, m0, M, K);
    RowLoader<T, true, BM, THREADS> t_slabs(t, m0, M, filled_up<T>(R));
    WeightLoader<NK, T, ALIGNED, BN, THREADS, 1> W_slabs(W, n0, N, K);
    ColumnLoader<T, RANK_ALIGNED, RB, THREADS> A_slabs(A, 0, R, K);
    ColumnLoader<T, ALIGNED, BN, THREADS> B_slabs(B, n0, N, R);
    int slabs = static_cast<int>((K + SLAB<T> - 1) / SLAB<T>), all = slabs + static_cast<int>((R + SLAB<T> - 1) / SLAB<T>);

    auto load = [&](int slab, int stage) {
        unsigned char* here = memory + stage * STAGE;
        if (slab < slabs) {
            x_slabs.load(here);
            W_slabs.load(here + X);
            if constexpr (FUSED) A_slabs.load(here + X + BN * 128);
        } else if (slab < all) {
            B_slabs.load(here + X);
            if constexpr (!FUSED) wait_for_previous_launch(), t_slabs.load(here);
        }
        copy_commit();
    };
    int stage = 0, next = STAGES - 1;
    auto advance = [&](int slab) {  // waits for the slab, asks for another, and returns where the slab is
        copy_wait<STAGES - 2>();
        __syncthreads();
        load(slab + STAGES - 1, next);
        unsigned char* here = memory + stage * STAGE;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
        return here;
    };

    Tile tile;
    Low low;
    for (int i = 0; i < STAGES - 1; ++i) load(i, i);
    float factor = FUSED ? to_float(*scale) : 1.0f;
    for (int slab = 0; slab < slabs; ++slab) {
        unsigned char* here = advance(slab);
        tile.add(here, here + X);
        if constexpr (FUSED) low.add(here, here + X + BN * 128);
    }

    Lift lift = continued<Lift>(tile);
    for (int slab = slabs; slab < all; ++slab) {
        unsigned char* here = advance(slab);
        int r0 = (slab - slabs) * SLAB<T>;
        if constexpr (FUSED) {
            each_pair(low, [](int) { return 0; }, [&](int row, int column, float v0, float v1, int) {
                if (column < r0 || column >= r0 + SLAB<T>) return;
                Pair<T> pair;
                pair.at[0] = from_float<T>(column < R ? factor * v0 : 0.0f);
                pair.at[1] = from_float<T>(column + 1 < R ? factor * v1 : 0.0f);
                *reinterpret_cast<Pair<T>*>(here + slab_place<T>(row, column - r0)) = pair;
            });
            __syncthreads();
        }
        add_part(lift, here, here + X, static_cast<int>(R) - r0);
    }
    __syncthreads();  // the slabs' memory is free
    if (!FUSED) wait_for_previous_launch();
    store_tile<ALIGNED>(lift, memory, y, M, N, m0, n0, Biased<T, ACT>(b));
}

template <typename T, bool SIMT, Activation ACT, bool ALIGNED, bool RANK_ALIGNED, bool NK, int BM, int BN, int WM, int WN,
          int RB, int RM, int RN, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    fused(const T* __restrict__ x, const T* __restrict__ scale, const T* __restrict__ W, const T* __restrict__ b,
          const T* __restrict__ A, const T* __restrict__ B, T* __restrict__ y, long long M, long long K, long long N,
          long long R) {
    layer<true, T, SIMT, ACT, ALIGNED, RANK_ALIGNED, NK, BM, BN, WM, WN, RB, RM, RN, STAGES>(x, scale, W, b, A, B, nullptr,
                                                                                           y, M, K, N, R);
}

template <typename T, Activation ACT, bool ALIGNED, bool NK, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    up(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ t, const T* __restrict__ B, const T* __restrict__ b,
       T* __restrict__ y, long long M, long long K, long long N, long long R) {
    layer<false, T, false, ACT, ALIGNED, true, NK, BM, BN, WM, WN, WN * 16, WM, WN, STAGES>(x, nullptr, W, b, nullptr, B, t, y, M, K, N, R);
}

// Two floats to block `rank` of the cluster, where this one has `to` in its shared memory.
__device__ __forceinline__ void store_pair_in_block(const void* to, unsigned rank, float v0, float v1) {
    unsigned there = address_in_block(shared_address(to), rank);
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(there), "f"(v0), "f"(v1) : "memory");
}

// RowLoader from slab `skipped` on, which copies rows to `whole`, unless that is null, in whole slabs with zeros behind K. All of its vectors
// are asked for before the first is stored: those of a copy come through registers, as do elements.
template <typename T, bool ALIGNED, int ROWS, int THREADS>
struct CopyingLoader : RowLoader<T, ALIGNED, ROWS, THREADS> {
    using Base = RowLoader<T, ALIGNED, ROWS, THREADS>;
    using Base::from, Base::K, Base::left, Base::row, Base::rows, Base::SIZE, Base::STRIDE, Base::to;
    static constexpr int COUNT = ROWS / STRIDE;
    static_assert(ROWS % STRIDE == 0, "all threads have as many vectors");
    T* whole;
    long long pitch;

    __device__ __forceinline__ CopyingLoader(const T* matrix, T* whole, long long first, long long limit, long long K, int skipped)
        : Base(matrix, first, limit, K), whole(whole), pitch((K + SLAB<T> - 1) / SLAB<T> * SLAB<T>) {
        from += skipped * SLAB<T>, left -= skipped * SLAB<T>;
        if (whole) this->whole += (first + row) * pitch + threadIdx.x % 8 * SIZE + skipped * SLAB<T>;
    }
    __device__ __forceinline__ void load(unsigned char* memory) {
        if (ALIGNED && !whole) {
            Base::load(memory);
        } else {
            Vector<T> v[COUNT];
#pragma unroll
            for (int i = 0; i < COUNT; ++i) v[i] = load_part<ALIGNED>(from + i * STRIDE * K, i * STRIDE < rows ? left : 0);
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                *reinterpret_cast<Vector<T>*>(memory + to + i * STRIDE * 128) = v[i];
                if (whole && i * STRIDE < rows) store_vector(whole + i * STRIDE * pitch, v[i]);
            }
            from += SLAB<T>;
            left -= SLAB<T>;
            if (whole) whole += SLAB<T>;
        }
    }
};

// store(row, column, sum) for all sums of a tile of BM × RB, of which the PARTS blocks of a cluster have a share each: a block adds up what all have
// of its own rows. `memory` has the tile's slabs, which are read no more, and room for BM * RB floats.
template <int PARTS, int BM, int RB, typename Tile, typename F>
__device__ __forceinline__ void each_sum(const Tile& tile, unsigned char* memory, F store) {
    if constexpr (PARTS == 1) {
        each_pair(tile, [](int) { return 0; }, [&](int row, int column, float v0, float v1, int) {
            store(row, column, v0);
            store(row, column + 1, v1);
        });
    } else {
        constexpr int SHARE = BM / PARTS;  // rows that a block finishes
        static_assert(BM % PARTS == 0, "as many each");
        int part = blockIdx.x % PARTS;
        auto sums = reinterpret_cast<float*>(memory);  // (PARTS, SHARE, RB)
        cluster_arrive(), cluster_wait();  // all blocks have read their slabs
        each_pair(tile, [](int) { return 0; }, [&](int row, int column, float v0, float v1, int) {
            store_pair_in_block(sums + (part * SHARE + row % SHARE) * RB + column, row / SHARE, v0, v1);
        });
        cluster_arrive(), cluster_wait();
        for (int i = threadIdx.x; i < SHARE * RB; i += Tile::THREADS) {
            float sum = 0.0f;
#pragma unroll
            for (int p = 0; p < PARTS; ++p) sum += sums[p * SHARE * RB + i];
            store(part * SHARE + i / RB, i % RB, sum);
        }
    }
}

// Of the slabs of `deep` elements those of this block, where PARTS blocks of a cluster share them.
template <typename T, int PARTS>
struct OwnSlabs {
    int first, count;

    __device__ __forceinline__ explicit OwnSlabs(long long deep) {
        int slabs = static_cast<int>((deep + SLAB<T> - 1) / SLAB<T>), each = (slabs + PARTS - 1) / PARTS;
        first = min(static_cast<int>(blockIdx.x % PARTS) * each, slabs);
        count = min(each, slabs - first);
    }
};

// BM rows of x @ A, in WM × WN warps: to xa, and times scale, as rounded, to t, rows of whole vectors with zeros behind R. Either may be null, as may `whole`, x in rows of whole slabs. PARTS blocks, a cluster, share K.
template <typename T, bool SIMT, bool ALIGNED, bool RANK_ALIGNED, int BM, int RB, int WM, int WN, int STAGES, int PARTS>
__device__ __forceinline__ void down_tile(const T* __restrict__ x, const T* __restrict__ A, const T* __restrict__ scale,
                                          T* __restrict__ xa, T* __restrict__ t, T* __restrict__ whole, long long M,
                                          long long K, long long R) {
    using Tile = typename TileOf<SIMT, T, false, BM, RB, WM, WN>::Type;
    constexpr int THREADS = WM * WN * 32;
    static_assert(STAGES * Tile::STAGE >= BM * RB * 4, "the sums take the place of the slabs");
    extern __shared__ __align__(128) unsigned char memory[];  // STAGES * STAGE
    long long m0 = static_cast<long long>(blockIdx.x / PARTS) * BM, pitch = filled_up<T>(R);
    OwnSlabs<T, PARTS> own(K);
    Tile tile;
    CopyingLoader<T, ALIGNED, BM, THREADS> rows(x, whole, m0, M, K, own.first);
    ColumnLoader<T, RANK_ALIGNED, RB, THREADS> columns(A, 0, R, K);
    columns.skip(own.first);
    mainloop<STAGES>(tile, memory, rows, columns, own.count);
    float factor = to_float(*scale);
    each_sum<PARTS, BM, RB>(tile, memory, [&](int row, int column, float sum) {
        long long m = m0 + row;
        if (m >= M || column >= pitch) return;
        T v = from_float<T>(column < R ? sum : 0.0f);
        if (xa) xa[m * pitch + column] = v;
        if (t) t[m * pitch + column] = from_float<T>(column < R ? factor * to_float(v) : 0.0f);
    });
}

template <typename T, bool SIMT, bool ALIGNED, bool RANK_ALIGNED, int BM, int RB, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM * WN * 32)
    down(const T* __restrict__ x, const T* __restrict__ A, const T* __restrict__ scale, T* __restrict__ xa, T* __restrict__ t,
         T* __restrict__ whole, int* __restrict__ flags, long long M, long long K, long long R, long long count) {
    wait_for_previous_launch();
    clear_flags(flags, count);
    down_tile<T, SIMT, ALIGNED, RANK_ALIGNED, BM, RB, WM, WN, STAGES, 1>(x, A, scale, xa, t, whole, M, K, R);
}

#if __CUDA_ARCH__ >= 900
template <typename T, bool SIMT, bool ALIGNED, bool RANK_ALIGNED, int BM, int RB, int WM, int WN, int STAGES, int PARTS>
__global__ void __cluster_dims__(PARTS, 1, 1) __launch_bounds__(WM * WN * 32)
    down_by_parts(const T* __restrict__ x, const T* __restrict__ A, const T* __restrict__ scale, T* __restrict__ xa, T* __restrict__ t,
                  T* __restrict__ whole, int* __restrict__ flags, long long M, long long K, long long R, long long count) {
    wait_for_previous_launch();
    clear_flags(flags, count);
    down_tile<T, SIMT, ALIGNED, RANK_ALIGNED, BM, RB, WM, WN, STAGES, PARTS>(x, A, scale, xa, t, whole, M, K, R);
}
#endif
