// Hopper's warpgroup products (wgmma; compiled for sm_90a) of 16-bit elements, and of float as tf32.
//
// A product takes its operands by descriptors of shared memory, in rows of 128 bytes whose eight chunks are exclusive-ored with
// their row modulo 8 (the instruction's 128-byte swizzle; 1024 bytes are one block of it):
//   rows of K        128 bytes of K of each row of x, or of each column of W
//   panels           64 columns of W, with a row of 128 bytes for every k: 16 bits alone
// or x from registers. Of floats the tensor cores cut off what tf32 does not hold.
#pragma once
#include "_shared/cuda/device.cuh"

// ---- registers ---------------------------------------------------------------------------------------------------------

// Of a thread, set by a whole warpgroup: what the producer gives up, the consumers may take.
constexpr int PRODUCER_REGISTERS = 40;
// Of each of so many consumer WARPGROUPS, where the producer keeps PRODUCER.
template <int WARPGROUPS, int PRODUCER = PRODUCER_REGISTERS, int SHARE = (504 - PRODUCER) / WARPGROUPS / 8 * 8>
constexpr int CONSUMER_REGISTERS = SHARE < 240 ? SHARE : 240;
template <int COUNT>
__device__ __forceinline__ void warpgroup_reg_dealloc() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void warpgroup_reg_alloc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// A value that is the same in all lanes of a warp, as one that the compiler knows to be: what is computed from it takes uniform registers, in
// which products want their descriptors.
__device__ __forceinline__ int uniform(int v) { return __shfl_sync(0xffffffffu, v, 0); }

// ---- products ----------------------------------------------------------------------------------------------------------

// The descriptor of a matrix in shared memory: `leading` bytes from one panel of 64 columns to the next (of columns only), 1024
// from eight rows to the next eight, 128-byte swizzle.
__device__ __forceinline__ unsigned long long descriptor(unsigned address, unsigned leading = 16) {
    return (1ull << 62) | (1024ull >> 4) << 32 | static_cast<unsigned long long>(leading >> 4) << 16 |
           (address & 0x3ffff) >> 4;
}

__device__ __forceinline__ void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The 4, 32, … registers from fragment j on, as operands; and their numbers, ten at a time.
#define SUMS4(j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define SUMS32(j) SUMS4(j), SUMS4(j + 1), SUMS4(j + 2), SUMS4(j + 3), SUMS4(j + 4), SUMS4(j + 5), SUMS4(j + 6), SUMS4(j + 7)
#define TEN(d) "%" #d "0, %" #d "1, %" #d "2, %" #d "3, %" #d "4, %" #d "5, %" #d "6, %" #d "7, %" #d "8, %" #d "9, "
#define FIRST "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
#define NUMBERS64 FIRST TEN(1) TEN(2) "%30, %31"
#define NUMBERS128 FIRST TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) "%60, %61, %62, %63"
#define NUMBERS192 FIRST TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) "%90, %91, %92, %93, %94, %95"
#define NUMBERS256 FIRST TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7) TEN(8) TEN(9) TEN(10) TEN(11) \
        "%120, %121, %122, %123, %124, %125, %126, %127"
// x by its descriptor, and in registers. What follows the operands: whether the sums count, two signs, and which are transposed.
#define OF_MEMORY(N, TYPES, X, W, ADD, COLUMNS, ...)                                                             \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N TYPES " {" NUMBERS##N "}, " X ", " W ", " ADD ", 1, 1" COLUMNS ";" \
                 : __VA_ARGS__                                                                                    \
                 : "l"(x), "l"(w), "n"(ADDS), "n"(X_IN_COLUMNS), "n"(IN_COLUMNS))
#define OF_REGISTERS(N, TYPES, X, W, COLUMNS, ...)                                                                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N TYPES " {" NUMBERS##N "}, {" X "}, " W ", 1, 1, 1" COLUMNS ";" \
                 : __VA_ARGS__                                                                                    \
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(w), "n"(IN_COLUMNS))
#define SUMS64(j) SUMS32(j), SUMS32(j + 8)
#define PRODUCTS_OF_MEMORY(TYPES, COLUMNS256, COLUMNS192, COLUMNS128, COLUMNS64)                                  \
    static_assert(FN == 8 || FN == 16 || FN == 24 || FN == 32, "64, 128, 192 or 256 columns");                    \
    if constexpr (FN == 32) OF_MEMORY(256, TYPES, "%128", "%129", "%130", COLUMNS256, SUMS64(0), SUMS64(16));     \
    else if constexpr (FN == 24) OF_MEMORY(192, TYPES, "%96", "%97", "%98", COLUMNS192, SUMS64(0), SUMS32(16));   \
    else if constexpr (FN == 16) OF_MEMORY(128, TYPES, "%64", "%65", "%66", COLUMNS128, SUMS64(0));               \
    else OF_MEMORY(64, TYPES, "%32", "%33", "%34", COLUMNS64, SUMS32(0))
