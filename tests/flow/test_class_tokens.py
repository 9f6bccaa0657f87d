"""Constants that enter beside the input (class tokens, position tables): flow may need them, but they are no input."""

import torch
import torch.nn.functional as F
from torch import nn

import synflow


class ClassToken(nn.Module):
    """Patches and a class token; only the token is read, and its query does not depend on the input."""

    def __init__(self, width: int = 6, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(3, width)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 5, width))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), self.embed(x)], 1) + self.positions
        for qkv, out in zip(self.qkv, self.out, strict=True):
            q, k, v = qkv(F.layer_norm(x, x.shape[-1:])).chunk(3, -1)
            x = x + out(F.scaled_dot_product_attention(q, k, v))
        return self.head(x[:, 0])


EXAMPLE = torch.zeros(1, 4, 3)


def test_the_input_reaches_the_class_token_through_attention():
    model = ClassToken()
    scores = synflow.score(model, EXAMPLE)
    assert all(float(score.min()) > 0 for score in scores.values())
    masks = synflow.prune(model, EXAMPLE, compression=10, steps=10)
    certificate = synflow.certify(model, masks, EXAMPLE)
    assert certificate.connected
    assert certificate.kept == round(sum(p.numel() for p in synflow.prunable(model).values()) / 10)


def test_a_network_that_ignores_its_input_is_disconnected():
    """Without the embedding the class token still flows to the output, but nothing of the input does."""
    model = ClassToken()
    masks = {name: torch.ones_like(p, dtype=torch.bool) for name, p in synflow.prunable(model).items()}
    masks["embed.weight"].zero_()
    certificate = synflow.certify(model, masks, EXAMPLE)
    assert certificate.flow_log2 > -100
    assert not certificate.connected


def test_guarded_pruning_keeps_the_input_connected_at_any_compression():
    model = ClassToken(layers=1)
    size = sum(p.numel() for p in synflow.prunable(model).values())
    for keep in (40, 20, 12, 8):
        masks = synflow.prune(model, EXAMPLE, compression=size / keep, steps=8)
        assert synflow.certify(model, masks, EXAMPLE).connected, keep


def test_a_step_that_leaves_a_path_is_taken_whole_and_weighed_by_its_scores():
    """The bound says nothing where constants enter; the paper's choice stands as long as a path is found."""
    model = ClassToken(width=16).double()
    size = sum(p.numel() for p in synflow.prunable(model).values())
    before = {name: torch.ones_like(p, dtype=torch.bool) for name, p in synflow.prunable(model).items()}
    for step in synflow.iterate(model, EXAMPLE, compression=5, steps=5):
        scores = synflow.score(model, EXAMPLE, masks=before)
        joined = torch.cat([scores[n][before[n]] for n in before])
        edge = joined.sort().values[-step.kept]
        assert step.substeps == 1
        assert all(torch.equal(step.masks[n], before[n] & (scores[n] >= edge)) for n in before)
        lost, flow = float(joined[joined < edge].sum()), 2.0**step.flow_log2
        assert abs(step.pruned_fraction - lost / flow) < 1e-9
        before = step.masks
    assert step.kept == round(size / 5)


class Table(nn.Module):
    """A position table so large that what comes from the input weighs next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(12, 16, bias=False), nn.Linear(16, 8, bias=False)
        self.positions = nn.Parameter(1000 * torch.rand(1, 5, 16))

    def forward(self, x):
        return self.head(self.embed(x) + self.positions)


def test_a_light_step_still_has_to_leave_a_path():
    """All weights that read the input go for less than the flow, most of which starts at the table."""
    model, example = Table(), torch.zeros(1, 5, 12)
    bold = synflow.prune(model, example, density=0.3, steps=1, guard=False)
    assert not synflow.certify(model, bold, example).connected
    (step,) = synflow.iterate(model, example, density=0.3, steps=1, guard=False)
    assert step.pruned_fraction < 1
    masks = synflow.prune(model, example, density=0.3, steps=1)
    certificate = synflow.certify(model, masks, example)
    assert (certificate.connected, certificate.kept) == (True, 96)
