"""Which mechanisms of the fast engine served in a run: functions of the engine are watched, none is replaced."""

from contextlib import contextmanager

import pytest

from synflow.engine import candidate_passes, compiled, factored_layers, fold_positions, measuring, select_lightest
from synflow.engine.fast import FastEngine
from synflow.engine.replay import Replay


@contextmanager
def watching(served):
    """Within it, the names of the mechanisms that serve are added to a set."""

    def watch(owner, name, mechanism, counts=lambda result, *_: result is not None):
        function = getattr(owner, name)

        def watched(*args, **options):
            result = function(*args, **options)
            if counts(result, *args):
                served.add(mechanism)
            return result

        patch.setattr(owner, name, staticmethod(watched) if isinstance(vars(owner)[name], staticmethod) else watched)

    with pytest.MonkeyPatch.context() as patch:
        watch(measuring, "recorded", "recording", lambda result, *_: isinstance(result[2], Replay))
        watch(measuring.Measuring, "usual", "replay", lambda result, measurements, *_: measurements.replays)
        watch(fold_positions, "folded", "folding")
        watch(FastEngine, "_scores", "factored gradients", lambda result, engine, flow, parts: _factored(parts))
        watch(factored_layers, "_small_convolution", "small convolutions")
        watch(select_lightest, "find_light", "lists of light weights")
        watch(select_lightest, "find_between", "brackets")
        watch(candidate_passes, "_bounds", "bounded scores")
        if compiled.kernels() is not None:
            watch(compiled.kernels(), "pick_product", "compiled loops")
        yield


def _factored(gradients):
    return any(gradient.uses for gradient in gradients.values())
