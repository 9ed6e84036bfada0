// dot_persistent: the dots of up to 32 vectors by warps that stay, each with a ring of samples that are on their way.
//
// A sample's vectors are two pieces of memory, the dense one and all sparse ones, so the copy engine brings each in one copy. While a
// warp multiplies one sample, STAGES - 1 others of its own are on their way: nothing waits for another warp. GROUP rows of y lie side by side from a
// multiple of 16 bytes on; a warp has that many samples in turn, collects their rows in shared memory and has them copied out at once.
#pragma once
#include "_shared/cuda/hopper/pipeline.cuh"
#include "_shared/cuda/interactions.cuh"

// The products of a sample's vectors x (F + 1, D), in shared memory, straight from where they lie. What stands in place of
// vectors beyond F does not matter, because it only enters products that nobody stores. WHOLE: D is a multiple of four lanes' vectors.
template <typename T, bool WHOLE, int BANDS, int TILES>
__device__ __forceinline__ void multiply_vectors(float (&c)[TILES][2 * TILES][4], const T* x, const int (&first)[2 * TILES], int t, int D) {
    constexpr int SIZE = Vector<T>::SIZE, STEP = 4 * SIZE;
#pragma unroll 4
    for (int start = 0; start < D; start += STEP) {
        unsigned word[2 * TILES][4];
#pragma unroll
        for (int b = 0; b < 2 * TILES; ++b) {
            Vector<T> v = {};
            if (b < BANDS && (WHOLE || start + t * SIZE < D)) v = *reinterpret_cast<const Vector<T>*>(x + first[b] + start);
#pragma unroll
            for (int w = 0; w < 4; ++w) word[b][w] = operand<T>(reinterpret_cast<const unsigned(&)[4]>(v)[w]);
        }
#pragma unroll
        for (int half = 0; half < 4; half += 2)
#pragma unroll
            for (int i = 0; i < TILES; ++i)
#pragma unroll
                for (int j = 0; j < 2 * i + 2 && j < BANDS; ++j) {
                    unsigned left[4] = {word[2 * i][half], word[2 * i + 1][half], word[2 * i][half + 1], word[2 * i + 1][half + 1]};
                    unsigned right[2] = {word[j][half], word[j][half + 1]};
                    multiply_add(c[i][j], left, right, T{});
                }
    }
}

template <typename T, bool WHOLE, int BANDS, int STAGES, int WARPS>
__global__ void __launch_bounds__(WARPS * 32, 1)
    dot_persistent(const T* __restrict__ dense, const T* __restrict__ sparse, T* __restrict__ y, long long M, int F, int D) {
    constexpr int TILES = (BANDS + 1) / 2, GROUP = 16 / static_cast<int>(sizeof(T));
    extern __shared__ uint4 shared[];
    __shared__ unsigned long long barriers[WARPS][STAGES];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int vectors = (F + 1) * D, columns = D + F * (F + 1) / 2;  // elements of a stage, and of a row of y
    T* ring = reinterpret_cast<T*>(shared) + warp * (STAGES * vectors + GROUP * columns);
    T* rows = ring + STAGES * vectors;
    unsigned full = shared_address(barriers[warp]);
    int place[2 * TILES];  // where this lane's part of each vector begins
#pragma unroll
    for (int b = 0; b < 2 * TILES; ++b) place[b] = min(8 * b + g, F) * D + t * Vector<T>::SIZE;

    // its n-th sample; neighbouring groups belong to different multiprocessors, so that the last ones are spread over all
    long long first = blockIdx.x + static_cast<long long>(warp) * gridDim.x, step = static_cast<long long>(gridDim.x) * WARPS;
    auto sample_of = [&](int n) { return (first + n / GROUP * step) * GROUP + n % GROUP; };
    auto request = [&](int n) {  // by one lane
        long long sample = sample_of(n);
        if (sample >= M) return;
        unsigned barrier = full + n % STAGES * 8, to = shared_address(ring + n % STAGES * vectors), size = D * sizeof(T);
        barrier_arrive_and_expect(barrier, vectors * sizeof(T));
        bulk_load(to, dense + sample * D, size, barrier);
        bulk_load(to + size, sparse + sample * F * D, F * size, barrier);
    };
    if (lane == 0) {
        for (int stage = 0; stage < STAGES; ++stage) barrier_init(full + stage * 8, 1);
        fence_barrier_init();
        for (int n = 0; n < STAGES; ++n) request(n);
    }
    __syncwarp();

    for (int n = 0; sample_of(n) < M; ++n) {
        long long sample = sample_of(n);
        const T* x = ring + n % STAGES * vectors;
        T* own = rows + n % GROUP * columns;
        if (n % GROUP == 0) {
            if (lane == 0) bulk_stores_read();
            __syncwarp();
        }
        barrier_wait(full + n % STAGES * 8, n / STAGES & 1);
        float c[TILES][2 * TILES][4] = {};
        multiply_vectors<T, WHOLE, BANDS, TILES>(c, x, place, t, D);
        for (int d = lane; d < D; d += 32) own[d] = x[d];
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) request(n + STAGES);
        store_below_diagonal<BANDS>(own, c, g, t, F, D);
        int have = n % GROUP + 1;
        if (have < GROUP && sample + 1 < M) continue;
        T* to = y + (sample + 1 - have) * columns;
        fence_proxy_async();
        __syncwarp();
        if (have == GROUP) {
            if (lane == 0) bulk_store(to, shared_address(rows), GROUP * columns * sizeof(T));
        } else {
            for (int e = lane; e < have * columns; e += 32) to[e] = rows[e];
        }
    }
    if (lane == 0) bulk_stores_read();
}
