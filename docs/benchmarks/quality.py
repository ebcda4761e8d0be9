"""What pruning and narrow values do to small models: perplexity and KL divergence, of the reports
that measure_quality.py wrote."""

from reports import ReportError, unique
from texts import commit, paragraph, percent, table

MODELS = {"opt": ("fable-opt-8m", "OPT"), "llama": ("fable-llama-relu-8m", "Llama with ReLU")}


def cells_of(reports, model):
    """The rows of a model by (zeros, values, what it is compared with)."""
    cells = {}
    for run in reports.runs(f"quality/{MODELS[model][0]}"):
        for row in run.rows["quality"]:
            key = row["zeros"], row["values"], row["against"]
            if key in cells:
                raise ReportError(f"{run.where}: {key} was measured twice")
            cells[key] = row
    for (zeros, values, _), row in cells.items():
        if perplexity(cells, zeros, values) != row["perplexity_b"]:
            raise ReportError(f"{MODELS[model][0]} with {percent(zeros)} zeros in {values} has "
                              "several perplexities")
    return cells


def dense_perplexity(cells):
    found = {row["perplexity_a"] for (_, _, against), row in cells.items() if against == "dense"}
    return min(found)


def perplexity(cells, zeros, values):
    """Of the candidate, whichever it was compared with; of f16 also where it was the reference."""
    for against in "dense", "zeros":
        if (zeros, values, against) in cells:
            return cells[zeros, values, against]["perplexity_b"]
    for (share, _, against), row in cells.items():
        if values == "f16" and share == zeros and against == "zeros":
            return row["perplexity_a"]
    raise ReportError(f"there is no perplexity with {percent(zeros)} zeros in {values}")


def part(cells, zeros, values):
    """Perplexity beyond that of the same zeros in f16, in percent of what pruning added."""
    pruned = perplexity(cells, zeros, "f16")
    added = (perplexity(cells, zeros, values) - pruned) / (pruned - dense_perplexity(cells))
    return round(100 * added, 1) + 0.0  # no negative zero


def kl_text(cells, key):
    return f"{cells[key]['kl_mean']:.5f}" if key in cells else ""


def quality(reports, model):
    cells = cells_of(reports, model)
    dense = dense_perplexity(cells)
    rows = [["0 %", "f16, dense", "16", f"{dense:.3f}", "", "", "", ""]]
    bits = {}
    for (zeros, values, against), row in cells.items():
        bits[zeros, values] = row["bits_per_weight"]
        if against == "zeros":
            bits[zeros, "f16"] = row["reference_bits_per_weight"]
    for zeros, values in sorted(bits, key=lambda key: (key[0], ["f16", "i8", "i4"].index(key[1]))):
        found = perplexity(cells, zeros, values)
        share = ""
        if zeros > 0 and values != "f16":
            share = f"{part(cells, zeros, values):.1f} %"
        name = values if zeros > 0 else f"{values}, nothing pruned"
        rows.append([percent(zeros), name, f"{bits[zeros, values]:.2f}", f"{found:.3f}",
                     f"{100 * (found / dense - 1):.1f} %", share,
                     kl_text(cells, (zeros, values, "zeros")),
                     kl_text(cells, (zeros, values, "dense"))])
    lines = table(["zeros", "values", "bits a weight", "perplexity", "over dense",
                   "rounding's part", "KL from the same zeros in f16", "KL from dense"], rows)
    commits = unique(commit(run) for run in reports.runs(f"quality/{MODELS[model][0]}"))
    row = next(iter(cells.values()))
    return [*lines, "", *paragraph(
        f"`{MODELS[model][0]}`, {row['tokens']:,} tokens of Peter Pan in windows of "
        f"{row['context']}, on the CPU, commit {' and '.join(commits)}. What is empty does not "
        "apply.")]


def parts_of(reports, values):
    """The least and the most of rounding's part of what pruning added, in percent."""
    parts = []
    for model in MODELS:
        cells = cells_of(reports, model)
        parts += [part(cells, zeros, values)
                  for zeros in unique(zeros for zeros, of, _ in cells if zeros > 0)
                  if any(key[:2] == (zeros, values) for key in cells)]
    return f"{min(parts):.1f} to {max(parts):.1f} %"


def dense_i4(reports, column, form):
    """Of i4 without pruning, of both models."""
    texts = []
    for model, (_, title) in MODELS.items():
        cells = cells_of(reports, model)
        texts.append(f"{form.format(column(cells))} ({title})")
    return " and ".join(texts)


def over_dense(cells, zeros, values):
    return 100 * (perplexity(cells, zeros, values) / dense_perplexity(cells) - 1)


TABLES = {f"quality-{model}": lambda reports, model=model: quality(reports, model)
          for model in MODELS}
VALUES = {
    "quality-i8-part": lambda reports: parts_of(reports, "i8"),
    "quality-i4-part": lambda reports: parts_of(reports, "i4"),
    "quality-dense-i4": lambda reports: dense_i4(
        reports, lambda cells: over_dense(cells, 0.0, "i4"), "{:.1f} %"),
    "quality-half-i4": lambda reports: dense_i4(
        reports, lambda cells: over_dense(cells, 0.5, "i4"), "{:.1f} %"),
    "quality-half-f16": lambda reports: dense_i4(
        reports, lambda cells: over_dense(cells, 0.5, "f16"), "{:.1f} %"),
}
