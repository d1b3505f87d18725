"""How a run is carried out: where its workers are, how long they are waited for, what is saved on the way."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from zeno.training.run import check_kind, kind_of, setting

CLUSTERS = ("local", "ray")
ONLY_RAY = ("address", "workers_per_actor", "cpus_per_actor", "deadline", "scorers")


@dataclass(frozen=True)
class Setup:
    """How a run is carried out. None of it decides a result, as long as the workers answer in time.

    But for `device`, which rounds in its own way, and draws dropout from a generator of its own.
    """

    cluster: str = setting("local", "Cluster", "Where workers run: local (this process) or ray (a Ray cluster).")
    device: str = setting(
        "cpu",
        "Cluster",
        "Where a local run computes: cpu, cuda or cuda:1. Another one: other last bits, other dropout.",
    )
    address: str | None = setting(
        None, "Cluster", "Ray cluster to join: host:port, or auto. Default: start one on this machine, for this run."
    )
    workers_per_actor: int | None = setting(
        None, "Cluster", "Workers in each Ray actor. Default: as many as give every CPU one actor."
    )
    cpus_per_actor: float | None = setting(
        None, "Cluster", "CPUs that Ray sets aside for an actor; 0: crowd onto what there is. Default: 1, or its share."
    )
    deadline: float | None = setting(
        None, "Cluster", "Seconds that a step waits for replies. Default: 4 times what recent steps needed."
    )
    patience: int = setting(3, "Cluster", "Deadlines in a row that an actor may miss before it is restarted.")
    scorers: int = setting(0, "Cluster", "Trusted actors that score candidates in parallel; 0: the server does.")
    tensorboard: bool = setting(False, "Watching", "Write events for TensorBoard into the run folder.")
    metrics_port: int | None = setting(
        None, "Watching", "Serve metrics for Prometheus on this port of 127.0.0.1; 0: any that is free."
    )
    checkpoint_every: int = setting(100, "Checkpoints", "Steps from one checkpoint to the next.")
    checkpoints: int = setting(2, "Checkpoints", "Checkpoints to keep, the newest ones.")

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None or f.default is not None:
                check_kind(f.name, kind_of(f), value)
        self._need(self.cluster in CLUSTERS, "cluster", f"as one of {', '.join(CLUSTERS)}")
        self._check_device()
        for name in ("workers_per_actor", "patience", "checkpoint_every", "checkpoints"):
            value = getattr(self, name)
            self._need(value is None or value >= 1, name, "of at least 1")
        for name in ("cpus_per_actor", "deadline", "scorers"):
            value = getattr(self, name)
            self._need(value is None or (math.isfinite(value) and value >= 0), name, "of at least 0")
        self._need(self.deadline != 0, "deadline", "above 0")
        self._need(self.metrics_port is None or 0 <= self.metrics_port < 2**16, "metrics_port", "from 0 to 65535")
        if self.cluster == "local":
            for name in ONLY_RAY:
                needs_ray = getattr(self, name) != type(self).__dataclass_fields__[name].default
                if needs_ray:
                    raise ValueError(f"Only a Ray cluster has {name}. Found cluster='local'. Set cluster to ray.")

    def _check_device(self) -> None:
        if self.device == "cpu":
            return
        self._need(
            re.fullmatch(r"cuda(:\d{1,2})?", self.device) is not None,
            "device",
            "as one that torch has here: cpu, or cuda, or cuda:1 for the second one",
        )
        seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (torch.device(self.device).index or 0) >= seen:
            raise ValueError(
                f"A run needs device as one that torch has here. Found device={self.device!r}, "
                f"and {f'the last one that torch sees is cuda:{seen - 1}' if seen else 'torch sees no CUDA device'}."
            )
        if self.cluster == "ray":
            raise ValueError(
                f"Workers of a Ray cluster compute on the CPU. Found device={self.device!r} with cluster='ray'. "
                "Set device to cpu, or cluster to local."
            )

    def _need(self, holds: bool, name: str, condition: str) -> None:
        if not holds:
            raise ValueError(f"A run needs {name} {condition}. Found {name}={getattr(self, name)!r}.")

    def to_toml(self) -> str:
        """What is not at its default, as lines of a TOML file."""
        changed = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default]
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in changed)


NAMES = tuple(f.name for f in fields(Setup))


def setup_from(settings: Mapping[str, Any]) -> Setup:
    """A Setup from those of the settings that are of a setup."""
    return Setup(**{name: settings[name] for name in NAMES if name in settings})


def without_setup(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide a result."""
    return {name: value for name, value in settings.items() if name not in NAMES}
