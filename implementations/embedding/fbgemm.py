"""embedding by FBGEMM's table-batched embedding with dense gradients, behind torch_eager's hashings: all rows are one of its tables, and each
look-up is a bag of its own.

Its wheel belongs to one version of Torch, seldom the newest: worker.python.fbgemm=PATH is an interpreter that has both. Written after its
source of version 1; what it does not support it refuses by an exception, which the record shows.
"""

import functools

import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import DenseTableBatchedEmbeddingBagsCodegen
from torch.func import functional_call

from implementations._shared.dlrm import hashing_skip
from implementations._shared.torch import lookup
from implementations._shared.torch.autograd import in_mode

BACKEND = "torch"
REQUIRES = {"fbgemm_gpu": "fbgemm-gpu"}
VARIANTS = {"modulus": (), "improved": ()}
BACKWARD = {"modulus": ("accumulated",), "improved": ("accumulated",)}
PRECISIONS = {"float32": SparseType.FP32, "float16": SparseType.FP16, "bfloat16": SparseType.BF16}


def skip(case, variant, device):
    if reason := hashing_skip(case, variant, device):
        return reason
    return "FBGEMM reads rows in vectors of four elements" if case.sizes["D"] % 4 else None


def prepare(case, variant, ids, tables, offsets, known=None):
    return lookup.prepared(variant, offsets, known)


def build(case, variant, device):
    """call(ids (M, F), tables, offsets, …) → (M, F, D)."""
    hashing, (M, F, D) = {"modulus": lookup.modulus, "improved": lookup.improved}[variant], case.size("M", "F", "D")
    begins = torch.arange(M * F + 1, device=device.type)

    @functools.cache
    def bags(rows):
        made = DenseTableBatchedEmbeddingBagsCodegen(
            [(rows, D)], weights_precision=PRECISIONS[case.dtype], pooling_mode=PoolingMode.SUM,
            use_cpu=device.type == "cpu", output_dtype=PRECISIONS[case.dtype],
        )  # fmt: skip
        made.weights = torch.nn.Parameter(made.weights.new_empty(0))  # those of each call take their place
        return made

    def call(ids, tables, offsets, known=None, *prepared):
        rows = torch.where(lookup.valid(ids), hashing(ids, offsets, *prepared), len(tables) - 1)
        looked_up = functional_call(bags(len(tables)), {"weights": tables.flatten()}, (rows.flatten(), begins))
        return looked_up.view(M, F, D)

    return in_mode(case, call, (1,))
