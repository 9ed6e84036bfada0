// Rows in the shared memory of 1 to 8 blocks, a thread-block cluster: what the forward and the backward kernel share.
#pragma once
#include "_shared/cuda/hopper/pipeline.cuh"
#include "_shared/cuda/softmax.cuh"

// A block's piece of a row: `count` vectors from the `first` on, of each of ARRAYS arrays that lie alike. Chunks of AHEAD vectors a thread
// and array have a barrier each, so that the first are summed up while others are on their way.
template <typename T, int ARRAYS, int CLUSTER, int LANES>
struct Piece {
    static constexpr int AHEAD = 4 / ARRAYS, STEP = AHEAD * LANES, WARPS = LANES / 32;
    static constexpr int CHUNKS = 32;  // enough for all of a block's shared memory, by 128 threads
    int length, first, count;
    unsigned full, told;
    uint4* memory;
    float4* parts;

    // Requests all of it: the row has so many vectors, of which a block holds up to `length`; the arrays' first are at `from`.
    __device__ __forceinline__ Piece(const T* const (&from)[ARRAYS], int vectors, int length) : length(length) {
        extern __shared__ uint4 dynamic[];
        __shared__ unsigned long long barriers[CHUNKS + 1];
        __shared__ float4 of_warps[WARPS * CLUSTER];
        memory = dynamic, parts = of_warps;
        full = shared_address(barriers), told = full + CHUNKS * 8;
        first = rank() * length;
        count = min(length, vectors - first);  // none, where it is not above 0
        if (threadIdx.x == 0) {
            barrier_init(told, 1);
            for (int v = 0; v < count; v += STEP) barrier_init(barrier(v), 1);
            fence_barrier_init();
            for (int v = 0; v < count; v += STEP) {
                unsigned bytes = min(STEP, count - v) * sizeof(uint4);
                barrier_arrive_and_expect(barrier(v), ARRAYS * bytes);
#pragma unroll
                for (int a = 0; a < ARRAYS; ++a)
                    bulk_load(shared_address(memory + a * length + v), from[a] + (first + v) * Vector<T>::SIZE, bytes, barrier(v));
            }
            if constexpr (CLUSTER > 1) barrier_arrive_and_expect(told, WARPS * CLUSTER * sizeof(float4));
        }
        if constexpr (CLUSTER > 1) cluster_arrive();
        __syncthreads();
    }
    static __device__ __forceinline__ int rank() { return CLUSTER > 1 ? cluster_rank() : 0; }
    __device__ __forceinline__ unsigned barrier(int v) const { return full + v / STEP * 8; }

    // Vector v of the piece, in one of the arrays: its chunk has been waited for.
    __device__ __forceinline__ const Vector<T>& at(int array, int v) const {
        return reinterpret_cast<const Vector<T>*>(memory)[array * length + v];
    }
    // Calls f with each of this thread's chunks, by its first vector, once it is there.
    template <typename F>
    __device__ __forceinline__ void each_chunk(F f) const {
        for (int v = threadIdx.x; v - static_cast<int>(threadIdx.x) < count; v += STEP) {
            barrier_wait(barrier(v), 0);
            f(v);
        }
    }
    // What each warp of the cluster says, in a place for each. A block ends after it has heard all: nobody writes to one that is gone.
    __device__ __forceinline__ const float4* exchange(float a, float b) {
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if constexpr (CLUSTER > 1) {
            cluster_wait();  // all blocks have initialised `told`
            float said[4] = {a, b, 0.0f, 0.0f};
            if (lane < CLUSTER)
                store_async(address_in_block(shared_address(&parts[rank() * WARPS + warp]), lane), said, address_in_block(told, lane));
            barrier_wait_of_cluster(told, 0);
        } else {
            if (lane == 0) parts[warp] = make_float4(a, b, 0.0f, 0.0f);
            __syncthreads();
        }
        return parts;
    }
};
