"""The experiments of Zeno++: their settings, and their claims on made-up curves."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import zeno
from zeno.cli.app import app
from zeno.studies.compare import WITHOUT_FAULTS
from zeno.studies.reproduction import pages, zenopp
from zeno.studies.reproduction.claims import judge
from zeno.studies.reproduction.evidence import Evidence
from zeno.studies.reproduction.figures import SERVER
from zeno.studies.reproduction.scales import SCALES
from zeno.studies.sweep import Outcome, key
from zeno.workers.delays import Uniform

SMALL = SCALES["small"]


def curve(accuracy: float) -> Outcome:
    return Outcome([1, 2], [accuracy] * 2, [1.0] * 2, None, None, 0, 1.0)


def made(ends: dict[str, float], **of_panels: dict[str, float]) -> Evidence:
    """Curves that end with these accuracies in every panel, but for those given by panel."""
    figures = zenopp.figures(SMALL)
    found: dict[str, Outcome] = {}
    for panel in figures[0].panels:
        for name, runs in panel.curves.items():
            found |= {key(run): curve({**ends, **of_panels.get(panel.name, {})}[name]) for run in runs}
    return Evidence(figures, found)


AS_PUBLISHED = {WITHOUT_FAULTS: 0.6, "mean": 0.1, "zenopp": 0.58, zenopp.OURS: 0.6, SERVER: 0.4}


def test_the_runs_have_the_settings_of_the_paper() -> None:
    panels = {panel.name: panel for panel in zenopp.figures(SMALL)[0].panels}
    assert list(panels) == ["q0", "label_flip_q4", "label_flip_q6", "sign_flip_q4", "sign_flip_q6"]
    [run] = panels["sign_flip_q6"].curves["zenopp"]
    assert (run.task, run.workers, run.batch_size, run.server_data, run.lr) == ("cifar10", 10, 128, 0.05, 0.02)
    assert (run.asynchronous, run.buffer, run.delay) == (True, 1, Uniform(0, 10))
    assert (run.fault, run.faulty) == (zeno.SignFlip(10), 6)
    assert run.rule == zeno.ZenoPP(rho=2e-4, epsilon=0.0, every=10, batch_size=128)
    arrivals = {one.steps * one.buffer for panel in panels.values() for runs in panel.curves.values() for one in runs}
    assert arrivals == {run.steps}, "as many gradients for every curve"


def test_every_claim_holds_for_the_published_curves() -> None:
    assert [one.word for one in judge(SMALL, made(AS_PUBLISHED), zenopp.CLAIMS)] == ["holds"] * len(zenopp.CLAIMS)


@pytest.mark.parametrize(
    ("panel", "changed", "failing"),
    [
        ("q0", {"zenopp": 0.5}, {"no faults: as fast as asynchronous SGD"}),
        ("sign_flip_q4", {"mean": 0.4}, {"sign flip: asynchronous SGD fails"}),
        ("label_flip_q4", {"mean": 0.59}, {"zenopp wins"}),
        ("label_flip_q6", {"zenopp": 0.2}, {"a faulty majority: progress"}),
        ("sign_flip_q4", {"zenopp": 0.4}, {"sign flip: hardly slower than without faults"}),
    ],
)
def test_claims_fail_where_the_curves_contradict_them(panel: str, changed: dict[str, float], failing: set[str]) -> None:
    found = judge(SMALL, made(AS_PUBLISHED, **{panel: changed}), zenopp.CLAIMS)
    assert {one.claim.name for one in found if one.word == "fails"} == failing


def test_the_command_trains_and_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = replace(SCALES["smoke"], epochs=1, steps_per_epoch=1, repeats=1)
    monkeypatch.setitem(SCALES, "smoke", tiny)
    arguments = ["reproduce", "zenopp/sign_flip_q6", "--scale", "smoke", "--out", str(tmp_path), "--processes", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    page = (tmp_path / pages.SUMMARY_FILE).read_text()
    assert page.startswith("# Zeno++: the experiments, scale smoke")
    assert "zeno reproduce zenopp --scale smoke" in page
    assert "5 of 16 runs are finished" in page
    assert (tmp_path / "zenopp.png").exists()

    resumed = CliRunner().invoke(app, ["reproduce", "--resume", str(tmp_path), "--processes", "1"])
    assert resumed.exit_code == 0, resumed.output
    assert "16 of 16 runs" in (tmp_path / pages.SUMMARY_FILE).read_text(), "the folder knows its paper"
    other = CliRunner().invoke(app, ["reproduce", "bit_flip/q8", "--resume", str(tmp_path)])
    assert other.exit_code != 0
    assert "holds another scale or paper" in str(other.exception)
