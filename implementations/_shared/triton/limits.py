"""What bounds a config, whichever kernel it is of: the least tile, warps, registers and shared memory."""

from implementations._shared.gpu import shared_memory

LEAST_DOT = 16  # rows, columns and products of a dot
WARPS = 32  # of a program: 1024 threads
REGISTERS = 255  # of a thread, 32 bits each
COUNTS = ("num_stages", "GROUP", "PROGRAMS", "PARTS")  # may be any number; sides of tiles and warps are powers of two


def misfit(device, config, dot=(), values=0, shared=0):
    """Why a program cannot have this config, or None.

    `dot` names the tunables that are sides of a dot. `values` counts the 32-bit values that a program holds all at once, and
    `shared` is its shared memory in bytes, which counts on a GPU alone.
    """
    for name, value in config.items():
        if value < 1:
            return f"{name}={value}; 1 is the least"
        if name not in COUNTS and value & (value - 1):
            return f"{name}={value} is no power of two"
    for name in dot:
        if config[name] < LEAST_DOT:
            return f"{name}={config[name]}; a dot has {LEAST_DOT} rows, {LEAST_DOT} columns and {LEAST_DOT} products at least"
    if config["num_warps"] > WARPS:
        return f"num_warps={config['num_warps']}; a program has {WARPS} warps at most"
    each = values // (32 * config["num_warps"])
    if each > REGISTERS:
        return f"each thread holds {each} values; it has {REGISTERS} registers"
    limit = shared_memory(device)
    if device.type == "cuda" and shared > limit:
        return f"its tiles take {shared >> 10} KB of shared memory; a block has {limit >> 10}"
    return None


def first_reason(reasons):
    """The first reason, {launch: reason or None}, with its launch; or None."""
    return next((f"{launch}: {reason}" for launch, reason in reasons.items() if reason), None)


def narrowed_to_fit(config, sides, misfit):
    """The config with the widest of its sides halved until `misfit(config)` has no reason against it; the config itself where none
    is left to halve."""
    narrow = config
    while misfit(narrow):
        widest = max(sides, key=narrow.get)
        if narrow[widest] <= LEAST_DOT:
            return config
        narrow = narrow | {widest: narrow[widest] // 2}
    return narrow


def most_stages(device, most, shared):
    """The most stages, up to `most`, whose shared memory in bytes, `shared(stages)`, a block has; 1 at least."""
    return next((n for n in range(most, 1, -1) if shared(n) <= shared_memory(device)), 1)
