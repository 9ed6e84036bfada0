// lora_linear's backward modes, by the kernels of lora_backward.cuh.
#include "_shared/cuda/lora_backward.cuh"
