"""Values worked out by hand, or published, one rule at a time."""

import math

import pytest
import torch
from torch import Tensor

import zeno
from support.oracle import FakeOracle
from zeno.rules.krum import neighbourhoods
from zeno.training.settings import make_rule


def own(gradient: list[float], lr: float = 1.0) -> FakeOracle:
    return FakeOracle(gradient=gradient, lr=lr)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


@pytest.mark.parametrize("rule", [zeno.Krum(faulty=1), zeno.Zeno(trim=1)])
def test_one_huge_row_counts_as_missing_for_a_rule_that_ranks(rule: zeno.Rule) -> None:
    candidates = torch.tensor([[1.0, 2.0], [1.5, 2.5], [2.0, 1.0], [1.0, 1.0], [1e38, 1e38]])
    without = candidates.clone()
    without[4] = math.nan
    one = rule(candidates, FakeOracle(torch.ones(5)))
    other = rule(without, FakeOracle(torch.ones(5)))
    assert torch.equal(one.update, other.update)
    assert torch.equal(one.kept, other.kept)


def test_krum_of_the_papers_example_chooses_the_wrong_row() -> None:
    # A comment in the paper's source: four good values around 1 and two faulty ones at -1, of which Krum takes one.
    # With b = 2 of 6 it breaks Krum's own condition, 2b + 2 < m, so the rule raises; the measure shows the point.
    values = column(-1, -1, 0.2, 0.4, 1.6, 1.8)
    sums = neighbourhoods((values - values.T).double().square(), faulty=2)  # the 2 nearest others
    assert sums.tolist() == pytest.approx([1.44, 1.44, 1.48, 1.48, 1.48, 2.0])
    assert int(sums.argmin()) == 0
    with pytest.raises(ValueError, match="needs more than 2"):
        zeno.Krum(faulty=2)(values)


def test_multi_krum_averages_the_densest() -> None:
    # m = 5, faulty = 1: the 2 nearest others. 0: 1 + 4, 1: 1 + 1, 2: 1 + 4, 5: 9 + 16, 100 is last.
    candidates = column(0, 1, 2, 5, 100)
    result = zeno.MultiKrum(faulty=1)(candidates)
    assert result.kept.tolist() == [True, True, True, True, False]
    assert result.update.tolist() == [2.0]
    assert zeno.MultiKrum(faulty=1, keep=1)(candidates).update.tolist() == [1.0]
    with pytest.raises(ValueError, match=r"keep of at most candidates - faulty. Found keep=5 with 5 candidates"):
        zeno.MultiKrum(faulty=1, keep=5)(candidates)


def test_bulyan_takes_values_near_the_median_of_what_krum_chose() -> None:
    # m = 7, faulty = 1: 5 chosen, of these the 3 values nearest the median. 1000 is never chosen, and neither is 9.
    result = zeno.Bulyan(faulty=1)(column(0, 1, 2, 3, 4, 9, 1000))
    assert result.kept.tolist() == [True] * 5 + [False] * 2
    assert result.update.tolist() == [2.0]


def test_geometric_median_of_a_triangle_is_its_fermat_point() -> None:
    # An equilateral triangle: its centre. With one corner of more than 120 degrees: that corner.
    triangle = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(0.75)]])
    assert zeno.GeometricMedian()(triangle).update.tolist() == pytest.approx([0.5, math.sqrt(0.75) / 3], abs=1e-6)
    flat = torch.tensor([[-1.0, 0.0], [0.0, 0.1], [1.0, 0.0]])
    assert zeno.GeometricMedian()(flat).update.tolist() == pytest.approx([0.0, 0.1], abs=1e-5)


def test_geometric_median_is_the_row_that_most_workers_sent() -> None:
    candidates = torch.tensor([[1.0, 2.0]] * 4 + [[1e30, -1e30]] * 3)
    assert zeno.GeometricMedian()(candidates).update.tolist() == pytest.approx([1.0, 2.0], rel=1e-5)


def test_centered_clipping_starts_at_the_last_update() -> None:
    # From 0, radius 1, one iteration: (1 + 1 - 1) / 3. From there, 1/3: (2/3 * 1 + ... each clipped to 1 of distance.
    rule = zeno.CenteredClipping(radius=1.0, iterations=1)
    first = rule(column(5.0, 0.5, -3.0))
    assert first.update.tolist() == pytest.approx([(1 + 0.5 - 1) / 3])
    second = rule(column(5.0, 0.5, -3.0), state=first.state)
    assert second.update.tolist() == pytest.approx([1 / 6 + (1 + (0.5 - 1 / 6) - 1) / 3])
    twice = zeno.CenteredClipping(radius=1.0, iterations=2)(column(5.0, 0.5, -3.0))
    assert twice.update.tolist() == pytest.approx(second.update.tolist())


