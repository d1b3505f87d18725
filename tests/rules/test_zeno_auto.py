"""ZenoAuto: what the mixture is, who is in it, what is remembered, and what it guarantees."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import zeno
from support.oracle import FakeOracle
from zeno.rules.mixture_weights import weigh
from zeno.rules.zeno_auto import Memory

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


def slow_reference(steps: list[Tensor], halves: list[Tensor], decay: float) -> Tensor:
    """The weights of the workers, the choice and the server, from whole vectors and sums over all steps."""
    m = len(steps[0])
    weights = torch.eye(m + 2).double()[-1]  # before the first step
    overlaps: list[tuple[float, float]] = []
    before = torch.zeros(D).double()  # the mean of o - g over earlier steps
    for n in range(1, len(steps) + 1):
        powers = torch.tensor([decay ** (n - 1 - t) for t in range(n)]).double()
        powers /= powers.sum()
        columns, target = torch.zeros(m + 2, D).double(), torch.zeros(D).double()
        for power, sent, (own, judge) in zip(powers, steps[:n], [half.double() for half in halves[:n]], strict=True):
            columns += power * torch.cat([sent.double(), fltrust_of(sent.double(), own)[None], own[None]])
            target += power * judge
        last = torch.cat([steps[n - 1].double(), fltrust_of(steps[n - 1].double(), own)[None], own[None]])
        share = (1 - decay) ** 0.5
        off = own - judge
        overlaps.append((float(off @ before) ** 2, float(off.square().sum() * before.square().sum())))
        sums = [sum(decay ** (n - 1 - t) * pair[side] for t, pair in enumerate(overlaps)) for side in (0, 1)]
        repeated = sums[0] / sums[1] if sums[1] else 1.0
        before = columns[-1] - target
        stacked, g = torch.cat([columns, share * last], dim=1), torch.cat([target, share * judge])
        weights = weights_of(stacked, g, weights, 4 * repeated)
    return weights


def weights_of(columns: Tensor, g: Tensor, last: Tensor, fitted: float) -> Tensor:
    """By the text of docs/zeno-auto.md, for the columns of the workers, the choice and the server."""
    m, own = len(columns) - 2, columns[-1]

    def off(weights: Tensor) -> float:
        return float((weights @ columns - g).square().sum())

    nearest = torch.cat([nearest_by_descent(columns[:m] - g), torch.zeros(2)]).double()
    of_own, of_zero = float((own - g).square().sum()), float(g.square().sum())
    about, proven = 1 + min(0.2, fitted), not last[m:].any()
    margin = max(0.2, fitted) if proven and of_zero < 2 * of_own else 0.2
    farthest = min((1 + fitted) * off(nearest_by_descent(columns - g)), (1 + margin) * of_own)
    farthest = farthest if proven else min(farthest, 1.2 * of_zero)
    reach = float(own.norm() * g.norm())

    def advances(weights: Tensor) -> bool:
        return float(5 * (weights @ columns) @ g) >= max(float(own @ g) - margin * reach, -0.2 * reach)

    if proven and of_zero < 2 * of_own and advances(last) and off(last) <= min(about * off(nearest), farthest):
        return last
    found, there = nearest, set(range(m))
    while there:
        even = torch.tensor([1 / len(there) * (i in there) for i in range(m + 2)]).double()
        if off(even) <= about * off(nearest):
            found = even
            break

        def without(one: int) -> float:
            rest = [other for other in there if other != one]
            return float((columns[rest].mean(dim=0) - g).square().sum())

        if len(there) == 1 or min(map(without, there)) >= off(even):
            break
        there.remove(min(there, key=without))
    if advances(found) and off(found) <= farthest:
        return found
    rows = torch.cat([columns, 0 * g[None]]) - g
    found, shorter = nearest_by_descent(rows), nearest_by_descent(rows[-2:])
    if float((shorter @ rows[-2:]).square().sum()) <= about * float((found @ rows).square().sum()):
        return torch.eye(m + 2).double()[-1]
    found = found[:-1]
    found[found < 0.02 / m] = 0
    scale = float(own.norm() / (found @ columns).norm())
    scaled: Tensor = found * min(max(1.0, scale), 1 / float(found.sum()))
    return scaled


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
    expected = slow_reference(steps, halves, decay)
    own, judge = halves[-1].double()
    chosen = zeno.FLTrust()(torch.cat([steps[-1], own[None]]), FakeOracle(gradient=own)).weights
    torch.testing.assert_close(found.weights, expected[:5] + expected[5] * chosen[:5], atol=3e-3, rtol=0)
    assert found.own == pytest.approx(float(expected[6] + expected[5] * chosen[5]), abs=3e-3)
    update = found.weights @ steps[-1] + found.own * (own + found.own / 2 * (judge - own))
    torch.testing.assert_close(found.update, update)


@pytest.mark.parametrize(
    ("worker", "before", "repeated", "own"),
    [
        ([0.3, 0.0, 0.3], 1.0, 0.5, 0.0),  # helps a little
        ([0.0, 0.0, 0.3], 1.0, 0.04, 1.0),  # noise: about as near as zero, and no step along g
        ([0.0, 0.0, 0.3], 0.0, 0.5, 1.0),
        ([0.02, 0.0, 0.0], 1.0, 0.04, 1.0),  # has converged, but to the server's samples it has not
        ([0.02, 0.0, 0.0], 1.0, 0.5, 0.0),  # which are few: then it stays
        ([-0.4, 0.0, 0.0], 1.0, 0.5, 1.0),  # unless it harms
        ([0.3, 0.0, 1.0], 1.0, 0.5, 0.0),  # farther than zero, but not than the own gradient: it stays
        ([0.3, 0.0, 1.0], 0.0, 0.5, 1.0),  # and does not come in
        ([0.3, 0.0, 1.0], 1.0, 0.1, 1.0),  # the own gradient has noise of another kind at each step, and is used too
        ([0.3, 0.0, 2.0], 1.0, 0.5, 1.0),  # farther than the own gradient
    ],
)
def test_where_the_server_sees_little_a_worker_must_help(
    worker: list[float], before: float, repeated: float, own: float
) -> None:
    """The server's gradients are g = (1, 0, 0) and o = (1, 1.2, 0): 0 is nearer to g than o is."""
    columns = torch.tensor([worker, [1.0, 1.2, 0.0], [1.0, 1.2, 0.0], [0.0, 0.0, 0.0]]).double()
    last = torch.tensor([before, 0.0, 1 - before]).double()
    found = weigh(columns - torch.tensor([1.0, 0.0, 0.0]), [last], repeated)
    assert (float(found[1:].sum()) > 0.4) == own
    assert float(found.sum()) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(
    ("own", "before", "expected"),
    [
        ([1.0, 0.0, 2.5], [0.5, 0.5], [1.0, 0.0]),  # both gradients of the server find the second worker wrong
        ([0.4, 0.0, 2.5], [0.5, 0.5], [0.5, 0.5]),  # the own gradient finds the mean of both better: it was noise
        ([0.4, 0.0, 2.5], [1.0, 0.0], [1.0, 0.0]),
        ([1.0, 0.0, 2.5], [0.0, 1.0], [1.0, 0.0]),
        ([0.4, 0.0, 2.5], [0.0, 1.0], [0.5, 0.5]),  # found anew
    ],
)
def test_with_few_samples_a_worker_is_left_out_if_both_gradients_of_the_server_agree(
    own: list[float], before: list[float], expected: list[float]
) -> None:
    """With g = (1, 2.5, 0), the squared error is 6.25 of the first worker, 6.61 of the mean of both: 6 % more."""
    g = torch.tensor([1.0, 2.5, 0.0]).double()
    columns = torch.tensor([[1.0, 0.0, 0.0], [-0.2, 0.0, 0.0], own, own, [0.0, 0.0, 0.0]]).double()
    found = weigh(columns - g, [torch.tensor([*before, 0.0, 0.0]).double()], repeated=0.5)
    assert found.tolist() == pytest.approx([*expected, 0.0, 0.0])


