"""ONNX files: checked outputs, really smaller, all or nothing."""

import pytest
import torch
from torch import nn

from compact_twins import without
from synflow.compaction import compact
from synflow.errors import SynflowError
from synflow.inference import onnx
from synflow.inference.onnx import export_onnx, feeds, onnx_session
from synflow.masks.attach import attach, attached


@pytest.fixture(scope="module")
def pair():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * 16, 5),
    )  # fmt: skip
    masks = {"3.weight": without(model, "3.weight", 1, range(8, 64)), "6.weight": torch.ones(5, 1024, dtype=torch.bool)}
    masks["6.weight"][:, 4 * 16 :] = False
    example = torch.randn(2, 3, 8, 8)
    return model, compact(model, example, masks), example


def test_what_was_removed_is_gone_from_the_file_and_outputs_agree(pair, tmp_path):
    model, small, example = pair
    masks = attached(small)
    dense, tiny = (export_onnx(m, example, tmp_path / name) for m, name in ((model, "dense.onnx"), (small, "s.onnx")))
    assert small.training == model.training
    assert attached(small).keys() == masks.keys()
    saved = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in small.parameters())
    assert dense.stat().st_size - tiny.stat().st_size > 0.95 * 4 * saved
    session = onnx_session(tiny)
    batch = torch.randn(5, 3, 8, 8)  # any batch size
    with torch.no_grad():
        expected = small.eval()(batch)
    got = torch.from_numpy(session.run(None, feeds(session, batch))[0])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dense.onnx", "s.onnx"]


def test_a_masked_model_is_written_with_its_zeros(tmp_path):
    model = attach(nn.Linear(3, 2), {"weight": torch.tensor([[True, False, True]] * 2)})
    with torch.no_grad():
        model._parameters["weight"].add_(1)  # an optimizer's traces under the mask are not seen
    export_onnx(model, torch.randn(1, 3), tmp_path / "m.onnx")
    session = onnx_session(tmp_path / "m.onnx")
    probe = torch.tensor([[0.0, 1.0, 0.0]] * 3)
    got = session.run(None, feeds(session, probe))[0]
    assert got == pytest.approx(model.bias.detach().expand(3, 2).numpy(), abs=1e-6)


def test_a_path_is_asked_for_before_any_work(pair):
    with pytest.raises(SynflowError, match="path must be that of an ONNX file, got NoneType"):
        export_onnx(pair[0], pair[2], None)


def test_a_file_that_disagrees_is_not_written(pair, tmp_path):
    _, small, example = pair
    target = tmp_path / "old.onnx"
    target.write_text("old")
    with pytest.raises(SynflowError, match="nothing was written"):
        export_onnx(small, example, target, tolerance=-1.0)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["old.onnx"]


def test_an_output_of_another_shape_is_named(pair, tmp_path, monkeypatch):
    """Files whose batch is fixed by mistake: such outputs cannot even be subtracted."""
    _, small, example = pair

    class Session:
        def run(self, *_):
            return [torch.zeros(3, 5).numpy()]

    monkeypatch.setattr(onnx, "onnx_session", lambda path: Session())
    monkeypatch.setattr(onnx, "feeds", lambda session, inputs: {})
    with pytest.raises(SynflowError, match=r"output 0 of the file has shape \(3, 5\), the model's \(2, 5\); nothing"):
        export_onnx(small, example, tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
