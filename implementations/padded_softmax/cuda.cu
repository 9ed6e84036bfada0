// padded_softmax: row i of att (T, T) sees columns n_padd to i, one launch in either variant. softmax.cuh has the passes.
//
//   row        a row is held in the registers of 1 to 32 lanes of a warp, or of a block of up to 1024 threads: at most
//              8 vectors of 16 bytes a thread, 128 KiB a row. Its visible part is read once.
//              EARLY: what is padding is read with it, so that no load waits for n_padd.
//   online     rows of any length by one block each, which reads the visible part twice.
//
// Only vectors with something visible in them are read; what is hidden in them is replaced by -inf before anything else. All
// of y is written once, hidden positions as 0. Long rows, the last ones, begin first, so that short ones fill the end of the
// launch. ALIGNED promises that T is a multiple of a 16-byte vector. Without it rows begin anywhere, and the few elements
// before and behind the vectors of a row are moved one by one.
#include "_shared/cuda/softmax.cuh"

// Row i, with n_padd brought into 0 … T.
template <typename T, bool ALIGNED, bool EARLY = false>
__device__ __forceinline__ Row<T, ALIGNED, true> causal_row(const T* att, const int* n_padd, T* y, long long i, int tokens) {
    int first = min(max(*n_padd, 0), tokens);
    return Row<T, ALIGNED, true>(att, y, i, tokens, first, static_cast<int>(i) + 1, EARLY ? 0 : first);
}

// A block of at least 128 threads has 128 / LANES rows.
template <typename T, bool ALIGNED, bool EARLY, int LANES, int V>
__global__ void __launch_bounds__(LANES < 128 ? 128 : LANES, blocks_that_fit(LANES < 128 ? 128 : LANES, V, ALIGNED))
    row(const T* __restrict__ att, const int* __restrict__ n_padd, T* __restrict__ y, long long tokens) {
    constexpr int ROWS = LANES < 128 ? 128 / LANES : 1;
    static_assert(LANES <= 32 || LANES >= 128, "a row has part of a warp, or a block");
    __shared__ float parts[2 * (LANES < 32 ? 1 : LANES / 32)];
    long long i = tokens - 1 - (static_cast<long long>(blockIdx.x) * ROWS + threadIdx.x / LANES);
    auto of = causal_row<T, ALIGNED, EARLY>(att, n_padd, y, max(i, 0LL), static_cast<int>(tokens));
    softmax_on_chip<LANES, V>(of, i >= 0, parts);
}

template <typename T, bool ALIGNED, int LANES>
__global__ void __launch_bounds__(LANES, blocks_that_fit(LANES, 4, ALIGNED))
    online(const T* __restrict__ att, const int* __restrict__ n_padd, T* __restrict__ y, long long tokens) {
    __shared__ float2 parts[LANES / 32];
    long long i = tokens - 1 - blockIdx.x;
    softmax_re_read<LANES>(causal_row<T, ALIGNED>(att, n_padd, y, i, static_cast<int>(tokens)), parts);
}
