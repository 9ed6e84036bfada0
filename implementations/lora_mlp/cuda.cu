// lora_mlp: for each layer a launch of the kernel `fused` of lora.cuh.
#include "_shared/cuda/lora.cuh"
