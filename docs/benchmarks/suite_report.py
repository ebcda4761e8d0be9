#!/usr/bin/env python3
"""Reports what `sparsellm-bench suite --results DIR` has measured, beside what the papers state.

    docs/benchmarks/suite_report.py DIR [--suites FILE...] [--output DIR] [--commit COMMIT]
                                    [--list FILE]

Writes report.md, and with matplotlib images/*.svg, to DIR or to that of --output. Each kind of GPU
has tables of its own, of the newest commit that has results of the suite, or of the one that
--commit names.
"""

import argparse
import pathlib
import sys

import suite_pictures
from reports import ReportError
from suite_files import read_suite
from suite_results import read_list, read_results, views
from suites import SUITES, clean, section
from texts import paragraph


def read_suites(paths):
    suites = {}
    for path in paths:
        suite = read_suite(path)
        if suite.name in suites:
            raise ReportError(f"two suites are called {suite.name}")
        suites[suite.name] = suite
    return suites


def file_name(text):
    return "".join(char if char.isalnum() and char.isascii() else "-" for char in text).strip("-")


def draw(pictures, folder):
    """Whether there are pictures now."""
    try:
        suite_pictures.update(pictures, folder)
    except ImportError:
        print("suite_report.py: no pictures, for want of matplotlib", file=sys.stderr)
        return False
    return True


def page(suites, of_suite, output):
    """The text of the report."""
    lines = ["# Figures and tables of papers", ""]
    drawn = True
    for suite in suites:
        if not of_suite[suite.name]:
            continue
        lines += [f"## `{suite.name}`", "", *paragraph(
            f"{clean(suite.title, 400)}. {clean(suite.source, 400)}."), ""]
        for view in of_suite[suite.name]:
            lines += [f"### {clean(view.title)}", "", *section(view), ""]
            kind = file_name(view.title)
            pictures = [(f"{kind}-{name}", *rest)
                        for name, *rest in suite_pictures.pictures_of(view)]
            drawn = drawn and draw(pictures, output / "images")
            if drawn:
                for name, *_ in pictures:
                    lines += [f"![{name}](images/{name}.svg)", ""]
    missing = [f"`{suite.name}`" for suite in suites if not of_suite[suite.name]]
    if missing:
        lines += paragraph(f"Without results: {', '.join(missing)}.") + [""]
    return "\n".join(lines[:-1]) + "\n"


def report(arguments):
    chosen = read_suites(arguments.suites or sorted(SUITES.glob("*.json")))
    known = chosen.keys() | {path.stem for path in SUITES.glob("*.json")}
    results = read_results(arguments.folder)
    for result in results:
        if result.suite not in known:
            raise ReportError(f"{result.where}: no suite is called {result.suite[:80]!r}")
    reasons = read_list(arguments.list) if arguments.list else {}
    of_suite = {name: views(suite, results, reasons, arguments.commit)
                for name, suite in chosen.items()}
    if not any(of_suite.values()):
        raise ReportError(f"{arguments.folder}: no results of these suites"
                          + (f" and commit {arguments.commit}" if arguments.commit else ""))
    output = arguments.output or arguments.folder
    output.mkdir(parents=True, exist_ok=True)
    path = output / "report.md"
    path.write_text(page(list(chosen.values()), of_suite, output), encoding="utf-8")
    print(f"{path} written")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, metavar="DIR", help="that has results.jsonl")
    parser.add_argument("--suites", type=pathlib.Path, nargs="+", metavar="FILE",
                        help="those to report (default: all of configs/benchmarks)")
    parser.add_argument("--output", type=pathlib.Path, metavar="DIR",
                        help="where report.md goes (default: beside the results)")
    parser.add_argument("--commit", help="instead of the newest, or the beginning of its name")
    parser.add_argument("--list", type=pathlib.Path, metavar="FILE",
                        help="what `sparsellm-bench suite --list` said on the GPU of the last "
                             "result: why cells are not measured")
    arguments = parser.parse_args()
    try:
        report(arguments)
    except ReportError as error:
        sys.exit(f"suite_report.py: {' '.join(str(error).split())}")
    except OSError as error:
        sys.exit(f"suite_report.py: cannot write {error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
