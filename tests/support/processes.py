"""Ranks as real processes on loopback."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def seen_by_ranks(script: Path, folder: Path, num_ranks: int, timeout: float) -> list[dict[str, Any]]:
    """Starts `python script RANK FOLDER` for every rank; returns what each wrote to RANK.json in the folder."""
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, script, str(rank), str(folder)], env=env, stderr=subprocess.PIPE, text=True)
        for rank in range(num_ranks)
    ]
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=timeout)
            assert rank.returncode == 0, errors
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(num_ranks)]