def test_what_the_caller_does_to_an_update_does_not_reach_the_next_step() -> None:
    rule = zeno.CenteredClipping(radius=1.0)
    first = rule(column(5.0, 0.5))
    expected = rule(column(5.0, 0.5), state=first.state).update.clone()
    first.update.zero_()
    assert torch.equal(rule(column(5.0, 0.5), state=first.state).update, expected)


def test_means_around_a_centre_are_worked_out_by_hand() -> None:
    # The median of 0, 1, 2, 10, 20 is 2; nearest 3: 2, 1, 0. The trimmed mean (1) is 13/3; nearest 4: 2, 1, 0, 10.
    candidates = column(0, 1, 2, 10, 20)
    assert zeno.MeaMed(faulty=2)(candidates).update.tolist() == [1.0]
    assert zeno.Phocas(trim=1)(candidates).update.tolist() == [3.25]


def test_mda_and_smea_choose_the_tightest_group() -> None:
    candidates = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [3.0, 0.0]])
    for rule in (zeno.MDA(faulty=1), zeno.SMEA(faulty=1)):
        result = rule(candidates)
        assert result.kept.tolist() == [True, True, True, True, False]
        assert result.update.tolist() == [0.5, 0.5]


def test_smea_says_when_there_are_too_many_groups() -> None:
    with pytest.raises(ValueError, match=r"SMEA tries every group of candidates. Found .* Use CAF"):
        zeno.SMEA(faulty=40)(torch.zeros(100, 1))


def test_cge_drops_the_longest() -> None:
    result = zeno.CGE(faulty=1)(torch.tensor([[3.0, 4.0], [0.0, 1.0], [1.0, 0.0]]))
    assert result.update.tolist() == [0.5, 0.5]
    assert result.scores is not None
    assert result.scores.tolist() == [-5.0, -1.0, -1.0]


def test_caf_drops_who_widens_the_widest_direction() -> None:
    result = zeno.CAF(faulty=1)(column(0.0, 1.0, 2.0, 3.0, 100.0))
    assert not result.kept[4]
    assert 0 <= float(result.update) <= 3


def test_dnc_drops_who_stands_out_and_draws_other_coordinates_at_every_step() -> None:
    torch.manual_seed(0)
    candidates = torch.randn(9, 200)
    candidates[:2] += 5
    rule = zeno.DnC(faulty=2, coordinates=50, seed=3)
    result = rule(candidates)
    assert result.kept.tolist() == [False] * 2 + [True] * 7
    assert result.state == (3, 1)
    few = zeno.DnC(faulty=4, coordinates=2, repeats=1)
    kept = [few(candidates, state=(3, step)).kept.tolist() for step in range(5)]
    assert any(k != kept[0] for k in kept)
    assert kept == [few(candidates, state=(3, step)).kept.tolist() for step in range(5)]


@pytest.mark.parametrize("sizes", [(1e12, 1e6, 1e6, 1e6), (1e12, 1e12, 1e6, 1e3), (1e12, 1e9, 1e6, 1e3)])
def test_dnc_tolerates_candidates_of_very_different_sizes_after_arc(sizes: tuple[float, ...]) -> None:
    torch.manual_seed(0)
    candidates = 1 + torch.randn(20, 500)
    candidates[:4] = torch.tensor(sizes)[:, None] * torch.randn(500)
    good = candidates[4:].mean(dim=0)
    assert (zeno.DnC(faulty=4)(candidates).update - good).norm() > 1e3  # as its documentation says
    after_arc = zeno.chain(zeno.ARC(faulty=4), zeno.DnC(faulty=4))(candidates)
    assert (after_arc.update - good).norm() < 0.1 * good.norm()
    assert not after_arc.kept[:4].any()


def test_dnc_tolerates_candidates_that_stand_out_by_the_same_size() -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        candidates = 1 + torch.randn(20, 500)
        candidates[:4] = 1e12 * torch.randn(500)
        assert zeno.DnC(faulty=4)(candidates).kept.tolist() == [False] * 4 + [True] * 16


