"""The report: its figures are those of the network, and the page works in a real browser."""

import json
import math
import re
import time
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import synflow
from browser import chromium, show
from synflow.reporting import report
from synflow.reporting.facts import gather
from synflow.reporting.overlap import overlaps
from synflow.reporting.stored_facts import facts_from
from synflow.reporting.svg import Scale, bars, ticks_of

EXAMPLE = torch.ones(1, 3, 8, 8)


def network():
    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(16 * 16, 10)).eval()


@pytest.fixture(scope="module")
def pruned():
    torch.manual_seed(0)
    model = network()
    return model, synflow.prune(model, EXAMPLE, compression=20, steps=20)


@pytest.fixture(scope="module")
def full_report(pruned):
    model, masks = pruned
    small = synflow.compact(model, EXAMPLE, masks)
    benchmark = synflow.bench(
        model, masks, EXAMPLE, repeats=1, warmup=0, train_batches=(2,), inference_batches=(1,), progress=False
    )
    return report(model, masks, EXAMPLE, title="A <small> net & more", small=small, benchmark=benchmark, command="x")


def test_facts_are_those_of_the_network(pruned):
    model, masks = pruned
    certificate = synflow.certify(model, masks, EXAMPLE)
    facts = gather(model, masks, EXAMPLE)
    assert [layer.kept for layer in facts.layers] == [int(mask.sum()) for mask in masks.values()]
    assert [layer.on_path for layer in facts.layers] == [row.on_path for row in certificate.layers]
    assert all(layer.flow_share == pytest.approx(1, abs=1e-5) for layer in facts.layers), "a chain's layers are cuts"
    last = facts.layers[-1]
    assert last.units == 10
    assert last.live_units <= int(masks["6.weight"].any(1).sum())
    assert all(inflow == pytest.approx(outflow, rel=1e-3) for inflow, outflow in facts.units)
    assert len(facts.units) > 5


def test_facts_survive_a_file_and_nothing_else_does(pruned):
    facts = gather(*pruned, EXAMPLE)
    text = json.dumps(facts.as_dict(), allow_nan=False)
    assert facts_from(json.loads(text)).as_dict() == facts.as_dict()
    assert facts_from({**facts.as_dict(), "more": 1}), "a later version may write more"
    for wrong in ({}, {"layers": 3}, {**facts.as_dict(), "layers": [{"name": "x"}]}, {**facts.as_dict(), "units": [3]}):
        with pytest.raises(synflow.SynflowError, match="facts.json is damaged: "):
            facts_from(wrong)


def test_a_collapsed_network_is_said_to_be_one(pruned):
    model, masks = pruned
    nothing = {name: torch.zeros_like(mask) for name, mask in masks.items()}
    html = report(model, nothing, EXAMPLE).html
    assert "collapsed" in html
    assert "NO: no path is left" in html
    html = report(model, {"good": masks, "bad": nothing}, EXAMPLE).html
    assert "no path" in html


class Tags(HTMLParser):
    """Follows tags: each that is opened is closed, in order."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, _):
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, _):
        assert tag in ("line", "polyline")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_file_is_well_formed_and_names_are_escaped(full_report):
    tags = Tags()
    tags.feed(full_report.html)
    assert not tags.open
    assert "A &lt;small&gt; net &amp; more" in full_report.html
    assert "<small>" not in full_report.html
    assert not re.search(r"(src|href)=|https?://|@import|url\(", full_report.html), "a report fetches nothing"


def test_saving_is_all_or_nothing(full_report, tmp_path):
    path = full_report.save(tmp_path / "report.html")
    assert path.read_text(encoding="utf-8") == full_report.html
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(synflow.SynflowError, match="cannot be written"):
        full_report.save(tmp_path / "no such folder" / "report.html")


def test_notebooks_show_it_in_a_frame(full_report):
    frame = full_report._repr_html_()
    assert frame.startswith("<iframe")
    assert full_report.html not in frame, "the page is escaped inside the attribute"


def test_wrong_masks_are_refused(pruned):
    with pytest.raises(synflow.SynflowError, match="no masks"):
        report(pruned[0], {}, EXAMPLE)
    with pytest.raises(synflow.SynflowError, match="comparison"):
        report(pruned[0], {"a": pruned[1]}, EXAMPLE, small=pruned[0])


def test_overlap_counts_what_both_keep(pruned):
    _, masks = pruned
    same = overlaps(masks, masks)
    assert all(row.overlap == 1 for row in same)
    flipped = overlaps(masks, {name: ~mask for name, mask in masks.items()})
    assert all(row.overlap == 0 for row in flipped)
    shuffled = overlaps(masks, synflow.shuffle(masks, seed=1))[-1]
    assert shuffled.name == "whole network"
    assert shuffled.overlap == pytest.approx(shuffled.chance, abs=0.1)
    with pytest.raises(synflow.SynflowError, match=r"has no mask for 0\.weight"):
        overlaps(masks, {name: mask for name, mask in masks.items() if name != "0.weight"})


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("low", "high"), [(1e-7, 3e-7), (0.5, 1.0), (1, 7), (3, 12345), (0.02, 1e6)])
def test_ticks_lie_on_the_scale_and_are_few(low, high, log):
    ticks = ticks_of(Scale(low, high, log))
    assert 1 <= len(ticks) <= 12
    assert all(low * 0.999 <= tick <= high * 1.001 for tick in ticks)
    assert ticks == sorted(ticks)
    assert all(math.isfinite(tick) for tick in ticks)


@pytest.fixture(scope="module")
def opened():
    with chromium() as driver:
        yield driver


@pytest.fixture(scope="module")
def pages(full_report, pruned, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    model, masks = pruned
    every = {score: synflow.prune(model, EXAMPLE, compression=20, score=score) for score in ("magnitude", "random")}
    compared = report(model, {"synflow": masks, **every}, EXAMPLE, title="net")
    return {"one": full_report.save(folder / "one.html"), "several": compared.save(folder / "several.html")}


OVERFLOW = """
  const wide = document.documentElement.clientWidth;
  return [...document.querySelectorAll("body *")].filter((e) => !e.closest(".scroll, svg") || e.matches(".scroll"))
    .filter((e) => e.getBoundingClientRect().right > wide + 0.5).map((e) => e.outerHTML.slice(0, 80));
