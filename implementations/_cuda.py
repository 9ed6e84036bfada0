"""What the CUDA implementations of all kernels share."""

# storage dtype → its name in _device.cuh
TYPES = {"float32": "float", "float16": "float16", "bfloat16": "bfloat16"}
# compute capability → KiB of shared memory that a block may have; 99 on all others
SHARED_MEMORY = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227}
