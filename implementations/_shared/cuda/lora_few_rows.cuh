// The backward pass of a linear layer with an adapter where there are few rows of 16 bits and W is stored (K, N), in one launch.
//
// W is read once and dW is written once; all else is small. Both streams should be under way at all times, so a block, of which
// every multiprocessor has one, has warps of two kinds, which never wait for each other:
//
//   READERS   dz @ [W; B]ᵀ of ROWS rows of W, with B's below them: no warp waits for dxa = scale * dz @ Bᵀ, which each block sums
//             anew. Each warp has every eighth 64 columns of N, and copies of its own under way, no barrier among them: a lane reads
//             what it copied itself. At the end the warps' sums meet in shared memory; dx and dA follow from them.
//   WRITERS   units of ROWS rows of [dW; dB; db] = [x, scale * xa, 1]ᵀ @ dz, of COLUMNS columns a warp.
//
// A product's operands agree on which of their elements meet, and nothing else: what a lane holds of a fragment is chosen so that it
// reads and writes 16 bytes in a row. What is read has rows filled up to whole vectors (lora_backward.cuh: filled); the gradients have theirs as
// they are, and what is no whole vectors is written through shared memory.
#pragma once
#include "_shared/cuda/lora.cuh"

namespace few_rows {

constexpr int ROWS = 32, COLUMNS = 64, READERS = 8, WRITERS = 4;
constexpr int STAGED = COLUMNS + 8;  // elements of a row of a unit in shared memory
constexpr int MOST_ODD = 32;         // rows, of more of which no registers are left for sizes that are no whole vectors

// Element `which` of both: that of `low` below that of `high`.
__device__ __forceinline__ unsigned paired(unsigned low, unsigned high, int which) {
    return __byte_perm(low, high, which ? 0x7632 : 0x5410);
}

__device__ __forceinline__ const uint4& vector_at(const void* p) { return *reinterpret_cast<const uint4*>(p); }

__device__ __forceinline__ void sync_readers() { asm volatile("bar.sync 1, %0;" ::"n"(READERS * 32) : "memory"); }

// N is that of rows filled up, `width` their K.
template <typename T, int BM, int RB, int STAGES>
__device__ __forceinline__ void read_weights(const T* __restrict__ dz, const T* __restrict__ W, const T* __restrict__ x,
                                             const T* __restrict__ A, const T* __restrict__ B, const T* __restrict__ scale,
                                             T* __restrict__ dx, T* __restrict__ dA, int M, long long K, long long N, int R, long long width) {
    constexpr int TILES = (ROWS + RB) / 8, PARTS = BM / 16, VECTORS = 2 * (TILES + 2 * PARTS), STAGE = VECTORS * 512;
    constexpr int ACROSS = ROWS + RB + 8, OF_X = BM * ACROSS * 4, OF_LOW = OF_X + BM * ROWS * 2;
    static_assert(OF_LOW + BM * RB * 4 <= STAGES * STAGE, "a warp's sums, x and dxa lie where its copies were");
    extern __shared__ __align__(128) unsigned char memory[];  // READERS * STAGES * STAGE, and ROWS rows of A
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    unsigned char* own = memory + warp * (STAGES * STAGE);
    const T* down = reinterpret_cast<const T*>(memory + READERS * STAGES * STAGE);
    T* x_tile = reinterpret_cast<T*>(memory + OF_X);
    float* low = reinterpret_cast<float*>(memory + OF_LOW);
    unsigned slots = shared_address(own) + lane * 16;
    int steps = static_cast<int>((N + 63) / 64), count = (steps - warp + READERS - 1) / READERS;
    float factor = to_float(*scale);
    int rank = BM > MOST_ODD ? R : static_cast<int>(filled_up<T>(R));

    for (long long k0 = static_cast<long long>(blockIdx.x) * ROWS; k0 < K; k0 += static_cast<long long>(gridDim.x) * ROWS) {
        const T *of_W = W + (k0 + g) * N + t * 8, *of_B = B + g * N + t * 8, *of_dz = dz + g * N + t * 8;
        int left = static_cast<int>(min(K - k0, static_cast<long long>(ROWS))) - g;  // rows of W from the lane's first on
        auto copy = [&](int i) {
            if (i < count) {
                long long n = (warp + i * READERS) * 64LL;
                unsigned to = slots + i % STAGES * STAGE;
#pragma unroll
                for (int h = 0; h < 2; ++h, n += 32) {
                    bool inside = n + t * 8 < N;
#pragma unroll
                    for (int j = 0; j < ROWS / 8; ++j) copy_async(to + (h * TILES + j) * 512, of_W + j * 8 * N + n, inside && j * 8 < left);
#pragma unroll
                    for (int j = 0; j < RB / 8; ++j)
                        copy_async(to + (h * TILES + ROWS / 8 + j) * 512, of_B + j * 8 * N + n, inside && j * 8 + g < R);
#pragma unroll
                    for (int j = 0; j < 2 * PARTS; ++j)
                        copy_async(to + (2 * TILES + h * 2 * PARTS + j) * 512, of_dz + j * 8 * N + n, inside && j * 8 + g < M);
                }
            }
            copy_commit();
        };
        for (int v = threadIdx.x; v < ROWS * rank / 8; v += READERS * 32)
            copy_async(shared_address(down) + v * 16, A + k0 * rank + v * 8, k0 * rank + v * 8 < K * rank);
#pragma unroll
        for (int i = 0; i < STAGES; ++i) copy(i);
        float c[PARTS][TILES][4] = {};
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            copy_wait<STAGES - 1>();
            const unsigned char* slot = own + i % STAGES * STAGE + lane * 16;
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int p0 = 0; p0 < PARTS; p0 += 2) {  // more of dz at once would spill
                    unsigned left[2][2][4];
#pragma unroll
                    for (int p = p0; p < PARTS && p < p0 + 2; ++p) {
                        const unsigned char* from = slot + (2 * TILES + (h * PARTS + p) * 2) * 512;
                        uint4 upper = vector_at(from), lower = vector_at(from + 512);
                        unsigned fragments[2][4] = {{upper.x, lower.x, upper.y, lower.y}, {upper.z, lower.z, upper.w, lower.w}};
#pragma unroll
                        for (int e = 0; e < 8; ++e) left[p - p0][e / 4][e % 4] = fragments[e / 4][e % 4];
                    }
#pragma unroll
                    for (int j = 0; j < TILES; ++j) {
                        uint4 w = vector_at(slot + (h * TILES + j) * 512);
                        const unsigned first[2] = {w.x, w.y}, second[2] = {w.z, w.w};
#pragma unroll
                        for (int p = p0; p < PARTS && p < p0 + 2; ++p) {
                            multiply_add(c[p][j], left[p - p0][0], first, T{});
                            multiply_add(c[p][j], left[p - p0][1], second, T{});
                        }
                    }
                }
            copy(i + STAGES);
        }
        __syncwarp();
        if (warp == 0) {
            for (int v = lane; v < BM * ROWS / 8; v += 32) {
                int m = v / (ROWS / 8), k = v % (ROWS / 8) * 8;
                copy_async(shared_address(x_tile) + v * 16, x + m * width + k0 + k, m < M && k0 + k < width);
            }
            copy_commit();
        }
        float* sums = reinterpret_cast<float*>(own);
#pragma unroll
        for (int p = 0; p < PARTS; ++p)
#pragma unroll
            for (int j = 0; j < TILES; ++j)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    *reinterpret_cast<float2*>(sums + (p * 16 + half * 8 + g) * ACROSS + j * 8 + t * 2) =
                        make_float2(c[p][j][2 * half], c[p][j][2 * half + 1]);
        copy_wait<0>();
        sync_readers();
        auto total = [&](int m, int column) {
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < READERS; ++w)
                sum += reinterpret_cast<const float*>(memory + w * (STAGES * STAGE))[m * ACROSS + column];
            return sum;
        };
        // what lies past R may be inf * 0: it must not meet A
        for (int e = threadIdx.x; e < M * RB; e += READERS * 32)
            low[e] = e % RB < R ? to_float(from_float<T>(factor * total(e / RB, ROWS + e % RB))) : 0.0f;
        sync_readers();
        float of_A[RB];
