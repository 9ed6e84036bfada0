// dlrm_train: the launch `pass` of cuda.cu.
#pragma once
#include "_rows.cuh"
#include "_shared/cuda/interactions.cuh"

// ---- between the perceptrons ------------------------------------------------------------------------------------------

// The vectors of some samples, as floats that were rounded to T: (F + 1, pitch) each, zeros behind D.
struct Vectors {
    float* memory;
    int F, D, pitch;

    __device__ __forceinline__ Vectors(float* memory, int F, int D) : memory(memory), F(F), D(D), pitch(whole(D, 16) + 4) {}
    __device__ __forceinline__ const float* of(int sample, int f) const { return memory + (sample * (F + 1) + f) * pitch; }

    // Brings those of the `count` samples of the batch from `first` on, which are CLUSTER apart; `table_rows` (M, F), dense(i) is the i-th one's
    // dense vector. A sample past the batch gets zeros.
    template <typename T, int CLUSTER, typename Dense>
    __device__ __forceinline__ void gather(const float* __restrict__ tables, const int* table_rows, long long first, long long M, int count,
                                           Dense dense) {
        __syncthreads();  // all have read the ones before
        int quads = whole(D, 16) / 4;
        for (int i = threadIdx.x; i < count * (F + 1) * quads; i += THREADS) {
            int d = i % quads * 4, f = i / quads % (F + 1), sample = i / (quads * (F + 1));
            float v[4] = {};
            long long place = first + sample * CLUSTER;
            if (place < M && f == 0) {
                auto q = *reinterpret_cast<const Quad<T>*>(dense(sample) + d);
#pragma unroll
                for (int e = 0; e < 4; ++e) v[e] = d + e < D ? to_float(q.at[e]) : 0.0f;
            } else if (place < M) {
                const float* at = tables + static_cast<long long>(table_rows[place * F + f - 1]) * D + d;
                auto q = D % 4 == 0 ? load_part<true>(at, D - d) : load_part<false>(at, D - d);
#pragma unroll
                for (int e = 0; e < 4; ++e) v[e] = rounded<T>(q.at[e]);
            }
            *reinterpret_cast<float4*>(memory + (sample * (F + 1) + f) * pitch + d) = make_float4(v[0], v[1], v[2], v[3]);
        }
        __syncthreads();
    }

    __device__ __forceinline__ float dot(int sample, int i, int j) const {
        const float *a = of(sample, i), *b = of(sample, j);
        float sum = 0.0f;
        for (int d = 0; d < D; d += 4) {
            auto x = *reinterpret_cast<const Quad<float>*>(a + d), y = *reinterpret_cast<const Quad<float>*>(b + d);
#pragma unroll
            for (int e = 0; e < 4; ++e) sum = fmaf(x.at[e], y.at[e], sum);
        }
        return sum;
    }
};

// The row of the triangle that its n-th element is in.
__device__ __forceinline__ int triangle_row(int n) {
    int i = static_cast<int>((1.0f + sqrtf(1.0f + 8.0f * n)) * 0.5f);
    while (i * (i - 1) / 2 > n) --i;
    while (i * (i + 1) / 2 <= n) ++i;
    return i;
}

// `count` elements, of which block `block` of `blocks` asks for its share of lines.
__device__ __forceinline__ void bring_to_L2(const float* from, long long count, int block, int blocks) {
    constexpr int LINE = 32;
    for (long long i = (static_cast<long long>(block) * THREADS + threadIdx.x) * LINE; i < count; i += static_cast<long long>(blocks) * THREADS * LINE)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i));
}

// ---- the kernels --------------------------------------------------------------------------------------------------------

#define PASS                                                                                                                    \
    const T *__restrict__ dense, const Index *__restrict__ ids, const float *__restrict__ labels, const float *__restrict__ tables, \
        const Index *__restrict__ offsets, const int *__restrict__ keys, const int *__restrict__ positions, WEIGHTS, T *workspace, \
        float *gradients, int *rows, float *losses, T *dvectors, SIZES, int pitch, int at_once
#define PASSED                                                                                                                     \
    dense, ids, labels, tables, offsets, keys, positions, W1, b1, W2, b2, W3, b3, W4, b4, W5, b5, W6, b6, W7, b7, workspace, gradients, \
        rows, losses, dvectors, M, layers, K1, K2, K3, K4, K5, K6, K7, bottom, F, D, largest, lent, pitch, at_once

