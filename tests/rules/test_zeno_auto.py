"""ZenoAuto: what the mixture is, who is in it, what is remembered, and what it guarantees."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import zeno
from support.oracle import FakeOracle
from zeno.rules.zeno_auto import CHOICE, OWN, ZERO, Comparison, Memory

D = 400
TRUTH = torch.linspace(-1.0, 1.0, D)


def noise(seed: int, rows: int = 1, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(rows, D, generator=torch.Generator().manual_seed(seed))


def oracle(step: int, scale: float = 1.0) -> FakeOracle:
    """Halves of the server's samples around the truth; the loss falls by <u, truth>, less a curvature."""
    return FakeOracle(
        lambda rows: rows.double() @ TRUTH.double() - 0.5 * rows.double().square().sum(dim=1),
        halves=TRUTH + noise(10_000 + step, 2, scale),
    )


def train(candidates: list[Tensor], rule: zeno.Rule | None = None, scale: float = 1.0) -> list[zeno.Aggregate]:
    """The aggregates of these steps, each with the state of the one before."""
    found: list[zeno.Aggregate] = []
    for step, sent in enumerate(candidates):
        state = found[-1].state if found else None
        found.append((rule or zeno.ZenoAuto())(sent, oracle(step, scale), state))
    return found


def good(step: int, rows: int = 1, scale: float = 1.0) -> Tensor:
    return TRUTH + noise(step, rows, scale)


# The mixture


def slow_reference(steps: list[Tensor], halves: list[Tensor], decay: float) -> tuple[Tensor, float]:
    """The weights [m + 3] and s of the last step, from whole vectors and sums over all steps."""
    m = len(steps[0])
    history: list[Tensor] = []
    apart: list[Tensor] = []
    cosines: list[float] = []
    last = torch.zeros(m + 3).double()
    for n, (sent, (own, judge)) in enumerate(zip(steps, halves, strict=True), 1):
        powers = torch.tensor([decay ** (n - 1 - t) for t in range(n)]).double()
        if history:
            before = torch.einsum("t,tcd->cd", powers[1:] / powers[1:].sum(), torch.stack(history))
            cosines.append(float(torch.cosine_similarity(own - judge, before[OWN], dim=0)) ** 2)
        columns = torch.cat([sent, fltrust_of(sent, own)[None], own[None], 0 * own[None]])
        history.append((columns - judge) / (own - judge).norm())
        powers, errors = powers / powers.sum(), torch.stack(history)
        means = torch.einsum("t,tcd->cd", powers, errors)
        mixture = last[:m] / last[:m].sum() if last[:m].any() else last[:m]
        apart.append((history[-1][:m] - mixture @ history[-1][:m]).square().sum(dim=1))
        squares = powers**2 @ errors.square().sum(dim=2)
        noise = torch.stack([squares[:m], powers**2 @ torch.stack(apart)])
        ages = torch.tensor([decay ** (len(cosines) - 1 - t) for t in range(len(cosines))]).double()
        repeated = float(ages @ torch.tensor(cosines).double() / ages.sum()) if cosines else 0.0
        now, of_own = (1 - decay) ** 0.5 * history[-1], float(squares[OWN])
        found, last = reference_weights(means, noise, of_own, now, 4 * repeated, last)
    return found, reference_doubt(means, noise, found[:m], (1 - decay) / (1 + decay) / 4)


