// dlrm_train: a training step in two launches.
//
//   pass     takes a tile of rows through the model and back: both perceptrons, the dots of each sample's vectors, the loss, and the gradients
//            behind all layers. What a layer makes stays in shared memory, as the next one's input, and is stored beside that for `update`.
//   update   all that sums over the batch: tiles of hᵀ dz of every layer and the step by them, sums of biases, the step of the table rows that
//            were looked up (atomic additions: some come more often than once), the mean loss.
//
// Few rows are few tiles, and each would read all weights through one multiprocessor, twice. So a cluster of CLUSTER blocks shares a tile
// of rows: each makes its share of every layer's columns, reads that share of the weights alone, and writes what it made to the shared memory
// of all blocks of the cluster, beside the layer's input. One barrier of the cluster ends a layer.
//
// Weights are float32 and multiplied in the dtype of the case.
//
// Arrays between the launches have rows of whole 16 elements, zeros behind the layer's width. Of few rows most of them lie where `update` writes the
// gradient of the largest layer, which waits until they are read: the outputs take most of the memory, and what is beside them counts.
#include "_pass.cuh"
#include "_update.cuh"
