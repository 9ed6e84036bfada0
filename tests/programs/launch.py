"""launch: a copy."""

import numpy as np

from programs import Mistake, Program
from programs.arithmetic import edit, flush, store, tf32_cut, wide


def copy(case, x):
    return x.copy()


def by_blocks(case, x):
    return np.concatenate([x[i : i + 128] for i in range(0, len(x), 128)])


CORRECT = {
    "copy": Program(copy),
    "by blocks": Program(by_blocks),
    "in a flushing back end": Program(copy, ("subnormals",)),  # it computes nothing that could be flushed
    "by float32": Program(lambda case, x: store(case, wide(x))),
}

LARGEST = {"N": 5000}
ODD = {"N": 4099}

MISTAKES = {
    "subnormals lost where programs may flush them": Mistake(lambda case, x: flush(x), "in a flushing back end", ODD, inputs="subnormal"),
    "last element missing": Mistake(lambda case, x: edit(x, -1, 0), "copy", ODD),
    "last block missing": Mistake(lambda case, x: edit(x, np.s_[4096:], 0), "copy", ODD),
    "zeros": Mistake(lambda case, x: np.zeros_like(x), "copy", ODD),
    "shifted by one": Mistake(lambda case, x: np.roll(x, 1), "copy", ODD),
    "one element one step off": Mistake(
        lambda case, x: edit(x, 77, np.nextafter(x[77], np.float32(9))), "copy", ODD),
    "through float16": Mistake(lambda case, x: store(case, x.astype(np.float16)), "copy", ODD),
    "through bfloat16's 8 bits": Mistake(
        lambda case, x: store(case, (wide(x).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)), "copy", ODD, "float16"),
    "through tf32": Mistake(lambda case, x: tf32_cut(x), "copy", ODD),
    "subnormals lost": Mistake(lambda case, x: flush(x), "copy", ODD, inputs="subnormal"),
    "NaN lost": Mistake(lambda case, x: np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf), "copy", ODD, inputs="nan"),
    "infinity made the largest": Mistake(lambda case, x: np.nan_to_num(x), "copy", ODD, inputs="inf"),
    "two elements swapped": Mistake(lambda case, x: edit(x, [6, 7], x[[7, 6]]), "copy", ODD),
}  # fmt: skip
