// fused_mlp: the kernels of perceptron.cuh, hopper/perceptron.cuh and hopper/perceptron_few_rows.cuh, which describe them, and no other.
#include "_shared/cuda/hopper/perceptron.cuh"
#include "_shared/cuda/hopper/perceptron_few_rows.cuh"
#include "_shared/cuda/perceptron.cuh"
