"""Records of twelve runs, kept in a file: the same run gives the same records.

Floating-point numbers are compared to six digits where this machine computes as the one that made the file, and losses
to three digits elsewhere. After a change that is meant to change records, `python -m training.test_golden` in tests/
makes the file again.
"""

import gzip
import hashlib
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import zeno
from zeno.problem.threads import one_thread
from zeno.training.settings import from_settings


def arithmetic() -> str:
    """Names how torch computes on this machine.

    The instructions that a processor supports do not decide it: the libraries of torch also choose by its maker. So the
    name ends with a digest of the gradients of a small network, which no code of this package takes part in.
    """
    draws = torch.Generator().manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=draws) - 0.5)
    images = torch.rand(100, 1, 8, 8, generator=draws)
    with one_thread():
        nn.functional.cross_entropy(layers(images), torch.arange(100) % 10).backward()
    gradients = b"".join(p.grad.numpy().tobytes() for p in layers.parameters() if p.grad is not None)
    digest = hashlib.blake2b(gradients, digest_size=8).hexdigest()
    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, gradients {digest}"


FILE = Path(__file__).parent / "golden" / "records.json.gz"
GOLDEN = json.loads(gzip.decompress(FILE.read_bytes()))
SAME_MACHINE = GOLDEN["made_on"] == arithmetic()
RUNS: dict[str, Any] = GOLDEN["runs"]


def plain(record: zeno.Record) -> dict[str, Any]:
    """What decides a record, in the form of the golden file."""
    names = [
        "step",
        "lr",
        "kept",
        "scores",
        "quarantined",
        "late",
        "faulty",
        "train_loss",
        "accuracy",
        "evaluated",
    ]
    values = {name: getattr(record, name) for name in names}
    errors = {str(worker): error.kind.value for worker, error in record.errors.items()}
    return {**values, "errors": errors, "skipped": record.skipped is not None}


def assert_same(records: list[zeno.Record], name: str) -> None:
    expected = RUNS[name]["records"]
    assert len(records) == len(expected)
    for record, golden in zip(records, expected, strict=True):
        found = plain(record)
        if SAME_MACHINE:
            assert_alike(found, golden)
        else:
            for name in ("step", "lr", "faulty", "evaluated", "errors", "late", "skipped"):  # what no rounding changes
                assert found[name] == golden[name]
            if golden["train_loss"] is not None:
                assert found["train_loss"] == pytest.approx(golden["train_loss"], rel=1e-3)


def assert_alike(found: object, golden: object) -> None:
    """Equal, and floating-point numbers to six digits: the last bits can depend on where in memory a tensor is."""
    if isinstance(found, list) and isinstance(golden, list):
        assert len(found) == len(golden)
        for one, other in zip(found, golden, strict=True):
            assert_alike(one, other)
    elif isinstance(found, dict) and isinstance(golden, dict):
        assert_alike([*found, *found.values()], [*golden, *golden.values()])
    elif isinstance(found, float) and isinstance(golden, float):
        assert found == pytest.approx(golden, rel=1e-6, abs=1e-6)
    else:
        assert found == golden


def trained(name: str, folder: Path) -> list[zeno.Record]:
    run = from_settings(RUNS[name]["settings"])
    if name != "resumed":
        return zeno.train(run)
    zeno.train(replace(run, steps=10), folder)
    return zeno.train(run, folder, resume=True)


@pytest.mark.parametrize("name", [name for name in RUNS if name != "ray"])
def test_a_run_gives_the_golden_records(name: str, tmp_path: Path) -> None:
    assert_same(trained(name, tmp_path), name)


def main() -> None:
    """Makes the file again, on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        for name, golden in RUNS.items():
            golden["records"] = [plain(record) for record in trained(name, Path(folder))]
    text = json.dumps({"made_on": arithmetic(), "runs": RUNS})
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
