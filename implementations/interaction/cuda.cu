// interaction: the kernels of interactions.cuh, which describes them, and that of _persistent.cuh where there is a copy engine.
#include "_shared/cuda/interactions.cuh"
#if __CUDA_ARCH__ >= 900
#include "_persistent.cuh"
#endif
