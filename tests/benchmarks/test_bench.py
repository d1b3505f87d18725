"""The benchmarks measure what they claim to measure."""

import json
import math
import re
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import zeno
from benchmarks import asynchronous, cluster, cost, rules, show, steps
from benchmarks.__main__ import app
from benchmarks.clock import Contender, best_milliseconds
from benchmarks.cost import GRADIENT, STATISTICS, Cost
from benchmarks.rules import Timing
from zeno.rules import PRE_AGGREGATORS, RULES, Krum, Median, Zeno
from zeno.rules.linalg import kernels


def test_contenders_take_turns_and_what_they_need_is_not_timed() -> None:
    calls: list[str] = []

    def prepare() -> str:
        time.sleep(0.02)
        return "prepared"

    best = best_milliseconds(
        {
            "a": Contender(lambda prepared: calls.append(f"a {prepared}"), prepare),
            "b": Contender(lambda _: calls.append("b")),
        },
        rounds=2,
    )
    assert calls == ["a prepared", "b"] * 3
    assert best["a"] < 20


def test_a_contender_that_takes_too_long_sits_out() -> None:
    calls: list[int] = []

    def slow(_: object) -> None:
        calls.append(1)
        time.sleep(0.03)

    best = best_milliseconds({"slow": Contender(slow)}, rounds=9, most_seconds=0.02)
    assert len(calls) == 1
    assert 30 <= best["slow"] < math.inf


def test_every_rule_is_in_the_benchmark() -> None:
    parts = {part for name in rules.rules() for part in name.split("+")}
    assert set(RULES) <= parts
    assert parts <= set(RULES) | set(PRE_AGGREGATORS)
    assert set(rules.IN_THE_TABLE) <= set(rules.rules())


def test_kernels_of_the_table_are_those_that_its_rules_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = set()
    monkeypatch.setattr(kernels, "suits", lambda candidates: True)
    monkeypatch.setattr(kernels, "find", lambda columns, n: asked.add((columns, n)))
    monkeypatch.setattr(kernels, "note", lambda columns, n, seconds: None)
    candidates = torch.randn(20, 50)
    for name in rules.IN_THE_TABLE:
        rules.rules()[name](candidates)
    assert asked == set(rules.KERNELS)


def test_a_speedup_counts_only_peers_that_compute_the_same() -> None:
    timing = Timing("krum", 20, 100, 10.0, 5.0, peers={"a": 20.0, "b": 50.0}, differs={"a": "something else"})
    assert timing.speedup == 5.0
    assert timing.over_limit == 2.0
    assert Timing("krum", 20, 100, 10.0, 5.0).speedup is None


def test_the_command_writes_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZENO_COMPILE", "0")
    monkeypatch.setattr(show, "GROWTH", [(10, 500), (30, 200)])
    monkeypatch.setattr(rules, "make_kernels", lambda say: None)
    console, threads = Console(record=True, width=200), torch.get_num_threads()
    for part in ("rules", "growth", "nan"):
        file = tmp_path / "deep" / f"{part}.json"
        show.run(part, [300], 1, file, console)
        assert part in json.loads(file.read_text())
    assert torch.get_num_threads() == threads
    text = console.export_text()
    assert "20 workers, 300 parameters" in text
    assert "m=30 d=2e+02" in text
    assert "geometric_median" in text
    with pytest.raises(
        ValueError,
        match=r"There is no benchmark 'speed'\. There are: rules, growth, steps, cost, zeno_auto, cluster, ",
    ):
        show.run("speed", [300], 1, None, console)


def test_the_benchmarks_run_as_a_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(show, "_measure", lambda part, sizes, console: sizes)
    found = CliRunner().invoke(app, ["growth", "--size", "300", "--json", str(tmp_path / "growth.json")])
    assert found.exit_code == 0, found.output
    assert json.loads((tmp_path / "growth.json").read_text())["growth"] == [300]
    assert CliRunner().invoke(app, ["speed"]).exit_code == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_rule_is_moved_by_one_bad_worker_of_seven(value: float) -> None:
    assert {row["rule"]: row["zeno"] for row in rules.one_bad_worker_of_seven(value)} == dict.fromkeys(
        rules.rules(), "as without it"
    )


