// Hopper's warpgroup products (wgmma; compiled for sm_90a) of 16-bit elements, and the ring that feeds them.
//
// A warpgroup product takes its operands by descriptors of shared memory, in rows of 128 bytes whose eight chunks are
// exclusive-ored with their row modulo 8 (the instruction's 128-byte swizzle; 1024 bytes are one block of it):
//   rows of K        64 elements of K of each row of x, or of each column of W
//   panels           64 columns of W, with a row of 128 bytes for every k
// or x from registers.
//
// One thread has the copy engine (TMA) bring slabs into a ring in shared memory, and warpgroups multiply them from there. They
// never wait for one another but through two barriers a slab: `full`, which counts the bytes that are there, and `empty`, at
// which each warp arrives once the tensor cores have read the slab. In a cluster, one copy may write to all blocks' slabs; so
// `empty` then counts the readers of all of them.
#pragma once
#include "_device.cuh"

// ---- barriers in shared memory -----------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// By the thread that initialised them, before a barrier of all: the copy engine and other blocks of the cluster see them.
__device__ __forceinline__ void barriers_are_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// At one of another block, by address_in_block(). Without the order of memory for the cluster: who waits for it wants to know
// that something was read, and sees nothing written.
__device__ __forceinline__ void barrier_arrive_there(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// At this block's, and the phase lasts until `bytes` more are there.
__device__ __forceinline__ void barrier_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Returns once the phase of that parity is over; of a fresh barrier, that of parity 1 is.
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// ---- the copy engine ---------------------------------------------------------------------------------------------------

// What the driver encodes (cuTensorMapEncodeTiled): where a matrix lies, its sizes, and the box that a copy brings, whose rows
// of 128 bytes are swizzled as above. What of a box lies outside of the matrix becomes 0.
struct alignas(64) TensorMap {
    unsigned char bytes[128];
};

// Brings a box from its first element on, innermost index first; its bytes count at `barrier`. To the same place in all
// blocks of the cluster, each of whose own barrier counts them, where CLUSTER > 1.
template <int CLUSTER = 1>
__device__ __forceinline__ void copy_box(unsigned to, const TensorMap& map, int i, int j, unsigned barrier) {
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
__device__ __forceinline__ void copy_box(unsigned to, const TensorMap& map, int i, int j, int k, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
        "l"(&map), "r"(barrier), "r"(i), "r"(j), "r"(k)
        : "memory");
}

// What this thread has read of shared memory by ordinary loads comes before what the copy engine writes there once it may.
__device__ __forceinline__ void order_before_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Registers of a thread, for the whole warpgroup: what the one that brings slabs gives up, the others may take.
constexpr int BRINGING = 40;
// Of each of WARPGROUPS that multiply, where another one keeps OTHERS.
template <int WARPGROUPS, int OTHERS = BRINGING, int SHARE = (504 - OTHERS) / WARPGROUPS / 8 * 8>
constexpr int MULTIPLYING = SHARE < 240 ? SHARE : 240;
template <int COUNT>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- products ----------------------------------------------------------------------------------------------------------

// A matrix in shared memory: `leading` bytes from one panel of 64 columns to the next (of columns only), 1024 from eight rows
// to the next eight, 128-byte swizzle.
__device__ __forceinline__ unsigned long long matrix(unsigned address, unsigned leading = 16) {
    return (1ull << 62) | (1024ull >> 4) << 32 | static_cast<unsigned long long>(leading >> 4) << 16 |
           (address & 0x3ffff) >> 4;
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The 4, 32, … registers from fragment j on, as operands; and their numbers, ten at a time.
#define SUMS4(j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define SUMS32(j) SUMS4(j), SUMS4(j + 1), SUMS4(j + 2), SUMS4(j + 3), SUMS4(j + 4), SUMS4(j + 5), SUMS4(j + 6), SUMS4(j + 7)
#define TEN(d) "%" #d "0, %" #d "1, %" #d "2, %" #d "3, %" #d "4, %" #d "5, %" #d "6, %" #d "7, %" #d "8, %" #d "9, "
#define FIRST "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
#define NUMBERS64 FIRST TEN(1) TEN(2) "%30, %31"
#define NUMBERS128 FIRST TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60, %61, %62, %63"
#define NUMBERS256 FIRST TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11) \
        "%120, %121, %122, %123, %124, %125, %126, %127"
// x by its descriptor, and in registers. What follows the operands: whether the sums count, two signs, and which are transposed.
#define OF_MEMORY(N, TYPE, X, W, ADD, COLUMNS, ...)                                                      \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NUMBERS##N "}, " X \
                 ", " W ", " ADD ", 1, 1, 0, " COLUMNS ";"                                               \
                 : __VA_ARGS__                                                                           \
                 : "l"(x), "l"(w), "n"(ADDS), "n"(IN_COLUMNS))
#define OF_REGISTERS(N, TYPE, X, W, COLUMNS, ...)                                                           \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NUMBERS##N "}, {" X   \
                 "}, " W ", 1, 1, 1, " COLUMNS ";"                                                          \
                 : __VA_ARGS__                                                                              \
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(w), "n"(IN_COLUMNS))
#define PRODUCTS_OF_MEMORY(TYPE)                                                                                 \
    static_assert(FN == 16 || FN == 32, "128 or 256 columns");                                                   \
    if constexpr (FN == 32)                                                                                      \
        OF_MEMORY(256, TYPE, "%128", "%129", "%130", "%131", SUMS32(0), SUMS32(8), SUMS32(16), SUMS32(24));      \
    else OF_MEMORY(128, TYPE, "%64", "%65", "%66", "%67", SUMS32(0), SUMS32(8))
