"""Charts as matplotlib figures, all in one style."""

import math
import textwrap
from typing import Any

from benchmarks.figures.chart import Axis, Chart, Panel, Picture, Series
from gossamer import plotting
from gossamer.plotting import GREY, PALETTE, PAPER

MARKERS = "osD^vPX*"
BARS = 0.8  # of the room between two groups
NOTE_LETTERS = 17  # to an inch of a note
TICK_LETTERS = 11  # to an inch of the names of groups
NOTE_SIZE, SMALL, LABEL = 7.5, 7.0, 6.5
TITLE = {"size": 10.5, "weight": "bold"}
# Of a logarithmic axis, from many ticks to few.
SUBS = ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))
MOST_TICKS, NARROW = 6, 0.7  # decades


def figure_of(chart: Chart | Picture) -> Any:
    """A matplotlib figure. Raises ImportError without matplotlib."""
    if isinstance(chart, Picture):
        figure = plotting.new_figure(*chart.size)
        chart.draw(figure)
    else:
        figure = _figure(chart)
    _note(figure, chart.note)
    return figure


def _figure(chart: Chart) -> Any:
    rows = -(-len(chart.panels) // chart.columns)
    width, height = chart.size
    figure = plotting.new_figure(width * chart.columns, height * rows + 0.7)
    grid = figure.subplots(rows, chart.columns, squeeze=False)
    names: dict[str, Any] = {}
    for axes, panel in zip(grid.flat, chart.panels, strict=False):
        _panel(axes, panel, width)
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            names.setdefault(name, handle)
    for axes in grid.flat[len(chart.panels) :]:
        axes.set_axis_off()
    heading(figure, chart.title, names, width * chart.columns)
    for axes, panel in zip(grid.flat, chart.panels, strict=False):
        _labels(axes, panel)
    return figure


def heading(figure: Any, title: str, names: dict[str, Any], width: float) -> None:
    """The title and, where there is more than one, the names of series below it."""
    columns = max(1, min(len(names), int(width / 1.9)))
    shown = names if len(names) > 1 else {}
    figure.legend(
        *(shown.values(), shown.keys()),
        title=title,
        title_fontproperties=TITLE,
        fontsize=8,
        ncols=columns,
        loc="outside upper center",
    )


def _note(figure: Any, note: str) -> None:
    """Below everything, wrapped to the figure's width."""
    if note:
        width, height = figure.get_size_inches()
        lines = textwrap.wrap(note, int(width * NOTE_LETTERS))
        figure.set_size_inches(width, height + 0.15 * len(lines))
        figure.supxlabel("\n".join(lines), fontsize=NOTE_SIZE, color="#555555", x=0.01, ha="left")


def _panel(axes: Any, panel: Panel, width: float) -> None:
    title = panel.title
    if panel.published:
        axes.set_facecolor(PAPER)
        title = f"{title}\npublished: {panel.published}" if title else panel.published
    axes.set_title(title, fontsize=8.5, loc="left")
    _scale(axes, "x", panel.x)
    _scale(axes, "y", panel.y)
    if panel.one:
        axes.axhline(1, color="#999999", linewidth=0.9, zorder=0.5, label="_one")
    named = [s for s in panel.series if s.x and isinstance(s.x[0], str)]
    groups = list(dict.fromkeys(str(x) for s in named for x in s.x))
    bars = _Bars(axes, panel, groups)
    for number, series in enumerate(panel.series):
        place = number if series.color is None else series.color
        color = PALETTE[place % len(PALETTE)]
        if series.kind in ("bars", "stack"):
            bars.draw(series, color)
        else:
            _points(axes, series, color, MARKERS[place % len(MARKERS)])
    if groups:
        _group_names(axes, groups, width)
    else:
        _limits(axes, "x", panel.x)
    _limits(axes, "y", panel.y)


def _scale(axes: Any, which: str, axis: Axis) -> None:
    options = {"linthresh": axis.linear} if axis.scale == "symlog" else {}
    getattr(axes, f"set_{which}scale")(axis.scale, **options)
    getattr(axes, f"set_{which}label")(axis.label, fontsize=8)
    axes.tick_params(axis=which, labelsize=SMALL + 0.5)


def _limits(axes: Any, which: str, axis: Axis) -> None:
    """After everything is drawn: what is not given follows from the values."""
    if axis.low is not None or axis.high is not None:
        getattr(axes, f"set_{which}lim")(axis.low, axis.high)
    if axis.scale == "log":
        low, high = getattr(axes, f"get_{which}lim")()
        decades = math.log10(high / low)
        fitting = (s for s in SUBS if decades * len(s) <= MOST_TICKS)
        subs = () if decades < NARROW else next(fitting, SUBS[-1])
        plotting.plain_log_ticks(getattr(axes, f"{which}axis"), subs)
        return
    if axis.scale == "symlog":
        locator = plotting.module("matplotlib.ticker").SymmetricalLogLocator
        places = locator(base=10, linthresh=axis.linear, subs=(1, 2, 5))
        getattr(axes, f"{which}axis").set_major_locator(places)
    plotting.plain_ticks(getattr(axes, f"{which}axis"))


def _group_names(axes: Any, groups: list[str], width: float) -> None:
    """Below their bars, turned where they would touch."""
    axes.set_xticks(range(len(groups)), groups, fontsize=SMALL)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.grid(visible=False, axis="x")
    longest = max(len(line) for name in groups for line in name.split("\n"))
    if longest * len(groups) > 0.8 * width * TICK_LETTERS:
        for label in axes.get_xticklabels():
            label.set(rotation=30, ha="right", rotation_mode="anchor")


def _points(axes: Any, series: Series, color: str, marker: str) -> None:
    if series.kind == "rule":
        axes.plot(series.x, series.y, "--", color=GREY, label=series.name, linewidth=1.1, zorder=1)
        return
    style = {"marker": marker, "markersize": 4, "color": color, "label": series.name}
    axes.plot(series.x, series.y, linewidth=1.4 * (series.kind == "line"), zorder=3, **style)
    if series.low:
        ends = [[y - a for y, a in zip(series.y, series.low, strict=True)]]
        ends.append([b - y for y, b in zip(series.y, series.high, strict=True)])
        bars = axes.errorbar(series.x, series.y, yerr=ends, fmt="none", color=color, capsize=2)
        bars.set_label("_interval")


class _Bars:
    """Side by side, or each kind of part on top of the one before."""

    def __init__(self, axes: Any, panel: Panel, groups: list[str]) -> None:
        self.axes, self.groups = axes, groups
        self.beside = [s for s in panel.series if s.kind == "bars"]
        self.below = [0.0] * len(groups)
        # Ratios rise and fall from 1, which a logarithmic axis has no other ground for.
        self.ground = 1.0 if panel.one and panel.y.scale == "log" else 0.0

    def draw(self, series: Series, color: str) -> None:
        places = [self.groups.index(str(x)) for x in series.x]
        if series.kind == "stack":
            bottom = [self.below[place] for place in places]
            self.axes.bar(places, series.y, BARS * 0.7, bottom, color=color, label=series.name)
            for place, y in zip(places, series.y, strict=True):
                self.below[place] += y
            at, tops = [float(place) for place in places], [self.below[p] for p in places]
        else:
            width = BARS / len(self.beside)
            shift = (self.beside.index(series) - (len(self.beside) - 1) / 2) * width
            at, tops = [place + shift for place in places], list(series.y)
            heights = [y - self.ground for y in series.y]
            self.axes.bar(at, heights, width, self.ground, color=color, label=series.name)
        for x, y, text in zip(at, tops, series.labels, strict=False):
            style: dict[str, Any] = {"fontsize": LABEL, "color": "#333333", "ha": "center"}
            self.axes.annotate(text, (x, y), (0, 2), textcoords="offset points", **style)


def _labels(axes: Any, panel: Panel) -> None:
    """Beside their points, where no label, point or line is in the way."""
    shown = [s for s in panel.series if s.kind in ("line", "points")]
    if not any(s.labels for s in shown):
        return
    labels = plotting.Labels(axes, LABEL)
    for s in panel.series:
        if s.kind in ("line", "rule"):
            labels.keep_off_line(s.x, s.y)
    for s in shown:
        labels.keep_off_points(s.x, s.y)
        for x, *ends in zip(s.x, s.low, s.high, strict=False):
            labels.keep_off_line((x, x), ends)
    for s in shown:
        for x, y, text in zip(s.x, s.y, s.labels, strict=False):
            if text:
                labels.write(x, y, text)
