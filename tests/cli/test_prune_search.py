"""The search for a compression: few trials, on known curves and on real networks."""

import itertools
import json
import math

import pytest
import torch
from torch import nn

import synflow
from synflow.cli import prune_search as search
from synflow.cli.prune_search import Reached, find_flops, flops
from synflow.masks.results import Masks

FAR = math.log(1e4)
SETTINGS = dict(
    score="synflow", steps=None, schedule="exponential", scope="global", margin=0.5, guard=True, seed=0, select=None,
    protect=(), data=None,
)  # fmt: skip


def curve(cost, target, farthest=FAR, scatter=0.0):
    """Search along a given curve of the cost by log compression; the masks stand for the place."""
    places, said = [], []

    def walk(start, end, masks):
        assert start == (0.0 if masks is None else masks.about["x"])
        places.append(end)
        return Masks({}, {"x": end})

    def measure(masks):
        value = cost(masks.about["x"])
        return Reached(value, value * (1 - scatter), value * (1 + scatter))

    found = search.search(target, lambda share: share, measure, walk, str, farthest, said.append)
    assert len(said) == len(places) <= search.TRIALS
    assert max(places) <= farthest
    return found, len(places)


@pytest.mark.parametrize("target", [0.9, 0.5, 0.25, 0.1, 0.02])
@pytest.mark.parametrize(
    "cost",
    [
        lambda x: math.exp(-0.075 * x**2),  # as VGG-16 measured
        lambda x: math.exp(-0.5 * x),
        lambda x: math.exp(-max(0.0, x - 2.0)),  # nothing dies at first
        lambda x: 1 / (1 + x**3),
    ],
)
def test_a_target_is_met_closely_in_few_trials(cost, target):
    found, trials = curve(cost, target, farthest=math.log(1e6))
    assert found.met
    assert target * (1 - 1.5 * search.CLOSE) <= found.reached.value <= target
    assert found.reached.value == pytest.approx(cost(math.log(found.compression)))
    assert trials <= 8


def test_stairs_end_at_the_step_that_meets_the_target():
    found, _ = curve(lambda x: 1.0 if x < 3 else 0.2, 0.5)
    assert found.met
    assert found.reached.value == 0.2
    assert math.log(found.compression) <= 3 + search.STRIDE


def test_a_target_out_of_reach_ends_at_the_farthest_place():
    found, trials = curve(lambda x: math.exp(-0.01 * x), 0.1)
    assert not found.met
    assert found.compression == pytest.approx(1e4)
    assert trials <= 5


def test_no_trial_is_spent_on_less_than_the_scatter():
    _, sharp = curve(lambda x: 1 / (1 + x**3), 0.25)
    found, vague = curve(lambda x: 1 / (1 + x**3), 0.25, scatter=0.5)
    assert found.met
    assert vague <= sharp


def wide():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4)), torch.ones(1, 1, 8, 8)


def test_a_search_goes_on_from_the_masks_it_has():
    model, example = wide()
    walked = []

    def walk(start, end, masks):
        walked.append((start, end))
        return search.walk(model, example, SETTINGS, False)(start, end, masks)

    found = find_flops(0.4, model, example, walk, lambda _: None)
    assert found.met
    assert 0.4 * (1 - 2 * search.CLOSE) <= found.reached.value <= 0.4
    small = synflow.compact(model, example, found.masks)
    assert flops(small, example) / flops(model, example) == found.reached.value
    records = found.masks.steps
    assert [record.index for record in records] == list(range(1, len(records) + 1))
    assert found.masks.about["steps"] == len(records)
    assert all(before.kept >= after.kept for before, after in itertools.pairwise(records))
    certificate = synflow.certify(model, found.masks, example)
    assert certificate.connected
    assert certificate.compression == pytest.approx(found.compression, rel=0.01)
    # All walks together cost no more than a few runs from the start would.
    assert sum(end - start for start, end in walked) <= 2.5 * math.log(found.compression)


def test_masks_of_a_walk_are_those_of_one_run_with_as_many_steps():
    model, example = wide()
    step = search.walk(model, example, SETTINGS, False)
    first = step(0.0, 20 * search.STRIDE, None)
    second = step(20 * search.STRIDE, 40 * search.STRIDE, first)
    whole = synflow.prune(model, example, density=math.exp(-40 * search.STRIDE), steps=40)
    same = sum(int((second[name] == whole[name]).sum()) for name in whole)
    assert same >= 0.999 * sum(mask.numel() for mask in whole.values())
    assert len(second.steps) == 40


def test_stated_steps_and_single_shot_scores_are_kept_to():
    model, example = wide()
    for change, steps in (({"steps": 7}, 7), ({"score": "magnitude"}, 1), ({"schedule": "linear"}, 100)):
        masks = search.walk(model, example, {**SETTINGS, **change}, False)(1.0, 1.5, Masks({}))
        assert masks.about["steps"] == steps
        assert masks.about["compression"] == pytest.approx(math.exp(1.5), rel=0.01)


def test_the_answer_is_printed_with_its_uncertainty(capsys, tmp_path, monkeypatch):
    from factories import FACTORY
    from synflow.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(FACTORY)
    with pytest.raises(SystemExit) as leave:
        main("prune net.py:with_example --flops 0.5 --json".split())
    got = json.loads(capsys.readouterr().out)
    assert leave.value.code == 0
    assert got["target"]["low"] == got["target"]["reached"] == got["target"]["high"] <= 0.5


def test_a_target_out_of_reach_gives_the_best_of_all_trials():
    found, _ = curve(lambda x: 0.5 + abs(x - 6) / 20, 0.1)
    assert not found.met
    assert found.problem == "higher compression did not help"
    assert abs(math.log(found.compression) - 6) < 3, "the last trial is far beyond the best one"


def test_a_compression_that_cannot_be_measured_is_a_wall():
    def walk(_start, end, _masks):
        if end > 2.5:
            raise synflow.SynflowError("no path is left")
        return Masks({}, {"x": end})

    def measure(masks):
        share = math.exp(-0.1 * masks.about["x"])
        return Reached(share, share, share)

    found = search.search(0.1, lambda share: share, measure, walk, str, FAR, lambda _: None)
    assert not found.met
    assert math.log(found.compression) <= 2.5
    assert "no path is left" in found.problem


def test_what_was_reached_is_written_with_a_note(tmp_path, monkeypatch, capsys):
    from factories import FACTORY
    from synflow.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["synflow", "..."])
    (tmp_path / "net.py").write_text(FACTORY)
    with pytest.raises(SystemExit) as leave:
        main("prune net.py:make --flops 0.0001 --out missed".split())
    assert leave.value.code == 1
    assert "the target was not reached" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "missed" / "weights.safetensors").is_file()
    about = json.loads((tmp_path / "missed" / "run.json").read_text())["pruning"]
    assert about["target not reached"] == "higher compression did not help"
