// embedding: the kernels of lookup.cuh, which describes them, and no other.
#include "_shared/cuda/lookup.cuh"
