"""Tables of the weight format general_sparse and of sparse matrices."""

from reports import (ReportError, decode_speedup, mean, model_title, shape_title, throughput_file,
                     unique)
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


def blocks(reports, gpu):
    """Speed-ups over dense of both formats by pattern of the zeros; rates over the nonzeros."""
    runs = reports.runs(f"{gpu}/kernel_blocks")
    cells = {}
    for run in runs:
        for row in run.rows["kernel"]:
            cells[row["format"], row["out"], row["in"], row["pattern"], row["sparsity"],
                  row["tokens"]] = row
    columns = sorted({key[4:] for key in cells})
    rows = []
    for out, inputs, pattern in unique(key[1:4] for key in cells if key[0] == "general_sparse"):
        rows.append([shape_title((out, inputs)), f"`{pattern}`"])
        for zeros, tokens in columns:
            here, there = (cells[form, out, inputs, pattern, zeros, tokens]
                           for form in ("general_sparse", "tca_bme"))
            rate = 2 * out * inputs * (1 - zeros) * tokens / here["time_us"] * 1e-6
            rows[-1].append(f"{here['speedup']:.2f} / {there['speedup']:.2f} ({rate:.1f})")
    heads = [f"{percent(zeros)}, N = {tokens}" for zeros, tokens in columns]
    return with_origin(table(["out x in", "pattern"] + heads, rows), runs)


def matrices(reports, gpu):
    """Speed-ups of sparse matrices over the best of cuSPARSE: geometric means and the least."""
    runs = reports.runs(f"{gpu}/matrices_searched")
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
            rows[-1].append(f"{mean(speedups):.2f} ({min(speedups):.2f})")
            rows[-1].append(f"{mean(rates):.2f}")
    shares = ["at least 1, 1.2 and 2", str(len({row["matrix"] for row in cells}))]
    for n in columns:
        speedups = [row["speedup"] for row in cells if row["n"] == n]
        shares += [" / ".join(percent(sum(value >= least for value in speedups) / len(speedups))
                              for least in (1, 1.2, 2)), ""]
    heads = [text for n in columns for text in (f"N = {n}", "TFLOP/s")]
    return with_origin(table(["class", "matrices"] + heads, rows + [shares]), runs)


def stages_of(runs):
    """The speed-ups over cuSPARSE of each kind of kernels, by (class, matrix, N)."""
    stages = {}
    for run in runs:
        for row in run.rows["matrices"]:
            if not row["contender"].startswith("general_sparse"):
                continue
            if row["verified"] != "yes" or not row["speedup"]:
                raise ReportError(f"{run.where}: a product of {row['matrix']} is not verified")
            cell = row["class"], row["matrix"], row["n"]
            stages.setdefault(row["contender"], {})[cell] = row["speedup"]
    return stages


def searched(reports, gpu):
    """Sparse matrices by the rule's kernels, and by the fastest that a search measured."""
    runs = reports.runs(f"{gpu}/matrices_searched")
    stages = stages_of(runs)
    rule, found = stages["general_sparse"], stages["general_sparse searched"]
    columns = sorted({n for _, _, n in rule})
    rows = []
    for name in unique(name for name, _, _ in rule) + ["all"]:
        rows.append([name])
        for n in columns:
            cells = [cell for cell in rule if cell[2] == n and name in (cell[0], "all")]
            rows[-1] += [f"{mean(of[cell] for cell in cells):.2f} "
                         f"({min(of[cell] for cell in cells):.2f})" for of in (rule, found)]
            rows[-1].append(f"{mean(found[cell] / rule[cell] for cell in cells):.2f}")
    heads = [text for n in columns for text in (f"N = {n}: rule", "searched", "over rule")]
    return with_origin(table(["class"] + heads, rows), runs)


def stages(reports, gpu):
    """What parts of the search space reach, over cuSPARSE, and over the part before."""
    runs = reports.runs(f"{gpu}/matrices_ablation")
    titles = {"general_sparse block per row": "a block for each row, one nonzero after the other",
              "general_sparse + division": "other divisions and loads",
              "general_sparse + reductions": "sums of several rows",
              "general_sparse searched": "these, and the program's kernels"}
    cells = stages_of(runs)
    columns = sorted({n for _, _, n in cells["general_sparse searched"]})
    rows = []
    before = None
    for stage, title in titles.items():
        here = cells[stage]
        rows.append([title])
        for n in columns:
            of_n = [cell for cell in here if cell[2] == n]
            rows[-1].append(f"{mean(here[cell] for cell in of_n):.2f}")
            rows[-1].append("" if before is None else
                            f"{mean(here[cell] / before[cell] for cell in of_n):.2f}")
        before = here
    heads = [text for n in columns for text in (f"N = {n}", "over the line above")]
    return with_origin(table(["kernels"] + heads, rows), runs)


MODELS = ["opt-30b", "opt-66b", "llama-2-7b", "llama-2-13b", "llama-3.1-8b"]


def model_runs(reports, gpu, kind):
    return [(model, run) for model in MODELS
            for run in reports.runs(throughput_file(gpu, model, kind))]


def models(reports, gpu):
    """Decode steps by format and number of requests, over dense, and the memory that they take."""
    runs = model_runs(reports, gpu, "generalsparse")
    cells = {}
    for model, run in runs:
        for row in run.rows["throughput"]:
            cells.setdefault((model, row["batch"]), {})[run.option("--weight-format")] = row
    formats = unique(form for of_formats in cells.values() for form in of_formats)
    rows = []
    for (model, requests), of_formats in cells.items():
        rows.append([model_title(model), str(requests)])
        dense = of_formats["dense"]
        for form in formats:
            row = of_formats[form]
            if row["decode_ms"] is None:
                rows[-1].append("does not fit")
                continue
            text = f"{row['decode_ms']:.2f}"
            if form != "dense" and dense["decode_ms"] is not None:
                text += f" ({decode_speedup(dense, row):.2f})"
            rows[-1].append(f"{text}; {row['memory_gib']:.0f} GiB")
    return with_origin(table(["model", "requests"] + [f"`{form}`" for form in formats], rows),
                       [run for _, run in runs])


def breakdown(reports, gpu):
    """Where the time of a decode step of OPT-30B goes, by format."""
    runs = reports.runs(throughput_file(gpu, "opt-30b", "generalsparse_breakdown"))
    cells = {}
    for run in runs:
        for row in run.rows["breakdown"]:
            cells[run.option("--weight-format"), row["batch"], row["group"]] = row["ms_per_step"]
    formats = unique(form for form, _, _ in cells)
    rows = []
    for requests in unique(batch for _, batch, _ in cells):
        for group in unique(group for _, batch, group in cells if batch == requests):
            times = [cells.get((form, requests, group)) for form in formats]
            rows.append([str(requests), group] +
                        ["" if time is None else f"{time:.2f}" for time in times])
    return with_origin(table(["requests", "ms of a step"] + [f"`{form}`" for form in formats],
                             rows), runs)


TABLES = {
    "kernel-general-sparse-h200": lambda reports: kernel_general_sparse(reports, "h200"),
    "matrices-h200": lambda reports: matrices(reports, "h200"),
    "kernel-blocks-h200": lambda reports: blocks(reports, "h200"),
    "matrices-searched-h200": lambda reports: searched(reports, "h200"),
    "matrices-ablation-h200": lambda reports: stages(reports, "h200"),
    "throughput-generalsparse-h200": lambda reports: models(reports, "h200"),
    "breakdown-generalsparse-h200": lambda reports: breakdown(reports, "h200"),
}
