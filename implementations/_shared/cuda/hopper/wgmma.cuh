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

// That of what lies `bytes` behind it, a multiple of 16. Its low half alone changes, which is one instruction.
__device__ __forceinline__ unsigned long long behind(unsigned long long descriptor, unsigned bytes) {
    return (descriptor >> 32 << 32) | (static_cast<unsigned>(descriptor) + (bytes >> 4));
}

__device__ __forceinline__ void warpgroup_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void warpgroup_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void warpgroup_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The 4, 8, … registers from fragment j on, as operands; and their numbers, ten at a time.
#define SUMS4(j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define SUMS8(j) SUMS4(j), SUMS4(j + 1)
#define SUMS16(j) SUMS8(j), SUMS8(j + 2)
#define SUMS32(j) SUMS16(j), SUMS16(j + 4)
#define SUMS64(j) SUMS32(j), SUMS32(j + 8)
#define TEN(d) "%" #d "0, %" #d "1, %" #d "2, %" #d "3, %" #d "4, %" #d "5, %" #d "6, %" #d "7, %" #d "8, %" #d "9, "
#define FIRST "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
#define TWO(d) "%" #d "0, %" #d "1"
#define FOUR(d) TWO(d) ", %" #d "2, %" #d "3"
#define SIX(d) FOUR(d) ", %" #d "4, %" #d "5"
#define EIGHT(d) SIX(d) ", %" #d "6, %" #d "7"
#define ALL_TEN(d) EIGHT(d) ", %" #d "8, %" #d "9"
#define FIFTY FIRST TEN(1) TEN(2) TEN(3) TEN(4)
#define HUNDRED FIFTY TEN(5) TEN(6) TEN(7) TEN(8) TEN(9)
#define NUMBERS64 FIRST TEN(1) TEN(2) TWO(3)
#define NUMBERS80 FIRST TEN(1) TEN(2) ALL_TEN(3)
#define NUMBERS96 FIRST TEN(1) TEN(2) TEN(3) EIGHT(4)
#define NUMBERS112 FIFTY SIX(5)
#define NUMBERS128 FIFTY TEN(5) FOUR(6)
#define NUMBERS144 FIFTY TEN(5) TEN(6) TWO(7)
#define NUMBERS160 FIFTY TEN(5) TEN(6) ALL_TEN(7)
#define NUMBERS176 FIFTY TEN(5) TEN(6) TEN(7) EIGHT(8)
#define NUMBERS192 FIFTY TEN(5) TEN(6) TEN(7) TEN(8) SIX(9)
#define NUMBERS208 HUNDRED FOUR(10)
#define NUMBERS224 HUNDRED TEN(10) TWO(11)
#define NUMBERS240 HUNDRED TEN(10) ALL_TEN(11)
#define NUMBERS256 HUNDRED TEN(10) TEN(11) EIGHT(12)
// x by its descriptor, and in registers. What follows the operands: whether the sums count, two signs, and which are transposed. X, W, … are the
// numbers of what follows the sums, of which the COLUMNS of 16 bits want two for which operands are transposed.
#define OF_MEMORY(N, TYPES, COLUMNS, X, W, ADD, X_COLUMNS, W_COLUMNS, ...)                                                    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N TYPES " {" NUMBERS##N "}, %" #X ", %" #W ", %" #ADD ", 1, 1" \
                 COLUMNS(X_COLUMNS, W_COLUMNS) ";"                                                                   \
                 : __VA_ARGS__                                                                                       \
                 : "l"(x), "l"(w), "n"(ADDS), "n"(X_IN_COLUMNS), "n"(IN_COLUMNS))
