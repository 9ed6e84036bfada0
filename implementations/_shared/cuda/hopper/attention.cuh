// Attention on Hopper's warpgroup products: elements of 16 bits, rows that begin at multiples of 16 bytes and hold whole vectors, those of
// y where they are ALIGNED; q, k and v are tensor maps (heads, tokens, D) of boxes of 64 elements of a tile's rows.
//
// Rows of q, k and v lie in panels of 64 elements, DP being D made up to whole ones with zeros: [panel][row][128 bytes], swizzled
// as wgmma.cuh says. For the scores that is rows of K, for the product with v it is panels of columns, so that k and v are
// copied in the same way. A warpgroup has 64 rows, a warp 16 of them, and the softmax is Attention's with one warp to a row.
//
// While the tensor cores multiply the weights of one tile of tokens with v, the scores of the next become weights: so they have
// registers of their own, and what is summed so far is brought to the new maximum only after the product.
#pragma once
#include "_shared/cuda/attention.cuh"
#include "_shared/cuda/hopper/pipeline.cuh"
#include "_shared/cuda/hopper/wgmma.cuh"

// Blocks of BM rows that share a multiprocessor's registers: two of 64, if shared memory has place for both. One of 64 rows has enough without
// those that a producer can give.
template <int DP, int BM>
constexpr int ATTENTION_BLOCKS = BM == 64 && DP <= 128 ? 2 : 1;
template <int DP, int BM>
constexpr bool HANDS_REGISTERS = BM > 64 || ATTENTION_BLOCKS<DP, BM> == 2;

// By one thread: ROWS rows of a head from `first` on, all panels of them.
template <int DP, int ROWS>
__device__ __forceinline__ void load_panels(unsigned to, const TensorMap& from, int first, int head, unsigned barrier) {
#pragma unroll
    for (int panel = 0; panel < DP / 64; ++panel) tma_load(to + panel * (ROWS * 128), from, panel * 64, first, head, barrier);
}

// The rows of warpgroups 1, 2, …, KEYS tokens at a time.
template <typename T, int DP, int BM, int KEYS, bool ALIGNED = true>
struct WarpgroupAttention : Attention<T, false, ALIGNED, DP, 1, BM / 16, 1, KEYS> {
    using Base = Attention<T, false, ALIGNED, DP, 1, BM / 16, 1, KEYS>;
    static constexpr int FN = KEYS / 8, Q_BYTES = BM * DP * 2, STAGE = KEYS * DP * 2;  // bytes in panels
    static_assert(DP % 64 == 0 && DP <= 256, "whole panels, as many as wgmma has columns of v");
    unsigned weights[KEYS / 16][4];
    int warpgroup;  // of consumers

    __device__ __forceinline__ WarpgroupAttention() : warpgroup(uniform(threadIdx.x / 128) - 1) { Base::row -= 64; }

    // Begins s = rows of q times tokens of k.
    __device__ __forceinline__ void issue_scores(float (&s)[1][FN][4], const unsigned char* q, const unsigned char* k) const {
        auto rows = descriptor(shared_address(q) + warpgroup * 64 * 128), tokens = descriptor(shared_address(k));
#pragma unroll
        for (int step = 0; step < DP / 16; ++step) {  // descriptors count in 16 bytes
            auto x = rows + (step / 4 * (BM * 128) + step % 4 * 32) / 16;
            auto w = tokens + (step / 4 * (KEYS * 128) + step % 4 * 32) / 16;
            if (step == 0) wgmma<0, 0>(s[0], x, w, T{});
            else wgmma<0>(s[0], x, w, T{});
        }
    }

    // Begins acc += weights times tokens of v.
    __device__ __forceinline__ void issue_values(const unsigned char* v) {
        auto tokens = descriptor(shared_address(v), KEYS * 128);
#pragma unroll
        for (int j = 0; j < KEYS / 16; ++j) wgmma<1>(Base::acc[0], weights[j], tokens + j * 2048 / 16, T{});
    }

    // s becomes exp2(s * scale - highest) with the new maximum. What acc is to be multiplied by, and `total` was.
    __device__ __forceinline__ void online_softmax(float (&s)[1][FN][4], float scale, float (&rescale)[2]) {
        float before[2] = {Base::highest[0][0], Base::highest[0][1]};
        Base::update_maximum(s, scale);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            Base::highest[0][h] = lane_reduce<true, 4>(Base::highest[0][h]);
            rescale[h] = exp2_approximate(before[h] - Base::highest[0][h]);
            Base::total[0][h] *= rescale[h];
        }
        Base::exponentials(s, scale);
    }

    // The exponentials stay before what follows. ptxas takes a wait for products before arithmetic that touches no memory, which then
    // waits as well; a store that needs their sum, and never happens, because no sum of them is negative, holds it back. It is one
    // instruction: after a branch the compiler would no longer know that all lanes are at the same tile.
    __device__ __forceinline__ void keep_before_wait(unsigned char* memory) const {
        store_if_negative(memory, Base::total[0][0] + Base::total[0][1]);
    }
    // The same of exponentials that are not summed: their sign bits.
    __device__ __forceinline__ void keep_before_wait(const float (&s)[1][FN][4], unsigned char* memory) const {
        unsigned bits = 0;
#pragma unroll
        for (int f = 0; f < FN; ++f)
#pragma unroll
            for (int c = 0; c < 4; ++c) bits |= __float_as_uint(s[0][f][c]);
        store_if_negative(memory, __uint_as_float(bits));
    }
    static __device__ __forceinline__ void store_if_negative(unsigned char* memory, float v) {
        asm volatile(
            "{\n"
            ".reg .pred negative;\n"
            "setp.lt.f32 negative, %1, 0f00000000;\n"
            "@negative st.shared.f32 [%0], %1;\n"
            "}" ::"r"(shared_address(memory)),
            "f"(v)
            : "memory");
    }

    __device__ __forceinline__ void rescale(const float (&by)[2]) {
#pragma unroll
        for (int f = 0; f < DP / 8; ++f)
#pragma unroll
            for (int c = 0; c < 4; ++c) Base::acc[0][f][c] *= by[c / 2];
    }

    // As the left operand of the product with v.
    __device__ __forceinline__ void pack_weights(const float (&s)[1][FN][4]) {
#pragma unroll
        for (int j = 0; j < KEYS / 16; ++j)
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const float(&pair)[4] = s[0][2 * j + r / 2];
                weights[j][r] = pack(pair[r % 2 * 2], pair[r % 2 * 2 + 1], T{});
            }
    }
};
