"""Which cells of embedding cannot be run, the same for all implementations. Imports no framework."""

from implementations._shared.dlrm import hashing_skip as skip  # noqa: F401 (for its siblings)
