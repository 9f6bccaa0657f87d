"""Slow twins of the library's methods, written from the formulas, in float64, with nothing taken from the library.

Weights, scores and masks are `dict[str, ndarray]` in layer order; a linear layer's weight has shape (outputs, inputs).

The flow is a sum of terms. A `Term` is a coefficient and the weights it multiplies, one `Key` (layer name, flat
position) per use; a path from input to output is one such term. A unit is the list of the terms that reach it.
"""

import itertools
import math
from copy import deepcopy

import numpy as np
import torch
import torch.nn.functional as F

Key = tuple[str, int]
Term = tuple[float, tuple[Key, ...]]
Unit = list[Term]
Arrays = dict[str, np.ndarray]


# Flow of chains by matrix products


def chain_flow(matrices, biases=None, power=1):
    """R = 1^T |W_L| ... |W_1| 1, each product followed by + |b| where there are biases."""
    return _chain_forward(matrices, biases, power)[-1].sum()


def chain_scores(matrices, biases=None, power=1):
    """S_l = (|W_L| ... |W_{l+1}|)^T 1 * |W_l| * |W_{l-1}| ... |W_1| 1: what reaches a weight times what it reaches."""
    forward = _chain_forward(matrices, biases, power)
    backward = np.ones(matrices[-1].shape[0])
    scores = []
    for matrix, reaching in zip(reversed(matrices), reversed(forward[:-1]), strict=True):
        scores.append(backward[:, None] * np.abs(matrix) ** power * reaching[None, :])
        backward = (np.abs(matrix) ** power).T @ backward
    return scores[::-1]


def _chain_forward(matrices, biases, power):
    flows = [np.ones(matrices[0].shape[1])]
    for index, matrix in enumerate(matrices):
        shift = 0 if biases is None or biases[index] is None else np.abs(biases[index]) ** power
        flows.append(np.abs(matrix) ** power @ flows[-1] + shift)
    return flows


def conv_matrix(weight, image, stride=1, padding=0, groups=1):
    """The matrix of a 2d convolution on flattened images, and the flat position of the weight in each entry (or -1).

    M[(o, y, x), (i, v, u)] = W[o, i, v - (stride y - padding), u - (stride x - padding)].
    """
    outputs, group_inputs, kernel_h, kernel_w = weight.shape
    inputs, height, width = image
    out_h = (height + 2 * padding - kernel_h) // stride + 1
    out_w = (width + 2 * padding - kernel_w) // stride + 1
    matrix = np.zeros((outputs, out_h, out_w, inputs, height, width))
    position = np.full(matrix.shape, -1)
    for (o, i, a, b), value in np.ndenumerate(weight):
        channel = o // (outputs // groups) * group_inputs + i
        for y, x in itertools.product(range(out_h), range(out_w)):
            v, u = stride * y - padding + a, stride * x - padding + b
            if 0 <= v < height and 0 <= u < width:
                matrix[o, y, x, channel, v, u] = value
                position[o, y, x, channel, v, u] = np.ravel_multi_index((o, i, a, b), weight.shape)
    size = (outputs * out_h * out_w, inputs * height * width)
    return matrix.reshape(size), position.reshape(size), (outputs, out_h, out_w)


def fold(entries, position, shape):
    """Scores of a convolution's weights from those of its matrix: S(w) = sum over the entries that hold w."""
    scores = np.zeros(math.prod(shape))
    np.add.at(scores, position[position >= 0], entries[position >= 0])
    return scores.reshape(shape)


# Flow of any small network by its terms


def input_units(count) -> list[Unit]:
    """Inputs of one: each a single term of coefficient one and no weights."""
    return [[(1.0, ())] for _ in range(count)]


def linear_units(units, name, weight, bias=None) -> list[Unit]:
    """Every term goes on through every outgoing weight; a bias |b| starts a term of its own."""
    outputs, inputs = weight.shape
    reached: list[Unit] = []
    for o in range(outputs):
        unit = [(c, (*path, (name, o * inputs + i))) for i in range(inputs) for c, path in units[i]]
        reached.append(unit if bias is None else [*unit, (abs(float(bias[o])), ())])
    return reached


def add_units(left, right) -> list[Unit]:
    """A skip connection: the terms of both."""
    return [a + b for a, b in zip(left, right, strict=True)]


def gate_units(left, right) -> list[Unit]:
    """A product node: each term of one side times each term of the other, a small tree of paths."""
    return [[(c * d, p + q) for (c, p), (d, q) in itertools.product(a, b)] for a, b in zip(left, right, strict=True)]


