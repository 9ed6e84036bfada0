// lora_linear: y = act(x @ W + b + scale * (x @ A) @ B), by the kernels `fused`, `down` and `up` of lora.cuh.
#include "_shared/cuda/lora.cuh"
