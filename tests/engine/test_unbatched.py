"""Vectors without a batch, loops over samples and views in place: torch changes shapes there behind a recording."""

import itertools

import pytest
import torch
from torch import nn

import synflow
from checks import Function

CASES = {
    "one vector": (lambda self, x: self.c(self.b(self.a(x).relu()).relu()), (6,)),
    "a loop over samples": (lambda self, x: torch.stack([self.c(self.b(self.a(row)).relu()) for row in x]), (3, 6)),
    "a sum over samples": (lambda self, x: self.c(torch.matmul(self.a(x).relu().sum(0), self.b.weight.t())), (3, 6)),
    "squeeze_": (lambda self, x: self.c(self.b(self.a(x).relu().squeeze_(0)).unsqueeze_(0)), (1, 6)),
    "t_": (lambda self, x: self.c(self.b(self.a(x).t_().t_()).transpose_(0, 1).transpose_(0, 1)), (2, 6)),
}


@pytest.mark.parametrize("name", CASES)
def test_each_step_measures_the_network_that_is_left(name):
    forward, shape = CASES[name]
    torch.manual_seed(0)
    model = Function(forward, a=nn.Linear(6, 12), b=nn.Linear(12, 12), c=nn.Linear(12, 4)).double()
    example = torch.ones(shape).double()
    fast, plain = (synflow.prune(model, example, compression=8, steps=8, engine=e) for e in ("fast", "plain"))
    assert all(torch.equal(fast[weight], plain[weight]) for weight in fast)
    flows = [step.flow_log2 for step in fast.steps]
    assert flows == pytest.approx([step.flow_log2 for step in plain.steps])
    assert all(later < earlier for earlier, later in itertools.pairwise(flows))
    for options in ({"schedule": "certified"}, {"steps": 4}):
        masks = synflow.prune(model, example, compression=50, **options)
        assert synflow.certify(model, masks, example).connected
