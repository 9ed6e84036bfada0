"""Which kernel has KERNEL=few_rows of a perceptron, where latency is all there is. `case` is one of fused_mlp, or a part of a model's."""

from implementations._shared.cuda import perceptron_few_rows, perceptron_few_rows_half


def few_rows(case):
    """The module with the kernel's config, fits and launch."""
    return perceptron_few_rows if case.itemsize == 4 else perceptron_few_rows_half


def comes_first(case):
    """Whether its config, if it has one, is taken without a comparison with other kernels."""
    return case.itemsize == 4 or perceptron_few_rows_half.is_latency(case)
