// Device code that several kernels share: storage types, 16-byte vectors, asynchronous copies, tensor-core wrappers,
// reductions and activations. It includes no header, so NVRTC alone compiles it. Needs compute capability 8.0.
#pragma once

// ---- storage types -------------------------------------------------------------------------------------------------
// 16-bit floats are their bits; arithmetic is always float32, so conversions are all that is needed of them.
struct float16 {
    unsigned short bits;
};
struct bfloat16 {
    unsigned short bits;
};

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(bfloat16 v) { return __uint_as_float(static_cast<unsigned>(v.bits) << 16); }
__device__ __forceinline__ float to_float(float16 v) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v.bits));
    return f;
}

template <typename T>
__device__ __forceinline__ T from_float(float v);
template <>
__device__ __forceinline__ float from_float<float>(float v) {
    return v;
}
template <>
__device__ __forceinline__ float16 from_float<float16>(float v) {
    float16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(v));
    return h;
}
template <>
__device__ __forceinline__ bfloat16 from_float<bfloat16>(float v) {
    bfloat16 h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h.bits) : "f"(v));
    return h;
}

// ---- launches that overlap -------------------------------------------------------------------------------------------
// A launch of a call may begin while the one before it ends (launch.py, in_turn). Its kernel begins with this: what lies in global memory is
// neither read nor written before. The launch behind it may begin from here on, which says the same. Elsewhere it does nothing.
__device__ __forceinline__ void wait_for_previous_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The line of 128 bytes on its way to the L2 cache.
__device__ __forceinline__ void prefetch_line(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }
// By all blocks: `bytes` on their way to the L2 cache, neighbouring lines by neighbouring blocks, so that few lines are no single block's. Before
// wait_for_previous_launch() only of what no launch of the call writes.
__device__ __forceinline__ void prefetch_to_cache(const void* from, long long bytes) {
    for (long long i = (threadIdx.x * static_cast<long long>(gridDim.x) + blockIdx.x) * 128; i < bytes; i += gridDim.x * blockDim.x * 128LL)
        prefetch_line(static_cast<const char*>(from) + i);
}

// ---- 16-byte vectors -----------------------------------------------------------------------------------------------
template <typename T>
struct alignas(16) Vector {
    static constexpr int SIZE = 16 / sizeof(T);
    T at[SIZE];
};

// Two neighbouring elements, which are stored at once.
template <typename T>
struct alignas(2 * sizeof(T)) Pair {
    T at[2];
};

// The two 16-bit elements of a register, which costs less than taking them out as shorts first.
template <typename T>
__device__ __forceinline__ float low_half(unsigned r) {
    return to_float(T{static_cast<unsigned short>(r)});
}
template <typename T>
__device__ __forceinline__ float high_half(unsigned r) {
    return to_float(T{static_cast<unsigned short>(r >> 16)});
}

// Element i of a vector, as a float.
__device__ __forceinline__ float element(const Vector<float>& v, int i) { return v.at[i]; }
template <typename T>
__device__ __forceinline__ float element(const Vector<T>& v, int i) {
    unsigned word = reinterpret_cast<const unsigned(&)[4]>(v)[i / 2];
    return i % 2 ? high_half<T>(word) : low_half<T>(word);
}

// The least number of elements, from n on, that are whole vectors.
template <typename T>
__device__ __forceinline__ long long filled_up(long long n) {
    return (n + Vector<T>::SIZE - 1) / Vector<T>::SIZE * Vector<T>::SIZE;
}

// A read-only 16-byte load that will be used once: it does not displace anything in L1.
template <typename T>
__device__ __forceinline__ Vector<T> load_streaming(const T* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return reinterpret_cast<Vector<T>&>(v);
}

// The same of memory that the kernel itself may overwrite afterwards.
template <typename T>
__device__ __forceinline__ Vector<T> load_once(const T* p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return reinterpret_cast<Vector<T>&>(v);
}

// `count` elements from p[0], the others 0. ALIGNED promises that p is 16-byte aligned and that count is no part of a
// vector.
template <bool ALIGNED, typename T>
__device__ __forceinline__ Vector<T> load_part(const T* p, int count) {
    if (ALIGNED && count > 0) return *reinterpret_cast<const Vector<T>*>(p);
    Vector<T> v = {};
#pragma unroll
    for (int i = 0; i < Vector<T>::SIZE && !ALIGNED; ++i)
        if (i < count) v.at[i] = p[i];
    return v;
}

// To global memory in one instruction: the compiler copies structs of 16-bit elements by words, each of which touches every sector.
template <typename T>
__device__ __forceinline__ void store_vector(T* p, const Vector<T>& v) {
    auto& words = reinterpret_cast<const unsigned(&)[4]>(v);
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
}

