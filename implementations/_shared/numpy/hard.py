"""Which kinds of hard inputs (fusebench/hard.py) a kernel of products defines, for kernel.py files."""


def of_products(case, name, stored=False):
    """{kind: (name,)} for the left operand of products: all kinds, but no extremes whose partial sums overflow float32, nor float16's where
    a layer is `stored`, because what is left of them depends on the order of the sum; and backward no subnormals, because the
    gradient of the right operand shows them, and XLA flushes them on CPUs."""
    kinds = ["large_mean", "equal", "nan", "inf", "large", "small", "zeros", "wide"]
    kinds += ["subnormal"] * (case.mode == "forward") + ["extreme"] * (case.dtype == "float16" and not stored)
    return dict.fromkeys(kinds, (name,))
