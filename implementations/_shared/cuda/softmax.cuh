// Softmax of a row that a group of threads holds on chip, or reads twice: what softmax and padded_softmax share.
//
// A row is cut into 16-byte vectors at addresses that are multiples of 16, wherever the row itself begins; the few elements
// before the first and after the last vector, its edges, are moved one by one. What a thread has beyond the row, or is
// hidden, is -inf, which adds nothing to a sum.
//   softmax_on_chip    LANES threads hold V vectors each, as they were stored. Maximum, sum and
//                      result are three passes over registers; 16-bit elements have their exponentials computed twice,
//                      because to keep them would take twice the registers.
//   softmax_re_read    a block runs through the row with a maximum and a sum a thread, then again from the end, which L2
//                      is most likely to still hold.
// Loads are marked to leave L2 first, so that it keeps results for whoever reads them next.
//
// Special values come out as in Torch and JAX without a branch: -inf - -inf of an empty maximum, +inf - +inf and NaN all
// make the sum NaN, and with it all that the row sees. The maximum may ignore NaN. Exponentials below 2^-126 are 0.
#pragma once
#include "_shared/cuda/device.cuh"

constexpr float LOWEST = -3.4028234663852886e38f;  // of float32; only -inf is below
__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

// ---- vectors -------------------------------------------------------------------------------------------------------
template <typename T>
__device__ __forceinline__ unsigned (&words(Vector<T>& v))[4] { return reinterpret_cast<unsigned(&)[4]>(v); }

// -inf in all elements of a word.
__device__ __forceinline__ unsigned minus_infinity_word(float) { return 0xff800000u; }
__device__ __forceinline__ unsigned minus_infinity_word(float16) { return 0xfc00fc00u; }
__device__ __forceinline__ unsigned minus_infinity_word(bfloat16) { return 0xff80ff80u; }

// A load of what nobody reads again.
template <typename T>
__device__ __forceinline__ Vector<T> load_for_the_last_time(const T* p) {
    uint4 v;
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return reinterpret_cast<Vector<T>&>(v);
}

