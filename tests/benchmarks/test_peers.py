"""Peers that claim the published definition agree with it; what is not installed is named; nothing stays behind."""

import importlib
import math
import sys
from collections.abc import Callable, Iterable
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from benchmarks import peers as module
from benchmarks.peers import PACKAGES, STEPS, Parameters, Peer, missing, peers, with_one_bad_row

Array = npt.NDArray[np.float64]

GIVEN = Parameters(faulty=2, trim=3, radius=5.0, iterations=3, tolerance=1e-6, trusted=4, norm=6.5)


def mean(x: Array) -> Array:
    return np.asarray(x.mean(axis=0))


def median(x: Array) -> Array:
    return np.array([(sorted(column)[(len(x) - 1) // 2] + sorted(column)[len(x) // 2]) / 2 for column in x.T])


def trimmed_mean(x: Array) -> Array:
    return np.array([math.fsum(sorted(column)[3:-3]) / (len(x) - 6) for column in x.T])


def krum_order(x: Array) -> list[int]:
    """Rows by the sum of squared distances to their n - f - 2 nearest others, least first."""
    sums = []
    for i in range(len(x)):
        others = sorted(math.fsum((x[i] - x[j]) ** 2) for j in range(len(x)) if j != i)
        sums.append(math.fsum(others[: len(x) - 2 - 2]))
    return sorted(range(len(x)), key=sums.__getitem__)


def nearest_mean(x: Array, centre: Array, count: int) -> Array:
    """Per coordinate, the average of the `count` values nearest the centre."""
    columns = [sorted(x[:, j], key=lambda value: abs(value - centre[j]))[:count] for j in range(x.shape[1])]
    return mean(np.array(columns).T)


def bulyan(x: Array) -> Array:
    left, selected = list(range(len(x))), []
    for _ in range(len(x) - 4):
        selected.append(left.pop(krum_order(x[left])[0]))
    return nearest_mean(x[selected], median(x[selected]), len(x) - 8)


def geometric_median(x: Array) -> Array:
    z = mean(x)
    for _ in range(2000):
        weights = 1 / np.linalg.norm(x - z, axis=1)
        z = weights @ x / weights.sum()
    return np.asarray(z)


def centered_clipping(x: Array) -> Array:
    v = np.zeros(x.shape[1])
    for _ in range(3):
        v = v + mean(np.array([(row - v) * min(1, 5 / float(np.linalg.norm(row - v))) for row in x]))
    return v


def mda(x: Array) -> Array:
    def diameter(rows: Iterable[int]) -> float:
        return max(float(((x[i] - x[j]) ** 2).sum()) for i, j in combinations(rows, 2))

    return mean(x[list(min(combinations(range(len(x)), len(x) - 2), key=diameter))])


def monna(x: Array) -> Array:
    return mean(x[np.argsort(np.linalg.norm(x - x[4], axis=1))[:-2]])


def nnm(x: Array) -> Array:
    return np.array([mean(x[np.argsort(np.linalg.norm(x - row, axis=1))[:-2]]) for row in x])


def clip(x: Array) -> Array:
    return np.array([row * min(1, 6.5 / float(np.linalg.norm(row))) for row in x])


def arc(x: Array) -> Array:
    norms = np.linalg.norm(x, axis=1)
    clipped = 2 * 2 * (len(x) - 2) // len(x)
    bound = sorted(norms)[len(x) - clipped - 1]
    return np.array([row * min(1, bound / norm) for row, norm in zip(x, norms, strict=True)])


REFERENCES: dict[str, Callable[[Array], Array]] = {
    "mean": mean,
    "median": median,
    "trimmed_mean": trimmed_mean,
    "krum": lambda x: x[krum_order(x)[0]],
    "multi_krum": lambda x: mean(x[krum_order(x)[:-2]]),
    "bulyan": bulyan,
    "geometric_median": geometric_median,
    "centered_clipping": centered_clipping,
    "meamed": lambda x: nearest_mean(x, median(x), len(x) - 2),
    "mda": mda,
    "monna": monna,
    "nnm": nnm,
    "clip": clip,
    "arc": arc,
}
SAME = [step for step in STEPS if STEPS[step].same] + [
    ("byzfl", f"{before}+{rule}") for before in ("nnm", "clip", "arc") for rule in ("mean", "trimmed_mean")
]


def peer_of(package: str, rule: str) -> Peer:
    if package in missing():
        pytest.skip(f"{package} cannot be imported here: {missing()[package]}")
    return next(peer for peer in peers(rule, GIVEN) if peer.package == package)


def candidates(m: int, seed: int) -> torch.Tensor:
    return torch.randn(m, 50, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("package", "rule"), SAME)
@pytest.mark.parametrize("m", [11, 12])
def test_a_peer_that_is_the_same_agrees_with_the_definition(package: str, rule: str, m: int) -> None:
    peer = peer_of(package, rule)
    assert peer.same
    for seed in range(5):
        given = candidates(m, seed)
        expected: Array = given.double().numpy()
        for name in rule.split("+"):
            expected = REFERENCES[name](expected)
        np.testing.assert_allclose(peer(given), expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(given, candidates(m, seed))  # nobody wrote into the caller's candidates


@pytest.mark.parametrize(("package", "rule"), [step for step in STEPS if not STEPS[step].same])
def test_a_peer_that_differs_says_how_and_still_runs(package: str, rule: str) -> None:
    peer = peer_of(package, rule)
    assert not peer.same
    assert peer.note
    assert peer(candidates(11, 0)).shape[-1] == 50


@pytest.mark.parametrize("package", ["byzfl", "torchjd"])
def test_krums_that_differ_choose_another_row_than_the_paper(package: str) -> None:
    peer = peer_of(package, "krum")
    chosen = [peer(candidates(11, seed)) for seed in range(50)]
    published = [candidates(11, seed)[krum_order(candidates(11, seed).double().numpy())[0]] for seed in range(50)]
    assert not all(torch.equal(ours, theirs) for ours, theirs in zip(published, chosen, strict=True))


def test_flwr_trims_as_many_as_it_is_told() -> None:
    peer_of("flwr", "trimmed_mean")
    for m, trim in [(49, 1), (47, 12), (7, 3), (6, 0)]:
        (flwr,) = (peer for peer in peers("trimmed_mean", Parameters(0, trim)) if peer.package == "flwr")
        ordered = candidates(m, 0).double().sort(dim=0).values
        np.testing.assert_allclose(flwr(candidates(m, 0)), ordered[trim : m - trim].mean(dim=0), rtol=1e-5, atol=1e-6)


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for package, (name, _) in PACKAGES.items():
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(module, "_load", module._load.__wrapped__)  # without its memory


@pytest.mark.usefixtures("nothing_installed")
def test_packages_that_are_not_installed_are_named_with_the_reason() -> None:
    assert set(missing()) == {"byzfl", "torchjd", "flwr", "geom_median"}
    for package, reason in missing().items():
        assert reason.startswith("ModuleNotFoundError")
        assert package in reason
    assert all(peers(rule, GIVEN) == [] for _, rule in STEPS)


def test_a_rule_that_no_package_has_has_no_peers() -> None:
    assert peers("phocas", GIVEN) == []
    assert peers("nnm+phocas", GIVEN) == []


@pytest.mark.parametrize("installed", ["broken", "absent", "sound"])
def test_the_stand_in_for_torchvision_leaves_nothing_behind(
    installed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "part.py").touch()
    ends = {
        "broken": "raise RuntimeError('operator torchvision::nms does not exist')",
        "sound": "datasets, transforms = 1, 2",
    }
    source = f"import torchvision.part\n{ends.get(installed, '')}"
    (tmp_path / "torchvision" / "__init__.py").write_text(source, encoding="utf-8")
    if installed == "absent":
        monkeypatch.setitem(sys.modules, "torchvision", None)
    (tmp_path / "needs_torchvision.py").write_text("from torchvision import datasets, transforms", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    before = dict(sys.modules)
    with module.torchvision_or_stand_in():
        fake = importlib.import_module("needs_torchvision")
    assert fake.transforms == 2 or installed != "sound"
    del sys.modules["needs_torchvision"]
    left = {name for name in sys.modules if sys.modules[name] is not before.get(name, "new")}
    assert left == ({"torchvision", "torchvision.part"} if installed == "sound" else set())
    assert set(before) <= set(sys.modules)
    for name in left:
        del sys.modules[name]


def test_what_one_bad_row_does_is_said_in_a_line() -> None:
    def said(call: Callable[[torch.Tensor], object]) -> str:
        return with_one_bad_row(Peer("fake", "rule", lambda candidates: candidates, call, same=True))

    def refuses(candidates: torch.Tensor) -> object:
        raise TypeError("no NaN, please\nsecond line")

    assert said(lambda candidates: candidates[0]) == "finite"
    assert said(lambda candidates: candidates.mean(dim=0)) == "not finite"
    assert said(lambda candidates: None) == "returns None"
    assert said(refuses) == "raises TypeError: no NaN, please"


def test_one_infinite_row_is_another_question_than_nan() -> None:
    largest = Peer(
        "fake", "largest", lambda candidates: candidates, lambda x: x.nan_to_num(nan=0.0, posinf=math.inf), True
    )
    assert with_one_bad_row(largest) == "finite"
    assert with_one_bad_row(largest, math.inf) == "not finite"
