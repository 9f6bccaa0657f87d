"""What compaction gives: dense, masked and compact networks side by side, at several compressions, as ratios.

    python benchmarks/compaction.py --out runs/compaction.json
    python benchmarks/compaction.py --models vgg16_bn --compressions 100 --profile --variants

The variants take turns, so that whatever else the machine does hits them alike; ratios are those of the medians.
`--profile` says where the time of the compact network's training step goes, layer by layer and by kind of operation,
`--variants` tries what could take it further (channels_last, masks off, torch.compile), `--onnx` times exported files.
"""

import argparse
import copy
import json
import time
from pathlib import Path

import torch
from torch import nn

from synflow import attached, bake, prune
from synflow.benchmarking import bench
from synflow.compaction import compact
from synflow.experiments.models import build

# What is to be reached on VGG-16, and what was measured on a machine with nothing else to do.
TARGETS = {("training step", 128, 100): 2.5, ("training step", 128, 1000): 6.0, ("inference", 1, 100): 8.0}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["vgg16_bn", "resnet18"])
    parser.add_argument("--compressions", nargs="+", type=float, default=[10, 100, 1000])
    parser.add_argument("--train-batch", type=int, default=128)
    parser.add_argument("--inference-batches", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--onnx", action="store_true", help="time exported files in onnxruntime too")
    parser.add_argument("--profile", action="store_true", help="where the time of a compact training step goes")
    parser.add_argument("--variants", action="store_true", help="what memory format and the masks change")
    parser.add_argument("--compile", action="store_true", help="with --variants, also torch.compile (minutes)")
    parser.add_argument("--out", type=Path, help="all figures as JSON")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    found = []
    for name in options.models:
        torch.manual_seed(0)
        model, example = build(name), torch.randn(2, 3, 32, 32)
        for compression in options.compressions:
            found.append(one(name, model, example, compression, options))
    print("\nfaster than dense, times" + "".join(f"{task:>24}" for task in found[0]["ratios"]))
    for row in found:
        title = f"{row['model']} at {row['compression']:g}x"
        print(f"{title:24}" + "".join(f"{ratio:24.2f}" for ratio in row["ratios"].values()))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")


def one(name: str, model: nn.Module, example: torch.Tensor, compression: float, options: argparse.Namespace) -> dict:
    masks = prune(model, example[:1], compression=compression)
    start = time.perf_counter()
    small = compact(model, example, masks)
    seconds = time.perf_counter() - start
    result = bench(
        model, masks, example, small=small, train_batches=[options.train_batch], onnx=options.onnx,
        inference_batches=options.inference_batches, repeats=options.repeats, threads=options.threads,
    )  # fmt: skip
    print(f"\n{name} at {compression:g}x: compacted and checked in {seconds:.1f} s")
    print(result)
    print("widths:", ", ".join(str(m.out_channels) for m in small.modules() if isinstance(m, nn.Conv2d)))
    ratios = {f"{t.task}, batch {t.batch}": t.ratio for t in result.timings if t.variant == "compact"}
    if name == "vgg16_bn":
        for (task, batch, at), wanted in TARGETS.items():
            if at == compression and f"{task}, batch {batch}" in ratios:
                got = ratios[f"{task}, batch {batch}"]
                verdict = "reached" if got >= wanted else "NOT reached"
                print(f"target {wanted}x for {task}, batch {batch}: {got:.2f}x, {verdict}")
    row = {"model": name, "compression": compression, "compact_seconds": seconds, "ratios": ratios}
    row["bench"] = json.loads(result.to_json())
    if options.profile:
        row["profile"] = profile(small, options.train_batch)
    if options.variants:
        row["variants"] = variants(model, small, options)
    return row


def training_step(model: nn.Module, inputs: torch.Tensor):
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    targets = torch.randint(10, (len(inputs),))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def profile(small: nn.Module, batch: int) -> dict:
    """Time by kind of operation in a training step, and forward by layer."""
    twin = copy.deepcopy(small).train()
    inputs = torch.randn(batch, 3, 32, 32)
    step = training_step(twin, inputs)
    for _ in range(3):
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        for _ in range(5):
            step()
    kinds: dict[str, float] = {}
    for event in recorded.key_averages():
        kinds[kind(event.key)] = kinds.get(kind(event.key), 0.0) + event.self_cpu_time_total
    total = sum(kinds.values())
    shares = {key: value / total for key, value in sorted(kinds.items(), key=lambda item: -item[1])}
    print("where a compact training step goes:", ", ".join(f"{key} {share:.0%}" for key, share in shares.items()))
    layers = by_layer(twin, inputs)
    whole = sum(layers.values())
    print("forward by layer:", ", ".join(f"{key} {value / whole:.0%}" for key, value in layers.items()))
    return {"kinds": shares, "layers": {key: value / whole for key, value in layers.items()}}


KINDS = {
    "conv": "convolution", "mkldnn": "convolution", "batch_norm": "batch norm", "pool": "pooling",
    "relu": "ReLU", "threshold": "ReLU", "clamp": "ReLU", "where": "masks", "mm": "linear", "_foreach": "optimizer",
    "add_": "optimizer", "Optimizer": "optimizer", "copy": "copies", "contiguous": "copies", "clone": "copies",
    "fill": "zeros", "zero": "zeros",
}  # fmt: skip


def kind(name: str) -> str:
    return next((value for key, value in KINDS.items() if key in name), "other")


def by_layer(model: nn.Module, inputs: torch.Tensor) -> dict[str, float]:
    """Median seconds of the forward pass of each convolution with what follows it up to the next."""
    marks: list[tuple[str, float]] = []
    hooks = [
        module.register_forward_pre_hook(lambda *_, path=path: marks.append((path, time.perf_counter())))
        for path, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)
    ]  # fmt: skip
    samples: dict[str, list[float]] = {}
    for _ in range(7):
        marks.clear()
        with torch.no_grad():
            model(inputs)
        end = time.perf_counter()
        stops = [start for _, start in marks[1:]] + [end]
        for (path, start), stop in zip(marks, stops, strict=True):
            samples.setdefault(path, []).append(stop - start)
    for hook in hooks:
        hook.remove()
    return {path: sorted(values)[len(values) // 2] for path, values in samples.items()}


def variants(model: nn.Module, small: nn.Module, options: argparse.Namespace) -> dict[str, float]:
    """Training steps of the compact network in other forms, as ratios to dense; all take turns."""
    inputs = torch.randn(options.train_batch, 3, 32, 32)
    bare = copy.deepcopy(small)
    bake(bare)
    last = copy.deepcopy(small).to(memory_format=torch.channels_last)
    runs = {
        "dense": training_step(copy.deepcopy(model).train(), inputs),
        "compact": training_step(copy.deepcopy(small).train(), inputs),
        "compact, masks off": training_step(bare.train(), inputs),
        "compact, channels_last": training_step(last.train(), inputs.contiguous(memory_format=torch.channels_last)),
    }
    if options.compile:
        runs["compact, compiled"] = training_step(torch.compile(copy.deepcopy(small).train()), inputs)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(2):
        for run in runs.values():
            run()
    for _ in range(options.repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: sorted(values)[len(values) // 2] for name, values in seconds.items()}
    ratios = {name: medians["dense"] / value for name, value in medians.items()}
    print("training step, faster than dense:", ", ".join(f"{name} {ratio:.2f}x" for name, ratio in ratios.items()))
    assert attached(small), "the compact network carries its masks"
    return ratios


if __name__ == "__main__":
    main()
