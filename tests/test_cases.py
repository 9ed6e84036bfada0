"""From a configuration to cells: which there are, in which order, what each is called, and the command that leads back to it."""

from __future__ import annotations

import itertools
import shlex

import pytest
from conftest import FIXTURES

from fusebench import cases, discovery, hard
from fusebench.cases import command, make_case, positive, read_shapes, select_cells
from fusebench.configuration import command_line, jobs, names, schema
from fusebench.contract import Case, Cell
from fusebench.errors import UsageError, unknown

ROOTS = discovery.roots_of([FIXTURES / "kernels"])
KERNELS = discovery.find_kernels(ROOTS)
LOLA = KERNELS["lola"]
DEFAULTS = {
    "kernel": "lola", "implementation": "torch_eager", "case": None, "dtype": "float32", "precision": "ieee", "batch": None, "shapes": None,
    "shape": {}, "option": {}, "seed": 0, "inputs": "plain",
}  # fmt: skip


def cells(**chosen):
    return select_cells(KERNELS, DEFAULTS | chosen)


def ids(**chosen):
    return [c.id for c in cells(**chosen)]


def refused(**chosen):
    with pytest.raises(UsageError) as error:
        cells(**chosen)
    return str(error.value)


# Which cells


def test_without_a_case_it_is_the_first():
    assert ids() == ["lola/batch/float32/ieee/torch_eager/seed=0"]
    assert cells()[0].case.sizes == {"M": 1024, "K": 1024, "N": 4096}


def test_all_means_every_one_in_the_order_of_the_kernel():
    assert [c.case.id.split("/")[0] for c in cells(case="all")] == list(LOLA.mathematics.cases)
    assert [c.case.dtype for c in cells(dtype="all")] == ["float32", "float16", "bfloat16"]
    assert [c.case.precision for c in cells(precision="all")] == ["ieee", "tf32"]
    assert {c.case.kernel for c in cells(kernel="all", case=None)} == set(KERNELS)
    labels = [c.label for c in cells(implementation="all")]
    assert labels[:3] == ["cublas", "cuda:row", "cuda:multirow"] and len(labels) == sum(
        len(i.variants) for i in LOLA.implementations.values()
    )


def published(**chosen):
    return [c.case.id for c in cells(**{"published": True, "case": "all", "dtype": "all", "precision": "all"} | chosen)]


def test_the_published_cases_have_their_own_dtype_precision_and_options():
    assert published() == [
        "token/float32/ieee", "token_2048/float32/ieee", "wide_token/float32/ieee", "batch/float32/ieee", "batch/float32/tf32",
        "batch/float16", "batch/bfloat16", "batch/bfloat16/w_layout=nk",
    ]  # fmt: skip
    splacc = [f"batch/float32/{precision}/w_layout=nk/scale=none" for precision in ("ieee", "tf32")]
    assert published(kernel="splacc") == splacc


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        ({"case": "batch", "precision": "tf32"}, ["batch/float32/tf32"]),
        ({"case": None, "dtype": "float16"}, ["batch/float16"]),
        ({"option": {"w_layout": "nk", "activation": None}}, ["batch/bfloat16/w_layout=nk"]),
        ({"kernel": ["launch", "geglu"], "option": {}}, ["floor/float32"]),
    ],
)
def test_other_keys_choose_among_the_published_cases(chosen, left):
    assert published(**chosen) == left


def test_lists_multiply_and_the_cells_of_one_case_stand_together():
    made = ids(
        implementation=["torch_eager", "flax:pieces"], case=["odd", "one"], dtype=["float16", "bfloat16"], seed=[0, 1]
    )
    assert made == [
        f"lola/{case}/{dtype}/{label}/seed={seed}"
        for case, dtype, seed, label in itertools.product(
            ("odd", "one"), ("float16", "bfloat16"), (0, 1), ("torch_eager", "flax:pieces")
        )
    ]


def test_a_name_that_is_given_twice_is_one_cell():
    assert len(
        ids(implementation=["torch_eager", "torch_eager", "all"], case=["odd", "odd"], kernel=["lola", "lola"])
    ) == sum(len(i.variants) for i in LOLA.implementations.values())


