"""The asv benchmarks: one class a kernel, made by fusebench/tracking/suite.py, so that a new kernel folder needs no edit here."""

import pathlib
import sys

# The harness of this working tree, installed or not.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from fusebench.tracking import suite
from fusebench.workers import below

below.die_with_parent()  # asv's server, which a killed asv would leave behind
globals().update(suite.classes())
