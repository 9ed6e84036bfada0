// fused_mlp: the kernels of perceptron.cuh, and in hopper/ of perceptron.cuh, perceptron_few_rows.cuh and perceptron_few_rows_half.cuh, which
// describe them.
#include "_shared/cuda/hopper/perceptron.cuh"
#include "_shared/cuda/hopper/perceptron_few_rows.cuh"
#include "_shared/cuda/hopper/perceptron_few_rows_half.cuh"
#include "_shared/cuda/perceptron.cuh"