def test_signguard_drops_odd_sizes_and_odd_signs() -> None:
    good = torch.tensor([[1.0, 1.0, 1.0, -1.0]])
    candidates = torch.cat([good, good, 1.2 * good, 0.8 * good, -good, 50 * good, 0.01 * good])
    result = zeno.SignGuard()(candidates)
    assert result.kept.tolist() == [True] * 4 + [False] * 3
    # The median norm is 2: 1.2 times good is clipped to it.
    assert result.update.tolist() == pytest.approx((good[0] * (1 + 1 + 1 + 0.8) / 4).tolist())


def test_monna_averages_what_is_nearest_the_servers_gradient() -> None:
    result = zeno.MoNNA(faulty=2)(column(1.0, 2.0, -9.0, 30.0), own([1.2]))
    assert result.kept.tolist() == [True, True, False, False]
    assert result.update.tolist() == [1.5]


def test_fltrust_weighs_by_cosine_and_takes_the_length_of_the_servers_gradient() -> None:
    # Cosines 1, 0.6 and -1; lengths 10, 5 and 1; the server's gradient has length 2.
    candidates = torch.tensor([[10.0, 0.0], [3.0, 4.0], [-1.0, 0.0]])
    result = zeno.FLTrust()(candidates, own([2.0, 0.0]))
    assert result.scores is not None
    assert result.scores.tolist() == pytest.approx([1.0, 0.6, -1.0])
    assert result.update.tolist() == pytest.approx([(2.0 + 0.6 * 1.2) / 1.6, 0.6 * 1.6 / 1.6])
    assert result.kept.tolist() == [True, True, False]
    away = zeno.FLTrust()(candidates[2:], own([2.0, 0.0]))
    assert away.update.tolist() == [0.0, 0.0]
    assert not away.kept.any()


def test_zenopp_accepts_what_points_along_the_servers_gradient_and_gives_it_its_length() -> None:
    # v = (2, 0), lr = .5. Rescaled to length 2: (2, 0), (1.2, 1.6), (-2, 0), (0, 2).
    candidates = torch.tensor([[10.0, 0.0], [3.0, 4.0], [-1.0, 0.0], [0.0, 7.0], [0.0, 0.0]])
    oracle = own([2.0, 0.0], lr=0.5)
    result = zeno.ZenoPP(rho=0.25)(candidates, oracle)
    assert result.scores is not None
    assert result.scores.tolist() == pytest.approx([2 - 1, 1.2 - 1, -2 - 1, -1, 0])
    assert result.kept.tolist() == [True, True, False, False, False]
    assert result.update.tolist() == pytest.approx([1.6, 0.8])
    assert result.weights.tolist() == pytest.approx([0.1, 0.2, 0, 0, 0])
    lenient = zeno.ZenoPP(rho=0.25, epsilon=2.0)(candidates, oracle)  # 1 more for each
    assert lenient.kept.tolist() == [True, True, False, True, False]
    none = zeno.ZenoPP()(candidates[2:3], oracle)
    assert none.update.tolist() == [0.0, 0.0]
    assert not none.kept.any()


def test_zenopp_with_one_arrival_is_the_published_algorithm() -> None:
    """Each arrival alone; the server's gradient is that of the first of three."""
    rule, state = zeno.ZenoPP(rho=0.0, every=3), None
    updates: list[list[float]] = []
    for arrival in range(6):
        oracle = own([1.0 + arrival, 0.0])  # changes at every step
        found = rule(torch.tensor([[math.nan, 0.0], [0.5, 0.0]]), oracle, state)
        state, updates = found.state, [*updates, found.update.tolist()]
    assert updates == [[1.0, 0.0]] * 3 + [[4.0, 0.0]] * 3


def test_zenopp_with_a_gradient_of_zero_moves_nothing() -> None:
    result = zeno.ZenoPP()(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), own([0.0, 0.0]))
    assert result.update.tolist() == [0.0, 0.0]


def test_afl_guard_accepts_what_is_near_the_servers_gradient() -> None:
    # v = (2, 0): distances 1, 3, 4 and 2 of at most 1.5 * 2.
    candidates = torch.tensor([[3.0, 0.0], [2.0, 3.0], [-2.0, 0.0], [0.0, 0.0]])
    result = zeno.AFLGuard()(candidates, own([2.0, 0.0]))
    assert result.scores is not None
    assert result.scores.tolist() == pytest.approx([2.0, 0.0, -1.0, 1.0])
    assert result.kept.tolist() == [True, True, False, True]
    assert result.update.tolist() == pytest.approx([5 / 3, 1.0])
    none = zeno.AFLGuard(radius=0.1)(candidates, own([2.0, 0.0]))
    assert none.update.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("rule", [zeno.ZenoPP(every=2), zeno.AFLGuard(every=2)])
