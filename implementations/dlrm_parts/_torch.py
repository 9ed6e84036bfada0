"""The model up to a part in PyTorch, for torch_eager.py and torch_compile.py."""

import torch.nn.functional as F

from implementations._shared.torch import lookup
from implementations._shared.torch.dlrm import DLRM


class Until(DLRM):
    """The model up to the part that the case names."""

    def __init__(self, case, hashing, device):
        super().__init__(case, hashing, device)
        self.hashing, self.until = hashing, case.options["until"]

    def forward(self, dense, ids, tables, offsets, bottom, top, prepared):
        vector = self.dense(dense, bottom)
        if self.until == "dense":
            return vector
        rows = lookup.rows_of(self.hashing, ids, tables, offsets, prepared)
        if self.until == "hashing":
            return vector, rows
        vectors = F.embedding(rows, tables)
        return (vector, vectors) if self.until == "embedding" else self.interaction(vector, vectors)
