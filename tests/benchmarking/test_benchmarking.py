"""The benchmark counts right; what it times is not tested, since no test may depend on time."""

import json
import sys

import pytest
import torch
from torch import nn

from compact_twins import without
from synflow.benchmarking.run import bench
from synflow.benchmarking.tasks import _openvino
from synflow.errors import MissingExtraError, SynflowError
from synflow.inference.onnx import export_onnx
from synflow.support.memory import peak_memory


def net():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten())
    model.append(nn.Linear(16, 2))
    return model, {"3.weight": without(model, "3.weight", 1, range(2, 8))}, torch.randn(3, 3, 6, 6)


@pytest.fixture(scope="module")
def result():
    model, masks, example = net()
    options = {"train_batches": (4, 2), "inference_batches": (1, 5), "repeats": 2, "warmup": 1, "progress": False}
    return bench(model, masks, example, **options, threads=1, channels_last=True)


def test_every_variant_is_timed_in_every_task(result):
    rows = [(t.task, t.batch, t.variant) for t in result.timings]
    tasks = [("training step", 4), ("training step", 2), ("inference", 1), ("inference", 5)]
    assert rows == [(*task, variant) for task in tasks for variant in ("dense", "masked", "compact")]
    assert all(0 < t.low <= t.seconds <= t.high for t in result.timings)
    assert all(t.ratio == 1 for t in result.timings if t.variant == "dense")
    assert result.ratio("inference", 5) > 0


def test_sizes_and_operations_are_counted(result):
    dense, masked, compact = result.sizes
    assert dense.parameters == masked.parameters == 224 + 16 + 292 + 34
    assert compact.parameters == 56 + 4 + 76 + 34
    assert masked.nonzero <= dense.nonzero - 6 * 4 * 9
    assert dense.flops == masked.flops == 2 * (16 * 8 * 27 + 4 * 4 * 72 + 16 * 2)
    assert compact.flops == 2 * (16 * 2 * 27 + 4 * 4 * 18 + 16 * 2)
    assert compact.file_bytes < dense.file_bytes
    for task in ("training step", "inference"):
        assert result.peaks[task]["compact"] < result.peaks[task]["dense"]


def test_table_json_and_plot_show_the_same(result, tmp_path):
    table = str(result)
    for timing in result.timings:
        assert f"{timing.task}, batch {timing.batch}" in table
    stored = json.loads(result.to_json(tmp_path / "bench.json"))
    assert stored == json.loads((tmp_path / "bench.json").read_text())
    assert stored["timings"][0]["seconds"] == result.timings[0].seconds
    result.plot(tmp_path / "bench.png")
    assert (tmp_path / "bench.png").stat().st_size > 1000


def test_the_model_is_left_alone_and_nonsense_refused():
    model, masks, example = net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    threads = torch.get_num_threads()
    options = {"train_batches": (), "inference_batches": (1,), "warmup": 0, "progress": False, "threads": 1}
    bench(model, masks, example, repeats=1, **options)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.get_num_threads() == threads
    with pytest.raises(SynflowError, match="repeats must be at least 1"):
        bench(model, masks, example, repeats=0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_training_steps_are_timed_whatever_mode_the_caller_is_in(mode):
    with mode():
        model, masks, example = net()
        options = {"train_batches": (2,), "inference_batches": (), "warmup": 0, "progress": False, "threads": 1}
        assert bench(model, masks, example, repeats=1, **options).ratio("training step", 2) > 0


def test_exported_files_are_timed_too():
    model, masks, example = net()
    options = {"train_batches": (), "inference_batches": (2,), "repeats": 1, "warmup": 0, "progress": False}
    result = bench(model, masks, example, onnx=True, folded=True, **options)
    for task in ("inference", "folded", "onnxruntime"):
        assert [t.variant for t in result.timings if t.task == task] == ["dense", "masked", "compact"]
    dense, _, compact = result.sizes
    assert compact.onnx_bytes < dense.onnx_bytes


def test_forms_of_inference_are_laid_side_by_side():
    model, masks, example = net()
    options = {"train_batches": (), "inference_batches": (1, 2), "repeats": 1, "warmup": 0, "progress": False}
    result = bench(model, masks, example, forms=True, **options)
    forms = ["", ", channels last", ", for_inference", ", frozen"]
    rows = [(t.batch, t.variant) for t in result.timings if t.task == "forms"]
    assert rows == [(size, name + form) for size in (1, 2) for name in ("dense", "compact") for form in forms]
    assert result.ratio("forms", 1, "dense") == 1
    assert result.ratio("forms", 2, "compact, frozen") > 0
    assert "compact, for_inference" in str(result)


def test_openvino_runs_the_exported_files_with_the_same_outputs(tmp_path):
    pytest.importorskip("openvino", reason="openvino is not installed: pip install 'synflow[openvino]'")
    model, masks, example = net()
    options = {"train_batches": (), "inference_batches": (2,), "repeats": 1, "warmup": 0, "progress": False}
    result = bench(model, masks, example, openvino=True, **options)
    assert [t.variant for t in result.timings if t.task == "openvino"] == ["dense", "masked", "compact"]
    path = export_onnx(model, example, tmp_path / "m.onnx")
    batch = torch.randn(5, 3, 6, 6)
    (got,) = _openvino(path, batch)()
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(got), model.eval()(batch), rtol=1e-4, atol=1e-5)


def test_without_openvino_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    model, masks, example = net()
    options = {"train_batches": (), "inference_batches": (1,), "repeats": 1, "warmup": 0, "progress": False}
    with pytest.raises(MissingExtraError, match=r"synflow\[openvino\]"):
        bench(model, masks, example, openvino=True, **options)


def test_peak_memory_counts_what_is_alive_at_once():
    def chain():
        x = torch.zeros(100)
        for _ in range(5):
            x = x + 1  # the last and the next one are alive together
        return x.numel()

    assert peak_memory(chain) == 800
    kept = []
    assert peak_memory(lambda: kept.extend(torch.zeros(100) for _ in range(5))) == 2000
    assert peak_memory(lambda: kept[0].add_(1)) == 0


@pytest.mark.slow
def test_compiled_models_are_timed():
    model, masks, example = net()
    options = {"train_batches": (2,), "inference_batches": (2,), "repeats": 1, "warmup": 1, "progress": False}
    assert bench(model, masks, example, compile=True, **options).settings["compile"] is True


def test_a_model_without_parameters_can_be_timed():
    result = bench(nn.ReLU(), {}, torch.ones(1, 3), train_batches=(), inference_batches=(1,), small=nn.ReLU(),
                   repeats=1, progress=False)  # fmt: skip
    assert {size.variant: size.parameters for size in result.sizes} == {"dense": 0, "masked": 0, "compact": 0}
