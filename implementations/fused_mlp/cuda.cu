// fused_mlp: the kernels of perceptron.cuh and hopper/perceptron.cuh, which describe them, and no other.
#include "_shared/cuda/hopper/perceptron.cuh"
#include "_shared/cuda/perceptron.cuh"
