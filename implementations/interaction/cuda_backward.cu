// interaction's gradient, each form one launch.
//
//   dot_gradient_tensor   up to 32 vectors a sample, on the tensor cores: float16, bfloat16, and float32 as tf32. A warp has one sample.
//   dot_gradient_wide     more vectors than that, of 16 bits: a block has one sample.
//   dot_gradient_simt     the same of float32 on its own units: in precision "ieee", and what tf32 has no other for.
//   outer_gradient        a block has one sample, and reads its dy once.
//
// dot: with S the gradients of the products, S[i][j] = S[j][i] and 0 on the diagonal, the gradient of the vectors X is S X, and dense has
// its own columns of dy besides. X lies in shared memory, where each 16 columns are replaced by their gradient once they are multiplied.
// outer: dx[i] is the sum over j of (dy[i][j] + dy[j][i]) x[j]. The former are sums over a row, the latter over a column.
#include "_shared/cuda/dots.cuh"

// Vector f of a sample: the dense one, then the sparse ones.
template <typename T>
__device__ __forceinline__ T* vector_of(T* dense, T* sparse, long long sample, int f, int F, int D) {
    return f == 0 ? dense + sample * D : sparse + (sample * F + f - 1) * D;
}

// Element n of a sample's dense and sparse vectors side by side.
template <typename T>
__device__ __forceinline__ T* side_by_side(T* dense, T* sparse, long long sample, int F, int D, int n) {
    return n < D ? dense + sample * D + n : sparse + sample * F * D + (n - D);
}

// The gradient of the product of vectors i and j, 0 where there is none.
template <typename T>
__device__ __forceinline__ T of_pair(const T* products, int i, int j, int F) {
    return i == j || i > F || j > F ? from_float<T>(0.0f) : products[below_diagonal(max(i, j), min(i, j))];
}

// ---- dot, tensor cores ----------------------------------------------------------------------------------------------

__device__ __forceinline__ unsigned nearest_tf32(float v) {  // NaN stays NaN
    unsigned rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(v));
    return rounded;
}

// A register of the left operand, which is S: elements k and, of 16 bits, k + 1 of row i.
template <typename T>
__device__ __forceinline__ unsigned left_operand(const T* products, int i, int k, int F) {
    if constexpr (sizeof(T) == 4) return nearest_tf32(of_pair(products, i, k, F));
    else return of_pair(products, i, k, F).bits | static_cast<unsigned>(of_pair(products, i, k + 1, F).bits) << 16;
}

// The two right operands of 16 columns of X, over 32 bytes of S's rows from vector j on.
template <typename T>
__device__ __forceinline__ void right_operands(unsigned (&b)[2][2], const unsigned char* x, int pitch, int j, int lane) {
    if constexpr (sizeof(T) == 2) {
        unsigned r[4];
        load_matrices_transposed(r, shared_address(x) + (j + lane % 16) * pitch + lane / 16 * 16);
#pragma unroll
        for (int q = 0; q < 4; ++q) b[q / 2][q % 2] = r[q];
    } else {
#pragma unroll
        for (int q = 0; q < 4; ++q)
            b[q / 2][q % 2] = nearest_tf32(
                *reinterpret_cast<const float*>(x + (j + q % 2 * 4 + lane % 4) * pitch + (q / 2 * 8 + lane / 4) * 4));
    }
}

