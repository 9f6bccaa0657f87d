"""Random numbers from a seed, and the random state of the process as it was before.

Models draw from the global generators of torch, NumPy and Python, which all threads share. So only one thread at a time
seeds them: a second thread would save the seeded state as the user's and restore that.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

# Held by the thread that has seeded the global generators, until it has restored their states.
SEEDING = threading.RLock()


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Global random numbers from a seed; at the end every generator has its previous state."""
    graphics = [device] if device is not None and device.type == "cuda" else []
    with SEEDING:
        others = random.getstate(), np.random.get_state()  # noqa: NPY002 -- the one that models draw from
        try:
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            with torch.random.fork_rng(devices=graphics):
                # torch.manual_seed also queues a seed, with a stack trace, for every kind of device that is not there.
                torch.default_generator.manual_seed(seed)
                if device is not None and device.type != "cpu":
                    torch.manual_seed(seed)
                yield
        finally:
            random.setstate(others[0])
            np.random.set_state(others[1])  # noqa: NPY002


def random_order(seed: int, name: str, size: int) -> Tensor:
    """A random order of the entries of a tensor, by seed and name alone: the same on each device."""
    key = hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7]
    return torch.randperm(size, generator=torch.Generator().manual_seed(int.from_bytes(key, "big")))