def test_a_kept_gradient_is_one_of_this_model(rule: zeno.Rule) -> None:
    state = rule(torch.ones(1, 2), own([1.0, 1.0])).state
    assert rule(torch.ones(1, 2), None if isinstance(rule, zeno.AFLGuard) else own([9.0, 9.0]), state).kept.all()
    with pytest.raises(ValueError, match=r"needs a gradient of 3 numbers. Found \[2\]"):
        rule(torch.ones(1, 3), own([1.0] * 3), state)


def test_bant_averages_by_trust_over_the_steps() -> None:
    # Promises .75, .25, 0, 0 of trust .25 each.
    first = zeno.BANT()(column(1.0, 2.0, 9.0, 5.0), FakeOracle(torch.tensor([3.0, 1.0, -1.0, 0.0])))
    assert isinstance(first.state, Tensor)
    assert first.state.tolist() == [0.5, 0.25, 0.125, 0.125]
    assert first.weights.tolist() == pytest.approx([2 / 3, 1 / 3, 0, 0])
    assert first.update.tolist() == pytest.approx([4 / 3])
    # Worker 0 is absent: it keeps .5, and the promises of the others are shares of the remaining .5.
    second = zeno.BANT()(column(math.nan, 2.0, 9.0, 5.0), FakeOracle(torch.tensor([9.0, 1.0, 1.0, 0.0])), first.state)
    assert isinstance(second.state, Tensor)
    assert second.state.tolist() == [0.5, 0.25, 0.1875, 0.0625]
    assert second.weights.tolist() == pytest.approx([0, 4 / 7, 3 / 7, 0])
    assert first.state.tolist() == [0.5, 0.25, 0.125, 0.125], "the state was written to"


def test_bant_makes_no_step_where_no_candidate_lowers_the_loss() -> None:
    trust = torch.tensor([0.9, 0.1], dtype=torch.float64)
    result = zeno.BANT()(column(1.0, 2.0), FakeOracle(torch.tensor([-1.0, math.nan])), trust)
    assert result.update.tolist() == [0.0]
    assert not result.kept.any()
    assert isinstance(result.state, Tensor)
    assert result.state.tolist() == [0.9, 0.1]


def test_workers_of_bant_regain_trust_after_any_number_of_steps_without() -> None:
    trusted = zeno.BANT()(column(1.0, 2.0), FakeOracle(torch.tensor([1.0, -1.0])))
    for _ in range(2000):
        trusted = zeno.BANT()(column(1.0, 2.0), FakeOracle(torch.tensor([1.0, -1.0])), trusted.state)
    alone = zeno.BANT()(column(math.nan, 2.0), FakeOracle(torch.tensor([1.0, 1.0])), trusted.state)
    assert alone.update.tolist() == [2.0]


def test_auto_bant_multiplies_weights_by_exponents_of_their_slopes() -> None:
    # The mixture of 1 and -1 with equal weights is 0: slopes lr * 2 * u = 1 and -1, and weights 3 to 1.
    candidates, step_size = column(1.0, -1.0), math.log(3) / 2
    one = zeno.AutoBANT(steps=1, step_size=step_size)(candidates, own([2.0], lr=0.5))
    assert one.weights.tolist() == pytest.approx([0.75, 0.25])
    assert one.update.tolist() == pytest.approx([0.5])
    # After a step of .5, the gradient is 2 - .25.
    two = zeno.AutoBANT(steps=2, step_size=step_size)(candidates, own([2.0], lr=0.5))
    assert float(two.weights[0] / two.weights[1]) == pytest.approx(3 * 3**0.875)


def test_auto_bant_takes_one_learning_rate_per_parameter() -> None:
    # The mixture is (.5, .5), the gradient after it (2 - .25, 100), and the slopes .5 * 1.75 and 0.
    oracle = FakeOracle(gradient=[2.0, 100.0], lr=torch.tensor([0.5, 0.0]))
    result = zeno.AutoBANT(steps=1, step_size=1.0)(torch.eye(2), oracle)
    assert float(result.weights[0] / result.weights[1]) == pytest.approx(math.exp(0.875))


def test_auto_bant_finds_the_mixture_of_least_loss() -> None:
    # The loss after u is u^2 / 2 - u, least at 1 = 3/4 * 0 + 1/4 * 4.
    result = zeno.AutoBANT(steps=500, step_size=0.5)(column(0.0, 4.0), own([1.0]))
    assert result.weights.tolist() == pytest.approx([0.75, 0.25])