def reference_weights(
    means: Tensor, noise: Tensor, of_own: float, now: Tensor, repeated: float, last: Tensor
) -> tuple[Tensor, Tensor]:
    """The weights, and their average with those of the last steps."""
    stacked, m = torch.cat([means, now], dim=1), len(means) + CHOICE
    columns, g = stacked - stacked[ZERO], -stacked[ZERO]

    def off(weights: Tensor) -> float:
        return float((weights @ stacked).square().sum())

    def nearest(rows: list[int]) -> Tensor:
        found = torch.zeros(m + 3).double()
        found[rows] = nearest_by_descent(stacked[rows])
        return found

    repeated = repeated if float(last[:m].sum()) >= float(last[m:].sum()) else 0.0
    margin = max(0.2, repeated)
    least, reach = off(nearest(list(range(m + 2)))), float(columns[OWN].norm() * g.norm())
    way = max(0.2 * (float(columns[OWN] @ g) - margin * reach), -0.04 * reach)

    def helps(weights: Tensor, margin: float) -> bool:
        return off(weights) <= (1 + margin) * least and float((weights @ columns) @ g) >= way

    def longer(rows: list[int]) -> Tensor:
        found = cleaned(nearest([*rows, m + 2]))
        found[ZERO] = 0
        if not found.any():
            found[OWN] = float(m + 1 in rows)
            return found
        times: float = max(1.0, float(columns[OWN].norm() / (found @ columns).norm()))
        return found * min(times, 1 / float(found.sum()))

    chance = 2 * (of_own + float(now[OWN].square().sum()))
    lost = off(nearest(list(range(m)))) > float(g.square().sum()) + chance
    found = longer(list(range(m)))
    if not lost and found.any() and helps(found, repeated):
        alike = reference_apart(means, found[:m]) <= 2 * noise[1]
        if alike.any():
            alike &= noise[1] <= 2 * max(float(noise[1][alike].median()), of_own)
        agree = torch.cat([alike.double(), torch.zeros(3)])
        average = 0.9 * last + 0.1 * found if last.any() else found
        if agree.any() and helps(agree / agree.sum(), repeated):
            return agree / agree.sum(), average
        average_now = cleaned(average) * found.sum() / average.sum()
        return (average_now, average) if helps(average_now, margin) else (found, found)
    found = longer(list(range(m if lost else 0, m + 2)))
    average = 0.9 * last + 0.1 * found if last.any() else found
    average_now = cleaned(average) * found.sum() / average.sum()
    return (average_now, average) if off(average_now) <= 1.2 * off(found) else (found, found)


def reference_apart(means: Tensor, weights: Tensor) -> Tensor:
    workers = means[:CHOICE]
    return (workers - weights @ workers / weights.sum()).square().sum(dim=1)


def reference_doubt(means: Tensor, noise: Tensor, weights: Tensor, variance: float) -> float:
    right = (means[:CHOICE].square().sum(dim=1) <= 2 * noise[0]).double()
    if not right.any() or not weights.any():
        return 0.0
    shares = right * weights / weights.sum() / 2 + right / noise[0] ** 2 / (1 / noise[0] ** 2).sum() / 2
    bias = max(0.0, float(shares @ (reference_apart(means, weights) - noise[1])))
    return bias / (bias + variance)


def cleaned(weights: Tensor) -> Tensor:
    found = torch.where(weights < 0.02 / len(weights) * weights.sum(), 0, weights)
    return found * weights.sum() / found.sum()


def nearest_by_descent(errors: Tensor) -> Tensor:
    products, weights = errors @ errors.T, torch.full((len(errors),), 1 / len(errors)).double()
    rate = 1 / float(torch.linalg.eigvalsh(products)[-1])
    for _ in range(20_000):
        before, weights = weights, onto_simplex(weights - rate * products @ weights)
        if float((weights - before).abs().max()) < 1e-9:
            break
    return weights


def fltrust_of(sent: Tensor, own: Tensor) -> Tensor:
    """FLTrust's update, with the server's own gradient among the candidates."""
    return zeno.FLTrust()(torch.cat([sent, own[None]]), FakeOracle(gradient=own)).update


def onto_simplex(point: Tensor) -> Tensor:
    ordered = point.sort(descending=True).values
    sums = ordered.cumsum(0) - 1
    counts = torch.arange(1, len(point) + 1)
    last = int((ordered - sums / counts > 0).sum())
    return (point - sums[last - 1] / last).clamp(min=0)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("sent", ["one is biased", "different data", "all are wrong", "all send noise", "one turns"])
def test_the_weights_are_those_of_the_formula(decay: float, sent: str) -> None:
    others, apart = TRUTH + 2 * noise(77), noise(78, 5)
    many = {
        "one is biased": [torch.cat([good(t, 4), noise(50 + t) + others]) for t in range(4)],
        "different data": [good(t, 5, 0.1) + 2 * (apart - apart.mean(dim=0)) for t in range(4)],
        "all are wrong": [noise(t, 5) - TRUTH for t in range(4)],
        "all send noise": [noise(t, 5) for t in range(4)],
        "one turns": [good(t, 5) * torch.tensor([1, 1, 1, 1, -5 if t == 3 else 1])[:, None] for t in range(4)],
    }
    steps = [rows.double() for rows in many[sent]]
    found = train(steps, zeno.ZenoAuto(memory=decay))[-1]
    halves = [oracle(step).half_gradients() for step in range(4)]
    expected, doubt = slow_reference(steps, [half.double() for half in halves], decay)
    own, judge = halves[-1].double()
    chosen = zeno.FLTrust()(torch.cat([steps[-1], own[None]]), FakeOracle(gradient=own)).weights
    weights = (1 - doubt) * (expected[:5] + expected[CHOICE] * chosen[:5])
    close = 8e-3 if sent == "all send noise" else 3e-3  # where the choice and the own gradient are nearly the same
    torch.testing.assert_close(found.weights, weights, atol=close, rtol=0)
    of_server = (1 - doubt) * float(expected[OWN] + expected[CHOICE] * chosen[5]) + doubt
    assert found.own == pytest.approx(of_server, abs=2 * close)
    update = found.weights @ steps[-1] + found.own * (own + found.own / 2 * (judge - own))
    torch.testing.assert_close(found.update, update, atol=1e-6, rtol=0)