// Shared memory: two places of ROWS rows for what layers take and make, and behind them the sums of warps, or the vectors of samples.
template <typename T, bool SIMT, bool IMPROVED, int FM, int CLUSTER>
__device__ __forceinline__ void pass_rows(PASS) {
    using Rows = RowTile<T, SIMT, FM, CLUSTER>;
    constexpr int ROWS = Rows::ROWS;
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ float row_loss[ROWS], row_dz[ROWS];
    int rank = 0;
    if constexpr (CLUSTER > 1) {
        rank = static_cast<int>(cluster_rank());
        cluster_arrive();  // this block has begun: others may write to its shared memory
    }
    DESCRIBE;
    T *in = reinterpret_cast<T*>(memory), *out = in + ROWS * pitch;
    auto* parts = reinterpret_cast<float*>(out + ROWS * pitch);
    long long m0 = static_cast<long long>(blockIdx.x / CLUSTER) * ROWS;
    Rows tile{rank, pitch, m0, M, parts};
    const int last = count - 1;
    if (blockIdx.x == 0 && threadIdx.x == 0) rows[M * F] = 0;  // blocks of `update` that have read what is lent a place
    auto swap = [&] {
        T* other = in;
        in = out, out = other;
    };

    // What comes later is asked for now: in a cold cache each layer would wait for memory, and the look-ups for one after the other.
    for (int l = 0; l < count; ++l) {
        bring_to_L2(model[l].W, static_cast<long long>(model[l].K) * model[l].N, blockIdx.x, gridDim.x);
        bring_to_L2(model[l].b, model[l].N, 0, 1);
    }
    bring_to_L2(labels + m0, min(M - m0, static_cast<long long>(ROWS)), 0, 1);
    const int N0 = model[0].K, width = D + F * (F + 1) / 2, crossed = whole(width, 16), own = ROWS / CLUSTER;
    auto input = [&](int i) {
        int row = i / whole(N0, 16), n = i % whole(N0, 16);
        return i < ROWS * whole(N0, 16) && m0 + row < M && n < N0 ? dense[(m0 + row) * N0 + n] : from_float<T>(0.0f);
    };
    T first_input = input(threadIdx.x);
    for (int i = threadIdx.x; i < own * F; i += THREADS) {  // of the tile's samples this block has every CLUSTER-th one
        long long sample = m0 + rank + i / F * CLUSTER;
        if (sample >= M) break;
        Index row = LookedUp<float, IMPROVED>{nullptr, ids, tables, offsets, keys, positions}.row(sample, i % F + 1, F);
        rows[sample * F + i % F] = static_cast<int>(row);
        for (int d = 0; d < D; d += 32) asm volatile("prefetch.global.L2 [%0];" ::"l"(tables + row * D + d));
    }
    for (int i = threadIdx.x; i < ROWS * whole(N0, 16); i += THREADS) {
        int row = i / whole(N0, 16), n = i % whole(N0, 16);
        T v = i == threadIdx.x ? first_input : input(i);
        in[row * pitch + n] = v;
        if (rank == 0 && m0 + row < M) model[0].h[(m0 + row) * whole(N0, 16) + n] = v;
    }
    tile.template request<false>(model[0]);
    __syncthreads();
    if constexpr (CLUSTER > 1) cluster_wait();

    Vectors vectors(parts, F, D);
    // The dots of the samples' vectors, behind the dense one.
    auto cross_samples = [&] {
        for (int begin = 0; begin < own; begin += at_once) {
            int samples = min(at_once, own - begin), row0 = rank + begin * CLUSTER;
            vectors.gather<T, CLUSTER>(tables, rows, m0 + row0, M, samples, [&](int i) { return in + (row0 + i * CLUSTER) * pitch; });
            for (int i = threadIdx.x; i < samples * (crossed / 2); i += THREADS) {
                int sample = i / (crossed / 2), n = i % (crossed / 2) * 2, row = row0 + sample * CLUSTER;
                Pair<T> made;
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    float v = 0.0f;
                    if (n + e < D) {
                        v = vectors.of(sample, 0)[n + e];
                    } else if (n + e < width) {
                        int place = n + e - D, above = triangle_row(place);
                        v = vectors.dot(sample, above, place - above * (above - 1) / 2);
                    }
                    made.at[e] = from_float<T>(v);
                }
                give<CLUSTER>(reinterpret_cast<Pair<T>*>(out + row * pitch + n), made);
                if (m0 + row < M) *reinterpret_cast<Pair<T>*>(model[bottom].h + (m0 + row) * crossed + n) = made;
            }
        }
        Rows::meet();
    };
    // The gradients by a sample's vectors: those of the dots as a symmetric matrix, times the vectors.
    auto uncross_samples = [&] {
        for (int begin = 0; begin < own; begin += at_once) {
            int samples = min(at_once, own - begin), row0 = rank + begin * CLUSTER, quads = whole(D, 16) / 4;
            const T* before = model[bottom].h;  // its rows begin with the dense vectors
            vectors.gather<T, CLUSTER>(tables, rows, m0 + row0, M, samples,
                                       [&](int i) { return before + (m0 + row0 + i * CLUSTER) * crossed; });
            for (int i = threadIdx.x; i < samples * (F + 1) * quads; i += THREADS) {
                int d = i % quads * 4, f = i / quads % (F + 1), sample = i / (quads * (F + 1)), row = row0 + sample * CLUSTER;
                const T* dy = in + row * pitch;
                float v[4] = {};
#pragma unroll 4
                for (int j = 0; j <= F; ++j) {
                    float s = j == f ? 0.0f : to_float(dy[D + below_diagonal(max(f, j), min(f, j))]);
                    auto x = *reinterpret_cast<const Quad<float>*>(vectors.of(sample, j) + d);
#pragma unroll
                    for (int e = 0; e < 4; ++e) v[e] = fmaf(s, x.at[e], v[e]);
                }
                if (f == 0) {
#pragma unroll
                    for (int e = 0; e < 4; ++e) v[e] = d + e < D ? v[e] + to_float(dy[d + e]) : 0.0f;
                    tile.deliver(out, model[bottom - 1].dz, whole(D, 16), row, d, v);
                } else if (m0 + row < M) {
                    T* to = dvectors + ((m0 + row) * F + f - 1) * D + d;
                    if (D % 4 == 0) {
                        if (d < D) *reinterpret_cast<Quad<T>*>(to) = quad_of<T>(v);
                    } else {
#pragma unroll
                        for (int e = 0; e < 4; ++e)
                            if (d + e < D) to[e] = from_float<T>(v[e]);
                    }
                }
            }
        }
        Rows::meet();
    };

    for (int l = 0; l <= last; ++l) {
        if (l == bottom) {
            cross_samples();
            swap();
        }
        if (l == last) break;
        bool end = l + 1 == bottom;
        tile.forward(in, out, model[l], end ? nullptr : model[l + 1].h, !end);
        if (l + 1 < last) tile.template request<false>(model[l + 1]);
        else if (l > 0) tile.template request<true>(model[l]);
        Rows::meet();
        swap();
    }

    // The last layer has one column. Every block has all it needs for all rows.
    const TrainedLayer<T>& head = model[last];
    int lane = threadIdx.x % 32;
    for (int row = threadIdx.x / 32; row < ROWS; row += WARPS) {
        float z = 0.0f;
        for (int k = lane; k < head.K; k += 32) z = fmaf(to_float(in[row * pitch + k]), rounded<T>(head.W[k]), z);
        z = lane_sum<32>(z) + rounded<T>(head.b[0]);
        if (lane == 0) {
            bool exists = m0 + row < M;
            Loss own(z, exists ? labels[m0 + row] : 0.0f, M);
            row_loss[row] = exists ? own.value : 0.0f;
            row_dz[row] = exists ? rounded<T>(own.gradient) : 0.0f;
        }
    }
    __syncthreads();
    if (rank == 0 && threadIdx.x == 0) {
        float sum = 0.0f;
        for (int row = 0; row < ROWS; ++row) sum += row_loss[row];
        losses[blockIdx.x / CLUSTER] = sum;
    }
    for (int i = threadIdx.x; i < ROWS * 16 && rank == 0; i += THREADS)
        if (m0 + i / 16 < M) head.dz[(m0 + i / 16) * 16 + i % 16] = from_float<T>(i % 16 ? 0.0f : row_dz[i / 16]);
    int quads = head.h_pitch() / 4;
    for (int i = threadIdx.x; i < ROWS * quads; i += THREADS) {
        int row = i / quads, k = i % quads * 4;
        auto h = *reinterpret_cast<const Quad<T>*>(in + row * pitch + k);
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            v[e] = k + e < head.K ? row_dz[row] * rounded<T>(head.W[k + e]) : 0.0f;
            if (last > bottom && !(to_float(h.at[e]) > 0.0f)) v[e] = 0.0f;
        }
        Quad<T> q = quad_of<T>(v);
        *reinterpret_cast<Quad<T>*>(out + row * pitch + k) = q;
        if (last > bottom && row % CLUSTER == rank && m0 + row < M)
            *reinterpret_cast<Quad<T>*>(model[last - 1].dz + (m0 + row) * head.h_pitch() + k) = q;
    }
    Rows::meet();
    swap();

    for (int l = last - 1; l >= 0; --l) {
        if (l == bottom - 1) {
            uncross_samples();
            swap();
        }
        if (l == 0) break;
        bool first = l == bottom;  // of its perceptron
        tile.backward(in, l > 1 || first ? out : nullptr, model[l], first ? nullptr : model[l - 1].dz, !first);
        if (l > 1) tile.template request<true>(model[l - 1]);
        Rows::meet();
        swap();
    }
}

template <typename T, bool SIMT, bool IMPROVED, int FM>
__global__ void __launch_bounds__(THREADS, 1) pass(PASS) {
    pass_rows<T, SIMT, IMPROVED, FM, 1>(PASSED);
}

#if __CUDA_ARCH__ >= 900
template <typename T, bool SIMT, bool IMPROVED, int FM, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1) pass_cluster(PASS) {
    pass_rows<T, SIMT, IMPROVED, FM, CLUSTER>(PASSED);
}
#endif