def test_one_variant_or_all_of_an_implementation():
    assert [c.variant for c in cells(implementation="flax")] == list(LOLA.implementations["flax"].variants)
    assert [(c.implementation, c.variant) for c in cells(implementation="flax:pieces")] == [("flax", "pieces")]
    assert [c.label for c in cells(implementation=["flax:pieces", "flax:module"])] == ["flax:pieces", "flax:module"]


def test_an_implementation_that_one_of_the_kernels_has_is_enough():
    made = cells(kernel=["launch", "lola"], implementation=["cublas", "torch_eager"], case="odd")
    assert [(c.case.kernel, c.label) for c in made] == [
        ("launch", "torch_eager"),
        ("lola", "cublas"),
        ("lola", "torch_eager"),
    ]


def test_sizes_are_set_on_top_of_the_case():
    made = cells(case=["odd", "one"], shape={"K": [5, 7], "N": None}, batch=3)
    assert [c.case.sizes for c in made] == [
        {"M": 3, "K": 5, "N": 203}, {"M": 3, "K": 7, "N": 203}, {"M": 3, "K": 5, "N": 1}, {"M": 3, "K": 7, "N": 1}
    ]  # fmt: skip
    assert made[0].case.id == "M=3,K=5,N=203/float32/ieee"


def test_batch_is_each_kernel_s_own_dimension_and_shape_goes_before_it():
    made = cells(kernel=["launch", "lola", "softmax"], batch=6, case="odd")
    assert [c.case.sizes[{"launch": "N", "lola": "M", "softmax": "R"}[c.case.kernel]] for c in made] == [6, 6, 6]
    assert cells(batch=6, shape={"M": 9}, case="odd")[0].case.sizes["M"] == 9


def test_two_sizes_that_are_one_case_are_one_cell():
    assert len(cells(case="one", shape={"M": [1, 1]})) == 1
    assert len(cells(precision=["ieee", "tf32"], dtype="float16")) == 1, "tf32 says nothing of 16-bit data"


def test_every_kernel_that_is_named_has_one_of_the_cases_and_all_are_those_that_do():
    assert [c.case.kernel for c in cells(kernel=["softmax", "launch"], case=["floor", "square"])] == [
        "softmax",
        "launch",
    ]
    assert [c.case.kernel for c in cells(kernel="all", case="floor")] == ["launch"]


def test_options_multiply_and_the_default_has_no_name():
    made = cells(case="odd", option={"activation": ["relu", "gelu_tanh"], "w_layout": "nk"})
    assert [c.case.id for c in made] == ["odd/float32/ieee/activation=relu/w_layout=nk", "odd/float32/ieee/w_layout=nk"]
    assert [c.case.options for c in made] == [
        {"activation": "relu", "w_layout": "nk"},
        {"activation": "gelu_tanh", "w_layout": "nk"},
    ]
    assert cells()[0].case.options == {"activation": "gelu_tanh", "w_layout": "kn"}


def test_options_go_to_the_kernels_that_have_them():
    made = cells(kernel=["lola", "launch"], case="odd", option={"w_layout": "nk"})
    assert [c.case.options.get("w_layout") for c in made] == ["nk", None]


def test_all_inputs_are_those_that_the_kernel_defines():
    named = "equal_large", "nan_column", "repeated"
    assert [c.inputs for c in cells(kernel="splacc", case="odd", inputs="all")] == [
        k for k in hard.KINDS if k not in ("extreme", "scalar", "upstream", "negative", *named, *hard.EDGES)
    ]
    assert [c.inputs for c in cells(kernel="splacc", case="odd", inputs=["extreme", "plain"])] == [
        "extreme",
        "plain",
    ], "by name"
    assert [c.inputs for c in cells(kernel="padded_softmax", case="odd", inputs="all")] == [
        k for k in hard.KINDS if k not in ("scalar", "upstream", *named)
    ]


