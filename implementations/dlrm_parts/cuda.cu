// dlrm_parts: the dense perceptron of perceptron.cuh, and the interaction of interactions.cuh, which hashes and looks up for itself.
#include "_shared/cuda/interactions.cuh"
#include "_shared/cuda/perceptron.cuh"
