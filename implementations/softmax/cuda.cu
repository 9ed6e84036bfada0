// softmax: each row of x (R, C) on its own, one launch in every variant. softmax.cuh has the passes over a row.
//
//   row        a row is held in the registers of 1 to 32 lanes of a warp, or of a block of up to 1024 threads: at most
//              8 vectors of 16 bytes a thread, 128 KiB a row. x is read once.
//   cluster    a row is held in the shared memory of 1 to 8 blocks of a thread-block cluster, as the copy engine brings it. Three
//              such blocks and more share a multiprocessor; of rows in registers it has room for two. A running maximum and sum
//              are one pass, and one exchange between the blocks. Compute capability 9.0; 8.0 has no clusters, there `online` takes what
//              `row` cannot.
//   online     rows of any length by one block each, which reads x twice: a running maximum and sum in a first pass.
//
// ALIGNED promises that C is a multiple of a 16-byte vector. Without it rows begin anywhere, and the few elements before and
// behind the vectors of a row are moved one by one.
#include "_shared/cuda/softmax.cuh"
#if __CUDA_ARCH__ >= 900
#include "_cluster.cuh"
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
    softmax_on_chip<LANES, V>(of, number < R, parts);
}

#if __CUDA_ARCH__ >= 900
template <typename T, bool ALIGNED, int CLUSTER, int LANES>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(LANES)
    cluster(const T* __restrict__ x, T* __restrict__ y, long long C, long long length) {
    Row<T, ALIGNED, false> row(x, y, blockIdx.x / CLUSTER, static_cast<int>(C), 0, static_cast<int>(C));
    using Own = Piece<T, 1, CLUSTER, LANES>;
    Own piece({row.x + row.head}, row.vectors, static_cast<int>(length));
    bool has_edges = !ALIGNED && Own::rank() == 0;
    float edge = has_edges ? row.load_edge(threadIdx.x) : minus_infinity();
    Running sums(edge);
    piece.each_chunk([&](int v) {
        Vector<T> part[Own::AHEAD];
#pragma unroll
        for (int i = 0; i < Own::AHEAD; ++i) {
            if (v + i * LANES < piece.count) part[i] = piece.at(0, v + i * LANES);
            else
#pragma unroll
                for (int w = 0; w < 4; ++w) words(part[i])[w] = minus_infinity_word(T{});
        }
        sums.add(part);
    });
    sums.reduce_in_warp();
    sums.merge<LANES / 32 * CLUSTER>(piece.exchange(sums.m, sums.s));
    float inverse = __frcp_rn(sums.s);
    if (has_edges) row.store_edge(threadIdx.x, edge, sums.m, inverse);
#pragma unroll 4
    for (int v = threadIdx.x; v < piece.count; v += LANES) row.template store<false>(piece.first + v, piece.at(0, v), sums.m, inverse);
}
#endif

template <typename T, bool ALIGNED, int LANES>
__global__ void __launch_bounds__(LANES, blocks_that_fit(LANES, 4, ALIGNED))
    online(const T* __restrict__ x, T* __restrict__ y, long long C) {
    __shared__ float2 parts[LANES / 32];
    softmax_re_read<LANES>(Row<T, ALIGNED, false>(x, y, blockIdx.x, static_cast<int>(C), 0, static_cast<int>(C)), parts);
}
