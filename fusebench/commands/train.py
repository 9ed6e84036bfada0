"""`fusebench train`: trains the recommendation model with an implementation's own step, and says how well it ranks held-out rows."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fusebench import cases, discovery, folder, report, svg
from fusebench.configuration import values
from fusebench.contract import DTYPES, PRECISIONS, Case
from fusebench.data import reading, synthesis, writing
from fusebench.data.reading import DataFile
from fusebench.data.schema import DATA_FILE
from fusebench.discovery import Kernel
from fusebench.errors import UsageError, unknown
from fusebench.timing.summary import significant
from fusebench.training import checkpoint, log, model, program, rows
from fusebench.training.loop import Diverged, Every, Loop
from fusebench.workers.cores import check_threads, confined

MODELS = {"dlrm": "dlrm_train"}  # the kernel of the forward pass, and that of the step
SYNTHETIC = "synthetic"
# what a resume= need not say again
OF_THE_RUN = (
    "implementation", "steps", "case", "batch", "dtype", "precision", "seed", "log1p", "held_out", "path", "threads", "log_every",
    "evaluate_every", "checkpoint_every",
)  # fmt: skip
MOST_ROWS, HELD_OUT = 1_000_000, 20_000  # of the synthetic set, and of a file's rows that are held out
KEYS = {
    "implementation": "", "steps": "", "data": SYNTHETIC, "out": "", "resume": "false", "case": "", "batch": "", "dtype": "float32",
    "precision": "ieee", "device": "auto", "threads": "", "seed": "0", "log1p": "true", "held_out": "", "rows": "", "cardinality": "10000",
    "log_every": "", "evaluate_every": "", "checkpoint_every": "", "path": "",
}  # fmt: skip
HELP = f"""usage: fusebench train dlrm implementation=torch_compile steps=2000 [data=FILE] [KEY=VALUE …]

