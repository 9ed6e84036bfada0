"""The fused Triton kernels as functions for training: `fusebench.ops.torch` and `fusebench.ops.jax`, each with a function for every
kernel that has a backward pass in Triton."""
