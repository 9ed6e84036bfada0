// dlrm_train: a training step with a launch for each layer, forward and back, in place of `pass` of cuda.cu (16 bits, Hopper).
//
//   begin     weights in the dtype of the case; dense, in rows of whole 16 elements
//   product_… a layer, or the gradient behind the layer below: a product with its own tile (_shared/cuda/matmul.py)
//   cross     the dots of each sample's vectors, which it looks up for itself
//   head      the last layer, which has one column, the loss, and the gradient behind the layer below
//   uncross   the gradients by each sample's vectors
//
// What they leave for `update` of cuda.cu lies where `pass` leaves it, in rows of whole 16 elements.
#include "_cross.cuh"
#include "_shared/cuda/hopper/matmul.cuh"

// ---- layers ------------------------------------------------------------------------------------------------------------

// The result of a layer, from its bias.
template <typename T, Activation ACT>
struct Activated : Epilogue {
    using Wanted = float;
    const float* __restrict__ b;

    __device__ __forceinline__ Activated(const float* b, long long) : b(b) {}
    __device__ __forceinline__ float column(long long n) const { return rounded<T>(b[n]); }
    __device__ __forceinline__ float operator()(None, float bias, const float (&v)[1]) const { return activate<ACT>(v[0] + bias); }
};

// The gradient behind a layer, 0 where its ReLU is: where its result h is not above 0.
template <typename T>
struct Passed : Epilogue {
    using Wanted = T;
    const T* __restrict__ h;
    long long N;

    __device__ __forceinline__ Passed(const T* h, long long N) : h(h), N(N) {}
    __device__ __forceinline__ const T* row(long long m) const { return h + m * N; }
    __device__ __forceinline__ int column(long long n) const { return static_cast<int>(n); }
    __device__ __forceinline__ float operator()(const T* row, int n, const float (&v)[1]) const { return to_float(row[n]) > 0.0f ? v[0] : 0.0f; }
};

// The same where there is no ReLU.
template <typename T>
struct PassedWhole : Stored {
    using Wanted = T;

    __device__ __forceinline__ PassedWhole(const T*, long long) {}
};

template <typename T, typename F, bool ALIGNED, bool NK, int BM, int BN, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(WM* WN * 32, 1)
    product_tensor(const T* __restrict__ x, const T* __restrict__ W, const typename F::Wanted* __restrict__ wanted, T* __restrict__ y,
                   long long M, long long K, long long N) {
    matmul_mma<T, ALIGNED, NK, BM, BN, WM, WN, STAGES, 1>(x, W, y, M, K, N, F(wanted, N));
}

#if __CUDA_ARCH__ >= 900
template <typename T, typename F, bool NK, int BM, int BN, int STAGES, int CLUSTER>
__global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(BM * 2 + 128, 1)
    product_warpgroup(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap W,
                      const typename F::Wanted* __restrict__ wanted, T* __restrict__ y, long long M, long long K, long long N) {
    matmul_wgmma<T, NK, BM, BN, STAGES, CLUSTER, 1>(x, W, y, M, K, N, F(wanted, N));
}
#endif

// ---- before and between them ------------------------------------------------------------------------------------------

// `cast` gets W of each layer but the last, with rows of zeros up to whole 16 of them, one behind the other.
template <typename T>
__global__ void __launch_bounds__(THREADS) begin(const T* __restrict__ dense, WEIGHTS, T* workspace, T* cast, SIZES) {
    float* gradients = nullptr;  // of which nothing is lent
    DESCRIBE;
    long long thread = blockIdx.x * static_cast<long long>(THREADS) + threadIdx.x, threads = gridDim.x * static_cast<long long>(THREADS);
    for (int l = 0; l + 1 < count; ++l) {
        int K = model[l].K, N = model[l].N, all = model[l].h_pitch() * N;
        for (long long i = thread * 4; i < all; i += threads * 4) {
            Quad<float> v = {};
            if (i < static_cast<long long>(K) * N) v = *reinterpret_cast<const Quad<float>*>(model[l].W + i);
            *reinterpret_cast<Quad<T>*>(cast + i) = quad_of<T>(v.at);
        }
        cast += all;
    }
    int N0 = model[0].K, pitch = model[0].h_pitch();
    for (long long i = thread * 4; i < M * pitch; i += threads * 4) {
        const T* row = dense + i / pitch * N0;
        int n = static_cast<int>(i % pitch);
        Quad<T> q;
#pragma unroll
        for (int e = 0; e < 4; ++e) q.at[e] = n + e < N0 ? row[n + e] : from_float<T>(0.0f);
        *reinterpret_cast<Quad<T>*>(model[0].h + i) = q;
    }
}

// A block has ROWS rows, a warp one after another: h (M, K), W (K). dz has rows of 16 elements. RELU: the layer below has one.
template <typename T, bool RELU_BELOW, int ROWS>
__global__ void __launch_bounds__(THREADS)
    head(const T* __restrict__ h, const float* __restrict__ W, const float* __restrict__ b, const float* __restrict__ labels,
         T* __restrict__ dz, T* __restrict__ below, float* __restrict__ losses, long long M, int K) {
    __shared__ float sums[WARPS];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pitch = whole(K, 16);
    float loss = 0.0f, bias = rounded<T>(b[0]);
    long long first = static_cast<long long>(blockIdx.x) * ROWS;
    for (long long m = first + warp; m < min(first + ROWS, M); m += WARPS) {
        float z = 0.0f;
        for (int k = lane * 4; k < pitch; k += 128) {
            auto q = *reinterpret_cast<const Quad<T>*>(h + m * pitch + k);
#pragma unroll
            for (int e = 0; e < 4; ++e) z = k + e < K ? fmaf(to_float(q.at[e]), rounded<T>(W[k + e]), z) : z;
        }
        Loss own(lane_sum<32>(z) + bias, labels[m], M);
        float d = rounded<T>(own.gradient);
        loss += own.value;
        if (lane < 16) dz[m * 16 + lane] = from_float<T>(lane == 0 ? d : 0.0f);
        for (int k = lane * 4; k < pitch; k += 128) {
            auto q = *reinterpret_cast<const Quad<T>*>(h + m * pitch + k);
            float v[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                v[e] = k + e < K ? d * rounded<T>(W[k + e]) : 0.0f;
                if (RELU_BELOW && !(to_float(q.at[e]) > 0.0f)) v[e] = 0.0f;
            }
            *reinterpret_cast<Quad<T>*>(below + m * pitch + k) = quad_of<T>(v);
        }
    }
    if (lane == 0) sums[warp] = loss;
    __syncthreads();
    if (threadIdx.x > 0) return;
    float sum = 0.0f;
    for (int w = 0; w < WARPS; ++w) sum += sums[w];
    losses[blockIdx.x] = sum;
}
