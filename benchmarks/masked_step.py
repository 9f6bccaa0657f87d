"""What masks cost: a training step of an attached model against one of the dense model, as a ratio in one process.

    python benchmarks/masked_step.py --json masked_step.json

Steps of the models take turns, so that whatever else the machine does hits them alike; ratios are those of the medians.
A second dense model is the control: how far its ratio is from one is how much to trust the other. On a busy machine
the ratio of processor times is the steadier one, and `extra`, the median difference of neighbouring steps, steadier
still. Masks are random at density 0.1: the cost depends on the sizes of the weights alone, so it falls with the batch
size. Memory is what the masks themselves take, and what a step has allocated at its peak. The file has the times
(clock, processor) of every step.
"""

import argparse
import copy
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from synflow import attach, attached
from synflow.models.built_in import build
from synflow.models.torchvision_cure import cure_torchvision


class Case(NamedTuple):
    """A model, its inputs, and the loss of its outputs."""

    model: nn.Module
    inputs: torch.Tensor
    loss: Callable[[torch.Tensor], torch.Tensor]


def images(name: str, batch: int, side: int, classes: int) -> Case:
    model = build(name, classes=classes, input_shape=(3, side, side))
    targets = torch.randint(classes, (batch,))
    return Case(model, torch.randn(batch, 3, side, side), lambda output: F.cross_entropy(output, targets))


def gpt2(batch: int, length: int) -> Case:
    cure_torchvision()
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=8192, n_positions=length, n_embd=384, n_layer=6, n_head=6))
    tokens = torch.randint(8192, (batch, length))
    return Case(model, tokens, lambda output: F.cross_entropy(output.logits.flatten(0, 1), tokens.flatten()))


CASES: dict[str, Callable[[], Case]] = {
    "VGG-16, CIFAR, batch 128": lambda: images("vgg16_bn", 128, 32, 10),
    "ResNet-50, 64x64, batch 16": lambda: images("resnet50", 16, 64, 200),
    "GPT-2 (6 x 384), 8 x 256 tokens": lambda: gpt2(8, 256),
}


def stepper(case: Case, model: nn.Module) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9, weight_decay=5e-4)

    def step() -> None:
        optimizer.zero_grad()
        case.loss(model(case.inputs)).backward()
        optimizer.step()

    return step


def peak(step: Callable[[], None]) -> int:
    """Bytes that a step has allocated at its peak, over what was there before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    level = highest = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            level += event.nbytes()
            highest = max(highest, level)
    return highest


def measure(case: Case, steps: int, warm_up: int) -> dict[str, Any]:
    masked = copy.deepcopy(case.model)
    masks = {name: torch.rand_like(p) < 0.1 for name, p in masked.named_parameters() if p.dim() > 1}
    models = {"dense": case.model, "control": copy.deepcopy(case.model), "masked": attach(masked, masks)}
    steppers = {name: stepper(case, model) for name, model in models.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steppers}
    order = list(steppers)
    for index in range(warm_up + steps):
        order.append(order.pop(0))
        for name in order:
            start, busy = time.perf_counter(), time.process_time()
            steppers[name]()
            if index >= warm_up:
                times[name].append((time.perf_counter() - start, time.process_time() - busy))
    clock = {name: statistics.median(pair[0] for pair in pairs) for name, pairs in times.items()}
    busy = {name: statistics.median(pair[1] for pair in pairs) for name, pairs in times.items()}
    return {
        "seconds": clock,
        "ratio": clock["masked"] / clock["dense"],
        "control_ratio": clock["control"] / clock["dense"],
        "processor_ratio": busy["masked"] / busy["dense"],
        "control_processor_ratio": busy["control"] / busy["dense"],
        "extra_processor_seconds": statistics.median(
            masked[1] - dense[1] for masked, dense in zip(times["masked"], times["dense"], strict=True)
        ),
        "mask_megabytes": sum(mask.numel() for mask in attached(masked).values()) / 1e6,
        "dense_peak_megabytes": peak(steppers["dense"]) / 1e6,
        "masked_peak_megabytes": peak(steppers["masked"]) / 1e6,
        "steps": times,
    }


WIDTHS = {"dense s": 9, "ratio": 7, "control": 9, "cpu": 7, "control ": 9, "extra s": 9, "masks MB": 10, "peak MB": 15}
HEADER = " " * 32 + "".join(f"{name.strip():>{width}}" for name, width in WIDTHS.items())


def line(name: str, row: dict[str, Any]) -> str:
    return (
        f"{name:32}{row['seconds']['dense']:9.2f}{row['ratio']:7.3f}{row['control_ratio']:9.3f}"
        f"{row['processor_ratio']:7.3f}{row['control_processor_ratio']:9.3f}{row['extra_processor_seconds']:9.3f}"
        f"{row['mask_megabytes']:10.1f}{row['dense_peak_megabytes']:7.0f} ->{row['masked_peak_megabytes']:5.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="", help="only the cases whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    figures = {}
    print(HEADER)
    for name, make in CASES.items():
        if options.only in name:
            torch.manual_seed(0)
            figures[name] = measure(make(), options.steps, options.warm_up)
            print(line(name, figures[name]), flush=True)
    if options.json:
        machine = {"torch": torch.__version__, "threads": options.threads, "machine": platform.machine()}
        options.json.write_text(json.dumps({"machine": machine, "steps": options.steps, "cases": figures}, indent=1))


if __name__ == "__main__":
    main()
