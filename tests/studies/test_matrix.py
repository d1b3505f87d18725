"""Every rule against every fault: the right numbers in the right cells, also after errors and interrupts."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

import zeno
from zeno.cli import app as cli
from zeno.cli.options import read_toml
from zeno.report.matrix import Entry, Grid, heat_map, matrix_markdown, matrix_tables
from zeno.studies import matrix, sweep
from zeno.studies.matrix import CELLS_FILE, GOOD_ALONE, SERVER_ALONE, plan
from zeno.studies.processes import Failed
from zeno.studies.sweep import Job, Outcome

SMALL = ["--rule", "median", "--rule", "zeno", "--fault", "label_flip", "--fault", "sign_flip(10)"]
SMALL += ["--faulty", "3", "--workers", "5", "--steps", "3"]
TITLE = "digits, 3 of 5 workers faulty, 3 steps, 1 seed"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Runs `zeno matrix ARGUMENTS` in this process; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["zeno", "matrix", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rules against two faults, trained by the command line in one process."""
    path = tmp_path_factory.mktemp("matrix") / "out"
    with pytest.MonkeyPatch.context() as patched:
        assert run(patched, *SMALL, "--processes", 1, "--out", path) == 0
    return path


def expected(rule: zeno.Rule, fault: zeno.Fault) -> float:
    settings = zeno.Run(rule=rule, fault=fault, faulty=3, workers=5, steps=3, eval_every=3)
    accuracy = zeno.train(settings)[-1].accuracy
    assert accuracy is not None
    return accuracy