# What is refused


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"kernel": "lolla"}, "unknown kernel 'lolla': did you mean lola? There are: add_mul_act, "),
        ({"dtype": "fp16"}, "unknown dtype 'fp16'. There are: bfloat16, float16, float32"),
        ({"precision": "tf64"}, "unknown precision 'tf64'. There are: ieee, tf32"),
        ({"case": "odds"}, "unknown case 'odds' of lola: did you mean odd? There are: batch, large, odd, "),
        (
            {"inputs": "nam"},
            "unknown inputs 'nam': did you mean nan? There are: between, equal, equal_large, extreme, inf, large, large_mean, lower_edge, nan, nan_column, negative, plain, repeated, scalar, ",
        ),
        ({"shape": {"Q": 3}}, "unknown dimension 'Q' of lola. There are: K, M, N"),
        (
            {"option": {"w_layuot": "kn"}},
            "unknown option 'w_layuot' of lola: did you mean w_layout? There are: activation, w_layout",
        ),
        ({"option": {"w_layout": "kk"}}, "unknown value 'kk' of option w_layout of lola. There are: kn, nk"),
        ({"implementation": "tritn"}, "unknown implementation 'tritn': did you mean triton? There are: "),
        (
            {"implementation": "flax:row"},
            "unknown variant 'row' of flax. There are: default_layernorm, module, pieces, transposed",
        ),
        ({"seed": -1}, "seed is -1: expected an integer of 0 or more"),
        ({"seed": [0, "x"]}, "seed is 'x': expected an integer of 0 or more"),
        ({"batch": 0}, "batch is 0: expected a positive integer"),
        ({"shape": {"K": [3, 2.5]}}, "shape.K is 2.5: expected a positive integer"),
        ({"case": []}, "case=[] chooses nothing; expected a value or a list of values"),
        ({"shape": {"K": []}}, "shape.K=[] chooses nothing; expected a value or a list of values"),
        ({"seed": []}, "seed=[] chooses nothing; expected a value or a list of values"),
        (
            {"case": "tall"},
            "unknown case 'tall' of lola. There are: batch, large, odd, odd_token, one, token, token_2048, wide_token",
        ),
        (
            {"kernel": ["softmax", "launch"], "case": "floor"},
            "softmax has no case floor: leave it out of kernel=softmax,launch, or add one of its own to case=: published, square, ",
        ),
        (
            {"kernel": "all", "case": "floor", "implementation": "cublas"},
            "no cells: no kernel has both a case=floor and an implementation=cublas",
        ),
        (
            {"published": True, "batch": 7},
            "published=true: the published cases have sizes of their own: leave out batch=7",
        ),
        (
            {"published": True, "shape": {"K": 7}},
            "published=true: the published cases have sizes of their own: leave out shape.K=7",
        ),
        (
            {"published": True, "case": "odd"},
            "no cells: no published case is asked for. Those of lola are: lola/token/float32/ieee, ",
        ),
        (
            {"published": True, "kernel": "double"},
            "no cells: no published case is asked for. Those of double are: none",
        ),
    ],
)
def test_a_wrong_value_is_named_with_what_would_work(chosen, said):
    assert refused(**chosen).startswith(said)


def test_a_dimension_that_is_not_set_is_no_mistake():
    assert ids(shape={"Q": None}, option={"nosuch": None}) == ids()


def test_a_variant_must_belong_to_one_of_the_kernels():
    assert [c.label for c in cells(kernel=["lola", "launch"], implementation="triton:row", case="odd")] == [
        "triton:row"
    ]
    assert "unknown variant 'online' of triton. " in refused(implementation="triton:online")


@pytest.mark.parametrize(("value", "number"), [(1, 1), ("7", 7), (10**20, 10**20)])
def test_positive_integers(value, number):
    assert positive("size", value) == number


@pytest.mark.parametrize("value", [0, -1, 1.0, "1.5", None, True, "", [1]])
def test_what_is_no_positive_integer(value):
    with pytest.raises(UsageError, match=r"size is .*: expected a positive integer"):
        positive("size", value)


def test_nothing_may_be_the_least():
    assert positive("seed", 0, least=0) == 0
    for value in (False, -1, "x"):
        with pytest.raises(UsageError, match="expected an integer of 0 or more"):
            positive("seed", value, least=0)


def test_unknown_names_have_the_nearest():
    assert str(unknown("thing", "xyz", [])) == "unknown thing 'xyz'. There are: none"
    assert str(unknown("thing", "abd", ["abc", "zzz"])) == "unknown thing 'abd': did you mean abc? There are: abc, zzz"


