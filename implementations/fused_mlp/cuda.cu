// fused_mlp: the kernels of perceptron.cuh, and in hopper/ of perceptron.cuh and perceptron_few_rows.cuh, which describe them.
#include "_shared/cuda/hopper/perceptron.cuh"
#include "_shared/cuda/hopper/perceptron_few_rows.cuh"
#include "_shared/cuda/perceptron.cuh"