def test_numbers_are_those_of_the_runs_and_in_their_places(folder: Path) -> None:
    found = json.loads((folder / "matrix.json").read_text())
    rules = {"median": zeno.Median(), "zeno": zeno.Zeno(trim=3, batch_size=64)}
    faults = {"label_flip": zeno.LabelFlip(), "sign_flip(scale=10)": zeno.SignFlip(10)}
    numbers = {(c["rule"], c["fault"]): c["accuracy"] for c in found["cells"]}
    assert numbers == {(r, f): expected(rule, fault) for r, rule in rules.items() for f, fault in faults.items()}
    good = expected(zeno.Mean(least=1), zeno.FAULTS["crash"]())
    alone = zeno.Run(rule=zeno.ServerAlone(), fault=zeno.Crash(), faulty=5, workers=5, steps=3, eval_every=3)
    server = zeno.train(alone)[-1].accuracy
    assert server is not None
    controls = [(GOOD_ALONE, 3, good), (SERVER_ALONE, 3, server)]
    assert [(r["rule"], r["faulty"], r["accuracy"]) for r in found["controls"]] == controls
    assert found["settings"]["steps"] == 3
    assert found["settings"]["fault"] == list(faults)

    # The same in Markdown.
    [table] = (folder / "matrix.md").read_text().split(f"## {TITLE}\n\n")[1:]
    lines = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert lines[0] == ["rule", *faults, "worst"]
    shown = {name: [f"{100 * numbers[name, fault]:.1f}" for fault in faults] for name in rules}
    assert lines[2:] == [
        [GOOD_ALONE, *[f"{100 * good:.1f}"] * 3],
        [SERVER_ALONE, *[f"{100 * server:.1f}"] * 3],
        ["median", *shown["median"], min(shown["median"], key=float)],
        ["zeno(trim=3, batch_size=64)", *shown["zeno"], min(shown["zeno"], key=float)],
    ]
    assert (folder / "matrix-q3.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("faulty", [2, 4])
def test_the_reference_is_the_mean_of_the_workers_that_are_not_faulty(faulty: int) -> None:
    place, (job,) = next(iter(plan({"faulty": faulty, "workers": 5, "steps": 1}).cells.items()))
    assert place == (GOOD_ALONE, None, faulty)
    assert zeno.train(job.run)[0].kept == [worker >= faulty for worker in range(5)]


def in_this_process(trained: list[zeno.Run]) -> Callable[..., Iterator[tuple[Job, Outcome]]]:
    """Stands in for `in_processes`, and collects the runs it trains."""

    def do_all(do: Callable[..., Outcome], jobs: Iterable[Job], *_: object) -> Iterator[tuple[Job, Outcome]]:
        for job in jobs:
            trained.append(job.run)
            yield job, do(job, lambda record: None)

    return do_all


def test_resume_trains_only_what_is_missing_or_failed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(folder, cut)
    lines = (folder / CELLS_FILE).read_text().splitlines(keepends=True)
    assert len(lines) == 6
    failed = json.dumps({**json.loads(lines[2]), "accuracy": None, "error": "died: killed by SIGKILL"}) + "\n"
    (cut / CELLS_FILE).write_text(lines[0] + lines[1] + failed + lines[3] + lines[4] + lines[5][:40])
    trained: list[zeno.Run] = []
    monkeypatch.setattr(sweep, "in_processes", in_this_process(trained))
    assert run(monkeypatch, "--resume", cut, "--json") == 0
    assert {r.to_toml() for r in trained} == {json.loads(lines[2])["run"], json.loads(lines[5])["run"]}
    found, before = json.loads(capsys.readouterr().out), json.loads((folder / "matrix.json").read_text())
    for entry, same in zip(found["cells"], before["cells"], strict=True):
        assert {**entry, "seconds": None} == {**same, "seconds": None}

    trained.clear()
    assert run(monkeypatch, "--resume", cut) == 0
    assert trained == []
    assert TITLE in capsys.readouterr().out
    assert run(monkeypatch, "--resume", cut, "--steps", 4) == 2
    assert "is resumed with its own settings" in capsys.readouterr().err


OWN_TASK = """
import os, signal, torch, zeno
from zeno.problem.dataset import generator

def task():
    seeds = {int(generator(seed, "task").integers(2**63)): seed for seed in (1, 2)}
    seed = seeds.get(torch.initial_seed())
    if seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if seed == 2:
        raise OSError("the disk is gone")
    data = zeno.Dataset(torch.randn(50, 3), torch.randint(2, (50,)), classes=2)
    return zeno.Task(train=data, test=data, model=lambda: torch.nn.Linear(3, 2))
"""


def test_a_cell_that_fails_and_a_process_that_dies_leave_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dying_task.py").write_text(OWN_TASK)
    monkeypatch.chdir(tmp_path)
    arguments = ["--task", "dying_task:task", "--rule", "mean", "--fault", "crash", "--fault", "zero"]
    arguments += ["--faulty", "1", "--workers", "3", "--steps", "2", "--batch-size", "5", "--seeds", "3"]
    assert run(monkeypatch, *arguments, "--processes", 2, "--out", "out") == 1
    results = matrix.outcomes_in(tmp_path / "out").read()
    by_seed: dict[int, list[Outcome | Failed]] = {}
    for key, result in results.items():
        seed = re.search(r"^seed = (\d+)$", key, flags=re.MULTILINE)  # which is left out of the key at its default
        by_seed.setdefault(int(seed[1]) if seed else zeno.Run().seed, []).append(result)
    # The mean under two faults, and the two controls.
    assert [type(r) for r in by_seed[0]] == [Outcome] * 4
    assert by_seed[1] == [Failed("died: killed by SIGKILL")] * 4
    assert all(isinstance(r, Failed) and "the disk is gone" in r.error for r in by_seed[2])
    entries = json.loads(Path("out/matrix.json").read_text())["cells"]
    assert [(e["n"], e["accuracy"] is None, len(e["errors"])) for e in entries] == [(1, False, 2)] * 2
    assert "!" in Path("out/matrix.md").read_text().split("| mean |")[1]
    assert "8 of 12 runs failed" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_keeps_the_finished_cells_and_ends_the_processes(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from zeno.cli.app import main; main()"
    arguments = ["matrix", *SMALL, "--seeds", "100", "--processes", "1", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    cells = tmp_path / "out" / CELLS_FILE
    deadline = time.monotonic() + 120
    while not (cells.exists() and cells.read_text().count("\n") > 1):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the processes of the cells as well
    shown, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert f"to continue: zeno matrix --resume {tmp_path / 'out'}" in errors
    assert "label_flip" in shown
    kept = matrix.outcomes_in(tmp_path / "out").read()
    assert 1 < len(kept) < 500
    assert all(isinstance(result, Outcome) for result in kept.values())
    assert {"matrix.json", "matrix.md", "matrix-q3.png"} <= {path.name for path in (tmp_path / "out").iterdir()}
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        raise AssertionError("a process is left")


def entry(rule: str, accuracy: float | None, **changed: Any) -> Entry:
    values: dict[str, Any] = {"told": rule, "fault": "f", "faulty": 2, "n": 1, "lowest_accuracy": accuracy}
    values |= {"train_loss": 1.0, "diverged": 0, "faulty_kept": None, "skipped": 0.0, "seconds": 1.0, "errors": ()}
    return Entry(rule=rule, accuracy=accuracy, **{**values, **changed})


def grid(num_rules: int = 2) -> Grid:
    rows = [(entry(GOOD_ALONE, 0.9, fault=None),) * 3]
    rows += [(entry("mean", 0.1, diverged=1), entry("mean", 0.8), entry("mean", None, errors=("died",)))]
    rows += [(entry(f"rule_{k}", 0.7), entry(f"rule_{k}", 0.6), entry(f"rule_{k}", 0.5)) for k in range(1, num_rules)]
    return Grid("a title", 2, ("noise", "flip", "crash"), tuple(rows))


def test_tables_mark_the_best_the_diverged_and_the_failed() -> None:
    text = matrix_markdown([grid()])
    assert text.splitlines()[-5:] == [
        "| rule | noise | flip | crash | worst |",
        "|---|---:|---:|---:|---:|",
        f"| {GOOD_ALONE} | 90.0 | 90.0 | 90.0 | 90.0 |",
        "| mean | 10.0\\* | **80.0** | failed | - |",
        "| rule_1 | **70.0** | 60.0 | **50.0** | **50.0** |",
    ]
    assert np.isnan(grid().values[1, -1])  # the worst is not known: one of them failed
    assert len(matrix_tables(grid(), width=100)) == 1
    assert len(matrix_tables(grid(30), width=100)) == 3


def test_the_heat_map_shows_light_and_dark_cells_with_numbers_that_can_be_read(tmp_path: Path) -> None:
    heat_map(grid(), tmp_path / "small.png")
    heat_map(grid(12), tmp_path / "large.png")
    small, large = imread(tmp_path / "small.png"), imread(tmp_path / "large.png")
    assert large.shape[0] > small.shape[0] > 200
    assert large.shape[1] == small.shape[1] > 500
    assert len(np.unique(small.reshape(-1, 4), axis=0)) > 50
    middle = small[:, small.shape[1] // 3 : small.shape[1] * 3 // 4, :3].mean(axis=2)
    assert middle.min() < 0.1  # dark numbers
    assert middle.max() > 0.9  # and light ones


def test_each_rule_is_set_to_tolerate_as_many_faulty_workers_as_it_can() -> None:
    settings: dict[str, Any] = {"rule": ["krum", "zeno", "zeno(trim=5)"], "fault": "zero", "faulty": [4, 19]}
    used = {(place.rule, place.faulty): job.run.rule for place, (job,) in plan(settings).cells.items()}
    assert used["krum", 4] == zeno.Krum(faulty=4)
    assert used["krum", 19] == zeno.Krum(faulty=8)
    assert used["zeno", 19] == zeno.Zeno(trim=19, batch_size=64)
    assert used["zeno(trim=5)", 19] == zeno.Zeno(trim=5, batch_size=64)
    trimmed = plan({**settings, "trim": 7}).cells
    assert {job.run.rule for place, (job,) in trimmed.items() if place.rule == "zeno"} == {
        zeno.Zeno(trim=7, batch_size=64)
    }


def test_all_stands_for_everything_registered_and_equal_rules_are_taken_once(tmp_path: Path) -> None:
    everything = plan({"rule": "all", "fault": ["sign_flip(10)", "all", "sign_flip(scale=10)"], "faulty": [2, 2]})
    assert everything.rules == tuple(zeno.RULES)
    assert everything.faults == ("sign_flip(scale=10)", *zeno.FAULTS)
    assert everything.faulty == (2,)
    assert plan({"rule": ["krum", " krum", "krum(faulty=2)"], "faulty": 2}).rules == ("krum",)
    (tmp_path / "matrix.toml").write_text(everything.to_toml())
    again = plan(read_toml(tmp_path / "matrix.toml"))
    assert [job.key for job in again.jobs()] == [job.key for job in everything.jobs()]
    assert all(job.run.eval_every == job.run.steps == 200 for job in again.jobs())


MISTAKES = [
    ({"faulty": 21}, "faulty from 1 to workers = 20. Found faulty=21"),
    ({"faulty": [8, 0]}, "Found faulty=0"),
    ({"workers": 10}, "workers = 10. Found faulty=12"),
    ({"seeds": 0}, "seeds as a whole number of at least 1. Found seeds=0"),
    ({"rule": "zen"}, "Unknown rule 'zen'"),
    ({"fault": ["zeroo"]}, "Unknown fault 'zeroo'"),
    ({"rule": 3}, "each rule as text. Found 3"),
    ({"fault": []}, "at least one rule, one fault"),
    ({"stepps": 3}, "Unknown setting 'stepps'"),
    ({"optimizer": "lbfgs"}, "A run cannot use optimizer='lbfgs'"),
    ({"schedule": "steplr"}, "missing a required argument: 'step_size'"),
]


@pytest.mark.parametrize(("settings", "words"), MISTAKES, ids=[str(s) for s, _ in MISTAKES])
def test_mistakes_say_what_is_needed(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as error:
        plan(settings)
    assert words in str(error.value)


def test_a_mistake_leaves_no_folder_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in (["--task", "mnist", "--data", tmp_path / "nowhere"], ["--processes", 0], ["--model", "resnet"]):
        assert run(monkeypatch, *SMALL, *wrong, "--out", tmp_path / "out") == 2
    assert "error: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run(monkeypatch, "--resume", tmp_path) == 2
    assert "There is no matrix to resume" in capsys.readouterr().err