#pragma unroll
        for (int r = 0; r < RB; ++r) of_A[r] = r < R ? to_float(down[lane * rank + r]) : 0.0f;
        for (int m = warp; m < M; m += READERS) {
            float sum = total(m, lane);
#pragma unroll
            for (int r = 0; r < RB; ++r) sum = fmaf(low[m * RB + r], of_A[r], sum);
            if (k0 + lane < K) dx[m * K + k0 + lane] = from_float<T>(sum);
        }
        for (int e = threadIdx.x; e < ROWS * RB; e += READERS * 32) {
            int k = e / RB, r = e % RB;
            float sum = 0.0f;
            for (int m = 0; m < M; ++m) sum = fmaf(to_float(x_tile[m * ROWS + k]), low[m * RB + r], sum);
            if (k0 + k < K && r < R) dA[(k0 + k) * R + r] = from_float<T>(sum);
        }
        sync_readers();  // the next copies overwrite all of it
    }
}

// Column c of tile j of each group of four is column 8 * (c / 2) + 2 * j + c % 2 of 32, so that a lane has eight neighbours of a
// row of sums, and row l of tile i is row 2 * l + i.
template <typename T, int BM, bool ALIGNED>
__device__ __forceinline__ void write_gradients(const T* __restrict__ dz, const T* __restrict__ x, const T* __restrict__ xa,
                                                const T* __restrict__ scale, T* __restrict__ dW, T* __restrict__ dB,
                                                T* __restrict__ db, T* staged, int M, long long K, long long N, int R,
                                                long long width, long long length) {
    constexpr int PARTS = BM / 16, GROUPS = COLUMNS / 32;
    constexpr bool AHEAD = BM < 64;  // registers hold the next unit's rows beside this one's
    int warp = threadIdx.x / 32 - READERS, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    unsigned of_dW = static_cast<unsigned>((K + ROWS - 1) / ROWS), down = of_dW + (R + ROWS) / ROWS;
    unsigned across = static_cast<unsigned>((N + COLUMNS * WRITERS - 1) / (COLUMNS * WRITERS));
    unsigned long long units = static_cast<unsigned long long>(down) * across;
    unsigned begin = static_cast<unsigned>(units * blockIdx.x / gridDim.x), end = static_cast<unsigned>(units * (blockIdx.x + 1) / gridDim.x);
    float factor = to_float(*scale);
    int rank = BM > MOST_ODD ? R : static_cast<int>(filled_up<T>(R));
    const unsigned one = from_float<T>(1.0f).bits;

    // Rows 2 * g and 2 * g + 1 of the unit at `place`, and those 16 below, of all m.
    unsigned left[PARTS][4][2];
    auto load = [&](unsigned place) {
        if (place < of_dW) {
            long long k = static_cast<long long>(place) * ROWS + 2 * g;
            const T* from = x + 2 * t * width + k;
#pragma unroll
            for (int p = 0; p < PARTS; ++p)
#pragma unroll
                for (int q = 0; q < 4; ++q)
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        int m = p * 16 + q % 2 + q / 2 * 8;
                        bool inside = m + 2 * t < M && k + half * 16 < width;
                        left[p][q][half] = inside ? *reinterpret_cast<const unsigned*>(from + m * width + half * 16) : 0;
                    }
        } else {
            auto two = [&](int m, int r) -> unsigned {  // and a 1 behind them
                if (m >= M) return 0;
                unsigned found = r < rank ? *reinterpret_cast<const unsigned*>(xa + m * rank + r) : 0;
                return r == R ? one : r + 1 == R ? found | one << 16 : found;
            };
#pragma unroll
            for (int p = 0; p < PARTS; ++p)
#pragma unroll
                for (int q = 0; q < 4; ++q)
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        int m = p * 16 + 2 * t + q % 2 + q / 2 * 8, r = static_cast<int>(place - of_dW) * ROWS + 2 * (g + half * 8);
                        left[p][q][half] = two(m, r);
                    }
        }
    };
    unsigned right[GROUPS][PARTS][4][2], place = begin % down, strip = begin / down;
    long long n0 = 0;
    bool fresh = true;
    if (AHEAD && begin < end) load(place);
