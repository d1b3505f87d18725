"""The sorting network, in both of its forms."""

import itertools
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import zeno
from zeno.rules.linalg import kernels, sorting_network
from zeno.rules.linalg.sorting_network import Columns

FORMULAS = [Columns("median"), Columns("trimmed_mean", 1), Columns("nearest_median", 1)]


@pytest.mark.parametrize("n", range(1, 13))
def test_the_whole_network_sorts(n: int) -> None:
    # The 0-1 principle: a network that sorts every sequence of zeros and ones sorts everything.
    patterns = torch.tensor(list(itertools.product([0.0, 1.0], repeat=n))).T  # [n, 2^n]
    values = list(patterns)
    for low, high, _, _ in sorting_network.comparators(n, tuple(range(n))):
        values[low], values[high] = torch.minimum(values[low], values[high]), torch.maximum(values[low], values[high])
    assert torch.equal(torch.stack(values), patterns.sort(dim=0).values)


@pytest.mark.parametrize("n", [*range(1, 40), 200])
@pytest.mark.parametrize("columns", [Columns("median"), Columns("trimmed_mean", 0)])
def test_pruned_networks_put_what_is_wanted_in_its_place(n: int, columns: Columns) -> None:
    torch.manual_seed(n)
    block = torch.randn(n, 100)
    ordered = block.double().sort(dim=0).values
    expected = ordered.mean(dim=0)
    if columns.formula == "median":
        expected = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    before = block.clone()
    torch.testing.assert_close(sorting_network.evaluate(columns, block).double(), expected, atol=1e-6, rtol=1e-6)
    assert torch.equal(block, before)


def test_pruning_leaves_comparators_out() -> None:
    assert len(sorting_network.comparators(20, tuple(range(20)))) == 97  # Batcher's number for 20
    assert len(sorting_network.comparators(20, (9, 10))) < 90
    assert sum(c.wants_low + c.wants_high for c in sorting_network.comparators(20, (9, 10))) < 150


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with one kernel in it, made as a run would have it made."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZENO_CACHE", str(folder))
        process = kernels.start(Columns("trimmed_mean", 1), 5)
        log = kernels._path(Columns("trimmed_mean", 1), 5).with_suffix(".log")
        assert process.wait(timeout=280) == 0, log.read_text()
    return folder


def big(n: int) -> torch.Tensor:
    return torch.randn(n, kernels.LEAST_NUMBERS // n + 17)


def test_a_compiled_kernel_gives_the_same_bits(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZENO_CACHE", str(cache))
    candidates = big(5)
    kernel = kernels.find(Columns("trimmed_mean", 1), 5)
    assert kernel is not None
    with_kernel = kernel(list(candidates))
    without = sorting_network.evaluate(Columns("trimmed_mean", 1), candidates)
    assert torch.equal(with_kernel, without)
    assert torch.equal(zeno.TrimmedMean(trim=1)(candidates).update, without)

    calls = []

    def find(columns: Columns, n: int) -> kernels.Kernel | None:
        calls.append(n)
        return kernel

    monkeypatch.setattr(kernels, "find", find)
    zeno.TrimmedMean(trim=1)(candidates)
    assert calls == [5], "the rule did not use its kernel"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_kernel_shows_every_number_that_is_not_finite(
    cache: Path, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    monkeypatch.setenv("ZENO_CACHE", str(cache))
    candidates = big(5)
    candidates[2, 77] = bad
    kernel = kernels.find(Columns("trimmed_mean", 1), 5)
    assert kernel is not None
    assert kernel(list(candidates))[77].isnan()
    result = zeno.TrimmedMean(trim=1)(candidates)  # the worker is out, and the row with it
    assert result.kept.tolist() == [True, True, False, True, True]
    expected = candidates[[0, 1, 3, 4]].mean(dim=0)
    torch.testing.assert_close(result.update, expected)


def test_huge_numbers_are_not_taken_for_infinite(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZENO_CACHE", str(cache))
    candidates = big(5)
    candidates[0] = 3e38
    candidates[1] = 3e38
    assert zeno.TrimmedMean(trim=1)(candidates).update.isfinite().all()
    assert zeno.TrimmedMean(trim=1)(candidates).kept.all()


def test_a_broken_kernel_is_said_to_be_broken_and_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ZENO_CACHE", str(tmp_path))
    path = kernels._path(Columns("median"), 4)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a kernel")
    candidates = big(4)
    expected = candidates.double().sort(dim=0).values[1:3].mean(dim=0)
    torch.testing.assert_close(zeno.Median()(candidates).update.double(), expected, atol=1e-6, rtol=0)
    assert "cannot be loaded" in caplog.text


def test_a_kernel_is_made_once_it_is_worth_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ZENO_CACHE", str(tmp_path))
    started: list[tuple[Columns, int]] = []

    def start(columns: Columns, n: int) -> None:
        started.append((columns, n))
        kernels._making[columns, n] = process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait()

    monkeypatch.setattr(kernels, "start", start)
    monkeypatch.setattr(kernels, "_spent", {})
    caplog.set_level("INFO", logger="zeno")
    zeno.Median()(big(6))
    assert not started, "one call is not worth a compilation"
    monkeypatch.setattr(kernels, "WORTH_SECONDS", 0.0)
    zeno.Median()(big(6)[:, :100])
    assert not started, "small candidates are never worth it"
    for _ in range(2):
        zeno.Median()(big(6))
    assert started == [(Columns("median"), 6)]
    assert "compiling median of 6 rows in the background" in caplog.text
    monkeypatch.setenv("ZENO_COMPILE", "0")
    zeno.Median()(big(7))
    assert len(started) == 1


@pytest.mark.parametrize("folder", ["/proc/nope", "/dev/null/kernels"])
def test_a_cache_that_cannot_be_written_only_costs_the_kernels(
    folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ZENO_CACHE", folder)
    monkeypatch.setenv("ZENO_COMPILE", "1")
    monkeypatch.setattr(kernels, "WORTH_SECONDS", 0.0)
    for _ in range(2):
        assert zeno.Median()(big(8)).update.isfinite().all()
    assert caplog.text.count("going on without compiled kernels") == 1


@pytest.mark.parametrize("columns", FORMULAS)
def test_what_is_compiled_is_the_same_network(columns: Columns) -> None:
    block = torch.randn(7, 50)
    out = torch.empty(50)
    kernels._Fused(columns)(out, *block)
    assert torch.equal(out, sorting_network.evaluate(columns, block))
