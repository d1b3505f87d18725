"""The step that a run, a user's loop and ranks under torchrun share."""

import time
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zeno
from zeno.problem.oracle import LossOracle
from zeno.server.clock import Clock
from zeno.server.core import STATISTICS_SAMPLES, Core, Step
from zeno.workers.reply import NO_REPLY

TRUE = torch.tensor([1.0, 2.0])
DOWN = -TRUE  # a gradient that lowers the loss from parameters 0
INPUTS = torch.randn(STATISTICS_SAMPLES, 2, generator=torch.Generator().manual_seed(0))
X = torch.zeros(2)
LR = 0.1


@dataclass
class Samples:
    """Counts through a data set; `taken` has the purpose of each draw."""

    taken: list[tuple[str, int]] = field(default_factory=list)
    start: int = 0

    def take(self, size: int, role: str, step: int, half: int | None = None) -> zeno.Batch:
        self.taken.append((role, step))
        rows = (self.start + torch.arange(size)) % len(INPUTS)
        self.start += size
        return zeno.Batch(INPUTS[rows], INPUTS[rows] @ TRUE[:, None])


@dataclass
class FakeScorer:
    """The descent of worker i is 10 - i, whatever it sent; `added` has what arrived."""

    added: list[tuple[int, list[float]]] = field(default_factory=list)
    begun: int = 0

    def begin(self, oracle: LossOracle, size: int) -> None:
        self.begun += 1
        self.size = size

    def add(self, worker: int, candidate: Tensor) -> None:
        self.added.append((worker, candidate.tolist()))

    def descents(self) -> tuple[Tensor, dict[int, str]]:
        return 10 - torch.arange(self.size, dtype=torch.float64), {}

    def close(self) -> None: ...


def core_of(rule: zeno.Rule, scorer: FakeScorer | None = None) -> tuple[Core, Samples]:
    """Linear regression of y = x0 + 2 x1."""
    samples = Samples()
    return Core(zeno.Problem(nn.Linear(2, 1, bias=False), F.mse_loss), rule, samples, scorer), samples


def replies(*sent: Tensor | None, step: int = 0) -> list[zeno.Reply]:
    return [zeno.Reply(worker, step, one) for worker, one in enumerate(sent) if one is not None]


def received(core: Core, *sent: Tensor | None, streaming: bool = False) -> Step:
    step = Step(core, 0, len(sent), X, LR, streaming)
    step.receive(replies(*sent), range(len(sent)))
    return step


def test_late_replies_are_recorded_and_never_used() -> None:
    core, _ = core_of(zeno.Mean())
    late = zeno.Reply(0, 4, 1000 * DOWN, late=True)
    for received_first in (True, False):
        step = Step(core, 5, 2, X, LR)
        in_time = replies(DOWN, 3 * DOWN, step=5)
        step.receive([late, *in_time] if received_first else [*in_time, late], range(2))
        aggregate = step.run_rule()
        assert aggregate is not None
        assert torch.equal(aggregate.update, 2 * DOWN)
        record = step.record()
        assert (record.late, record.errors) == ([0], {})


def test_the_gradient_after_a_step_is_on_the_samples_of_the_step() -> None:
    core, samples = core_of(zeno.AutoBANT(steps=1, batch_size=16))
    oracle = Step(core, 5, 2, X, LR)._oracle
    inputs, targets = INPUTS[:16], INPUTS[:16] @ TRUE
    here, there = (2 * ((inputs @ x - targets)[:, None] * inputs).mean(dim=0) for x in (X, X - LR * DOWN))
    torch.testing.assert_close(oracle.gradient(), here)
    torch.testing.assert_close(oracle.gradient(DOWN), there)
    assert samples.taken == [("score", 5)]


def test_a_late_reply_alone_leaves_its_worker_without_a_reply() -> None:
    core, _ = core_of(zeno.Zeno(trim=1))
    step = Step(core, 5, 2, X, LR)
    step.receive([zeno.Reply(0, 4, DOWN, late=True), zeno.Reply(1, 5, DOWN)], range(2))
    step.run_rule()
    record = step.record()
    assert (record.errors, record.late, record.kept) == ({0: NO_REPLY}, [0], [False, True])


