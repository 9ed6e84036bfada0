// dlrm_train: the layers of the model, where their arrays are, and what both launches of cuda.cu do with four elements at a time.
#pragma once
#include "_shared/cuda/perceptron.cuh"

constexpr int MOST = 7, WARPS = 8, THREADS = 32 * WARPS;
constexpr int COLUMNS = 32, PART_PITCH = COLUMNS + 4;  // of a warp's tile; of its sums in shared memory, without conflicts of banks

__host__ __device__ constexpr int whole(int n, int of) { return (n + of - 1) / of * of; }

// ---- the model, and where its arrays are ------------------------------------------------------------------------------

// h (M, K) is the layer's input, dz (M, N) the gradient behind it.
template <typename T>
struct TrainedLayer {
    float *W, *b;
    int K, N;
    T *h, *dz;

    __device__ __forceinline__ int h_pitch() const { return whole(K, 16); }
    __device__ __forceinline__ int dz_pitch() const { return whole(N, 16); }
};

#define WEIGHTS                                                                                                              \
    float *W1, float *b1, float *W2, float *b2, float *W3, float *b3, float *W4, float *b4, float *W5, float *b5, float *W6, \
        float *b6, float *W7, float *b7
#define SIZES                                                                                                                \
    long long M, long long layers, long long K1, long long K2, long long K3, long long K4, long long K5, long long K6,       \
        long long K7, int bottom, int F, int D, int largest, int lent
#define DESCRIBE                                                                                                                    \
    __shared__ TrainedLayer<T> model[MOST];                                                                                         \
    int count = static_cast<int>(layers);                                                                                           \
    if (threadIdx.x == 0) {                                                                                                         \
        float* arrays[2 * MOST] = {W1, b1, W2, b2, W3, b3, W4, b4, W5, b5, W6, b6, W7, b7};                                         \
        int widths[MOST + 1] = {static_cast<int>(K1), static_cast<int>(K2), static_cast<int>(K3), static_cast<int>(K4),             \
                                static_cast<int>(K5), static_cast<int>(K6), static_cast<int>(K7), 1};                               \
        describe(model, arrays, widths, count, bottom, D, M, workspace, largest, lent < 0 ? nullptr : gradients + lent);            \
    }                                                                                                                               \
    __syncthreads()

// A layer is as wide as the next one's input, but for the last of each perceptron. The arrays of a few rows take less than the gradient of the
// largest layer's W: all but that layer's own lie in `lent`, its place, where there is one.
template <typename T>
__device__ __forceinline__ void describe(TrainedLayer<T>* model, float* const (&arrays)[2 * MOST], const int (&widths)[MOST + 1],
                                         int count, int bottom, int D, long long M, T* workspace, int largest, float* lent) {
    T* in_gradient = reinterpret_cast<T*>(lent);
#pragma unroll
    for (int l = 0; l < MOST; ++l) {
        if (l >= count) break;
        int N = l + 1 == count ? 1 : l + 1 == bottom ? D : widths[l + 1];
        bool elsewhere = lent && l != largest;
        T *h = elsewhere ? in_gradient : workspace, *dz = h + M * whole(widths[l], 16), *end = dz + M * whole(N, 16);
        model[l] = {arrays[2 * l], arrays[2 * l + 1], widths[l], N, h, dz};
        in_gradient = elsewhere ? end : in_gradient;
        workspace = elsewhere ? workspace : end;
    }
}

template <typename T>
__device__ __forceinline__ float rounded(float v) {
    return to_float(from_float<T>(v));
}

// A sample's cross-entropy of label y and the probability with logit z, and the gradient of the mean of M by z.
struct Loss {
    float value, gradient;

    __device__ __forceinline__ Loss(float z, float y, long long M) {
        float small = expf(-fabsf(z));
        gradient = ((z >= 0.0f ? 1.0f : small) / (1.0f + small) - y) / static_cast<float>(M);
        value = (z > 0.0f ? z : 0.0f * z) - z * y + log1pf(small);
    }
};

// Four neighbouring elements.
template <typename T>
struct alignas(4 * sizeof(T)) Quad {
    T at[4];
};

template <typename T>
__device__ __forceinline__ Quad<T> quad_of(const float (&v)[4]) {
    Quad<T> q;
#pragma unroll
    for (int e = 0; e < 4; ++e) q.at[e] = from_float<T>(v[e]);
    return q;
}

// To the same place of shared memory in all blocks of the cluster.
template <int CLUSTER, typename Unit>
__device__ __forceinline__ void give(Unit* to, const Unit& unit) {
    if constexpr (CLUSTER == 1) {
        *to = unit;
    } else if constexpr (sizeof(Unit) <= 8) {
        store_to_all<CLUSTER>(reinterpret_cast<unsigned char*>(to), unit);
    } else {
#pragma unroll
        for (int half = 0; half < 2; ++half)
            store_to_all<CLUSTER>(reinterpret_cast<unsigned char*>(to) + 8 * half, reinterpret_cast<const uint2*>(&unit)[half]);
    }
}
