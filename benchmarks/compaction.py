"""What compaction gives: dense, masked and compact networks side by side, at several compressions, as ratios.

    python benchmarks/compaction.py                                   # every row that is not there yet, then the table
    python benchmarks/compaction.py --only vgg16_bn:100 --again       # one row, measured anew
    python benchmarks/compaction.py --only vgg16_bn:100 --parts profile variants onnx
    python benchmarks/compaction.py --only vgg16_bn:100 --parts forms --again    # one more run of single images

Variants take turns, so that whatever else the machine does hits them alike; ratios are those of the medians. Masks and
figures are kept in a folder, one JSON file per network and compression, so that a run can be cut into pieces. Parts:
`bench` the training step and inference, `forms` single images in all forms of inference (what the row of single images
is judged by: the median of all runs), `onnx` folded norms and exported files, `profile` where the time of a compact
training step goes, `variants` what could take it further (memory format, no masks, folded norms, torch.compile).
"""

import argparse
import copy
import json
import statistics
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from synflow import attached, bake, bench, compact, for_inference, load_masks, prune, save_masks
from synflow.models.built_in import build

ROWS = [f"{model}:{compression}" for model in ("vgg16_bn", "resnet18") for compression in (10, 100, 1000)]
# What is to be reached on VGG-16: (task, batch, variant, compression) -> times faster than the dense network as it is.
TARGETS = {
    ("training step", 128, "compact", 100): 2.5,
    ("training step", 128, "compact", 1000): 6.0,
    ("forms", 1, "compact, frozen", 100): 8.0,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=ROWS, metavar="MODEL:COMPRESSION")
    parser.add_argument(
        "--parts", nargs="+", default=["bench", "forms"], choices=["bench", "forms", "onnx", "profile", "variants"]
    )
    parser.add_argument("--again", action="store_true", help="measure rows anew that are there already")
    parser.add_argument("--compile", action="store_true", help="with variants, also torch.compile (minutes)")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--folder", type=Path, default=Path("runs/compaction"))
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    options.folder.mkdir(parents=True, exist_ok=True)
    for row in options.only:
        path = options.folder / f"{row.replace(':', '-')}.json"
        found = json.loads(path.read_text()) if path.exists() else {}
        missing = [part for part in options.parts if options.again or part not in found]
        if missing:
            new = measured(row, missing, options)
            if "forms" in new:  # every run counts, none replaces another
                new["forms"] = found.get("forms", []) + new["forms"]
            found |= new
            unfinished = path.with_suffix(".part")
            unfinished.write_text(json.dumps(found, indent=1) + "\n")
            unfinished.replace(path)
    table(options.folder)


def measured(row: str, parts: list[str], options: argparse.Namespace) -> dict:
    name, compression = row.split(":")
    torch.manual_seed(0)
    model, example = build(name), torch.randn(2, 3, 32, 32)
    file = options.folder / f"{name}-{compression}.safetensors"
    if not file.exists():
        save_masks(prune(model, example[:1], compression=float(compression)), file)
    masks = load_masks(file, model)
    start = time.perf_counter()
    small = compact(model, example, masks)
    found: dict = {"compact_seconds": time.perf_counter() - start}
    found["widths"] = [m.out_channels for m in small.modules() if isinstance(m, nn.Conv2d)]
    print(f"\n{row}: compacted and checked in {found['compact_seconds']:.1f} s; widths {found['widths']}", flush=True)
    shared = {"small": small, "repeats": options.repeats, "threads": options.threads}
    if "bench" in parts:
        result = bench(model, masks, example, train_batches=[128], inference_batches=[1, 64], **shared)
        print(result, flush=True)
        found["bench"] = json.loads(result.to_json())
    if "forms" in parts:
        shared["repeats"] = 3 * options.repeats
        result = bench(model, masks, example, train_batches=[], inference_batches=[1], forms=True, **shared)
        print(result, flush=True)
        found["forms"] = [json.loads(result.to_json())]
    if "onnx" in parts:
        formats = {"onnx": True, "folded": True, "openvino": find_spec("openvino") is not None}
        result = bench(model, masks, example, train_batches=[], inference_batches=[1, 64], **formats, **shared)
        print(result, flush=True)
        found["onnx"] = json.loads(result.to_json())
    if "profile" in parts:
        found["profile"] = profile(small)
    if "variants" in parts:
        found["variants"] = training_variants(model, small, options) | inference_variants(model, small, options)
    return found


Cell = tuple[str, int, str]  # task, batch, variant