#pragma unroll 1
    for (unsigned unit = begin; unit < end; ++unit) {
        if (fresh) {
            n0 = (static_cast<long long>(strip) * WRITERS + warp) * COLUMNS;
#pragma unroll
            for (int group = 0; group < GROUPS; ++group) {
                if (!AHEAD) asm volatile("" ::: "memory");  // registers do not hold what all of them load at once
#pragma unroll
                for (int p = 0; p < PARTS; ++p) {
                    long long n = n0 + group * 32 + g / 2 * 8;
                    uint4 v[4];
#pragma unroll
                    for (int q = 0; q < 4; ++q) {
                        int m = p * 16 + 2 * t + q % 2 + q / 2 * 8;
                        v[q] = m < M && n < length ? vector_at(dz + m * length + n) : make_uint4(0, 0, 0, 0);
                    }
#pragma unroll
                    for (int j = 0; j < 4; ++j)
#pragma unroll
                        for (int deep = 0; deep < 2; ++deep)
                            right[group][p][j][deep] = paired(reinterpret_cast<const unsigned(&)[4]>(v[2 * deep])[j],
                                                              reinterpret_cast<const unsigned(&)[4]>(v[2 * deep + 1])[j], g % 2);
                }
            }
        }
        if (!AHEAD) load(place);
        unsigned next = place + 1 == down ? 0 : place + 1, a[2][PARTS][4];
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int p = 0; p < PARTS; ++p)
#pragma unroll
                for (int e = 0; e < 4; ++e) a[i][p][e] = paired(left[p][e / 2 * 2][e % 2], left[p][e / 2 * 2 + 1][e % 2], i);
        if (AHEAD && unit + 1 < end) load(next);
        long long n = n0 + t * 8;
        auto multiply = [&](float (&c)[4][4], int i, int group) {
#pragma unroll
            for (int p = 0; p < PARTS; ++p)
#pragma unroll
                for (int j = 0; j < 4; ++j) multiply_add(c[j], a[i][p], right[group][p][j], T{});
        };
        auto packed = [](const float (&c)[4][4], int half, float times) {
            Vector<T> v;
#pragma unroll
            for (int e = 0; e < 8; ++e) v.at[e] = from_float<T>(times * c[e / 2][2 * half + e % 2]);
            return v;
        };
        bool of_x = place < of_dW;
        long long first = static_cast<long long>(of_x ? place : place - of_dW) * ROWS, row0 = first + 2 * g;
        if (!ALIGNED) {
            long long rows = of_x ? K : R;
            T* own = staged + warp * (ROWS * STAGED);
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int group = 0; group < GROUPS; ++group) {
                    float c[4][4] = {};
                    multiply(c, i, group);
#pragma unroll
                    for (int half = 0; half < 2; ++half)
                        *reinterpret_cast<Vector<T>*>(own + (2 * g + half * 16 + i) * STAGED + t * 8 + group * 32) =
                            packed(c, half, of_x || row0 + half * 16 + i == rows ? 1.0f : factor);
                }
            __syncwarp();
