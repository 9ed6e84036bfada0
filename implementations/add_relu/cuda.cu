// add_relu: y = relu(x + b), one launch, for any M and N; y may be x. elementwise.cuh does all but the step itself.
#include "_shared/cuda/elementwise.cuh"

template <typename T, bool ALIGNED, int UNROLL, int BLOCK>
__global__ void __launch_bounds__(BLOCK)
    add_relu(const T* x, const T* b, T* y, long long count, long long N, long long step, long long reciprocal) {
    const T* const in[] = {x};
    pointwise<ALIGNED, UNROLL, BLOCK>(in, b, y, Rows{count, N, step, reciprocal}, [](const float (&v)[1], float bias) {
        return activate<RELU>(v[0] + bias);
    });
}
