// fused_mlp's backward modes, layer by layer from the last: the products are layer_backward.cuh's. Forward (cuda_layers.cu) leaves the hidden
// layers and y behind, which are as much as z is: an activation's slope is made of its result.
//
//   pull_layer   some rows and columns of dz, of dy or of dx of the layer above, and their sums for db; then
//   gradients_…, or turned_operands, inputs_… and weights_…       dx, dW and db
//
// and at the end weights_of_layers, and sum_weights, for layers whose dW has no launch of its own (_weights.cuh).
#include "_weights.cuh"
#include "_shared/cuda/layer_backward.cuh"
#include "_shared/cuda/pulled.cuh"

template <Activation ACT>
struct OfResult : Pull {
    static constexpr bool COLUMN_SUMS = true;

    __device__ __forceinline__ void operator()(const float (&y)[1], float dy, float (&dz)[1]) const { dz[0] = ACT == NONE ? dy : dy * slope_of(y[0]); }

private:
    static __device__ __forceinline__ float slope_of(float y) { return ACT == RELU ? slope<RELU>(y) : y * (1.0f - y); }
};

template <typename T, Activation ACT, bool ALIGNED>
__global__ void __launch_bounds__(256, 2)
    pull_layer(const T* __restrict__ y, const T* __restrict__ dy, T* __restrict__ dz, float2* __restrict__ row_parts, T* __restrict__ db,
               float* __restrict__ column_parts, int* __restrict__ flags, long long M, long long N, long long pitch, long long each,
               long long flag_count) {
    wait_for_previous_launch();
    clear_flags(flags, flag_count);
    static_assert(ACT == NONE || ACT == RELU || ACT == SIGMOID, "the slopes of others are not made of their results");
    pull<T, ALIGNED, 1>(y, dy, dz, db, column_parts, row_parts, M, N, pitch, each, OfResult<ACT>{});
}