#pragma unroll 4
            for (int row = 0; row < ROWS; ++row) {
                if (first + row >= rows + !of_x) break;
                T* to = first + row < rows ? (of_x ? dW : dB) + (first + row) * N : db;
#pragma unroll
                for (int column = lane; column < COLUMNS; column += 32)
                    if (n0 + column < N) to[n0 + column] = own[row * STAGED + column];
            }
            __syncwarp();
        } else if (of_x && first + ROWS <= K && n0 + COLUMNS <= N) {  // no branch among the stores
            T* to = dW + row0 * N + n;
            float c[2][GROUPS][4][4] = {};
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int group = 0; group < GROUPS; ++group) {
                    multiply(c[i][group], i, group);
#pragma unroll
                    for (int half = 0; half < 2; ++half)
                        store_vector(to + (half * 16 + i) * N + group * 32, packed(c[i][group], half, 1.0f));
                }
        } else {
            long long rows = of_x ? K : R;  // below those of dB stands db
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int group = 0; group < GROUPS; ++group) {
                    float c[4][4] = {};
                    multiply(c, i, group);
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        long long row = row0 + half * 16 + i;
                        T* to = row < rows ? (of_x ? dW : dB) + row * N : db;
                        if (row < rows + !of_x && n + group * 32 < N)
                            store_vector(to + n + group * 32, packed(c, half, of_x || row == rows ? 1.0f : factor));
                    }
                }
        }
        place = next, fresh = next == 0, strip += fresh;
    }
}

// BM rows at least, RB columns of xa at least. ALIGNED says that rows of dW are whole vectors; `width` and `length` are K and N filled up. As in `products`, dz is dy where there is no
// activation.
template <typename T, bool ALIGNED, int BM, int RB, int STAGES>
__global__ void __launch_bounds__((READERS + WRITERS) * 32, 1)
    whole(const T* __restrict__ dz, const T* __restrict__ W, const T* __restrict__ x, const T* __restrict__ A, const T* __restrict__ B,
          const T* __restrict__ xa, const T* __restrict__ scale, T* __restrict__ dx, T* __restrict__ dW, T* __restrict__ dA,
          T* __restrict__ dB, T* __restrict__ db, long long M, long long K, long long N, long long R, long long width, long long length) {
    constexpr int STAGE = 2 * ((ROWS + RB) / 8 + BM / 8) * 512;
    extern __shared__ __align__(128) unsigned char memory[];  // of the readers; units of the writers, where not ALIGNED
    T* staged = reinterpret_cast<T*>(memory + READERS * STAGES * STAGE) + ROWS * filled_up<T>(R);
    int rows = static_cast<int>(M), rank = static_cast<int>(R);
    if (BM > MOST_ODD) width = K, length = N;
    wait_for_previous_launch();
    if (threadIdx.x < READERS * 32) read_weights<T, BM, RB, STAGES>(dz, W, x, A, B, scale, dx, dA, rows, K, length, rank, width);
    else write_gradients<T, BM, ALIGNED>(dz, x, xa, scale, dW, dB, db, staged, rows, K, N, rank, width, length);
}

}  // namespace few_rows
