"""The CUDA sources once more, with warps that wait at random wherever the blocks of a cluster meet, or the producers and consumers of a block.

They run nearly in step, so that a missing barrier between them, or memory that one overwrites while another reads it, seldom shows. Waits
longer than all that is between two barriers take them out of step.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from fusebench.backends.cuda import SHARED

# Up to 16 384 clocks, 9 µs on an H200, for all lanes of a warp alike.
WAIT = """
__device__ __forceinline__ void wait_at_random() {
    unsigned h = (static_cast<unsigned>(clock64()) ^ (blockIdx.x * 32 + threadIdx.x / 32) * 2654435761u) * 2246822519u;
    h = (h ^ h >> 15) * 3266489917u;
    for (long long end = clock64() + (h >> 18); clock64() < end;) {}
}
"""
ARRIVE = 'asm volatile("barrier.cluster.arrive.release;" ::: "memory");'
PASS = 'asm volatile("barrier.cluster.wait.acquire;" ::: "memory");'
TELL = 'asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];"'
SEND = 'asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32'
AWAIT = "barrier_wait(full(i), i / STAGES & 1);"
ACQUIRE = "barrier_wait(empty(i), i / STAGES & 1 ^ 1);"
CHANGES = {
    "device.cuh": {
        "#pragma once": "#pragma once" + WAIT,
        ARRIVE: "wait_at_random(); " + ARRIVE,
        PASS: PASS + " wait_at_random();",
    },
    "pipeline.cuh": {
        TELL: "wait_at_random(); " + TELL,
        SEND: "wait_at_random(); " + SEND,
        AWAIT: AWAIT + " wait_at_random();",
        ACQUIRE: ACQUIRE + " wait_at_random();",
    },
}


def delayed_sources(folder: Path) -> Path:
    """Writes them to `folder`, laid out as implementations/ is."""
    for file in SHARED.rglob("*.cu*"):
        to = folder / file.relative_to(SHARED)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, to)
    for name, changes in CHANGES.items():
        (file,) = (folder / "_shared" / "cuda").rglob(name)
        text = file.read_text(encoding="utf-8")
        for old, new in changes.items():
            assert text.count(old) == 1, f"{name} has changed: where is {old!r}?"
            text = text.replace(old, new)
        file.write_text(text, encoding="utf-8")
    return folder
