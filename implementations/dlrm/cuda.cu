// dlrm: kernels that it shares, and no other: perceptron.cuh's, interactions.cuh's, outer_product.cuh's, lookup.cuh's, and in hopper/
// perceptron_few_rows.cuh's.
#include "_shared/cuda/hopper/perceptron_few_rows.cuh"
#include "_shared/cuda/interactions.cuh"
#include "_shared/cuda/outer_product.cuh"
#include "_shared/cuda/perceptron.cuh"
