// fused_mlp: the kernels of perceptron.cuh, which describes them, and no other.
#include "_shared/cuda/perceptron.cuh"
