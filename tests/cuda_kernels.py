"""The CUDA implementations and the devices that tests ask them for."""

import importlib

from fusebench import discovery
from fusebench.contract import Device

KERNELS = {n: k for n, k in discovery.find_kernels(discovery.roots_of()).items() if "cuda" in k.implementations}
DTYPES = (("float32", "ieee"), ("float32", "tf32"), ("float16", "ieee"), ("bfloat16", "ieee"))
A100, H200, B200 = (
    Device("cuda", f"sm_{c[0]}{c[1]}", c, sms) for c, sms in (((8, 0), 108), ((9, 0), 132), ((10, 0), 148))
)
RTX3090 = Device("cuda", "sm_86", (8, 6), 82)  # 99 KiB of shared memory
SHARED_BYTES = {A100: 163 << 10, H200: 227 << 10, B200: 227 << 10, RTX3090: 99 << 10}


def module_of(name):
    return importlib.import_module(f"implementations.{name}.cuda")


def mlp(M, *widths):
    """The sizes of fused_mlp with these widths."""
    padded = (*widths, 1, 1, 1)[:5]
    return {"M": M, "LAYERS": len(widths) - 1} | {f"N{i}": n for i, n in enumerate(padded)}
