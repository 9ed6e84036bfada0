// What is known of an instance of perceptron.cuh when it is compiled. perceptron_warpgroup.py counts the same bytes.
#pragma once

template <int WIDTH, int TILE>
constexpr int WHOLE_TILES = (WIDTH + TILE - 1) / TILE * TILE;

// Sizes, N in whole tiles, and where what lies in shared memory: W1 or rows of x, and sums of other blocks in their place; W3; the ring; barriers;
// biases; the last W.
template <int N0_, int WIDTH1_, int WIDTH2_, int WIDTH3_, int OUT_, int ROWS_, int STAGES_, int CLUSTER_>
struct PerceptronSizes {
    static constexpr int N0 = N0_, WIDTH1 = WIDTH1_, WIDTH2 = WIDTH2_, WIDTH3 = WIDTH3_, OUT = OUT_;
    static constexpr int ROWS = ROWS_, STAGES = STAGES_, CLUSTER = CLUSTER_;
    static constexpr bool SPLIT = ROWS == 64, X_IN_REGISTERS = N0 <= 16;
    static constexpr int SHARING_K = SPLIT ? CLUSTER : 1, SHARING_W = SPLIT ? 1 : CLUSTER;  // blocks
    static constexpr int TILE = SPLIT ? ROWS : ROWS * CLUSTER;                               // rows of a cluster
    // Rows after which one of x begins at a multiple of 16 bytes again, and the most elements that any begins behind one.
    static constexpr int PERIOD = X_IN_REGISTERS || N0 % 8 == 0 ? 1 : N0 % 4 == 0 ? 2 : N0 % 2 == 0 ? 4 : 8, MOST_SHIFT = 8 - 8 / PERIOD;
    static constexpr int CHUNK = 128;  // columns of layer 1 at a time
    static constexpr int N1 = WHOLE_TILES<WIDTH1, CHUNK * SHARING_K>, N2 = WHOLE_TILES<WIDTH2, 128>, N3 = WHOLE_TILES<WIDTH3, 64>;
    static constexpr int COLUMNS = N1 / SHARING_K;  // of layer 1 for a block
    static constexpr int SLABS = X_IN_REGISTERS ? 0 : (N0 + MOST_SHIFT + 63) / 64, SLAB_BYTES = ROWS * 128;  // of x in shared memory
    static constexpr int DEPTH = X_IN_REGISTERS ? 64 : 8192 / N2, PIECES = CHUNK / DEPTH;  // rows of W2 in a stage; stages of a chunk
    static constexpr int STAGE = DEPTH * N2 * 2, CONSUMERS = ROWS / 16;                     // warps
    static constexpr int W1_BYTES = X_IN_REGISTERS ? 16 * COLUMNS * 2 : 0, THIRD = N2 * N3 * 2, RESIDENT = W1_BYTES + THIRD;
    static constexpr int GROUPS = 4 / CLUSTER, PART = N2 / CLUSTER;  // of 16 rows that a block ends; columns of them for each warp
    static constexpr int SENT = 16 * N2 * 4;                         // bytes of sums that a warp sends
    static constexpr int OWN = W1_BYTES + SLABS * SLAB_BYTES, FRONT = SPLIT && OWN < 4 * SENT ? 4 * SENT : OWN;
    static constexpr int LAST_K = N3 ? N3 : N2, TILES = (OUT + 7) / 8;  // of the last layer; in eights of columns
    static constexpr int RING = FRONT + THIRD, BARRIERS = RING + STAGES * (STAGE + 16);
    static constexpr int FLOATS = BARRIERS + (2 * SLABS + 2) * 8, BIASES = N1 + N2 + N3 + TILES * 8;
    static constexpr int LAST_W = FLOATS + BIASES * 4, BYTES = LAST_W + LAST_K / 16 * TILES * 256;
    static_assert(N2 <= 256 && N3 <= 64 && TILES <= 16 && WIDTH1 % 8 + WIDTH2 % 8 + WIDTH3 % 8 == 0, "tiles, and rows in vectors");
    static_assert(X_IN_REGISTERS || DEPTH * N2 == 64 * CHUNK, "a stage of W1");
    static_assert(ROWS == 128 || (SPLIT && (CLUSTER == 2 || CLUSTER == 4)), "four warps send their sums to all blocks");
};
