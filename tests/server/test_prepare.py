"""What a rule asks its oracle for before there are candidates is computed while workers in other processes compute."""

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zeno
from support.fake_cluster import FakeCluster
from support.oracle import FakeOracle
from support.tickets import FakeTickets
from zeno.server.asynchronous import AsynchronousEngine, Asynchrony
from zeno.server.engine import Engine

M, D, SECONDS = 4, 6, 30  # the seconds are a limit that a test only reaches if it fails
INPUTS = torch.randn(100, 5, generator=torch.Generator().manual_seed(0))
DATA = zeno.Dataset(INPUTS, INPUTS.sum(dim=1, keepdim=True))
SENT = torch.randn(M, D, generator=torch.Generator().manual_seed(1))
RULES: dict[str, zeno.Rule] = {
    "zeno_auto": zeno.ZenoAuto(),
    "fltrust": zeno.FLTrust(),
    "bygars": zeno.ByGARS(),
    "server_alone": zeno.ServerAlone(),
    "zeno": zeno.Zeno(trim=1, score="first_order"),
    "monna": zeno.MoNNA(faulty=1),
    "zenopp": zeno.ZenoPP(every=6),
    "afl_guard": zeno.AFLGuard(every=6),
    "chain": zeno.chain(zeno.NNM(faulty=1), zeno.FLTrust()),
}


class Model(nn.Sequential):
    """With statistics that a gradient must not change, and dropout."""

    def __init__(self) -> None:
        super().__init__(nn.BatchNorm1d(5, affine=False), nn.Dropout(0.5), nn.Linear(5, 1))


def engine(rule: zeno.Rule, cluster: Any, loss: Any = nn.functional.mse_loss) -> Engine:
    torch.manual_seed(0)
    problem = zeno.Problem(Model(), loss)
    optimizer = torch.optim.SGD([nn.Parameter(problem.flat.clone())], lr=0.1)
    parts = (problem, rule, cluster, DATA, torch.arange(100), optimizer)
    if isinstance(cluster, FakeTickets):
        return AsynchronousEngine(*parts, asynchrony=Asynchrony(buffer=2))
    return Engine(*parts)


def records(server: Engine, steps: int = 5) -> list[zeno.Record]:
    found = [replace(server.step(number).record(), seconds={}) for number in range(steps)]
    server.close()
    return found


class Tickets(FakeTickets):
    remote = True


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_records_do_not_depend_on_when_the_rule_asks(rule: zeno.Rule) -> None:
    here, there = (engine(rule, FakeCluster(list(SENT), remote=remote)) for remote in (False, True))
    assert records(there) == records(here)
    assert torch.equal(there.params, here.params)
    assert all(torch.equal(there.problem.buffers[name], buffer) for name, buffer in here.problem.buffers.items())


@pytest.mark.parametrize("rule", ["zeno_auto", "zenopp"])
def test_nor_do_those_of_asynchronous_steps(rule: str) -> None:
    order = [2, 0, 1, 3, 2, 0, 3, 1, 0, 2]
    servers = [
        engine(RULES[rule], kind(M, order, lambda worker, step, params: SENT[worker]))
        for kind in (FakeTickets, Tickets)
    ]
    assert records(servers[0]) == records(servers[1])
    assert torch.equal(servers[0].params, servers[1].params)


class Asks(zeno.Mean):
    """The mean, which says when it has the server's gradient."""

    samples = 20
    asked = threading.Event()

    def prepare(self, oracle: zeno.Oracle, state: object) -> None:
        oracle.gradient()
        self.asked.set()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_gradient_is_there_before_any_reply(asynchronous: bool) -> None:
    rule, waited = Asks(), []
    rule.asked.clear()

    def sent(worker: int, step: int, params: Tensor | None = None) -> Tensor:
        waited.append(rule.asked.wait(SECONDS))
        return SENT[worker]

    cluster = Tickets(M, [0, 1], sent) if asynchronous else FakeCluster(sent, size=M, remote=True)
    assert records(engine(rule, cluster), steps=1)[0].skipped is None
    assert waited[0]


def test_workers_in_this_process_need_its_cores_so_nothing_is_computed_meanwhile() -> None:
    rule = Asks()
    rule.asked.clear()
    records(engine(rule, FakeCluster(list(SENT))), steps=1)
    assert not rule.asked.is_set()


class LossError(Exception):
    pass


def test_a_loss_that_raises_ends_the_step_where_the_rule_asks_for_it() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        raise LossError

    with pytest.raises(LossError):
        records(engine(zeno.FLTrust(), FakeCluster(list(SENT), remote=True), loss))


def test_a_step_that_is_skipped_leaves_no_thread_on_the_model() -> None:
    ended = threading.Event()

    class Slow(Asks):
        def prepare(self, oracle: zeno.Oracle, state: object) -> None:
            super().prepare(oracle, state)
            threading.Event().wait(0.2)
            ended.set()

    server = engine(Slow(), FakeCluster([None] * M, remote=True))
    assert server.step(0).skipped is not None
    assert ended.is_set()
    server.close()


@pytest.mark.parametrize("rule", [zeno.ZenoPP(every=6), zeno.AFLGuard(every=6)])
def test_rules_that_keep_a_gradient_ask_for_it_only_when_it_is_due(rule: zeno.Rule) -> None:
    class Counts(FakeOracle):
        asked = 0

        def gradient(self, after: Tensor | None = None) -> Tensor:
            Counts.asked += 1
            return super().gradient(after)

    found: list[int] = []
    state: object = None
    for _ in range(4):  # 4 candidates each
        oracle, Counts.asked = Counts(gradient=SENT[0]), 0
        rule.prepare(oracle, state)
        found.append(Counts.asked)
        state = rule(SENT, oracle, state).state
    assert found == [1, 0, 1, 0]
