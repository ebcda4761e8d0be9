"""What papers state of suites, ours beside it, and whether it is so here."""

from reports import mean, unique
from suite_files import LOWER_IS_BETTER, SPEEDUPS
from suite_results import FIT, with_format
from suite_texts import clean
from texts import table


# Ratios


def over_text(figure):
    framework = clean(figure.framework)
    return f", over {framework}" if figure.unit == "x" else f", {framework}"


def formats_of(view, figure):
    """Those of its cells, and the others of the suite that can take their place."""
    named = unique(cell.format for point in figure.points for cell in view.matching(point.cells))
    others = unique(cell.format for cell in view.cells
                    if cell.format != "dense" and cell.format not in named)
    if "dense" in named:
        return named
    over = {cell.format for point in figure.points for cell in view.matching(point.over)}
    return named + [form for form in others if form not in over]


def ratios_by_format(view, figure):
    for form in formats_of(view, figure):
        yield form, lambda point, form=form: ratio_text(view, figure, point, form)


def ratios(view, figure, point, form=None):
    """Of the cells of a point, or of the same in another format: [(cell, its ratio or nothing)]."""
    known = {cell.name: cell for cell in view.cells}
    found = []
    for cell in view.matching(point.cells):
        over = view.partner(cell, point.over)
        if form is not None and cell.format != form:
            cell = known.get(with_format(cell, form).name)
        if cell is not None:
            found.append((cell, over and view.ratio(cell, over, figure.metric)))
    return found


def ratio_text(view, figure, point, form):
    found = ratios(view, figure, point, form)
    known = [ratio for _, ratio in found if ratio]
    if not known:
        return reason_text(view, point, [cell for cell, _ in found])
    text = f"{statistic_of(figure, known):.2f}"
    return text if len(known) == len(found) else f"{text} ({len(known)} of {len(found)})"


def stated_text(figure, point):
    if isinstance(point.value, str):
        return point.value
    return decimals_text(figure, point.value)


def stated_decimals(figure, value):
    if figure.unit in ("x", "%"):
        return 2
    return 0 if value == int(value) and value >= 100 else 1


def decimals_text(figure, value, like=None):
    """With as many decimals as the stated value has."""
    return f"{value:,.{stated_decimals(figure, value if like is None else like)}f}"


# Claims


def statistic_of(figure, values):
    if figure.statistic == "mean":
        return mean(values)
    if figure.statistic == "share_faster":
        return 100 * sum(value > 1 for value in values) / len(values)
    return max(values) if figure.statistic == "most" else min(values)


def reason_text(view, point, cells):
    """Why there is no figure of ours."""
    if not cells:
        return "no cells of ours"
    if point.over and not view.matching(point.over):
        return "needs --all-formats"
    for cell in cells:
        state = view.outcome(cell).state
        if state != "measured":
            return f"{cell.format}, {gpus_text(cell)}: {state}" if cell.gpus > 1 else state
        over = view.partner(cell, point.over) if point.over else None
        if point.over and over is None:
            return "nothing to compare with"
        if over is not None and view.outcome(over).state != "measured":
            return f"{over.format}, {gpus_text(over)}: {view.outcome(over).state}"
    return "no figure"


def gpus_text(cell):
    return "1 GPU" if cell.gpus == 1 else f"{cell.gpus} GPUs"


def memory_claim(view, cells, value):
    """Whether cells fit, or do not: (ours, holds)."""
    states = {view.outcome(cell).state for cell in cells}
    if states <= {"measured"}:
        sizes = [size for size in (view.value(cell, "memory_gib") for cell in cells) if size]
        ours = f"fits, {max(sizes):.1f} GiB" if sizes else "fits"
        return ours, "yes" if value == "fits" else "no"
    if states <= {FIT}:
        return FIT, "no" if value == "fits" else "yes"
    return next(iter(sorted(states - {"measured", FIT}))), ""


def is_baseline(figure, cells):
    """A figure of what the paper compares with, which claims nothing."""
    return (figure.unit != "x" and figure.statistic != "share_faster" and
            all(cell.format == "dense" and not cell.activation for cell in cells))


def holds(figure, ours, stated):
    """Both rounded as they are shown."""
    places = stated_decimals(figure, stated)
    ours, stated = round(ours, places), round(stated, places)
    # A ratio that is said to be at most 1 says that there is no gain.
    is_limit = figure.unit == "x" and figure.statistic == "most" and stated <= 1
    if is_limit or (figure.unit != "x" and figure.metric in LOWER_IS_BETTER):
        return ours <= stated
    return ours >= stated


def ours_of(view, figure, point, cells):
    """Our values of a point's cells; None for each that has none."""
    if point.over:
        return [ratio for _, ratio in ratios(view, figure, point)]
    if figure.unit == "x" and figure.metric not in SPEEDUPS:
        return [None] * len(cells)  # over something that is not measured here
    return [view.value(cell, figure.metric) for cell in cells]


def claim(view, figure, point):
    """(ours, holds) as texts."""
    cells = view.matching(point.cells)
    if not cells:
        return "no cells of ours", ""
    if isinstance(point.value, str):
        return memory_claim(view, cells, point.value)
    values = ours_of(view, figure, point, cells)
    known = [value for value in values if value]
    if not known:
        if not point.over and figure.unit == "x" and figure.metric not in SPEEDUPS:
            return f"no {clean(figure.framework)} here", ""
        return reason_text(view, point, cells), ""
    if figure.statistic == "each" and max(known) > min(known):
        ours = " to ".join(decimals_text(figure, value, point.value)
                           for value in (min(known), max(known)))
    else:
        ours = decimals_text(figure, statistic_of(figure, known), point.value)
    if is_baseline(figure, cells):
        verdict = "baseline"
    else:
        is_cost = figure.unit != "x" and figure.metric in LOWER_IS_BETTER
        worst = max(known) if is_cost else min(known)
        value = worst if figure.statistic == "each" else statistic_of(figure, known)
        verdict = "yes" if holds(figure, value, point.value) else "no"
    if len(known) < len(values):
        ours += f" ({len(known)} of {len(values)} cells)"
    return ours, verdict


def claims_table(view):
    """Lines; none if the paper states nothing."""
    rows = []
    for figure in view.suite.stated:
        for point in figure.points:
            what = clean(figure.what) + (f", {point.at}" if point.at else "")
            unit = "" if isinstance(point.value, str) else f" {clean(figure.unit)}"
            ours, verdict = claim(view, figure, point)
            framework = clean(figure.framework)
            framework = f"over {framework}" if figure.unit == "x" else framework
            rows.append([what, f"{clean(figure.gpu)}, {framework}, {clean(figure.place)}",
                         f"{stated_text(figure, point)}{unit}", ours, verdict])
    if not rows:
        return []
    return table(["claim", "GPU, framework, place", "stated", f"ours, {clean(view.title)}",
                  "holds"], rows, first=0)
