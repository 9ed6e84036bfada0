"""Random numbers for inputs, drawn by all cores; how many there are changes no bit. Another version of NumPy may draw others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

# elements at a time, which take a core 1 to 4 ms: a Philox of their own takes 20 µs, and they fit into a core's cache
BLOCK = 2**18

T = TypeVar("T")


class Generator(np.random.Generator):
    """NumPy's generator, but that all cores draw arrays of standard normals: in blocks, each by a Philox whose counter begins with
    the block's number (Salmon et al. 2011), with a key that is the generator's next number. All else comes of it one by one."""

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        """As NumPy's, with other numbers; those of a scalar, and of an array that is handed in, are NumPy's."""
        if size is None or out is not None:
            return super().standard_normal(size, dtype, out)
        array = np.empty(size, dtype)
        flat, key = array.reshape(-1), self.bit_generator.random_raw(2)

        def draw(block: slice) -> None:
            philox = np.random.Philox(key=key, counter=[0, 0, block.start // BLOCK, 0])
            np.random.Generator(philox).standard_normal(dtype=dtype, out=flat[block])

        in_threads(draw, blocks(flat.size))
        return array


def generator(*seed: int) -> Generator:
    """A generator whose numbers follow from the seed."""
    return Generator(np.random.PCG64(seed))


def cast(array: np.ndarray, dtype: Any) -> np.ndarray:
    """The array in another dtype, cast by all cores; itself where it has that dtype."""
    if array.dtype == dtype:
        return array
    made = np.empty(array.shape, dtype)
    source, target = array.reshape(-1), made.reshape(-1)
    in_threads(lambda block: np.copyto(target[block], source[block], casting="unsafe"), blocks(source.size))
    return made


def blocks(size: int) -> list[slice]:
    """The blocks of that many elements."""
    return [slice(begin, min(begin + BLOCK, size)) for begin in range(0, size, BLOCK)]


def in_threads(do: Callable[[T], Any], items: Iterable[T]) -> list[Any]:
    """What `do` returns of each item, by as many threads as this process has cores, where it has anything to do for two.

    Raises what `do` raises, and MemoryError where a thread's stack is too much.
    """
    items = list(items)
    count = min(len(items), len(os.sched_getaffinity(0)))
    if count < 2:
        return [do(item) for item in items]
    try:
        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(do, items))
    except RuntimeError as error:
        raise MemoryError(str(error)) from error