# What a case is called


@pytest.mark.parametrize(
    ("kernel", "sizes", "dtype", "precision", "options", "id"),
    [
        ("lola", "odd", "float32", "ieee", {}, "odd/float32/ieee"),
        ("lola", "odd", "float32", "tf32", {}, "odd/float32/tf32"),
        ("lola", "odd", "bfloat16", "tf32", {}, "odd/bfloat16"),
        ("lola", {"M": 37, "K": 131, "N": 203}, "float32", "ieee", {}, "odd/float32/ieee"),
        ("lola", {"M": 37, "K": 131, "N": 204}, "float32", "ieee", {}, "M=37,K=131,N=204/float32/ieee"),
        ("lola", "odd", "float16", "ieee", {"w_layout": "nk", "activation": "gelu_tanh"}, "odd/float16/w_layout=nk"),
        ("softmax", "odd", "float32", "tf32", {}, "odd/float32"),
    ],
)
def test_what_a_case_is_called(kernel, sizes, dtype, precision, options, id):
    case = make_case(KERNELS[kernel], sizes, dtype, precision, options)
    assert case.id == id and case.precision == ("tf32" if id.endswith("tf32") else "ieee")
    assert (case.kernel, case.dtype, case.mode) == (kernel, dtype, "forward")


def test_the_defaults_of_a_case():
    case = make_case(LOLA, "odd")
    assert case == Case(
        "lola",
        {"M": 37, "K": 131, "N": 203},
        "float32",
        "ieee",
        {"activation": "gelu_tanh", "w_layout": "kn"},
        id="odd/float32/ieee",
    )
    assert case.size("N", "M") == (203, 37) and Case("x", {}, "float16").precision == "ieee"


def test_a_case_has_sizes_of_its_own():
    sizes = {"M": 2, "K": 3, "N": 4}
    case = make_case(LOLA, sizes)
    sizes["M"] = 99
    assert case.sizes["M"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nosuch",), "unknown case 'nosuch' of lola"), (("odd", "fp16"), "unknown dtype 'fp16'"), (("odd", "float16", "ieeee"), "unknown precision 'ieeee'"),
        (("odd", "float16", "ieee", {"x": "y"}), "unknown option 'x' of lola"),
        (("odd", "float16", "ieee", {"w_layout": "y"}), "unknown value 'y' of option w_layout of lola"),
    ],
)  # fmt: skip
def test_a_case_that_cannot_be_is_refused(arguments, said):
    with pytest.raises(UsageError, match=said):
        make_case(LOLA, *arguments)


# The command that leads back


def parsed(line):
    """The command that a printed line gives, its cells, and its configuration."""
    kernels = {name: KERNELS[name] for name in KERNELS if f"kernel={name} " in line}
    program, what, *words = shlex.split(line)
    assert program == "fusebench"
    overrides = command_line.parse(words)
    names.check(what, words, overrides, kernels)
    schema.register(what, kernels)
    composed = jobs.compose_job(what, words, words)
    return what, select_cells(kernels, composed), composed


DOUBLE = KERNELS["double"]
PATHS = ["/a/b-c_d.e", "/my kernels", "/o'clock", "/a,b", "/é[1]", "/x=$y"]


@pytest.mark.parametrize(
    "cell",
    [
        Cell(make_case(LOLA, "odd"), "torch_eager", "default"),
        Cell(
            make_case(LOLA, "odd", "bfloat16", "ieee", {"w_layout": "nk", "activation": "none"}),
            "flax",
            "pieces",
            3,
            "nan",
        ),
        Cell(make_case(LOLA, {"M": 2, "K": 3, "N": 5}, "float32", "tf32"), "triton", "multirow_ws", 12),
        Cell(
            make_case(KERNELS["fused_mlp"], "two_layers", "float16", "ieee", {"last": "sigmoid"}), "cublas", "default"
        ),
        Cell(make_case(DOUBLE, {"N": 1}, "float16"), "torch_eager", "plus", 0, "extreme"),
    ],
    ids=lambda cell: cell.id,
)
def test_the_printed_command_means_the_same_cell(cell):
    kernel = KERNELS[cell.case.kernel]
    what, found, composed = parsed(command(kernel, cell, "cpu"))
    assert what == "parity" and found == [cell] and composed["device"] == "cpu" and composed["path"] is None
    what, found, composed = parsed(command(kernel, cell, "cuda", [*PATHS], ["time_s=0.25", "cache=warm"]))
    assert what == "bench" and found == [cell] and composed["device"] == "cuda" and composed["path"] == PATHS
    assert (composed["time_s"], composed["cache"]) == (0.25, "warm")


