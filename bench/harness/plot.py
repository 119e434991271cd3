"""Line charts in SVG that are readable on light and dark pages."""

from __future__ import annotations

import dataclasses
import html
import math

WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 200, 36, 44
#: Distinguishable by people who see few colours, on white and on dark grey.
COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#b8a000"]
GREY = "#808080"
TICKS = 5

Points = list[tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Scale:
    """The logarithmic axes, and whether points are marked."""

    log_x: bool = False
    log_y: bool = False
    marks: bool = False


class Axis:
    """Maps values to positions between two pixels."""

    def __init__(self, values: list[float], pixels: tuple[float, float], *, log: bool) -> None:
        self._log, self._pixels = log, pixels
        shown = [value for value in values if value > 0] if log else [0.0, *values]
        shown = shown or [1.0]
        if log:
            self.low = 10.0 ** math.floor(math.log10(min(shown)))
            self.high = 10.0 ** math.ceil(math.log10(max(shown)))
            self.high = max(self.high, self.low * 10)
        else:
            self.low = min(shown)
            step = nice((max(shown) - self.low) / TICKS or 1.0)
            self.high = self.low + math.ceil((max(shown) - self.low) / step or 1) * step
            self._step = step

    def ticks(self) -> list[float]:
        """The values that have labels."""
        if self._log:
            count = round(math.log10(self.high / self.low))
            return [self.low * 10.0**power for power in range(count + 1)]
        count = round((self.high - self.low) / self._step)
        return [self.low + number * self._step for number in range(count + 1)]

    def place(self, value: float) -> float:
        """The pixel for a value."""
        if self._log:
            value = max(value, self.low)
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        begin, end = self._pixels
        return begin + share * (end - begin)


def nice(step: float) -> float:
    """The next larger step, which is 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * 0.999)


def number(value: float) -> str:
    """A short form of a value."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}" if value == 0 or abs(value) >= 1e-3 else f"{value:.0e}"


def lines(title: str, x_name: str, y_name: str, series: dict[str, Points], scale: Scale) -> str:
    """Draws each series as a line."""
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    x_axis = Axis(xs, (LEFT, WIDTH - RIGHT), log=scale.log_x)
    y_axis = Axis(ys, (HEIGHT - BOTTOM, TOP), log=scale.log_y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="{GREY}">',
        f'<text x="{LEFT}" y="20" font-size="14">{html.escape(title)}</text>',
        *_grid(x_axis, y_axis),
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">{html.escape(x_name)}</text>',
        f'<text x="{LEFT - 8}" y="{TOP - 6}" text-anchor="end">{html.escape(y_name)}</text>',
    ]
    for index, (name, points) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        placed = [(x_axis.place(x), y_axis.place(y)) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
        if scale.marks:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in placed]
        y = TOP + 10 + 18 * index
        parts.append(
            f'<text x="{WIDTH - RIGHT + 12}" y="{y}" fill="{colour}">{html.escape(name)}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _grid(x_axis: Axis, y_axis: Axis) -> list[str]:
    parts = []
    for tick in y_axis.ticks():
        y = y_axis.place(tick)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{GREY}" stroke-opacity="0.3"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>'
        )
    for tick in x_axis.ticks():
        x = x_axis.place(tick)
        parts.append(
            f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="{GREY}" stroke-opacity="0.3"/>'
            f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{number(tick)}</text>'
        )
    return parts