template <bool ALIGNED, typename T>
__device__ __forceinline__ void store_part(T* p, const Vector<T>& v, int count) {
    if (ALIGNED && count > 0) store_vector(p, v);
#pragma unroll
    for (int i = 0; i < Vector<T>::SIZE && !ALIGNED; ++i)
        if (i < count) p[i] = v.at[i];
}

// ---- shared memory, of this block and of others of its cluster -------------------------------------------------------
__device__ __forceinline__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// A cluster's blocks write to each other's shared memory. They must all have begun before the first write, and none may
// end before the last: every write lies between two of these barriers.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
// Without the order of memory: who waits for it wants to know that others have begun, or have read.
__device__ __forceinline__ void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// Where block `rank` of the cluster has what this one has at `address` of its shared memory.
__device__ __forceinline__ unsigned address_in_block(unsigned address, unsigned rank) {
    unsigned there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
// What another block of the cluster has there.
__device__ __forceinline__ float load_in_block(const float* p, unsigned block) {
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address_in_block(shared_address(p), block)) : "memory");
    return v;
}
__device__ __forceinline__ float2 load_in_block(const float2* p, unsigned block) {
    float2 v;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address_in_block(shared_address(p), block)) : "memory");
    return v;
}
__device__ __forceinline__ Vector<float> load_in_block(const Vector<float>* p, unsigned block) {
    Vector<float> v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.at[0]), "=f"(v.at[1]), "=f"(v.at[2]), "=f"(v.at[3])
                 : "r"(address_in_block(shared_address(p), block))
                 : "memory");
    return v;
}

// ---- copies from global to shared memory that run beside the computation --------------------------------------------
// Copies 16 bytes, or writes 16 zero bytes where `valid` is false (then `from` is not read).
__device__ __forceinline__ void copy_async(unsigned to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
// The same of BYTES, 16, 8 or 4, at a multiple of as many.
template <int BYTES>
__device__ __forceinline__ void copy_piece_async(unsigned to, const void* from, bool valid) {
    if constexpr (BYTES == 16) copy_async(to, from, valid);
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(valid ? BYTES : 0)
                     : "memory");
}
// The same of four words that may lie anywhere, of which the first `count` are read.
__device__ __forceinline__ void copy_words_async(unsigned to, const float* from, int count) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
        copy_piece_async<4>(to + i * 4, from + i, i < count);
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---- tensor cores --------------------------------------------------------------------------------------------------
// With g = lane / 4 and t = lane % 4, a warp's fragments of one product A (16, KS) @ B (KS, 8), KS being 32 bytes of K:
//   16 bit: a0 (g, 2t..)  a1 (g+8, 2t..)  a2 (g, 2t+8..)  a3 (g+8, 2t+8..)   b0 (2t.., g)  b1 (2t+8.., g), two each
//   tf32:   a0 (g, t)     a1 (g+8, t)     a2 (g, t+4)     a3 (g+8, t+4)      b0 (t, g)     b1 (t+4, g)
//   sums:   c0 c1 (g, 2t..2t+1)   c2 c3 (g+8, 2t..2t+1)
// Four 8×16-byte matrices; lane l gives the address of row l % 8 of matrix l / 8 and gets 4 bytes (row g, word t) of
// each.
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
// The same for 16-bit elements with each matrix transposed: a lane gets (row 2t, column g) and (row 2t+1, column g).
__device__ __forceinline__ void load_matrices_transposed(unsigned (&r)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

#define FUSEBENCH_MMA(SHAPE_AND_TYPES)                                              \
    asm("mma.sync.aligned." SHAPE_AND_TYPES                                         \
                 " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

// c += a @ b, summed in float32. The last argument only names the type; float means tf32, rounded by `to_tf32`.
__device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], float) {
    FUSEBENCH_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
}
__device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], float16) {
    FUSEBENCH_MMA("m16n8k16.row.col.f32.f16.f16.f32");
}
__device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], bfloat16) {
    FUSEBENCH_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
}
#undef FUSEBENCH_MMA

// Rounds to nearest, ties away from 0, given that the tensor cores ignore the 13 low bits: half of the last bit they
// see is added. cvt.rna.tf32 does the same in three instructions, and keeps the NaN whose bits overflow here; a caller
// that needs it must have it from elsewhere.
__device__ __forceinline__ unsigned to_tf32(float v) { return __float_as_uint(v) + 0x1000u; }

