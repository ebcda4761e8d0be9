"""What the pictures of suites show.

A picture is a list of panels. A panel has the places of its x axis, by series a bar or none for
each of them, and marks for what is stated: from which place to which, at what height.
"""

import dataclasses

from reports import mean, model_title, unique
from suite_claims import formats_of, gpus_text, ratios, statistic_of
from suite_files import SPEEDUPS
from suite_tables import all_groups, group_times
from suite_texts import subject_title, weights_title


def plain(text):
    """For matplotlib, to which a dollar sign begins a formula."""
    return text.replace("$", r"\$")


def titled(view, text):
    """With the GPU that is measured."""
    return plain(": ".join(filter(None, [view.title, text])))


def series_title(cell, with_gpus):
    # Products of another pattern of zeros are in another panel.
    plain = dataclasses.replace(cell, pattern="") if cell.tokens else cell
    title = weights_title(plain, mark="")
    return f"{title}, {gpus_text(cell)}" if with_gpus else title


def panel_of(view, title, cells, x_of, with_gpus, x_title):
    places = unique(map(x_of, cells))
    panel = {"title": titled(view, title), "x": places, "x title": x_title, "lines": {},
             "states": {}}
    for cell in cells:
        series = series_title(cell, with_gpus)
        bars = panel["lines"].setdefault(series, [None] * len(places))
        states = panel["states"].setdefault(series, [""] * len(places))
        place = places.index(x_of(cell))
        bars[place] = view.value(cell)
        states[place] = "" if bars[place] else view.outcome(cell).state
    # The table says why others have none.
    shown = [series for series, bars in panel["lines"].items() if any(bars)]
    for key in ("lines", "states") if shown else ():
        panel[key] = {series: panel[key][series] for series in shown}
    panel["marks"] = stated_marks(view, cells, places, x_of, with_gpus)
    return panel


def mark_title(view, figure):
    framework = f"over {figure.framework}" if figure.unit == "x" else figure.framework
    return ", ".join(filter(None, [f"stated: {framework}", figure.gpu, view.suite.year]))


def stated_marks(view, cells, places, x_of, with_gpus):
    """Of absolute figures, and of speed-ups over what every product is compared with."""
    marks = []
    for figure in view.suite.stated:
        is_speedup = figure.unit == "x" and figure.metric in SPEEDUPS
        if figure.metric != view.suite.metric or (figure.unit == "x" and not is_speedup) or (
                figure.statistic == "share_faster"):
            continue
        for point in figure.points:
            matching = view.matching(point.cells)
            here = [cell for cell in matching if cell in cells]
            is_whole = figure.statistic == "each" or len(here) == len(matching)
            if not here or not is_whole or isinstance(point.value, str) or point.over:
                continue
            at = [places.index(x_of(cell)) for cell in here]
            series = unique(series_title(cell, with_gpus) for cell in here)
            marks.append({"title": mark_title(view, figure), "from": min(at), "to": max(at),
                          "value": point.value, "series": series[0] if len(series) == 1 else ""})
    return marks


def engine_panels(view):
    """[(ending of the name, panels)]"""
    cells = view.cells
    gpus_of = {}
    for cell in cells:
        gpus_of.setdefault(cell.subject, set()).add(cell.gpus)
    with_gpus = any(len(gpus) > 1 for gpus in gpus_of.values())
    models, batches, outputs = (unique(getattr(cell, name) for cell in cells)
                                for name in ("subject", "batch", "output"))

    def several(keys, title_of, x_of, x_title):
        return [panel_of(view, title_of(key), of_key, x_of, with_gpus, x_title)
                for key, of_key in by_key(cells, keys).items()]

    def by_key(of, key_of):
        found = {}
        for cell in of:
            found.setdefault(key_of(cell), []).append(cell)
        return found

    if len(outputs) > 1:
        pictures = []
        for (model, memory), of_picture in by_key(
                cells, lambda cell: (cell.subject, cell.memory)).items():
            name = f"-{model}" + (f"-{memory}" if memory else "")
            pictures.append((name, [
                panel_of(view, f"{model_title(model)}, {batch} requests" + (
                    f", GPUs of {memory}" if memory else ""), of_panel,
                    lambda cell: str(cell.output), with_gpus, "tokens generated")
                for batch, of_panel in by_key(of_picture, lambda cell: cell.batch).items()]))
        return pictures
    if len(models) > len(batches):
        return [("", several(lambda cell: cell.batch, lambda batch: (
            f"{batch} requests" if batch > 1 else "1 request"),
            lambda cell: model_title(cell.subject), "model"))]
    return [("", several(lambda cell: (cell.subject, cell.memory), lambda key: ", GPUs of ".join(
        filter(None, [model_title(key[0]), key[1]])), lambda cell: str(cell.batch), "requests"))]


