"""embedding: hashed look-ups, then a gather. A copy rounds nowhere: only the right row will do."""

import numpy as np

from programs import Mistake, Program
from programs.arithmetic import edit, first_again, store, tf32_cut, wide

LAST_ID = 2**32 - 1


def modulus(ids, offsets, known, f):
    return (ids + 1) % (offsets[f + 1] - offsets[f])


def lookup(ids, offsets, known, f):
    """The list as a dictionary, later duplicates first, so that the first one stays."""
    values = known[offsets[f] : offsets[f + 1] - 1].tolist()
    place = {value: at for at, value in reversed(list(enumerate(values)))}
    return np.array([place.get(i, len(values)) for i in ids.tolist()], np.int64)


def compared(ids, offsets, known, f):
    """Each id with the whole list, the last entry of which stands for all unknown ids."""
    same = ids[:, None] == known[offsets[f] : offsets[f + 1]]
    same[:, -1] = True
    return same.argmax(axis=1)


def searched(ids, offsets, known, f):
    """Binary search in the sorted list; a stable sort keeps the first of duplicates first."""
    values = known[offsets[f] : offsets[f + 1] - 1]
    order = np.argsort(values, kind="stable")
    at = np.minimum(np.searchsorted(values[order], ids), max(len(values) - 1, 0))
    return np.where(values[order][at] == ids, order[at], len(values)) if len(values) else np.zeros(len(ids), np.int64)


def is_id(ids):
    return (ids >= 0) & (ids <= LAST_ID)


def gather(case, ids, tables, offsets, known=None, *, look=None, change=None, base=None, valid=None):
    """y (M, F, D); `change` alters the ids, `base` is where the tables are thought to begin, `valid` which ids are."""
    look = look or (modulus if known is None else lookup)
    base = offsets if base is None else base(offsets)
    change = change or (lambda ids: ids)
    rows = [base[f] + look(change(ids[:, f]), offsets, known, f) for f in range(ids.shape[1])]
    rows = np.where((valid or is_id)(ids), np.stack(rows, axis=1), len(tables) - 1)
    return tables[np.minimum(rows, len(tables) - 1)]


def with_(**hooks):
    return lambda case, *arrays: gather(case, *arrays, **hooks)


def hashed(case):
    return case.options["hashing"] == "modulus"


def looked_up(case):
    return case.options["hashing"] == "lookup"


CORRECT = {
    "modulus": Program(gather, (), hashed),
    "dictionary": Program(gather, (), looked_up),
    "compared": Program(with_(look=compared), (), looked_up),
    "searched": Program(with_(look=searched), (), looked_up),
}

LARGEST = {"M": 60, "F": 8, "V": 300, "D": 40}
ODD = {"M": 37, "F": 5, "V": 211, "D": 13}
MANY = {"M": 512, "F": 3, "V": 67, "D": 5}
LOOKUP = {"hashing": "lookup"}


def whole(change):
    return lambda *inputs: change(gather(*inputs))


def signed(ids):
    """In 32 bits with a sign."""
    return ids.astype(np.uint32).view(np.int32).astype(np.int64)


def wrapped(ids, offsets, known, f):
    """id + 1 in 32 bits without a sign: 2^32 - 1 becomes 0."""
    return (ids.astype(np.uint32) + np.uint32(1)).astype(np.int64) % (offsets[f + 1] - offsets[f])


def c_remainder(ids, offsets, known, f):
    """id + 1 in 32 bits with a sign, its remainder as C has it, and the sign taken off."""
    return np.abs(
        np.fmod((ids.astype(np.uint32) + np.uint32(1)).view(np.int32).astype(np.int64), offsets[f + 1] - offsets[f])
    )


def last_of_duplicates(ids, offsets, known, f):
    values = known[offsets[f] : offsets[f + 1] - 1].tolist()
    place = {value: at for at, value in enumerate(values)}
    return np.array([place.get(i, len(values)) for i in ids.tolist()], np.int64)


