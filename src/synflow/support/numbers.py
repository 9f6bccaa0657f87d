"""Numbers as text: one format each for ratios, shares, powers of two, times and sizes."""

from __future__ import annotations

import math


def times(value: float | None) -> str:
    """A ratio in four digits; None and infinity are unlimited.

    >>> times(100.0), times(1 / 3), times(123456.7), times(None)
    ('100x', '0.3333x', '123,457x', 'unlimited')
    """
    if value is None or math.isinf(value):
        return "unlimited"
    return f"{value:.4g}x" if value < 1e4 else f"{value:,.0f}x"


def percent(share: float) -> str:
    """A share in three digits, however small it is.

    >>> percent(0.5), percent(0.00012345), percent(0)
    ('50.0%', '0.0123%', 'empty')
    """
    if not share:
        return "empty"
    return f"{100 * share:.{min(9, max(1, 2 - math.floor(math.log10(100 * share))))}f}%"


def power_of_two(log2: float | None) -> str:
    """A number given by its logarithm, because it may be too large or too small for a float.

    >>> power_of_two(457.23), power_of_two(-math.inf)
    ('2^457.2', '0')
    """
    return "0" if log2 is None or math.isinf(log2) else f"2^{log2:.1f}"


def seconds_text(value: float) -> str:
    """A time in the unit that suits it.

    >>> seconds_text(0.00012), seconds_text(0.0123), seconds_text(3)
    ('120 us', '12.3 ms', '3.00 s')
    """
    return f"{value * 1e6:.0f} us" if value < 1e-3 else f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"


def bytes_text(value: float) -> str:
    """A size in the decimal unit that suits it.

    >>> bytes_text(999), bytes_text(1_234), bytes_text(25_600_000), bytes_text(3e12)
    ('999 B', '1.2 kB', '25.6 MB', '3.0 TB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def setting_text(value: object) -> str:
    """The value of a setting: whole numbers with thousands separators, other numbers in six digits, text unchanged.

    >>> setting_text(10_000), setting_text(1 / 3), setting_text(True)
    ('10,000', '0.333333', 'True')
    """
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