def mlp_terms(weights, biases=None, skips=()) -> list[Term]:
    """Every path of an MLP; a skip (a, b) adds what layer a reads to what layer b reads; a last b is the output."""
    names = list(weights)
    units = input_units(weights[names[0]].shape[1])
    read: list[list[Unit]] = []
    for index, name in enumerate([*names, None]):
        for start in (a for a, b in skips if b == index):
            units = add_units(units, read[start])
        read.append(units)
        if name is not None:
            units = linear_units(units, name, weights[name], None if biases is None else biases.get(name))
    return [term for unit in units for term in unit]


def flow(terms, weights) -> float:
    """R = sum over terms of c * product of |w|."""
    return math.fsum(_value(term, weights) for term in terms)


def scores(terms, weights) -> Arrays:
    """S(w) = |w| dR/d|w| = the flow of all terms through w, counted once per use."""
    result = {name: np.zeros(weight.size) for name, weight in weights.items()}
    for term in terms:
        value = _value(term, weights)
        for name, position in term[1]:
            result[name][position] += value
    return {name: result[name].reshape(weight.shape) for name, weight in weights.items()}


def _value(term, weights):
    coefficient, path = term
    return coefficient * math.prod(abs(float(weights[name].flat[position])) for name, position in path)


def path_weights(terms) -> set[Key]:
    """The weights that lie on some path."""
    return {key for coefficient, path in terms if coefficient > 0 for key in path}


def union_bound(terms, weights, removed) -> tuple[float, float, float]:
    """R, R without the removed weights, and the bound on the loss, sum of S over the removed: R - R' <= bound."""
    pruned = {name: weight.copy() for name, weight in weights.items()}
    each = scores(terms, weights)
    for name, position in removed:
        pruned[name].flat[position] = 0
    bound = math.fsum(each[name].flat[position] for name, position in set(removed))
    return flow(terms, weights), flow(terms, pruned), bound


def fewest_weights(terms, weights) -> int:
    """The size of the smallest set of weights that carries flow alone, by trying all sets, small ones first."""
    keys = [(name, position) for name, weight in weights.items() for position in range(weight.size)]
    live = [set(path) for coefficient, path in terms if coefficient > 0 and _value((1.0, path), weights) > 0]
    for size in range(len(keys) + 1):
        for kept in itertools.combinations(keys, size):
            if any(path <= set(kept) for path in live):
                return size
    raise AssertionError("no path carries flow")


def max_compression(terms, weights) -> float:
    """N / (weights of the smallest set that keeps input and output connected)."""
    return sum(weight.size for weight in weights.values()) / fewest_weights(terms, weights)


def hidden_imbalance(each) -> list[np.ndarray]:
    """Inflow minus outflow at the hidden units of a chain, sum_i S_l[u, i] - sum_o S_{l+1}[o, u]: 0 without biases."""
    return [below.sum(1) - above.sum(0) for below, above in itertools.pairwise(each)]


# From scores to masks


def top_k(scores, k, alive=None) -> Arrays:
    """The k largest scores over all layers, the earlier position first among equals; only `alive` ones can stay."""
    ranked = sorted(
        (-value, layer, position, name)
        for layer, (name, each) in enumerate(scores.items())
        for position, value in enumerate(each.ravel().tolist())
        if alive is None or alive[name].flat[position]
    )
    masks = {name: np.zeros(each.shape, dtype=bool) for name, each in scores.items()}
    for _, _, position, name in ranked[:k]:
        masks[name].flat[position] = True
    return masks


def density_exponential(compression, step, steps) -> float:
    """rho_k = rho^(k/n); density 1 / rho_k."""
    return compression ** (-step / steps)


def density_linear(compression, step, steps) -> float:
    """rho_k = max(1, k/n rho); density 1 / rho_k."""
    return 1 / max(1.0, step / steps * compression)


def density_linear_in_density(compression, step, steps) -> float:
    """1 - (1 - 1/rho) k/n, as in the authors' code."""
    return 1 - (1 - 1 / compression) * step / steps


def iterative_synflow(weights, compression, steps, density=density_exponential) -> list[Arrays]:
    """The paper's Algorithm 1 on an MLP without biases: masks after each step."""
    total = sum(weight.size for weight in weights.values())
    masks = {name: np.ones(weight.shape, dtype=bool) for name, weight in weights.items()}
    history = []
    for step in range(1, steps + 1):
        each = chain_scores([weight * masks[name] for name, weight in weights.items()])
        kept = round(total * density(compression, step, steps))
        masks = top_k(dict(zip(weights, each, strict=True)), kept, alive=masks)
        history.append(masks)
    return history


