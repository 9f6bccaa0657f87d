"""Products by oneDNN are the products of torch, in every form that a layer asks for."""

from __future__ import annotations

import pytest
import torch

from synflow.engine import products


@pytest.mark.parametrize("lines", [2, 7, 64])
def test_large_products_by_onednn_equal_those_of_torch(lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if products.onednn_linear is None:
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(products, "SMALL", 0)
    torch.manual_seed(0)
    weight, x, back = torch.rand(40, 90), torch.rand(lines, 90), torch.rand(lines, 40)
    assert products._suits(x, weight)
    exact = weight.double()
    torch.testing.assert_close(products.times_transposed(x, weight).double(), x.double() @ exact.t(), rtol=1e-5, atol=0)
    torch.testing.assert_close(products.times(back, weight).double(), back.double() @ exact, rtol=1e-5, atol=0)
    columns = x.t().contiguous()
    found = products.on_columns(weight, columns).double()
    torch.testing.assert_close(found, exact @ columns.double(), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (torch.rand(1, 2000), torch.rand(1000, 2000)),  # one line is read as fast by torch
        (torch.rand(2000), torch.rand(1000, 2000)),
        (torch.rand(4, 30), torch.rand(20, 30)),  # done before oneDNN has been called
        (torch.rand(4, 2000).double(), torch.rand(1000, 2000).double()),  # oneDNN has no float64
        (torch.rand(4, 2000), torch.rand(1000, 2000).bfloat16()),
    ],
)
def test_other_products_are_left_to_torch(x: torch.Tensor, weight: torch.Tensor) -> None:
    assert not products._suits(x, weight)
    wide = weight.to(x.dtype)
    torch.testing.assert_close(products.times_transposed(x, weight), x @ wide.t())
