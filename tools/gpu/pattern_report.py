#!/usr/bin/env python3
"""What uneven zeros cost: pattern_report.py CSV ...

Reads reports of `sparsellm-bench kernel --format csv` ("-" is stdin) and sets the speed-up of each
pattern over dense against that of uniform zeros in the same cell (format, shape, tokens, sparsity):
below 1 the pattern is slower. Prints the geometric mean and the worst cells for each format,
pattern and sparsity, with ordinary and with overlapped launches. Cells that were not verified, or
not measured by turns with dense, are counted as failed, also where all of them are.
"""

import csv
import math
import sys

LAUNCHES = {"ordinary": "speedup", "overlapped": "overlapped_speedup"}
UNIFORM = "uniform"
WORST = 3


def kernel_rows(lines):
    """The rows of all tables called "kernel", as dictionaries."""
    tables = []
    for line in lines:
        if line.startswith("# table: "):
            tables.append((line[len("# table: "):].strip(), []))
        elif tables and not line.startswith("#") and line.strip():
            tables[-1][1].append(line)
    for name, body in tables:
        if name == "kernel":
            yield from csv.DictReader(body)


def read(paths):
    """Speed-ups by (format, sparsity, launches), then pattern, then cell; None: it failed."""
    figures = {}
    for path in paths:
        with sys.stdin if path == "-" else open(path, encoding="utf-8", newline="") as file:
            rows = list(kernel_rows(file))
        for row in rows:
            for launches, column in LAUNCHES.items():
                verdict = row[column.replace("speedup", "verdict")]
                if row[column] and not verdict:
                    continue  # what is dense takes no turns
                cell = (int(row["out"]), int(row["in"]), int(row["tokens"]))
                group = figures.setdefault((row["format"], float(row["sparsity"]), launches), {})
                group.setdefault(row["pattern"], {})[cell] = float(row[column]) if verdict else None
    # A format may have but one kind of launches.
    compared = lambda group: any(s is not None for cells in group.values() for s in cells.values())
    overlapping = {name for (name, _, launches), group in figures.items()
                   if launches == "overlapped" and compared(group)}
    return {key: group for key, group in figures.items()
            if key[2] == "ordinary" or key[0] in overlapping}


def mean(values):
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def report(figures):
    """Lines, or none if there is nothing to compare."""
    lines = []
    for (name, sparsity, launches), patterns in sorted(figures.items()):
        uniform = patterns.get(UNIFORM, {})
        for pattern, cells in patterns.items():
            if pattern == UNIFORM:
                continue
            common = {cell: (speedup, uniform[cell]) for cell, speedup in cells.items()
                      if speedup is not None and uniform.get(cell) is not None}
            failed = len(cells.keys() | uniform.keys()) - len(common)
            head = f"{name}, {pattern}, sparsity {sparsity:g}, {launches} launches"
            if not common:
                lines.append(f"{head}: no cell was measured with uniform zeros too "
                             f"({failed} failed)")
                continue
            ratios = {cell: own / other for cell, (own, other) in common.items()}
            lines.append(f"{head}: {mean(ratios.values()):.3f} of uniform ({len(common)} cells, "
                         f"{failed} failed); over dense {mean([own for own, _ in common.values()]):.2f}, "
                         f"uniform {mean([other for _, other in common.values()]):.2f}")
            for cell in sorted(ratios, key=ratios.get)[:WORST]:
                own, other = common[cell]
                lines.append(f"    {ratios[cell]:.3f}  {cell[0]}x{cell[1]}, {cell[2]} tokens: "
                             f"{own:.2f} over dense, uniform {other:.2f}")
    return lines


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: pattern_report.py CSV ...")
    try:
        lines = report(read(sys.argv[1:]))
    except (OSError, KeyError, ValueError) as error:
        sys.exit(f"pattern_report.py: no report of sparsellm-bench kernel: {error!r}")
    if not lines:
        sys.exit("pattern_report.py: no patterns beside uniform that were compared with dense")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
