"""shcsa in Triton: a Dense kernel and shared ones; _triton_kernels.py says which, and how many launches.

padded_attention, padded_softmax_v, padded_softmax, plain_softmax: the kernel that does what comes behind q, k and v.
"""

from fusebench.launchers import chained
from implementations.shcsa._triton_kernels import TUNABLES, config, fits, launches, skip  # noqa: F401 (parts of the contract)

BACKEND = "torch"
REQUIRES = {"triton": "triton"}
WITHOUT_GPU = "interpreted"
FUSED = True
VARIANTS = {
    "padded_attention": ("bias", "probabilities"),
    "padded_softmax_v": ("bias", "scaled", "probabilities"),
    "padded_softmax": ("bias", "scaled", "probabilities"),
    "plain_softmax": ("bias", "scaled", "probabilities"),
}
EXPECT = (
    {"variant": ("padded_attention", "padded_softmax_v", "padded_softmax", "plain_softmax"), "case": "published", "dtype": "bfloat16", "arch": ("sm_80", "sm_90a", "sm_100a"),
     "expect": "spills=0,tensor_core>=1"},
)  # fmt: skip


def build(case, variant, device, chosen):
    """call(x (T, C), n_padd () int32, W, b (3 D,)) → (T, D)."""
    T, D = case.size("T", "D")
    first, *behind = launches(case, variant, device, chosen)
    dense, last = first.returning((T, D), (T, D), (T, D)), behind[-1].returning((T, D))
    if variant == "padded_attention":
        return chained(lambda x, n_padd, W, b: last(*dense(x, W, b), n_padd))
    scores = behind[0].returning((T, T))
    plain = variant == "plain_softmax"  # of scores that are masked already
    softmax = [launch.returning((T, T), **({"R": T} if plain else {})) for launch in behind[1:-1]]

    def by_scores(x, n_padd, W, b):
        q, k, v = dense(x, W, b)
        att = scores(q, k, n_padd)
        for rows in softmax:
            att = rows(att) if plain else rows(att, n_padd)
        return last(att, v, n_padd)

    return chained(by_scores)
