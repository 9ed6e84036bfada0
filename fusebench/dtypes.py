"""The storage dtypes: their formats, and how NumPy names them. Everything that rounds, stores or makes inputs reads them here."""

from __future__ import annotations

import ml_dtypes
import numpy as np

# dtype → bits of the mantissa that are stored, exponent of the smallest normal number, largest number
FORMATS = {
    "float32": (23, -126, float(np.finfo(np.float32).max)),
    "float16": (10, -14, 65504.0),
    "bfloat16": (7, -126, (2 - 2.0**-7) * 2.0**127),
}


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of that name, bfloat16 included."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