def erk_densities(shapes, density) -> dict[str, float]:
    """Evci et al. 2020: density_l = eps * sum(shape_l) / prod(shape_l), eps such that the total is met.

    A layer that would get more than 1 is dense, and eps is found again for the others.
    """
    total = density * sum(math.prod(shape) for shape in shapes.values())
    dense: set[str] = set()
    while True:
        budget, raw = total, 0.0
        for name, shape in shapes.items():
            if name in dense:
                budget -= math.prod(shape)
            else:
                raw += sum(shape)
        eps = budget / raw if raw else 0.0
        over = {name for name, shape in shapes.items() if name not in dense and eps * sum(shape) > math.prod(shape)}
        if not over:
            return {
                name: 1.0 if name in dense else eps * sum(shape) / math.prod(shape) for name, shape in shapes.items()
            }
        # The published code fixes the largest ratios first.
        worst = max(sum(shapes[name]) / math.prod(shapes[name]) for name in over)
        dense |= {name for name in over if sum(shapes[name]) / math.prod(shapes[name]) == worst}


# Scores that read a loss


def mlp_gradients(weights, biases, inputs, targets):
    """Cross-entropy of a ReLU MLP and its gradients, backpropagated by hand: dL/dW_l = delta_l a_{l-1}^T."""
    names, activations = list(weights), [np.asarray(inputs, dtype=np.float64)]
    for name in names:
        before = activations[-1] @ weights[name].T + biases[name]
        activations.append(before if name == names[-1] else np.maximum(before, 0))
    logits = activations[-1] - activations[-1].max(1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    rows = np.arange(len(targets))
    delta = np.exp(log_p)
    delta[rows, targets] -= 1
    delta /= len(targets)
    gradients = {}
    for name, below in zip(reversed(names), reversed(activations[:-1]), strict=True):
        gradients[name] = delta.T @ below
        delta = delta @ weights[name] * (below > 0)
    return -log_p[rows, targets].mean(), {name: gradients[name] for name in names}


def magnitude(weights) -> Arrays:
    """|w|."""
    return {name: np.abs(weight) for name, weight in weights.items()}


def snip(weights, gradients) -> Arrays:
    """|dL/dw * w|."""
    return {name: np.abs(gradients[name] * weight) for name, weight in weights.items()}


def skeletonization(weights, gradients) -> Arrays:
    """-dL/dw * w."""
    return {name: -gradients[name] * weight for name, weight in weights.items()}


def taylor_fo(weights, gradients) -> Arrays:
    """(dL/dw * w)^2."""
    return {name: (gradients[name] * weight) ** 2 for name, weight in weights.items()}


class Objective:
    """Mean over batches of cross-entropy(logits / temperature), as a function of the named parameters in one vector."""

    def __init__(self, model, names, data, temperature=1.0):
        self.model = deepcopy(model).double().requires_grad_(False)
        own = dict(self.model.named_parameters())
        self.shapes = {name: own[name].shape for name in names}
        self.vector = torch.cat([own[name].detach().flatten() for name in names])
        self.data = [(x.double() if x.is_floating_point() else x, y) for x, y in data]
        self.temperature = temperature

    def __call__(self, vector):
        # Buffers are copied, so that batch norm in train mode leaves the statistics alone.
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        state = {**buffers, **self._tensors(vector)}
        losses = [
            F.cross_entropy(torch.func.functional_call(self.model, state, (x,)) / self.temperature, y)
            for x, y in self.data
        ]
        return torch.stack(losses).mean()

    def _tensors(self, vector):
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        return {
            name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), vector.split(sizes), strict=True)
        }

    def gradient(self):
        vector = self.vector.clone().requires_grad_()
        return torch.autograd.grad(self(vector), vector)[0]

    def gradient_by_differences(self, step=1e-6):
        """(L(w + h) - L(w - h)) / 2h, one weight at a time."""
        moves = torch.eye(len(self.vector), dtype=torch.float64) * step
        return torch.stack([(self(self.vector + move) - self(self.vector - move)) / (2 * step) for move in moves])

    def hessian(self):
        return torch.autograd.functional.hessian(self, self.vector)

    def arrays(self, vector) -> Arrays:
        return {name: part.numpy() for name, part in self._tensors(vector).items()}


def grasp(model, names, data, temperature=200.0) -> Arrays:
    """(H g) * w, H and g of the cross-entropy at that temperature, H whole."""
    objective = Objective(model, names, data, temperature)
    return objective.arrays(objective.hessian() @ objective.gradient() * objective.vector)


def obd(model, names, data, probes=None) -> Arrays:
    """diag(H) * w * w; with Rademacher probes z, diag(H) is estimated by the mean of z * H z."""
    objective = Objective(model, names, data)
    hessian = objective.hessian()
    if probes is None:
        diagonal = hessian.diagonal()
    else:
        diagonal = torch.stack([z * (hessian @ z) for z in probes]).mean(0)
    return objective.arrays(diagonal * objective.vector**2)
