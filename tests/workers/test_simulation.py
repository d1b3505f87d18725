"""Simulated asynchronous workers: when they reply, and with what."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import zeno
from zeno.problem import models
from zeno.problem.problem import Problem
from zeno.training.settings import PARSERS
from zeno.workers.delays import DELAYS, Constant, Lognormal, SlowWorkers, Uniform
from zeno.workers.simulation import SimulatedCluster
from zeno.workers.worker import Worker

DATA = zeno.Dataset(
    torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 10, classes=10
)


def cluster(times: dict[tuple[int, int], float], workers: int = 3) -> SimulatedCluster:
    torch.manual_seed(0)
    problem = Problem(models.small_cnn((1, 8, 8), 10))
    return SimulatedCluster(
        [Worker(i, problem, DATA, torch.arange(60), 12, 0) for i in range(workers)], lambda i, step: times[i, step]
    )


def test_workers_reply_after_their_delays() -> None:
    simulated = cluster({(0, 0): 3.0, (1, 0): 1.0, (2, 0): 2.5, (1, 1): 1.0, (1, 2): 1.0})
    x = simulated.problem.flat.clone()
    for worker in simulated.idle(0):
        simulated.ask(worker, x, {}, 0)
    seen = []
    for step in (1, 2):
        reply = simulated.next_reply()
        assert reply is not None
        seen.append((reply.worker, reply.step, simulated.now))
        simulated.ask(reply.worker, x, {}, step)
    while (reply := simulated.next_reply()) is not None:
        seen.append((reply.worker, reply.step, simulated.now))
    assert seen == [(1, 0, 1.0), (1, 1, 2.0), (2, 0, 2.5), (0, 0, 3.0), (1, 2, 3.0)]
    assert sorted(simulated.idle(0)) == [0, 1, 2]


@pytest.mark.parametrize("threads", [1, 3])
def test_each_gradient_is_that_of_its_worker_alone_on_its_version(threads: int) -> None:
    simulated = cluster({(i, step): 1.0 + i for i in range(3) for step in range(2)})
    versions = [torch.randn(simulated.problem.size, generator=torch.Generator().manual_seed(s)) / 10 for s in range(2)]
    buffers = {name: buffer.clone() for name, buffer in simulated.problem.buffers.items()}
    tickets = {0: 1, 1: 0, 2: 1}  # the version of each worker
    torch.set_num_threads(threads)
    try:
        for worker, version in tickets.items():
            simulated.ask(worker, versions[version], buffers, version)
        found = {}
        while (reply := simulated.next_reply()) is not None:
            assert reply.gradient is not None
            found[reply.worker] = reply.gradient
    finally:
        torch.set_num_threads(1)
    for worker, version in tickets.items():
        alone = replace(simulated.workers[worker], problem=copy.deepcopy(simulated.problem))
        assert torch.equal(found[worker], alone.gradient(versions[version], buffers, version))


def test_the_servers_buffers_stay_though_workers_have_older_ones() -> None:
    simulated = cluster({(0, 0): 1.0})
    newest = {name: buffer.clone() for name, buffer in simulated.problem.buffers.items()}
    assert newest
    older = {name: buffer + 1 for name, buffer in newest.items()}
    simulated.ask(0, simulated.problem.flat.clone(), older, 0)
    simulated.next_reply()
    assert all(torch.equal(buffer, newest[name]) for name, buffer in simulated.problem.buffers.items())


def test_delays_have_the_stated_distributions() -> None:
    rng = np.random.default_rng(0)
    uniform = [Uniform(2, 4)(0, 5, rng) for _ in range(2000)]
    assert min(uniform) >= 3
    assert max(uniform) <= 5
    assert np.mean(uniform) == pytest.approx(4, abs=0.1)
    lognormal = [Lognormal(1.0)(0, 5, rng) for _ in range(4000)]
    assert np.median(lognormal) == pytest.approx(1, abs=0.1)
    assert np.std(np.log(lognormal)) == pytest.approx(1, abs=0.1)
    assert [SlowWorkers(10, on=2)(worker, 5, rng) for worker in range(5)] == [1, 1, 1, 10, 10]
    assert [Constant()(worker, 5, rng) for worker in range(5)] == [1] * 5


@pytest.mark.parametrize(
    "text", ["uniform(3, 2)", "uniform(-1, 2)", "uniform(0, 1e999)", "lognormal(-1)", "slow(0)", "slow(2, on=0)"]
)
def test_impossible_delays_are_errors(text: str) -> None:
    with pytest.raises(ValueError, match="needs"):
        PARSERS["delay"](text)


def test_slow_needs_no_more_workers_than_there_are() -> None:
    assert SlowWorkers(10, on=5)(0, 5, np.random.default_rng(0)) == 10
    with pytest.raises(ValueError, match=r"The delay slow needs on of at most workers=5\. Found on=6\."):
        SlowWorkers(10, on=6)(0, 5, np.random.default_rng(0))


def test_delays_have_names_on_the_command_line() -> None:
    assert PARSERS["delay"]("slow(10, on=1)") == SlowWorkers(10, 1)
    assert set(DELAYS) == {"constant", "uniform", "lognormal", "slow"}


def test_a_cluster_without_tickets_says_so() -> None:
    local = zeno.LocalCluster(cluster({}).workers)
    with pytest.raises(TypeError, match="A LocalCluster has no asynchronous workers"):
        local.idle(0)