def test_while_the_memory_is_not_full_it_takes_more_for_both_gradients_to_agree() -> None:
    """As above: 6 % is more than 5 %, but not more than 5 % by half a memory."""
    columns = torch.tensor([[1.0, 0.0, 0.0], [-0.2, 0.0, 0.0], *[[1.0, 0.0, 2.5]] * 2, [0.0, 0.0, 0.0]]).double()
    errors, even = columns - torch.tensor([1.0, 2.5, 0.0]), torch.tensor([0.5, 0.5, 0.0, 0.0]).double()
    assert weigh(errors, [even], repeated=0.5, filled=0.5).tolist() == [0.5, 0.5, 0.0, 0.0]
    assert weigh(errors, [even], repeated=0.5).tolist() == pytest.approx([1.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(("noise_of_own", "helped"), [(10.0, False), (3.0, True)])
def test_the_server_does_not_help_out_because_equal_weights_are_a_little_farther(
    noise_of_own: float, helped: bool
) -> None:
    """Squared errors: 1 of the nearest worker, 1.4 % more of both. The own gradient makes it 1 % or 10 % less."""
    own, zero = [0.0, noise_of_own, 0.0], [0.0, 0.0, -5.0]
    errors = torch.tensor([[1.0, 0.0, 0.0], [1.014, 0.0, 0.0], own, own, zero]).double()
    found = weigh(errors, [torch.tensor([0.5, 0.5, 0.0, 0.0]).double()], repeated=0.0045)
    assert (found.tolist() != [0.5, 0.5, 0.0, 0.0]) == helped
    assert (float(found[2:].sum()) > 0.05) == helped


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
    for t, size in enumerate(at):
        sent = size * TRUTH * torch.tensor([1, 1, 1, -1])[:, None] + noise(t, 4, 0.5)
        halves = size * TRUTH + few + noise(10_000 + t, 2, 0.3)
        found = zeno.ZenoAuto()(sent, FakeOracle(gradient=halves.mean(0), halves=halves), state)
        state = found.state
        assert t < 5 or found.weights.tolist() == pytest.approx([1 / 3] * 3 + [0.0]), t


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
    assert train(steps)[-1].weights.tolist() == pytest.approx([0.22, 0.22, 0.22, 0], abs=0.07)
    huge = [1e12 * noise(60 + t) for t in range(20)]
    steps = [torch.cat([good(t, 3), one, 2 * TRUTH - one]) for t, one in enumerate(huge)]
    assert train(steps)[-1].weights.tolist() == pytest.approx([0.22, 0.22, 0.22, 0, 0], abs=0.07)


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
    assert Memory(**found[-1].state).counts.tolist() == [12, 12, 12, 7, 12, 12]  # type: ignore[arg-type]
    assert float(found[-1].weights[3]) < 0.5 * float(found[-1].weights[:3].mean()), "its bias is remembered"
    assert all(float(one.weights[3]) == 0 for one in found[6:11])


def remembered(counts: list[float], weights: list[float]) -> Memory:
    """Three good workers, two with a bias, the choice and the server, whose own gradient is far off."""
    offs = torch.cat([noise(1, 3, 0.1), noise(4, 1, 0.5).expand(2, D), noise(5, 2, 0.8)])
    times, shares = torch.tensor(counts).double(), torch.tensor(weights).double()
    return replace(Memory.new(5, D, 0, TRUTH), counts=times, errors=offs, target=TRUTH, weights=shares)


def test_the_server_stands_in_while_the_workers_that_it_trusts_are_absent() -> None:
    trusted = [1 / 3, 1 / 3, 1 / 3, 0, 0, 0, 0]
    memory, there = remembered([60.0] * 7, trusted), torch.tensor([False] * 3 + [True] * 4)
    weights, after = memory.weighed(there, torch.zeros(5, 1), span=50)
    assert weights.tolist() == [0, 0, 0, 0, 0, 0, 1]
    weights, _ = after.weighed(torch.ones(7, dtype=torch.bool), torch.zeros(8, 1), span=50)
    assert weights.tolist() == pytest.approx(trusted), "when they are back, nothing has changed"


@pytest.mark.parametrize(
    ("counts", "tried"),
    [
        ([20.0] * 5, [False] * 5),  # all take turns, and are there at one step in three
        ([1.0] * 5, [True] * 5),  # for the first time
        ([60.0, 60, 60, 60, 20], [False] * 4 + [True]),  # joined 20 steps ago
        ([200.0, 200, 200, 200, 60], [False] * 5),  # long enough ago
    ],
)
def test_who_joined_late_is_tried_and_who_takes_turns_is_not(counts: list[float], tried: list[bool]) -> None:
    memory = remembered([*counts, 60.0, 60.0], [0.0] * 6 + [1.0])
    assert memory._late(span=50).tolist() == [*tried, False, False]


def test_workers_can_join_late_and_cannot_disappear() -> None:
    first = train([good(t, 3) for t in range(10)])[-1]
    joined = zeno.ZenoAuto()(good(10, 5), oracle(10), first.state)
    assert Memory(**joined.state).counts.tolist() == [11, 11, 11, 1, 1, 11, 11]  # type: ignore[arg-type]
    for t in range(11, 60):
        bad = torch.tensor([1, 1, 1, 1, -1])[:, None]
        joined = zeno.ZenoAuto()(bad * good(t, 5), oracle(t), joined.state)
    assert float(joined.weights[3]) > 0.4 * float(joined.weights[:3].mean())
    assert float(joined.weights[4]) == 0
    with pytest.raises(ValueError, match=r"A memory of 3 workers does not fit 2. Pass NaN for workers that left."):
        zeno.ZenoAuto()(good(11, 2), oracle(11), first.state)


def test_the_memory_is_sketches_of_the_workers_and_three_more() -> None:
    m, k, d = 6, 64, 5000
    rows = torch.randn(m, d)
    state = zeno.ZenoAuto(sketch=k)(rows, FakeOracle(gradient=torch.randn(d)), None).state
    assert isinstance(state, dict)
    numbers = sum(value.numel() for value in state.values() if isinstance(value, Tensor))
    assert numbers == (m + 3) * k + 2 * (m + 2) + 2


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
    assert error <= 1.02 * (off + 3 * apart)
    weights = torch.rand(20, m, generator=rng)
    mixtures = weights / weights.sum(dim=1, keepdim=True) @ sent
    best = min(float((mixture - TRUTH).norm()) for mixture in [*sent, *mixtures])
    assert error <= 1.02 * (2 * best + 3 * off + apart)


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
        columns = torch.cat([sent, fltrust_of(sent, halves[0])[None], halves[:1]])
        now = {"errors": columns - gradient, "judge": halves[1] - gradient, "truth": gradient}
        rate = (1 - decay) / (1 - decay ** (t + 1))
        means = {name: means.get(name, 0 * one) + rate * (one - means.get(name, 0 * one)) for name, one in now.items()}

        def size(mean: Tensor, one: Tensor) -> float:
            return math.sqrt(float(mean.square().sum() + (1 - decay) * one.square().sum()))

        weights = Memory(**found.state).weights.float()  # type: ignore[arg-type]
        error = float((weights @ means["errors"] - (1 - weights.sum()) * means["truth"]).norm())
        off = size(means["judge"], now["judge"])
        apart = size(means["errors"][-1] - means["judge"], now["errors"][-1] - now["judge"])
        assert error <= 1.02 * (off + 3 * apart)
        if num_good:
            best = size(means["errors"][:num_good].mean(dim=0), now["errors"][:num_good].mean(dim=0))
            assert error <= 1.02 * (2 * best + 3 * off + apart)
        squares.append(error**2)
    variance = 0.5**2 * D * (1 - decay) / (1 + decay)  # of the decayed mean of one half's gradient
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


def test_the_server_alone_ignores_the_workers() -> None:
    found = zeno.ServerAlone()(torch.tensor([[math.nan, 1.0], [5.0, 5.0]]), FakeOracle(gradient=[1.0, -2.0]))
    assert (found.update.tolist(), found.own, found.kept.tolist()) == ([1.0, -2.0], 1.0, [False, False])