def test_replies_of_workers_that_are_not_expected_are_ignored() -> None:
    core, _ = core_of(zeno.Zeno(trim=1))
    step = Step(core, 0, 2, X, LR)
    step.receive(replies(DOWN, 5 * DOWN), [0])
    step.unasked = [1]
    aggregate = step.run_rule()
    assert aggregate is not None
    assert torch.equal(aggregate.update, DOWN)
    record = step.record()
    assert (record.errors, record.quarantined) == ({}, [1])


def test_a_row_of_an_earlier_step_is_not_used_again() -> None:
    core, _ = core_of(zeno.Zeno(trim=1))
    received(core, DOWN, DOWN).run_rule()
    step = received(core, None, -DOWN)
    aggregate = step.run_rule()
    assert aggregate is not None
    assert aggregate.kept.tolist() == [False, True]
    assert core.candidates is not None
    assert core.candidates[0].isnan().all()


def test_the_first_usable_reply_of_a_worker_counts() -> None:
    core, _ = core_of(zeno.Mean())
    step = Step(core, 0, 2, X, LR)
    step.receive([*replies(DOWN * torch.nan, DOWN), *replies(3 * DOWN, 5 * DOWN)], range(2))
    aggregate = step.run_rule()
    assert aggregate is not None
    assert torch.equal(aggregate.update, 2 * DOWN)
    assert step.errors == {}


def test_streaming_gives_the_same_aggregate_without_memory_for_all() -> None:
    sent = [DOWN, -DOWN, 2 * DOWN, None, torch.tensor([0.0, 1.0])]
    core, _ = core_of(zeno.Zeno(trim=3, batch_size=32))
    expected = received(core, *sent)
    other, _ = core_of(zeno.Zeno(trim=3, batch_size=32))
    found = received(other, *sent, streaming=True)
    one, two = expected.run_rule(), found.run_rule()
    assert one is not None
    assert two is not None
    assert one.kept.tolist() == two.kept.tolist() == [True, False, True, False, False]
    torch.testing.assert_close(two.update, one.update)
    assert found.record().scores == pytest.approx(expected.record().scores)
    assert core.candidates is not None
    assert other.candidates is None


def test_streaming_keeps_all_candidates_for_rules_that_need_them() -> None:
    core, _ = core_of(zeno.Median())
    step = received(core, DOWN, 2 * DOWN, 3 * DOWN, streaming=True)
    aggregate = step.run_rule()
    assert aggregate is not None
    assert torch.equal(aggregate.update, 2 * DOWN)


class ScoresCopies(zeno.Zeno):
    """Asks for the descents of copies: what arrived is not recognised by its place in memory."""

    def __call__(self, candidates: Tensor, oracle: zeno.Oracle | None = None, state: object = None) -> zeno.Aggregate:
        assert oracle is not None
        copies = candidates.clone()
        return zeno.Aggregate(candidates[0], torch.ones(len(candidates)), oracle.descents(copies))


def test_candidates_are_scored_as_they_arrive_by_worker_and_not_by_memory_address() -> None:
    scorer = FakeScorer()
    core, samples = core_of(ScoresCopies(trim=0), scorer)
    row = torch.empty(2)  # every reply is in the same memory
    step = Step(core, 0, 3, X, LR)
    step.receive((zeno.Reply(worker, 0, row.copy_((worker + 1) * DOWN)) for worker in (2, 0, 1)), range(3))
    assert scorer.added == [(worker, ((worker + 1) * DOWN).tolist()) for worker in (2, 0, 1)]
    assert samples.taken == [("score", 0)], "drawn for the first that arrived"
    aggregate = step.run_rule()
    assert aggregate is not None
    assert aggregate.scores is not None
    assert aggregate.scores.tolist() == [10, 9, 8]
    assert scorer.begun == 1


def test_broken_replies_are_not_scored_on_arrival() -> None:
    scorer = FakeScorer()
    core, _ = core_of(zeno.Zeno(trim=1), scorer)
    step = received(core, DOWN * torch.nan, DOWN)
    assert scorer.added == [(1, DOWN.tolist())]
    step.run_rule()
    assert step.record().scores == [None, pytest.approx(9.0, abs=0.01)]


