// softmax's gradient: dx = y * (dy - sum(y * dy)) of each row, one launch in every variant, from y, which the forward kernel
// leaves behind. The variants are those of cuda.cu, with two rows where that has one:
//
//   row_gradient       rows of y and of dy are held in the registers of 1 to 32 lanes of a warp, or of a block: at most 4 vectors
//                      of 16 bytes a thread of each, 32 KiB a row.
//   cluster_gradient   longer rows of both are held in the shared memory of 1 to 8 blocks of a thread-block cluster.
//   online_gradient    rows of any length by one block each, which reads both twice, the second time from the end.
//
// y, dy and dx lie alike, so that a Row of y with dx as its result says where the vectors and edges of all three are.
#include "_shared/cuda/softmax.cuh"
#if __CUDA_ARCH__ >= 900
#include "_cluster.cuh"
#endif

// A row of y and dx, and the same one of dy.
template <typename T, bool ALIGNED>
struct Rows : Row<T, ALIGNED, false> {
    using Base = Row<T, ALIGNED, false>;
    using Base::head, Base::vectors, Base::edge, Base::SIZE;
    const T* dy;

    __device__ __forceinline__ Rows(const T* y, const T* dy, T* dx, long long number, int C)
        : Base(y, dx, number, C, 0, C), dy(dy + number * C) {}

    // Vector v of y or dy, which is read again or not; 0 where there is none.
    template <bool AGAIN>
    __device__ __forceinline__ Vector<T> load(const T* row, int v) const {
        if (v >= vectors) return Vector<T>{};
        const T* p = row + head + v * SIZE;
        return AGAIN ? *reinterpret_cast<const Vector<T>*>(p) : load_for_the_last_time(p);
    }
    __device__ __forceinline__ float load_edge(const T* row, int k) const {
        int c = edge(k);
        return c >= 0 ? to_float(row[c]) : 0.0f;
    }
    __device__ __forceinline__ void store(int v, const Vector<T>& p, const Vector<T>& behind, float inner) const {
        if (v >= vectors) return;
        float z[SIZE];
#pragma unroll
        for (int j = 0; j < SIZE; ++j) z[j] = element(p, j) * (element(behind, j) - inner);
        *reinterpret_cast<Vector<T>*>(this->y + head + v * SIZE) = as_vector(z, T{});
    }
    __device__ __forceinline__ void store_edge(int k, float p, float behind, float inner) const {
        int c = edge(k);
        if (c >= 0) this->y[c] = from_float<T>(p * (behind - inner));
    }
};

template <typename T>
__device__ __forceinline__ float inner_product(const Vector<T>& a, const Vector<T>& b) {
    float s = 0.0f;
#pragma unroll
    for (int j = 0; j < Vector<T>::SIZE; ++j) s = fmaf(element(a, j), element(b, j), s);
    return s;
}

// By LANES threads, with V vectors each of y and of dy. `parts` has LANES / 32 floats;
// `writes` is false where a group has no row of its own and repeats another's.
template <int LANES, int V, typename T, bool ALIGNED>
__device__ __forceinline__ void gradient_on_chip(const Rows<T, ALIGNED>& row, bool writes, float* parts) {
    constexpr int EDGES = Rows<T, ALIGNED>::edges(LANES);
    int thread = threadIdx.x % LANES;
    Vector<T> p[V], behind[V];
    float p_edges[EDGES + 1], behind_edges[EDGES + 1];
#pragma unroll
    for (int i = 0; i < V; ++i) {
        p[i] = row.template load<false>(row.x, thread + i * LANES);
        behind[i] = row.template load<false>(row.dy, thread + i * LANES);
    }
#pragma unroll
    for (int i = 0; i < EDGES; ++i) {
        p_edges[i] = row.load_edge(row.x, thread + i * LANES);
        behind_edges[i] = row.load_edge(row.dy, thread + i * LANES);
    }
    float s = 0.0f;
#pragma unroll
    for (int i = 0; i < V; ++i) s += inner_product(p[i], behind[i]);
#pragma unroll
    for (int i = 0; i < EDGES; ++i) s = fmaf(p_edges[i], behind_edges[i], s);
    s = row_reduce<false, LANES>(s, parts);
    if constexpr (sizeof(T) == 2) {  // else the compiler would keep them as floats, in twice the registers
#pragma unroll
        for (int i = 0; i < V; ++i)
#pragma unroll
            for (int w = 0; w < 4; ++w) asm volatile("" : "+r"(words(p[i])[w]), "+r"(words(behind[i])[w]));
    }
    if (!writes) return;
#pragma unroll
    for (int i = 0; i < V; ++i) row.store(thread + i * LANES, p[i], behind[i], s);
#pragma unroll
    for (int i = 0; i < EDGES; ++i) row.store_edge(thread + i * LANES, p_edges[i], behind_edges[i], s);
}

