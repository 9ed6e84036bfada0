"""Two products side by side, whose sums a gate makes one of: the tiles of splacc's and geglu's kernels, the choice among them, and their launch.

KERNEL=split is hopper/matmul_split.cuh, whose CLUSTER blocks share the K of a tile, and KERNEL=turned hopper/matmul_turned.cuh, whose tiles have any
multiple of 16 rows; the others are matmul.py's.
"""

from implementations._shared.cuda import matmul, matmul_choice, matmul_split, matmul_turned

PARTS = 2
TILES = (
    *matmul.TENSOR_TILES, *matmul.ALL_FEW_ROWS_TILES, *matmul.FLOAT_SPLIT_TILES, *matmul.WARPGROUP_TILES, *matmul.SQUARE_TILES,
    *matmul.SIMT_SPLIT_TILES,
)  # fmt: skip


def config(case, device, tiles=TILES, schedules=("tiles", "strips")):
    """The fastest, by the estimates, of whole tiles, of those whose K blocks share, and of turned ones."""
    whole = matmul_choice.config(case, device, tiles, parts=PARTS, schedules=schedules)
    return matmul_turned.or_turned(case, matmul_split.or_split(case, whole, device, parts=PARTS), device, parts=PARTS)


def fits(case, device, config, tiles=TILES):
    """Why a config cannot run, or None."""
    if config["KERNEL"] not in ("split", "turned"):
        return matmul.fits(case, device, config, parts=PARTS, tiles=tiles)
    if matmul.schedule_of(config) != "tiles":
        return f"SCHEDULE={config['SCHEDULE']} is for KERNEL=warpgroup"
    if config["KERNEL"] == "turned":
        return matmul_turned.fits(case, device, config, parts=PARTS)
    return matmul_split.fits(case, device, matmul_split.of_cluster(config), parts=PARTS)


def launch(file, kernel, case, device, config, dtypes, arguments=()):
    """The launch of `<kernel>_<KERNEL>` of `file` with a config that fits."""
    return matmul_turned.launch_of_any(file, kernel, case, device, config, dtypes, arguments, PARTS)
