"""One step of the server, with workers that send anything."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zeno
from zeno.server.engine import Engine
from zeno.workers.cluster import NO_FAULTS, NOBODY

GOOD = torch.tensor([1.0, 2.0])


class Sending(zeno.Cluster):
    """Workers that send what they are told to; None for one that does not even reply."""

    def __init__(self, sent: Sequence[Any]) -> None:
        self.sent = sent
        self.size = len(sent)

    def gradients(
        self,
        params: Tensor,
        buffers: Mapping[str, Tensor],
        step: int,
        faults: Mapping[int, zeno.Fault] = NO_FAULTS,
        need: int = 1,
        skip: Collection[int] = NOBODY,
    ) -> Iterator[zeno.Reply]:
        for worker, gradient in reversed(list(enumerate(self.sent))):
            if isinstance(gradient, zeno.Reply):
                yield gradient
            elif gradient is not None:
                yield zeno.Reply(worker, step, gradient)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def server(sent: Sequence[Any], rule: zeno.Rule, lr: float = 0.1) -> Engine:
    """Linear regression of y = x0 + 2 x1 from weights 0: the gradient points to -(1, 2)."""
    problem = zeno.Problem(nn.Linear(2, 1, bias=False), F.mse_loss)
    params = nn.Parameter(torch.zeros(2))
    inputs = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    dataset = zeno.Dataset(inputs, inputs @ GOOD[:, None])
    optimizer = torch.optim.SGD([params], lr=lr)
    return Engine(problem, rule, Sending(sent), dataset, torch.arange(100), optimizer)


def test_a_step_moves_the_parameters_by_the_update_of_the_rule() -> None:
    one = server([GOOD, 3 * GOOD], zeno.Mean())
    outcome = one.step(0)
    assert outcome.errors == {}
    assert outcome.skipped is None
    torch.testing.assert_close(one.params.detach(), -0.1 * 2 * GOOD)
    assert set(outcome.seconds) == {"gradients", "scores", "rule", "update"}


BROKEN = {
    "silence": (None, "sent no reply"),
    "death": (zeno.Reply(1, 0, None, "died"), "died"),
    "a string": ("hello", "sent str, expected a tensor"),
    "too many numbers": (torch.ones(12), r"sent numbers of shape [12], expected [2]"),
    "another shape": (torch.ones(2, 1), r"sent numbers of shape [2, 1], expected [2]"),
    "float64": (
        torch.ones(2, dtype=torch.float64),
        "sent torch.float64, torch.strided, expected torch.float32, torch.strided",
    ),
    "a sparse tensor": (
        torch.ones(2).to_sparse(),
        "sent torch.float32, torch.sparse_coo, expected torch.float32, torch.strided",
    ),
    "nan": (torch.tensor([1.0, math.nan]), "sent numbers that are not finite"),
    "inf": (torch.tensor([-math.inf, 1.0]), "sent numbers that are not finite"),
    "an old step": (zeno.Reply(1, 3, GOOD), "sent the gradient of step 3, expected step 0"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_reply_is_out_with_its_reason_on_record(kind: str) -> None:
    sent, reason = BROKEN[kind]
    one = server([-GOOD, sent, -GOOD, -GOOD], zeno.Zeno(trim=1))
    outcome = one.step(0)
    assert outcome.errors == {1: reason}
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
    assert outcome.errors == {1: "sent no reply", 2: "sent str, expected a tensor"}


def test_zeno_scores_on_samples_of_the_servers_own() -> None:
    outcome = server([GOOD, -GOOD, 5 * GOOD], zeno.Zeno(trim=2)).step(0)
    assert outcome.aggregate is not None
    assert outcome.aggregate.kept.tolist() == [False, True, False]
    assert outcome.seconds["scores"] > 0


def test_scores_use_the_learning_rate_of_the_optimizer() -> None:
    # On the way from 0 to (1, 2), lr = 0.5 * 2 * GOOD hits the optimum; ten times as far overshoots it.
    assert server([-2 * GOOD], zeno.Zeno(trim=0), lr=0.5).step(0).aggregate.scores[0] > 0  # type: ignore[union-attr,index]
    assert server([-2 * GOOD], zeno.Zeno(trim=0), lr=5.0).step(0).aggregate.scores[0] < 0  # type: ignore[union-attr,index]


def test_what_a_rule_remembers_comes_back_to_it() -> None:
    seen = []

    class Counting:
        def __call__(
            self, candidates: Tensor, descent: zeno.Descent | None = None, state: object = None
        ) -> zeno.Aggregate:
            seen.append(state)
            return zeno.Aggregate(candidates[0].clone(), None, torch.tensor([True]), len(seen))

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

    class Asking:
        batch_size = 8

        def __call__(self, candidates: Tensor, descent: Any = None, state: object = None) -> zeno.Aggregate:
            seen.append((len(drawn), descent.lr, descent.gradient(), descent(candidates), len(drawn)))
            return zeno.Aggregate(candidates[0], None, torch.tensor([True]))

    one = server([-GOOD], Asking(), lr=1e-3)
    outcome = one.step(0)
    before, lr, gradient, descents, after = seen[0]
    assert (before, after) == (0, 1)
    assert len(drawn[0]) == 8
    assert lr == 1e-3
    own = batch(one.dataset, drawn[0])
    torch.testing.assert_close(gradient, (2 * (0 - own.targets) * own.inputs).mean(dim=0))  # of (w x - y)^2 at w = 0
    assert descents.item() == pytest.approx(lr * (gradient @ -GOOD).item(), rel=0.02)
    assert outcome.seconds["scores"] > 0


def test_a_rule_that_does_not_ask_costs_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(zeno.Dataset, "batch")
    assert server([GOOD], zeno.Mean()).step(0).seconds["scores"] == 0


def test_buffers_are_fresh_for_the_parameters_after_each_step() -> None:
    torch.manual_seed(0)
    problem = zeno.Problem(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), F.mse_loss)
    params = nn.Parameter(problem.flat.clone())
    inputs = torch.randn(100, 2)
    dataset = zeno.Dataset(inputs, inputs.sum(dim=1, keepdim=True))
    cluster = Sending([torch.randn(problem.size)])
    one = Engine(problem, zeno.Mean(), cluster, dataset, torch.arange(100), torch.optim.SGD([params], lr=1.0))
    one.step(0)
    with torch.no_grad():
        features = inputs @ params[:6].view(3, 2).T + params[6:9]
    torch.testing.assert_close(problem.buffers["1.running_mean"], features.mean(dim=0), atol=0.3, rtol=0.1)
    assert not torch.allclose(problem.buffers["1.running_mean"], torch.zeros(3), atol=0.3)


def test_a_trial_says_what_the_rule_would_do_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str, int]] = []
    draw = Engine._draw

    def drawing(self: Engine, role: str, step: int, size: int, number: int = 0) -> zeno.Batch:
        drawn.append((role, size))
        return draw(self, role, step, size, number)

    monkeypatch.setattr(Engine, "_draw", drawing)
    one = server([GOOD, 3 * GOOD, -GOOD], zeno.Zeno(trim=1, batch_size=8))
    found = one.trial(torch.stack([-GOOD, -3 * GOOD, GOOD]), 0)
    assert found is not None
    torch.testing.assert_close(found, -2 * GOOD)
    assert one.params.tolist() == [0.0, 0.0]
    outcome = one.step(0)
    assert outcome.aggregate is not None
    assert outcome.aggregate.kept.tolist() == [True, False, True]
    assert drawn == [("trial", 8), ("score", 8)], "a step is judged on samples that no trial has seen"


def test_a_trial_has_the_memory_of_the_rule_and_leaves_none() -> None:
    one = server([GOOD, GOOD], zeno.CenteredClipping(radius=0.1))
    one.step(0)
    state = one.state
    first, second = one.trial(100 * one.candidates, 1), one.trial(100 * one.candidates, 1)
    assert first is not None
    assert second is not None
    assert torch.equal(first, second)
    assert one.state is state
    fresh = server([GOOD, GOOD], zeno.CenteredClipping(radius=0.1)).trial(100 * one.candidates, 1)
    assert fresh is not None
    assert not torch.equal(first, fresh)


def test_a_trial_that_would_skip_the_step_says_none() -> None:
    one = server([GOOD, GOOD, GOOD], zeno.Zeno(trim=1))
    candidates = torch.stack([GOOD, GOOD * math.nan, GOOD * math.nan])
    assert one.trial(candidates, 0) is None
