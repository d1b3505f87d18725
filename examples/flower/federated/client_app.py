"""A client: it trains on its samples and sends its model, or it is malicious.

The config of a node says which client it is: `partition-id`, `num-partitions`, and `fault` if it is malicious.
"""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from federated import task

State = dict[str, Tensor]
FAULTS = ("", "label flip", "sign flip", "nan", "other keys", "undecodable")

app = ClientApp()


class Undecodable(ArrayRecord):
    """Arrays whose bytes Flower cannot decode when it receives them."""

    def deflate(self) -> bytes:
        return b"ArrayRecord  4\x00{][}"


@app.train()
def train(message: Message, context: Context) -> Message:
    settings = task.Settings.of(context.run_config)
    config = context.node_config
    client, clients, fault = int(config["partition-id"]), int(config["num-partitions"]), str(config.get("fault", ""))
    if fault not in FAULTS:
        raise ValueError(f"The config of a node needs one of {FAULTS} as fault. Found {fault!r}.")
    received = message.content.array_records["arrays"].to_torch_state_dict()
    model = task.new_model(settings)
    model.load_state_dict(received)
    samples = task.split(clients, settings)[client]
    round_number = int(str(message.content.config_records["config"]["server-round"]))
    task.train(model, samples, settings, client, round_number, flip=fault == "label flip")
    metrics = MetricRecord({"num-examples": len(samples)})
    content = RecordDict({"arrays": sent(fault, dict(received), model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


def sent(fault: str, received: State, trained: State) -> ArrayRecord:
    """What a client sends after its training."""
    if fault == "sign flip":  # -10 times its update
        return ArrayRecord({name: part + 10 * (part - trained[name]) for name, part in received.items()})
    if fault == "nan":
        return ArrayRecord({name: torch.full_like(part, torch.nan) for name, part in trained.items()})
    if fault == "other keys":
        return ArrayRecord({f"other.{name}": part for name, part in trained.items()})
    if fault == "undecodable":
        return Undecodable(trained)
    return ArrayRecord(trained)
