"""Crop, mirror and normalise: whole batches of bytes against one image at a time, and against a training step.

python benchmarks/augmentation.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from synflow.experiments import data, models


def seconds(run: Callable[[], object], repeats: int) -> float:
    """The median time of a run, the first one left out."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def one_by_one(batch: data.Dataset, padding: int = 4) -> torch.Tensor:
    """What a transform per image does, as a control."""
    made = []
    for image in batch.train_images:
        top, left = torch.randint(0, 2 * padding + 1, (2,)).tolist()
        cut = F.pad(image, (padding,) * 4)[:, top : top + 32, left : left + 32]
        made.append(data.normalise((cut.flip(2) if torch.rand(()) < 0.5 else cut).unsqueeze(0), batch))
    return torch.cat(made)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.manual_seed(0)
    images = torch.randint(0, 256, (options.batch, 3, 32, 32), dtype=torch.uint8)
    labels = torch.zeros(options.batch, dtype=torch.long)
    batch = data.Dataset("noise", images, labels, images, labels, 10, (0.5,) * 3, (0.25,) * 3, padding=4, flip=True)
    model = models.build("resnet20")

    def step() -> None:
        F.cross_entropy(model(data.normalise(images, batch)), labels).backward()

    whole = seconds(lambda: list(data.batches(batch, options.batch, 0, 0)), options.repeats)
    single = seconds(lambda: one_by_one(batch), options.repeats)
    training = seconds(step, max(3, options.repeats // 3))
    print(f"{options.batch} images of 3 x 32 x 32, {torch.get_num_threads()} thread(s), median of {options.repeats}")
    print(f"  whole batch       {whole * 1e3:8.2f} ms   {options.batch / whole:10,.0f} images/s")
    print(f"  one at a time     {single * 1e3:8.2f} ms   {single / whole:.1f} times slower")
    print(f"  ResNet-20 step    {training * 1e3:8.2f} ms   augmentation is {whole / training:.1%} of it")


if __name__ == "__main__":
    main()
