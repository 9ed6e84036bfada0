// splacc's backward modes: the gate of _shared/cuda/gated_backward.cuh.
#include "_shared/cuda/gated_backward.cuh"

template <typename T>
struct Gate : Pull {
    static __device__ __forceinline__ float value(float left, float right) { return sigmoid(left) * of_right(right).x; }
    __device__ __forceinline__ void operator()(const float (&z)[2], float dy, float (&dz)[2]) const {
        float s = sigmoid(z[0]);
        float2 t = of_right(z[1]);
        dz[0] = dy * t.x * s * sigmoid(-z[0]);
        dz[1] = dy * s * t.y;
    }

private:
    // tanh and its derivative. With e = exp(-2 |z|) the latter is 4 e / (1 + e)², where nothing cancels; in (1 - e) / (1 + e) it does for small z,
    // where two terms of the series are enough for results of 16 bits.
    static __device__ __forceinline__ float2 of_right(float z) {
        float e = exp_minus_abs(2.0f * z), r = reciprocal_approximate(1.0f + e), t;
        if constexpr (sizeof(T) == 4) t = tanhf(z);
        else t = fabsf(z) < 0.05f ? fmaf(z * z * z, -0.33333334f, z) : copysignf((1.0f - e) * r, z);
        return {t, 4.0f * e * r * r};
    }
};
