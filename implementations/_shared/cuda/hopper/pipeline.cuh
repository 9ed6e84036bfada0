// The pipeline between producers and consumers in a block on Hopper: stages of shared memory, which the copy engine (TMA) fills
// and warpgroups multiply from.
//
// Producers and consumers never wait for one another but through two barriers a stage: `full`, which counts the bytes that are
// there, and `empty`, at which each consumer warp arrives once the tensor cores have read the stage. In a cluster, one copy may
// write to the stages of all blocks; so `empty` then counts the consumers of all of them.
#pragma once
#include "_shared/cuda/device.cuh"

// ---- barriers in shared memory -----------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// By the thread that initialised them, before a barrier of all: the copy engine and other blocks of the cluster see them.
__device__ __forceinline__ void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// At one of another block, by address_in_block(). Without the order of memory for the cluster: who waits for it wants to know
// that something was read, and sees nothing written.
__device__ __forceinline__ void barrier_arrive_remote(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// At this block's, and the phase lasts until `bytes` more are there.
__device__ __forceinline__ void barrier_arrive_and_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Returns once the phase of that parity is over; of a fresh barrier, that of parity 1 is.
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "retry: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra retry;\n"
        "}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// The same of what other blocks of the cluster have written.
__device__ __forceinline__ void barrier_wait_of_cluster(unsigned barrier, unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "retry: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra retry;\n"
        "}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
// Four floats to another block's shared memory, whose bytes count at a barrier there.
__device__ __forceinline__ void store_async(unsigned to, const float (&v)[4], unsigned barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"(barrier)
                 : "memory");
}

// All threads of the cluster have come here: its barriers are initialised, or none of its blocks writes to another any more.
template <int CLUSTER>
__device__ __forceinline__ void cluster_sync() {
    if constexpr (CLUSTER > 1) cluster_arrive(), cluster_wait();
    else __syncthreads();
}

// True in one thread of a warp. Where the compiler knows that, a copy is one instruction and not a loop over threads.
__device__ __forceinline__ bool elect_one() {
    unsigned elected;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "elect.sync _|p, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(elected));
    return elected != 0;
}

// ---- the copy engine ---------------------------------------------------------------------------------------------------

// What the driver encodes (cuTensorMapEncodeTiled): where a matrix lies, its sizes, and the box that a copy brings, whose rows
// of 128 bytes are swizzled as wgmma.cuh says. What of a box lies outside of the matrix becomes 0.
struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

// Before the first copy by a map, which would wait for it.
__device__ __forceinline__ void prefetch(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

// Brings a box from its first element on, innermost index first; its bytes count at `barrier`. To the same place in all
// blocks of the cluster, each of whose own barrier counts them, where CLUSTER > 1.
template <int CLUSTER = 1>
__device__ __forceinline__ void tma_load(unsigned to, const TensorMap& map, int i, int j, unsigned barrier) {
    if constexpr (CLUSTER == 1)
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
            "l"(&map), "r"(barrier), "r"(i), "r"(j)
            : "memory");
    else
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
            "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
            "l"(&map), "r"(barrier), "r"(i), "r"(j), "h"(static_cast<unsigned short>((1 << CLUSTER) - 1))
            : "memory");
}
__device__ __forceinline__ void tma_load(unsigned to, const TensorMap& map, int i, int j, int k, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(i), "r"(j), "r"(k)
        : "memory");
}

// `bytes` from global to shared memory, which count at `barrier`; and from shared to global, a group of their own. Both are multiples of 16.
__device__ __forceinline__ void bulk_load(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}
__device__ __forceinline__ void bulk_store(void* to, unsigned from, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Returns once the shared memory of this thread's stores may be written again.
__device__ __forceinline__ void bulk_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// What this thread has read or written of shared memory by ordinary instructions comes before what the copy engine writes there, or products read, once they may.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- the pipeline ------------------------------------------------------------------------------------------------------

// STAGES stages of STAGE bytes, and two barriers of each, from `memory` on, which is a multiple of 1024 where tensor cores read
// them. What is i-th to pass through it is in stage i % STAGES.
template <int STAGES, int STAGE, int CLUSTER = 1>
struct Pipeline {
    static constexpr int COUNT = STAGES, STAGE_BYTES = STAGE, BYTES = STAGES * (STAGE + 16);
    unsigned char* memory;
    unsigned barriers;

    __device__ __forceinline__ explicit Pipeline(unsigned char* memory)
        : memory(memory), barriers(shared_address(memory) + STAGES * STAGE) {}
    __device__ __forceinline__ unsigned char* stage(int i) const { return memory + i % STAGES * STAGE; }
    __device__ __forceinline__ unsigned full(int i) const { return barriers + i % STAGES * 16; }
    __device__ __forceinline__ unsigned empty(int i) const { return full(i) + 8; }

    // By one thread, before a barrier of all: how many threads of a block fill a stage, and how many warps of it read one.
    __device__ __forceinline__ void init(unsigned producers, unsigned consumers) const {
        for (int stage = 0; stage < STAGES; ++stage)
            barrier_init(full(stage), producers), barrier_init(empty(stage), consumers * CLUSTER);
        fence_barrier_init();
    }

    // By producers: the stage's memory, once what it had is read.
    __device__ __forceinline__ unsigned char* producer_acquire(int i) const {
        barrier_wait(empty(i), i / STAGES & 1 ^ 1);
        return stage(i);
    }
    // The same, to be filled by copies of all STAGE bytes, or less, where `more` is negative, which `more` elsewhere come with: these copies
    // commit it.
    __device__ __forceinline__ unsigned producer_acquire_for_tma(int i, int more = 0) const {
        unsigned char* to = producer_acquire(i);
        barrier_arrive_and_expect(full(i), STAGE + more);
        return shared_address(to);
    }
    // By each producer thread that wrote to the stage itself.
    __device__ __forceinline__ void producer_commit(int i) const { barrier_arrive(full(i)); }

    // By consumers: returns once the stage is filled; and says that this warp has read it, all of its lanes.
    __device__ __forceinline__ void consumer_wait(int i) const { barrier_wait(full(i), i / STAGES & 1); }
    __device__ __forceinline__ void consumer_release(int i) const {
        __syncwarp();
        unsigned lane = threadIdx.x % 32;
        if constexpr (CLUSTER == 1) {
            if (lane == 0) barrier_arrive(empty(i));
        } else {
            if (lane < CLUSTER) barrier_arrive_remote(address_in_block(empty(i), lane));
        }
    }
};
