"""Why a worker is suspect: it fails, it is too large, it harms; and who is left out without a verdict."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import zeno
from zeno.records.ledger import Ledger, ledger_of
from zeno.records.record import Record
from zeno.workers.reply import ErrorKind, ReplyError

DIED = ReplyError(ErrorKind.DIED, "died")


def ledger_with_failures(failures: Sequence[Sequence[int]], workers: int, **settings: Any) -> Ledger:
    """The ledger of a run whose workers failed at these steps, under a rule that does not rank."""
    ledger = Ledger(workers, **settings)
    for step, failed in enumerate(failures):
        kept = [worker not in failed for worker in range(workers)]
        ledger.add(Record(step, 0.1, kept, None, errors=dict.fromkeys(failed, DIED)))
    return ledger


@pytest.mark.parametrize("workers", [2, 4, 20])
def test_a_worker_that_dies_at_one_step_in_ten_is_named_within_30_steps(workers: int) -> None:
    ledger = ledger_with_failures([[1] if step % 10 == 5 else [] for step in range(30)], workers)
    assert ledger.suspects == [1]
    row = ledger.rows[1]
    assert (row.verdict, row.reason, row.errors) == ("suspect", "failing", {"died": 3})


def test_the_other_workers_do_not_hide_a_failing_one() -> None:
    """Three of four fail, each at other steps."""
    failures = [[worker for worker in range(3) if (step + 3 * worker) % 10 == 0] for step in range(40)]
    assert ledger_with_failures(failures, 4).suspects == [0, 1, 2]


def test_the_factors_of_a_failure_are_worked_out_by_hand() -> None:
    """Of the unit for failures, 1/2 is bet at the first step and 1/6 at the second, a third on each rate."""
    failed = ledger_with_failures([[0], []], 1)
    rates = [0.001**0.5, 0.1, 0.001**0.1]
    at_first = [0.5 * rate / 0.001 for rate in rates]
    at_second = [(money + 1 / 6) * (1 - rate) / 0.999 for money, rate in zip(at_first, rates, strict=True)]
    money = sum(at_second) / 3 + (1 - 1 / 2 - 1 / 6)
    assert failed._failing.money[0] == pytest.approx(money)
    assert failed.rows[0].evidence == pytest.approx((sum(at_first) / 3 + 1 / 2 + 2) / 3), "the highest so far"


def test_healthy_workers_that_fail_at_the_allowed_rate_are_rarely_named() -> None:
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(40):
        failures = [np.flatnonzero(rng.random(8) < 0.01).tolist() for _ in range(300)]
        alarms += bool(ledger_with_failures(failures, 8, error_rate=0.3, failure_rate=0.01).suspects)
    assert alarms <= 12, "30 % are allowed"


def test_the_failure_rate_says_what_a_healthy_machine_may_do() -> None:
    failures = [[1] if step % 10 == 5 else [] for step in range(200)]
    assert ledger_with_failures(failures, 4, failure_rate=0.1).suspects == []
    assert ledger_with_failures(failures, 4, failure_rate=0.01).suspects == [1]


def test_a_failing_worker_is_mended_once_it_has_not_failed_for_long() -> None:
    bad = [[1] if step % 5 == 0 else [] for step in range(100)]
    assert ledger_with_failures([*bad, *[[]] * 20], 4).suspects == [1], "too early to tell"
    row = ledger_with_failures([*bad, *[[]] * 200], 4).rows[1]
    assert (row.verdict, row.reason) == ("mended", "failing")


Cosines = Callable[[np.random.Generator, int], np.ndarray]  # (generator, step) -> [m]


def ledger_with_cosines(
    cosines: Cosines, steps: int, weights: Sequence[float], lengths: Sequence[float] | None = None, seed: int = 0
) -> Ledger:
    rng, ledger = np.random.default_rng(seed), Ledger(len(weights))
    kept = [weight > 0 for weight in weights]
    for step in range(steps):
        found = np.clip(cosines(rng, step), -1, 1).tolist()
        of_step: list[float | None] = [*lengths] if lengths is not None else [1.0] * len(weights)
        ledger.add(Record(step, 0.1, kept, None, weights=list(weights), cosines=found, lengths=of_step))
    return ledger


def around(*means: float) -> Cosines:
    return lambda rng, step: rng.normal(means, 0.3)


EQUAL = [0.25] * 4


def test_a_worker_that_points_away_from_the_servers_gradient_is_harmful() -> None:
    ledger = ledger_with_cosines(around(0.3, -0.3, 0.3, 0.0), 150, [0.5, 0, 0.5, 0])
    assert ledger.suspects == [1]
    assert ledger.rows[1].reason == "harmful"
    assert ledger.rows[1].cosine == pytest.approx(-0.3, abs=0.1)


def test_a_small_harm_counts_relative_to_the_usual_size_of_the_cosines() -> None:
    """The same signs in the same order, at a tenth of the size: the evidence is about the same."""
    large = np.random.default_rng(0).normal([0.3, -0.3, 0.3], 0.3, (60, 3)).clip(-1, 1)

    def evidence(scale: float) -> float:
        ledger = zeno.Ledger(3)
        for step, cosines in enumerate(scale * large):
            ledger.add(zeno.Record(step, 0.1, [True, False, True], None, weights=[0.5, 0.0, 0.5], cosines=[*cosines]))
        return ledger.evidence[1]

    assert evidence(1.0) > 800
    assert evidence(0.2) > evidence(1.0) / 10
    assert evidence(0.001) < 10, "cosines of about 0, as of a model that has converged, say nothing"


def test_three_kinds_of_harm_do_not_hide_each_other() -> None:
    ledger = ledger_with_cosines(around(-0.9, -0.5, -0.25, 0.3), 200, [0, 0, 0, 1])
    assert ledger.suspects == [0, 1, 2]


def test_a_worker_is_allowed_what_others_are_that_the_rule_uses() -> None:
    """With very different data, a worker helps in a mixture though its own cosine is below 0."""
    assert ledger_with_cosines(around(0.3, -0.2, -0.2, 0.3), 400, [0.3, 0.2, 0.2, 0.3]).suspects == []
    assert ledger_with_cosines(around(0.3, 0.1, -0.2, 0.3), 400, [0.3, 0.4, 0, 0.3]).suspects == [2]


def test_a_harmful_worker_that_the_rule_uses_is_no_excuse_for_itself() -> None:
    assert ledger_with_cosines(around(0.3, -0.3, 0.3, 0.3), 200, [0.25] * 4).suspects == [1]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("workers", [4, 8, 20, 100])
def test_of_runs_without_faults_at_most_one_in_a_hundred_names_a_worker(workers: int) -> None:
    """1,000 runs in which cosines are 0 on average and failures have the allowed rate: 10 are expected at most."""
    alarms = 0
    for seed in range(1000):
        rng, ledger = np.random.default_rng([workers, seed]), Ledger(workers)
        kept = [True] * (workers // 2) + [False] * (workers - workers // 2)
        weights = [2.0 * one / workers for one in kept]
        for step in range(200):
            cosines = np.clip(rng.normal(0, 0.3, workers), -1, 1).tolist()
            errors = dict.fromkeys(np.flatnonzero(rng.random(workers) < 0.001).tolist(), DIED)
            ledger.add(Record(step, 0.1, kept, None, weights=weights, cosines=cosines, errors=errors))
        alarms += any(row.verdict for row in ledger.rows)
    print(f"{workers} workers: {alarms} of 1000 runs have a suspect")
    assert alarms <= 10


def test_a_verdict_does_not_disappear_because_training_has_converged() -> None:
    def converging(rng: np.random.Generator, step: int) -> np.ndarray:
        return rng.normal(np.array([0.3, -0.4, 0.3, 0.3]) * (step < 100), 0.2)

    assert ledger_with_cosines(converging, 800, [0.4, 0, 0.3, 0.3]).suspects == [1]


@pytest.mark.parametrize("repaired", [True, False])
def test_a_worker_worse_than_others_is_mended_only_while_there_is_something_to_tell(repaired: bool) -> None:
    """In the end it scores like the others: because it was repaired, or because training has converged."""
    rng, ledger = np.random.default_rng(0), Ledger(8)
    for step in range(1200):
        left = 1.0 if repaired else max(0.0, 1 - step / 500)  # of what there is to learn
        scores = rng.normal(0, 1, 8) - np.eye(8)[1] * 5 * left * (not repaired or step < 100)
        cosines = np.clip(rng.normal(0.3 * left, 0.1, 8), -1, 1).tolist()
        kept = [worker != 1 for worker in range(8)]
        ledger.add(Record(step, 0.1, kept, scores.tolist(), weights=[one / 7 for one in kept], cosines=cosines))
        assert step != 99 or ledger.rows[1].verdict == "suspect"
    row = ledger.rows[1]
    assert (row.verdict, row.reason) == ("mended" if repaired else "suspect", "worse than others")


@pytest.mark.parametrize(
    ("weight", "others", "cosine", "suspects"),
    [
        (0.0, 0.125, 0.2, [3]),
        (0.25, 0.125, 0.2, [3]),
        (0.0, 0.125, 0.05, []),  # with different data, or faulty workers in use
        (0.25, 0.125, 0.05, []),
        (0.0, 0.0, 0.2, []),  # the others send zeros
    ],
    ids=str,
)
def test_a_low_score_is_a_fault_only_if_the_rule_uses_others_that_help(
    weight: float, others: float, cosine: float, suspects: list[int]
) -> None:
    """Worker 3 of 8 always has the lowest score."""
    ledger, rng = Ledger(8), np.random.default_rng(0)
    for step in range(300):
        scores, weights = rng.normal(size=8), [others] * 8
        scores[3], weights[3] = -9.0, weight
        kept = [one > 0 for one in weights]
        cosines = np.clip(rng.normal(cosine, 0.1, 8), -1, 1).tolist()
        ledger.add(Record(step, 0.1, kept, scores.tolist(), weights=weights, cosines=cosines))
    assert ledger.suspects == suspects


def test_a_harmful_worker_is_mended_by_evidence_that_it_helps() -> None:
    def repaired(rng: np.random.Generator, step: int) -> np.ndarray:
        return rng.normal([0.3, -0.4 if step < 100 else 0.3, 0.3, 0.3], 0.2)

    row = ledger_with_cosines(repaired, 300, [0.4, 0, 0.3, 0.3]).rows[1]
    assert (row.verdict, row.reason) == ("mended", "harmful")


def test_a_candidate_many_times_as_long_as_the_servers_gradient_is_too_large() -> None:
    ledger = ledger_with_cosines(around(0.3, 0.3, 0.3, 0.3), 5, [0.4, 0, 0.3, 0.3], lengths=[1, 100, 1, 29])
    assert ledger.suspects == [1]
    assert (ledger.rows[1].reason, ledger.rows[1].errors) == ("too large", {"too large": 5})


def test_who_is_left_out_is_said_apart_from_verdicts() -> None:
    ledger = ledger_with_cosines(around(0.3, 0.1, 0.3, 0.1), 60, [0.5, 0, 0.5, 0])
    assert [row.left_out for row in ledger.rows] == [False, True, False, True]
    expected = "No worker is suspect. Left out of nearly all updates lately, without proof of a fault: 1 and 3."
    assert str(ledger) == expected


def test_nobody_is_left_out_where_all_take_turns() -> None:
    ledger = Ledger(20)
    for step in range(100):  # as Krum keeps one of twenty
        ledger.add(Record(step, 0.1, [worker == step % 20 for worker in range(20)], None))
    assert not any(row.left_out for row in ledger.rows)


@pytest.mark.parametrize("rule", [zeno.ZenoAuto(), zeno.Zeno(trim=3, batch_size=64), zeno.FLTrust(batch_size=64)])
def test_records_compare_candidates_with_the_servers_gradient(rule: zeno.Rule) -> None:
    faults = zeno.SignFlip(on=1) + zeno.Crash(on=1) + zeno.Huge(on=1)
    run = zeno.Run(workers=6, faulty=3, fault=faults, rule=rule, steps=3, eval_every=3)
    for record in zeno.train(run):
        assert record.cosines is not None
        assert record.lengths is not None
        assert record.cosines[0] is not None
        assert record.cosines[0] < 0
        assert record.cosines[1] is None
        assert record.lengths[1] is None
        assert (record.lengths[2] or 0) > 1e20
        assert all((cosine or 0) > 0 for cosine in record.cosines[3:])
        assert all(0.2 < (length or 0) < 5 for length in record.lengths[3:])


EIGHT = zeno.Run(workers=8, rule=zeno.ZenoAuto(), steps=150, eval_every=150)


def faulty(*faults: zeno.Fault) -> dict[str, Any]:
    return {"fault": faults[0] if len(faults) == 1 else sum(faults[1:], faults[0]), "faulty": len(faults)}


@pytest.mark.parametrize(
    "faults",
    [
        (zeno.Crash(chance=0.3),),
        (zeno.NonFinite(chance=0.3),),
        (zeno.SignFlip(),),
        (zeno.SignFlip(on=1), zeno.Gaussian(on=1), zeno.LabelFlip(on=1)),
    ],
    ids=["one crashes", "one sends NaN", "one flips signs", "three kinds"],
)
def test_of_eight_workers_the_bad_ones_are_named(faults: tuple[zeno.Fault, ...]) -> None:
    found = ledger_of(zeno.train(replace(EIGHT, **faulty(*faults))), 8)
    assert found.suspects == list(range(len(faults)))


def test_of_eight_workers_with_different_data_nobody_is_named() -> None:
    assert ledger_of(zeno.train(replace(EIGHT, split=zeno.ByLabel())), 8).suspects == []


def runs_with_similar_data(bad: float, runs: int, steps: int = 150, workers: int = 4) -> list[list[int]]:
    """The suspects of simulated runs in which worker 0 scores lower by `bad` standard deviations."""
    random = np.random.default_rng(0)
    found = []
    for _ in range(runs):
        ledger = Ledger(workers, similar_data=True)
        for step in range(steps):
            scores = random.normal(size=workers)
            scores[0] -= bad
            cosines = (-0.2 + 0.2 * random.normal(size=workers)).clip(-1, 1).tolist()
            weights = [1 / workers] * workers
            ledger.add(Record(step, None, [True] * workers, scores.tolist(), weights, cosines=cosines))
        found.append(ledger.suspects)
    return found


def test_little_is_allowed_for_workers_with_similar_data() -> None:
    assert runs_with_similar_data(bad=2.0, runs=3) == [[0]] * 3
    assert sum(map(bool, runs_with_similar_data(bad=0.0, runs=40))) <= 2
