"""Device functions of one step for each element: activations, and vectors of 16 bytes of a matrix with rows of any length;
and the configs of kernels that go through a matrix in such vectors."""

import triton
import triton.language as tl

from implementations._shared.gpu import VECTOR_BYTES, multiprocessors, share
from implementations._shared.triton.limits import misfit


def config(case, device, inputs):
    """Elements of a block, and its warps, where the elements of so many inputs make one of y."""
    M, N = case.size("M", "N")
    vectors, threads = share(M * N, case.itemsize, multiprocessors(device), inputs)
    return {"BLOCK": vectors * threads * VECTOR_BYTES // case.itemsize, "num_warps": threads // 32}


def fits(case, device, config, inputs):
    """Why a config cannot run, or None."""
    vector = VECTOR_BYTES // case.itemsize
    if config["BLOCK"] < vector:
        return f"BLOCK={config['BLOCK']}; a thread moves {vector} elements at once"
    return misfit(device, config, values=(inputs + 1) * config["BLOCK"])  # and the biases


@triton.jit
def whole_vectors(start, count, N: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    """Places and columns of elements start … start + BLOCK - 1 of a matrix of `count` with rows of N, and a mask, all
    (BLOCK / VECTOR, VECTOR): a thread moves whole rows of it, 16 bytes each, however long a row of the matrix is.

    Places count from `start`. The mask leaves out vectors that go past `count`, as a whole, or Triton would split them all:
    `last_elements` are what is left over. The columns take one division for the block, in 64 bits, and one for each vector,
    in 32 unless a row of the matrix is longer than that.
    """
    vector = tl.arange(0, BLOCK // VECTOR) * VECTOR
    first = start % N
    if N < 2**30:
        first = first.to(tl.int32)
    column = (first + vector) % N
    if N % VECTOR == 0:  # no vector goes past the end of a row
        columns = tl.multiple_of(column, VECTOR)[:, None] + tl.arange(0, VECTOR)[None, :]
    else:
        columns = column[:, None] + tl.arange(0, VECTOR)[None, :]
        if N < VECTOR:
            columns = columns % N
        else:
            columns = tl.where(columns < N, columns, columns - N)
    inside = (vector + VECTOR <= count - start)[:, None]
    return vector[:, None] + tl.arange(0, VECTOR)[None, :], columns, inside


@triton.jit
def last_elements(start, count, N: tl.constexpr, VECTOR: tl.constexpr):
    """Places, columns and mask (VECTOR,) of the elements that fill no vector, in the block from `start` that holds them."""
    left = count - start
    place = left // VECTOR * VECTOR + tl.arange(0, VECTOR)
    return place, (start + place) % N, place < left


@triton.jit
def activate(z, ACTIVATION: tl.constexpr):
    """The activation of float32 z by name (_shared/numpy/formulas.py). z sigmoid(2u) is 0.5 z (1 + tanh(u)) without its cancellation
    at u < 0."""
    if ACTIVATION == "gelu_tanh":
        z = z * tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))  # 2 sqrt(2 / pi)
    elif ACTIVATION == "gelu_erf":
        z = 0.5 * z * (1 + tl.erf(0.7071067811865476 * z))  # 1 / sqrt(2)
    elif ACTIVATION == "relu":
        z = tl.where(z < 0, 0.0, z)  # keeps NaN, which a maximum with 0 loses
    elif ACTIVATION == "sigmoid":
        z = tl.sigmoid(z)
    elif ACTIVATION == "tanh":
        z = tanh(z)
    elif ACTIVATION == "silu":
        z = z * tl.sigmoid(z)
    return z


@triton.jit
def tanh(z):
    """tanh of float32 z within 2 spacings, without libdevice, which the interpreter lacks.

    1 - 2 / (1 + exp(2 |z|)) from 9/8 on, where an error of 2^-22 in the exponential, which is what a GPU's may have, is 1.2
    spacings of the result; below, where the difference cancels, z + z³ q(z²) with the minimax polynomial q of degree 7.
    """
    s = z * z
    q = 0.0030057260300964117 + s * (-0.0007833821582607925 + s * 0.00010448904504301026)
    q = -0.053954511880874634 + s * (0.021777747198939323 + s * (-0.00855511985719204 + s * q))
    q = -0.3333333134651184 + s * (0.1333325356245041 + s * q)
    ends = 1.0 + tl.exp(2.0 * tl.abs(z))
    far = 1.0 - tl.div_rn(tl.full(ends.shape, 2.0, tl.float32), ends)
    return tl.where(tl.abs(z) < 1.125, z + z * s * q, tl.where(z < 0, -far, far))
