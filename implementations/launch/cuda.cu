// launch: y = x, one launch, for any element count. A thread moves 16 bytes; only the last vector may be partial.
#include "_shared/cuda/device.cuh"

template <typename T>
__global__ void copy(const T* __restrict__ x, T* __restrict__ y, long long N) {
    constexpr int SIZE = Vector<T>::SIZE;
    long long first = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * SIZE;
    long long left = N - first;
    if (left >= SIZE) store_part<true>(y + first, load_part<true>(x + first, SIZE), SIZE);
    else if (left > 0) store_part<false>(y + first, load_part<false>(x + first, left), left);
}