def doubt(memory: float, of_error: list[float], of_distance: list[float], weights: list[float]) -> float:
    """With two workers at 1 and -1 from g, and what noise explains of the squares."""
    halves = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]).double()
    compared = Comparison.of(Memory.new(2, 3, 0, TRUTH), memory, torch.zeros(2, 3).double(), halves)
    means, noise = torch.eye(5).double(), torch.zeros(5, 2).double()
    means[:2, :2] = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    noise[:2] = torch.tensor([of_error, of_distance]).T
    return compared._own_share(means, noise, torch.tensor([True, True]), torch.tensor(weights).double())


@pytest.mark.parametrize(
    ("memory", "of_error", "of_distance", "expected"),
    [
        (0.0, [0.5, 0.5], [0.25, 0.25], 0.75 / (0.75 + 1 / 4)),  # each is at a squared distance of 1 from the mean
        (0.5, [0.5, 0.5], [0.25, 0.25], 0.75 / (0.75 + 1 / 12)),
        (0.0, [0.5, 0.5], [1.0, 1.0], 0.0),  # noise explains it
        (0.0, [0.4, 0.4], [0.25, 0.25], 0.0),  # their squared errors of 1 are above 2 * 0.4: both are wrong
        # Worker 1 is wrong and counts as 0. Worker 0 has 1 / 2 by weight, and 4 / (4 + 6.25) by precision.
        (0.0, [0.5, 0.4], [0.0, 0.25], (73 / 164) / (73 / 164 + 1 / 4)),
    ],
)
def test_the_server_has_a_share_while_it_is_not_known_who_is_right(
    memory: float, of_error: list[float], of_distance: list[float], expected: float
) -> None:
    assert doubt(memory, of_error, of_distance, [0.5, 0.5]) == pytest.approx(expected)


def test_who_is_known_more_precisely_counts_more() -> None:
    """Worker 1 has all the weight. Worker 0 is at a squared distance of 4 from it, of which noise explains 3.6."""
    bias = (1 / 3**2) / (1 / 3**2 + 1 / 0.6**2) * (4 - 3.6) / 2
    assert doubt(0.0, [3.0, 0.6], [3.6, 0.0], [0.0, 1.0]) == pytest.approx(bias / (bias + 1 / 4))


def test_while_one_good_worker_and_others_disagree_the_server_has_a_share() -> None:
    """At first the noise of the means hides who is right, but not that one is different."""
    bias = 0.25 * noise(99)[0]
    steps = [torch.cat([good(100 + t, 1, 0.5), good(200 + t, 7, 0.5) + bias]) for t in range(150)]
    own = [one.own for one in train(steps, scale=2.0)]
    assert max(own[5:40]) > 0.4
    without = [one.own for one in train([good(100 + t, 8, 0.5) for t in range(60)], scale=2.0)]
    assert sum(without[5:]) / len(without[5:]) < 0.1


def test_a_bias_is_found_though_noise_hides_it_at_every_single_step() -> None:
    bias = 0.7 * noise(99)[0]
    steps = [torch.cat([good(100 + t, 3), good(200 + t, 12) + bias]) for t in range(30)]
    weights = train(steps)[-1].weights
    assert bool((weights[:3] > 0.15).all())
    assert float(weights[3:].sum()) < 0.05
    forgetful = [one.weights for one in train(steps, zeno.ZenoAuto(memory=0.0))]
    assert sum(float(weights[3:].sum()) for weights in forgetful) > 0.2 * len(steps)


def test_with_few_samples_good_workers_have_equal_weights_and_keep_them() -> None:
    """The noise of few samples repeats. Late in training, minus the gradient is as near to it as the gradient is."""
    at, few, state = [1.0] * 20 + [0.05] * 200, noise(9999, 2, 0.4), None
    shares: list[Tensor] = []
    for t, size in enumerate(at):
        sent = size * TRUTH * torch.tensor([1, 1, 1, -1])[:, None] + noise(t, 4, 0.5)
        halves = size * TRUTH + few + noise(10_000 + t, 2, 0.3)
        found = zeno.ZenoAuto()(sent, FakeOracle(gradient=halves.mean(0), halves=halves), state)
        state = found.state
        shares.append(found.weights)
        assert not 5 <= t < 100 or float(found.weights[3]) < 0.02, t
    assert torch.stack(shares[5:100]).mean(dim=0).tolist() == pytest.approx([1 / 3] * 3 + [0.0], abs=0.05)