def test_a_rule_that_must_see_all_candidates_first_is_not_scored_on_arrival() -> None:
    class Waits(ScoresCopies):
        @property
        def scores_on_arrival(self) -> bool:
            return False

    scorer = FakeScorer()
    core, _ = core_of(Waits(trim=0), scorer)
    aggregate = received(core, DOWN, -DOWN).run_rule()
    assert scorer.begun == 0
    assert aggregate is not None
    assert aggregate.scores is not None
    assert aggregate.scores[0] > 0 > aggregate.scores[1]


def test_a_skipped_step_updates_nothing_and_keeps_the_memory_of_the_rule() -> None:
    core, _ = core_of(zeno.Zeno(trim=0))
    core.state, core.statistics.due = "memory", None
    step = received(core, DOWN, None)
    assert step.run_rule() is None
    applied: list[Tensor | None] = []
    step.update(applied.append)
    assert applied == [None]
    assert (core.state, core.statistics.due) == ("memory", None)
    record = step.record()
    assert (record.kept, record.scores, record.weights, record.own) == (None, None, None, 0.0)
    assert record.skipped is not None
    assert "needs 2 usable candidates. Found 1 of 2" in record.skipped


def test_a_record_has_the_shares_in_the_update_and_who_was_not_asked() -> None:
    class Third(zeno.Rule):
        def __call__(
            self, candidates: Tensor, oracle: zeno.Oracle | None = None, state: object = None
        ) -> zeno.Aggregate:
            return zeno.Aggregate(candidates[0], torch.tensor([1 / 3, -0.5, 0.0, 0.0]).double(), own=2 / 3)

    core, _ = core_of(Third())
    step = Step(core, 0, 4, X, LR)
    step.receive(replies(DOWN, DOWN, None), range(3))
    step.unasked = [3]
    step.run_rule()
    record = step.record(faulty=[2])
    assert (record.weights, record.own) == ([0.3333, -0.5, 0.0, 0.0], 0.6667)
    assert record.kept == [True, True, False, False]
    assert (record.quarantined, list(record.errors), record.faulty) == ([3], [2], [2])


def test_running_statistics_are_computed_when_they_are_read_and_then_once() -> None:
    samples = Samples()
    problem = zeno.Problem(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)), F.mse_loss)
    core = Core(problem, zeno.Mean(), samples)
    x = problem.flat.clone()
    step = Step(core, 0, 1, x, LR)
    step.receive(replies(torch.ones(len(x))), range(1))
    step.run_rule()
    step.update(lambda update: None)
    assert samples.taken == [], "nobody has read them"
    core.statistics.refresh(x)
    core.statistics.refresh(x)
    assert samples.taken == [("statistics", 1)], "for the parameters that step 1 starts from"
    found = problem.buffers["0.running_mean"]
    torch.testing.assert_close(found, INPUTS.mean(dim=0))


def test_samples_of_running_statistics_can_be_drawn_ahead() -> None:
    samples = Samples()
    problem = zeno.Problem(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)), F.mse_loss)
    core = Core(problem, zeno.Mean(), samples)
    core.statistics.draw(3)
    core.statistics.refresh(problem.flat.clone())
    assert samples.taken == [("statistics", 3)]


def test_a_model_without_batch_norm_needs_no_samples_for_statistics() -> None:
    core, samples = core_of(zeno.Mean())
    core.statistics.draw(0)
    core.statistics.refresh(X)
    assert samples.taken == []


def test_time_in_an_inner_phase_does_not_count_for_the_outer_one() -> None:
    clock = Clock()
    with clock("rule"):
        with clock("scores"):
            time.sleep(0.05)
        with clock("scores"):
            time.sleep(0.05)
    assert clock.seconds["scores"] >= 0.1
    assert clock.seconds["rule"] < 0.05


def test_the_note_of_an_aggregate_is_on_the_record() -> None:
    class Noting(zeno.Rule):
        def __call__(
            self, candidates: Tensor, oracle: zeno.Oracle | None = None, state: object = None
        ) -> zeno.Aggregate:
            return zeno.Aggregate(candidates[0], torch.ones(2), note="gave up")

    for rule, note in ((Noting(), "gave up"), (zeno.Mean(), None)):
        own, _ = core_of(rule)
        step = Step(own, 0, 2, torch.zeros(2), 0.1)
        step.receive([zeno.Reply(worker, 0, torch.ones(2)) for worker in range(2)], range(2))
        step.run_rule()
        record = step.record()
        assert record.note == note
        assert zeno.Record.from_json(record.to_json()).note == note
