"""Picking, adding back and thin products: compiled or not, they are what torch's own operations give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from synflow.engine import compiled, thin_products
from synflow.engine import gather_pixels as gathering


@contextmanager
def loops(used: bool) -> Iterator[None]:
    """Compiled loops are used, or not, whatever was loaded before."""
    with pytest.MonkeyPatch.context() as patch:
        if used:
            pytest.importorskip("numba", reason="the extra `fast` is not installed")
        patch.setattr(compiled, "already", compiled.kernels if used else lambda: None)
        yield


DTYPES = st.sampled_from([torch.float32, torch.float64])


@pytest.mark.parametrize("used", [False, True])
@given(st.integers(0, 10**6), DTYPES)
def test_pixels_are_picked_and_added_back(used: bool, seed: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    size, number = (int(torch.randint(1, 30, (), generator=generator)) for _ in range(2))
    images = torch.rand(2, 3, size, generator=generator, dtype=dtype).requires_grad_()
    places = torch.randint(size + 1, (number,), generator=generator, dtype=torch.int32)
    weights = torch.rand(2, 3, number, generator=generator, dtype=dtype)
    with loops(used):
        found = gathering.picked(images, places)
        (gradient,) = torch.autograd.grad((found * weights).sum(), images)
    padded = torch.cat([images.detach(), torch.zeros(2, 3, 1, dtype=dtype)], 2)
    assert torch.equal(found.detach(), padded[:, :, places.long()])
    expected = torch.zeros(2, 3, size + 1, dtype=torch.float64)
    for k, place in enumerate(places.tolist()):
        expected[:, :, place] += weights[:, :, k]
    torch.testing.assert_close(gradient.double(), expected[:, :, :size], rtol=1e-5, atol=0)


@pytest.mark.parametrize("used", [False, True])
@given(st.integers(0, 10**6), DTYPES, st.integers(1, 20))
def test_products_with_few_columns(used: bool, seed: int, dtype: torch.dtype, number: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (int(torch.randint(1, 40, (), generator=generator)) for _ in range(2))
    weight = torch.rand(rows, columns, generator=generator, dtype=dtype)
    seen = torch.rand(columns, number, generator=generator, dtype=dtype)
    sent = torch.rand(number, rows, generator=generator, dtype=dtype).t()
    with loops(used), pytest.MonkeyPatch.context() as patch:
        patch.setattr(thin_products, "LARGE", 0)
        through, back = thin_products.through(weight, seen, used), thin_products.back(weight, sent, used)
    torch.testing.assert_close(through.double(), weight.double() @ seen.double(), rtol=1e-5, atol=0)
    torch.testing.assert_close(back.double(), weight.t().double() @ sent.double(), rtol=1e-5, atol=0)


def test_half_precision_is_left_to_torch() -> None:
    images, places = torch.rand(1, 2, 5).bfloat16(), torch.tensor([4, 5, 0], dtype=torch.int32)
    with loops(True):
        found = gathering.picked(images, places)
    assert torch.equal(found[0, :, 1], torch.zeros(2, dtype=torch.bfloat16))
    assert torch.equal(found[0, :, 0], images[0, :, 4])
