"""No update reaches the model that its candidates cannot have made."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zeno
from support.fake_cluster import FakeCluster
from zeno.server.engine import Engine
from zeno.server.update_check import check_update

ROWS = torch.tensor([[1.0, 2.0], [3.0, -4.0], [1e30, 0.0]])
LARGEST = {0: 2.0, 1: 4.0, 2: 1e30}  # worked out by hand


class Broken(zeno.Rule):
    """States that it averages, and returns another update."""

    def __init__(self, update: Tensor, weights: tuple[float, ...] = (0.5, 0.5, 0.0), own: float = 0.0) -> None:
        self.update, self.weights, self.own = update, weights, own

    def __call__(self, candidates: Tensor, oracle: zeno.Oracle | None = None, state: object = None) -> zeno.Aggregate:
        return zeno.Aggregate(self.update, torch.tensor(self.weights).double(), state="new", own=self.own)


class Vote(Broken):
    averages = False


NAN, INF = torch.tensor([1.0, math.nan]), torch.tensor([-math.inf, 1.0])


@pytest.mark.parametrize("update", [NAN, INF, torch.tensor([4.1, 0.0])], ids=["nan", "inf", "too large"])
def test_the_step_is_skipped_in_a_loop_and_in_a_run(update: Tensor) -> None:
    model = nn.Linear(2, 1, bias=False)
    before = model.weight.detach().clone()
    rule = Broken(update)
    server = zeno.Server(model, F.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1), None, rule)
    with pytest.raises(zeno.TooFewUsable, match="which was not applied"):
        server.step(list(ROWS))
    assert server.record is not None
    assert server.record.skipped is not None
    assert "which was not applied" in server.record.skipped
    assert server.record.kept is None
    assert torch.equal(model.weight, before)
    assert server.core.state is None, "the rule does not remember the step"

    params = nn.Parameter(torch.zeros(2))
    dataset = zeno.Dataset(torch.ones(4, 2), torch.ones(4, 1), None)
    engine = Engine(
        zeno.Problem(nn.Linear(2, 1, bias=False), F.mse_loss),
        rule,
        FakeCluster(list(ROWS)),
        dataset,
        torch.arange(4),
        torch.optim.SGD([params], lr=0.1),
    )
    record = engine.step(0).record()
    assert record.skipped == server.record.skipped
    assert params.tolist() == [0.0, 0.0]


def test_an_update_as_large_as_the_largest_candidate_that_was_kept_is_accepted() -> None:
    for update in ([4.0, 4.0], [-4.0, 0.0], [0.0, 4.03]):  # 1 % for rounding
        rule = Broken(torch.tensor(update))
        check_update(rule, rule(ROWS), LARGEST)
    message = "numbers up to 5, .* weights allow at most 4. If it does not average, set `averages = False` in the rule"
    rule = Broken(torch.tensor([0.0, -5.0]))
    with pytest.raises(zeno.TooFewUsable, match=message):
        check_update(rule, rule(ROWS), LARGEST)
    with_the_large_one = Broken(torch.tensor([0.0, -5.0]), (0.5, 0.4, 0.1))
    check_update(with_the_large_one, with_the_large_one(ROWS), LARGEST)


def test_weights_beyond_1_allow_as_much_as_their_sum() -> None:
    for weights in ((3.0, 1.0, 0.0), (-3.0, 1.0, 0.0)):  # 3 * 2 + 1 * 4
        fits, larger = (Broken(torch.tensor([size, 0.0]), weights) for size in (10.0, 10.2))
        check_update(fits, fits(ROWS), LARGEST)
        with pytest.raises(zeno.TooFewUsable, match="at most 10"):
            check_update(larger, larger(ROWS), LARGEST)


def test_updates_of_more_than_candidates_only_have_to_be_finite() -> None:
    large = torch.tensor([100.0, 0.0])
    for rule in (Vote(large), Broken(large, (0.0, 0.0, 0.0)), Broken(large, own=0.5)):
        check_update(rule, rule(ROWS), LARGEST)
    for rule in (Vote(NAN), Broken(NAN, (0.0, 0.0, 0.0)), Broken(INF, own=0.5)):
        with pytest.raises(zeno.TooFewUsable, match="an update with NaN or Inf"):
            check_update(rule, rule(ROWS), LARGEST)
    assert not zeno.chain(zeno.Clip(1.0), zeno.CenteredClipping()).averages
    assert zeno.chain(zeno.Clip(1.0), zeno.Mean()).averages


def test_centred_clipping_may_return_to_smaller_candidates_step_by_step() -> None:
    model = nn.Linear(2, 1, bias=False)
    rule = zeno.CenteredClipping(radius=0.1, iterations=1)
    server = zeno.Server(model, F.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1), None, rule)
    for _ in range(30):
        server.step([torch.ones(2)] * 3)
    found = server.step([torch.zeros(2)] * 3)
    assert float(found.update.norm()) == pytest.approx(math.sqrt(2) - 0.1, rel=1e-4)