class Overflowing(FakeOracle):
    """Has no finite gradient after a step beyond 1e6."""

    def gradient(self, after: Tensor | None = None) -> Tensor:
        gradient = super().gradient(after)
        return gradient if after is None or after.abs().max() < 1e6 else gradient * math.nan


def test_auto_bant_leaves_out_candidates_after_which_the_loss_is_not_finite() -> None:
    candidates = column(1.0, 1e30, 3.0, -1e20)
    result = zeno.AutoBANT()(candidates, Overflowing(gradient=[1.0]))
    assert result.kept.tolist() == [True, False, True, False]
    assert torch.equal(result.update, zeno.AutoBANT()(column(1.0, 3.0), own([1.0], lr=0.1)).update)
    with pytest.raises(zeno.TooFewUsable, match=r"needs 1 usable candidates. Found 0 of 2"):
        zeno.AutoBANT()(candidates[[1, 3]], Overflowing(gradient=[1.0]))
    with pytest.raises(ValueError, match="needs a finite gradient on the server's samples"):
        zeno.AutoBANT()(candidates, Overflowing(gradient=[math.nan]))


def test_bygars_subtracts_candidates_that_point_away() -> None:
    # Inner products 2, -2 and 0 with the server's gradient, and half of that as reputations.
    rule = zeno.ByGARS(rate=0.5)
    first = rule(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0]]), own([2.0, 0.0]))
    assert first.weights.tolist() == [0.5, -0.5, 0.0]
    assert first.kept.tolist() == [True, True, False]
    assert first.update.tolist() == [1.0, 0.0]
    # Inner products -2, -2 and 4: reputations .5 - 1, -.5 - 1 and 0 + 2.
    second = rule(torch.tensor([[-1.0, 0.0], [-1.0, 0.0], [2.0, 0.0]]), own([2.0, 0.0]), first.state)
    assert isinstance(second.state, Tensor)
    assert second.state.tolist() == [-0.5, -1.5, 2.0]
    assert second.update.tolist() == [(0.5 + 1.5 + 4.0) / 4, 0.0]
    # A worker without a candidate keeps its reputation.
    third = rule(torch.tensor([[math.nan, 0.0], [0.0, 1.0], [0.0, 1.0]]), own([2.0, 0.0]), second.state)
    assert isinstance(third.state, Tensor)
    assert third.state.tolist() == [-0.5, -0.75, 1.0]


def test_bygars_clips_candidates_to_the_length_of_the_servers_gradient() -> None:
    # (30, 40) becomes (1.2, 1.6), with the reputation .05 * 2.4; (0, 1) has none.
    result = zeno.ByGARS()(torch.tensor([[30.0, 40.0], [0.0, 1.0]]), own([2.0, 0.0]))
    assert result.update.tolist() == pytest.approx([1.2, 1.6])
    assert isinstance(result.state, Tensor)
    assert result.state.tolist() == pytest.approx([0.12, 0.0])
    assert zeno.ByGARS()(torch.ones(2, 2), own([0.0, 0.0])).update.tolist() == [0.0, 0.0]


def test_fedgreed_grows_the_mean_while_its_loss_falls() -> None:
    # f_r(x) = x^2 / 2 at x = 1 with lr = 1. Distances from the best step, 1: .3, .4, .5 and 2 of the candidates, and
    # .3, .05 and .13 of the means of the best one, two and three.
    oracle = FakeOracle(lambda c: 0.5 - (1 - c[:, 0]).double() ** 2 / 2)
    result = zeno.FedGreed()(column(-1.0, 1.5, 0.6, 1.3), oracle)
    assert result.kept.tolist() == [False, False, True, True]
    assert result.update.tolist() == pytest.approx([0.95])
    # The best one is kept even if it raises the loss, and one of an unknown loss never is.
    assert zeno.FedGreed()(column(-3.0, -2.0), oracle).update.tolist() == [-2.0]
    assert zeno.FedGreed()(column(1.0, 1.0), FakeOracle(torch.tensor([-1.0, math.nan]))).kept.tolist() == [True, False]
    with pytest.raises(zeno.TooFewUsable):
        zeno.FedGreed()(column(1.0, 1.0), FakeOracle(torch.tensor([math.nan, math.nan])))


@pytest.mark.parametrize("rule", [zeno.BANT(), zeno.AutoBANT(), zeno.ByGARS(), zeno.FedGreed()])
def test_rules_on_64_samples_need_an_oracle(rule: zeno.Rule) -> None:
    assert rule.samples == 64
    with pytest.raises(ValueError, match=r"needs an oracle for the server's samples. Found None. Pass oracle="):
        rule(torch.zeros(3, 2))