// TILES of 16 vectors hold the F + 1. A warp has 16 TILES rows of `pitch` bytes in shared memory: D elements, made up to a multiple
// of 16, and 16 bytes more, so that eight rows lie in different banks; behind them S's elements as dy has them.
template <typename T, bool ALIGNED, int TILES, int SAMPLES>
__global__ void __launch_bounds__(SAMPLES * 32)
    dot_gradient_tensor(const T* __restrict__ dense, const T* __restrict__ sparse, const T* __restrict__ dy,
                        T* __restrict__ ddense, T* __restrict__ dsparse, long long M, int F, int D, int pitch, int bytes) {
    constexpr int SIZE = Vector<T>::SIZE, ROWS = 16 * TILES, EACH = 32 / sizeof(T), STEPS = ROWS / EACH;
    extern __shared__ __align__(128) unsigned char memory[];
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, chunks = pitch / 16 - 1, pairs = F * (F + 1) / 2;
    long long sample = static_cast<long long>(blockIdx.x) * SAMPLES + threadIdx.x / 32;
    if (sample >= M) return;  // warps do not wait for one another
    unsigned char* x = memory + threadIdx.x / 32 * bytes;
    T* products = reinterpret_cast<T*>(x + ROWS * pitch);
    dy += sample * (D + pairs);

    for (int n = lane; n < ROWS * chunks; n += 32) {
        int f = n / chunks, k = n % chunks * SIZE, count = f <= F ? D - k : 0;
        const T* from = count > 0 ? vector_of(dense, sparse, sample, f, F, D) + k : dense;
        unsigned char* to = x + f * pitch + k * sizeof(T);
        if constexpr (ALIGNED) copy_async(shared_address(to), from, count > 0);
        else *reinterpret_cast<Vector<T>*>(to) = load_part<false>(from, count);
    }
    copy_commit();
    for (int n = lane; n < pairs; n += 32) products[n] = dy[D + n];
    copy_wait<0>();
    __syncwarp();

    unsigned a[TILES][STEPS][4];
#pragma unroll
    for (int i = 0; i < TILES; ++i)
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
#pragma unroll
            for (int r = 0; r < 4; ++r)
                a[i][s][r] = left_operand(products, 16 * i + g + r % 2 * 8, s * EACH + (r / 2 * 4 + t) * 4 / static_cast<int>(sizeof(T)), F);
    for (int column = 0; column < D; column += 16) {
        unsigned char* part = x + column * sizeof(T);
        float c[TILES][2][4] = {};
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            unsigned b[2][2];
            right_operands<T>(b, part, pitch, s * EACH, lane);
#pragma unroll
            for (int i = 0; i < TILES; ++i)
#pragma unroll
                for (int f = 0; f < 2; ++f) multiply_add(c[i][f], a[i][s], b[f], T{});
        }
        __syncwarp();  // all have read these columns
#pragma unroll
        for (int i = 0; i < TILES; ++i)
#pragma unroll
            for (int f = 0; f < 2; ++f)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    int row = 16 * i + g + 8 * h, d = f * 8 + 2 * t;
                    Pair<T> pair;
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        float own = row == 0 && column + d + e < D ? to_float(dy[column + d + e]) : 0.0f;
                        pair.at[e] = from_float<T>(c[i][f][2 * h + e] + own);
                    }
                    *reinterpret_cast<Pair<T>*>(part + row * pitch + d * sizeof(T)) = pair;
                }
    }
    __syncwarp();
    for (int n = lane; n < (F + 1) * chunks; n += 32) {
        int f = n / chunks, k = n % chunks * SIZE;
        auto v = *reinterpret_cast<const Vector<T>*>(x + f * pitch + k * sizeof(T));
        if (k < D) store_part<ALIGNED>(vector_of(ddense, dsparse, sample, f, F, D) + k, v, D - k);
    }
}

// ---- dot, tensor cores, more vectors ------------------------------------------------------------------------------------

template <int BYTES>
struct Unit {
    using Type = unsigned short;
};
template <>
struct Unit<16> {
    using Type = uint4;
};
template <>
struct Unit<8> {
    using Type = uint2;
};
template <>
struct Unit<4> {
    using Type = unsigned;
};

