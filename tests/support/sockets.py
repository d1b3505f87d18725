"""Processes and their listening sockets, from /proc."""

import ipaddress
import os
import struct
from pathlib import Path

LISTENING = "0A"  # the state of a socket in /proc/net/tcp


def descendants(pid: int) -> set[int]:
    """A process, all that descend from it, and all of the session that it leads; without those that have ended."""
    parents, sessions = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if fields[0] != "Z":
                parents[int(folder.name)], sessions[int(folder.name)] = int(fields[1]), int(fields[3])
    found = {one for one, session in sessions.items() if pid in (one, session)}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listening(pids: set[int]) -> list[str]:
    """The addresses at which these processes accept connections over TCP."""
    inodes = {inode for pid in pids for inode in _sockets(pid)}
    addresses = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in inodes:
                addresses.append(_address(fields[1].partition(":")[0]))
    return addresses


def _sockets(pid: int) -> list[str]:
    found = []
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(link)
            if target.startswith("socket:["):
                found.append(target[8:-1])
    except OSError:  # it has just ended
        pass
    return found


def _address(words: str) -> str:
    """`0100007F` is 127.0.0.1: words of 32 bits, each in the order of the machine."""
    numbers = [int(words[start : start + 8], 16) for start in range(0, len(words), 8)]
    return str(ipaddress.ip_address(struct.pack(f"={len(numbers)}I", *numbers)))
