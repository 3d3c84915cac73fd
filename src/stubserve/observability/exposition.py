"""Prometheus' text format, written as upstream's server writes it.

prometheus_client is no help: it adds `_total` to the name of every counter and prints whole numbers as `1.0`, while
dashboards and upstream's tests look for `nv_inference_count{...} 1`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from stubserve.inference.long_work import LongWork
from stubserve.observability.custom_metrics import COUNTER, GAUGE, HISTOGRAM, Labels

SUMMARY = "summary"
CONTENT_TYPE = "text/plain; charset=utf-8"

# Whole numbers below this have at most 16 digits.
_EXACT = 10**16

_ORDER = (COUNTER, GAUGE, HISTOGRAM, SUMMARY)


def number(value: float) -> str:
    """A value with at most 16 digits, without decimals if it is whole."""
    if type(value) is int and -_EXACT < value < _EXACT:
        return str(value)
    if math.isnan(value):
        return "Nan"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{value:.16g}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


class Exposition:
    """Collects samples and prints them, family by family; a family without samples is left out."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[str, str, list[str]]] = {}
        # Labels as they are printed: each model has the same labels in many families
        self._texts: dict[Labels, str] = {}

    def family(self, name: str, kind: str, description: str) -> FamilyText:
        """The family of that name; the first caller sets its kind and description."""
        found = self._families.get(name)
        if found is None:
            found = self._families[name] = (kind, description, [])
        return FamilyText(name, found[2], self._texts)

    def text(self) -> LongWork[str]:
        lines: list[str] = []
        for wanted in _ORDER:
            for name, (kind, description, samples) in self._families.items():
                if kind == wanted and samples:
                    lines.append(f"# HELP {name} {_escape(description)}")
                    lines.append(f"# TYPE {name} {kind}")
                    lines += samples
                    yield None
        lines.append("")
        return "\n".join(lines)


class FamilyText:
    """Takes the samples of one family."""

    def __init__(self, name: str, lines: list[str], texts: dict[Labels, str]) -> None:
        self._name = name
        self._lines = lines
        self._texts = texts

    def sample(self, labels: Labels, value: float, suffix: str = "") -> None:
        """Adds one number; `labels` are printed as they come."""
        text = self._texts.get(labels)
        if text is None:
            escaped = ((name, _escape(value).replace('"', '\\"')) for name, value in labels)
            text = self._texts[labels] = ",".join(f'{name}="{value}"' for name, value in escaped)
        self._print(suffix, text, value)

    def histogram(self, labels: Labels, total: float, bounds: Sequence[float], counts: Sequence[int]) -> None:
        """Adds a histogram: `counts` are those of each bucket alone, and the count above the last bound."""
        self.sample(labels, sum(counts), "_count")
        self.sample(labels, total, "_sum")
        of = self._texts[labels]
        below = 0
        for bound, count in zip((*bounds, math.inf), counts, strict=True):
            below += count
            self._print("_bucket", _and(of, "le", number(bound)), below)

    def summary(self, labels: Labels, count: int, total: float, quantiles: Iterable[tuple[float, float]]) -> None:
        """Adds a summary; `quantiles` are (quantile, value)."""
        self.sample(labels, count, "_count")
        self.sample(labels, total, "_sum")
        of = self._texts[labels]
        for quantile, value in quantiles:
            self._print("", _and(of, "quantile", number(quantile)), value)

    def _print(self, suffix: str, labels: str, value: float) -> None:
        pairs = f"{{{labels}}}" if labels else ""
        self._lines.append(f"{self._name}{suffix}{pairs} {number(value)}")


def _and(labels: str, name: str, value: str) -> str:
    """`labels` with one more; its value needs no escapes."""
    return f'{labels},{name}="{value}"' if labels else f'{name}="{value}"'