@pytest.mark.parametrize("rate", [0, -0.1, 1.5, math.nan, "a"])
def test_rates_are_shares(rate: float) -> None:
    for make in (zeno.BANT, zeno.ByGARS):
        with pytest.raises(ValueError, match="needs rate as a number above 0 and at most 1"):
            make(rate)


GRADIENT_RULES = [
    zeno.FLTrust(),
    zeno.MoNNA(faulty=1),
    zeno.Zeno(trim=1, score="first_order"),
    zeno.ByGARS(),
    zeno.ZenoPP(),
    zeno.AFLGuard(),
]


@pytest.mark.parametrize("rule", GRADIENT_RULES)
def test_rules_that_trust_the_server_say_what_they_need(rule: zeno.Rule) -> None:
    with pytest.raises(ValueError, match=r"needs an oracle for the server's samples. Found None. Pass oracle="):
        rule(torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"needs an oracle for the server's samples. Found <function"):
        rule(torch.zeros(3, 2), lambda c: torch.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"needs a gradient of 2 numbers. Found shape \[1\]"):
        rule(torch.zeros(3, 2), own([1.0]))


def test_first_order_zeno_follows_the_servers_gradient() -> None:
    # lr * <g, u> - rho * ||u||^2 with lr = .5, g = (2, 0), rho = .01.
    rule = zeno.Zeno(trim=1, rho=0.01, score="first_order")
    result = rule(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [3.0, 4.0]]), own([2.0, 0.0], lr=0.5))
    assert result.scores is not None
    assert result.scores.tolist() == pytest.approx([0.99, -1.01, 2.75])
    assert result.update.tolist() == [2.0, 2.0]
    with pytest.raises(ValueError, match=r"score as one of exact, first_order. Found score='second'"):
        zeno.Zeno(trim=1, score="second")


@pytest.mark.parametrize("wrong", [0, -1.0, math.nan, math.inf, "1"])
def test_sizes_have_to_be_positive(wrong: float) -> None:
    for make in (zeno.Clip, zeno.CenteredClipping, zeno.GeometricMedian):
        with pytest.raises(ValueError, match="as a finite number above 0"):
            make(wrong)


@pytest.mark.parametrize("name", zeno.RULES)
def test_float64_beyond_the_root_of_its_range_counts_as_infinite(name: str) -> None:
    candidates = torch.randn(13, 7, dtype=torch.float64)
    candidates[0] = 1e160
    rule = make_rule(name, {}, {"trim": 2})
    update = rule(candidates, own([1.0] * 7)).update
    assert update.isfinite().all()
    assert update.abs().max() < 1e3 or name == "mean"  # which no sum of squares has to be known for


def test_means_are_worked_out_by_hand() -> None:
    candidates = torch.tensor([[1.0, 0.0], [2.0, 8.0], [6.0, 4.0], [11.0, -3.0]])
    assert zeno.Mean()(candidates).update.tolist() == [5.0, 2.25]
    assert zeno.TrimmedMean(trim=1)(candidates).update.tolist() == [4.0, 2.0]  # of 2, 6 and of 0, 4


def test_median_of_an_even_number_is_the_mean_of_the_two_middle_values() -> None:
    result = zeno.Median()(torch.tensor([[1.0, 9.0], [2.0, 0.0], [4.0, 5.0], [100.0, 7.0]]))
    assert result.update.tolist() == [3.0, 6.0]


def test_medians_of_huge_values_do_not_overflow() -> None:
    assert zeno.Median()(torch.full((2, 1), 3e38)).update.tolist() == [torch.tensor(3e38).item()]
    assert zeno.Mean()(torch.full((4, 1), 3e38)).update.isfinite().all()


def test_krum_follows_faulty_workers_that_agree_while_good_ones_are_spread_out() -> None:
    # m = 7, faulty = 2: the 3 nearest others. -1: 0 + 0 + 1 = 1; the best of the good, 0: 1 + 1 + 1 = 3.
    result = zeno.Krum(faulty=2)(torch.tensor([[0.0], [2.0], [4.0], [6.0], [-1.0], [-1.0], [-1.0]]))
    assert result.kept.tolist() == [False, False, False, False, True, False, False]


