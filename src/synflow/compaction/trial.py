"""Attempts at cutting a model, until one passes the check."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import SynflowError
from ..masks.checks import some
from ..support.private_torch import pytree
from . import verify
from .cut.attention import open_attentions
from .cut.plan import kept_indices, remembered_sizes, stayed
from .cut.surgery import Kept, shrink
from .reason.coupling_rules import couple
from .reason.liveness import alive_in_training
from .reason.removal import WHOLE_HEADS, attempts, choose_units, dead_units
from .record.recorder import FLAGS, recording
from .record.tape import Tape, mark_outputs, number_of, tensors, tensors_in
from .result import Compaction
from .verify import inputs_like, resized, shortened


class Trial:
    """One model under compaction: what is known of it, and attempts at cutting it."""

    def __init__(self, masked: nn.Module, masks: Mapping[str, Tensor], example: Any) -> None:
        self.masks = {name: mask.cpu() for name, mask in masks.items()}
        self.notes: list[str] = []
        self.modes: tuple[str, ...] = ("eval", "train")
        self.seeds: dict[bool, int | None] = {False: 1, True: 2}  # for random inputs, in eval and train mode
        self.tape, flexible = self.record(masked, example)
        self.coupling = couple(self.tape, flexible)
        self.alive = alive_in_training(self.tape, tensors(self.reference), self.masks)
        self.notes += sorted(self.tape.remarks)

    def record(self, masked: nn.Module, example: Any) -> tuple[Tape, frozenset[str]]:
        """Run the model in both modes, if possible in double precision and on a short batch."""
        problem: Exception | None = None
        for self.dtype, self.example in product((torch.float64, torch.float32), (*shortened(example), example)):
            self.reference = verify.double(copy.deepcopy(masked), self.dtype)
            work = copy.deepcopy(self.reference)
            flexible = open_attentions(work)
            inputs = inputs_like(self.example, None, self.dtype)
            try:
                tape, outputs = _run(work, Tape(), inputs, training=False)
                if flexible:  # then the recorded operations are not quite those of the model itself
                    with torch.no_grad():
                        verify.run(self.reference, inputs, False)
            except Exception as cause:
                problem = problem or cause
                continue
            if self.dtype is torch.float32:
                self.notes.append(f"checked in single precision only, since double precision fails: {problem}")
            self.refuse_nan(outputs)
            tape = self.train(work, tape).used()
            self.notes += [*_unused(work, tape), *_decided(tape)]
            return tape, flexible
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_in(example)) or "no tensors"
        raise SynflowError(
            f"{type(masked).__name__} does not run on an example of shape {shapes}: "
            f"{type(problem).__name__}: {problem}; "
            "pass inputs that the model takes, a tuple for several or a dict for named ones"
        ) from problem

    def refuse_nan(self, outputs: list[Tensor]) -> None:
        """NaN equals nothing, so a network that returns it cannot be compared with another."""
        if any(bool(output.isnan().any()) for output in outputs):
            layer = verify.first_not_a_number(self.reference, inputs_like(self.example, None, self.dtype))
            raise SynflowError(
                f"the masked model itself returns nan on the example, first in {layer}, so nothing can be compared. "
                "Pass an example on which it returns numbers; where a norm divides by what is pruned as a whole (an "
                "empty row under weight_norm), keep a weight there or take the norm off before pruning"
            )

    def train(self, work: nn.Module, tape: Tape) -> Tape:
        """The tape with a run in train mode on it, if the model runs there."""
        self.training_example = self.example
        for repeat in (1, 2):  # batch norm can't be trained on a single value
            inputs = inputs_like(self.example, None, self.dtype, repeat)
            try:
                longer, _ = _run(work, tape, inputs, training=True)
                self.training_example = inputs
                return longer
            except Exception as cause:
                problem = cause
        self.modes = ("eval",)
        self.notes.append(f"train mode does not run on the example, so only eval mode was looked at: {problem}")
        return tape

    def solve(self) -> Compaction:
        """The largest cut that passes the check; units that stay for it are named, with the reason."""
        failure: Exception | None = None
        for why, frozen in attempts(self.coupling, self.reference):
            noted = failure is not None and why != WHOLE_HEADS
            if noted:
                why = f"{why}, since the model fails the check without: {failure}"
            gone = choose_units(self.coupling, self.alive, frozen, why)
            kept, shapes = kept_indices(self.coupling, gone)
            attributes = remembered_sizes(self.reference, self.coupling, gone)
            small = copy.deepcopy(self.reference)
            try:
                shrink(small, kept, attributes)
                worst = self.check(small, kept)
            except Exception as cause:
                failure = cause
                continue
            left = stayed(self.coupling, gone, dead_units(self.coupling, self.alive, gone))
            dense, compact = (sum(p.numel() for p in model.parameters()) for model in (self.reference, small))
            notes = (*self.notes, why) if noted else tuple(self.notes)
            return Compaction(kept, shapes, attributes, (dense, compact), left, notes, worst, self.modes)
        raise SynflowError(f"the compact model is not the masked one: {failure}") from failure

    def check(self, small: nn.Module, kept: Kept) -> float:
        """Compare on random inputs in eval mode, in train mode with gradients, and at other sizes."""
        if not kept:
            return 0.0
        worst = max(self.check_mode(small, kept, mode == "train") for mode in self.modes)
        if self.elsewhere is not None:
            inputs, plain, expected = self.elsewhere
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_in(inputs))
            try:
                with torch.no_grad():
                    got = tensors_in(verify.run(small, inputs, False, plain=plain))
                verify.compare_outputs(expected, got, verify.TOLERANCES[torch.float32][0])
            except Exception as cause:
                raise verify.DifferenceError(f"{cause}, for inputs of shape {shapes}") from cause
        return worst

    def check_mode(self, small: nn.Module, kept: Kept, training: bool) -> float:
        """Compare in one of the two modes: on random inputs, or on the example where those give no numbers."""
        inputs = inputs_like(self.training_example if training else self.example, self.seeds[training], self.dtype)
        try:  # on copies: training writes to running statistics
            one, other = copy.deepcopy((self.reference, small)) if training else (self.reference, small)
            return verify.compare(one, other, kept, self.masks, inputs, training)
        except verify.NotANumberError:
            if self.seeds[training] is None:
                raise
            self.seeds[training] = None
            self.notes.append("random inputs give outputs that are not numbers: compared on the example alone")
            return self.check_mode(small, kept, training)
        except verify.DifferenceError as difference:
            raise verify.DifferenceError(f"{difference} in {'train' if training else 'eval'} mode") from None

    @functools.cached_property
    def elsewhere(self) -> tuple[Any, bool, list[Tensor]] | None:
        """Inputs of another size that the masked model accepts, whether the call is a plain one, and the outputs."""
        for other in resized(self.example):
            found = None
            inputs = inputs_like(other, 3 if self.seeds[False] is not None else None, self.dtype)
            with contextlib.suppress(Exception), torch.no_grad():
                for plain in (False, True):  # torch's fused layers do not check sizes
                    expected = tensors_in(verify.run(self.reference, inputs, False, plain=plain))
                    if any(bool(output.isnan().any()) for output in expected):
                        break
                    found = inputs, plain, expected
            if found is not None:
                return found
        return None


def _run(work: nn.Module, tape: Tape, inputs: Any, training: bool) -> tuple[Tape, list[Tensor]]:
    """The tape with one more run on it, and what the model returned.

    Where the code reads a single truth value, a copy of the model runs with the opposite one. If operations and what
    modules are called with, return and remember stay the same, then the value decides nothing (a warning, say).
    """

    def recorded(model: nn.Module, turned: bool) -> tuple[Tape, list[Tensor], list[Any]]:
        longer = tape.copy()
        with recording(model, longer, training, turned=turned):
            outputs = verify.run(model, inputs, training)
            mark_outputs(longer, outputs)
        found = tensors_in(outputs)
        numbers = [number_of(output, longer) for output in found]
        held = pytree.tree_leaves([vars(module) for module in model.modules()])
        remembered = [value for value in held if type(value) in FLAGS]
        return longer, found, [longer.steps, longer.decisions, longer.calls, numbers, remembered]

    longer, outputs, seen = recorded(work, turned=False)
    made = longer.decisions[len(tape.decisions) :]
    if len(made) == 1 and made[0].truth:
        with contextlib.suppress(Exception):  # the other way may lead to an error
            if recorded(copy.deepcopy(work), turned=True)[2] == seen:
                longer.decisions = tape.decisions
    return longer, outputs


def _decided(tape: Tape) -> list[str]:
    """A note on modules whose code reads values of tensors: what it does for other inputs was not seen."""
    paths = dict.fromkeys(decision.path or "the model itself" for decision in tape.decisions)
    return [f"Python code of {some(paths, 3)} decides on values of tensors, so that other inputs may take another way: "
            "units of tensors that it sees stay"] if paths else []  # fmt: skip


def _unused(work: nn.Module, tape: Tape) -> list[str]:
    """A note on parameters that the example does not reach, such as experts that were not asked."""
    reached = {number for step in tape.steps for number in step.inputs}
    names = {name for number, name in tape.leaves.items() if number not in reached}
    left = [name for name, weight in work.named_parameters() if name in names and weight.numel()]
    return [f"{some(left, 3)} had no part in the outputs for this example, and stay as they are"] if left else []
