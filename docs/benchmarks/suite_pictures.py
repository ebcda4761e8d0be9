"""Pictures of suites: bars by batch as in the papers, of our formats, and what is stated."""

import hashlib
import json
import pathlib
import textwrap

from pictures import digest_of, draw, rounded
from reports import unique
from suite_panels import breakdown_panels, engine_panels, kernel_panels, plain, ratio_panels
from suite_texts import METRIC_TITLES

STATED_COLOURS = ["black", "magenta", "cyan", "gold", "navy", "lime"]  # none is a bar's
BARS_WIDTH = 0.8  # of all bars of one place on the x axis
SOURCES = (__file__, draw.__code__.co_filename)


def draw_suite(axes, panel, colours, scale, stated):
    width = BARS_WIDTH / max(len(panel["lines"]), 1)
    middles = {}
    for index, (series, bars) in enumerate(panel["lines"].items()):
        offset = (index + 0.5) * width - BARS_WIDTH / 2
        middles[series] = offset
        axes.bar([place + offset for place in range(len(bars))], [bar or 0 for bar in bars],
                 width=0.95 * width, label=plain(series), color=colours[series])
        for place, state in enumerate(panel["states"][series]):
            if state:
                axes.annotate(state, (place + offset, 0), xytext=(0, 3), rotation=90,
                              textcoords="offset points", ha="center", va="bottom", fontsize=5,
                              color=colours[series])
    said = set()
    for mark in panel["marks"]:
        label = None if mark["title"] in said else plain(mark["title"])
        said.add(mark["title"])
        colour = stated[mark["title"]]
        if mark["from"] == mark["to"]:
            axes.plot([mark["from"] + middles.get(mark["series"], 0)], [mark["value"]], marker="D",
                      markersize=5, markeredgecolor="black", markeredgewidth=0.5, linestyle="none",
                      color=colour, label=label, zorder=3)
        else:
            axes.plot([mark["from"] - 0.45, mark["to"] + 0.45], [mark["value"]] * 2,
                      linestyle="--", linewidth=1, color=colour, label=label, zorder=3)
    finish(axes, panel, *scale)


def draw_stacks(axes, panel, colours, scale, _):
    bottom = [0.0] * len(panel["x"])
    for index, name in enumerate(panel["lines"]):
        heights = [stack[index] for stack in panel["stacks"]]
        axes.bar(range(len(heights)), heights, bottom=bottom, label=plain(name), width=0.7,
                 color=colours[name])
        bottom = [low + height for low, height in zip(bottom, heights)]
    finish(axes, panel, *scale)


def finish(axes, panel, y_title, top):
    places = max(len(panel["x"]), 1)
    texts = [plain("\n".join(line for part in text.split("\n") for line in textwrap.wrap(
        part, max(60 // places, 9)))) for text in panel["x"]]
    is_long = sum(map(len, panel["x"])) > 40
    axes.set_xticks(range(len(texts)), texts, fontsize="xx-small" if is_long else "small")
    axes.set_xlim(-0.5, places - 0.5)
    axes.set_xlabel(panel["x title"])
    axes.set_ylabel(plain(y_title))
    axes.set_ylim(0, top)
    axes.legend(fontsize="x-small", ncols=2, loc="upper left")


def top_of(panels):
    """Of the y axis, which all panels share, with room for the legend."""
    heights = [sum(stack) for panel in panels for stack in panel.get("stacks", [])]
    for panel in panels:
        heights += [bar for bars in panel["lines"].values() for bar in bars if bar]
        heights += [mark["value"] for mark in panel.get("marks", [])]
    legend = max(len(panel["lines"]) + len({mark["title"] for mark in panel.get("marks", [])})
                 for panel in panels)
    return max(heights) * (1.1 + 0.04 * legend)


def pictures_of(view):
    """[(name, panels, how a panel is drawn)]"""
    suite = view.suite
    if suite.is_breakdown:
        found = [(*picture, draw_stacks, "decode step, ms") for picture in breakdown_panels(view)]
    else:
        panels = kernel_panels(view) if suite.is_kernel else engine_panels(view)
        found = [(*picture, draw_suite, METRIC_TITLES[suite.metric]) for picture in panels]
    found += [(*picture, draw_suite, "speed-up") for picture in ratio_panels(view)]
    return [(f"{suite.name}{ending}", panels, draw_panel, y_title)
            for ending, panels, draw_panel, y_title in found if has_bars(panels)]


def has_bars(panels):
    return any(panel.get("stacks") or any(bar for bars in panel["lines"].values() for bar in bars)
               for panel in panels)


def update(pictures, folder, check=False):
    """Draws those that are not up to date, or with `check` none; returns their paths.

    Throws ImportError where there is no matplotlib.
    """
    source = b"".join(pathlib.Path(path).read_bytes() for path in SOURCES)
    stale = []
    for name, panels, draw_panel, y_title in pictures:
        panels = rounded(panels)
        figures = json.dumps(panels, sort_keys=True).encode()
        digest = hashlib.sha256(source + f"{name} {y_title}".encode() + figures).hexdigest()
        path = folder / f"{name}.svg"
        if digest_of(path) == digest:
            continue
        stale.append(path)
        if not check:
            titles = unique(mark["title"] for panel in panels for mark in panel.get("marks", []))
            stated = {title: STATED_COLOURS[index % len(STATED_COLOURS)]
                      for index, title in enumerate(titles)}
            scale = y_title, top_of(panels)
            draw(path, panels, lambda axes, panel, colours: draw_panel(
                axes, panel, colours, scale, stated), digest)
    return stale
