// softmax: each row of x (R, C) on its own, one launch in every variant. softmax.cuh has the passes over a row.
//
//   row        a row is held in the registers of 1 to 32 lanes of a warp, or of a block of up to 1024 threads: at most
//              8 vectors of 16 bytes a thread, 128 KiB a row. x is read once.
//   cluster    a longer row is held by 2, 4 or 8 blocks, of a thread-block cluster, which tell each other their maxima
//              and sums through distributed shared memory: 1 MiB a row at most. Compute capability 9.0; 8.0 has no
//              clusters, there `online` takes what `row` cannot.
//   persistent a block stays and takes row after row, of whole vectors, which the copy engine brings into a ring of shared memory while the
//              rows before them are computed. Compute capability 9.0.
//   online     rows of any length by one block each, which reads x twice: a running maximum and sum in a first pass.
//
// ALIGNED promises that C is a multiple of a 16-byte vector. Without it rows begin anywhere, and the few elements before and
// behind the vectors of a row are moved one by one.
#include "_shared/cuda/softmax.cuh"
#if __CUDA_ARCH__ >= 900
#include "_shared/cuda/hopper/pipeline.cuh"
#endif

// A block of at least 128 threads has 128 / LANES rows.
template <typename T, bool ALIGNED, int LANES, int V>
__global__ void __launch_bounds__(LANES < 128 ? 128 : LANES, blocks_that_fit(LANES < 128 ? 128 : LANES, V, ALIGNED))
    row(const T* __restrict__ x, T* __restrict__ y, long long R, long long C) {
    constexpr int ROWS = LANES < 128 ? 128 / LANES : 1;
    static_assert(LANES <= 32 || LANES >= 128, "a row has part of a warp, or a block");
    __shared__ float parts[2 * (LANES < 32 ? 1 : LANES / 32)];
    long long number = static_cast<long long>(blockIdx.x) * ROWS + threadIdx.x / LANES;
    Row<T, ALIGNED, false> of(x, y, min(number, R - 1), static_cast<int>(C), 0, static_cast<int>(C));
    softmax_on_chip<LANES, V, 1>(of, number < R, parts);
}

#if __CUDA_ARCH__ >= 900
template <typename T, bool ALIGNED, int CLUSTER, int LANES, int V>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(LANES, blocks_that_fit(LANES, V, ALIGNED))
    cluster(const T* __restrict__ x, T* __restrict__ y, long long C) {
    __shared__ float parts[2 * LANES / 32 * CLUSTER];
    Row<T, ALIGNED, false> of(x, y, blockIdx.x / CLUSTER, static_cast<int>(C), 0, static_cast<int>(C));
    softmax_on_chip<LANES, V, CLUSTER>(of, true, parts);
}

// A row is in registers once its maximum is known, so its stage is free at the first barrier of the block.
template <typename T, int LANES, int V, int STAGES>
__global__ void __launch_bounds__(LANES, blocks_that_fit(LANES, V, true))
    persistent(const T* __restrict__ x, T* __restrict__ y, long long R, long long C) {
    constexpr bool KEEPS = sizeof(T) == 4;
    extern __shared__ uint4 shared[];
    __shared__ unsigned long long barriers[STAGES];
    __shared__ float parts[2][LANES / 32];
    T* ring = reinterpret_cast<T*>(shared);
    unsigned full = shared_address(barriers);
    auto request = [&](int n) {  // the block's n-th row, by one thread
        long long number = blockIdx.x + static_cast<long long>(n) * gridDim.x;
        if (number >= R) return;
        barrier_arrive_and_expect(full + n % STAGES * 8, C * sizeof(T));
        bulk_load(shared_address(ring + n % STAGES * C), x + number * C, C * sizeof(T), full + n % STAGES * 8);
    };
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) barrier_init(full + stage * 8, 1);
        fence_barrier_init();
        for (int n = 0; n < STAGES; ++n) request(n);
    }
    __syncthreads();
    for (int n = 0;; ++n) {
        long long number = blockIdx.x + static_cast<long long>(n) * gridDim.x;
        if (number >= R) break;
        Row<T, true, false> row(x, y, number, static_cast<int>(C), 0, static_cast<int>(C));
        const Vector<T>* stage = reinterpret_cast<const Vector<T>*>(ring + n % STAGES * C);
        Vector<T> held[V];
        barrier_wait(full + n % STAGES * 8, n / STAGES & 1);
#pragma unroll
        for (int i = 0; i < V; ++i) {
            int v = threadIdx.x + i * LANES;
            if (v < row.vectors) held[i] = stage[v];
            else
#pragma unroll
                for (int w = 0; w < 4; ++w) words(held[i])[w] = minus_infinity_word(T{});
        }
        fence_proxy_async();
        float m = row_reduce<true, LANES, 1>(highest(held), parts[0]);
        if (threadIdx.x == 0) request(n + STAGES);
        float s = 0.0f;
#pragma unroll
        for (int i = 0; i < V; ++i) s += exponential_sum<KEEPS>(held[i], m);
        s = row_reduce<false, LANES, 1>(s, parts[1]);
        if constexpr (!KEEPS && V > 3) {  // as in softmax_on_chip
#pragma unroll
            for (int i = 0; i < V; ++i)
#pragma unroll
                for (int w = 0; w < 4; ++w) asm volatile("" : "+r"(words(held[i])[w]));
        }
        float inverse = __frcp_rn(s);
#pragma unroll
        for (int i = 0; i < V; ++i) row.template store<KEEPS>(threadIdx.x + i * LANES, held[i], m, inverse);
    }
}
#endif

template <typename T, bool ALIGNED, int LANES>
__global__ void __launch_bounds__(LANES, blocks_that_fit(LANES, 4, ALIGNED))
    online(const T* __restrict__ x, T* __restrict__ y, long long C) {
    __shared__ float parts[2 * LANES / 32];
    softmax_re_read<LANES>(Row<T, ALIGNED, false>(x, y, blockIdx.x, static_cast<int>(C), 0, static_cast<int>(C)), parts);
}
