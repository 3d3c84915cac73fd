"""Pictures of what flows to what, made from text: a fenced block of the language `flow` becomes SVG in the site.

Each line is a chain, `a -> b -with a label-> c`. A box is named again where a chain forks or joins. `name: detail` has
two lines in its box. Boxes stand in columns, each behind all that lead to it. The colours are those of the page.
"""

from __future__ import annotations

import re
from html import escape

_FLOW = re.compile(r"^```flow\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ARROW = re.compile(r" (?:-([^>]*?))?-> ")
# Points: of a letter, around a text, of a box, between two boxes above each other, of an arrow without a label
_LETTER, _INSET, _HEIGHT, _GAP, _ARROW_WIDTH = 7.2, 12, 44, 18, 44


def with_pictures(markdown: str) -> str:
    """The page with a picture in place of each block of the language `flow`."""
    return _FLOW.sub(lambda block: picture(block[1]), markdown)


def picture(text: str) -> str:
    """The SVG of the chains."""
    arrows = _arrows(text)
    column = {name: 0 for arrow in arrows for name in arrow[:2]}
    for _ in column:
        for start, end, _ in arrows:
            column[end] = max(column[end], column[start] + 1)
    columns = [[name for name in column if column[name] == index] for index in range(max(column.values()) + 1)]
    widths = [max(map(_width, names)) for names in columns]
    gaps = [
        max((_LETTER * len(label) + 30 for start, _, label in arrows if column[start] == index and label), default=0.0)
        for index in range(len(columns))
    ]
    height = max(len(names) * (_HEIGHT + _GAP) for names in columns) + _GAP
    at: dict[str, tuple[float, float, float]] = {}
    left = 1.0
    for names, width, gap in zip(columns, widths, gaps, strict=True):
        top = (height - len(names) * (_HEIGHT + _GAP) + _GAP) / 2
        for row, name in enumerate(names):
            at[name] = left, top + row * (_HEIGHT + _GAP), width
        left += width + max(gap, _ARROW_WIDTH)
    wide = left - max(gaps[-1], _ARROW_WIDTH) + 1
    drawn = [_line(at[start], at[end], label) for start, end, label in arrows] + [_box(name, *at[name]) for name in at]
    said = escape("; ".join(f"{start} to {end}" for start, end, _ in arrows), quote=True)
    view = f'viewBox="0 0 {wide:.0f} {height:.0f}" style="max-width: {wide:.0f}px"'
    return f'<figure class="flow"><svg {view} role="img" aria-label="{said}">{"".join(drawn)}</svg></figure>'


def _arrows(text: str) -> list[tuple[str, str, str]]:
    """(from, to, label) of each arrow."""
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        parts = _ARROW.split(line)
        names = [part.strip() for part in parts[::2]]
        labels = [(label or "").strip() for label in parts[1::2]]
        found += list(zip(names, names[1:], labels, strict=False))
    return found


def _width(name: str) -> float:
    return 2 * _INSET + _LETTER * max(map(len, name.split(": ")))


def _line(start: tuple[float, float, float], end: tuple[float, float, float], label: str) -> str:
    left, right = start[0] + start[2], end[0]
    above, below = start[1] + _HEIGHT / 2, end[1] + _HEIGHT / 2
    bend = (right - left) / 2
    curve = f"M{left:.0f} {above:.0f}C{left + bend:.0f} {above:.0f} {right - bend:.0f} {below:.0f} {right - 7:.0f} {below:.0f}"
    head = f"M{right - 8:.0f} {below - 4:.0f}l8 4l-8 4z"
    text = (
        f'<text class="label" x="{left + bend:.0f}" y="{(above + below) / 2 - 6:.0f}">{escape(label)}</text>'
        if label
        else ""
    )
    return f'<path class="line" d="{curve}"/><path class="head" d="{head}"/>{text}'


def _box(name: str, left: float, top: float, width: float) -> str:
    lines = name.split(": ")
    first = top + _HEIGHT / 2 + (5 if len(lines) == 1 else -3)
    texts = "".join(
        f'<text class="{"name" if row == 0 else "detail"}" x="{left + width / 2:.0f}" y="{first + 16 * row:.0f}">{escape(line)}</text>'
        for row, line in enumerate(lines)
    )
    return f'<rect x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{_HEIGHT}" rx="6"/>{texts}'
