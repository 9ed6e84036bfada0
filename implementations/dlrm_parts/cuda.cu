// dlrm_parts: the dense perceptron of perceptron.cuh and hopper/perceptron_few_rows.cuh, and the interaction of interactions.cuh, which hashes and looks up
// for itself.
#include "_shared/cuda/hopper/perceptron_few_rows.cuh"
#include "_shared/cuda/interactions.cuh"
#include "_shared/cuda/perceptron.cuh"