// A block has a sample, and a warp 16 rows of its gradient. S's part below the diagonal lies in rows of shared memory, with zeros to the end of
// its last 16 columns; what is right of these is read transposed from below. Of X are DEPTH columns there at a time, of which each COLUMNS are
// replaced by their gradient once all have multiplied them. The widest pieces that divide a vector are COPY bytes.
template <typename T, int F, int D, int DEPTH, int COLUMNS, int COPY>
__global__ void __launch_bounds__((F / 16 + 1) * 32, F / 16 + 1 > 16 ? 1 : 16 / (F / 16 + 1))
    dot_gradient_wide(const T* __restrict__ dense, const T* __restrict__ sparse, const T* __restrict__ dy, T* __restrict__ ddense,
                      T* __restrict__ dsparse) {
    constexpr int TILES = F / 16 + 1, ROWS = TILES * 16, THREADS = TILES * 32, PITCH = row_bytes<T>(ROWS), STRIDE = row_bytes<T>(DEPTH), AHEAD = 16;
    extern __shared__ __align__(128) unsigned char memory[];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    long long sample = blockIdx.x;
    unsigned char* x = memory + ROWS * PITCH;
    T* own = reinterpret_cast<T*>(x + ROWS * STRIDE);  // dense's, DEPTH of them
    dy += sample * (D + F * (F + 1) / 2);
    auto bring = [&](int start) {
        bring_vectors<COPY, THREADS, F, D, DEPTH, T>(Given<T>{dense, sparse}, nullptr, x, sample, 0, F + 1, start, threadIdx.x);
        copy_commit();
#pragma unroll 1
        for (int n = threadIdx.x; n < (ROWS - F - 1) * STRIDE / 16; n += THREADS)
            reinterpret_cast<uint4*>(x + (F + 1) * STRIDE)[n] = make_uint4(0, 0, 0, 0);
    };
    T of_dense[(DEPTH + THREADS - 1) / THREADS];  // asked for with the rest: its columns wait in registers
    auto request_own = [&](int start) {
#pragma unroll
        for (int i = 0; i < (DEPTH + THREADS - 1) / THREADS; ++i) {
            int d = i * THREADS + threadIdx.x;
            of_dense[i] = d < DEPTH && start + d < D ? dy[start + d] : T{};
        }
    };
    auto store_own = [&] {
#pragma unroll
        for (int i = 0; i < (DEPTH + THREADS - 1) / THREADS; ++i)
            if (i * THREADS + threadIdx.x < DEPTH) own[i * THREADS + threadIdx.x] = of_dense[i];
    };
    bring(0);
    request_own(0);
#pragma unroll 1
    for (int first = 0; first < ROWS; first += 32)
#pragma unroll 1
        for (int row = first + warp; row < ROWS; row += AHEAD * TILES) {
            int j = first + lane;
            T v[AHEAD];
#pragma unroll
            for (int r = 0; r < AHEAD; ++r) {
                int i = row + r * TILES;
                v[r] = j < i && i <= F ? dy[D + below_diagonal(i, j)] : T{};
            }
#pragma unroll
            for (int r = 0; r < AHEAD; ++r) {
                int i = row + r * TILES;
                if (i < ROWS && j / 16 <= i / 16) *reinterpret_cast<T*>(memory + i * PITCH + j * sizeof(T)) = v[r];
            }
        }

    store_own();

    unsigned S = shared_address(memory), below = S + (warp * 16 + lane % 16) * PITCH + lane / 16 * 16;
    unsigned turned = S + (lane / 16 * 8 + lane % 8) * PITCH + warp * 32 + lane / 8 % 2 * 16;
#pragma unroll 1
    for (int start = 0; start < D; start += DEPTH) {
        if (start > 0) {
            __syncthreads();  // all have stored the columns before
            bring(start);
            request_own(start);
            store_own();
        }
        copy_wait<0>();
        __syncthreads();
#pragma unroll 1
        for (int column = 0; column < DEPTH; column += COLUMNS) {
            unsigned char* part = x + column * sizeof(T);
            float c[COLUMNS / 16][2][4] = {};
#pragma unroll 1
            for (int k = 0; k < TILES; ++k) {
                unsigned a[4] = {}, above[4] = {};
                if (k <= warp) load_matrices(a, below + k * 32);
                if (k >= warp) load_matrices_transposed(above, turned + k * 16 * PITCH);
#pragma unroll
                for (int r = 0; r < 4; ++r) a[r] |= above[r];
#pragma unroll
                for (int q = 0; q < COLUMNS / 16; ++q) {
                    unsigned b[2][2];
                    right_operands<T>(b, part + q * 16 * sizeof(T), STRIDE, k * 16, lane);
#pragma unroll
                    for (int f = 0; f < 2; ++f) multiply_add(c[q][f], a, b[f], T{});
                }
            }
            __syncthreads();  // all have read these columns
#pragma unroll
            for (int q = 0; q < COLUMNS / 16; ++q)
#pragma unroll
                for (int f = 0; f < 2; ++f)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        int row = warp * 16 + g + 8 * h, d = q * 16 + f * 8 + 2 * t;
                        Pair<T> pair;
#pragma unroll
                        for (int e = 0; e < 2; ++e)
                            pair.at[e] = from_float<T>(c[q][f][2 * h + e] + (row == 0 ? to_float(own[column + d + e]) : 0.0f));
                        *reinterpret_cast<Pair<T>*>(part + row * STRIDE + d * sizeof(T)) = pair;
                    }
        }
        __syncwarp();
        using Piece = typename Unit<COPY>::Type;
        constexpr int SIZE = COPY / sizeof(T), PIECES = (D < DEPTH ? D : DEPTH) / SIZE;
#pragma unroll 4
        for (int n = lane; n < 16 * PIECES; n += 32) {
            int f = warp * 16 + n / PIECES, d = n % PIECES * SIZE;
            if (f <= F && start + d < D)
                *reinterpret_cast<Piece*>(vector_of(ddense, dsparse, sample, f, F, D) + start + d) =
                    *reinterpret_cast<const Piece*>(x + f * STRIDE + d * sizeof(T));
        }
    }
}

