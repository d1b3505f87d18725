"""The paper's figures as runs, its claims as checks, and the command that trains the missing runs."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import zeno
from zeno.cli import app as cli
from zeno.records.files import locked
from zeno.studies import sweep
from zeno.studies.compare import WITHOUT_FAULTS
from zeno.studies.reproduction import pages, reproduce
from zeno.studies.reproduction.claims import CLAIMS, judge
from zeno.studies.reproduction.evidence import Evidence, NotRun, Place, Verdict, both, end
from zeno.studies.reproduction.figures import BASELINES, OURS, Figure, Panel, figures
from zeno.studies.reproduction.reproduce import jobs_of
from zeno.studies.reproduction.scales import SCALE_FILE, SCALES, Scale, scale_of
from zeno.studies.sweep import Job, Outcome, finished, key, missing

TINY = ["--scale", "smoke", "--epochs", "1"]
PANEL = "bit_flip/q12"


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Runs `zeno reproduce ARGUMENTS` in this process; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["zeno", "reproduce", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def curve(accuracy: float, loss: float | None = 1.0, epochs: int = 5) -> Outcome:
    """A run that was at chance until its last evaluation."""
    before = [0.1] * (epochs - 1)
    return Outcome([*range(epochs)], [*before, accuracy], [*[2.3] * (epochs - 1), loss], None, None, 0, 1.0)


def runs_of(chosen: Sequence[Figure]) -> list[zeno.Run]:
    return [job.run for job in jobs_of(chosen, Path())]


def curves_of(folder: Path) -> dict[str, Outcome]:
    return finished(reproduce.outcomes_in(folder).read())


def panels(scale: Scale) -> dict[str, Panel]:
    return {f"{figure.name}/{panel.name}": panel for figure in figures(scale) for panel in figure.panels}


# Figures


def test_every_run_is_the_papers() -> None:
    for figure in figures(SCALES["paper"]):
        for run in figure.runs:
            assert (run.workers, run.batch_size, run.steps, run.eval_every) == (20, 100, 5000, 25)
            assert (run.task, run.model) == ("cifar10", "cnn")
            disjoint = figure.name.startswith("disjoint")
            assert (run.lr, run.split) == ((0.05, zeno.Disjoint()) if disjoint else (0.1, zeno.IID()))


def test_rules_have_the_parameters_of_the_paper() -> None:
    made = panels(SCALES["small"])
    trims = {"no_faults/q0": 4, "label_flip/q8": 9, "bit_flip/q12": 13, "disjoint_label_flip/q12": 13}
    for name, trim in trims.items():
        rules = {curve: runs[0].rule for curve, runs in made[name].curves.items()}
        assert rules["zeno"] == zeno.Zeno(trim=trim, rho=5e-4, batch_size=4)
        assert rules["krum"] == zeno.Krum(faulty=min(trim, 8))
        assert rules[OURS] == zeno.ZenoAuto()
    sizes = {name: runs[0].rule for name, runs in made["batch_size/q8"].curves.items() if name.startswith("n_r")}
    assert sizes == {f"n_r = {n}": zeno.Zeno(trim=9, batch_size=n) for n in (1, 2, 4, 8, 16)}
    assert {OURS, WITHOUT_FAULTS} < set(made["rho_and_trim/rho"].curves)


def test_faulty_workers_and_repeats_are_the_papers() -> None:
    made = panels(SCALES["small"])
    for name, panel in made.items():
        for curve_name, runs in panel.curves.items():
            good = curve_name == WITHOUT_FAULTS or name.endswith("q0")
            hard = name.endswith("q12")
            assert {run.faulty for run in runs} == {0 if good else 12 if hard else 8}
            assert [run.seed for run in runs] == [0, 1, 2][: 3 if hard else 1]
    assert made["label_flip/q12"].curves["mean"][0].fault == zeno.LabelFlip()
    assert made["disjoint_bit_flip/q8"].curves["zeno"][0].fault == zeno.BitFlip()
    assert made["enlarged/q8"].curves["zeno"][0].fault == zeno.SignFlip(10)


def test_what_figures_share_is_trained_once() -> None:
    chosen = figures(SCALES["small"], ["label_flip/q8", "bit_flip/q8", "no_faults", "batch_size"])
    runs = runs_of(chosen)
    assert len(runs) == len({key(run) for run in runs}) == 5 + 5 + 5 + 4  # the mean without faults, and n_r = 4, once
    assert len({reproduce.folder_of(run) for run in runs}) == len(runs)


def test_first_repeats_come_first() -> None:
    seeds = [run.seed for run in runs_of(figures(SCALES["small"]))]
    assert seeds == sorted(seeds)
    assert set(seeds) == {0, 1, 2}


def test_the_folder_of_the_data_does_not_distinguish_runs() -> None:
    there = replace(SCALES["small"], data="/elsewhere")
    assert key(there.run()) == key(SCALES["small"].run())
    assert there.run().data == "/elsewhere"
    assert key(there.run()) != key(replace(there.run(), seed=5))


def test_results_of_an_older_version_with_fewer_settings_are_recognized() -> None:
    published = curves_of(Path(__file__).parent.parent.parent / "docs" / "reproduction" / "small")
    runs = runs_of(figures(SCALES["small"]))
    assert len(published) > 20
    assert published.keys() <= {key(run) for run in runs}


def test_scales_of_an_older_version_are_read() -> None:
    assert scale_of(Path(__file__).parent.parent.parent / "docs" / "reproduction" / "small") == SCALES["small"]


def test_the_folder_of_the_data_stays_out_of_the_settings() -> None:
    there = replace(SCALES["small"], data="/elsewhere")
    assert "elsewhere" not in there.to_toml()


def test_an_unknown_figure_raises() -> None:
    with pytest.raises(
        ValueError, match=r"There is no figure 'label_flip/q9'\. There are: no_faults, .*label_flip/q12"
    ):
        figures(SCALES["smoke"], ["label_flip/q9"])


def test_the_long_scale_is_the_papers_length_on_smaller_pictures_beside_the_server_alone() -> None:
    [figure] = figures(SCALES["long"], ["label_flip/q12"])
    [panel] = figure.panels
    names = ["mean without faults", "mean", "median", "krum", "zeno", "zeno_auto", "server alone"]
    assert list(panel.curves) == names
    assert {(run.task, run.model, run.steps) for run in figure.runs} == {("cifar10(size=16)", "small_cnn", 5_000)}
    [control] = panel.curves["server alone"]
    assert control.rule == zeno.ServerAlone(zeno.ZenoAuto().samples)
    assert "server alone" not in figures(SCALES["small"], ["label_flip/q12"])[0].panels[0].curves


# Claims


Ends = float | Sequence[float | None]  # of one run, or of several; None for one that is not finished


def evidence(accuracies: Mapping[str, Ends], losses: Mapping[str, float | None] = {}) -> Evidence:
    """One panel, a/b, with these ends of its curves."""
    base = SCALES["smoke"].run()
    runs: dict[str, tuple[zeno.Run, ...]] = {}
    found: dict[str, Outcome] = {}
    for number, (name, ends) in enumerate(accuracies.items()):
        ends = [ends] if isinstance(ends, float) else ends
        runs[name] = tuple(replace(base, seed=10 * number + k) for k in range(len(ends)))
        loss = losses.get(name, 1.0)
        found |= {key(run): curve(e, loss) for run, e in zip(runs[name], ends, strict=True) if e is not None}
    return Evidence([Figure("a", "", "", (Panel("b", "", runs),))], found)


A: Place = ("a", "b")


def test_the_winner_is_compared_with_the_best_of_the_others() -> None:
    seen = evidence({"zeno": 0.5, "mean": 0.2, "median": 0.45, "krum": 0.1})
    verdict = seen.beats(A)
    assert verdict.holds
    assert verdict.by == pytest.approx(0.05)
    assert verdict.seen == "zeno 50.0%, median 45.0%"
    assert not seen.beats(A, "mean", ["median"]).holds


def test_repeats_are_compared_seed_by_seed() -> None:
    seen = evidence({"zeno": [0.5, 0.7, 0.6], "mean": [0.3, 0.4, 0.5]})
    verdict = seen.beats(A, "zeno", ["mean"])
    assert verdict.by == pytest.approx(0.2)  # of 0.2, 0.3, 0.1
    assert verdict.error == pytest.approx(0.1 / math.sqrt(3))
    assert verdict.seen == "zeno 60.0%, mean 40.0%"


def test_repeats_that_one_curve_lacks_are_left_out_and_counted() -> None:
    seen = evidence({"zeno": [0.5, None, 0.9], "mean": [0.4, 0.2, None]})
    verdict = seen.beats(A, "zeno", ["mean"])
    assert verdict.by == pytest.approx(0.1)
    assert verdict.error is None
    assert verdict.seen == "zeno 50.0%, mean 40.0% (1 of 3 repeats)"
    assert seen.ends(seen.figures[0].panels[0])["zeno"] == pytest.approx(0.7)
    with pytest.raises(NotRun, match="a/b, zeno, mean"):
        evidence({"zeno": [0.5, None], "mean": [None, 0.2]}).beats(A, "zeno", ["mean"])
    with pytest.raises(NotRun, match="a/b, mean"):
        evidence({"zeno": [0.5], "mean": [None]}).beats(A, "zeno", ["mean"])


def test_a_curve_ends_with_its_last_fifth() -> None:
    assert end([0.0] * 8 + [0.4, 0.6]) == pytest.approx(0.5)
    assert end([0.1, 0.2, 0.7]) == 0.7


@pytest.mark.parametrize(
    ("check", "by"),
    [
        (lambda e: e.close_to(A, "x", "y"), 0.03 - 0.02),
        (lambda e: e.close_to(A, "x", "z"), 0.03 - 0.20),
        (lambda e: e.not_below(A, "y", "x"), 0.03 - 0.02),
        (lambda e: e.not_below(A, "x", "z"), 0.03 + 0.20),
        (lambda e: e.keeps(A, "z", "x"), 0.30 - 0.375),
        (lambda e: e.loses(A, "z", "x", 0.7), 0.35 - 0.30),
        (lambda e: e.worst(A, "z", ["x", "y"]), 0.48 - 0.30),
        (lambda e: e.at_most_apart(A, ["x", "y", "z"], 0.05), 0.05 - 0.20),
        (lambda e: e.beats(A, "x", ["y"], margin=0.03), 0.02 - 0.03),
        (lambda e: e.leads_more(A, A, "x", ["y"]), 0.0),
        (lambda e: e.leads_more(A, A, "z", ["y"]), -0.18),
        (lambda e: both(e.beats(A, "x", ["y"]), e.beats(A, "z", ["x"])), 0.30 - 0.50),
    ],
)
def test_checks_by_hand(check: Callable[[Evidence], Verdict], by: float) -> None:
    verdict = check(evidence({"x": 0.50, "y": 0.48, "z": 0.30}))
    assert verdict.by == pytest.approx(by)
    assert verdict.holds == (by > 0)


def test_alone_converges_needs_both_sides() -> None:

    def check(seen: Evidence) -> Verdict:
        return seen.alone_converges(A)

    names = dict.fromkeys(["zeno", *BASELINES], 0.1)
    assert check(evidence(names, {"zeno": 2.0, "mean": 2.5, "median": None, "krum": 9.0})).by == pytest.approx(
        2.5 - math.log(10)
    )
    assert not check(evidence(names, {"zeno": 2.0, "mean": 2.2, "median": None, "krum": 9.0})).holds
    assert not check(evidence(names, {"zeno": None, "mean": 2.5, "median": None, "krum": 9.0})).holds


def test_no_claim_of_robustness_holds_if_nothing_is_learned() -> None:
    made = figures(SCALES["small"])
    good = {key(run): curve(0.5) for figure in made for run in figure.runs if not run.faulty}
    chance = {key(run): curve(0.1) for figure in made for run in figure.runs if run.faulty}
    found = {finding.claim.name: finding.word for finding in judge(SCALES["small"], Evidence(made, good | chance))}
    for name in (
        "n_r = 1 still works",
        "n_r matters little",
        "robust to rho",
        "robust to b",
        "mean looks fine at q = 8",
    ):
        assert found[name] == "fails", name


def test_every_claim_can_be_judged_from_the_figures() -> None:
    scale = SCALES["small"]
    made = figures(scale)
    everything = {key(run): curve(0.3) for figure in made for run in figure.runs}
    assert not [finding for finding in judge(SCALES["small"], Evidence(made, everything)) if finding.verdict is None]
    nothing = judge(SCALES["small"], Evidence(made, {}))
    assert [finding.word for finding in nothing] == ["not run"] * len(CLAIMS)


def test_a_scale_on_other_data_shows_that_it_runs_and_checks_no_claim() -> None:
    scale = SCALES["smoke"]
    made = figures(scale)
    everything = {key(run): curve(0.1) for figure in made for run in figure.runs}
    found = judge(scale, Evidence(made, everything))
    assert {finding.word for finding in found} == {"it runs"}
    assert pages.count(scale, found).startswith(f"It runs: {len(CLAIMS)} of {len(CLAIMS)} claims have the curves")
    assert "**fails**" not in pages.summary(scale, Evidence(made, everything), found)
    assert {finding.word for finding in judge(scale, Evidence(made, {}))} == {"not run"}


def test_reasons_are_given_where_a_claim_fails_and_only_there() -> None:
    scale = SCALES["small"]
    made = figures(scale)
    zeno_loses = {
        key(run): curve(0.2 if name == "zeno" else 0.4)
        for figure in made
        for panel in figure.panels
        for name, runs in panel.curves.items()
        for run in runs
    }
    by_name = {finding.claim.name: finding for finding in judge(SCALES["small"], Evidence(made, zeno_loses))}
    failed = by_name["label flip, q = 12: zeno wins"]
    assert failed.word == "fails"
    assert failed.verdict is not None
    assert failed.verdict.by == pytest.approx(-0.2 - 0.03)  # much better: by more than 3 points
    assert "Likely: scores on 4 samples" in failed.seen
    assert "Likely" not in by_name["robust to b"].seen
    assert "Likely: after 10 epochs" in by_name["no faults: as fast as mean"].seen
    few = judge(replace(scale, epochs=2), Evidence(made, zeno_loses))
    assert "Likely: after 2 epochs" in few[0].seen


# The command


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reproduce") / "out"
    with pytest.MonkeyPatch.context() as patched:
        assert command(patched, PANEL, *TINY, "--out", path) == 0
    return path


def tiny() -> Scale:
    return replace(SCALES["smoke"], epochs=1)


def test_curves_are_those_of_the_runs(folder: Path) -> None:
    curves = curves_of(folder)
    (figure,) = figures(tiny(), [PANEL])
    assert set(curves) == {key(run) for run in figure.runs}
    for name, runs in figure.panels[0].curves.items():
        run = runs[1]
        last = zeno.train(run)[-1]
        found = curves[key(run)]
        assert (found.steps, found.accuracy, found.train_loss) == ([15], [last.accuracy], [last.train_loss]), name


def test_the_page_has_claims_pictures_and_numbers(folder: Path) -> None:
    page = (folder / pages.SUMMARY_FILE).read_text()
    assert "12 of 85 runs are finished" in page
    assert all(claim.says in page for claim in CLAIMS)
    assert "![I.i.d. data, bit flip](bit_flip.png)" in page
    assert (folder / "bit_flip.png").stat().st_size > 10_000
    assert not (folder / "label_flip.png").exists()
    assert page.count("Not run.") == len(figures(tiny())) - 1
    curves = curves_of(folder)
    runs = panels(tiny())[PANEL].curves["zeno"]
    accuracy = sum(curves[key(run)].accuracy[-1] or 0 for run in runs) / 2
    assert f"| zeno | {accuracy:.1%} |" in page
    results = json.loads((folder / pages.RESULTS_FILE).read_text())
    assert results["figures"]["bit_flip"]["q12"]["zeno"] == pytest.approx(accuracy)
    assert results["figures"]["bit_flip"]["q8"]["zeno"] is None


def test_what_is_finished_is_not_trained_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (folder / reproduce.CURVES_FILE).read_text()
    with (folder / reproduce.CURVES_FILE).open("a") as file:
        file.write('{"run": "cut off')
    monkeypatch.setattr(sweep, "in_processes", lambda do, jobs, *_: iter([(jobs[0], "trained")] if jobs else []))
    assert command(monkeypatch, PANEL, "--resume", folder) == 0
    assert (folder / reproduce.CURVES_FILE).read_text() == before


@pytest.mark.slow
def test_an_interrupted_reproduction_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    arguments = [sys.executable, "-m", "zeno", "reproduce", PANEL, "--scale", "smoke"]
    process = subprocess.Popen([*arguments, "--epochs", "4", "--repeats", "1", "--processes", "1", "--out", str(out)])
    try:
        until = time.monotonic() + 120
        while not curves_of(out) and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
    scale = replace(SCALES["smoke"], epochs=4, repeats=1, repeats_of_hard=1)
    jobs = jobs_of(figures(scale, [PANEL]), out)
    left = missing(jobs, reproduce.outcomes_in(out).read())
    assert 0 < len(left) < 6
    assert "runs are finished" in (out / pages.SUMMARY_FILE).read_text()

    assert command(monkeypatch, PANEL, "--resume", out) == 0
    curves = curves_of(out)
    assert not missing(jobs, curves)
    last = zeno.train(left[0].run)  # the one that was stopped in the middle, or not begun
    assert curves[left[0].key].accuracy == [r.accuracy for r in last if r.evaluated]


def test_a_run_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    (figure,) = figures(tiny(), ["bit_flip/q8"])
    blocked = out / reproduce.RUNS / reproduce.folder_of(figure.runs[0])
    blocked.parent.mkdir(parents=True)
    blocked.write_text("not a folder")
    (out / SCALE_FILE).write_text(tiny().to_toml())
    assert command(monkeypatch, "bit_flip/q8", "--resume", out, "--processes", 1) == 1
    assert len(curves_of(out)) == len({key(run) for run in figure.runs}) - 1
    shown = capsys.readouterr().err
    assert f"1 of {len({key(run) for run in figure.runs})} runs failed, the first with " in shown
    assert f"to continue: zeno reproduce --resume {out} bit_flip/q8" in shown
    assert "runs are finished" in (out / pages.SUMMARY_FILE).read_text()
    assert blocked.name in shown.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["label_slip"], "There is no figure 'label_slip'. There are: no_faults,"),
        (["--scale", "large"], "Unknown scale 'large'. There are: paper, small, long, smoke."),
        (["--scale", "smoke", "--epochs", "0"], "A scale needs epochs of at least 1. Found epochs=0."),
        (["--scale", "smoke", "--processes", "0"], "at least one process. Found processes=0."),
        (["--data", "nowhere"], "The task cifar10 needs the file data_batch_1.bin in nowhere. Found none."),
        (["--resume", "nowhere"], "There is no reproduction to resume in nowhere."),
        (["--resume", "nowhere", "--epochs", "3"], "resumed with its own settings"),
        (["--resume", "nowhere", "--scale", "small"], "resumed with its own settings"),
        (["--scale", "smoke", "--model", "nope"], "Unknown model 'nope'"),
        (["--scale", "smoke", "--device", "cuda:9"], "Found device='cuda:9'"),
    ],
)
def test_mistakes_are_reported_before_anything_is_written(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, *arguments) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())  # before anything is written


def test_a_folder_of_another_scale_raises(folder: Path) -> None:
    with pytest.raises(ValueError, match="holds another scale"):
        reproduce.run(SCALES["smoke"], figures(SCALES["smoke"], [PANEL]), folder)


def test_a_folder_that_another_process_trains_in_raises(folder: Path) -> None:
    with locked(folder), pytest.raises(ValueError, match="Another process is writing to"):
        reproduce.run(tiny(), figures(tiny(), [PANEL]), folder)


def test_a_run_whose_folder_is_damaged_starts_over(tmp_path: Path) -> None:
    (figure,) = figures(tiny(), [PANEL])
    run = figure.runs[0]
    there = tmp_path / reproduce.folder_of(run)
    there.mkdir()
    (there / "run.toml").write_text("steps = ")
    found = sweep.measure(Job("run", run, there), lambda record: None)
    assert isinstance(found, Outcome)
    assert found.accuracy == [zeno.train(run)[-1].accuracy]


def test_the_page_starts_with_an_overview_and_the_command_that_repeats_it() -> None:
    scale = replace(SCALES["small"], model="cnn", epochs=2, repeats=1, repeats_of_hard=1)
    made = figures(scale)
    panel = panels(scale)["label_flip/q12"]
    ends = {WITHOUT_FAULTS: 0.5, "mean": 0.2, "median": 0.3, "krum": 0.1, "zeno": 0.35, OURS: 0.45}
    curves = {key(runs[0]): curve(ends[name], epochs=2) for name, runs in panel.curves.items()}
    seen = Evidence(made, curves)
    page = pages.summary(scale, seen, judge(scale, seen))
    assert "\n    zeno reproduce --scale small --model cnn --epochs 2 --repeats 1\n" in page
    assert "| I.i.d. data, label flip, q = 12 | 50.0% | 30.0% (median) | 35.0% | 45.0% |" in page
    assert "| I.i.d. data, label flip, q = 8 | 50.0% | - | - | - |" in page
    assert "| With 12 flipped Zeno performs much better than the baselines. | holds | +2.0 | zeno 35.0%, " in page