def test_with_few_samples_the_server_alone_does_not_give_way_to_workers_that_are_not_near() -> None:
    """The same errors, after steps that workers carried or that the server did."""
    steps = [0.02 * good(t, 4) for t in range(12)]
    few = noise(9999, 2, 0.5)
    state: object = None
    for t, sent in enumerate(steps):
        halves = TRUTH + few + noise(10_000 + t, 2, 0.1)
        found = zeno.ZenoAuto()(sent, FakeOracle(gradient=halves.mean(0), halves=halves), state)
        state = found.state
    assert isinstance(state, dict)
    halves = TRUTH + few + noise(11_000, 2, 0.1)
    own = []
    for carried in (True, False):
        weights = torch.tensor([0.25] * 4 + [0.0] * 3 if carried else [0.0] * 5 + [1.0, 0.0]).double()
        found = zeno.ZenoAuto()(
            steps[0], FakeOracle(gradient=halves.mean(0), halves=halves), {**state, "weights": weights}
        )
        own.append(found.own)
    assert own[0] < 0.1
    assert own[1] > 0.3


def test_a_worker_that_was_repaired_has_its_weight_again() -> None:
    steps = [good(t, 4) * torch.tensor([1, 1, 1, -1 if t < 20 else 1])[:, None] for t in range(300)]
    found = train(steps, zeno.ZenoAuto(memory=0.9), scale=0.3)
    assert float(found[19].weights[3]) == 0
    weights = torch.stack([one.weights for one in found[-200:]]).mean(dim=0)
    assert float(weights[3]) > 0.5 * float(weights[:3].mean())


def test_workers_with_different_data_are_mixed() -> None:
    parts = torch.randn(4, D, generator=torch.Generator().manual_seed(5))
    parts = parts - parts.mean(dim=0) + TRUTH  # each is far from the truth, their mean is the truth
    last = train([parts + noise(300 + t, 4, 0.1) for t in range(20)])[-1]
    assert last.weights.tolist() == pytest.approx([0.25] * 4, abs=0.08)
    without = train([(parts + noise(300 + t, 4, 0.1))[:3] for t in range(20)])[-1]
    assert float((without.update - TRUTH).norm()) < 1.1 * float((parts[:3] - TRUTH).norm(dim=1).min())


def test_huge_candidates_get_no_weight_even_if_they_cancel() -> None:
    steps = [torch.cat([good(t, 3), 1e30 * noise(60 + t)]) for t in range(20)]
    assert train(steps)[-1].weights.tolist() == pytest.approx([0.3, 0.3, 0.3, 0], abs=0.1)
    huge = [1e12 * noise(60 + t) for t in range(20)]
    steps = [torch.cat([good(t, 3), one, 2 * TRUTH - one]) for t, one in enumerate(huge)]
    assert train(steps)[-1].weights.tolist() == pytest.approx([0.3, 0.3, 0.3, 0, 0], abs=0.1)


def test_huge_candidates_do_not_overflow_where_the_noise_of_the_server_is_small() -> None:
    state = None
    for t in range(4):
        halves = 1e-6 * (TRUTH + noise(10_000 + t, 2))
        sent = 1e-6 * good(t, 4)
        sent[3] = 1e37 * noise(t)
        found = zeno.ZenoAuto()(sent, FakeOracle(gradient=halves.mean(0), halves=halves), state)
        state = found.state
        assert found.update.isfinite().all()
        assert float(found.weights[3]) == 0
        assert float(found.weights[:3].sum()) > 0.5


def with_glitch(glitch: float, few_samples: bool) -> tuple[Tensor, Tensor]:
    """Weights [t, 4] and shares of the server [t], where the last worker is multiplied by `glitch` at step 5."""
    few, state = (noise(9999, 2, 0.4) if few_samples else torch.zeros(2, D)), None
    weights, own = [], []
    for t in range(300):
        sent = good(t, 4, 0.5)
        sent[3] *= glitch if t == 5 else 1
        halves = TRUTH + few + noise(10_000 + t, 2, 0.3 if few_samples else 0.5)
        found = zeno.ZenoAuto()(sent, FakeOracle(gradient=halves.mean(0), halves=halves), state)
        state = found.state
        weights.append(found.weights)
        own.append(found.own)
    return torch.stack(weights), torch.tensor(own)


