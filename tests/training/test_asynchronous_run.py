"""Asynchronous runs in this process."""

import os
import shutil
import signal
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

import zeno
from zeno.records import toml
from zeno.records.folder import MODEL_FILE
from zeno.records.record import summarize
from zeno.training.build import make_cluster, make_problem
from zeno.training.settings import from_settings

RUN = zeno.Run(workers=6, steps=40, batch_size=20, eval_every=20, asynchronous=True, rule="mean", delay="uniform(0, 5)")


def test_a_run_is_plain_sgd_in_the_recorded_order(tmp_path: Path) -> None:
    """Made again from the arrivals: x <- x - lr * (gradient of the worker at the version that it was given)."""
    records = zeno.train(RUN, tmp_path)
    assert max(max(record.staleness.values()) for record in records) > RUN.workers
    task, problem = make_problem(RUN, torch.device("cpu"))
    with ExitStack() as stack:
        cluster = stack.enter_context(
            make_cluster(
                replace(RUN, asynchronous=False, delay="constant"), task, problem, torch.arange(len(task.train))
            )
        )
        assert isinstance(cluster, zeno.LocalCluster)
        versions = [problem.flat.clone()]
        for record in records:
            [[worker, version]] = record.arrivals or [[0, 0]]
            gradient = cluster.workers[worker].gradient(versions[version], problem.buffers, version)
            versions.append(versions[-1] - RUN.lr * gradient)
    problem.load(versions[-1])
    model = safetensors.torch.load_file(tmp_path / MODEL_FILE)
    for name, value in problem.model.state_dict().items():
        assert torch.allclose(value, model[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("rule", ["mean", "zeno_auto", "zeno(trim=1)"])
def test_the_same_run_gives_the_same_records(rule: str) -> None:
    run = replace(RUN, rule=rule, buffer=3, steps=15, delay="lognormal(1)", fault="sign_flip", faulty=2)
    records = zeno.train(run)
    assert records == zeno.train(run)
    assert records != zeno.train(replace(run, seed=1))
    assert all(len(record.arrivals or ()) == 3 for record in records)


def test_workers_reply_in_turn_without_a_delay() -> None:
    records = zeno.train(replace(RUN, delay="constant", steps=12))
    assert [record.arrivals for record in records[:6]] == [[[i, 0]] for i in range(6)]
    assert [record.arrivals for record in records[6:]] == [[[i, i + 1]] for i in range(6)]


def test_a_slow_worker_does_not_hold_up_the_others() -> None:
    records = zeno.train(replace(RUN, delay="slow(10, on=1)", steps=51))
    counts = [sum([worker, 0] == [one[0], 0] for r in records for one in r.arrivals or ()) for worker in range(6)]
    assert counts == [10, 10, 10, 10, 10, 1]
    assert records[50].staleness == {5: 50}


def test_worker_momentum_is_the_average_of_a_workers_own_gradients() -> None:
    run = replace(RUN, workers=1, steps=8, delay="constant")
    assert zeno.train(replace(run, worker_momentum=0.0)) != zeno.train(replace(run, worker_momentum=0.9))
    synchronous = replace(run, asynchronous=False, worker_momentum=0.9)
    alone, other = zeno.train(replace(run, worker_momentum=0.9)), zeno.train(synchronous)
    assert [r.train_loss for r in alone] == [r.train_loss for r in other]  # one worker: the same steps


def test_a_single_worker_without_delay_is_a_synchronous_run() -> None:
    run = replace(RUN, workers=1, steps=20, delay="constant", optimizer="adam", schedule="steplr(step_size=5)")
    records = zeno.train(run)
    expected = zeno.train(replace(run, asynchronous=False))
    assert [replace(record, arrivals=None) for record in records] == expected


def test_settings_of_asynchronous_runs_need_one() -> None:
    with pytest.raises(ValueError, match=r"Only an asynchronous run has buffer. Found buffer=2 with"):
        zeno.Run(buffer=2)
    with pytest.raises(ValueError, match=r"Only an asynchronous run has delay"):
        zeno.Run(delay="uniform(0, 1)")
    with pytest.raises(ValueError, match=r"The setting buffer must be at most workers=3. Found buffer=4"):
        zeno.Run(workers=3, asynchronous=True, buffer=4)
    with pytest.raises(ValueError, match=r"Unknown delay 'unifrom'. Did you mean uniform?"):
        zeno.Run(asynchronous=True, delay="unifrom(0, 1)")


def test_a_rule_that_needs_more_candidates_than_the_buffer_is_an_error_at_once() -> None:
    with pytest.raises(ValueError, match=r"Zeno needs more than trim candidates. Found 2 with trim=4"):
        zeno.train(replace(RUN, rule="zeno(trim=4)", buffer=2))


def test_settings_are_written_and_read_back() -> None:
    run = replace(RUN, buffer=2, max_staleness=7, staleness_discount=0.5, delay="slow(3.0, on=2)")
    text = run.to_toml()
    assert 'delay = "slow(factor=3.0, on=2)"' in text
    assert from_settings(toml.loads(text)) == run


def test_a_resumed_run_continues_and_asks_all_workers_again(tmp_path: Path) -> None:
    run = replace(RUN, buffer=2, rule="zeno_auto", fault="inner_product", faulty=2, worker_momentum=0.5)
    first = zeno.train(replace(run, steps=17), tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    resumed = zeno.train(run, tmp_path / "a", resume=True)
    assert resumed[:17] == first
    assert len(resumed) == run.steps
    versions = {worker: version for record in reversed(resumed[17:]) for worker, version in record.arrivals or ()}
    assert versions == dict.fromkeys(range(6), 17)  # the first arrival of every worker after the interrupt
    assert zeno.train(run, tmp_path / "b", resume=True) == resumed


def test_a_run_that_sigterm_ends_can_be_resumed(tmp_path: Path) -> None:
    run = replace(RUN, buffer=2)

    def stop(record: zeno.Record) -> None:
        if record.step == 9:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        zeno.train(run, tmp_path, on_record=stop)
    records = zeno.train(run, tmp_path, resume=True)
    assert [record.step for record in records] == list(range(run.steps))
    assert min(version for record in records[10:] for _, version in record.arrivals or ()) == 10


def test_workers_that_only_send_garbage_do_not_use_up_the_steps() -> None:
    run = replace(RUN, workers=8, buffer=4, fault="garbage(on=3)+crash(on=2)", faulty=5, delay="lognormal(1)")
    records = zeno.train(run)
    assert not any(record.skipped for record in records)
    assert sum(len(record.errors) for record in records) > 0
    assert {sum(record.kept or ()) for record in records[5:]} == {3}  # the workers to count on


def test_the_mean_keeps_every_faulty_candidate() -> None:
    """Faulty workers that did not arrive at an update sent no candidate that could be kept."""
    summary = summarize(zeno.train(replace(RUN, buffer=2, fault="sign_flip", faulty=2)))
    assert summary.faulty_kept == 1.0
    assert summary.faulty_among_kept is not None
    assert 0 < summary.faulty_among_kept < 1


def test_a_staleness_bound_makes_nobody_suspect() -> None:
    ledger = zeno.ledger_of(zeno.train(replace(RUN, steps=100, max_staleness=5)), RUN.workers)
    assert min(row.errors["stale"] for row in ledger.rows) >= 2
    assert ledger.suspects == []


def test_redrawn_faults_are_those_of_the_step_at_which_a_worker_was_asked() -> None:
    run = replace(RUN, fault="zero", faulty=2, redraw=True, rule="fltrust", delay="lognormal(1)")
    who = run.faulty_workers()
    for record in zeno.train(run):
        [[worker, version]] = record.arrivals or [[0, 0]]
        assert (worker in (record.faulty or ())) == (worker in who(version))
        assert record.lengths is not None
        assert (record.lengths[worker] is None) == (worker in who(version))  # a zero has no length to compare


def test_quarantine_leaves_suspects_without_a_ticket() -> None:
    run = replace(RUN, workers=8, buffer=4, steps=90, fault="crash", faulty=2, quarantine=True, batch_size=5)
    records = zeno.train(run)
    late = [worker for record in records[30:90] for worker, _ in record.arrivals or ()]
    assert late.count(0) + late.count(1) == 0
    early = [worker for record in records[:20] for worker, _ in record.arrivals or ()]
    assert early.count(0) + early.count(1) > 0


MANY_FAULTY = zeno.Run(
    workers=10,
    steps=300,
    eval_every=300,
    asynchronous=True,
    buffer=5,
    delay="uniform(0, 10)",
    faulty=6,
    server_data=0.05,
    rule="zeno_auto",
)


@pytest.fixture(scope="module")
def good_alone() -> float:
    """The accuracy of the good workers alone: the others never send anything."""
    return zeno.train(replace(MANY_FAULTY, fault="crash", rule="mean(least=1)"))[-1].accuracy or 0.0


@pytest.mark.parametrize("fault", ["label_flip", "alie"])
def test_a_faulty_majority_costs_at_most_3_points(fault: str, good_alone: float) -> None:
    accuracy = zeno.train(replace(MANY_FAULTY, fault=fault))[-1].accuracy
    assert accuracy is not None
    assert accuracy >= good_alone - 0.03 > 0.85, "the mean ends at 0.6 % with flipped labels"
