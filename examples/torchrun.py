"""One bad GPU among four ranks: `zeno.distributed.step` instead of DDP's all-reduce.

    torchrun --standalone --nproc-per-node 4 examples/torchrun.py         # with Zeno
    torchrun --standalone --nproc-per-node 4 examples/torchrun.py --ddp   # with DistributedDataParallel, which fails

From step 5 on, the last rank computes in turn noise, NaN, and its gradient times -10; nothing raises an error. Every
rank has different data. Rank 0 is also the server, with 100 samples that no rank trains on. Without GPUs, the example
runs on CPUs with gloo.

torchrun listens on all addresses of the machine while it runs, even with --standalone: check your firewall. On a single
machine, GLOO_SOCKET_IFNAME=lo keeps the traffic between ranks on loopback.

Output (300 steps; 24 s on two cores that had other work, most of it imports):

    step 300: accuracy 94.4%
    1 of 4 workers is suspect: 3.

and with --ddp 11.1% from step 60 on: a single NaN makes the parameters of every rank NaN permanently.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

import zeno

BAD_FROM = 5  # step


def broken(gradient: Tensor, step: int) -> Tensor:
    if step < BAD_FROM:
        return gradient
    return [torch.randn_like(gradient), torch.full_like(gradient, torch.nan), -10 * gradient][step % 3]


def train(steps: int, ddp: bool, rank: int, device: torch.device) -> None:
    digits = zeno.load_task("digits")
    pictures, labels = (part.to(device) for part in digits.train.batch(torch.arange(len(digits.train))))
    tests, answers = (part.to(device) for part in digits.test.batch(torch.arange(len(digits.test))))
    own = TensorDataset(pictures[:100], labels[:100])  # the server's samples
    pictures, labels = pictures[100 + rank :: dist.get_world_size()], labels[100 + rank :: dist.get_world_size()]

    torch.manual_seed(0)  # all ranks start with the same model,
    model: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    torch.manual_seed(1 + rank)  # and draw different batches
    step = 0
    if rank == dist.get_world_size() - 1:
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: broken(gradient, step))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    schedule = CosineAnnealingLR(optimizer, steps, eta_min=0.002)  # stays well above rho

    server = None
    if ddp:
        model = DistributedDataParallel(model)
    elif rank == 0:
        samples, rule = DataLoader(own, batch_size=100, shuffle=True), zeno.Zeno(trim=1, batch_size=32)
        server = zeno.Server(model, F.cross_entropy, optimizer, samples, rule)

    for step in range(steps):
        rows = torch.randint(len(labels), (32,), device=device)
        optimizer.zero_grad()
        F.cross_entropy(model(pictures[rows]), labels[rows]).backward()
        if ddp:
            optimizer.step()  # `backward` has averaged the gradients of all ranks
        else:
            zeno.distributed.step(model, optimizer, server)
        schedule.step()
        if rank == 0 and (step + 1) % (steps // 5) == 0:
            with torch.no_grad():
                accuracy = float((model(tests).argmax(dim=1) == answers).float().mean())
            print(f"step {step + 1:3}: accuracy {accuracy:.1%}", flush=True)
    if server is not None:
        print(server.ledger)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ddp", action="store_true", help="use DistributedDataParallel instead of Zeno")
    parser.add_argument("--small", action="store_true", help="fewer steps, for the tests")
    arguments = parser.parse_args()

    on_gpus = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpus else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    try:
        train(120 if arguments.small else 300, arguments.ddp, dist.get_rank(), device)
        dist.barrier()  # no rank exits while another still receives
    finally:
        dist.destroy_process_group()