def test_krum_scores_are_worked_out_by_hand() -> None:
    # m = 5, faulty = 1: the 2 nearest others. 0: 1 + 4, 1: 1 + 1, 2: 1 + 4, 5: 9 + 16, 100: 95^2 + 98^2.
    result = zeno.Krum(faulty=1)(torch.tensor([[0.0], [1.0], [2.0], [5.0], [100.0]]))
    assert result.scores is not None
    assert result.scores.tolist() == [-5.0, -2.0, -5.0, -25.0, -(95.0**2 + 98.0**2)]
    assert result.update.tolist() == [1.0]


def test_krum_sees_differences_late_in_training() -> None:
    # Candidates that agree in five digits: a float32 Gram matrix cannot rank them.
    torch.manual_seed(0)
    candidates = 1 + 1e-5 * torch.randn(7, 20_000)
    candidates[3] = candidates.double().mean(dim=0).float()
    assert zeno.Krum(faulty=2)(candidates).kept.tolist() == [i == 3 for i in range(7)]


@pytest.mark.parametrize(("m", "faulty"), [(1, 0), (2, 0), (4, 1), (20, 9), (20, 12)])
def test_krum_raises_for_more_faulty_than_it_tolerates(m: int, faulty: int) -> None:
    with pytest.raises(ValueError, match=rf"more than 2 \* faulty \+ 2 candidates. Found {m} with faulty={faulty}"):
        zeno.Krum(faulty=faulty)(torch.zeros(m, 2))


def test_zeno_keeps_the_candidates_that_lower_the_loss() -> None:
    # f_r(x) = x^2 / 2 at x = 1 with lr = 1: descent(u) = 1/2 - (1 - u)^2 / 2, best at u = 1.
    candidates = torch.tensor([[-1.0], [1.0], [0.5], [-10.0], [1.5]])
    result = zeno.Zeno(trim=3, rho=0.01)(candidates, FakeOracle(lambda c: 0.5 - (1 - c[:, 0]) ** 2 / 2))
    assert result.scores is not None
    assert result.scores.tolist() == pytest.approx([-1.51, 0.49, 0.3725, -61.0, 0.3525])
    assert result.kept.tolist() == [False, True, True, False, False]
    assert result.update.tolist() == [0.75]


def test_zeno_survives_all_but_one_faulty_worker() -> None:
    good = torch.tensor([[1.0, 2.0]])
    candidates = torch.cat([-5 * good.expand(19, 2), good])
    assert zeno.Zeno(trim=19)(candidates, FakeOracle(lambda c: c @ good[0])).update.tolist() == [1.0, 2.0]


def test_zeno_drops_large_candidates_through_rho() -> None:
    candidates = torch.tensor([[1.0], [100.0]])
    assert zeno.Zeno(trim=1, rho=1e-3)(candidates, FakeOracle(torch.tensor([1.0, 2.0]))).kept.tolist() == [True, False]
    assert zeno.Zeno(trim=1, rho=0)(candidates, FakeOracle(torch.tensor([1.0, 2.0]))).kept.tolist() == [False, True]


def test_a_score_of_nan_ranks_last() -> None:
    candidates = torch.ones(4, 2)
    descents = torch.tensor([math.nan, -1e30, math.nan, -2e30])
    assert zeno.Zeno(trim=2)(candidates, FakeOracle(descents)).kept.tolist() == [False, True, False, True]
    with pytest.raises(zeno.TooFewUsable):
        zeno.Zeno(trim=1)(candidates, FakeOracle(descents))


def test_a_candidate_that_is_not_finite_never_wins_whatever_its_descent() -> None:
    candidates = torch.tensor([[math.inf], [1.0], [math.nan], [2.0]])
    descents = torch.tensor([1e30, 0.0, math.inf, 0.0])
    result = zeno.Zeno(trim=2)(candidates, FakeOracle(descents))
    assert result.update.tolist() == [1.5]