@pytest.mark.parametrize("few_samples", [False, True])
@pytest.mark.parametrize("glitch", [-10.0, -50.0, 1e3, 1e20, 1e38])
def test_a_single_wrong_candidate_costs_the_others_nothing(glitch: float, few_samples: bool) -> None:
    """As of a card with a flipped bit. The worker itself is trusted again when its mean error is as before."""
    weights, own = with_glitch(glitch, few_samples)
    expected, without = with_glitch(1.0, few_samples)
    assert float(weights[5, 3]) == 0
    assert float((own - without)[5:].max()) < 0.2
    assert float((own - without)[5:].mean()) < 0.03
    assert float((weights - expected)[10:, :3].mean(dim=0).min()) > -0.03
    trusted_again = 10 if glitch > 0 else 250  # longer than that is no candidate, and not remembered
    assert float((weights - expected)[trusted_again:, 3].mean().abs()) < 0.02


@pytest.mark.parametrize("different", [0.0, 2.0])
def test_an_erratic_worker_does_not_make_the_server_train_alone(different: float) -> None:
    """What it sends at a few steps, and at none: good workers may each be known to be wrong, and it is not."""
    parts = noise(98, 5, different)
    own = []
    for erratic in (True, False):
        state, shares = None, []
        for t in range(150):
            sent = good(t, 5, 0.5) + parts - parts.mean(dim=0)
            last = good(500 + t) + (20 * noise(600 + t) if t % 30 == 0 else 0) if erratic else good(t) * math.nan
            halves = TRUTH + noise(10_000 + t, 2, 0.5)
            candidates = torch.cat([sent, last])
            found = zeno.ZenoAuto()(candidates, FakeOracle(gradient=halves.mean(0), halves=halves), state)
            state = found.state
            shares.append(found.own)
        own.append(sum(shares[20:]) / len(shares[20:]))
    assert own[0] < own[1] + 0.05


def test_a_worker_without_a_past_is_not_used_at_a_step_without_gradients_of_the_server() -> None:
    before = train([good(t, 4) for t in range(20)])[-1]
    sent = torch.cat([good(20, 4), 1e20 * good(21)])
    found = zeno.ZenoAuto()(sent, FakeOracle(gradient=torch.zeros(D), halves=torch.zeros(2, D)), before.state)
    assert found.weights.tolist() == pytest.approx([*before.weights.tolist(), 0.0], abs=0.05)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_step_without_gradients_of_the_server_is_judged_by_the_steps_before(scale: float) -> None:
    own: list[float] = []
    state: Any = None
    for t in range(100):
        sent = scale * torch.cat([good(t, 4), -good(t + 500)])
        halves = torch.zeros(2, D) if t == 50 else scale * (TRUTH + noise(10_000 + t, 2))
        found = zeno.ZenoAuto()(sent, FakeOracle(gradient=halves.mean(0), halves=halves), state)
        now: Any = found.state
        if t == 50:
            assert torch.equal(now["errors"], state["errors"])
            assert found.weights[4] == 0
            assert found.weights[:4].sum() > 0.5
            assert found.likeness is not None
            assert found.likeness.isnan().all()
        own.append(found.own)
        state = now
    assert max(own[51:]) <= max(own[40:50]) + 0.05


def test_gradients_of_the_server_whose_sketch_overflows_are_an_error() -> None:
    halves = torch.full((2, 1000), 3e38)
    with pytest.raises(ValueError, match="needs a finite gradient on the server's samples"):
        zeno.ZenoAuto(sketch=10)(torch.ones(3, 1000), FakeOracle(gradient=halves[0], halves=halves))


def test_workers_that_are_farther_than_no_step_have_no_weight_in_any_mixture() -> None:
    """They go backwards, but some of them would make up for the noise of few samples, which repeats."""
    few, state = noise(9999, 2, 0.1), None
    for t in range(60):
        halves = 0.1 * TRUTH + few + noise(10_000 + t, 2, 0.01)
        sent = -0.3 * TRUTH + few[1] + noise(t, 4, 0.01)
        found = zeno.ZenoAuto()(sent, FakeOracle(gradient=halves.mean(0), halves=halves), state)
        state = found.state
    assert not found.kept.any()
    assert found.own == pytest.approx(1.0)


@pytest.mark.parametrize("sent", ["nan", "reversed", "zero", "huge"])
def test_with_all_workers_faulty_the_server_trains_on_its_own_gradient(sent: str) -> None:
    factor = {"nan": math.nan, "reversed": -3.0, "zero": 0.0, "huge": -1e38}[sent]
    last = train([(factor * good(t, 5)).clamp(-3e38, 3e38) for t in range(20)], scale=0.3)[-1]
    own = oracle(19, 0.3).half_gradients().mean(dim=0)
    assert last.own > 0.9
    assert float((last.update - own).norm() / own.norm()) < 0.15
    assert not last.kept.any()