#define IN_EITHER(a, b) ", %" #a ", %" #b
#define IN_ROWS(a, b) ""
#define OF_REGISTERS(N, TYPES, X, W, COLUMNS, ...)                                                                \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #N TYPES " {" NUMBERS##N "}, {" X "}, " W ", 1, 1, 1" COLUMNS ";" \
                 : __VA_ARGS__                                                                                    \
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "l"(w), "n"(IN_COLUMNS))
#define PRODUCTS_OF_MEMORY(TYPES, COLUMNS)                                                                                      \
    static_assert(FN % 2 == 0 && FN >= 8 && FN <= 32, "64, 80, … 256 columns");                                                 \
    if constexpr (FN == 32) OF_MEMORY(256, TYPES, COLUMNS, 128, 129, 130, 131, 132, SUMS64(0), SUMS64(16));                     \
    else if constexpr (FN == 30) OF_MEMORY(240, TYPES, COLUMNS, 120, 121, 122, 123, 124, SUMS64(0), SUMS32(16), SUMS16(24), SUMS8(28)); \
    else if constexpr (FN == 28) OF_MEMORY(224, TYPES, COLUMNS, 112, 113, 114, 115, 116, SUMS64(0), SUMS32(16), SUMS16(24));    \
    else if constexpr (FN == 26) OF_MEMORY(208, TYPES, COLUMNS, 104, 105, 106, 107, 108, SUMS64(0), SUMS32(16), SUMS8(24));     \
    else if constexpr (FN == 24) OF_MEMORY(192, TYPES, COLUMNS, 96, 97, 98, 99, 100, SUMS64(0), SUMS32(16));                    \
    else if constexpr (FN == 22) OF_MEMORY(176, TYPES, COLUMNS, 88, 89, 90, 91, 92, SUMS64(0), SUMS16(16), SUMS8(20));          \
    else if constexpr (FN == 20) OF_MEMORY(160, TYPES, COLUMNS, 80, 81, 82, 83, 84, SUMS64(0), SUMS16(16));                     \
    else if constexpr (FN == 18) OF_MEMORY(144, TYPES, COLUMNS, 72, 73, 74, 75, 76, SUMS64(0), SUMS8(16));                      \
    else if constexpr (FN == 16) OF_MEMORY(128, TYPES, COLUMNS, 64, 65, 66, 67, 68, SUMS64(0));                                 \
    else if constexpr (FN == 14) OF_MEMORY(112, TYPES, COLUMNS, 56, 57, 58, 59, 60, SUMS32(0), SUMS16(8), SUMS8(12));           \
    else if constexpr (FN == 12) OF_MEMORY(96, TYPES, COLUMNS, 48, 49, 50, 51, 52, SUMS32(0), SUMS16(8));                       \
    else if constexpr (FN == 10) OF_MEMORY(80, TYPES, COLUMNS, 40, 41, 42, 43, 44, SUMS32(0), SUMS8(8));                        \
    else OF_MEMORY(64, TYPES, COLUMNS, 32, 33, 34, 35, 36, SUMS32(0))
#define PRODUCTS_OF_REGISTERS(TYPES, COLUMNS256, COLUMNS192, COLUMNS128, COLUMNS64)                               \
    static_assert(FN % 8 == 0 && FN >= 8 && FN <= 32, "64, 128, 192 or 256 columns");                             \
    if constexpr (FN == 32)                                                                                       \
        OF_REGISTERS(256, TYPES, "%128, %129, %130, %131", "%132", COLUMNS256, SUMS64(0), SUMS64(16));            \
    else if constexpr (FN == 24)                                                                                  \
        OF_REGISTERS(192, TYPES, "%96, %97, %98, %99", "%100", COLUMNS192, SUMS64(0), SUMS32(16));                \
    else if constexpr (FN == 16) OF_REGISTERS(128, TYPES, "%64, %65, %66, %67", "%68", COLUMNS128, SUMS64(0));    \
    else OF_REGISTERS(64, TYPES, "%32, %33, %34, %35", "%36", COLUMNS64, SUMS32(0))
#define PRODUCTS16_OF_MEMORY(TYPE) PRODUCTS_OF_MEMORY("k16.f32." TYPE "." TYPE, IN_EITHER)
#define PRODUCTS16_OF_REGISTERS(TYPE) PRODUCTS_OF_REGISTERS("k16.f32." TYPE "." TYPE, ", %133", ", %101", ", %69", ", %37")
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
    PRODUCTS_OF_MEMORY(TF32, IN_ROWS);
}
template <int IN_COLUMNS, int FN>
__device__ __forceinline__ void wgmma(float (&c)[FN][4], const unsigned (&x)[4], unsigned long long w, float) {
    static_assert(!IN_COLUMNS, "tf32 is multiplied from rows of K alone");
    PRODUCTS_OF_REGISTERS(TF32, "", "", "", "");
}
#undef SUMS4
#undef SUMS8
#undef SUMS16
#undef SUMS32
#undef SUMS64
#undef TEN
#undef FIRST
#undef TWO
#undef FOUR
#undef SIX
#undef EIGHT
#undef ALL_TEN
#undef FIFTY
#undef HUNDRED
#undef NUMBERS64
#undef NUMBERS80
#undef NUMBERS96
#undef NUMBERS112
#undef NUMBERS128
#undef NUMBERS144
#undef NUMBERS160
#undef NUMBERS176
#undef NUMBERS192
#undef NUMBERS208
#undef NUMBERS224
#undef NUMBERS240
#undef NUMBERS256
#undef OF_MEMORY
#undef IN_EITHER
#undef IN_ROWS
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
