"""Small plots as SVG text: axes, lines, points and bars; colours and fonts come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

# The size of a plot in its own units, and the margins for ticks and labels.
WIDTH, HEIGHT = 440, 280
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 46
# The most steps between the ticks of an axis: more labels would touch.
TICKS = 6
MARKS = ("circle", "square", "triangle", "diamond", "cross", "square")


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic map from values to a range of pixels."""

    low: float
    high: float
    log: bool = False
    label: str = ""
    integer: bool = False

    def share(self, value: float) -> float:
        """The position of a value between the ends, 0 to 1, clipped slightly outside."""
        if self.log:
            if value <= 0:
                return -0.02
            span = math.log(self.high / self.low) or 1.0
            place = math.log(value / self.low) / span
        else:
            place = (value - self.low) / ((self.high - self.low) or 1.0)
        return min(1.02, max(-0.02, place))


Shapes = Callable[[Callable[[float], float], Callable[[float], float]], str]


def plot(title: str, x: Scale, y: Scale, *shapes: Shapes, legend: Sequence[tuple[str, int]] = ()) -> str:
    """An SVG image with two axes; `title` is the text for screen readers, `legend` names marks by their number."""
    across = lambda value: LEFT + x.share(value) * (WIDTH - LEFT - RIGHT)  # noqa: E731
    up = lambda value: HEIGHT - BOTTOM - y.share(value) * (HEIGHT - TOP - BOTTOM)  # noqa: E731
    rows = -(-len(legend) // 3)
    height = HEIGHT + 20 * rows
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}" class="plot">',
        _axes(x, y, across, up),
        *(shape(across, up) for shape in shapes),
        *(_legend(place, text, mark) for place, (text, mark) in enumerate(legend)),
        "</svg>",
    ]
    return "".join(parts)


def standalone(image: str) -> str:
    """A plot as a separate file, in colours that are readable on white and on black."""
    colours = ("#2f86c8", "#d9702e", "#1f9d78", "#b86a9c", "#b0902a", "#8b95a1")
    style = "text{font:12.5px system-ui,'DejaVu Sans',sans-serif;fill:#77808c}.grid{stroke:#8b95a155}"
    style += ".axis{stroke:#8b95a1}.rule{stroke:#8b95a1;stroke-dasharray:5 4}.line{fill:none;stroke-width:2}"
    style += ".stroke{fill:none;stroke-width:2}"
    for mark, colour in enumerate(colours):
        style += f".line.c{mark},.stroke.c{mark}{{stroke:{colour}}}.mark.c{mark},.bar.c{mark}{{fill:{colour}}}"
    return image.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" width="660" ', 1).replace(
        ">", f"><style>{style}</style>", 1
    )


def line(values: Sequence[tuple[float, float]], mark: int = 0, marked: bool = False, dashed: bool = False) -> Shapes:
    """A line through the values, optionally with a mark at each."""

    def draw(across: Callable[[float], float], up: Callable[[float], float]) -> str:
        path = " ".join(f"{across(a):.1f},{up(b):.1f}" for a, b in values)
        dash = " dashed" if dashed else ""
        drawn = f'<polyline class="line c{mark}{dash}" points="{path}"/>' if len(values) > 1 else ""
        return drawn + (points(values, mark)(across, up) if marked or len(values) == 1 else "")

    return draw


def points(values: Sequence[tuple[float, float]], mark: int = 0, tips: Sequence[str] = (), size: float = 3.2) -> Shapes:
    """A mark at each value, with a tooltip."""

    def draw(across: Callable[[float], float], up: Callable[[float], float]) -> str:
        return "".join(
            _mark(across(a), up(b), mark, size, tips[i] if i < len(tips) else "") for i, (a, b) in enumerate(values)
        )

    return draw


def bars(values: Sequence[float], base: float, mark: int = 0, tips: Sequence[str] = (), width: float = 0.8) -> Shapes:
    """Bars at 1, 2, 3, ... from a base line up."""

    def draw(across: Callable[[float], float], up: Callable[[float], float]) -> str:
        parts = []
        wide = max(1.0, (across(1.0) - across(0.0)) * width)
        for index, value in enumerate(values):
            top, bottom = up(max(value, base)), up(base)
            tip = f"<title>{escape(tips[index])}</title>" if index < len(tips) else ""
            parts.append(
                f'<rect class="bar c{mark}" x="{across(index + 1) - wide / 2:.1f}" y="{min(top, bottom):.1f}" '
                f'width="{wide:.1f}" height="{abs(bottom - top):.1f}">{tip}</rect>'
            )
        return "".join(parts)

    return draw


