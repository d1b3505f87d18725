"""The server's own gradient: what training is worth without any worker."""

from dataclasses import dataclass

import torch

from zeno.rules.rule import Aggregate, Oracle, Rows, Rule, Samples


@dataclass(frozen=True)
class ServerAlone(Rule):
    """The server's own gradient, whatever the workers send: a control, to see what their candidates add."""

    samples: Samples = 64

    def prepare(self, oracle: Oracle, state: object) -> None:
        oracle.gradient()

    def aggregate(self, rows: Rows, oracle: Oracle | None, state: object) -> Aggregate:
        nobody = torch.zeros(rows.m, dtype=torch.float64, device=rows.device)
        return Aggregate(rows.server_gradient(oracle).clone(), nobody, own=1.0)