def breakdown_panels(view):
    """A picture for each model: a panel for each number of requests, in which steps are stacked."""
    groups = all_groups(view)
    pictures = {}
    for cell in view.cells:
        if view.outcome(cell).state == "measured":
            times = group_times(view.outcome(cell))
            panels = pictures.setdefault(cell.subject, {})
            panel = panels.setdefault(cell.batch, {
                "title": titled(view, f"{model_title(cell.subject)}, {cell.batch} requests"),
                "x title": "",
                "x": [], "stacks": [], "lines": {name: [] for name in groups}})
            panel["x"].append(series_title(cell, True).replace(", ", "\n"))
            panel["stacks"].append([max(times.get(name, 0), 0) for name in groups])
    return [(f"-{model}", [panel for _, panel in sorted(panels.items())])
            for model, panels in pictures.items()]


def kernel_panels(view):
    """Means over shapes; a panel for each set of shapes that have the same tokens."""
    shapes_of = {}
    for cell in view.suite.cells:
        shapes_of.setdefault((cell.pattern, cell.tokens), {})[cell.subject] = cell
    by_shapes = {}
    for (pattern, tokens), shapes in shapes_of.items():
        by_shapes.setdefault((pattern, tuple(shapes)), []).append(tokens)
    return [("", [kernel_panel(view, pattern, shapes, tokens)
                  for (pattern, shapes), tokens in by_shapes.items()])]


def kernel_panel(view, pattern, shapes, tokens):
    """Means over those shapes of which all is measured."""
    cells = [cell for cell in view.cells if cell.pattern == pattern and cell.subject in shapes and
             (cell.tokens in tokens or len(shapes) == 1)]
    measured = {series_title(cell, False) for cell in cells if view.value(cell)}
    complete = [shape for shape in shapes if all(
        view.value(cell) for cell in cells
        if cell.subject == shape and series_title(cell, False) in measured)]
    if len(shapes) > 1:
        few = f"{len(complete)} of " if len(complete) < len(shapes) else ""
        title = f"mean of {few}{len(shapes)} shapes"
    else:
        title = subject_title(cells[0])
    panel = panel_of(view, f"{title}, {pattern}" if pattern else title, cells,
                     lambda cell: str(cell.tokens), False, "tokens")
    if len(shapes) > 1:
        for series, bars in panel["lines"].items():
            for place, text in enumerate(panel["x"]):
                known = [view.value(cell) for cell in cells if cell.subject in complete and (
                    series, text) == (series_title(cell, False), str(cell.tokens))]
                bars[place] = mean(known) if known and all(known) else None
                panel["states"][series][place] = "" if bars[place] else "not measured"
    return panel


def what_differs(view, figure):
    """What the points of a figure are at."""
    names = {"batch": "requests", "tokens": "tokens", "output": "tokens generated"}
    for name, title in names.items():
        if all({str(getattr(cell, name)) for cell in view.matching(point.cells)} == {point.at}
               for point in figure.points):
            return title
    return ""


def ratio_panels(view):
    """A panel for each figure that is a ratio by batch, and one for all ratios without any."""
    panels = {}
    for figure in view.suite.stated:
        if not figure.is_ratio_of_cells:
            continue
        single = not figure.points[0].at
        key = "" if single else figure.what
        panel = panels.setdefault(key, {
            "title": titled(view, key), "x": [], "x title": "" if single else what_differs(
                view, figure), "lines": {}, "states": {}, "marks": []})
        for point in figure.points:
            # Those of other memory, in figures of the same words, are another place.
            cells = view.matching(point.cells)
            memory = unique(cell.memory for cell in cells)
            memory = f", GPUs of {memory[0]}" if len(memory) == 1 and memory[0] else ""
            over = unique(cell.format for cell in view.matching(point.over))
            text = f"{figure.what}{memory}" if single else point.at
            if text not in panel["x"]:
                panel["x"].append(text)
            place = panel["x"].index(text)
            for form in formats_of(view, figure) if over else []:
                bars = panel["lines"].setdefault(form, {})
                found = [ratio for _, ratio in ratios(view, figure, point, form) if ratio]
                bars[place] = statistic_of(figure, found) if found else None
            if not isinstance(point.value, str):
                panel["marks"].append({"title": mark_title(view, figure), "from": place,
                                       "to": place, "value": point.value, "series": ""})
    for panel in panels.values():
        for form, bars in panel["lines"].items():
            panel["lines"][form] = [bars.get(place) for place in range(len(panel["x"]))]
            panel["states"][form] = ["" if bar else "no figure" for bar in panel["lines"][form]]
    panels = [panel for panel in panels.values()
              if any(bar for bars in panel["lines"].values() for bar in bars)]
    return [("-ratios", panels)] if panels else []