def table(folder: Path) -> None:
    """The ratios of all rows that have been measured, by task, and the runs of single images one by one."""
    rows: dict[str, dict[Cell, list[float]]] = {}
    for row in ROWS:
        path = folder / f"{row.replace(':', '-')}.json"
        if path.exists():
            rows[row] = ratios(json.loads(path.read_text()))
    tasks = [("training step", 128, "compact")]
    tasks += [
        (task, size, "compact") for task in ("inference", "folded", "onnxruntime", "openvino") for size in (1, 64)
    ]
    forms = [
        f"{name}, {form}" for name in ("dense", "compact") for form in ("channels last", "for_inference", "frozen")
    ]
    tasks += [("forms", size, variant) for size in (1, 64) for variant in ("compact", *forms)]
    print(f"\n{'times faster than dense':40}" + "".join(f"{row.replace('_bn', '') + 'x':>15}" for row in rows))
    for task in tasks:
        cells = [
            f"{statistics.median(found[task]):14.2f}x" if task in found else f"{'-':>15}" for found in rows.values()
        ]
        name = f"{task[0]}, batch {task[1]}" if task[0] != "forms" else f"inference, {task[1]}: {task[2]}"
        if any(cell.strip() != "-" for cell in cells):
            print(f"{name:40}" + "".join(cells))
    for (task, batch, variant, compression), wanted in TARGETS.items():
        found = rows.get(f"vgg16_bn:{compression}", {})
        runs, alike = (found.get((task, batch, name), []) for name in (variant, variant.replace("compact", "dense")))
        if runs:
            verdict = "reached" if statistics.median(runs) >= wanted else "NOT reached"
            each = ", ".join(f"{ratio:.2f}" for ratio in runs)
            what = "inference" if task == "forms" else task
            against = f"VGG-16 at {compression}x, {what}, batch {batch}, {variant} against dense as it is"
            print(f"{against}: {wanted}x {verdict} ({each})")
            if task == "forms" and alike:
                print(f"  against dense in the same form: {statistics.median(runs) / statistics.median(alike):.2f}x")


def ratios(found: dict) -> dict[Cell, list[float]]:
    """Of every cell of a row's file the ratios to the dense network as it is, one per run."""
    timings = found["bench"]["timings"] if "bench" in found else []
    timings += [t for t in found["onnx"]["timings"] if t["task"] != "inference"] if "onnx" in found else []
    for run in found.get("forms", []):
        timings += [t for t in run["timings"] if t["task"] == "forms"]
    cells: dict[Cell, list[float]] = {}
    for t in timings:
        cells.setdefault((t["task"], t["batch"], t["variant"]), []).append(t["ratio"])
    return cells


def training_step(model: nn.Module, inputs: torch.Tensor) -> Callable[[], None]:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    targets = torch.randint(10, (len(inputs),))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def call(model: nn.Module, inputs: torch.Tensor) -> Callable[[], object]:
    def run() -> object:
        with torch.inference_mode():
            return model(inputs)

    return run


def profile(small: nn.Module, batch: int = 128) -> dict:
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
    print("forward by layer:", ", ".join(f"{key} {value / whole:.0%}" for key, value in layers.items()), flush=True)
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
        stops = [start for _, start in marks[1:]] + [time.perf_counter()]
        for (path, start), stop in zip(marks, stops, strict=True):
            samples.setdefault(path, []).append(stop - start)
    for hook in hooks:
        hook.remove()
    return {path: statistics.median(values) for path, values in samples.items()}


def training_variants(model: nn.Module, small: nn.Module, options: argparse.Namespace) -> dict:
    """Training steps in other forms, as ratios to plain dense."""
    inputs = torch.randn(128, 3, 32, 32)
    last = inputs.contiguous(memory_format=torch.channels_last)
    bare = copy.deepcopy(small)
    bake(bare)
    runs = {
        "dense": training_step(copy.deepcopy(model), inputs),
        "dense, channels_last": training_step(copy.deepcopy(model).to(memory_format=torch.channels_last), last),
        "compact": training_step(copy.deepcopy(small), inputs),
        "compact, masks off": training_step(bare, inputs),
        "compact, channels_last": training_step(copy.deepcopy(small).to(memory_format=torch.channels_last), last),
    }
    assert attached(small), "the compact network carries its masks"
    return in_turns("training step, batch 128", runs, options.repeats, 1)


def inference_variants(model: nn.Module, small: nn.Module, options: argparse.Namespace) -> dict:
    """Single images in other forms, as ratios to plain dense."""
    inputs = torch.randn(1, 3, 32, 32)
    last = inputs.contiguous(memory_format=torch.channels_last)
    runs: dict[str, Callable[[], object]] = {}
    for name, network in (("dense", model), ("compact", small)):
        plain = copy.deepcopy(network).eval().requires_grad_(False)
        bake(plain)
        fused = for_inference(plain, inputs, channels_last=False)
        runs[name] = call(plain, inputs)
        runs[f"{name}, channels_last"] = call(copy.deepcopy(plain).to(memory_format=torch.channels_last), last)
        runs[f"{name}, norms folded"] = call(fused, inputs)
        both = for_inference(plain, inputs)
        runs[f"{name}, norms folded, channels_last"] = call(both, last)
        with warnings.catch_warnings():  # that it will go one day
            warnings.simplefilter("ignore", DeprecationWarning)
            runs[f"{name}, the same, traced"] = call(torch.jit.freeze(torch.jit.trace(both, last)), last)
            runs[f"{name}, frozen"] = call(for_inference(plain, inputs, freeze=True), last)
        if options.compile:
            runs[f"{name}, compiled"] = call(torch.compile(copy.deepcopy(plain)), inputs)
    return in_turns("inference, batch 1", runs, 3 * options.repeats, 5)


def in_turns(title: str, runs: dict[str, Callable[[], object]], repeats: int, loops: int) -> dict:
    """Median seconds of each, taken in turns, and how many times faster than the first."""
    for run in runs.values():
        for _ in range(2):
            run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            for _ in range(loops):
                run()
            seconds[name].append((time.perf_counter() - start) / loops)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    first = next(iter(medians.values()))
    print(title)
    for name, value in medians.items():
        print(f"  {name:38}{value * 1e3:9.2f} ms{first / value:8.2f}x", flush=True)
    return {title: medians}


if __name__ == "__main__":
    main()
