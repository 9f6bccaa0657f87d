"""Prune before training, train the small network, keep it: handwritten digits, a minute, no download.

python examples/train_compact.py --compression 30
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import synflow
from synflow.experiments.data import load, normalise


def network() -> nn.Module:
    """Any model would do."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 64), (64, 128), (128, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10))


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int) -> float:
    """An ordinary training loop, and the seconds it took."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    start = time.perf_counter()
    model.train()
    for _ in range(epochs):
        for places in torch.randperm(len(labels)).split(128):
            optimizer.zero_grad()
            F.cross_entropy(model(images[places]), labels[places]).backward()
            optimizer.step()
    return time.perf_counter() - start


def main() -> None:
    """Dense and compact, side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compression", type=float, default=30, metavar="X", help="keep one weight in X (default: 30)")
    parser.add_argument("--epochs", type=int, default=8, metavar="N", help="epochs of training (default: 8)")
    options = parser.parse_args()

    data = load("digits")
    images, test = normalise(data.train_images, data), normalise(data.test_images, data)
    torch.manual_seed(0)
    dense = network()
    example = images[:1]

    masks = synflow.prune(dense, example, compression=options.compression)
    small = synflow.compact(dense, example, masks)
    print(synflow.certify(dense, masks, example))

    for name, model in (("dense", dense), ("compact", small)):
        seconds = train(model, images, data.train_labels, options.epochs)
        with torch.no_grad():
            accuracy = (model.eval()(test).argmax(1) == data.test_labels).float().mean()
        parameters = sum(p.numel() for p in model.parameters())
        print(f"{name:8} {parameters:>8,} parameters  {100 * accuracy:.1f}% of test images right  {seconds:.1f} s")


if __name__ == "__main__":
    main()
