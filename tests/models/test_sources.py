"""Models of other libraries: nothing is downloaded, and a broken library is told from a missing one."""

import sys

import pytest

from synflow.errors import SynflowError
from synflow.models.sources import load_model


def test_models_of_torchvision_download_no_backbone(monkeypatch):
    pytest.importorskip("timm")

    def download(*_, **__):
        raise AssertionError("a download was tried")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", download)
    source = load_model("torchvision:lraspp_mobilenet_v3_large", inputs=["1x3x64x64"], classes=3)
    assert source.model.eval()(source.example)["out"].shape == (1, 3, 64, 64)


def test_a_library_that_is_there_and_broken_is_told(tmp_path, monkeypatch):
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator nms does not exist')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name == "timm" or name.startswith("timm.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SynflowError, match="timm is installed but cannot be imported: RuntimeError: operator nms"):
        load_model("timm:resnet18")
