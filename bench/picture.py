"""The results as one SVG: bars of the ratios to the reference, readable on light and dark pages.

Owns: layout and colours.
Refuses: a plotting library: a dozen bars are not worth one.
"""

from collections.abc import Mapping
from html import escape
from typing import Any, Final

from bench.figures import GATES
from bench.report import CALLS, KINDS, reference

WIDTH: Final = 760
LEFT: Final = 150
SCALE: Final = 260
"""Pixels for the reference's time, the ratio 1."""
_LABELS: Final = WIDTH - 112
_BAR: Final = 14
_ROW: Final = 46
_TOP: Final = 78
_STYLE: Final = """
 text { font: 13px system-ui, sans-serif; fill: #1f2328 }
 .head { font-weight: 600; font-size: 15px }
 .small { font-size: 11px; fill: #59636e }
 .default { fill: #1f7a4d }
 .other { fill: #b58a2b }
 .line { stroke: #59636e; stroke-width: 1 }
 .gate { stroke: #c0392b; stroke-width: 2 }
 @media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .small { fill: #9198a1 }
  .default { fill: #3fb97a }
  .other { fill: #d8b45a }
  .line { stroke: #9198a1 }
  .gate { stroke: #ff7b72 }
 }
"""


def svg(figures: Mapping[str, Any]) -> str:
    """Return the picture of one run."""
    other = next((kind for kind in KINDS if f"{kind}_cni_add_p50_ms" in figures), "")
    prefixes = {"default": ""} | ({"other": f"{other}_"} if other else {})
    height = _TOP + _ROW * len(CALLS) + 40
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(_title(figures))}</title>",
        f"<style>{_STYLE}</style>",
        _text(12, 24, "Time of one CNI call as a share of the reference's (median; shorter is faster)", "head"),
        _text(12, 44, _title(figures), "small"),
        *_legend(figures["entrypoints"], other),
    ]
    for row, (call, name) in enumerate(CALLS.items()):
        parts += _bars(figures, prefixes, call, name, _TOP + _ROW * row)
    bottom = _TOP + _ROW * len(CALLS)
    parts += [_line(LEFT + SCALE, _TOP - 8, bottom, "line"), _text(LEFT + SCALE, bottom + 16, "reference = 1", "small")]
    return "\n".join([*parts, "</svg>", ""])


def _title(figures: Mapping[str, Any]) -> str:
    return f"{figures['date']}, {figures['machine']}; reference: {reference(figures)}"


def _legend(kind: str, other: str) -> list[str]:
    named = {"default": f"{KINDS.get(kind, 'unknown')} entrypoint (default here)"} | (
        {"other": KINDS[other]} if other else {}
    )
    parts = []
    for number, (style, words) in enumerate(named.items()):
        left = LEFT + 240 * number
        parts += [_rect(left, 53, _BAR, style), _text(left + 18, 64, words, "small")]
    return [*parts, _line(LEFT + 400, 53, 66, "gate"), _text(LEFT + 408, 64, "limit", "small")]


def _bars(figures: Mapping[str, Any], prefixes: Mapping[str, str], call: str, name: str, top: int) -> list[str]:
    parts = [_text(12, top + 19, call)]
    for number, (style, prefix) in enumerate(prefixes.items()):
        ratio = figures.get(f"{prefix}{name}_p50_ratio")
        if ratio is None:
            continue
        y, long = top + 2 + number * (_BAR + 3), min(ratio * SCALE, _LABELS - LEFT - 8)
        label = f"{ratio:.2f}  ({figures[f'{prefix}{name}_p50_ms']:.1f} ms)"
        parts += [_rect(LEFT, y, long, style), _text(_LABELS, y + 11, label, "small")]
    limits = [gate.limit for gate in GATES if gate.key == f"{name}_p50_ratio"]
    return parts + [_line(LEFT + limit * SCALE, top - 1, top + 2 * _BAR + 8, "gate") for limit in limits]


def _text(x: float, y: float, words: str, style: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}"{style and f" class={chr(34)}{style}{chr(34)}"}>{escape(words)}</text>'


def _rect(x: float, y: float, width: float, style: str) -> str:
    return f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.1f}" height="{_BAR}" rx="2" class="{style}"/>'


def _line(x: float, top: float, bottom: float, style: str) -> str:
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.0f}" y2="{bottom:.0f}" class="{style}"/>'