Trains the model by gradient descent with the implementation's step, the same function that bench times and parity judges as dlrm_train.
It writes the log, the curve and a checkpoint into a folder. docs/training.md says what is trained, and on which rows.

  implementation=torch_compile   or torch_eager, flax, …, with a variant if need be: flax:modulus
  steps=2000           how many there are in all, those before a resume= counted
  data={SYNTHETIC}       or a parquet file in Criteo's schema, or a folder that fusebench data has written
  rows=                of the synthetic set, by default one epoch, {MOST_ROWS} at the most
  cardinality=10000    known values of its last id column
  held_out=            rows that are not trained on, the first ones, in whole batches; by default a tenth, {HELD_OUT} at the most
  log1p=true           counts x as log(1 + x); false takes them as they are
  case=main            the sizes of the model, a case of dlrm_train; shape.D=32 changes one, option.interaction=outer an option.
                       The tables have a row for each known value of the data, with shape.V=1000 up to 1000 that ids share
  batch=               rows of a step, by default the case's
  dtype=float32        or bfloat16: what products are computed in; parameters stay float32
  precision=ieee       or tf32: float32 products
  device=auto          cpu or cuda
  threads=             cores that the step gets on a CPU, by default all
  seed=0               of the first parameters and of the synthetic rows
  log_every=           steps between two lines of the log, by default a hundredth of all
  evaluate_every=      steps between two AUCs, by default a tenth of all
  checkpoint_every=    steps between two checkpoints, by default a tenth of all
  out=                 the folder, by default a new one in {folder.RESULTS}/
  resume=false         true goes on from the checkpoint in out=, by default with its implementation and up to its steps
  path=                a folder of kernels outside this repository"""


@dataclass(frozen=True)
class Asked:
    """The keys as they were given, `shape.` and `option.` among them."""

    name: str
    keys: Mapping[str, str]

    def __getitem__(self, key: str) -> str:
        return self.keys.get(key, KEYS[key])

    def over(self, kept: Mapping[str, str]) -> Asked:
        """The same keys, with others from a checkpoint where they are not given."""
        return Asked(self.name, {**kept, **self.keys})

    def kept(self, source: DataFile) -> dict[str, str]:
        """The keys that a checkpoint keeps."""
        own = {k: v for k, v in self.keys.items() if k in OF_THE_RUN or k.startswith(("shape.", "option."))}
        return {**own, "data": str(source.file.resolve())}

    def below(self, prefix: str) -> dict[str, str]:
        return {key.removeprefix(prefix): value for key, value in self.keys.items() if key.startswith(prefix)}

    def number(self, key: str, default: int, least: int = 1) -> int:
        return cases.positive(key, self.keys[key], least) if key in self.keys else default

    def flag(self, key: str) -> bool:
        if self[key] not in ("true", "false"):
            raise UsageError(f"{key}={self[key]}: expected true or false")
        return self[key] == "true"


def main(arguments: list[str]) -> int:
    """Prints what was trained. 0, 1 where the loss diverges, 130 interrupted. Raises UsageError, and StorageError where the disk is full."""
    return _train(_parse(arguments))


def _parse(arguments: list[str]) -> Asked:
    """Raises UsageError for another model, and for a key that is wrong, twice or missing."""
    words = [a for a in arguments if "=" not in a]
    if len(words) != 1:
        raise UsageError(
            f"{' '.join(['train', *words])}: expected train dlrm implementation=NAME steps=N (--help says more)"
        )
    if words[0] not in MODELS:
        raise unknown("model", words[0], MODELS)
    keys: dict[str, str] = {}
    for key, value in (a.split("=", 1) for a in arguments if "=" in a):
        if key not in KEYS and not key.startswith(("shape.", "option.")):
            raise unknown("key", key, [*KEYS, "shape.D", "option.interaction"])
        if key in keys:
            raise UsageError(f"{key}= is there twice: {key}={keys[key]} and {key}={value}")
        if not value:
            raise UsageError(f"{key}= is empty: fusebench train --help says what it takes")
        keys[key] = value
    return Asked(words[0], keys)


def _train(asked: Asked) -> int:
    resumed = asked.flag("resume")
    if "out" in asked.keys:  # what is refused is refused before the rows and the framework are loaded
        folder.check_free(_out(asked))
        _check_checkpoint(_out(asked), resumed)
    before = checkpoint.load(_out(asked)) if resumed else None
    if before is not None:
        asked = asked.over(before.keys)
    for key in ("implementation", "steps"):
        if key not in asked.keys:
            raise UsageError(f"{key}= is missing: expected train {asked.name} implementation=NAME steps=N")
    steps = asked.number("steps", 0)
    if before is not None and before.step >= steps:
        raise UsageError(
            f"steps={steps}: the checkpoint in {_out(asked)} is of step {before.step} already; expected more steps"
        )
    every = Every(
        asked.number("log_every", max(1, steps // 100)),
        asked.number("evaluate_every", -(-steps // 10)),
        asked.number("checkpoint_every", -(-steps // 10)),
    )
    seed, device = asked.number("seed", 0, least=0), values.resolve_device(asked["device"])
    threads = check_threads(asked["threads"] or None)
    for key, known in (("dtype", DTYPES), ("precision", PRECISIONS)):
        cases.check_name(key, asked[key], known)
    svg.check_matplotlib("train draws a curve with")
    roots = discovery.roots_of([asked["path"]] if asked["path"] else [])
    kernels = discovery.find_kernels(roots)
    discovery.check_roots(roots, kernels)
    step_kernel, forward_kernel = kernels[MODELS[asked.name]], kernels[asked.name]
    name, _, variant = asked["implementation"].partition(":")
    cases.check_name("implementation", name, step_kernel.implementations)
    case = _case(asked, step_kernel)
    source = _source(asked, case, steps)
    features = () if "shape.V" in asked.keys else source.features
    if features:
        V = max(len(feature.known) + 1 for feature in features)
        case = cases.make_case(step_kernel, {**case.sizes, "V": V}, case.dtype, case.precision, case.options)
    made = model.make(step_kernel.mathematics, case, features, seed)
    batch = case.sizes["M"]
    held = asked.number("held_out", rows.held_out(source.rows, batch, HELD_OUT))
    taken = rows.Rows(source, batch, -(-held // batch) * batch, asked.flag("log1p"))
    most = (source.rows // batch - 1) * batch
    if "held_out" in asked.keys and most and not batch <= held <= most:
        raise UsageError(
            f"held_out={held}: rows are held out in whole batches of {batch}; expected {batch} to {most} of the {source.rows} rows, "
            "or a smaller batch="
        )
    taken.check()
    run = {"data": str(source.file.resolve()), "held_out": taken.held_out, "log1p": taken.log1p, "seed": seed}
    if before is not None:
        checkpoint.check_same(
            {**before.model, **before.run}, {**made.described(), **run}, _out(asked) / checkpoint.FILE
        )
    session = program.start(step_kernel, name, device, case.precision)
    step = program.chosen(session, step_kernel, name, variant, case)
    forward = program.forward_pass(session, forward_kernel, step)
    out = _out(asked) if "out" in asked.keys or resumed else folder.new()
    with folder.held(out):
        _check_checkpoint(out, resumed)
        lines = log.cut(out, before.step if before else 0)
        trainer = program.Trainer(session, made, step, forward)
        if before is not None:
            trainer.restore(before.parameters)
        done = before.step if before else 0
        loop = Loop(trainer, taken, taken.test(), out, run, asked.kept(source), lines, done, done)
        with confined(threads):
            return _run(loop, steps, every, out, _named(asked, case, step_kernel))


def _named(asked: Asked, case: Case, kernel: Kernel) -> str:
    """The model in the words of the command line."""
    changed = [f"{key}={value}" for key, value in asked.keys.items() if key.startswith(("shape.", "option."))]
    return " ".join([asked["case"] or next(iter(kernel.mathematics.cases)), *changed, case.dtype])


def _run(loop: Loop, steps: int, every: Every, out: Path, model: str) -> int:
    """Trains, prints what came of it, and says how to go on where it was interrupted."""
    step, forward = loop.trainer.chosen, loop.trainer.forward
    held, epoch = loop.rows.held_out, loop.rows.batches
    table_rows = len(loop.trainer.model.weights["tables"]) - 1
    print(
        f"{step.label}, {model}: {table_rows} table rows, batches of {loop.rows.batch}, {epoch} in an epoch; "
        f"AUC of {held} held-out rows by {forward.label}"
    )
    code, said, first = 0, "", loop.done
    try:
        with report.progress() as bar:
            loop.train(steps, every, bar)
    except Diverged as error:
        code, said = 1, f"fusebench: {error}: a smaller batch, log1p=true or dtype=float32 may help"
    except KeyboardInterrupt:
        code, said = 130, "interrupted"
    before = (first, 0.0)
    for line in (line for line in loop.lines if line.auc is not None and line.step > first):
        rate = (line.step - before[0]) * loop.rows.batch / (line.seconds - before[1])
        print(f"step {line.step}: loss {line.loss:.4f}, AUC {line.auc:.4f}, {significant(rate)} rows/s", flush=True)
        before = line.step, line.seconds
    if loop.lines:
        print(f"curve: {log.draw(loop.lines, out)}")
    print(f"log: {out / log.FILE}")
    print(f"checkpoint: {out / checkpoint.FILE}, step {loop.saved}" if loop.saved else "no checkpoint yet")
    if said:
        more = f"; resume=true {shlex.quote(f'out={out}')} goes on from step {loop.saved}" if loop.saved else ""
        print(said + more, file=sys.stderr)
    return code


def _out(asked: Asked) -> Path:
    if "out" not in asked.keys:
        raise UsageError("resume=true needs out=, the folder with the checkpoint")
    return Path(asked["out"])


def _check_checkpoint(out: Path, resumed: bool) -> None:
    """Raises UsageError where a run that is not `resumed` would write over a checkpoint."""
    if not resumed and (out / checkpoint.FILE).exists():
        raise UsageError(f"{out} holds a checkpoint already: resume=true goes on with it, another out= begins anew")


def _case(asked: Asked, kernel: Kernel) -> Case:
    """The case of the model, with the sizes and options that were set."""
    named = kernel.mathematics.cases
    name = asked["case"] or next(iter(named))
    cases.check_name(f"case of {kernel.name}", name, named)
    shape, options = asked.below("shape."), asked.below("option.")
    cases.check_keys("size", shape, kernel.dimensions, [kernel.name])
    cases.check_keys("option", options, kernel.options, [kernel.name])
    for option, value in options.items():
        cases.check_name(f"value of option {option}", value, kernel.options[option])
    sizes = {**named[name], **{d: cases.positive(f"shape.{d}", n) for d, n in shape.items()}}
    if "batch" in asked.keys:
        sizes[kernel.mathematics.batch] = asked.number("batch", 0)
    return cases.make_case(kernel, sizes, asked["dtype"], asked["precision"], options)


def _source(asked: Asked, case: Case, steps: int) -> DataFile:
    """The rows: a file, or a synthetic one, which is kept for other runs. Raises UsageError."""
    if asked["data"] != SYNTHETIC:
        if given := [key for key in ("rows", "cardinality") if key in asked.keys]:
            raise UsageError(f"{given[0]}= is of the synthetic set: leave it out where data= names a file")
        return reading.open_file(Path(asked["data"]))
    batch = case.sizes["M"]
    count = asked.number("rows", min(MOST_ROWS, steps * batch + max(batch, min(HELD_OUT, steps * batch // 10))))
    cardinality = asked.number("cardinality", int(KEYS["cardinality"]), synthesis.LEAST)
    seed = asked.number("seed", 0, least=0)
    place = folder.RESULTS / "data" / f"criteo-{count}-{cardinality}-{seed}"
    if not (place / DATA_FILE).exists():
        with report.progress() as bar:
            task = bar.add_task("writing the synthetic set", total=count)
            writing.write(place, synthesis.plant(cardinality), count, seed, lambda n: bar.update(task, advance=n))
    return reading.open_file(place)
