"""How a run is executed: where its workers run, how long a step waits for them, what is saved on the way.

Importing this module does not import torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from zeno.records import toml
from zeno.training.run import check_value, require, setting

ONLY_RAY = ("address", "workers_per_actor", "cpus_per_actor", "deadline", "scorers")


@dataclass(frozen=True)
class ExecutionSettings:
    """How a run is executed. These settings do not change its result, as long as the workers reply in time.

    The exception is `device`: every device rounds differently, and has its own generator for dropout.
    """

    cluster: str = setting(
        "local", "Cluster", "Where workers run: local (this process) or ray (a Ray cluster).", of=("local", "ray")
    )
    device: str = setting("cpu", "Cluster", "Device of a local run: cpu, cuda or cuda:1. Changes rounding and dropout.")
    address: str | None = setting(
        None, "Cluster", "Ray cluster to join: host:port, or auto. Default: start one on this machine, for this run."
    )
    workers_per_actor: int | None = setting(
        None, "Cluster", "Workers in each Ray actor. Default: as many as give every CPU one actor.", least=1
    )
    cpus_per_actor: float | None = setting(
        None,
        "Cluster",
        "CPUs reserved per Ray actor; 0: none. Default: 1, or less to fit all actors.",
        least=0,
        below=math.inf,
    )
    deadline: float | None = setting(
        None, "Cluster", "Seconds a step waits for replies. Default: 4 times recent steps.", above=0, below=math.inf
    )
    patience: int = setting(3, "Cluster", "Deadlines in a row an actor may miss before it is restarted.", least=1)
    scorers: int = setting(0, "Cluster", "Trusted actors that score candidates; 0: the server scores.", least=0)
    replay: str | None = setting(
        None, "Cluster", "Repeat the arrivals of the asynchronous run in this folder, in one process, to the last bit."
    )
    tensorboard: bool = setting(False, "Monitoring", "Write events for TensorBoard into the run folder.")
    metrics_port: int | None = setting(
        None, "Monitoring", "Serve Prometheus metrics on this port of 127.0.0.1; 0: any free.", least=0, below=2**16
    )
    checkpoint_every: int = setting(100, "Checkpoints", "Steps between checkpoints.", least=1)
    checkpoints: int = setting(2, "Checkpoints", "Number of checkpoints to keep, the newest ones.", least=1)

    def __post_init__(self) -> None:
        for f in fields(self):
            check_value(f, getattr(self, f.name))
        for name in self._changed() if self.cluster == "local" else ():
            if name in ONLY_RAY:
                raise ValueError(f"Only a Ray cluster has {name}. Found cluster='local'. Set cluster to ray.")
        if self.replay is not None and self.cluster != "local":
            raise ValueError(f"A replay runs in one process. Found cluster={self.cluster!r}. Set cluster to local.")
        if self.device != "cpu":
            self._check_device()

    def _check_device(self) -> None:
        named = re.fullmatch(r"cuda(:\d{1,2})?", self.device) is not None
        require(named, "device", self.device, "one of torch's: cpu, or cuda, or cuda:1 for the second GPU")
        import torch

        count = torch.cuda.device_count()
        if (torch.device(self.device).index or 0) >= count:
            found = f"Found device={self.device!r}, and"
            if not count:
                remedy = "Set device to cpu, or install a torch with CUDA on a machine with a GPU."
                raise ValueError(f"A run on a GPU needs a CUDA device. {found} torch finds none. {remedy}")
            last = f"the last CUDA device is cuda:{count - 1}"
            raise ValueError(f"The setting device must be one of torch's. {found} {last}.")
        if self.cluster == "ray":
            raise ValueError(
                f"Workers of a Ray cluster compute on the CPU. Found device={self.device!r} with cluster='ray'. "
                "Set device to cpu, or cluster to local."
            )

    def _changed(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}

    def to_toml(self) -> str:
        """The settings that are not at their defaults, as lines of a TOML file."""
        return toml.dumps(self._changed())


def execution_from(settings: Mapping[str, Any]) -> ExecutionSettings:
    """The ExecutionSettings among these settings."""
    return ExecutionSettings(**{f.name: settings[f.name] for f in fields(ExecutionSettings) if f.name in settings})


def without_execution(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide a result."""
    return {name: value for name, value in settings.items() if name not in ExecutionSettings.__dataclass_fields__}
