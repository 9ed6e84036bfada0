// lora_linear: y = act(x @ W + b + scale * (x @ A) @ B), by the kernels `fused`, `down` and `up` of lora.cuh and those after it.
#include "_shared/cuda/adapted_few_rows.cuh"
#include "_shared/cuda/adapted_simt.cuh"
#include "_shared/cuda/hopper/adapted_split.cuh"
#include "_shared/cuda/hopper/adapted_turned.cuh"
#include "_shared/cuda/lora_down_simt.cuh"
#include "_fused.cuh"