def test_the_printed_command_names_no_more_than_it_must():
    line = command(LOLA, Cell(make_case(LOLA, "odd"), "flax", "module"), "cpu")
    where = "fusebench parity kernel=lola implementation=flax:module case=odd dtype=float32 precision=ieee"
    assert line == f"{where} seed=0 inputs=plain device=cpu"


def test_a_case_of_another_commit_s_name_is_given_by_its_sizes():
    """A case whose name means other sizes today, as where a record is older than kernel.py."""
    old = Case(
        "lola",
        {"M": 1, "K": 2, "N": 3},
        "float16",
        id="odd/float16",
        options={"activation": "gelu_tanh", "w_layout": "kn"},
    )
    line = command(LOLA, Cell(old, "flax", "module"), "cpu")
    assert "shape.M=1 shape.K=2 shape.N=3" in line and "case=" not in line


# Sizes from a file


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "M,K,N\n2,3,4\n5,6,7\n"), ("a.csv", "\ufeffM, K, N\n2, 3, 4\n5, 6, 7\n"), ("a.csv", "N,M,K\n4,2,3\n7,5,6\n"),
        ("a.yaml", "- {M: 2, K: 3, N: 4}\n- {N: 7, K: 6, M: 5}\n"), ("a.yml", "- {M: 2, K: 3, N: 4}\n- {N: '7', K: 6, M: 5}\n"),
    ],
)  # fmt: skip
def test_sizes_from_a_file(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_shapes(tmp_path / name, LOLA) == [{"M": 2, "K": 3, "N": 4}, {"M": 5, "K": 6, "N": 7}]
    made = cells(shapes=str(tmp_path / name), case="odd", batch=9)
    assert [c.case.sizes for c in made] == [{"M": 9, "K": 3, "N": 4}, {"M": 9, "K": 6, "N": 7}], (
        "and other sizes on top"
    )


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", None, "no such file; expected a .csv or .yaml file with the columns M, K, N"),
        ("a.txt", "M,K,N\n", "expected a file that ends in .csv, .yaml or .yml"),
        ("a.yaml", "M: 3\n", "expected a list of sizes, such as - {M: 64, K: 64, N: 64}"),
        ("a.yaml", "- 3\n", "expected a list of sizes, such as"),
        ("a.yaml", "- {M: 1, K: 2, N: 3}\n- 3\n", "expected a list of sizes, such as"),
        ("a.yaml", "[]\n", "expected a list of sizes, such as"),
        ("a.yaml", "{", "not YAML: while parsing a flow node expected"),
        ("a.csv", "M,K,N\n1,2,3\n1,2\n4,5,0\n", "size N of row 2 is None: expected a positive integer"),
        ("a.yaml", "- {M: 1, K: 2}\n", "row 1 has M, K, but lola has the dimensions M, K, N"),
        ("a.csv", "M,K,N,Q\n1,2,3,4\n", "row 1 has M, K, N, Q, but lola has the dimensions M, K, N"),
        ("a.csv", "M,K,N\n", "no sizes; expected the header M,K,N and lines of sizes below it, such as 64,64,64"),
        (".", None, "a folder; expected a .csv or .yaml file"),
        ("a.csv", b"\xff\xfe", "cannot be read as text: "),
    ],
)
def test_a_file_of_sizes_that_is_none_is_named(tmp_path, name, text, said):
    file = tmp_path / name
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError) as error:
        read_shapes(file, LOLA)
    assert str(error.value).startswith(f"shapes={file}: {said}")


def test_a_list_of_one_is_the_value():
    assert cases.as_list("abc") == ["abc"] and cases.as_list((1, 2)) == [1, 2] and cases.as_list(None) == [None]
