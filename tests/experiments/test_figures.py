"""Every experiment at smoke scale: its runs, its figure, its table; and figures drawn from stored results alone."""

import re

import pytest

from synflow.errors import SynflowError
from synflow.experiments import plan, published
from synflow.experiments.configs import Config, canonical, configured, identity
from synflow.experiments.figures import EXPERIMENTS, SCALES, fig1, fig4
from synflow.experiments.figures.accuracy import points
from synflow.experiments.paper import configs_of, draw, reproduce, stored
from synflow.experiments.runs import Context, execute
from synflow.experiments.sweeps import Place


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Shared by all figures: runs they have in common are done once."""
    return tmp_path_factory.mktemp("runs")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_smoke(name, runs, tmp_path, monkeypatch):
    (made,) = reproduce([name], "smoke", runs, tmp_path, Context(), Place(threads=1))
    assert not made.outcome.failed
    svg, png, page = made.drawing.paths
    assert svg.read_text().startswith("<?xml")
    assert png.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert "**Reduced**: smoke scale" in text
    assert made.drawing.table
    for column in made.drawing.table[0]:
        assert column in text
    assert "nan" not in text
    results, missing = stored(configs_of(name, "smoke"), runs)
    assert missing == 0
    # Drawing again needs no task at all, and gives the same picture.
    monkeypatch.setattr("synflow.experiments.tasks.TASKS", {})
    again = draw(name, "smoke", runs, tmp_path / "again")
    assert again.paths[0].read_bytes() == svg.read_bytes()
    assert len(results) == len(configs_of(name, "smoke"))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_scale_has_runs_and_an_estimate(name, scale):
    configs = configs_of(name, scale)
    assert len({identity(config) for config in configs}) == len(configs) > 0
    found = plan.estimate(configs)
    assert found.runs == len(configs)
    assert found.operations > 0
    assert found.disk > 0


def test_paper_scale_is_the_papers():
    fig6 = configs_of("fig6", "paper")
    assert {(c.model, c.dataset) for c in fig6} == {
        (model, dataset)
        for model in ("vgg11_bn", "vgg16_bn", "resnet18", "wide_resnet18")
        for dataset in ("cifar10", "cifar100", "tiny-imagenet")
    }
    assert {c.seed for c in fig6} == {0, 1, 2}
    assert {c.recipe.epochs for c in fig6} == {160, 100}
    assert {c.recipe.lr_factor for c in fig6} == {3.0}
    assert all(c.train_per_class is None and c.test_per_class is None and c.width == 1 for c in fig6)
    # 12 pairs, 3 seeds, 5 methods at 12 compressions and one dense network that they share.
    assert len(fig6) == 12 * 3 * (5 * 12 + 1)
    fig2 = configs_of("fig2", "paper")
    assert {(c.model, c.dataset, c.images_per_class) for c in fig2} == {("vgg19", "imagenet", 10)}
    assert max(c.compression for c in fig2) == 10**6
    assert all(c.steps is None for c in fig2)
    fig10 = configs_of("fig10", "paper")
    assert {(c.model, c.dataset) for c in fig10} == {("vgg19", "imagenet")}
    assert {c.schedule for c in fig10} == {"linear_density", "exponential"}
    assert len(fig10) == 2 * 11 * 6


def test_estimates_add_up():
    one = Config(model="fc", dataset="mnist", method="dense")
    forward = 2 * (784 * 100 + 4 * 100 * 100 + 100 * 10)
    assert plan.estimate([one]).operations == pytest.approx(
        forward * (3 * 60_000 + 10_000) + 60 * (784 * 100 + 4 * 100 * 100 + 1000), rel=0.01
    )
    assert plan.estimate([one, one]).operations == 2 * plan.estimate([one]).operations
    assert plan.cpu_speed(0.05) > 1e8


def test_figures_without_results_say_how_to_get_them(tmp_path):
    with pytest.raises(SynflowError, match=r"none of its \d+ runs at smoke scale is in .*synflow paper fig4"):
        draw("fig4", "smoke", tmp_path, tmp_path)


def test_unknown_names():
    with pytest.raises(SynflowError, match="no experiment 'fig7' .did you mean .*; choose from ablations"):
        configs_of("fig7", "smoke")
    with pytest.raises(SynflowError, match="no scale 'huge'"):
        configs_of("fig1", "huge")


def test_published_numbers():
    curve = published.accuracy("vgg16", "cifar100", "synflow")
    assert [x for x, *_ in curve] == [step / 4 for step in range(13)]
    assert all(low <= mean <= high for _, mean, low, high in curve)
    assert published.critical_log10()["synflow"] == [6.0, 6.0, 5.75]
    assert len(published.imp_accuracy(1)) > 10
    assert published.accuracy("vgg12", "cifar100", "synflow") == []


def result(method, compression, top1, empty=0, seed=0):
    config = {"method": method, "compression": compression, "seed": seed}
    return {"config": config, "outcome": {"top1": top1, "empty_layers": empty}}


def test_bands_run_from_the_least_to_the_largest():
    found = points([result("snip", 10, 50.0), result("snip", 10, 60.0, seed=1)], lambda c: c["method"] == "snip")
    assert found == [(1.0, 55.0, 50.0, 60.0)]


def test_critical_compression_is_the_last_before_a_layer_is_lost():
    runs = [result("dense", 1, 90.0), result("snip", 10, 80.0), result("snip", 100, 10.0, empty=2)]
    assert fig1.critical([*runs, result("snip", 1000, 10.0)])["snip"] == pytest.approx(1.0)


def test_slope_of_the_inverse_law():
    sizes = {"a": 10, "b": 1000, "c": 50}
    assert fig4.slope(sizes, {name: 3 / size for name, size in sizes.items()}) == pytest.approx(1.0)
    assert fig4.slope(sizes, dict.fromkeys(sizes, 2.0)) == pytest.approx(0.0)


def test_the_dense_network_is_one_run_for_all_methods():
    names = {identity(Config(method=method, compression=1.0, steps=7)) for method in ("synflow", "snip", "dense")}
    assert len(names) == 1
    assert re.search(r"-dense-[0-9a-f]{12}$", names.pop())
    assert canonical(Config(method="snip", compression=2.0)).method == "snip"


def test_passes_of_the_flow_are_counted_where_they_are_made(tmp_path):
    """Measurements are replayed below the network, which sees two of them."""
    outcomes = {
        method: execute(configured(config, method=method), tmp_path)["outcome"]
        for config in configs_of("cost", "smoke")[:1]
        for method in ("synflow", "snip", "random")
    }
    assert outcomes["synflow"]["steps"] == outcomes["synflow"]["backward"] == 100
    assert 100 <= outcomes["synflow"]["forward"] <= 102
    assert (outcomes["snip"]["forward"], outcomes["snip"]["backward"], outcomes["snip"]["examples"]) == (1, 1, 100)
    assert outcomes["random"]["forward"] == 0
