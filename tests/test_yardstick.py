"""Yardsticks: how a rate is measured, on simulated devices, and what follows from rates and datasheets for a kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
import samples
from simulated import CPU, GPU, SimulatedCpu, SimulatedGpu

from fusebench.cell import rated
from fusebench.machine import DeviceInfo
from fusebench.records.record import Build
from fusebench.timing import yardstick
from fusebench.timing.yardstick import Missing, Rate, Rates

H200 = DeviceInfo("cuda", "NVIDIA H200")
# 4 and 5 bytes a ns, 0.5 FLOP a ps
RATES = Rates(4.0, 5.0, 1e-6, {}, matrix_tflops=0.5)


@pytest.mark.parametrize(
    ("flops", "moved", "written", "seconds"),
    [
        (0, 8e6, 4e6, 2e-3),  # a copy takes what the copy took
        (0, 8e6, 0, 1.6e-3),  # a sum what the sum took
        (0, 9e6, 2e6, 2e-3),  # 4 MB as a copy, the other 5 MB read
        (0, 8e6, 6e6, 2e-3),  # there is no rate of writing alone
        (0, 8, 4, 1e-6),  # nothing is faster than a launch
        (1e9, 8e6, 4e6, 2e-3),
        (1e10, 8e6, 4e6, 2e-2),  # the product takes longer than its traffic
    ],
)
def test_the_best_time_is_the_longest_of_launch_traffic_and_product(flops, moved, written, seconds):
    assert yardstick.best(flops, moved, written, RATES) == pytest.approx(seconds)


def test_what_has_no_product_needs_no_rate_of_one():
    rates = replace(RATES, matrix_tflops=None)
    assert yardstick.best(0, 8e6, 4e6, rates) == pytest.approx(2e-3)
    assert yardstick.best(1, 1, 1, None) is None, "without rates there is no best time"


def test_a_record_keeps_the_rates_with_their_dates_and_the_side_of_the_product():
    entries = {
        "copy_gbps": Rate(4.0, 2**28, "a"), "read_gbps": Rate(5.0, 2**28, "b"), "launch_s": Rate(1e-6, 1, "c"),
        "matrix_tflops/float16/ieee": Rate(0.5, 8192, "d"), "matrix_tflops/float32/tf32": Rate(0.1, 4096, "e"),
    }  # fmt: skip
    names = yardstick.needed("float16", "ieee", 1, "cuda")
    dates = {"copy_gbps": "a", "read_gbps": "b", "launch_s": "c"}
    assert yardstick.as_rates(entries, names) == replace(
        RATES, n=8192, product="float16/ieee", measured=dates | {"matrix_tflops": "d"}
    )
    without_product = yardstick.as_rates(entries, yardstick.needed("float16", "ieee", 0, "cuda"))
    assert without_product == replace(RATES, matrix_tflops=None, n=None, measured=dates)


def test_one_rate_that_is_missing_leaves_none():
    names = ["copy_gbps", "read_gbps", "launch_s"]
    known = dict.fromkeys(names[:2], Rate(1.0, 1, "2026"))
    assert yardstick.as_rates(known, names) is None
    assert yardstick.as_rates(known | {"launch_s": Missing("no")}, names) is None
    assert yardstick.as_rates(known | {"launch_s": Rate(1.0, 1, "2026")}, names)


@pytest.mark.parametrize(
    ("dtype", "precision", "name"),
    [
        ("float32", "ieee", "matrix_tflops/float32/ieee"),
        ("float32", "tf32", "matrix_tflops/float32/tf32"),
        ("float32", "unknown", "matrix_tflops/float32/tf32"),
        ("float16", "ieee", "matrix_tflops/float16/ieee"),
        ("bfloat16", "unknown", "matrix_tflops/bfloat16/ieee"),
    ],
)
def test_a_product_s_rate_is_that_of_its_dtype_and_precision(dtype, precision, name):
    three = ["copy_gbps", "read_gbps", "launch_s"]
    assert yardstick.matrix(dtype, precision) == name
    assert yardstick.needed(dtype, precision, 1, "cuda") == [*three, name]
    assert yardstick.needed(dtype, precision, 0, "cuda") == three, "only what multiplies needs it"
    assert name in yardstick.every("cuda")


@pytest.mark.parametrize(("float16", "product", "tflops"), [(0.003, "float32/ieee", 0.1), (2.0, "float16/ieee", 2.0)])
def test_on_a_cpu_16_bits_may_be_multiplied_in_float32(float16, product, tflops):
    """The faster one counts: some CPUs crawl in float16."""
    names = yardstick.needed("float16", "ieee", 1, "cpu")
    assert yardstick.needed("float32", "ieee", 1, "cpu") == [*names[:3], "matrix_tflops/float32/ieee"]
    values = dict(zip(names, (4.0, 5.0, 1e-6, float16, 0.1), strict=True))
    rates = yardstick.as_rates({name: Rate(value, 512, name) for name, value in values.items()}, names)
    assert (rates.product, rates.matrix_tflops) == (product, tflops)
    assert rates.measured["matrix_tflops"] == f"matrix_tflops/{product}"


def test_every_rate_of_a_device_has_a_name():
    products = [f"matrix_tflops/{kind}" for kind in ("float32/ieee", "float32/tf32", "float16/ieee", "bfloat16/ieee")]
    assert yardstick.every("cuda") == ["copy_gbps", "read_gbps", "launch_s", *products]
    assert yardstick.every("cpu") == [name for name in yardstick.every("cuda") if "tf32" not in name]


class Torch:
    """What a yardstick needs of Torch's back end, on a simulated device: the n-th call of each kind takes the n-th of `times`, over
    and over, and a product `sides[n]`, the first of each side a second."""

    times, sides, asked = (3e-3, 2e-3, 4e-3), {}, ""

    def configure(self, precision):
        self.asked += f"configure {precision}, "

    def _call(self, what):
        self.asked += what
        self.number = 0

        def call(*arguments):
            assert arguments == ("the", "arguments")
            self.number += 1
            self.take(self.times[self.number % len(self.times)])

        return call, ("the", "arguments")

    def copy_call(self, n, device):
        return self._call(f"copy {n} {device.type}")

    def read_call(self, n, device):
        return self._call(f"read {n} {device.type}")

    def launch_call(self, device):
        return self._call(f"launch {device.type}")

    def product_call(self, n, dtype, device):
        call, arguments = self._call(f"{n} {dtype} {device.type}, ")
        if self.sides:
            fresh = [True]

            def call(*_):
                self.take(1.0 if fresh else self.sides.get(n, max(self.sides.values())))
                fresh.clear()

        return call, arguments


class TorchOnCpu(Torch, SimulatedCpu):
    def take(self, seconds):
        self.work(seconds / 4, seconds * 3 / 4)


class TorchOnGpu(Torch, SimulatedGpu):
    def take(self, seconds):
        self.launch("k", seconds)


@pytest.mark.parametrize(
    ("name", "value", "n", "asked"),
    [
        ("copy_gbps", 2 * 2**29 / 2e-3 / 1e9, 2**27, "copy 134217728 cpu"),  # half a GiB read and written in 2 ms
        ("read_gbps", 2**29 / 2e-3 / 1e9, 2**27, "read 134217728 cpu"),
        ("launch_s", 2e-3, 1, "launch cpu"),
    ],
)
def test_a_rate_is_bytes_by_the_time_of_the_best_sample(monkeypatch, name, value, n, asked):
    torch = TorchOnCpu(monkeypatch)
    assert yardstick.measure(torch, CPU, name, 0.1) == (pytest.approx(value), n)
    assert torch.asked == asked


@pytest.mark.parametrize(
    ("name", "value", "n"), [("copy_gbps", 2 * 2**30 / 2e-3 / 1e9, 2**28), ("read_gbps", 2**30 / 2e-3 / 1e9, 2**28), ("launch_s", 2e-3, 1)]
)  # fmt: skip
def test_a_gpu_s_rate_is_by_the_time_of_its_kernels(monkeypatch, name, value, n):
    assert yardstick.measure(TorchOnGpu(monkeypatch), GPU, name, 0.1) == (pytest.approx(value), n)


def test_a_product_s_rate_is_flops_by_the_time_of_the_best_sample(monkeypatch):
    """2 n³ of them: n products and sums for each of n² elements. The precision is set before the first call."""
    torch = TorchOnCpu(monkeypatch)
    torch.times = (30e-3, 25e-3, 40e-3)
    rate = yardstick.measure(torch, CPU, "matrix_tflops/bfloat16/ieee", 0.1)
    assert rate == (pytest.approx(2 * 256**3 / 25e-3 / 1e12), 256)
    assert torch.asked.startswith("configure ieee, 256 bfloat16 cpu, ")


@pytest.mark.parametrize(
    ("torch", "device", "sides", "n"),
    [
        (TorchOnCpu, CPU, {256: 1e-3, 512: 19.9e-3, 1024: 20.1e-3, 2048: 30e-3}, 1024),
        (TorchOnCpu, CPU, {256: 21e-3}, 256),
        (TorchOnCpu, CPU, {256: 1e-3}, 8192),
        (TorchOnGpu, GPU, {256: 1e-3, 512: 1.97e-3, 1024: 2.01e-3, 2048: 3e-3}, 1024),
        (TorchOnGpu, GPU, {256: 1e-3}, 8192),
    ],
)
def test_a_product_is_so_large_that_it_takes_20_ms_and_on_a_gpu_2(monkeypatch, torch, device, sides, n):
    """Or 8192, where it is fast enough. The first call of each side, here of a second, does not count."""
    torch = torch(monkeypatch)
    torch.sides = sides
    value, side = yardstick.measure(torch, device, "matrix_tflops/float32/ieee", 0.1)
    assert side == n
    assert value == pytest.approx(2 * n**3 / sides.get(n, max(sides.values())) / 1e12)


def test_a_rate_is_sampled_for_its_whole_budget(monkeypatch):
    """A quarter of it before, to warm up; a copy that is fast later on is not missed because the first twenty were alike."""
    torch = TorchOnCpu(monkeypatch)
    torch.times = (1e-3,)
    yardstick.measure(torch, CPU, "copy_gbps", 0.2)
    assert torch.number == 250


@pytest.mark.parametrize(("flops", "moved"), [(0, 2 * 2**30), (2 * 8192**3, 3 * 2**27)], ids=["copy", "product"])
@pytest.mark.parametrize(("share", "status"), [(0.9999, "implausible"), (1.0001, "ok")])
def test_a_time_below_the_bound_is_implausible(flops, moved, share, status):
    """By the datasheet of the H200: 4.8 TB/s beyond 63 MB of L2, 989.5 TFLOP/s in bfloat16."""
    seconds = share * max((moved - 63e6) / 4.8e12, flops / 989.5e12)
    record = rated(timed(flops, moved, seconds), None)
    assert record.status == status and record.rates.bound_s == pytest.approx(seconds / share)
    assert ("no such card can beat" in str(record.reason)) is (status == "implausible")


def timed(flops, moved, seconds, device=H200):
    """A record as it is before its rates, of a kernel in bfloat16."""
    build = Build(0.0, 0.0, None, moved // 2)
    record = samples.untimed(device=device, of=samples.case(dtype="bfloat16"), work=(flops, moved), build=build)
    return replace(record, timing=samples.timing([seconds] * 6))


@pytest.mark.parametrize(
    ("flops", "moved", "honest_s"),
    [(0, 2 * 2**30, 2 * 2**30 / 4.1e12), (2 * 8192**3, 3 * 2**27, 2 * 8192**3 / 750e12)],
    ids=["copy at 4.1 TB/s", "product at 750 TFLOP/s"],
)
def test_half_the_work_is_implausible(flops, moved, honest_s):
    honest, half = (rated(timed(flops, moved, seconds), None) for seconds in (honest_s, honest_s / 2))
    assert honest.status == "ok" and half.status == "implausible"
    assert honest.rates.bound_s == half.rates.bound_s


def test_half_the_work_passes_where_nothing_is_known_or_l2_holds_it():
    for record in (timed(0, 2 * 2**30, 1e-9, samples.CPU), timed(0, 2**20, 1e-6)):
        assert rated(record, None).status == "ok"


@pytest.mark.parametrize(
    ("card", "flops", "moved", "dtype", "precision", "seconds"),
    [
        ("NVIDIA H200", 0, 4_800_000_000 + 63_000_000, "float32", "ieee", 1e-3),
        ("NVIDIA H200", 989_500_000_000, 0, "bfloat16", "ieee", 1e-3),
        ("NVIDIA H200", 989_500_000_000, 0, "float16", "ieee", 1e-3),
        ("NVIDIA H200", 66_900_000_000, 0, "float32", "ieee", 1e-3),
        ("NVIDIA H200", 494_700_000_000, 0, "float32", "tf32", 1e-3),
        ("NVIDIA H200", 494_700_000_000, 4_800_000_000, "float32", "tf32", 1e-3),  # the longer of the two
        ("NVIDIA H200", 1, 4_863_000_000, "bfloat16", "ieee", 1e-3),
        ("NVIDIA H200", 989_500_000_000, 0, "float32", "unknown", 1e-3),  # it may narrow its operands
        ("NVIDIA H200", 989_500_000_000, 0, "bfloat16", "unknown", 1e-3),
        ("NVIDIA H200", 10**12, 4_863_000_000, "int64", "ieee", 1e-3),  # no rate of integers
        ("NVIDIA H200", 10**12, 4_863_000_000, "int64", "unknown", 1e-3),
        ("NVIDIA H200", 0, 62_999_999, "float32", "ieee", 0.0),  # L2 may hold it all
        ("NVIDIA H200", 0, 0, "float32", "ieee", 0.0),
        ("NVIDIA H200 MIG 1g.18gb", 0, 4_863_000_000, "float32", "ieee", 1e-3),
        ("NVIDIA H100 80GB HBM3", 0, 3_352_000_000 + 52_500_000, "float32", "ieee", 1e-3),
        ("NVIDIA A100-SXM4-80GB", 0, 2_039_000_000 + 42_000_000, "float32", "ieee", 1e-3),
        ("NVIDIA A100-SXM4-40GB", 0, 1_555_000_000 + 42_000_000, "float32", "ieee", 1e-3),
        ("NVIDIA A100-SXM4-40GB", 156_000_000_000, 0, "float32", "tf32", 1e-3),
        ("NVIDIA A100-SXM4-40GB", 312_000_000_000, 0, "float16", "ieee", 1e-3),
        ("NVIDIA A100-SXM4-40GB", 19_500_000_000, 0, "float32", "ieee", 1e-3),
    ],
)
def test_the_bound_is_what_the_datasheet_allows(card, flops, moved, dtype, precision, seconds):
    assert yardstick.bound(flops, moved, dtype, precision, DeviceInfo("cuda", card)) == pytest.approx(seconds)


@pytest.mark.parametrize("card", ["some CPU", "NVIDIA GH200 480GB", "NVIDIA H2000", "NVIDIA H100 PCIe", ""])
def test_a_card_without_a_datasheet_has_no_bound(card):
    assert yardstick.bound(10**15, 10**12, "float32", "ieee", DeviceInfo("cuda", card)) is None


def test_the_key_names_what_a_rate_holds_for(monkeypatch):
    gpu = DeviceInfo("cuda", "NVIDIA H200", driver="580.1")
    assert yardstick.key(gpu, "2.11", 2) == "NVIDIA H200, driver 580.1, torch 2.11, method 1"
    cpu = DeviceInfo("cpu", "Xeon", driver="6.8")
    assert yardstick.key(cpu, "2.11", 2) == "Xeon, 2 threads, 6.8, torch 2.11, method 1"
    for device in (gpu, cpu):
        keys = {
            yardstick.key(d, "2.11", 2) for d in (device, replace(device, name="B200"), replace(device, driver="590"))
        }
        keys |= {yardstick.key(device, "2.12", 2), yardstick.key(device, "2.11", 4)}
        assert len(keys) == (5 if device is cpu else 4), "a GPU's rates are not the CPU threads'"
        monkeypatch.setattr(yardstick, "METHOD", 2)
        assert yardstick.key(device, "2.11", 2) not in keys
        monkeypatch.undo()
