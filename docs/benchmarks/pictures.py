"""Pictures of the pages, drawn by matplotlib.

A picture has a digest of its figures and of this file in its metadata. So it is drawn anew only if
one of these has changed, and whether it is up to date can be told without matplotlib.
"""

import hashlib
import json
import pathlib
import re
import sys
from functools import partial

from reports import (SPARSE_MODELS, ZEROS, decode_speedup, mean_over_shapes, model_title,
                     shape_title, unique)

DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
MEMORY_REQUESTS = 32
GPUS = {"h200": "H200", "h100": "H100"}


# What they show: lists of panels


def speedup_zeros(reports):
    panels = []
    for gpu, title in GPUS.items():
        means = mean_over_shapes(reports.bitmaps(f"{gpu}/kernel_means"), "overlapped_speedup")
        panel = {"title": title, "lines": {}}
        for (tokens, zeros), speedup in sorted(means.items()):
            line = panel["lines"].setdefault(f"{tokens} token" + "s" * (tokens > 1), [])
            line.append((100 * zeros, speedup))
        panels.append(panel)
    return panels


def speedup_tokens(reports):
    few, many = (reports.bitmaps(f"h200/kernel_{name}_tokens") for name in ("few", "many"))
    cells = {**reports.bitmaps("h200/kernel_means"), **few, **many}
    lines = {}
    for shape in unique(shape for shape, _, _ in many):
        lines[shape_title(shape)] = sorted(
            (tokens, row["overlapped_speedup"]) for (of, tokens, zeros), row in cells.items()
            if of == shape and zeros == ZEROS)
    return [{"title": "H200, 60 % zeros", "lines": lines}]


def end_to_end(reports):
    panels = []
    for gpu, title in GPUS.items():
        lines = {}
        for model in SPARSE_MODELS[gpu]:
            of_dense, of_sparse = reports.both(gpu, model)
            lines[model_title(model)] = [
                (requests, decode_speedup(of_dense[requests], sparse))
                for requests, sparse in of_sparse.items()
                if of_dense[requests]["decode_ms"] and sparse["decode_ms"]]
        panels.append({"title": f"{title}, 60 % zeros", "lines": lines})
    return panels


def memory(reports):
    columns = {"weights": "weights_gib", "keys and values": "kv_used_gib",
               "workspace": "workspace_gib"}
    bars = []
    for model in SPARSE_MODELS["h200"]:
        for form, rows in zip(("dense", "tca_bme"), reports.both("h200", model)):
            row = rows[MEMORY_REQUESTS]
            bars.append((f"{model_title(model)}\n{form}",
                         {title: row[column] for title, column in columns.items()}))
    return [{"title": f"H200, {MEMORY_REQUESTS} requests, 60 % zeros", "bars": bars}]


# How they are drawn


def draw_lines(axes, panel, colours, x, ticks):
    for name, points in panel["lines"].items():
        axes.plot(*zip(*points), marker="o", markersize=4, label=name, color=colours[name])
    if ticks:
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, list(map(str, ticks)))
        axes.minorticks_off()
    axes.axhline(1, color="black", linewidth=0.8)  # as fast as dense
    axes.set_xlabel(x)
    axes.set_ylabel("speed-up over dense")
    axes.legend(fontsize="small")


def draw_bars(axes, panel, _):
    names, parts = zip(*panel["bars"])
    bottom = [0.0] * len(names)
    for title in parts[0]:
        heights = [part[title] for part in parts]
        axes.bar(range(len(names)), heights, bottom=bottom, label=title, width=0.7)
        bottom = [low + height for low, height in zip(bottom, heights)]
    axes.set_xticks(range(len(names)), names, fontsize="small")
    axes.set_ylabel("GiB")
    axes.legend(fontsize="small")


PICTURES = {
    "speedup-zeros": (speedup_zeros, partial(draw_lines, x="zeros, %", ticks=None)),
    "speedup-tokens": (speedup_tokens, partial(draw_lines, x="tokens", ticks=[
        2 ** power for power in range(13)])),
    "end-to-end": (end_to_end, partial(draw_lines, x="requests", ticks=[1, 8, 16, 32, 64])),
    "memory": (memory, draw_bars),
}


def draw(path, panels, draw_panel, digest):
    """Writes an SVG that has the same bytes whenever it is drawn with the same matplotlib."""
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot
    settings = {"svg.hashsalt": path.stem, "svg.fonttype": "none", "font.family": "sans-serif",
                "axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True}
    with matplotlib.rc_context(settings):
        width = 4.6 * len(panels) if len(panels) > 1 else 7.5
        figure, axes = pyplot.subplots(1, len(panels), figsize=(width, 3.6), sharey=True,
                                       squeeze=False, layout="constrained")
        names = unique(name for panel in panels for name in panel.get("lines", {}))
        colours = {name: f"C{index}" for index, name in enumerate(names)}  # the same in all panels
        for ax, panel in zip(axes[0], panels):
            draw_panel(ax, panel, colours)
            ax.set_title(panel["title"], fontsize="medium")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={
            "Date": None, "Creator": None, "Description": f"figures: sha256:{digest}"})
        pyplot.close(figure)
    # matplotlib leaves blanks at the ends of lines.
    text = "".join(line.rstrip() + "\n" for line in path.read_text(encoding="utf-8").splitlines())
    path.write_text(text, encoding="utf-8")


def rounded(figures):
    """Without the last digits, which are other ones on other machines."""
    if isinstance(figures, dict):
        return {key: rounded(value) for key, value in figures.items()}
    if isinstance(figures, (list, tuple)):
        return list(map(rounded, figures))
    return round(figures, 4) if isinstance(figures, float) else figures


def digest_of(path):
    if not path.exists():
        return None
    found = DIGEST.search(path.read_text(encoding="utf-8"))
    return found and found[1]


def update(reports, folder, check):
    """Draws the pictures that are not up to date, or with `check` none; returns their paths."""
    source = pathlib.Path(__file__).read_bytes()
    stale = []
    for name, (panels_of, draw_panel) in PICTURES.items():
        panels = rounded(panels_of(reports))
        figures = json.dumps(panels, sort_keys=True).encode()
        digest = hashlib.sha256(source + name.encode() + figures).hexdigest()
        path = folder / f"{name}.svg"
        if digest_of(path) == digest:
            continue
        if not check:
            try:
                draw(path, panels, draw_panel, digest)
            except ImportError:
                print("tables.py: pictures are out of date, but there is no matplotlib",
                      file=sys.stderr)
                return stale
        stale.append(path)
    return stale
