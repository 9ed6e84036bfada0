// A product of few rows with a low-rank one in the same sums (matmul_few_rows.cuh): x @ W + t @ B, where t has scale * x @ A in rows of whole
// vectors. The slabs of t and B follow those of x and W, and belong to the warps next in turn. K and N are whole vectors of 16 bytes.
#pragma once
#include "_shared/cuda/lora.cuh"
#include "_shared/cuda/matmul_few_rows.cuh"

namespace few_rows {

// A warp's slabs of a product, of which `left` are before the end from its next one on, then those of the adapter. WAITS: the latter are of
// what the launch before has made.
template <bool WAITS, int WARPS, typename Product, typename Adapter>
struct InTurn {
    Product product;
    Adapter adapter;
    int left;

    // The product has `depth` slabs.
    __device__ __forceinline__ InTurn(Product product, Adapter of_adapter, int depth)
        : product(product), adapter(of_adapter), left(depth - static_cast<int>(threadIdx.x / 32)) {
        int warp = threadIdx.x / 32, first = left > 0 ? (WARPS - left % WARPS) % WARPS : -left;  // slab of the adapter that is this warp's first
        adapter.skip(first - warp);
    }
    __device__ __forceinline__ void load(unsigned char* memory) {
        if (left > 0) {
            product.load(memory);
        } else {
            if (WAITS) wait_for_previous_launch();
            adapter.load(memory);
        }
        left -= WARPS;
    }
};

// A warp's sums, which go on where W is stored otherwise than B: NK says that it is (N, K).
template <typename T, bool NK, int BM, int BN, int WARPS>
struct AdaptedWarp : OfWarp<TensorTile<T, NK, BM, BN, 1, 1>> {
    using Base = OfWarp<TensorTile<T, NK, BM, BN, 1, 1>>;
    using Lift = OfWarp<TensorTile<T, false, BM, BN, 1, 1>>;
    int left;

    __device__ __forceinline__ explicit AdaptedWarp(int depth) : left(depth - static_cast<int>(threadIdx.x / 32)) {}
    __device__ __forceinline__ void add(const unsigned char* x, const unsigned char* w) {
        if (NK && left <= 0) {
            Lift lift = continued<Lift>(*this);
            lift.add(x, w);
            static_cast<Base&>(*this) = continued<Base>(lift);
        } else {
            Base::add(x, w);
        }
        left -= WARPS;
    }
};

// The same on the float32 units.
template <bool NK, int BM, int BN, int WARPS>
struct AdaptedSimtWarp : SimtWarp<NK, BM, BN> {
    using Base = SimtWarp<NK, BM, BN>;
    int left;

    __device__ __forceinline__ explicit AdaptedSimtWarp(int depth) : left(depth - static_cast<int>(threadIdx.x / 32)) {}
    __device__ __forceinline__ void add(const unsigned char* x, const unsigned char* w) {
        if (NK && left <= 0) Base::template add<false>(x, w);
        else Base::template add<NK>(x, w);
        left -= WARPS;
    }
};
template <bool SIMT, typename T, bool NK, int BM, int BN, int WARPS>
struct AdaptedWarpOf {
    using Type = AdaptedWarp<T, NK, BM, BN, WARPS>;
};
template <bool NK, int BM, int BN, int WARPS>
struct AdaptedWarpOf<true, float, NK, BM, BN, WARPS> {
    using Type = AdaptedSimtWarp<NK, BM, BN, WARPS>;
};

}  // namespace few_rows

// The second launch of lora.cuh's layer, for few rows, whose x is the call's own where EARLY, and else a copy by the first launch.
template <typename T, Activation ACT, bool EARLY, bool SIMT, bool ALIGNED, bool NK, int BM, int BN, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32, 1)
    up_few_rows(const T* __restrict__ x, const T* __restrict__ W, const T* __restrict__ t, const T* __restrict__ B, const T* __restrict__ b,
                T* __restrict__ y, long long M, long long K, long long N, long long R) {
    using X = few_rows::RowLoader<T, BM, WARPS, 1, ALIGNED>;
    using Low = few_rows::RowLoader<T, BM, WARPS>;
    if (!EARLY) wait_for_previous_launch();
    int depth = static_cast<int>((K + SLAB<T> - 1) / SLAB<T>), more = static_cast<int>((R + SLAB<T> - 1) / SLAB<T>);
    long long m0, n0;
    block_origin(M, N, BM, BN, m0, n0);
    typename few_rows::AdaptedWarpOf<SIMT, T, NK, BM, BN, WARPS>::Type tile(depth);
    few_rows::InTurn<true, WARPS, X, Low> rows(X(x, m0, M, K), Low(t, m0, M, filled_up<T>(R)), depth);
    using Weights = few_rows::WeightLoader<NK, T, BN, WARPS, 1>;
    using Lift = few_rows::WeightLoader<false, T, BN, WARPS, 1>;
    few_rows::InTurn<false, WARPS, Weights, Lift> columns(Weights(W, n0, N, K), Lift(B, n0, N, R), depth);
    few_rows_of<WARPS, STAGES, BM, BN, 1, false>(tile, rows, columns, depth + more, y, M, N, m0, n0, Biased<T, ACT>(b),
                                          [] {}, [] { wait_for_previous_launch(), __syncthreads(); });
}