def test_junk_does_not_drown_the_server_by_chance() -> None:
    """Half of the candidates point along the server's gradient by chance, each time along another coordinate."""

    def sent(step: int) -> Tensor:
        coordinates = torch.randint(D, (20,), generator=torch.Generator().manual_seed(step))
        return 1e20 * torch.eye(D)[coordinates]

    last = train([sent(t) for t in range(20)], scale=0.3)[-1]
    own = oracle(19, 0.3).half_gradients().mean(dim=0)
    assert last.own > 0.6
    assert float((last.update - own).norm() / own.norm()) < 0.5


def test_when_other_workers_are_faulty_at_every_step_the_choice_of_the_step_counts() -> None:
    def sent(step: int) -> Tensor:
        rows = good(400 + step, 8, 0.3)
        rows[(torch.arange(8) + step) % 2 == 0] *= -1
        return rows

    found = train([sent(t) for t in range(30)], scale=0.7)
    faulty = (torch.arange(8) + 29) % 2 == 0
    assert float(found[-1].weights[~faulty].sum()) > 3 * float(found[-1].weights[faulty].sum())
    errors = [float((one.update - TRUTH).norm()) for one in found[10:]]
    of_server = [float((oracle(t, 0.7).half_gradients().mean(dim=0) - TRUTH).norm()) for t in range(10, 30)]
    assert sum(errors) < 0.6 * sum(of_server)


# Workers that turn


@pytest.mark.parametrize("scale", [10, 100, 1e10])
def test_workers_that_turn_together_cannot_move_the_update_far(scale: float) -> None:
    """Not farther from g than the bound for a single step, which does not depend on the scale."""
    steps = [good(t, 4, 0.1) for t in range(50)]
    steps.append(-scale * good(50, 4, 0.1))
    last = train(steps, scale=0.6)[-1]
    assert float(last.weights.sum()) < 1 / scale
    own, judge = oracle(50, 0.6).half_gradients()
    assert float((last.update - judge).norm()) < float((own - judge).norm()) * 1.5


# Memory


def test_a_worker_that_is_absent_keeps_its_mean_error() -> None:
    bias = noise(99)[0]
    steps = [torch.cat([good(t, 3), good(50 + t) + bias]) for t in range(12)]
    for step in steps[6:11]:
        step[3] = math.nan
    found = train(steps)
    before, after = (Memory(**found[t].state).errors[3] for t in (5, 10))  # type: ignore[arg-type]
    assert torch.equal(before, after)
    counts = [sum(0.98**t for t in range(steps)) for steps in (12, 12, 12, 7, 12, 12, 12)]
    assert Memory(**found[-1].state).counts.tolist() == pytest.approx(counts)  # type: ignore[arg-type]
    assert float(found[-1].weights[3]) < 0.5 * float(found[-1].weights[:3].mean()), "its bias is remembered"
    assert all(float(one.weights[3]) == 0 for one in found[6:11])


def test_the_server_stands_in_while_the_workers_that_it_trusts_are_absent() -> None:
    """The other workers are not trusted for that, and nothing has changed when the first are back."""
    bias = 2 * noise(99)[0]
    steps = [torch.cat([good(t, 3), good(50 + t, 2) + bias]) for t in range(40)]
    for step in steps[30:39]:
        step[:3] = math.nan
    found = train(steps)
    assert min(one.own for one in found[30:39]) > 0.75
    assert max(float(one.weights.sum()) for one in found[30:39]) < 0.25
    assert float(found[39].weights[:3].sum()) > 0.5


def test_workers_can_join_late_and_cannot_disappear() -> None:
    first = train([good(t, 3) for t in range(10)])[-1]
    joined = zeno.ZenoAuto()(good(10, 5), oracle(10), first.state)
    counts = [sum(0.98**t for t in range(steps)) for steps in (11, 11, 11, 1, 1, 11, 11, 11)]
    assert Memory(**joined.state).counts.tolist() == pytest.approx(counts)  # type: ignore[arg-type]
    for t in range(11, 60):
        bad = torch.tensor([1, 1, 1, 1, -1])[:, None]
        joined = zeno.ZenoAuto()(bad * good(t, 5), oracle(t), joined.state)
    assert float(joined.weights[3]) > 0.4 * float(joined.weights[:3].mean())
    assert float(joined.weights[4]) < 0.02
    with pytest.raises(ValueError, match=r"A memory of 3 workers does not fit 2. Pass NaN for workers that left."):
        zeno.ZenoAuto()(good(11, 2), oracle(11), first.state)


