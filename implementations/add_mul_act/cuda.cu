// add_mul_act: y = act(x + multiplier * z + b), one launch, for any M and N; y may be x. elementwise.cuh does all but
// the step itself. The multiplier is read on the device: another value needs no other program, and nobody waits for it.
#include "_shared/cuda/elementwise.cuh"

// The activation of a sum, to be stored as T. In float32 tanh GELU near 0 is made of a precise tanh, whose errors are lost beside 1: those of the
// fast exponential and reciprocal, which are small anywhere, are all that a small sum has.
template <Activation A, typename T>
__device__ __forceinline__ float activate_sum(float z) {
    if constexpr (A == GELU_TANH && sizeof(T) == 4) {
        float u = z * fmaf(0.035677408f * z, z, 0.79788456f);
        if (fabsf(u) < 1.0f) return fmaf(0.5f * z, tanhf(u), 0.5f * z);
    }
    return activate<A>(z);
}

template <typename T, Activation ACT, bool ALIGNED, int UNROLL, int BLOCK>
__global__ void __launch_bounds__(BLOCK)
    add_mul_act(const T* x, const T* z, const T* multiplier, const T* b, T* y, long long count, long long N,
                long long step, long long reciprocal) {
    const T* const in[] = {x, z};
    float scale = to_float(*multiplier);
    pointwise<ALIGNED, UNROLL, BLOCK>(in, b, y, Rows{count, N, step, reciprocal}, [=](const float (&v)[2], float bias) {
        return activate_sum<ACT, T>(fmaf(scale, v[1], v[0]) + bias);
    });
}