// A block of at least 128 threads has 128 / LANES rows.
template <typename T, bool ALIGNED, int LANES, int V>
__global__ void __launch_bounds__(LANES < 128 ? 128 : LANES, blocks_that_fit(LANES < 128 ? 128 : LANES, 2 * V + 3, ALIGNED))
    row_gradient(const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, long long R, long long C) {
    constexpr int ROWS = LANES < 128 ? 128 / LANES : 1;
    static_assert(LANES <= 32 || LANES >= 128, "a row has part of a warp, or a block");
    __shared__ float parts[LANES < 32 ? 1 : LANES / 32];
    long long number = static_cast<long long>(blockIdx.x) * ROWS + threadIdx.x / LANES;
    Rows<T, ALIGNED> of(y, dy, dx, min(number, R - 1), static_cast<int>(C));
    gradient_on_chip<LANES, V>(of, number < R, parts);
}

#if __CUDA_ARCH__ >= 900
template <typename T, bool ALIGNED, int CLUSTER, int LANES>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(LANES)
    cluster_gradient(const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, long long C, long long length) {
    Rows<T, ALIGNED> row(y, dy, dx, blockIdx.x / CLUSTER, static_cast<int>(C));
    using Own = Piece<T, 2, CLUSTER, LANES>;
    Own piece({row.x + row.head, row.dy + row.head}, row.vectors, static_cast<int>(length));
    bool has_edges = !ALIGNED && Own::rank() == 0;
    float p_edge = has_edges ? row.load_edge(row.x, threadIdx.x) : 0.0f;
    float behind_edge = has_edges ? row.load_edge(row.dy, threadIdx.x) : 0.0f;
    float s = p_edge * behind_edge;
    piece.each_chunk([&](int v) {
#pragma unroll
        for (int i = 0; i < Own::AHEAD; ++i)
            if (v + i * LANES < piece.count) s += inner_product(piece.at(0, v + i * LANES), piece.at(1, v + i * LANES));
    });
    const float4* parts = piece.exchange(lane_reduce<false, 32>(s), 0.0f);
    s = 0.0f;
#pragma unroll
    for (int i = threadIdx.x % 32; i < LANES / 32 * CLUSTER; i += 32) s += parts[i].x;
    s = lane_reduce<false, 32>(s);
    if (has_edges) row.store_edge(threadIdx.x, p_edge, behind_edge, s);
#pragma unroll 2
    for (int v = threadIdx.x; v < piece.count; v += LANES) row.store(piece.first + v, piece.at(0, v), piece.at(1, v), s);
}
#endif

template <typename T, bool ALIGNED, int LANES>
__global__ void __launch_bounds__(LANES, blocks_that_fit(LANES, 4, ALIGNED))
    online_gradient(const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dx, long long C) {
    constexpr int AHEAD = 2, STEP = AHEAD * LANES;  // vectors requested at once of each: a thread's, all
    static_assert(LANES >= 2 * Vector<T>::SIZE - 2, "a thread has one edge");
    __shared__ float parts[LANES / 32];
    Rows<T, ALIGNED> row(y, dy, dx, blockIdx.x, static_cast<int>(C));
    int thread = threadIdx.x;
    float p_edge = ALIGNED ? 0.0f : row.load_edge(row.x, thread), behind_edge = ALIGNED ? 0.0f : row.load_edge(row.dy, thread);
    float s = p_edge * behind_edge;
    Vector<T> p[AHEAD], behind[AHEAD];
#pragma unroll 1
    for (int v = thread; v < row.vectors; v += STEP) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            p[i] = row.template load<true>(row.x, v + i * LANES);
            behind[i] = row.template load<true>(row.dy, v + i * LANES);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) s += inner_product(p[i], behind[i]);
    }
    s = row_reduce<false, LANES>(s, parts);
    if (!ALIGNED) row.store_edge(thread, p_edge, behind_edge, s);
#pragma unroll 1
    for (int v = (row.vectors - 1) / STEP * STEP + thread; v >= 0; v -= STEP) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            p[i] = row.template load<false>(row.x, v + i * LANES);
            behind[i] = row.template load<false>(row.dy, v + i * LANES);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) row.store(v + i * LANES, p[i], behind[i], s);
    }
}
