// What several blocks of a cluster have of the same sums, put together where each of them ends a part: every thread sends vectors of
// four floats to the threads of its own number in the other blocks, whose shared memory they reach without passing through L2.
#pragma once
#include "_shared/cuda/hopper/pipeline.cuh"

// By all threads of the cluster: all of its blocks have come here, and none reads what it had in shared memory any more. No memory is
// put in order, which takes a while: what was read is in registers, or was waited for.
template <int CLUSTER>
__device__ __forceinline__ void cluster_meet() {
    __syncwarp();
    if constexpr (CLUSTER > 1) cluster_arrive_relaxed(), cluster_wait();
}

// The BLOCKS of a cluster share sums; `own` is this block's number. Each of THREADS has VECTORS for every other block. `memory` (BYTES)
// is what others write to, `barrier` is where that counts.
template <int BLOCKS, int VECTORS, int THREADS>
struct Exchange {
    static constexpr int OTHERS = BLOCKS - 1, BYTES = OTHERS * VECTORS * THREADS * 16;
    static_assert((BLOCKS & OTHERS) == 0 && BYTES < 1 << 20, "a power of two, and no more than a barrier counts");
    unsigned char* memory;
    unsigned barrier, own;

    __device__ __forceinline__ Exchange(unsigned char* memory, unsigned barrier)
        : memory(memory), barrier(barrier), own(cluster_rank()) {}

    // By one thread, before the block meets the others.
    __device__ __forceinline__ void init() const {
        barrier_init(barrier, 1);
        fence_barrier_init();
        barrier_arrive_and_expect(barrier, BYTES);
    }

    // To every other block, behind cluster_meet(): vector(to, i) is the i-th for block `to`, which is a constant wherever it is called. In
    // each turn the blocks go in pairs, so that none is written to by all others at once.
    template <typename V>
    __device__ __forceinline__ void send(int thread, V vector) const {
#pragma unroll 1
        for (unsigned turn = 1; turn < BLOCKS; ++turn) {
            unsigned rank = own ^ turn, there = address_in_block(barrier, rank);
            unsigned at = address_in_block(shared_address(place(turn, 0, thread)), rank);
#pragma unroll
            for (int to = 0; to < BLOCKS; ++to)
                if (to == rank) {
#pragma unroll
                    for (int i = 0; i < VECTORS; ++i) store_async(at + i * (THREADS * 16), vector(to, i), there);
                }
        }
    }

    // Returns once all that others send is there; and the i-th vector of the block that is in turn with this one.
    __device__ __forceinline__ void wait() const { barrier_wait_of_cluster(barrier, 0); }
    __device__ __forceinline__ Vector<float> received(int turn, int i, int thread) const {
        return *reinterpret_cast<const Vector<float>*>(place(turn, i, thread));
    }
    __device__ __forceinline__ unsigned char* place(int turn, int i, int thread) const {
        return memory + (((turn - 1) * VECTORS + i) * THREADS + thread) * 16;
    }
};
