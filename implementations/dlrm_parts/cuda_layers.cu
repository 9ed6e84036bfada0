// dlrm_parts's perceptron with a launch for each layer: the kernels of perceptron_layers.cuh.
#include "_shared/cuda/perceptron_layers.cuh"
