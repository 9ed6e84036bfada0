// add_mul_act's backward modes: dx = dy * act'(x + multiplier * z + b), dz = multiplier * dx, db = the sum of dx over the rows.
//
//   gradient   dx and dz, and sums of dx over a block's rows: db where one block has all rows of its columns, else parts in float32
//   sum_parts  db of the parts, in their order
//
// The matrices are rows of 16-byte vectors, which are aligned whatever N is. A group is as many rows as are whole vectors together, or several
// times as many. A thread has one place of a group and goes from group to group, so that its vectors always have the same columns: their biases
// are read once, and their sums stay in registers. The slopes of relu, sigmoid and tanh come from y as it is stored, which is then given as x.
#include "_shared/cuda/pulled.cuh"

constexpr int THREADS = 256;  // of a block

template <Activation A>
constexpr bool FROM_Y = A == RELU || A == SIGMOID || A == TANH;
template <Activation A>
constexpr bool FROM_SUM = A != NONE && !FROM_Y<A>;
template <Activation A, int UNROLL>
constexpr int RESIDENT = UNROLL > 4 ? 1 : FROM_SUM<A> ? 2 : 3;  // blocks of `gradient` that a multiprocessor has registers for

// The derivative of relu, sigmoid or tanh from its result.
template <Activation A>
__device__ __forceinline__ float slope_from_value(float y) {
    if constexpr (A == SIGMOID) return y * (1.0f - y);
    if constexpr (A == TANH) return 1.0f - y * y;
    return slope<A>(y);  // relu's has the sign of what it is of
}

// The derivative by the sum, of what is stored as T. In float32 that of tanh GELU is made of a precise tanh: of small sums, the errors of the
// fast exponential would show. Of GELU with erf it is precise in 16 bits, too: there is no product whose error is larger.
template <Activation A, typename T>
__device__ __forceinline__ float slope_of_sum(float z) {
    if constexpr (A == GELU_TANH && sizeof(T) == 4) {
        float t = tanhf(z * fmaf(0.035677408f * z, z, 0.79788456f));
        return fmaf(0.5f * z * fmaf(-t, t, 1.0f), fmaf(0.10703222f * z, z, 0.79788456f), fmaf(0.5f, t, 0.5f));
    }
    return slope<A>(z);
}

// What a thread does to each of its vectors.
template <typename T, Activation ACT>
struct Step {
    static constexpr int SIZE = Vector<T>::SIZE;
    float scale, bias[SIZE], total[SIZE];

    // The biases of the columns from `column` on, and no sums yet.
    __device__ __forceinline__ Step(const T* multiplier, const T* b, long long column, long long N) : scale(to_float(*multiplier)) {
#pragma unroll
        for (int e = 0; e < SIZE; ++e) {
            total[e] = 0.0f;
            if constexpr (FROM_SUM<ACT>) bias[e] = to_float(b[column]);
            column = column + 1 < N ? column + 1 : 0;
        }
    }

    // Of the first `count` elements, dx and dz at once.
    __device__ __forceinline__ void operator()(const Vector<T>& x, const Vector<T>& z, const Vector<T>& dy, Vector<T>& dx, Vector<T>& dz, int count) {
#pragma unroll
        for (int e = 0; e < SIZE; e += 2) {
            float through[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float v = element(dy, e + h);
                if constexpr (FROM_Y<ACT>) v *= slope_from_value<ACT>(element(x, e + h));
                if constexpr (FROM_SUM<ACT>) v *= slope_of_sum<ACT, T>(fmaf(scale, element(z, e + h), element(x, e + h)) + bias[e + h]);
                if (e + h < count) total[e + h] += v;
                through[h] = v;
            }
            store_pair(dx, e, through[0], through[1]);
            store_pair(dz, e, scale * through[0], scale * through[1]);
        }
    }
};

// The sums of a block's positions that are `period` apart, the first at `skew` of a period: leave(place in the period, sum) of each. Position
// e of a thread's vector is total[e]. Where the period is short, several threads share each sum.
template <int SIZE, typename F>
__device__ __forceinline__ void add_up(const float (&total)[SIZE], int period, int skew, F leave) {
    __shared__ float sums[SIZE][THREADS + 32 / SIZE], shares[THREADS];  // no two of 32 neighbouring positions are in one bank
#pragma unroll
    for (int e = 0; e < SIZE; ++e) sums[e][threadIdx.x] = total[e];
    __syncthreads();
    int thread = threadIdx.x, split = 1;
    while (2 * split * period <= THREADS) split *= 2;
    for (int i = thread; i < split * period; i += THREADS) {
        int place = i % period, first = place < skew ? place - skew + period : place - skew;
        float sum = 0.0f;
#pragma unroll 4
        for (int at = first + (i - place); at < THREADS * SIZE; at += split * period) sum += sums[at % SIZE][at / SIZE];
        if (split == 1) leave(place, sum);
        else shares[i] = sum;
    }
    for (int half = split / 2; half > 0; half /= 2) {
        __syncthreads();
        if (thread >= half * period) continue;
        float sum = shares[thread] + shares[thread + half * period];
        if (half == 1) leave(thread, sum);
        else shares[thread] = sum;
    }
}

