"""Tables of the weight format general_sparse and of sparse matrices."""

import math

from reports import ReportError, shape_title, unique
from texts import percent, table, with_origin


def kernel_general_sparse(reports, gpu):
    """Speed-ups over dense of general_sparse and, in the same run, of tca_bme."""
    name = f"{gpu}/kernel_general_sparse"
    rows_of, bitmaps = (reports.kernels(name, form) for form in ("general_sparse", "tca_bme"))
    zeros = sorted({share for _, _, share in rows_of})
    rows = []
    for shape, tokens in unique((shape, tokens) for shape, tokens, _ in rows_of):
        rows.append([shape_title(shape), str(tokens)])
        for share in zeros:
            here, there = (of[shape, tokens, share]["speedup"] for of in (rows_of, bitmaps))
            text = f"{here:.2f}"
            rows[-1].append((f"**{text}**" if here > max(there, 1) else text) + f" / {there:.2f}")
    return with_origin(table(["out x in", "tokens"] + list(map(percent, zeros)), rows),
                       reports.runs(name))


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def matrices(reports, gpu):
    """Speed-ups of sparse matrices over the best of cuSPARSE: geometric means and the least."""
    runs = reports.runs(f"{gpu}/matrices")
    cells = [row for run in runs for row in run.rows.get("matrices", [])
             if row["contender"] == "general_sparse"]
    if not cells or any(row["verified"] != "yes" or not row["speedup"] for row in cells):
        raise ReportError(f"{runs[0].where}: a product is not verified, or there is none")
    columns = sorted({row["n"] for row in cells})
    rows = []
    for name in unique(row["class"] for row in cells) + ["all"]:
        of_class = [row for row in cells if name in (row["class"], "all")]
        rows.append([name, str(len({row["matrix"] for row in of_class}))])
        for n in columns:
            speedups = [row["speedup"] for row in of_class if row["n"] == n]
            rates = [row["gflops"] / 1000 for row in of_class if row["n"] == n]
            rows[-1].append(f"{geometric_mean(speedups):.2f} ({min(speedups):.2f})")
            rows[-1].append(f"{geometric_mean(rates):.2f}")
    shares = ["at least 1, 1.2 and 2", str(len({row["matrix"] for row in cells}))]
    for n in columns:
        speedups = [row["speedup"] for row in cells if row["n"] == n]
        shares += [" / ".join(percent(sum(value >= least for value in speedups) / len(speedups))
                              for least in (1, 1.2, 2)), ""]
    heads = [text for n in columns for text in (f"N = {n}", "TFLOP/s")]
    return with_origin(table(["class", "matrices"] + heads, rows + [shares]), runs)


TABLES = {
    "kernel-general-sparse-h200": lambda reports: kernel_general_sparse(reports, "h200"),
    "matrices-h200": lambda reports: matrices(reports, "h200"),
}
