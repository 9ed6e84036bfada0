"""The reference on the device: Torch's float64 gives what NumPy's does, for every kernel's formula, and finds what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fusebench.cases import make_case
from fusebench.inputs import make_sets, numpy_dtype, save
from fusebench.parity.judge import Judge
from fusebench.parity.reference import Reference, Tensor
from fusebench.parity.rounding import Exact, stored

SMALL = 3e5  # elements


def small_cases(kernels):
    for kernel in kernels.values():
        if "implementations" in str(kernel.folder):
            for name in kernel.module.CASES:
                case = make_case(kernel, name)
                if kernel.module.moved_bytes(case) < 4 * SMALL and kernel.module.flops(case) < 100 * SMALL:
                    for option, values in {"": ("",), **kernel.options}.items():
                        for value in values:
                            yield kernel, make_case(kernel, name, options={option: value} if option else {})


def test_torch_evaluates_every_formula(kernels):
    seen = set()
    for kernel, case in small_cases(kernels):
        arrays = [
            a if a.dtype.kind in "iub" else a.astype(np.float64)
            for a in make_sets(kernel.module, case, 0, 1)[0].values()
        ]
        with np.errstate(all="ignore"):
            expected = kernel.module.formula(case, Exact(), *arrays)
        got = kernel.module.formula(
            case, Exact(), *(a if a.dtype.kind in "iub" else Tensor(torch.from_numpy(a.copy())) for a in arrays)
        )
        for e, g in zip(expected, got, strict=True):
            np.testing.assert_allclose(g.tensor.numpy(), e, rtol=1e-9, atol=1e-12, err_msg=f"{kernel.name} {case.id}")
        seen.add(kernel.name)
    assert seen == {k.name for k in kernels.values() if "implementations" in str(k.folder)}


def compared(kernel, case, arrays, output, tmp_path):
    """What the reference on a device finds of all rows of the output, and the verdict after it."""
    judge = Judge(kernel.module, case, arrays, on_device=True)
    files = save(list(arrays.values()), tmp_path, "input")
    found = Reference("cpu").check(
        case.as_dict(), judge.row_inputs, judge.axis, files, save([output], tmp_path, "output"),
        [list(screen) for screen in judge.screens(())], "", str(tmp_path),
    )  # fmt: skip
    return found, judge.widened(judge.judge([output[:]], ()), found)


@pytest.mark.parametrize("wrong", [None, (150, 7)])
def test_all_rows_are_compared(kernels, tmp_path, monkeypatch, wrong):
    monkeypatch.setattr("fusebench.parity.reference.CHUNK_ELEMENTS", 2e5)  # several chunks
    kernel = kernels["lola"]
    case = make_case(kernel, {"M": 200, "K": 512, "N": 300}, "float16")
    arrays = make_sets(kernel.module, case, 0, 1)[0]
    whole = Judge(kernel.module, case, arrays)
    output = stored(whole.reference()[0], "float16").astype(numpy_dtype("float16"))
    if wrong:
        output[wrong] += 1
    found, verdict = compared(kernel, case, arrays, output, tmp_path)
    assert found["beyond"] == (1 if wrong else 0)
    assert verdict.ok == (wrong is None) and (wrong is None or verdict.index == wrong)


@pytest.mark.parametrize("wrong", [None, (150, 7)])
def test_overflow_is_right_where_the_formula_has_it(kernels, tmp_path, wrong):
    kernel = kernels["lola"]
    case = make_case(kernel, {"M": 200, "K": 64, "N": 60}, "float16", options={"activation": "none"})
    arrays = make_sets(kernel.module, case, 0, 1)[0]
    arrays["W"] = arrays["W"] * np.float16(3e4)
    exact = Judge(kernel.module, case, arrays).reference()[0]
    with np.errstate(over="ignore"):
        output = stored(exact, "float16").astype(np.float16)
    assert np.isinf(output).sum() > 100
    if wrong:
        output[wrong] = np.inf if abs(output[wrong]) < 1e4 else np.copysign(1e3, output[wrong])
    found, verdict = compared(kernel, case, arrays, output, tmp_path)
    assert found["beyond"] == (1 if wrong else 0)
    assert verdict.ok == (wrong is None) and (wrong is None or verdict.index == wrong)
