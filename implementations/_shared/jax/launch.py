"""How JAX runs what the Triton implementations launch."""

from fusebench.launchers import triton_call


def run(launch, *arguments, out, aliases=None):
    """What the launch writes, given its other run-time arguments: arrays of the shapes and dtypes of `out`, a
    jax.ShapeDtypeStruct or a list of them. `aliases` are those of triton_call."""
    return triton_call(
        *arguments,
        kernel=launch.kernel,
        out_shape=out,
        grid=launch.grid,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        input_output_aliases=aliases,
        **launch.constexprs,
    )