// ---- reductions ----------------------------------------------------------------------------------------------------
// The sum over each group of LANES neighbouring lanes, in all of them; STRIDE > 1 sums lanes that far apart.
template <int LANES, int STRIDE = 1>
__device__ __forceinline__ float lane_sum(float v) {
#pragma unroll
    for (int step = STRIDE; step < LANES * STRIDE; step *= 2) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

// ---- activations ---------------------------------------------------------------------------------------------------
enum Activation { NONE, RELU, SIGMOID, TANH, GELU_TANH, GELU_ERF, SILU };

// 2^x and 1 / x to a few ulps; what lies below the smallest normal number is 0 on the way in and out.
__device__ __forceinline__ float exp2_approximate(float x) {
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x));
    return e;
}
__device__ __forceinline__ float reciprocal_approximate(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
// exp(-|z|) never overflows, and its root is a normal number wherever it is not 0 itself.
__device__ __forceinline__ float exp_minus_abs(float z) {
    float root = exp2_approximate(-0.72134752f * fabsf(z));
    return root * root;
}
__device__ __forceinline__ float sigmoid(float z) {
    float e = exp_minus_abs(z);
    return (z < 0.0f ? e : 1.0f) * reciprocal_approximate(1.0f + e);
}

template <Activation A>
__device__ __forceinline__ float activate(float z) {
    if constexpr (A == RELU) return z < 0.0f ? 0.0f : z;  // NaN stays NaN
    if constexpr (A == SIGMOID) return sigmoid(z);
    if constexpr (A == TANH) return tanhf(z);
    if constexpr (A == SILU) return z * sigmoid(z);
    if constexpr (A == GELU_ERF) return 0.5f * z * (1.0f + erff(0.70710678f * z));
    // z/2 (1 + tanh u) = z / (1 + exp(-2u)) with u = sqrt(2/pi) (z + 0.044715 z³): nothing cancels, so the fast exp and division
    // cost a few ulps at most. Where the exponential overflows, what is left of z is 0.
    if constexpr (A == GELU_TANH)
        return z * reciprocal_approximate(1.0f + exp2_approximate(z * fmaf(-0.10294324f * z, z, -2.3022082f)));
    return z;
}

// The normal distribution, for results of 16 bits: its upper tail is 2^P(|z|), in one branch. P is fitted so that the tail errs by 2^-17 of
// itself or 2e-9; its last coefficient is negative, so that nothing is left of it at infinity.
__device__ __forceinline__ float normal_of_half(float z) {
    float a = fabsf(z), p = fmaf(a, -1e-6f, 4.69357477e-05f);
    p = fmaf(a, fmaf(a, fmaf(a, p, -0.000835906572f), 0.00821845378f), -0.0535198662f);
    float tail = exp2_approximate(fmaf(a, fmaf(a, fmaf(a, p, -0.458777238f), -1.15116655f), -1.0f));
    return z < 0.0f ? tail : 1.0f - tail;
}

// The same of a result that is stored as T.
template <Activation A, typename T>
__device__ __forceinline__ float activate_as(float z) {
    if constexpr (A == GELU_ERF && sizeof(T) == 2) return z * normal_of_half(z);
    else return activate<A>(z);
}

// The derivative of an activation. That of tanh GELU is p + z p (1 - p) (2u)' with p = 1 / (1 + e), e = exp(-2u) of the same u; 1 - p is taken as
// e p, where nothing cancels. e stays finite where p is 0.
template <Activation A>
__device__ __forceinline__ float slope(float z) {
    if constexpr (A == RELU) return z > 0.0f ? 1.0f : z != z ? z : 0.0f;
    if constexpr (A == SIGMOID) return sigmoid(z) * sigmoid(-z);
    if constexpr (A == TANH) return 1.0f - tanhf(z) * tanhf(z);
    if constexpr (A == SILU) return sigmoid(z) * fmaf(z, sigmoid(-z), 1.0f);
    if constexpr (A == GELU_ERF)
        return fmaf(0.39894228f * z, exp2_approximate(-0.72134752f * z * z), 0.5f * (1.0f + erff(0.70710678f * z)));
    if constexpr (A == GELU_TANH) {
        float square = z * z, e = exp2_approximate(fminf(z * fmaf(-0.10294324f, square, -2.3022082f), 127.0f)), p = reciprocal_approximate(1.0f + e);
        return p * fmaf(z * (e * p), fmaf(0.21406445f, square, 1.5957691f), 1.0f);
    }
    return 1.0f;
}
// The same for results of type T.
template <Activation A, typename T>
__device__ __forceinline__ float slope_as(float z) {
    if constexpr (A == GELU_ERF && sizeof(T) == 2) return fmaf(0.39894228f * z, exp2_approximate(-0.72134752f * z * z), normal_of_half(z));
    else return slope<A>(z);
}
