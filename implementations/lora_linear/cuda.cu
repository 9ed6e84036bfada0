// lora_linear: y = act(x @ W + b + scale * (x @ A) @ B), by the kernels `fused`, `down` and `up` of lora.cuh and adapted.cuh.
#include "_shared/cuda/hopper/adapted.cuh"
