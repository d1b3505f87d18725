"""Records of twelve runs, as they were before the packages were rearranged: the same run gives the same records.

`golden/records.json.gz` was made with commit 6b6007e; its runs of zeno_auto and with
quarantine are of the rule and the verdicts that followed later.
Floating-point numbers are compared to the last bit where torch and the processor are those that made it, and to three
digits elsewhere.
"""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import zeno
from zeno.training.settings import from_settings

GOLDEN = json.loads(gzip.decompress((Path(__file__).parent / "golden" / "records.json.gz").read_bytes()))
SAME_MACHINE = GOLDEN["made_on"] == f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
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
            assert found == {name: golden[name] for name in found}  # the file has fields of older versions
        else:
            for name in ("step", "lr", "faulty", "evaluated"):  # what no rounding changes
                assert found[name] == golden[name]
            if golden["train_loss"] is not None:
                assert found["train_loss"] == pytest.approx(golden["train_loss"], rel=1e-3)


@pytest.mark.parametrize("name", [name for name in RUNS if name not in ("ray", "resumed")])
def test_a_run_gives_the_golden_records(name: str) -> None:
    assert_same(zeno.train(from_settings(RUNS[name]["settings"])), name)


def test_a_resumed_run_gives_the_golden_records(tmp_path: Path) -> None:
    run = from_settings(RUNS["resumed"]["settings"])
    zeno.train(replace(run, steps=10), tmp_path)
    assert_same(zeno.train(run, tmp_path, resume=True), "resumed")