// The larger of each half.
__device__ __forceinline__ unsigned max_of_pairs(unsigned a, unsigned b, float16) {
    unsigned r;
    asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ unsigned max_of_pairs(unsigned a, unsigned b, bfloat16) {
    unsigned r;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

// The largest element of N vectors; NaN is ignored.
template <int N, typename T>
__device__ __forceinline__ float highest(Vector<T> (&v)[N]) {
    if constexpr (sizeof(T) == 4) {
        float m = minus_infinity();
#pragma unroll
        for (int i = 0; i < N; ++i) m = fmaxf(fmaxf(m, fmaxf(v[i].at[0], v[i].at[1])), fmaxf(v[i].at[2], v[i].at[3]));
        return m;
    } else {
        unsigned m = words(v[0])[0];
#pragma unroll
        for (int i = 0; i < N; ++i)
#pragma unroll
            for (int w = 0; w < 4; ++w) m = max_of_pairs(m, words(v[i])[w], T{});
        return fmaxf(low_half<T>(m), high_half<T>(m));
    }
}

__device__ __forceinline__ unsigned pack(float low, float high, float16) {
    unsigned r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
__device__ __forceinline__ unsigned pack(float low, float high, bfloat16) {
    unsigned r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

constexpr float LOG2_E = 1.4426950408889634f;

// exp(x - m). The difference comes first: it is exact where it is small, and cannot overflow to +inf.
__device__ __forceinline__ float exponential(float x, float m) { return exp2_approximate((x - m) * LOG2_E); }

// The sum of exp(v - m), which float32 can keep in place of v.
template <bool KEEP, typename T>
__device__ __forceinline__ float exponential_sum(Vector<T>& v, float m) {
    float s = 0.0f;
#pragma unroll
    for (int j = 0; j < Vector<T>::SIZE; ++j) {
        float e = exponential(element(v, j), m);
        if constexpr (KEEP) v.at[j] = e;
        s += e;
    }
    return s;
}

// The vector of those values, rounded to nearest.
__device__ __forceinline__ Vector<float> as_vector(const float (&z)[4], float) {
    Vector<float> v;
#pragma unroll
    for (int j = 0; j < 4; ++j) v.at[j] = z[j];
    return v;
}
template <typename T>
__device__ __forceinline__ Vector<T> as_vector(const float (&z)[8], T) {
    Vector<T> v;
#pragma unroll
    for (int w = 0; w < 4; ++w) words(v)[w] = pack(z[2 * w], z[2 * w + 1], T{});
    return v;
}

// ---- reductions ----------------------------------------------------------------------------------------------------
template <bool MAX>
__device__ __forceinline__ float combine(float a, float b) { return MAX ? fmaxf(a, b) : a + b; }

// Over each group of LANES neighbouring lanes of a warp, in all of them.
template <bool MAX, int LANES>
__device__ __forceinline__ float lane_reduce(float v) {
#pragma unroll
    for (int step = 1; step < LANES; step *= 2) v = combine<MAX>(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
}

// Over the threads of a row, in all of them. A row of more than a warp is all that its block has; `parts` has a float for each of its
// warps, and is used once.
template <bool MAX, int LANES>
__device__ __forceinline__ float row_reduce(float v, float* parts) {
    v = lane_reduce<MAX, (LANES < 32 ? LANES : 32)>(v);
    if constexpr (LANES > 32) {
        constexpr int WARPS = LANES / 32;
        int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane == 0) parts[warp] = v;
        __syncthreads();
        v = MAX ? minus_infinity() : 0.0f;
        if (lane < WARPS) v = combine<MAX>(v, parts[lane]);
        v = lane_reduce<MAX, 32>(v);
    }
    return v;
}

// ---- rows ----------------------------------------------------------------------------------------------------------
// Row `number` of x and y (…, C), of which columns [first, end) are visible, 0 <= first and end <= C. ALIGNED promises that C
// is a multiple of a vector, so that no row has edges; MASKED says that not all columns are visible. Columns before `read_from`, which is
// `first` or less, are not read.
template <typename T, bool ALIGNED, bool MASKED>
struct Row {
    static constexpr int SIZE = Vector<T>::SIZE;
    const T* x;
    T* y;
    int C, first, end, read_from, head, vectors;  // vector 0 begins at column `head`

    __device__ __forceinline__ Row(const T* x, T* y, long long number, int C, int first, int end)
        : Row(x, y, number, C, first, end, first) {}
    __device__ __forceinline__ Row(const T* x, T* y, long long number, int C, int first, int end, int read_from)
        : x(x + number * C), y(y + number * C), C(C), first(first), end(end), read_from(read_from) {
        head = ALIGNED ? 0 : min(C, static_cast<int>((SIZE - number * C % SIZE) % SIZE));
        vectors = (C - head) / SIZE;
    }
    __device__ __forceinline__ bool visible(int c) const { return !MASKED || (c >= first && c < end); }
    // Whether nothing of vector v is read, or there is no such vector.
    __device__ __forceinline__ bool hidden(int v) const {
        int c = head + v * SIZE;
        return v >= vectors || (MASKED && (c >= end || c + SIZE <= read_from));
    }

    __device__ __forceinline__ Vector<T> load(int v) const {
        Vector<T> r;
        if (hidden(v)) {
#pragma unroll
            for (int w = 0; w < 4; ++w) words(r)[w] = minus_infinity_word(T{});
            return r;
        }
        int c = head + v * SIZE;
        r = load_for_the_last_time(x + c);
        if (MASKED && (c < first || c + SIZE > end)) {
            constexpr int EACH = SIZE / 4;  // elements of a word
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                unsigned low = EACH == 1 ? 0xffffffffu : 0xffffu;
                unsigned shown = (visible(c + w * EACH) ? low : 0) | (visible(c + w * EACH + EACH - 1) ? ~low : 0);
                words(r)[w] = (words(r)[w] & shown) | (minus_infinity_word(T{}) & ~shown);
            }
        }
        return r;
    }

    // exp(held - m) * inverse where visible, 0 elsewhere in the vector. EXPONENTIALS: `held` is exp(held - m) already.
    template <bool EXPONENTIALS>
    __device__ __forceinline__ void store(int v, const Vector<T>& held, float m, float inverse) const {
        if (v >= vectors) return;
        int c = head + v * SIZE;
        float z[SIZE];
#pragma unroll
        for (int j = 0; j < SIZE; ++j) {
            z[j] = (EXPONENTIALS ? element(held, j) : exponential(element(held, j), m)) * inverse;
            if (!visible(c + j)) z[j] = 0.0f;
        }
        *reinterpret_cast<Vector<T>*>(y + c) = as_vector(z, T{});
    }

    // Edge k: the first SIZE - 1 are before the vectors, the others behind. Its column, or -1 where there is none.
    __device__ __forceinline__ int edge(int k) const {
        int c = k < SIZE - 1 ? k : head + vectors * SIZE + k - (SIZE - 1);
        return c < (k < SIZE - 1 ? head : C) ? c : -1;
    }
    __device__ __forceinline__ float load_edge(int k) const {
        int c = edge(k);
        float read = c >= 0 && (!MASKED || (c >= read_from && c < end)) ? to_float(x[c]) : minus_infinity();
        return visible(c) ? read : minus_infinity();
    }
    __device__ __forceinline__ void store_edge(int k, float held, float m, float inverse) const {
        int c = edge(k);
        if (c >= 0) y[c] = from_float<T>(visible(c) ? exponential(held, m) * inverse : 0.0f);
    }
    // How many edges each of so many threads has: 2 (SIZE - 1) in all, and as many more that are none.
    static __device__ constexpr int edges(int threads) { return ALIGNED ? 0 : (2 * SIZE - 2 + threads - 1) / threads; }
};

// How many blocks of `threads` fit a multiprocessor's 65 536 registers: 4 a vector, about 32 for all else, 8 for edges.
__device__ constexpr int blocks_that_fit(int threads, int V, bool aligned) {
    int blocks = 65536 / (threads * ((4 * V + (aligned ? 32 : 40) + 7) / 8 * 8));
    return blocks < 1 ? 1 : blocks;
}

// `parts` is the block's (2, LANES / 32). `writes` is false where a group has no row of its own and repeats
// another's.
template <int LANES, int V, typename T, bool ALIGNED, bool MASKED>
__device__ __forceinline__ void softmax_on_chip(const Row<T, ALIGNED, MASKED>& row, bool writes, float* parts) {
    constexpr bool KEEPS = sizeof(T) == 4;  // exponentials, in place of the elements
    constexpr int EDGES = Row<T, ALIGNED, MASKED>::edges(LANES);
    int thread = threadIdx.x % LANES;
    Vector<T> held[V];
    float edges[EDGES + 1];
#pragma unroll
    for (int i = 0; i < V; ++i) held[i] = row.load(thread + i * LANES);
#pragma unroll
    for (int i = 0; i < EDGES; ++i) edges[i] = row.load_edge(thread + i * LANES);
    float m = highest(held);
#pragma unroll
    for (int i = 0; i < EDGES; ++i) m = fmaxf(m, edges[i]);
    m = row_reduce<true, LANES>(m, parts);

    float s = 0.0f;
#pragma unroll
    for (int i = 0; i < V; ++i)
        if (!MASKED || !row.hidden(thread + i * LANES)) s += exponential_sum<KEEPS>(held[i], m);
#pragma unroll
    for (int i = 0; i < EDGES; ++i) s += exponential(edges[i], m);
    s = row_reduce<false, LANES>(s, parts + LANES / 32);

    // Behind this line the compiler takes 16-bit elements for new ones, else it would keep their exponentials.
    if constexpr (!KEEPS && V > 3) {
#pragma unroll
        for (int i = 0; i < V; ++i)
#pragma unroll
            for (int w = 0; w < 4; ++w) asm volatile("" : "+r"(words(held[i])[w]));
    }
    if (!writes) return;
    float inverse = __frcp_rn(s);
#pragma unroll
    for (int i = 0; i < V; ++i) row.template store<KEEPS>(thread + i * LANES, held[i], m, inverse);
#pragma unroll
    for (int i = 0; i < EDGES; ++i) row.store_edge(thread + i * LANES, edges[i], m, inverse);
}

// The maximum of what was added so far, and the sum of exp(x - maximum).
struct Running {
    float m, s;

    // From the lowest finite number a first -inf is as far as from any other: -inf - -inf would be NaN.
    __device__ __forceinline__ explicit Running(float first) : m(fmaxf(LOWEST, first)), s(exponential(first, m)) {}

    template <int N, typename T>
    __device__ __forceinline__ void add(Vector<T> (&part)[N]) {
        float higher = fmaxf(m, highest(part));
        s *= exponential(m, higher);
        m = higher;
#pragma unroll
        for (int i = 0; i < N; ++i) s += exponential_sum<false>(part[i], m);
    }

    // Of `count` places, in all lanes of a warp; a place has the maximum and the sum of some elements.
    template <int COUNT, typename Place>
    __device__ __forceinline__ void merge(const Place* parts) {
        int lane = threadIdx.x % 32;
        m = LOWEST;
#pragma unroll
        for (int i = lane; i < COUNT; i += 32) m = fmaxf(m, parts[i].x);
        m = lane_reduce<true, 32>(m);
        s = 0.0f;
#pragma unroll
        for (int i = lane; i < COUNT; i += 32) s += parts[i].y * exponential(parts[i].x, m);
        s = lane_reduce<false, 32>(s);
    }
    __device__ __forceinline__ void reduce_in_warp() {
        float own = m;
        m = lane_reduce<true, 32>(own);
        s = lane_reduce<false, 32>(s * exponential(own, m));
    }
    // Over a block's threads, in all of them; `parts` has a place for each of its warps, and is used once.
    template <int LANES>
    __device__ __forceinline__ void reduce(float2* parts) {
        reduce_in_warp();
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = make_float2(m, s);
        __syncthreads();
        merge<LANES / 32>(parts);
    }
};

// A block a row; `parts` has a place for each warp.
template <int LANES, typename T, bool ALIGNED, bool MASKED>
__device__ __forceinline__ void softmax_re_read(const Row<T, ALIGNED, MASKED>& row, float2* parts) {
    constexpr int SIZE = Vector<T>::SIZE, AHEAD = 4, STEP = AHEAD * LANES;  // vectors requested at once: a thread's, all
    static_assert(LANES >= 2 * SIZE - 2, "a thread has one edge");
    int thread = threadIdx.x;
    float edge = ALIGNED ? minus_infinity() : row.load_edge(thread);
    Running sums(edge);
    int begin = MASKED ? max(row.first - row.head, 0) / SIZE / STEP * STEP : 0;
    for (int v = begin + thread; v < row.vectors && (!MASKED || row.head + v * SIZE < row.end); v += STEP) {
        Vector<T> part[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) part[i] = row.load(v + i * LANES);
        sums.add(part);
    }
    sums.reduce<LANES>(parts);
    float m = sums.m, inverse = __frcp_rn(sums.s);
    if (!ALIGNED) row.store_edge(thread, edge, m, inverse);
    for (int v = (row.vectors - 1) / STEP * STEP + thread; v >= 0; v -= STEP) {
        Vector<T> part[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) part[i] = row.load(v + i * LANES);
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) row.template store<false>(v + i * LANES, part[i], m, inverse);
    }
}