// ---- dot, float32 units -----------------------------------------------------------------------------------------------

// A block has SAMPLES samples: of each S, (F + 1, pitch) with zeros behind F, and `columns` columns of its vectors at a time, as floats.
// A thread has 8 vectors by 4 columns of the gradient.
template <typename T, int SAMPLES>
__global__ void __launch_bounds__(128)
    dot_gradient_simt(const T* __restrict__ dense, const T* __restrict__ sparse, const T* __restrict__ dy,
                      T* __restrict__ ddense, T* __restrict__ dsparse, long long M, int F, int D, int pitch, int columns) {
    extern __shared__ __align__(128) unsigned char memory[];
    int own = (F + 1) * (pitch + columns), across = columns / 4, items = pitch / 8 * across, width = D + F * (F + 1) / 2;
    long long first = static_cast<long long>(blockIdx.x) * SAMPLES;
    int samples = static_cast<int>(min(M - first, static_cast<long long>(SAMPLES)));
    float* all = reinterpret_cast<float*>(memory);
    for (int n = threadIdx.x; n < samples * (F + 1) * pitch; n += 128) {
        int sample = n / ((F + 1) * pitch), place = n % ((F + 1) * pitch);
        all[sample * own + place] = to_float(of_pair(dy + (first + sample) * width + D, place / pitch, place % pitch, F));
    }
    for (int start = 0; start < D; start += columns) {
        __syncthreads();
        for (int n = threadIdx.x; n < samples * (F + 1) * columns; n += 128) {
            int sample = n / ((F + 1) * columns), place = n % ((F + 1) * columns), f = place / columns, d = start + place % columns;
            float v = d < D ? to_float(vector_of(dense, sparse, first + sample, f, F, D)[d]) : 0.0f;
            all[sample * own + (F + 1) * pitch + place] = v;
        }
        __syncthreads();
        for (int n = threadIdx.x; n < samples * items; n += 128) {
            int sample = n / items, i0 = n % items / across * 8, d = n % across * 4;
            const float *S = all + sample * own + i0, *x = all + sample * own + (F + 1) * pitch + d;
            float c[8][4] = {};
#pragma unroll 2
            for (int j = 0; j <= F; ++j) {
                Vector<float> s[2], v = *reinterpret_cast<const Vector<float>*>(x + j * columns);
#pragma unroll
                for (int h = 0; h < 2; ++h) s[h] = *reinterpret_cast<const Vector<float>*>(S + j * pitch + 4 * h);
#pragma unroll
                for (int i = 0; i < 8; ++i)
#pragma unroll
                    for (int e = 0; e < 4; ++e) c[i][e] = fmaf(s[i / 4].at[i % 4], v.at[e], c[i][e]);
            }
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    if (i0 + i > F || start + d + e >= D) continue;
                    float dense_own = i0 + i == 0 ? to_float(dy[(first + sample) * width + start + d + e]) : 0.0f;
                    T* to = vector_of(ddense, dsparse, first + sample, i0 + i, F, D);
                    to[start + d + e] = from_float<T>(c[i][e] + dense_own);
                }
        }
    }
}