def test_the_memory_is_sketches_of_the_workers_and_three_more() -> None:
    m, k, d = 6, 64, 5000
    rows = torch.randn(m, d)
    state = zeno.ZenoAuto(sketch=k)(rows, FakeOracle(gradient=torch.randn(d)), None).state
    assert isinstance(state, dict)
    numbers = sum(value.numel() for value in state.values() if isinstance(value, Tensor))
    assert numbers == (m + 3) * k + 4 * (m + 3) + 3


def test_the_signs_are_the_servers_secret() -> None:
    """They follow from its samples, so that a run can be repeated, and nobody else can know them."""
    sent = good(0, 3)
    seeds = {zeno.ZenoAuto()(sent, oracle(step)).state["seed"] for step in (0, 0, 1)}  # type: ignore[index]
    assert len(seeds) == 2


@pytest.mark.parametrize("k", [64, 200])
def test_short_sketches_find_the_same(k: int) -> None:
    bias = noise(99)[0]
    steps = [torch.cat([good(100 + t, 3), good(200 + t, 6) + bias]) for t in range(30)]
    exact, sketched = (train(steps, zeno.ZenoAuto(sketch=size))[-1] for size in (16_384, k))
    assert float(sketched.weights[3:].sum()) < 0.2
    assert float((sketched.update - exact.update).norm() / exact.update.norm()) < 0.5


