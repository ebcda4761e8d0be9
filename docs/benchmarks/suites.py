"""Suites, figures and tables of papers, beside what the papers state of them.

A table is of one kind of GPU. docs/bench.md describes suites and their results.
"""

import pathlib
import re
import sys
from functools import partial
from types import SimpleNamespace

import suite_pictures
from reports import ReportError, unique
from suite_claims import claims_table
from suite_files import read_suite
from suite_results import read_list, read_results, views
from suite_tables import breakdown_table, cells_table
from suite_texts import clean
from texts import commit, device, paragraph

SUITES = pathlib.Path(__file__).resolve().parents[2] / "configs/benchmarks"


def difference_line(view):
    """What stands under every table."""
    suite = view.suite
    paper = clean(suite.source.split(",")[0].split(" (")[0])
    what = "operands" if suite.is_kernel else "prompts and weights"
    return (f"Ours is measured on {clean(view.title)} with random {what}, and dense is our own, in "
            f"the same run; {paper}'s prompts, GPU ({clean(suite.gpu)}) and baseline "
            f"({clean(suite.framework)}) are others.")


def origin_line(view):
    """GPU, driver, commit and days."""
    texts = []
    for result in view.results:
        known = {key: value for key, value in result.environment.items()
                 if isinstance(value, str) and key != "gpu"}
        if view.gpu != "cpu":
            known["gpu"] = view.gpu
        elif "cpu" in known:
            known["cpu_cores"] = result.environment.get("cpu_cores", "?")
        texts.append(device(SimpleNamespace(environment=known))
                     if len(known.keys() & {"gpu", "cpu"}) else "CPU")
    days = unique(sorted(result.date[:10] for result in view.results if result.date))
    days = days if len(days) < 3 else [f"{days[0]} to {days[-1]}"]
    commits = [(commit(SimpleNamespace(environment={"commit": name})), count)
               for name, count in view.commits]
    names = [f"commit {commits[0][0]}", *(f"{count} of {name}" for name, count in commits[1:])]
    memory = [f"as if of {view.memory}"] if view.memory else []
    return clean(", ".join(unique(texts) + memory + names + days), 400) + "."


def notes(view):
    """What else must be said, each a line."""
    lines = []
    if view.older:
        texts = [f"{clean(name[:12])} ({count})" for name, count in view.older]
        lines.append(f"Left out: results of other commits, {', '.join(texts)}.")
    if view.unknown:
        lines.append(f"Left out: results of cells that the suite does not have "
                     f"({len(view.unknown)}).")
    if any(figure.statistic == "mean" for figure in view.suite.stated):
        lines.append("Means are geometric, over those cells that have a figure.")
    for cell in view.cells:
        outcome = view.outcome(cell)
        if outcome.state in ("failed", "not verified"):
            lines.append(f"{outcome.state}: {clean(cell.name)}: {clean(outcome.detail)}")
    return lines


def counts_line(view):
    states = [view.outcome(cell).state for cell in view.cells]
    return ", ".join(f"{states.count(state)} {state}" for state in unique(sorted(
        states, key=lambda state: (state != "measured", state)))) + "."


def section(view, every_shape=True):
    """Lines of a suite on one kind of GPU: its tables and what is to be said about them."""
    cells = breakdown_table(view) if view.suite.is_breakdown else cells_table(view, every_shape)
    lines = [*cells, ""]
    lines += paragraph(difference_line(view)) + [""]
    lines += paragraph(f"{origin_line(view)} Cells: {counts_line(view)}") + [""]
    said = notes(view)
    for line in said[:30]:
        lines += list_item(line)
    if len(said) > 30:
        lines.append(f"- and {len(said) - 30} more")
    lines += [""] if said else []
    claims = claims_table(view)
    if claims:
        lines += [*claims, ""] + paragraph(difference_line(view)) + [""]
    return lines[:-1]


def list_item(line):
    first, *rest = paragraph(line)
    return [f"- {first}"] + [f"  {more}" for more in rest]


# Of the pages: docs/benchmarks/GPU/suites/results.jsonl, and beside it list.txt, what `suite --list`
# says there of cells that are not measured


GPUS = ["h200", "h100"]


def page_view(reports, name, gpu):
    suite = read_suite(SUITES / f"{name}.json")
    folder = reports.path(f"{gpu}/suites/results").parent
    listed = folder / "list.txt"
    found = views(suite, read_results(folder), read_list(listed) if listed.exists() else None)
    if len(found) != 1:
        raise ReportError(f"{gpu}/suites: {len(found)} kinds of GPUs have results of {name}")
    return found[0]


def page_table(reports, name, gpu):
    """Of products the means over shapes; each shape has a row in shapes_table()."""
    return section(page_view(reports, name, gpu), every_shape=False)


def shapes_table(reports, name, gpu):
    view = page_view(reports, name, gpu)
    return [*cells_table(view), "", *paragraph(origin_line(view))]


def update_pictures(reports, texts, folder, check):
    """Draws those that are not up to date and that a page shows: suite-GPU-NAME.svg."""
    stale = []
    shown = set(re.findall(r"images/(suite-[A-Za-z0-9_.-]+)\.svg", "\n".join(texts)))
    for gpu in GPUS if shown else []:
        of_gpu = {name for name in shown if name.startswith(f"suite-{gpu}-")}
        for path in sorted(SUITES.glob("*.json")) if of_gpu else []:
            # Other suites' names may begin with this one's; their pictures are not among its own.
            if any(name.startswith(f"suite-{gpu}-{path.stem}") for name in of_gpu):
                found = [(f"suite-{gpu}-{name}", *rest) for name, *rest in
                         suite_pictures.pictures_of(page_view(reports, path.stem, gpu))]
                found = [picture for picture in found if picture[0] in of_gpu]
                try:
                    stale += suite_pictures.update(found, folder, check)
                except ImportError:
                    print("tables.py: pictures are out of date, but there is no matplotlib",
                          file=sys.stderr)
    return stale


TABLES = {f"{kind}-{path.stem}-{gpu}": partial(of_suite, name=path.stem, gpu=gpu)
          for path in sorted(SUITES.glob("*.json")) for gpu in GPUS
          for kind, of_suite in [("suite", page_table), ("suite-shapes", shapes_table)]}