// ---- outer ------------------------------------------------------------------------------------------------------------

// A warp has every 16th row of a sample's dy (N, N), N = (F + 1) D, and 512 columns at a time: a lane sums those of its own columns, and
// the warp its rows. memory has 3 N floats: x, and the sums of rows and of columns. ALIGNED: N is a multiple of a vector.
template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(512)
    outer_gradient(const T* __restrict__ dense, const T* __restrict__ sparse, const T* __restrict__ dy, T* __restrict__ ddense,
                   T* __restrict__ dsparse, int F, int D) {
    constexpr int SIZE = Vector<T>::SIZE, WARPS = 16, TILE = 512, V = TILE / 32 / SIZE, AHEAD = 4;  // rows requested at once
    __shared__ float parts[WARPS][TILE];
    extern __shared__ __align__(128) unsigned char memory[];
    int N = (F + 1) * D, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    long long sample = blockIdx.x;
    float *x = reinterpret_cast<float*>(memory), *of_rows = x + N, *of_columns = of_rows + N;
    for (int n = threadIdx.x; n < N; n += 512) x[n] = to_float(*side_by_side(dense, sparse, sample, F, D, n)), of_rows[n] = 0.0f;
    __syncthreads();
    dy += sample * N * N;
    for (int tile = 0; tile < N; tile += TILE) {
        float right[V * SIZE], down[V * SIZE] = {};
#pragma unroll
        for (int k = 0; k < V * SIZE; ++k) {
            int j = tile + (k / SIZE * 32 + lane) * SIZE + k % SIZE;
            right[k] = j < N ? x[j] : 0.0f;
        }
        for (int row0 = warp; row0 < N; row0 += AHEAD * WARPS) {
            Vector<T> v[AHEAD][V];
#pragma unroll
            for (int r = 0; r < AHEAD; ++r)
#pragma unroll
                for (int k = 0; k < V; ++k) {
                    int row = row0 + r * WARPS, j = tile + (k * 32 + lane) * SIZE;
                    v[r][k] = load_part<ALIGNED>(dy + static_cast<long long>(row) * N + j, row < N ? N - j : 0);
                }
#pragma unroll
            for (int r = 0; r < AHEAD; ++r) {
                int row = row0 + r * WARPS;
                float left = row < N ? x[row] : 0.0f, sum = 0.0f;
#pragma unroll
                for (int k = 0; k < V * SIZE; ++k) {
                    float d = element(v[r][k / SIZE], k % SIZE);
                    sum = fmaf(d, right[k], sum);
                    down[k] = fmaf(d, left, down[k]);
                }
                sum = lane_sum<32>(sum);
                if (lane == 0 && row < N) of_rows[row] += sum;
            }
        }
#pragma unroll
        for (int k = 0; k < V * SIZE; ++k) parts[warp][(k / SIZE * 32 + lane) * SIZE + k % SIZE] = down[k];
        __syncthreads();
        for (int n = threadIdx.x; n < TILE && tile + n < N; n += 512) {
            float total = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) total += parts[w][n];
            of_columns[tile + n] = total;
        }
        __syncthreads();
    }
    for (int n = threadIdx.x; n < N; n += 512)
        *side_by_side(ddense, dsparse, sample, F, D, n) = from_float<T>(of_rows[n] + of_columns[n]);
}
