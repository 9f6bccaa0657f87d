"""A training step of compact networks by sparse loops against one by torch's own layers, side by side in one process.

    python benchmarks/training.py --threads 1

Three copies of a network take turns, batch 128, forward, backward and SGD: torch's layers as they are (`plain`), with
images channels last (`last`), and `fast_form`, what `experiments` use. The ratio is that of the medians of
processor time, which a busy machine disturbs least. After 50 steps on the same batches the losses of `fast` and `last`
are compared with those of `plain`: both differ from it by rounding alone, so their differences are of one size.
"""

import argparse
import copy
import math
import statistics
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import synflow
from synflow.experiments.training import fast_form
from synflow.models.built_in import build

CASES = {"vgg11_bn": 1000.0, "vgg16_bn": 100.0, "resnet20": 20.0}
BATCH = 128
# A small rate: at the paper's rate rounding errors grow tenfold every few steps, in any implementation.
RATE = 0.003


def compact_network(name: str, compression: float) -> nn.Module:
    torch.manual_seed(0)
    model, example = build(name, classes=10, input_shape=(3, 32, 32)), torch.ones(1, 3, 32, 32)
    return synflow.compact(model, example, synflow.prune(model, example, compression=compression))


def stepper(model: nn.Module, form: str) -> Any:
    layout = torch.channels_last if form == "last" else torch.contiguous_format
    model = model.to(memory_format=layout).train()
    runner = fast_form(model, (3, 32, 32)) if form == "fast" else model
    assert runner is not None, "the network has no fast form: is numba installed?"
    optimiser = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, weight_decay=1e-4)

    def step(images: torch.Tensor, labels: torch.Tensor) -> float:
        optimiser.zero_grad(set_to_none=True)
        loss = F.cross_entropy(runner(images.contiguous(memory_format=layout)), labels)
        loss.backward()
        optimiser.step()
        return float(loss.detach())

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("names", nargs="*", default=list(CASES))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ratios = []
    print("network, compression | plain ms | last ms | fast ms | plain/fast | loss differences: fast, last")
    for name in options.names:
        small = compact_network(name, CASES[name])
        forms = {form: stepper(copy.deepcopy(small), form) for form in ("plain", "last", "fast")}
        times: dict[str, list[float]] = {form: [] for form in forms}
        generator, losses = torch.Generator().manual_seed(0), dict.fromkeys(forms, 0.0)
        for _ in range(options.steps):
            images = torch.randn(BATCH, 3, 32, 32, generator=generator)
            labels = torch.randint(10, (BATCH,), generator=generator)
            for form, step in forms.items():
                start = time.process_time()
                losses[form] = step(images, labels)
                times[form].append(time.process_time() - start)
        median = {form: 1e3 * statistics.median(values) for form, values in times.items()}
        ratios.append(median["plain"] / median["fast"])
        spread = [abs(losses[form] - losses["plain"]) / losses["plain"] for form in ("fast", "last")]
        shown = " | ".join(f"{median[form]:.0f}" for form in forms)
        print(f"{name}, {CASES[name]:g}x | {shown} | {ratios[-1]:.2f} | {spread[0]:.1e}, {spread[1]:.1e}", flush=True)
    print(f"geometric mean of plain/fast: {math.exp(statistics.fmean(map(math.log, ratios))):.2f}")


if __name__ == "__main__":
    main()