// A group has `group` vectors. `across` blocks have its places, `lanes` each, and as many groups at once as that leaves threads for; a thread's next
// vector is `stride` on. What fills no vector is of the thread whose first one is `rest`. FLAT: the places of a block have all columns, and it
// leaves a row of N sums; else a sum for each of its places' elements, so that parts of a group are whole rows of N as well.
template <typename T, Activation ACT, bool FLAT, int UNROLL>
__global__ void __launch_bounds__(THREADS, RESIDENT<ACT, UNROLL>)
    gradient(const T* __restrict__ x, const T* __restrict__ z, const T* __restrict__ multiplier, const T* __restrict__ b,
             const T* __restrict__ dy, T* __restrict__ dx, T* __restrict__ dz, T* __restrict__ db, float* __restrict__ parts, long long count,
             long long N, long long group, long long across, long long lanes, long long stride, long long rest) {
    constexpr int SIZE = Vector<T>::SIZE;
    wait_for_previous_launch();
    unsigned thread = threadIdx.x, lane = thread % static_cast<unsigned>(lanes), row = thread / static_cast<unsigned>(lanes);
    long long down = blockIdx.x / static_cast<unsigned>(across), side = blockIdx.x % static_cast<unsigned>(across) * lanes;
    long long place = side + lane, start = (down * (THREADS / static_cast<unsigned>(lanes)) + row) * group + place;
    long long whole = place < group ? count / SIZE : 0;
    Step<T, ACT> step(multiplier, b, FROM_SUM<ACT> ? place * SIZE % N : 0, N);
#pragma unroll 1
    for (long long first = start; first < whole; first += UNROLL * stride) {
        Vector<T> before[UNROLL], scaled[UNROLL], behind[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            long long at = (first + i * stride) * SIZE;
            if (first + i * stride >= whole) break;
            if constexpr (ACT != NONE) before[i] = load_streaming(x + at);
            if constexpr (FROM_SUM<ACT>) scaled[i] = load_streaming(z + at);
            behind[i] = load_streaming(dy + at);
        }
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            long long at = (first + i * stride) * SIZE;
            if (first + i * stride >= whole) break;
            Vector<T> made, made_scaled;
            step(before[i], scaled[i], behind[i], made, made_scaled, SIZE);
            store_vector(dx + at, made);
            store_vector(dz + at, made_scaled);
        }
    }
    if (start == rest && place < group) {
        int left = static_cast<int>(count % SIZE);
        long long at = count - left;
        Vector<T> before = {}, scaled = {}, made, made_scaled;
        if constexpr (ACT != NONE) before = load_part<false>(x + at, left);
        if constexpr (FROM_SUM<ACT>) scaled = load_part<false>(z + at, left);
        step(before, scaled, load_part<false>(dy + at, left), made, made_scaled, left);
        store_part<false>(dx + at, made, left);
        store_part<false>(dz + at, made_scaled, left);
    }
    long long first = FLAT ? blockIdx.x * N : (down * group + side) * SIZE;
    int period = static_cast<int>(FLAT ? N : lanes * SIZE), skew = FLAT ? static_cast<int>(side * SIZE % N) : 0;
    add_up(step.total, period, skew, [&](int place, float sum) {
        if (!FLAT && (side * SIZE + place >= group * SIZE || first + place >= count)) return;
        if (db) db[first + place] = from_float<T>(sum);
        else parts[first + place] = sum;
    });
}

// db (N,), of a block COLUMNS columns, of `rows` rows of parts: threads side by side have columns, those behind each other rows.
template <typename T, int COLUMNS>
__global__ void __launch_bounds__(THREADS) sum_parts(const float* __restrict__ parts, T* __restrict__ db, long long rows, long long N) {
    __shared__ float sums[THREADS / 32][COLUMNS];
    wait_for_previous_launch();
    int thread = threadIdx.x, column = thread % COLUMNS;
    long long n = static_cast<long long>(blockIdx.x) * COLUMNS + column;
    float sum = 0.0f;
    if (n < N)
#pragma unroll 8
        for (long long m = thread / COLUMNS; m < rows; m += THREADS / COLUMNS) sum += parts[m * N + n];
    sum = lane_sum<32 / COLUMNS, COLUMNS>(sum);
    if (thread % 32 < COLUMNS) sums[thread / 32][column] = sum;
    __syncthreads();
    if (thread >= COLUMNS || n >= N) return;
    sum = 0.0f;
#pragma unroll
    for (int w = 0; w < THREADS / 32; ++w) sum += sums[w][column];
    db[n] = from_float<T>(sum);
}