#define PRODUCTS_OF_REGISTERS(TYPES, COLUMNS256, COLUMNS128, COLUMNS64)                                           \
    static_assert(FN == 8 || FN == 16 || FN == 32, "64, 128 or 256 columns");                                     \
    if constexpr (FN == 32)                                                                                       \
        OF_REGISTERS(256, TYPES, "%128, %129, %130, %131", "%132", COLUMNS256, SUMS64(0), SUMS64(16));            \
    else if constexpr (FN == 16) OF_REGISTERS(128, TYPES, "%64, %65, %66, %67", "%68", COLUMNS128, SUMS64(0));    \
    else OF_REGISTERS(64, TYPES, "%32, %33, %34, %35", "%36", COLUMNS64, SUMS32(0))
#define PRODUCTS16_OF_MEMORY(TYPE) \
    PRODUCTS_OF_MEMORY("k16.f32." TYPE "." TYPE, ", %131, %132", ", %99, %100", ", %67, %68", ", %35, %36")
#define PRODUCTS16_OF_REGISTERS(TYPE) PRODUCTS_OF_REGISTERS("k16.f32." TYPE "." TYPE, ", %133", ", %69", ", %37")
#define TF32 "k8.f32.tf32.tf32"

// c += 64 rows of x @ FN * 8 columns of W over 32 bytes of K; c = without ADDS. IN_COLUMNS is 1 where W lies in panels of columns,
// X_IN_COLUMNS where x lies in such panels of rows. x in registers are mma.sync's fragments of 16 rows a warp.
template <int IN_COLUMNS, int ADDS = 1, int X_IN_COLUMNS = 0, int FN>
__device__ __forceinline__ void wgmma(float (&c)[FN][4], unsigned long long x, unsigned long long w, float16) {
    PRODUCTS16_OF_MEMORY("f16");
}
template <int IN_COLUMNS, int ADDS = 1, int X_IN_COLUMNS = 0, int FN>
__device__ __forceinline__ void wgmma(float (&c)[FN][4], unsigned long long x, unsigned long long w, bfloat16) {
    PRODUCTS16_OF_MEMORY("bf16");
}
template <int IN_COLUMNS, int FN>
__device__ __forceinline__ void wgmma(float (&c)[FN][4], const unsigned (&x)[4], unsigned long long w, float16) {
    PRODUCTS16_OF_REGISTERS("f16");
}
template <int IN_COLUMNS, int FN>
__device__ __forceinline__ void wgmma(float (&c)[FN][4], const unsigned (&x)[4], unsigned long long w, bfloat16) {
    PRODUCTS16_OF_REGISTERS("bf16");
}
template <int IN_COLUMNS, int ADDS = 1, int X_IN_COLUMNS = 0, int FN>
__device__ __forceinline__ void wgmma(float (&c)[FN][4], unsigned long long x, unsigned long long w, float) {
    static_assert(!IN_COLUMNS && !X_IN_COLUMNS, "tf32 is multiplied from rows of K alone");
    PRODUCTS_OF_MEMORY(TF32, "", "", "", "");
}
template <int IN_COLUMNS, int FN>
__device__ __forceinline__ void wgmma(float (&c)[FN][4], const unsigned (&x)[4], unsigned long long w, float) {
    static_assert(!IN_COLUMNS, "tf32 is multiplied from rows of K alone");
    PRODUCTS_OF_REGISTERS(TF32, "", "", "");
}
#undef SUMS4
#undef SUMS32
#undef SUMS64
#undef TEN
#undef FIRST
#undef NUMBERS64
#undef NUMBERS128
#undef NUMBERS192
#undef NUMBERS256
#undef OF_MEMORY
#undef OF_REGISTERS
#undef PRODUCTS_OF_MEMORY
#undef PRODUCTS_OF_REGISTERS
#undef PRODUCTS16_OF_MEMORY
#undef PRODUCTS16_OF_REGISTERS
#undef TF32

// Keeps the compiler from touching sums while products are under way.
template <int FN>
__device__ __forceinline__ void warpgroup_fence_operand(float (&c)[FN][4]) {
#pragma unroll
    for (int j = 0; j < FN; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(c[j][e])::"memory");
}
