"""Worker processes of this process, as the system sees them."""

from __future__ import annotations

import os
import time
from pathlib import Path


def worker_pids() -> list[int]:
    """Children that are worker processes, zombies included."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += [int(pid) for pid in (task / "children").read_text().split()]
        except FileNotFoundError:  # a thread that has ended meanwhile
            continue
    return [pid for pid in found if is_worker(pid)]


def is_worker(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return b"boot.py" in command or (state == "Z" and not command)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pids: list[int], seconds: float = 10) -> bool:
    """Whether all of some processes end within a time."""
    until = time.monotonic() + seconds
    while any(map(alive, pids)):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def descriptors() -> list[str]:
    """What the open descriptors of this process are, but for the one of looking."""
    out = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            out.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            continue
    return sorted(out)
