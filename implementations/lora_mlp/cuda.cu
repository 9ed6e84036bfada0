// lora_mlp: for each layer the kernel `fused` of lora.cuh, or `down` and one of the kernels `up`.
#include "_shared/cuda/adapted_few_rows.cuh"
#include "_shared/cuda/adapted_simt.cuh"
#include "_shared/cuda/hopper/adapted_split.cuh"
#include "_shared/cuda/hopper/adapted_turned.cuh"
#include "_shared/cuda/lora_down_simt.cuh"
#include "_shared/cuda/lora.cuh"
