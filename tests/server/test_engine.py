"""One step of the server, with workers that send anything."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zeno
from support.fake_cluster import FakeCluster
from zeno.server.core import STATISTICS_SAMPLES
from zeno.server.engine import Engine
from zeno.server.samples import DatasetSamples
from zeno.workers.reply import ErrorKind

GOOD = torch.tensor([1.0, 2.0])


def server(sent: Sequence[Any], rule: zeno.Rule, lr: float = 0.1) -> Engine:
    """Linear regression of y = x0 + 2 x1 from weights 0: the gradient points to -(1, 2)."""
    problem = zeno.Problem(nn.Linear(2, 1, bias=False), F.mse_loss)
    params = nn.Parameter(torch.zeros(2))
    inputs = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    dataset = zeno.Dataset(inputs, inputs @ GOOD[:, None])
    optimizer = torch.optim.SGD([params], lr=lr)
    return Engine(problem, rule, FakeCluster(sent), dataset, torch.arange(100), optimizer)


def samples_of(engine: Engine) -> DatasetSamples:
    assert isinstance(engine.core.samples, DatasetSamples)
    return engine.core.samples


def test_a_step_moves_the_parameters_by_the_update_of_the_rule() -> None:
    one = server([GOOD, 3 * GOOD], zeno.Mean())
    outcome = one.step(0)
    assert outcome.errors == {}
    assert outcome.skipped is None
    torch.testing.assert_close(one.params.detach(), -0.1 * 2 * GOOD)
    assert set(outcome.seconds) == {"gradients", "scores", "rule", "update"}


DIED = zeno.ReplyError(ErrorKind.DIED, "died")
BROKEN = {
    "silence": (None, ErrorKind.LATE, "sent no reply"),
    "death": (zeno.Reply(1, 0, None, DIED), ErrorKind.DIED, "died"),
    "a string": ("hello", ErrorKind.MALFORMED, "sent str, expected a tensor"),
    "too many numbers": (torch.ones(12), ErrorKind.MALFORMED, "sent numbers of shape [12], expected [2]"),
    "another shape": (torch.ones(2, 1), ErrorKind.MALFORMED, "sent numbers of shape [2, 1], expected [2]"),
    "float64": (
        torch.ones(2, dtype=torch.float64),
        ErrorKind.MALFORMED,
        "sent torch.float64, torch.strided, expected torch.float32, torch.strided",
    ),
    "a sparse tensor": (
        torch.ones(2).to_sparse(),
        ErrorKind.MALFORMED,
        "sent torch.float32, torch.sparse_coo, expected torch.float32, torch.strided",
    ),
    "nan": (torch.tensor([1.0, math.nan]), ErrorKind.NOT_FINITE, "sent numbers that are not finite"),
    "inf": (torch.tensor([-math.inf, 1.0]), ErrorKind.NOT_FINITE, "sent numbers that are not finite"),
    "an old step": (zeno.Reply(1, 3, GOOD), ErrorKind.MALFORMED, "sent the gradient of step 3, expected step 0"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_reply_is_dropped_with_its_reason_on_record(name: str) -> None:
    sent, kind, text = BROKEN[name]
    one = server([-GOOD, sent, -GOOD, -GOOD], zeno.Zeno(trim=1))
    outcome = one.step(0)
    assert outcome.errors == {1: zeno.ReplyError(kind, text)}
    assert outcome.aggregate is not None
    assert outcome.aggregate.kept.tolist() == [True, False, True, True]
    torch.testing.assert_close(one.params.detach(), 0.1 * GOOD)


def test_more_broken_replies_than_trim_skip_the_step_and_say_so() -> None:
    one = server([-GOOD, None, "hello", -GOOD], zeno.Zeno(trim=1))
    outcome = one.step(0)
    assert outcome.aggregate is None
    assert outcome.skipped is not None
    assert "needs 3 usable candidates. Found 2 of 4" in outcome.skipped
    assert one.params.tolist() == [0.0, 0.0]
    assert {i: str(error) for i, error in outcome.errors.items()} == {
        1: "sent no reply",
        2: "sent str, expected a tensor",
    }


def test_zeno_scores_on_the_servers_samples() -> None:
    outcome = server([GOOD, -GOOD, 5 * GOOD], zeno.Zeno(trim=2)).step(0)
    assert outcome.aggregate is not None
    assert outcome.aggregate.kept.tolist() == [False, True, False]
    assert outcome.seconds["scores"] > 0


def test_scores_use_the_learning_rate_of_the_optimizer() -> None:
    # On the way from 0 to (1, 2), lr = 0.5 * 2 * GOOD hits the optimum; ten times as far overshoots it.
    assert server([-2 * GOOD], zeno.Zeno(trim=0), lr=0.5).step(0).aggregate.scores[0] > 0  # type: ignore[union-attr,index]
    assert server([-2 * GOOD], zeno.Zeno(trim=0), lr=5.0).step(0).aggregate.scores[0] < 0  # type: ignore[union-attr,index]


def test_a_rule_gets_back_the_state_that_it_returned() -> None:
    seen = []

    class Counting(zeno.Rule):
        def __call__(
            self, candidates: Tensor, oracle: zeno.Oracle | None = None, state: object = None
        ) -> zeno.Aggregate:
            seen.append(state)
            return zeno.Aggregate(candidates[0].clone(), torch.ones(1), state=len(seen))

    one = server([GOOD], Counting())
    one.step(0)
    one.step(1)
    assert seen == [None, 1]


def test_a_rule_may_ask_for_descents_and_for_the_gradient_on_the_same_samples_drawn_when_it_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[Tensor] = []
    seen: list[Any] = []
    batch = zeno.Dataset.batch

    def spy(self: zeno.Dataset, rows: Tensor) -> zeno.Batch:
        drawn.append(rows)
        return batch(self, rows)

    monkeypatch.setattr(zeno.Dataset, "batch", spy)

    class Asking(zeno.Rule):
        samples = 8

        def __call__(
            self, candidates: Tensor, oracle: zeno.Oracle | None = None, state: object = None
        ) -> zeno.Aggregate:
            assert oracle is not None
            seen.append((len(drawn), oracle.lr, oracle.gradient(), oracle.descents(candidates), len(drawn)))
            return zeno.Aggregate(candidates[0], torch.ones(1))

    one = server([-GOOD], Asking(), lr=1e-3)
    outcome = one.step(0)
    before, lr, gradient, descents, after = seen[0]
    assert (before, after) == (0, 1)
    assert len(drawn[0]) == 8
    assert lr == 1e-3
    own = batch(samples_of(one).dataset, drawn[0])
    torch.testing.assert_close(gradient, (2 * (0 - own.targets) * own.inputs).mean(dim=0))  # of (w x - y)^2 at w = 0
    assert descents.item() == pytest.approx(lr * (gradient @ -GOOD).item(), rel=0.02)
    assert outcome.seconds["scores"] > 0


def test_no_samples_are_drawn_for_a_rule_that_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(zeno.Dataset, "batch")
    assert server([GOOD], zeno.Mean()).step(0).seconds["scores"] == 0


def test_a_rule_that_asks_without_stating_its_samples_raises() -> None:
    class Asking(zeno.Rule):
        def __call__(
            self, candidates: Tensor, oracle: zeno.Oracle | None = None, state: object = None
        ) -> zeno.Aggregate:
            assert oracle is not None
            return zeno.Aggregate(oracle.gradient(), torch.zeros(1))

    with pytest.raises(ValueError, match=r"needs samples of the server\. Found samples=0 in .* Set the attribute"):
        server([GOOD], Asking()).step(0)


def test_running_statistics_are_refreshed_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    refreshed = []
    refresh = zeno.Problem.refresh

    def spy(self: zeno.Problem, params: Tensor, inputs: Tensor) -> None:
        refreshed.append(len(inputs))
        refresh(self, params, inputs)

    monkeypatch.setattr(zeno.Problem, "refresh", spy)
    torch.manual_seed(0)
    problem = zeno.Problem(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), F.mse_loss)
    params = nn.Parameter(problem.flat.clone())
    inputs = torch.randn(100, 2)
    dataset = zeno.Dataset(inputs, inputs.sum(dim=1, keepdim=True))
    cluster = FakeCluster([torch.randn(problem.size)])
    one = Engine(problem, zeno.Mean(), cluster, dataset, torch.arange(100), torch.optim.SGD([params], lr=0.3))
    for number in range(3):
        one.step(number)
    assert refreshed == [], "the mean reads none"
    one.refresh_statistics()
    one.refresh_statistics()
    assert refreshed == [STATISTICS_SAMPLES], "once for the same parameters"
    with torch.no_grad():
        features = inputs @ params[:6].view(3, 2).T + params[6:9]
    torch.testing.assert_close(problem.buffers["1.running_mean"], features.mean(dim=0), atol=0.3, rtol=0.1)
    assert not torch.allclose(problem.buffers["1.running_mean"], torch.zeros(3), atol=0.3)
    one.step(3)
    one.state_to_save()
    assert len(refreshed) == 2, "saving reads them"
    few = Engine(problem, zeno.Zeno(0, batch_size=4), cluster, dataset, torch.arange(100), one.optimizer)
    few.step(0)
    assert len(refreshed) == 3, "scores on few samples read them"
    many = Engine(problem, zeno.Zeno(0, batch_size=32), cluster, dataset, torch.arange(100), one.optimizer)
    many.step(0)
    assert len(refreshed) == 3, "scores on many samples use batch statistics"


def test_a_trial_returns_the_update_of_the_rule_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str, int]] = []
    take = DatasetSamples.take

    def taking(self: DatasetSamples, size: int, role: str, step: int, half: int | None = None) -> zeno.Batch:
        drawn.append((role, size))
        return take(self, size, role, step, half)

    monkeypatch.setattr(DatasetSamples, "take", taking)
    one = server([GOOD, 3 * GOOD, -GOOD], zeno.Zeno(trim=1, batch_size=8))
    found = one.trial(torch.stack([-GOOD, -3 * GOOD, GOOD]), 0)
    assert found is not None
    torch.testing.assert_close(found, -2 * GOOD)
    assert one.params.tolist() == [0.0, 0.0]
    outcome = one.step(0)
    assert outcome.aggregate is not None
    assert outcome.aggregate.kept.tolist() == [True, False, True]
    assert drawn == [("trial", 8), ("score", 8)], "a step is judged on samples that no trial has seen"


@pytest.mark.parametrize(
    "rule", [zeno.Zeno(trim=1, batch_size=8), zeno.FLTrust(batch_size=8), zeno.ZenoAuto(samples=8)]
)
def test_the_trials_of_a_step_share_their_samples_and_do_not_influence_each_other(
    rule: zeno.Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[str, int, int, int | None]] = []
    gradients: list[int] = []
    take, gradient_here = DatasetSamples.take, zeno.Problem.gradient_here

    def taking(self: DatasetSamples, size: int, role: str, step: int, half: int | None = None) -> zeno.Batch:
        drawn.append((role, step, size, half))
        return take(self, size, role, step, half)

    def counting(self: zeno.Problem, batch: zeno.Batch) -> Tensor:
        gradients.append(len(batch.targets))
        return gradient_here(self, batch)

    sent = [torch.stack([scale * GOOD, 3 * GOOD, -GOOD]) for scale in (1, -1, -5)]
    alone = [server([GOOD, 3 * GOOD, -GOOD], rule).trial(candidates, 0) for candidates in sent]
    monkeypatch.setattr(DatasetSamples, "take", taking)
    monkeypatch.setattr(zeno.Problem, "gradient_here", counting)
    one = server([GOOD, 3 * GOOD, -GOOD], rule)
    for candidates, expected in zip(sent, alone, strict=True):
        found = one.trial(candidates, 0)
        assert found is not None
        assert expected is not None
        assert torch.equal(found, expected)
    assert len(drawn) == len(set(drawn)) > 0, "no samples are drawn twice"
    assert len(gradients) <= (2 if isinstance(rule, zeno.ZenoAuto) else 1)
    before = drawn.copy()
    one.trial(sent[0], 1)
    assert {step for _, step, *_ in drawn[len(before) :]} == {1}, "another step has other samples"


def test_a_trial_after_a_step_is_at_the_new_parameters() -> None:
    one = server([-GOOD, -GOOD, -GOOD], zeno.FLTrust(batch_size=8))
    candidates = torch.stack([-GOOD, -GOOD, -GOOD])
    first = one.trial(candidates, 0)
    state = one.state_to_save()
    start = state["params"].clone()
    one.step(0)
    second = one.trial(candidates, 0)
    one.load_state({**state, "params": start})
    third = one.trial(candidates, 0)
    assert first is not None
    assert second is not None
    assert third is not None
    assert not torch.equal(first, second), "the server's gradient has changed, and the update with it"
    assert torch.equal(first, third)


def test_a_trial_uses_the_state_of_the_rule_and_does_not_change_it() -> None:
    one = server([GOOD, GOOD], zeno.CenteredClipping(radius=0.1))
    one.step(0)
    state, candidates = one.core.state, one.core.candidates
    assert candidates is not None
    first, second = one.trial(100 * candidates, 1), one.trial(100 * candidates, 1)
    assert first is not None
    assert second is not None
    assert torch.equal(first, second)
    assert one.core.state is state
    fresh = server([GOOD, GOOD], zeno.CenteredClipping(radius=0.1)).trial(100 * candidates, 1)
    assert fresh is not None
    assert not torch.equal(first, fresh)


def test_a_trial_that_would_skip_the_step_returns_none() -> None:
    one = server([GOOD, GOOD, GOOD], zeno.Zeno(trim=1))
    candidates = torch.stack([GOOD, GOOD * math.nan, GOOD * math.nan])
    assert one.trial(candidates, 0) is None


def test_the_order_of_buckets_follows_from_the_seed_and_the_samples_of_the_server() -> None:
    rule = zeno.chain(zeno.Bucketing(size=2), zeno.Mean())
    problem = zeno.Problem(nn.Linear(2, 1, bias=False), F.mse_loss)
    inputs = torch.randn(100, 2)
    dataset = zeno.Dataset(inputs, inputs @ GOOD[:, None])

    def state(samples: Tensor, seed: int) -> object:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
        return Engine(problem, rule, FakeCluster([GOOD]), dataset, samples, optimizer, seed=seed).core.state

    own = torch.arange(0, 50)
    assert state(own, 1) == state(own, 1)
    assert state(own, 2) != state(own, 1)
    assert state(own + 50, 1) != state(own, 1)
