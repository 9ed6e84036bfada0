// add_mul_act: y = act(x + multiplier * z + b), one launch, for any M and N; y may be x. elementwise.cuh does all but
// the step itself. The multiplier is read on the device: another value needs no other program, and nobody waits for it.
#include "_shared/cuda/elementwise.cuh"

template <typename T, Activation ACT, bool ALIGNED, int UNROLL, int BLOCK>
__global__ void __launch_bounds__(BLOCK)
    add_mul_act(const T* x, const T* z, const T* multiplier, const T* b, T* y, long long count, long long N,
                long long step, long long reciprocal) {
    const T* const in[] = {x, z};
    float scale = to_float(*multiplier);
    pointwise<ALIGNED, UNROLL, BLOCK>(in, b, y, Rows{count, N, step, reciprocal}, [=](const float (&v)[2], float bias) {
        return activate<ACT>(fmaf(scale, v[1], v[0]) + bias);
    });
}