def rule(value: float, text: str, upright: bool = False) -> Shapes:
    """A dashed line across the plot with a label."""

    def draw(across: Callable[[float], float], up: Callable[[float], float]) -> str:
        if upright:
            at = across(value)
            return (
                f'<line class="rule" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
                f'<text class="note" x="{at - 4:.1f}" y="{TOP + 10}" text-anchor="end">{escape(text)}</text>'
            )
        at = up(value)
        return (
            f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="note" x="{WIDTH - RIGHT - 2}" y="{at - 4:.1f}" text-anchor="end">{escape(text)}</text>'
        )

    return draw


def ticks_of(scale: Scale) -> list[float]:
    """Round numbers on a scale.

    >>> ticks_of(Scale(0, 10)), ticks_of(Scale(1, 1000, log=True))
    ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], [1.0, 10.0, 100.0, 1000.0])
    """
    if scale.log:
        low, high = math.ceil(math.log10(scale.low) - 1e-9), math.floor(math.log10(scale.high) + 1e-9)
        stride = max(1, -(-(high - low + 1) // TICKS))
        whole = [10.0**power for power in range(low, high + 1, stride)]
        return whole if len(whole) > 1 else sorted({*whole, scale.low, scale.high})
    span = (scale.high - scale.low) or 1.0
    raw = span / TICKS
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * 0.999)
    if scale.integer:
        step = max(1.0, step)
    first = math.ceil(scale.low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(scale.high / step + 1e-9) + 1)]


def _axes(x: Scale, y: Scale, across: Callable[[float], float], up: Callable[[float], float]) -> str:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for tick in ticks_of(y):
        at = up(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_number(tick, y.log)}</text>')
    for tick in ticks_of(x):
        at = across(tick)
        parts.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 18}" text-anchor="middle">{_number(tick, x.log)}</text>')
    middle = (TOP + bottom) / 2
    parts += [
        f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>',
        f'<text class="label" x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x.label)}</text>',
        f'<text class="label" x="14" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle})">{escape(y.label)}</text>',
    ]
    return "".join(parts)


def _number(value: float, log: bool) -> str:
    if log:
        power = math.log10(value)
        if abs(power - round(power)) < 1e-9:
            whole = round(power)
            if -2 <= whole <= 3:
                return f"{value:g}"
            return f'10<tspan dy="-5" font-size="10">{whole}</tspan>'
        return f"{value:.2g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _legend(place: int, text: str, mark: int) -> str:
    column, row = place % 3, place // 3
    x, y = LEFT + column * (WIDTH - LEFT) / 3, HEIGHT + 14 + 20 * row
    return _mark(x, y - 4, mark, 4, "") + f'<text x="{x + 9:.0f}" y="{y}">{escape(text)}</text>'


def _mark(x: float, y: float, mark: int, size: float, tip: str) -> str:
    title = f"<title>{escape(tip)}</title>" if tip else ""
    kind, style = MARKS[mark % len(MARKS)], f'class="mark c{mark}"'
    if kind == "circle":
        return f'<circle {style} cx="{x:.1f}" cy="{y:.1f}" r="{size:g}">{title}</circle>'
    s = size
    corners = {
        "square": [(-s, -s), (s, -s), (s, s), (-s, s)],
        "triangle": [(0, -1.2 * s), (1.15 * s, s), (-1.15 * s, s)],
        "diamond": [(0, -1.4 * s), (1.2 * s, 0), (0, 1.4 * s), (-1.2 * s, 0)],
    }.get(kind)
    if corners:
        path = " ".join(f"{x + a:.1f},{y + b:.1f}" for a, b in corners)
        return f'<polygon {style} points="{path}">{title}</polygon>'
    lines = [(-s, -s, s, s), (-s, s, s, -s)]
    path = "".join(f"M{x + a:.1f} {y + b:.1f}L{x + c:.1f} {y + d:.1f}" for a, b, c, d in lines)
    return f'<path class="stroke c{mark}" d="{path}">{title}</path>'