"""
# Contrast of every text with what is behind it, by the formula of WCAG 2.
CONTRAST = """
  const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map((v) => v / 255)
      .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126*r + 0.7152*g + 0.0722*b; };
  const behind = (e) => { while (e) { const c = getComputedStyle(e).backgroundColor;
      if (c !== "rgba(0, 0, 0, 0)") return c; e = e.parentElement; } return "rgb(255, 255, 255)"; };
  let worst = [99, ""];
  for (const e of document.querySelectorAll("main *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    if (e.closest("title") || !e.getClientRects().length) continue;
    const style = getComputedStyle(e), ink = e.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(ink), light(behind(e))].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
    if (ratio < worst[0]) worst = [ratio, e.outerHTML.slice(0, 90)];
  }
  return worst;
"""
NAMELESS = """
  const bad = [];
  for (const e of document.querySelectorAll("button")) if (!e.textContent.trim()) bad.push("button");
  for (const e of document.querySelectorAll("svg")) if (!e.getAttribute("aria-label")) bad.push("svg");
  for (const e of document.querySelectorAll("[role=region]")) if (!e.getAttribute("aria-label")) bad.push("region");
  if (!document.documentElement.lang) bad.push("lang");
  if (document.querySelectorAll("h1").length !== 1) bad.push("h1");
  if (document.querySelectorAll("main").length !== 1) bad.push("main");
  for (const e of document.querySelectorAll("table"))
    if (!e.tHead || e.querySelector("th:not([scope])")) bad.push("th");
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  if (new Set(ids).size !== ids.length) bad.push("ids");
  return bad;
"""


@pytest.mark.parametrize("name", ["one", "several"])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_the_page_is_quiet_fits_and_can_be_read(opened, pages, name, theme, width):
    assert show(opened, pages[name], width, theme) == []
    assert opened.execute_script("return document.documentElement.scrollWidth") == width
    assert opened.execute_script(OVERFLOW) == []
    ratio, where = opened.execute_script(CONTRAST)
    assert ratio >= 4.5, where
    assert opened.execute_script(NAMELESS) == []
    assert opened.execute_script("return document.querySelectorAll('svg.plot').length") >= 2
    assert opened.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_columns_sort_by_value_both_ways(opened, pages, full_report):
    show(opened, pages["one"])
    table = "document.querySelector('[aria-label=Layers] table')"
    column = 3
    kept = [layer.kept for layer in next(iter(full_report.facts.values())).layers]

    def shown():
        script = f"return [...{table}.tBodies[0].rows].map((row) => row.cells[{column}].textContent)"
        return [int(text.replace(",", "")) for text in opened.execute_script(script)]

    click = f"{table}.tHead.rows[0].cells[{column}].querySelector('button').click()"
    assert shown() == kept
    opened.execute_script(click)
    assert shown() == sorted(kept)
    opened.execute_script(click)
    assert shown() == sorted(kept, reverse=True)
    assert (
        opened.execute_script(f"return {table}.tHead.rows[0].cells[{column}].getAttribute('aria-sort')") == "descending"
    )


def test_the_theme_can_be_changed_and_is_kept(opened, pages):
    show(opened, pages["one"], theme="light")
    colour = "return getComputedStyle(document.body).backgroundColor"
    before = opened.execute_script(colour)
    opened.execute_script("document.querySelector('button.theme').click()")
    after = opened.execute_script(colour)
    assert before != after
    assert opened.execute_script("return document.querySelector('button.theme').textContent") == "Light theme"
    for _ in range(100):  # the browser writes its storage a little later, on a busy machine seconds later
        show(opened, pages["one"], theme="light")
        if opened.execute_script(colour) == after:
            break
        time.sleep(0.2)
    assert opened.execute_script(colour) == after
    opened.execute_script("localStorage.clear()")


def test_on_paper_it_is_black_on_white_without_buttons(opened, pages):
    show(opened, pages["one"], theme="dark", media="print")
    assert opened.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.execute_script("return getComputedStyle(document.querySelector('button.theme')).display") == "none"


def test_the_frame_of_a_notebook_works(opened, full_report, tmp_path):
    page = tmp_path / "notebook.html"
    page.write_text(f"<!doctype html><meta charset=utf-8><title>x</title>{full_report._repr_html_()}", encoding="utf-8")
    assert show(opened, page) == []
    inside = "document.querySelector('iframe').contentDocument"
    assert opened.execute_script(f"return {inside}.querySelectorAll('svg.plot').length") >= 5
    opened.execute_script(f"{inside}.querySelector('button.theme').click()")
    assert opened.get_log("browser") == []


def test_the_bar_of_an_empty_layer_does_not_hang_below_the_axis():
    drawn = bars([0.5, 0.0], 0.001)(lambda x: 10 * x, lambda y: -100 * y)
    assert re.findall(r'y="(-?[\d.]+)" width="[\d.]+" height="([\d.]+)"', drawn)[1] == ("-0.1", "0.0")
