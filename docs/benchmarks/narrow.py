"""Tables of narrow values: products, and whole models."""

from reports import ReportError, model_title, shape_title, unique
from texts import percent, table, with_origin

DENSE = {"i8": "dense_i8", "f8": "dense_i8", "i4": "dense_i4"}  # formats without bits for zeros


def cells_of(runs):
    """Rows of products by values, format, shape, tokens and zeros."""
    cells = {}
    for run in runs:
        values = run.option("--values", "f16")
        for row in run.rows["kernel"]:
            cell = (values, row["format"], (row["out"], row["in"]), row["tokens"],
                    round(row["sparsity"], 3))
            if cell in cells:
                raise ReportError(f"{run.where}: {cell} was measured twice")
            cells[cell] = row
    return cells


def products(reports, gpu):
    """Microseconds, and over the best dense weights of 16 bits and over dense ones of as few."""
    runs = reports.runs(f"{gpu}/kernel_values")
    cells = cells_of(runs)
    zeros = sorted({key[4] for key in cells})
    rows = []
    for values, shape, tokens in unique((key[0], key[2], key[3]) for key in cells):
        rows.append([f"`{values}`", shape_title(shape), str(tokens)])
        for share in zeros:
            row = cells.get((values, "tca_bme", shape, tokens, share))
            if row is None or row["time_us"] is None:
                rows[-1].append("")
                continue
            text = f"{row['time_us']:.1f} / {row['speedup']:.2f}"
            dense = cells.get((values, DENSE.get(values), shape, tokens, share))
            if dense is not None and dense["time_us"]:
                text += f" / {dense['time_us'] / row['time_us']:.2f}"
            rows[-1].append(text)
    return with_origin(table(["values", "out x in", "tokens"] + list(map(percent, zeros)), rows,
                             first=2), runs)


def dense_products(reports, gpu):
    """Microseconds of dense weights of fewer bits, and the share of the read ceiling."""
    runs = reports.runs(f"{gpu}/kernel_values")
    cells = cells_of(runs)

    def text(values, form, shape, tokens):
        found = [row for (of, name, at, count, _), row in cells.items()
                 if (of, name, at, count) == (values, form, shape, tokens) and row["time_us"]]
        if not found:
            return ""
        row = min(found, key=lambda row: row["time_us"])
        share = row["percent_of_ceiling"]
        return f"{row['time_us']:.1f}" + (f" ({share:.0f} %)" if form.startswith("dense") else "")

    columns = [("i8", "dense_i8"), ("i4", "dense_i4"), ("i8", "cublaslt-fp8"),
               ("i4", "int4-ceiling")]
    rows = []
    for shape, tokens in unique((key[2], key[3]) for key in cells):
        best = min(row["baseline_us"] for key, row in cells.items()
                   if key[2:4] == (shape, tokens) and row.get("baseline_us"))
        rows.append([shape_title(shape), str(tokens), f"{best:.1f}"] +
                    [text(values, form, shape, tokens) for values, form in columns])
    heads = ["out x in", "tokens", "best dense, 16 bits"] + [f"`{form}`" for _, form in columns]
    return with_origin(table(heads, rows), runs, show_commands=False)


def models(reports, gpu):
    """Milliseconds of a decode step of whole models, and what they take."""
    runs = reports.runs(f"{gpu}/throughput_values")
    rows = []
    for run in runs:
        zeros = float(run.option("--sparsity", "0"))
        weights = f"`{run.option('--weight-format', 'dense')}`"
        if run.option("--values"):
            weights += f", `{run.option('--values')}`"
        weights += f", {percent(zeros)} zeros" if zeros else ""
        memory = run.option("--gpu-memory")
        for row in run.rows["throughput"]:
            title = model_title(run.model) + (f" on {memory}" if memory else "")
            decode = row["decode_ms"]
            rows.append([title, str(row["batch"]), weights,
                         f"{decode:.2f}" if decode else row["note"].split(":")[0]] +
                        [f"{row[key]:,.1f}" if row[key] is not None else ""
                         for key in ("tokens_per_gpu_second", "weights_gib", "memory_gib")])
    titles = unique(row[0] for row in rows)
    rows.sort(key=lambda row: (titles.index(row[0]), int(row[1])))
    heads = ["model", "requests", "weights", "ms of a decode step", "tokens per GPU-second",
             "GiB of weights", "GiB in all"]
    return with_origin(table(heads, rows, first=2), runs)


TABLES = {
    "kernel-values-h200": lambda reports: products(reports, "h200"),
    "kernel-values-dense-h200": lambda reports: dense_products(reports, "h200"),
    "throughput-values-h200": lambda reports: models(reports, "h200"),
}
