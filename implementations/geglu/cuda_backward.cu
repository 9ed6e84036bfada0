// geglu's backward modes: the gate of _shared/cuda/gated_backward.cuh.
#include "_shared/cuda/gated_backward.cuh"

template <typename T, Activation ACT>
struct Gate : Pull {
    static constexpr bool COLUMN_SUMS = true;

    static __device__ __forceinline__ float value(float left, float right) { return left * activate_as<ACT, T>(right); }
    __device__ __forceinline__ void operator()(const float (&z)[2], float dy, float (&dz)[2]) const {
        dz[0] = dy * activate_as<ACT, T>(z[1]);
        dz[1] = dy * z[0] * slope_as<ACT, T>(z[1]);
    }
};
