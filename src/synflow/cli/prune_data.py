"""Data for scores that need data: a few examples of each class of a named data set."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..errors import SynflowError
from ..experiments.configs import reads_data
from .prune_options import Data

# Examples per batch: small enough for any machine; scores are averaged over all batches.
BATCH_SIZE = 64


@dataclass(frozen=True)
class Batches:
    """Batches for a score, with the shape of the model's input and its number of classes."""

    batches: list[tuple[Tensor, Tensor]] | None = None
    inputs: tuple[str, ...] = ()
    classes: int | None = None


def scoring_data(wanted: Data, score: str, seed: int) -> Batches:
    """`samples` examples of each class, in an order given by the seed; nothing without a data set."""
    if wanted.data is None:
        if reads_data(score):
            raise SynflowError(
                f"the score {score!r} reads data; name a data set: --data digits, or --data cifar10 --data-dir DIR "
                "(see `synflow data`)"
            )
        return Batches()
    from ..experiments.data import load, scoring_batches

    dataset = load(wanted.data, wanted.data_dir, train_per_class=wanted.samples)
    return Batches(
        scoring_batches(dataset, len(dataset.train_labels), BATCH_SIZE, seed),
        ("x".join(map(str, (1, *dataset.shape))),),
        dataset.classes,
    )