def unsorted_search(ids, offsets, known, f):
    values = known[offsets[f] : offsets[f + 1] - 1]
    at = np.minimum(np.searchsorted(values, ids), max(len(values) - 1, 0))
    return np.where(values[at] == ids, at, len(values)) if len(values) else 0 * ids


def nearest_without_check(ids, offsets, known, f):
    values = known[offsets[f] : offsets[f + 1] - 1]
    order = np.argsort(values, kind="stable")
    return order[np.minimum(np.searchsorted(values[order], ids), len(values) - 1)] if len(values) else 0 * ids


def compared_in_float32(ids, offsets, known, f):
    """Ids as float32, which holds 24 bits of 32: neighbours become equal. Here all are moved together to show it."""
    same = (ids[:, None] // 2**24).astype(np.float32) == (known[offsets[f] : offsets[f + 1]] // 2**24).astype(
        np.float32
    )
    same[:, -1] = True
    return same.argmax(axis=1)


def of(look):
    return with_(look=look)


M, L = "modulus", "dictionary"


def but(where, other):
    """An id that is taken for another one."""
    return with_(change=lambda ids: np.where(ids == where, other, ids))


def past_the_list(ids, offsets, known, f):
    """The list read in whole vectors of 8: those behind it are of the next feature."""
    begin, end = offsets[f], offsets[f + 1] - 1
    values = known[begin : begin + -(-(end - begin) // 8) * 8].tolist()
    place = {value: at for at, value in reversed(list(enumerate(values)))}
    return np.array([place.get(i, end - begin) for i in ids.tolist()], np.int64)


def one_off(ids, offsets, known, f):
    """An id that is known but for 1."""
    found = [lookup(ids + n, offsets, known, f) for n in (0, 1, -1)]
    return np.minimum.reduce(found)


MISTAKES = {
    "vectors of known values past their list": Mistake(of(past_the_list), L, ODD, options=LOOKUP, inputs="between"),
    "an id beside a known one is known": Mistake(of(one_off), L, ODD, options=LOOKUP, inputs="between"),
    "2^31 as -2^31": Mistake(but(2**31, -(2**31)), M, MANY),
    "2^31 - 1 plus 1 in 32 bits with a sign": Mistake(but(2**31 - 1, -(2**31) - 1), M, MANY),
    "id 0 unknown": Mistake(but(0, -1), M, MANY),
    "rows past 2^10 values from the start": Mistake(
        whole(lambda y: edit(y, np.s_[400:], y[:112])), M, MANY, "bfloat16"),
    "id for id + 1": Mistake(of(lambda i, o, k, f: i % (o[f + 1] - o[f])), M, ODD),
    "modulus one less": Mistake(of(lambda i, o, k, f: (i + 1) % max(o[f + 1] - o[f] - 1, 1)), M, ODD),
    "modulus of the largest table": Mistake(of(lambda i, o, k, f: (i + 1) % int(np.diff(o).max())), M, ODD),
    "modulus of the next table": Mistake(
        of(lambda i, o, k, f: (i + 1) % int(np.diff(o)[(f + 1) % (len(o) - 1)])), M, ODD),
    "ids in 32 bits with a sign": Mistake(with_(change=signed), M, ODD),
    "remainder of C": Mistake(of(c_remainder), M, ODD),
    "id + 1 wraps at 2^32": Mistake(of(wrapped), M, MANY),
    "all from the first table": Mistake(with_(base=lambda o: 0 * o), M, ODD),
    "tables one row off": Mistake(with_(base=lambda o: o + 1), M, ODD),
    "tables all as tall as the last": Mistake(
        with_(base=lambda o: np.arange(len(o)) * (o[-1] - o[-2])), M, ODD),
    "features swapped": Mistake(whole(lambda y: y[:, ::-1].copy()), M, ODD),
    "samples one off": Mistake(whole(lambda y: np.roll(y, 1, axis=0)), M, ODD),
    "rest of a row missing": Mistake(whole(lambda y: edit(y, np.s_[..., 12:], 0)), M, ODD),
    "rows in vectors of 4, the rest from the next row": Mistake(
        whole(lambda y: edit(y, np.s_[..., 12], np.roll(y[..., 0], -1))), M, ODD),
    "last sample missing": Mistake(whole(lambda y: edit(y, -1, 0)), M, ODD),
    "zeros": Mistake(whole(np.zeros_like), M, ODD),
    "through float16": Mistake(whole(lambda y: y.astype(np.float16).astype(y.dtype)), M, ODD),
    "through tf32": Mistake(whole(tf32_cut), M, ODD),
    "through bfloat16, of float16": Mistake(
        lambda case, *a: store(case, (wide(gather(case, *a)).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)), M, ODD,
        "float16"),
    "an id past the end taken as one": Mistake(
        lambda case, ids, tables, offsets: tables[
            np.stack([offsets[f] + modulus(ids[:, f], offsets, None, f) for f in range(ids.shape[1])], axis=1)
        ], M, ODD, change=lambda arrays: arrays | {"ids": edit(arrays["ids"], (3, 2), 2**32)}),
    "-1 taken for an id": Mistake(with_(valid=lambda ids: (ids >= -1) & (ids <= LAST_ID)), M, ODD, inputs="lower_edge"),
    "ids below 0 hashed": Mistake(with_(valid=lambda ids: ids <= LAST_ID), M, ODD, inputs="lower_edge"),
    "2^32 taken for an id": Mistake(with_(valid=lambda ids: (ids >= 0) & (ids <= LAST_ID + 1)), M, ODD, inputs="upper_edge"),
    "-1 found in the list": Mistake(
        with_(look=compared, valid=lambda ids: (ids >= -1) & (ids <= LAST_ID)), "compared", ODD, options=LOOKUP, inputs="lower_edge"),
    "first output again": Mistake(first_again(gather), M, ODD, calls=2),
    "last of duplicates": Mistake(of(last_of_duplicates), L, MANY, options=LOOKUP),
    "unknown to row 0": Mistake(
        of(lambda i, o, k, f: np.where(lookup(i, o, k, f) == o[f + 1] - o[f] - 1, 0, lookup(i, o, k, f))), L, ODD,
        options=LOOKUP),
    "unknown to the last known": Mistake(
        of(lambda i, o, k, f: np.minimum(lookup(i, o, k, f), max(o[f + 1] - o[f] - 2, 0))), L, ODD, options=LOOKUP),
    "unknown to the next table": Mistake(
        of(lambda i, o, k, f: lookup(i, o, k, f) + (lookup(i, o, k, f) == o[f + 1] - o[f] - 1)), L, ODD, options=LOOKUP),
    "binary search of an unsorted list": Mistake(of(unsorted_search), L, ODD, options=LOOKUP),
    "search without a check": Mistake(of(nearest_without_check), L, ODD, options=LOOKUP),
    "position in the sorted list": Mistake(
        of(lambda i, o, k, f: np.searchsorted(np.sort(k[o[f] : o[f + 1] - 1]), i)), L, ODD, options=LOOKUP),
    "list compared by its upper bits": Mistake(of(compared_in_float32), L, ODD, options=LOOKUP),
    "ids in 32 bits with a sign, looked up": Mistake(with_(change=signed), L, MANY, options=LOOKUP),
    "the list of the first feature": Mistake(
        of(lambda i, o, k, f: np.minimum(lookup(i, o, k, len(o) - 2), o[f + 1] - o[f] - 1)), L, ODD, options=LOOKUP),
    "modulus where looked up was asked": Mistake(of(modulus), L, ODD, options=LOOKUP),
}  # fmt: skip
