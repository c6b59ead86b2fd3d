"""Charts as SVG with their geometry in attributes: `{% load charts %}`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from dashboard import charts

register = template.Library()


@register.simple_tag
def spark(values: Sequence[float]) -> SafeString:
    """A decorative line of bars; the number beside it says what counts."""
    bars = _write_rects(charts.draw_spark(values))
    return format_html('<svg class="spark" aria-hidden="true">{}</svg>', bars)


@register.simple_tag
def chart(figure: dict[str, Any]) -> SafeString:
    """A chart of `{says, ticks, top, bars, curves}`; its label is the sentence `says`."""
    grid = format_html_join(
        "", '<line class="grid" x1="0" x2="100%" y1="{0}" y2="{0}"/>',
        ((y,) for y in (charts.TOP, (charts.TOP + charts.BOTTOM) // 2, charts.BOTTOM)),
    )  # fmt: skip
    ticks = format_html_join(
        "", '<text x="{}%" y="108" text-anchor="middle">{}</text>',
        ((f"{x:.2f}", text) for x, text in figure["ticks"]),
    )  # fmt: skip
    curves = format_html_join(
        "", '<line class="{}" x1="{}%" y1="{}" x2="{}%" y2="{}"/>',
        ((one.css, *(f"{n:.2f}" for n in (one.x1, one.y1, one.x2, one.y2)))
         for one in figure["curves"] if not one.alone),
    )  # fmt: skip
    dots = format_html_join(
        "", '<circle class="{}" cx="{}%" cy="{}" r="2"/>',
        ((one.css, f"{one.x1:.2f}", f"{one.y1:.2f}") for one in figure["curves"] if one.alone),
    )  # fmt: skip
    return format_html(
        '<svg class="ch" height="114" role="img" aria-label="{}">{}{}{}{}{}'
        '<text x="0" y="20">{}</text></svg>',
        figure["says"], grid, ticks, _write_rects(figure["bars"]), curves, dots, figure["top"],
    )  # fmt: skip


def _write_rects(bars: Iterable[charts.Rect]) -> SafeString:
    return format_html_join(
        "", '<rect class="{}" x="{}%" y="{}" width="{}%" height="{}" rx="1"/>',
        ((bar.css, *(f"{n:.2f}" for n in (bar.x, bar.y, bar.width, bar.height))) for bar in bars),
    )  # fmt: skip
