"""Tables of the cells of suites, with what papers state of single columns."""

from reports import ReportError, mean, unique
from suite_claims import over_text, ratios_by_format, stated_text
from suite_files import SPEEDUPS
from suite_results import NOT_MEASURED
from suite_texts import METRIC_TITLES, clean, figure_text, subject_title, weights_title
from texts import percent, table

LINEAR = "linear layers"
GROUPS = [LINEAR, "attention", "communication", "other", "rest of the step"]


def differing(cells, columns):
    """Those columns, (title, text of a cell), in which cells differ."""
    return [(title, of) for title, of in columns if len({of(cell) for cell in cells}) > 1]


def x_axis(suite):
    """The attribute of cells that has a column for each value, and its title."""
    if suite.is_kernel:
        return "tokens", "tokens"
    outputs = {cell.output for cell in suite.cells}
    return ("output", "tokens generated") if len(outputs) > 1 else ("batch", "requests")


def in_order(rows):
    """Rows, (keys, figures), gathered by key after key, each in the order in which it turns up."""
    places = [{key: place for place, key in enumerate(unique(keys[at] for keys, _ in rows))}
              for at in range(len(rows[0][0]))]
    return sorted(rows, key=lambda row: [places[at][key] for at, key in enumerate(row[0])])


def row_columns(cells, axis):
    """The titles of the columns before the figures, with what they have for a cell."""
    gpus = ("GPUs", lambda cell: str(cell.gpus))
    first = [("out x in" if cells[0].tokens else "model", subject_title)]
    rest = differing(cells, [gpus, ("of a GPU", lambda cell: cell.memory)])
    more = [("requests", lambda cell: str(cell.batch)), ("prompt", lambda cell: str(cell.prompt)),
            ("tokens generated", lambda cell: str(cell.output))]
    shown = {"batch": "requests", "output": "tokens generated"}.get(axis)
    rest += [column for column in differing(cells, more) if column[0] != shown]
    return first + rest + [("weights", weights_title)]


def cell_text(view, cell):
    value = view.value(cell)
    if value is None:
        state = view.outcome(cell).state
        return "" if state == "measured" else state
    text = figure_text(value, view.suite.metric)
    speedup = view.value(cell, "speedup") if view.suite.metric == "time_us" else None
    return text if speedup is None else f"{text} ({speedup:.2f})"


def mean_rows(view, by_row, values):
    """Geometric means over shapes, where there are several."""
    of_weights = {}
    for (subject, *_, weights), by_x in by_row.items():
        of_weights.setdefault(weights, []).append(by_x)
    rows = []
    for weights, of_shapes in of_weights.items():
        cells = []
        for x in values:
            of_x = [by_x[x] for by_x in of_shapes if x in by_x]
            known = [value for value in map(view.value, of_x) if value]
            text = f"{mean(known):.2f}" if known else NOT_MEASURED if of_x else ""
            cells.append(text if len(known) in (0, len(of_x)) else
                         f"{text} ({len(known)} of {len(of_x)})")
        rows.append((weights, cells, len(of_shapes)))
    return rows


def stated_rows(view, axis, values):
    """What the paper states of single columns, and where it is a ratio, ours by format."""
    rows = []
    said = set()
    for figure in view.suite.stated:
        of_x = {}
        for point in figure.points:
            at = {getattr(cell, axis) for cell in view.matching(point.cells)}
            if len(at) == 1:
                of_x[at.pop()] = point
        compares = figure.metric == view.suite.metric and (
            figure.unit != "x" or figure.metric in SPEEDUPS or figure.is_ratio_of_cells)
        if len(of_x) < len(figure.points) or not of_x or not compares:
            continue
        if figure.is_ratio_of_cells:
            for form, text_of in ratios_by_format(view, figure):
                key = figure.what, form, str(of_x.keys())
                texts = [text_of(of_x[x]) if x in of_x else "" for x in values]
                # Why there is none at all is said of the claim.
                if key not in said and any(text[:1].isdigit() for text in texts):
                    said.add(key)
                    rows.append((f"ours: {clean(figure.what)}, `{form}`", texts))
        texts = [stated_text(figure, of_x[x]) if x in of_x else "" for x in values]
        rows.append((f"**stated**: {clean(figure.what)}{over_text(figure)}, "
                     f"{clean(figure.gpu)}", texts))
    return rows


def cells_table(view, every_shape=True):
    """The lines of the table of a suite's cells; without `every_shape`, of products the means alone."""
    suite = view.suite
    axis, x_title = x_axis(suite)
    values = sorted({getattr(cell, axis) for cell in view.cells})
    columns = row_columns(view.cells, axis)
    by_row = {}
    for cell in view.cells:
        by_x = by_row.setdefault(tuple(of(cell) for _, of in columns), {})
        if getattr(cell, axis) in by_x:
            raise ReportError(f"{suite.name}: {cell.name} and {by_x[getattr(cell, axis)].name} "
                              "would be one cell of the table")
        by_x[getattr(cell, axis)] = cell
    blank = [""] * (len(columns) - 1)
    rows = []
    if suite.is_kernel:
        rows += [[f"mean of {count} shapes", *blank[1:], weights, *cells]
                 for weights, cells, count in mean_rows(view, by_row, values) if count > 1]
    if every_shape or not rows:
        rows += [[*row, *(cell_text(view, by_x[x]) if x in by_x else "" for x in values)]
                 for row, by_x in in_order(list(by_row.items()))]
    rows += [[title, *blank, *cells] for title, cells in stated_rows(view, axis, values)]
    heads = [title for title, _ in columns]
    heads[0] = f"{METRIC_TITLES[suite.metric]} by {x_title}: {heads[0]}"
    return table(heads + [f"{x:,}" for x in values], rows, first=len(columns) - 1)


def group_times(outcome):
    """Milliseconds of a step by group; all linear layers are one."""
    times = {}
    for group in outcome.result.groups:
        name = LINEAR if group["group"].startswith(LINEAR) else group["group"]
        times[name] = times.get(name, 0) + (group["ms_per_step"] or 0)
    return times


def all_groups(view):
    found = unique(name for cell in view.cells if view.outcome(cell).state == "measured"
                   for name in group_times(view.outcome(cell)))
    return [name for name in GROUPS if name in found] + [n for n in found if n not in GROUPS]


def step_texts(view, cell, groups):
    outcome = view.outcome(cell)
    if outcome.state != "measured":
        return [outcome.state] + [""] * (len(groups) + 1)
    values = [(metric, view.value(cell, metric)) for metric in ("prefill_ms", "decode_ms")]
    texts = ["" if value is None else figure_text(value, metric) for metric, value in values]
    times = group_times(outcome)
    step = sum(times.values())
    for name in groups:
        text = f"{times[name]:.2f}" if name in times else ""
        share = f" ({percent(round(times[name] / step, 2))})" if text and step > 0 else ""
        texts.append(text + share)
    return texts


def breakdown_table(view):
    """Prefill, a decode step, and its parts."""
    groups = all_groups(view)
    columns = row_columns(view.cells, None)
    rows = in_order([([of(cell) for _, of in columns], step_texts(view, cell, groups))
                     for cell in view.cells])
    rows = [keys + figures for keys, figures in rows]
    heads = [title for title, _ in columns] + ["prefill, ms", "decode step, ms"]
    return table(heads + [f"{clean(name)}, ms" for name in groups], rows, first=len(columns) - 1)
