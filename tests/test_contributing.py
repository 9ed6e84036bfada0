"""The worked examples of CONTRIBUTING.md are right as they stand."""

from __future__ import annotations

import re

from test_command_line import REPOSITORY, fusebench, records_of

BLOCKS = re.findall(r"```python\n(.*?)```", (REPOSITORY / "CONTRIBUTING.md").read_text(), re.DOTALL)


def test_the_examples_run(tmp_path):
    addmm, kernel, eager = BLOCKS
    for path, text in (("lola/torch_addmm.py", addmm), ("linear/kernel.py", kernel), ("linear/torch_eager.py", eager)):
        (tmp_path / "mine" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / path).write_text(text)
    arguments = ["kernel=[lola,linear]", "implementation=[torch_addmm,torch_eager]", "dtype=all"]
    done = fusebench("parity", f"path={tmp_path / 'mine'}", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {(r.kernel, r.label, r.status) for r in records_of(tmp_path)} == {
        ("lola", "torch_addmm", "ok"), ("lola", "torch_eager", "ok"), ("linear", "torch_eager", "ok")
    }  # fmt: skip
