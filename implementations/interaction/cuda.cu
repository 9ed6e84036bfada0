// interaction: the kernels of interactions.cuh, which describes them, and no other.
#include "_shared/cuda/interactions.cuh"