@pytest.mark.parametrize("m", [4, 100])  # an unstable sort happens to keep the order of a few
def test_zeno_breaks_ties_by_the_lower_row(m: int) -> None:
    result = zeno.Zeno(trim=m // 2, rho=0)(torch.arange(m)[:, None].float(), FakeOracle(torch.zeros(m)))
    assert result.kept.tolist() == [i < m // 2 for i in range(m)]


@pytest.mark.parametrize("trim", [-1, 20, 25, 1.5])
def test_zeno_raises_for_a_trim_outside_of_0_to_m_minus_1(trim: float) -> None:
    with pytest.raises(ValueError, match="trim"):
        zeno.Zeno(trim=trim)(torch.zeros(20, 2), FakeOracle(torch.zeros(20)))  # type: ignore[arg-type]


@pytest.mark.parametrize("rho", [-1e-9, math.nan, math.inf])
def test_zeno_raises_for_a_rho_that_is_no_penalty(rho: float) -> None:
    with pytest.raises(ValueError, match="rho"):
        zeno.Zeno(trim=1, rho=rho)


def test_zeno_raises_without_an_oracle() -> None:
    with pytest.raises(ValueError, match=r"needs an oracle for the server's samples. Found None"):
        zeno.Zeno(trim=1)(torch.zeros(3, 2))
    with pytest.raises(ValueError, match="one descent for each of the 3"):
        zeno.Zeno(trim=1)(torch.zeros(3, 2), FakeOracle(torch.zeros(2)))


def test_trimmed_mean_raises_where_it_would_trim_everything() -> None:
    with pytest.raises(ValueError, match=r"more than 2 \* trim candidates. Found 4 with trim=2"):
        zeno.TrimmedMean(trim=2)(torch.zeros(4, 1))


def test_a_row_that_overflows_float32_does_not_look_like_a_great_step() -> None:
    oracle = own([1.0] * 262_144)
    candidates = 1 + 0.1 * torch.randn(5, 262_144)
    candidates[4, :65_536], candidates[4, 65_536:] = 1e34, -4e33  # <u, gradient> = -1.3e38
    assert not zeno.Zeno(trim=1, score="first_order")(candidates, oracle).kept[4]
    assert not zeno.FLTrust()(candidates, oracle).kept[4]


def test_one_huge_row_does_not_stop_a_chain() -> None:
    candidates = torch.randn(5, 3)
    candidates[4] = 3e38
    rule = zeno.chain(zeno.Clip(2.0), zeno.Zeno(trim=1, score="first_order"))
    assert rule(candidates, own([1.0] * 3)).update.isfinite().all()
    crowd = torch.full((13, 7), 1e19)
    assert zeno.chain(zeno.Clip(2.0), zeno.CGE(faulty=0))(crowd).scores.tolist() == pytest.approx([-2.0] * 13)  # type: ignore[union-attr]
    clipped = zeno.chain(zeno.Clip(2.0), zeno.FLTrust())(crowd, own([1.0] * 7)).update
    assert clipped.tolist() == pytest.approx([1.0] * 7)


def test_bulyan_tells_two_tight_camps_apart() -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        camp = torch.randn(1, 5)
        candidates = torch.cat([camp + 1e-5 * torch.randn(6, 5), -camp + 1e-5 * torch.randn(7, 5)])
        exact = zeno.Bulyan(faulty=2)(candidates.double())
        torch.testing.assert_close(zeno.Bulyan(faulty=2)(candidates).update, exact.update.float(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("rule", [zeno.Median(), zeno.TrimmedMean(4), zeno.MeaMed(2), zeno.Phocas(2)])
@pytest.mark.parametrize("m", [12, 18, 300])
def test_numbers_at_the_edge_stay_inside_for_any_number_of_workers(rule: zeno.Rule, m: int) -> None:
    largest = torch.finfo(torch.float32).max
    assert rule(torch.full((m, 2), largest)).update.tolist() == pytest.approx([largest] * 2, rel=1e-5)


def test_a_server_gradient_that_is_not_finite_raises() -> None:
    for rule in (zeno.MoNNA(faulty=1), zeno.FLTrust(), zeno.ByGARS()):
        with pytest.raises(ValueError) as raised:
            rule(torch.ones(3, 1), own([math.nan]))
        assert str(raised.value) == (
            f"{rule} needs a finite gradient on the server's samples. Found NaN or Inf in it. The parameters or the "
            "samples are not finite, or lr is too high: go back to an earlier checkpoint with a lower lr, or check the "
            "samples."
        )
    oracle = own([1.0, 1.0])
    oracle.gradient_here.requires_grad_(True)
    assert not zeno.chain(zeno.Clip(9.0), zeno.FLTrust())(torch.ones(3, 2), oracle).update.requires_grad


def test_states_that_do_not_fit_raise() -> None:
    with pytest.raises(ValueError, match=r"needs the last update, of 3 numbers, as its state. Found shape \[1\]"):
        zeno.CenteredClipping()(torch.ones(2, 3), state=torch.ones(1))
    with pytest.raises(ValueError, match=r"one number for each of 2 workers as its state. Found shape \[3\]"):
        zeno.BANT()(torch.ones(2, 3), own([1.0] * 3), state=torch.ones(3))
    with pytest.raises(ValueError, match=r"chain of 2 parts needs as many states. Found 1"):
        zeno.chain(zeno.Bucketing(), zeno.Mean())(torch.ones(2, 3), state=(1,))