#define PRODUCTS_OF_REGISTERS(TYPE)                                                                              \
    static_assert(FN == 8 || FN == 16, "64 or 128 columns");                                                     \
    if constexpr (FN == 16)                                                                                      \
        OF_REGISTERS(128, TYPE, "%64, %65, %66, %67", "%68", "%69", SUMS32(0), SUMS32(8));                       \
    else OF_REGISTERS(64, TYPE, "%32, %33, %34, %35", "%36", "%37", SUMS32(0))

// c += 64 rows of x @ FN * 8 columns of W over 16 of K; c = without ADDS. IN_COLUMNS is 1 where W lies in panels of columns.
// x in registers are mma.sync's fragments of 16 rows a warp.
template <int IN_COLUMNS, int ADDS = 1, int FN>
__device__ __forceinline__ void warpgroup_product(float (&c)[FN][4], unsigned long long x, unsigned long long w, float16) {
    PRODUCTS_OF_MEMORY("f16");
}
template <int IN_COLUMNS, int ADDS = 1, int FN>
__device__ __forceinline__ void warpgroup_product(float (&c)[FN][4], unsigned long long x, unsigned long long w, bfloat16) {
    PRODUCTS_OF_MEMORY("bf16");
}
template <int IN_COLUMNS, int FN>
__device__ __forceinline__ void warpgroup_product(float (&c)[FN][4], const unsigned (&x)[4], unsigned long long w, float16) {
    PRODUCTS_OF_REGISTERS("f16");
}
template <int IN_COLUMNS, int FN>
__device__ __forceinline__ void warpgroup_product(float (&c)[FN][4], const unsigned (&x)[4], unsigned long long w, bfloat16) {
    PRODUCTS_OF_REGISTERS("bf16");
}
#undef SUMS4
#undef SUMS32
#undef TEN
#undef FIRST
#undef NUMBERS64
#undef NUMBERS128
#undef NUMBERS256
#undef OF_MEMORY
#undef OF_REGISTERS
#undef PRODUCTS_OF_MEMORY
#undef PRODUCTS_OF_REGISTERS

// Keeps the compiler from touching sums while products are under way.
template <int FN>
__device__ __forceinline__ void hold(float (&c)[FN][4]) {
#pragma unroll
    for (int j = 0; j < FN; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(c[j][e])::"memory");
}

// ---- the ring ------------------------------------------------------------------------------------------------------------

// STAGES slabs of STAGE bytes, and two barriers of each, from `memory` on, which is a multiple of 1024 where tensor cores read
// them. Slab i is at place i % STAGES.
template <int STAGES, int STAGE, int CLUSTER = 1>
struct Ring {
    static constexpr int BYTES = STAGES * (STAGE + 16);
    unsigned char* memory;
    unsigned barriers;

    __device__ __forceinline__ explicit Ring(unsigned char* memory)
        : memory(memory), barriers(shared_address(memory) + STAGES * STAGE) {}
    __device__ __forceinline__ unsigned char* slab(int i) const { return memory + i % STAGES * STAGE; }
    __device__ __forceinline__ unsigned full(int i) const { return barriers + i % STAGES * 16; }
    __device__ __forceinline__ unsigned empty(int i) const { return full(i) + 8; }

    // By one thread, before a barrier of all: how many threads bring a slab, and how many warps of a block read it.
    __device__ __forceinline__ void init(unsigned bringers, unsigned readers) const {
        for (int stage = 0; stage < STAGES; ++stage)
            barrier_init(full(stage), bringers), barrier_init(empty(stage), readers * CLUSTER);
        barriers_are_ready();
    }

    // By who brings slab i: its memory, once what it replaces is read.
    __device__ __forceinline__ unsigned char* vacant(int i) const {
        barrier_wait(empty(i), i / STAGES & 1 ^ 1);
        return slab(i);
    }
    // The same, to be filled by copies of all STAGE bytes, which `more` elsewhere come with.
    __device__ __forceinline__ unsigned expect(int i, unsigned more = 0) const {
        unsigned char* to = vacant(i);
        barrier_expect(full(i), STAGE + more);
        return shared_address(to);
    }

    // By readers: returns once slab i is there; and says that this warp has read it, all of its lanes.
    __device__ __forceinline__ void await(int i) const { barrier_wait(full(i), i / STAGES & 1); }
    __device__ __forceinline__ void release(int i) const {
        __syncwarp();
        unsigned lane = threadIdx.x % 32;
        if constexpr (CLUSTER == 1) {
            if (lane == 0) barrier_arrive(empty(i));
        } else {
            if (lane < CLUSTER) barrier_arrive_there(address_in_block(empty(i), lane));
        }
    }
};
