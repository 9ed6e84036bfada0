// lora_mlp's backward modes: for each layer the kernels of lora_backward.cuh.
#include "_shared/cuda/lora_backward.cuh"