# The guarantee of docs/zeno-auto.md, for whole vectors: these sketches are exact


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 8), st.integers(0, 2**32), st.floats(0, 100), st.floats(0.01, 10))
def test_no_candidates_make_the_mixture_worse_than_the_bounds(m: int, seed: int, size: float, spread: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    halves = TRUTH + spread * torch.randn(2, D, generator=rng)
    sent = size * torch.randn(m, D, generator=rng) + torch.randint(-1, 2, (m, 1), generator=rng) * TRUTH
    found = zeno.ZenoAuto()(sent, FakeOracle(gradient=halves.mean(0), halves=halves))
    off, apart = float((halves[1] - TRUTH).norm()), float((halves[0] - halves[1]).norm())
    error = float((found.weights.float() @ sent + found.own * halves[0] - TRUTH).norm())
    assert error <= 1.02 * (off + 3.3 * apart)
    weights = torch.rand(20, m, generator=rng)
    mixtures = weights / weights.sum(dim=1, keepdim=True) @ sent
    best = min(float((mixture - TRUTH).norm()) for mixture in [*sent, *mixtures])
    assert error <= 1.02 * (2.2 * best + 3.2 * off + 1.1 * apart)


ATTACKS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "reversed": lambda gradient, t: -2 * gradient,
    "biased": lambda gradient, t: gradient + 0.5 * noise(7)[0],
    "random": lambda gradient, t: gradient + noise(5000 + t, 1, 3.0)[0],
    "alternating": lambda gradient, t: gradient * (1 + 5 * (-1) ** t),
    "huge": lambda gradient, t: 1e20 * noise(6000 + t)[0],
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("num_good", [0, 1, 6])
def test_the_bounds_hold_while_training_on_a_quadratic(attack: str, num_good: int) -> None:
    """F(x) = (x - TRUTH)' H (x - TRUTH) / 2, with noise in every gradient; everything is computed anew here."""
    curvature, lr, decay, x = torch.linspace(0.1, 1.0, D), 0.1, 0.9, torch.zeros(D)
    state, squares = None, []
    means: dict[str, Tensor] = {}
    for t in range(120):
        gradient = curvature * (x - TRUTH)
        halves = gradient + noise(20_000 + t, 2, 0.5)
        sent = torch.cat([gradient + noise(30_000 + t, num_good, 0.3), ATTACKS[attack](gradient, t).repeat(4, 1)])
        found = zeno.ZenoAuto(memory=decay)(sent, quadratic(x, curvature, halves), state)
        state, x = found.state, x - lr * found.update
        columns = torch.cat([sent, fltrust_of(sent, halves[0])[None], halves[:1], 0 * halves[:1]])
        now = {"errors": columns - gradient, "judge": halves[1] - gradient, "apart": halves[0] - halves[1]}
        now = {name: one / (halves[0] - halves[1]).norm() for name, one in now.items()}  # in units of the noise
        rate = (1 - decay) / (1 - decay ** (t + 1))
        means = {name: means.get(name, 0 * one) + rate * (one - means.get(name, 0 * one)) for name, one in now.items()}

        def size(mean: Tensor, one: Tensor) -> float:
            return math.sqrt(float(mean.square().sum() + (1 - decay) * one.square().sum()))

        mixture = torch.cat([found.weights, torch.tensor([0.0, found.own, 0.0])]).float()  # the choice is part of both
        mixture[ZERO] = 1 - mixture.sum()
        error = float((mixture @ means["errors"]).norm())
        off, apart = size(means["judge"], now["judge"]), size(means["apart"], now["apart"])
        c = math.sqrt(1 + max(0.2, 4 * Memory(**found.state).repeated))  # type: ignore[arg-type]
        assert error <= 1.02 * (off + max(c, 3.3) * apart)
        if num_good:
            best = size(means["errors"][:num_good].mean(dim=0), now["errors"][:num_good].mean(dim=0))
            assert error <= 1.02 * (max(c, 2.2) * (best + off) + off + 1.1 * apart)
        squares.append(error**2)
    variance = (1 - decay) / (1 + decay) / 2  # of the decayed mean of one half's gradient, whose noise is 1 / sqrt(2)
    assert sum(squares[20:]) / 100 <= 2 * variance, "in fact it is much better"
    assert float((curvature * (x - TRUTH)).norm()) < 0.2 * float((curvature * TRUTH).norm()), "it converges"


def quadratic(x: Tensor, curvature: Tensor, halves: Tensor) -> FakeOracle:
    def descents(rows: Tensor) -> Tensor:
        off, after = (x - TRUTH).double(), (x - TRUTH).double() - 0.1 * rows.double()
        return (curvature * (off.square() - after.square())).sum(dim=1) / 2

    return FakeOracle(descents, halves=halves)


# After pre-aggregators that scale


def test_clipped_candidates_count_as_their_workers() -> None:
    steps = [good(t, 5, 0.3) for t in range(4)]
    for rows in steps:
        rows[1] *= -20
    steps[2][4, 7] = math.nan
    limit = 0.5 * float(steps[0][0].norm())
    found = train(steps, zeno.chain(zeno.Clip(limit), zeno.ZenoAuto()))
    factors = [(limit / rows.norm(dim=1)).clamp(max=1).double() for rows in steps]
    expected = train([rows * factor[:, None].float() for rows, factor in zip(steps, factors, strict=True)])
    for one, other, factor in zip(found, expected, factors, strict=True):
        torch.testing.assert_close(one.update, other.update, rtol=0, atol=1e-4)
        torch.testing.assert_close(one.weights, other.weights * factor.nan_to_num(0), rtol=0, atol=1e-4)
        torch.testing.assert_close(one.scores, other.scores, rtol=1e-4, atol=1e-5)
        assert one.own == pytest.approx(other.own, abs=1e-4)
    assert float(factors[0].max()) < 0.6, "all were clipped"


# Errors


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match=r"ZenoAuto needs samples as a whole number of at least 2. Found samples=1"):
        zeno.ZenoAuto(samples=1)
    with pytest.raises(ValueError, match=r"memory as a number of at least 0 and below 1. Found memory=1"):
        zeno.ZenoAuto(memory=1)
    with pytest.raises(ValueError, match=r"needs an oracle for the server's samples. Found None"):
        zeno.ZenoAuto()(good(0, 3))
    with pytest.raises(ValueError, match=r"needs one row for each candidate, to know whose it is. Found mixtures"):
        zeno.chain(zeno.NNM(faulty=1), zeno.ZenoAuto())(good(0, 4), oracle(0))
    with pytest.raises(ValueError, match=r"needs 2 gradients of 400 numbers. Found shape \[2, 3\]"):
        zeno.ZenoAuto()(good(0, 4), FakeOracle(gradient=[1.0, 2.0, 3.0]))


def test_the_state_of_another_version_is_reported() -> None:
    state = zeno.ZenoAuto()(good(0, 3), oracle(0)).state
    assert isinstance(state, dict)
    older = {name: value for name, value in state.items() if name != "squares"}
    with pytest.raises(ValueError, match=r"that of another version of zeno. Start without a state"):
        zeno.ZenoAuto()(good(1, 3), oracle(1), older)
    with pytest.raises(ValueError, match=r"that of another version of zeno. Start without a state"):
        zeno.ZenoAuto().for_workers(older, lambda rows, _: rows)


def test_the_server_alone_ignores_the_workers() -> None:
    found = zeno.ServerAlone()(torch.tensor([[math.nan, 1.0], [5.0, 5.0]]), FakeOracle(gradient=[1.0, -2.0]))
    assert (found.update.tolist(), found.own, found.kept.tolist()) == ([1.0, -2.0], 1.0, [False, False])