def test_what_the_paper_counts_comes_to_the_same_as_the_rules() -> None:
    problem = steps.paper_problem("small_cnn")
    x, candidates, batch = problem.flat.clone(), steps.paper_candidates(problem, 11), steps.samples(2)
    twin = steps.plain(problem.model)
    ours = Zeno(cost.TRIM, cost.RHO, 2)(candidates, problem.at(x, steps.LR, batch)).update
    torch.testing.assert_close(cost.plain_zeno(twin, x, candidates, batch), ours)
    torch.testing.assert_close(cost.plain_median(candidates), Median()(candidates).update)
    assert torch.equal(cost.plain_krum(candidates), Krum(cost.TRIM)(candidates).update)


def test_claims_on_the_cost_are_judged_by_ratios() -> None:
    ours = {GRADIENT: 100.0, STATISTICS: 80.0, "median": 2.0, "krum": 4.0, "zeno, n_r=4": 30.0}
    plain = {"median": 10.0, "krum": 50.0, "zeno, n_r=4": 40.0}
    median, krum, worker, with_statistics = Cost("cnn", 10, 20, 100, 1000, ours, plain).claims()
    assert median.verdicts() == "here 15 x, fails; in plain torch 4 x, holds"
    assert krum.verdicts() == "here 7.5 x, fails; in plain torch 0.8 x, holds"
    assert worker.verdicts() == "here 0.3 x, holds; in plain torch 0.4 x, holds"
    assert with_statistics.verdicts() == "here 1.1 x, fails; in plain torch 1.2 x, fails"


def test_the_cost_of_everything_is_measured_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = cost.measure("small_cnn", workers=11, worker_samples=2, samples=(1, 4), rounds=1)
    assert measured.parameters == 82_746
    convolutions = (3 * 16 * 32**2 + 16 * 16 * 32**2 + 16 * 32 * 16**2 + 32 * 32 * 16**2) * 9
    assert measured.multiplications == convolutions + 32 * 8 * 8 * 32 + 32 * 10
    assert set(measured.ours) - {GRADIENT, STATISTICS} == set(measured.plain)
    monkeypatch.setattr(rules, "make_kernels", lambda say, kernels: None)
    monkeypatch.setattr(show, "COST_OF", ("small_cnn",))
    monkeypatch.setattr(cost, "measure", lambda model: measured)
    console, file = Console(record=True, width=200), tmp_path / "cost.json"
    show.run("cost", [300], 1, file, console)
    (found,) = json.loads(file.read_text())["cost"]
    assert found["ours"] == measured.ours
    text = console.export_text()
    for line in (*measured.ours, *(f"{claim['text']}: {claim['verdicts']}" for claim in found["claims"])):
        assert line in text


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")
def test_collecting_on_ray_is_measured_beside_a_bare_loop() -> None:
    found = cluster.engine(workers=2, size=1000, rounds=2)
    assert (found["workers"], found["actors"]) == (2, 2)
    assert found["engine_ms"] > 0
    assert found["bare_loop_ms"] > 0
    assert found["ratio"] > 0


def test_a_ratio_is_of_neighbouring_runs() -> None:
    found = cluster.beside({"a": [2.0, 20.0, 6.0], "b": [1.0, 10.0, 2.0]}, "a", "b")
    assert found == {"a_ms": 6.0, "b_ms": 2.0, "ratio": 2.0}


def test_without_ray_all_leaves_the_cluster_out_with_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(show, "PARTS", ("cluster",))
    monkeypatch.setattr(show, "find_spec", lambda package: None)
    show.run("all", [300], 1, None, Console())
    assert capsys.readouterr().err == "note: cluster is left out: Ray is not installed\n"


def test_faults_of_asynchronous_runs_are_measured_beside_the_good_workers(capsys: pytest.CaptureFixture[str]) -> None:
    asynchronous.faults("digits", None, ["zero"], steps=4)
    first, *_, row = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"good workers alone [\d.]+, server alone [\d.]+", first)
    assert re.fullmatch(r"\| `zero` \| [\d.]+ \| [\d.]+ \|", row)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")
def test_a_slow_worker_is_measured_beside_the_others() -> None:
    """Times depend on the machine, and their ratio does not: that of the seven others is as good as all of it."""
    found = asynchronous.slow_worker(gradient_seconds=0.5, seconds=5.0)
    assert found["ratio"] > 0.9
    assert found["updates_per_second"] > 3 * found["synchronous_steps_per_second"]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")
def test_records_on_ray_have_the_seconds_since_training_began() -> None:
    run = zeno.Run(workers=2, steps=3, batch_size=8, rule="mean", eval_every=10**6)
    found = asynchronous.on_ray(run, [1.0, 1.0])
    assert [second > i + 1 for i, (second, _) in enumerate(found)] == [True] * 3
