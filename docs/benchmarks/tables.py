#!/usr/bin/env python3
"""Makes the tables and pictures of the pages from the reports in docs/benchmarks.

    docs/benchmarks/tables.py [--check] [--root DIR]

What stands between `<!-- table: NAME -->` and `<!-- /table -->`, and within a line between
`<!-- value: NAME -->` and `<!-- /value -->`, is replaced in README.md and in the pages of docs.
Pictures go to docs/images if there is matplotlib. A report that is missing is an error.

--check changes nothing; the exit status is 1 if a page or a picture would change.
"""

import argparse
import pathlib
import re
import sys

import activation
import general
import narrow
import pictures
import quality
import ranks
import relatives
import server
import suites
from reports import (DENSE_MODELS, SPARSE_MODELS, ZEROS, ReportError, Reports, decode_speedup, mean,
                     mean_over_shapes, model_title, shape_title, throughput_file, unique)
from texts import percent, table, with_origin

TABLE = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- /table -->)", re.DOTALL)
VALUE = re.compile(r"(<!-- value: (\S+) -->)(.*?)(<!-- /value -->)")

README_MODELS = ["opt-30b", "llama-2-7b"]
README_REQUESTS = [1, 8, 32]
README_TOKENS = [1, 8, 32]


# Tables of single products


SPEEDUPS = ("speedup", "overlapped_speedup", "library_speedup", "overlapped_library_speedup")


def four_speedups(speedups):
    return "{:.2f} / {:.2f} ({:.2f} / {:.2f})".format(*speedups)


def kernel_means(reports, gpu):
    cells = reports.bitmaps(f"{gpu}/kernel_means")
    means = [mean_over_shapes(cells, column) for column in SPEEDUPS]
    zeros = sorted({zeros for _, zeros in means[0]})
    rows = [[str(tokens)] + [four_speedups([by[tokens, share] for by in means]) for share in zeros]
            for tokens in sorted({tokens for tokens, _ in means[0]})]
    return with_origin(table(["tokens"] + list(map(percent, zeros)), rows),
                       reports.runs(f"{gpu}/kernel_means"))


def kernel_shapes(reports, gpu):
    cells = reports.bitmaps(f"{gpu}/kernel_means")
    zeros = sorted({share for _, _, share in cells})
    rows = []
    for shape, tokens in unique((shape, tokens) for shape, tokens, _ in cells):
        rows.append([shape_title(shape), str(tokens)])
        for share in zeros:
            row = cells[shape, tokens, share]
            rows[-1].append(four_speedups([row[column] for column in SPEEDUPS]))
    return with_origin(table(["out x in", "tokens"] + list(map(percent, zeros)), rows),
                       reports.runs(f"{gpu}/kernel_means"))


def kernel_by_tokens(reports, name):
    cells = {(shape, tokens): row for (shape, tokens, zeros), row in reports.bitmaps(name).items()
             if zeros == ZEROS}
    tokens = sorted({count for _, count in cells})
    rows = [[shape_title(shape)] + ["{speedup:.2f} / {overlapped_speedup:.2f}".format(
        **cells[shape, count]) for count in tokens] for shape in unique(key[0] for key in cells)]
    return with_origin(table([f"out x in, {percent(ZEROS)}"] + list(map(str, tokens)), rows),
                       reports.runs(name))


def kernel_dense(reports, gpu):
    name = f"{gpu}/kernel_dense"
    forms = [reports.kernels(name, form) for form in
             ("dense", "cublas", "cublaslt", "cublas-reduced")]
    rows = []
    for cell, here in forms[0].items():
        shape, tokens, _ = cell
        rows.append([shape_title(shape), str(tokens),
                     "{time_us:.1f} ({library_speedup:.2f})".format(**here),
                     "{overlapped_us:.1f} ({overlapped_library_speedup:.2f})".format(**here)])
        rows[-1] += [f"{form[cell]['time_us']:.1f}" for form in forms[1:]]
    return with_origin(table(["out x in", "tokens", "here", "here, overlapped", "cuBLAS",
                              "cuBLASLt", "reduced"], rows), reports.runs(name))


def kernel_patterns(reports, name):
    """Speed-ups over dense by pattern, and their ratios to those of uniform zeros."""
    runs = reports.runs(name)
    cells = {}
    for run in runs:
        for row in run.rows["kernel"]:
            if row["format"] == "tca_bme":
                shape_and_tokens = (row["out"], row["in"], row["tokens"])
                group = cells.setdefault((row["pattern"], round(row["sparsity"], 3)), {})
                group[shape_and_tokens] = row
    zeros = sorted({share for _, share in cells})
    rows = []
    for pattern in unique(pattern for pattern, _ in cells):
        rows.append([f"`{pattern}`"])
        for share in zeros:
            group = cells.get((pattern, share))
            if group is None:
                rows[-1].append("")
                continue
            columns = ("speedup", "overlapped_speedup")
            text = " / ".join(f"{mean(row[column] for row in group.values()):.2f}"
                              for column in columns)
            if pattern != "uniform":
                uniform = cells["uniform", share]
                ratios = [[row[column] / uniform[cell][column] for cell, row in group.items()]
                          for column in columns]
                text += " ({}; {})".format(" / ".join(f"{mean(of):.3f}" for of in ratios),
                                           " / ".join(f"{min(of):.3f}" for of in ratios))
            rows[-1].append(text)
    return with_origin(table(["pattern"] + list(map(percent, zeros)), rows), runs)


# Of elements, from the largest matrices on.
SIZES = [("100 million and more", 100e6), ("40 to 100 million", 40e6), ("fewer than 40 million", 0)]


def kernel_formats(reports, gpu):
    """Geometric means of both formats' speed-ups over dense; the faster one, if it is faster."""
    name = f"{gpu}/kernel_formats"
    forms = [reports.kernels(name, form) for form in ("tca_bme", "tiled_csl")]
    zeros = sorted({share for _, _, share in forms[0]})
    cells = {}
    for (shape, tokens, share), bitmaps in forms[0].items():
        size = next(size for size in SIZES if shape[0] * shape[1] >= size[1])
        cells.setdefault((SIZES.index(size), tokens, share), []).append(
            (bitmaps["speedup"], forms[1][shape, tokens, share]["speedup"]))
    rows = []
    for size, tokens in sorted({(size, tokens) for size, tokens, _ in cells}):
        rows.append([SIZES[size][0], f"{tokens:,}"])
        for share in zeros:
            means = [mean(of) for of in zip(*cells.get((size, tokens, share), []))]
            best = max(means, default=0)
            rows[-1].append(" / ".join(f"**{of:.2f}**" if of == best and of > 1 else f"{of:.2f}"
                                       for of in means))
    return with_origin(table(["elements", "tokens"] + list(map(percent, zeros)), rows),
                       reports.runs(name))


def throughput_formats(reports, gpu):
    """OPT-30B: milliseconds of a decode step, and over dense, by format and number of requests."""
    runs = reports.runs(throughput_file(gpu, "opt-30b", "formats"))
    cells = {run.option("--weight-format"): {row["batch"]: row for row in run.rows["throughput"]}
             for run in runs}
    rows = []
    for requests, dense in cells["dense"].items():
        rows.append([str(requests)])
        for of_format in cells.values():
            rows[-1].append("{decode_ms:.2f} ({tokens_per_gpu_second:,.0f})".format(
                **of_format[requests]))
            if of_format[requests] is not dense:
                speedup = decode_speedup(dense, of_format[requests])
                rows[-1][-1] = rows[-1][-1].replace(")", f"; {speedup:.2f})")
    return with_origin(table(["requests"] + [f"`{name}`" for name in cells], rows), runs)


def attention(reports, gpu):
    """A decode step by requests and context."""
    runs = reports.runs(f"{gpu}/attention")
    cells = {(row["requests"], row["context"]): row
             for run in runs for row in run.rows["attention"] if row["phase"] == "decode"}
    contexts = sorted({context for _, context in cells})
    rows = [[str(requests)] + ["{time_us:,.1f} ({percent_of_bandwidth:.0f} %)".format(
        **cells[requests, context]) for context in contexts]
        for requests in sorted({requests for requests, _ in cells})]
    return with_origin(table(["requests, context"] + [f"{context:,}" for context in contexts],
                             rows), runs)


def weight_sizes(reports, gpu):
    """Bytes of a weight as a share of the dense ones, mean of the shapes."""
    runs = reports.runs(f"{gpu}/kernel_means")
    shares = {}
    for (shape, _, zeros), row in reports.bitmaps(f"{gpu}/kernel_means").items():
        shares.setdefault(zeros, {})[shape] = row["percent_of_dense"]  # with any number of tokens
    zeros = sorted(shares)
    row = [f"{mean(shares[share].values()):.1f} %" for share in zeros]
    return with_origin(table(["zeros"] + list(map(percent, zeros)), [["of the dense bytes"] + row]),
                       runs, show_commands=False)


# Tables of whole models


def runs_of_models(reports, gpu, models, forms=("dense", "tca_bme")):
    return [run for form in forms for model in models
            for run in reports.runs(throughput_file(gpu, model, form))]


def optional(row, column, form):
    """A figure; of a batch that did not fit there is none."""
    return "" if row[column] is None else form.format(row[column])


def throughput(reports, gpu):
    rows = []
    for model in SPARSE_MODELS[gpu]:
        of_dense, of_sparse = reports.both(gpu, model)
        for requests, sparse in of_sparse.items():
            dense = of_dense[requests]
            fits = dense["decode_ms"] is not None and sparse["decode_ms"] is not None
            row = [model_title(model), str(requests)]
            row += [optional(side, "decode_ms", "{:.2f}") or "does not fit"
                    for side in (dense, sparse)]
            row.append(f"{decode_speedup(dense, sparse):.2f}" if fits else "")
            for column, form in ("tokens_per_gpu_second", "{:,.1f}"), ("memory_gib", "{:.1f}"):
                row += [optional(side, column, form) for side in (dense, sparse)]
            rows.append(row)
    head = ["model", "requests", "dense ms", "tca_bme ms", "speed-up",
            "tokens per GPU-second, dense", "tca_bme", "memory GiB, dense", "tca_bme"]
    return with_origin(table(head, rows), runs_of_models(reports, gpu, SPARSE_MODELS[gpu]))


def throughput_dense(reports, gpu):
    rows = []
    for model in DENSE_MODELS:
        for requests, row in reports.throughput(throughput_file(gpu, model, "dense")).items():
            if row["decode_ms"] is None:
                continue
            rows.append([model_title(model), str(requests)] + [form.format(**row) for form in (
                "{tokens_per_gpu_second:,.1f}", "{prefill_ms:.1f}",
                "{decode_ms:.2f} ({decode_ms_min:.2f}..{decode_ms_max:.2f})",
                "{bandwidth_percent:.0f} %",
                "{weights_gib:.1f} + {workspace_gib:.1f} + {kv_used_gib:.1f}")])
    head = ["model", "requests", "tokens per GPU-second", "prefill ms", "decode step ms (min..max)",
            "bandwidth", "weights + workspace + KV in use, GiB"]
    return with_origin(table(head, rows), runs_of_models(reports, gpu, DENSE_MODELS, ["dense"]))


def counted(number, noun):
    return f"{number} {noun}" + ("" if number == 1 else "s")


def readme(reports):
    gpus = ["h200", "h100"]
    rows = []
    means = {gpu: mean_over_shapes(reports.bitmaps(f"{gpu}/kernel_means"), "overlapped_speedup")
             for gpu in gpus}
    for tokens in README_TOKENS:
        rows.append(["one matrix product, mean of twelve shapes", counted(tokens, "token")] +
                    [f"{means[gpu][tokens, ZEROS]:.2f} x" for gpu in gpus])
    for model in README_MODELS:
        for requests in README_REQUESTS:
            rows.append([f"{model_title(model)}, a decode step", counted(requests, "request")])
            for gpu in gpus:
                dense, sparse = (side[requests] for side in reports.both(gpu, model))
                rows[-1].append(f"{dense['decode_ms']:.2f} -> {sparse['decode_ms']:.2f} ms, "
                                f"{decode_speedup(dense, sparse):.2f} x")
    for model in README_MODELS:
        rows.append([f"{model_title(model)}, memory", counted(1, "request")])
        for gpu in gpus:
            dense, sparse = (side[1] for side in reports.both(gpu, model))
            rows[-1].append(f"{dense['memory_gib']:.1f} -> {sparse['memory_gib']:.1f} GiB")
    runs = [run for gpu in gpus for run in reports.runs(f"{gpu}/kernel_means") +
            runs_of_models(reports, gpu, README_MODELS)]
    return with_origin(table(["", "", "H200", "H100"], rows), runs, show_commands=False)


# Tables of the CPU device

CPU_ZEROS = "xeon-avx512/kernel_zeros"
CPU_TOKENS = "xeon-avx512/kernel_tokens"
CPU_FEW_NONZEROS = "xeon-avx512/kernel_few_nonzeros"


def isa_title(run):
    isa = run.environment["cpu_isa"]
    return "AVX-512" if isa.startswith("avx512") else isa.upper()


def cpu_rows(run):
    return [row for row in run.rows["kernel"] if row["format"] == "tca_bme"]


def kernel_cpu_zeros(reports):
    runs = reports.runs(CPU_ZEROS)
    zeros = sorted({row["sparsity"] for run in runs for row in cpu_rows(run)})
    rows = []
    for run in runs:
        cells = {((row["out"], row["in"]), row["sparsity"]): row for row in cpu_rows(run)}
        for shape in unique(shape for shape, _ in cells):
            rows.append([f"{shape_title(shape)}, {isa_title(run)}"] +
                        [f"{cells[shape, share]['speedup']:.2f}" for share in zeros])
    return with_origin(table(["1 token"] + list(map(percent, zeros)), rows), runs)


def kernel_cpu_tokens(reports):
    runs = reports.runs(CPU_TOKENS)
    tokens = sorted({row["tokens"] for run in runs for row in cpu_rows(run)})
    rows = []
    for run in runs:
        cells = {row["tokens"]: row for row in cpu_rows(run)}
        rows.append([isa_title(run)])
        for count in tokens:
            ms = cells[count]["baseline_us"] / 1000
            rows[-1].append(f"{ms:.{1 if ms < 20 else 0}f} ({cells[count]['speedup']:.2f})")
    return with_origin(table(["tokens"] + list(map(str, tokens)), rows), runs)


def kernel_cpu_few_nonzeros(reports):
    runs = reports.runs(CPU_FEW_NONZEROS)
    tokens = sorted({row["tokens"] for run in runs for row in cpu_rows(run)})
    rows = []
    for run in runs:
        cells = {(row["sparsity"], row["tokens"]): row["speedup"] for row in cpu_rows(run)}
        for share in sorted({share for share, _ in cells}):
            rows.append([f"{percent(share)} zeros, {isa_title(run)}"] +
                        [f"{cells[share, count]:.{2 if cells[share, count] < 10 else 1}f}"
                         for count in tokens])
    return with_origin(table(["tokens"] + list(map(str, tokens)), rows), runs)


TABLES = {
    "readme": readme,
    "throughput-h200": lambda reports: throughput(reports, "h200"),
    "throughput-h100": lambda reports: throughput(reports, "h100"),
    "throughput-dense-h200": lambda reports: throughput_dense(reports, "h200"),
    "kernel-means-h200": lambda reports: kernel_means(reports, "h200"),
    "kernel-means-h100": lambda reports: kernel_means(reports, "h100"),
    "kernel-shapes-h200": lambda reports: kernel_shapes(reports, "h200"),
    "kernel-shapes-h100": lambda reports: kernel_shapes(reports, "h100"),
    "kernel-few-tokens-h200": lambda reports: kernel_by_tokens(reports, "h200/kernel_few_tokens"),
    "kernel-many-tokens-h200": lambda reports: kernel_by_tokens(reports, "h200/kernel_many_tokens"),
    "kernel-dense-h200": lambda reports: kernel_dense(reports, "h200"),
    "attention-h200": lambda reports: attention(reports, "h200"),
    "kernel-patterns-h200": lambda reports: kernel_patterns(reports, "h200/patterns"),
    "kernel-values-patterns-h200": lambda reports: kernel_patterns(reports,
                                                                   "h200/values_patterns"),
    "kernel-formats-h200": lambda reports: kernel_formats(reports, "h200"),
    "throughput-formats-h200": lambda reports: throughput_formats(reports, "h200"),
    "kernel-formats-h100": lambda reports: kernel_formats(reports, "h100"),
    "kernel-cpu-zeros": kernel_cpu_zeros,
    "kernel-cpu-tokens": kernel_cpu_tokens,
    "kernel-cpu-few-nonzeros": kernel_cpu_few_nonzeros,
    "weight-sizes": lambda reports: weight_sizes(reports, "h200"),
    **activation.TABLES,
    **general.TABLES,
    **narrow.TABLES,
    **quality.TABLES,
    **relatives.TABLES,
    **ranks.TABLES,
    **server.TABLES,
    **suites.TABLES,
}


# Figures within sentences


def read_bandwidth(reports, gpu):
    """What a GPU read while the models of the dense table were measured, TB/s."""
    return sorted(run.environment["read_bandwidth_gb_per_s"] / 1000
                  for run in runs_of_models(reports, gpu, DENSE_MODELS, ["dense"]))


def span(values, form="{:.2f}"):
    texts = unique(form.format(value) for value in (min(values), max(values)))
    return " to ".join(texts)


VALUES = {
    "read-bandwidth-h200": lambda reports: span(read_bandwidth(reports, "h200")),
    **activation.VALUES,
    **quality.VALUES,
}


# Pages


def filled(text, reports, page):
    """The text of a page with its tables and values as they should be."""

    def replaced_table(match):
        if match[2] not in TABLES:
            raise ReportError(f"{page}: no table is called {match[2]}")
        return match[1] + "\n".join(TABLES[match[2]](reports)) + "\n" + match[4]

    def replaced_value(match):
        if match[2] not in VALUES:
            raise ReportError(f"{page}: no value is called {match[2]}")
        return match[1] + VALUES[match[2]](reports) + match[4]

    return VALUE.sub(replaced_value, TABLE.sub(replaced_table, text))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true",
                        help="change nothing; exit with 1 if a file would change")
    parser.add_argument("--root", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[2],
                        help="the folder of README.md (default: of this script's project)")
    arguments = parser.parse_args()
    reports = Reports(arguments.root / "docs/benchmarks")
    pages = [arguments.root / "README.md", *sorted((arguments.root / "docs").rglob("*.md"))]
    changed = []
    try:
        old = {page: page.read_text(encoding="utf-8") for page in pages}
        new = {page: filled(text, reports, page) for page, text in old.items()}
        changed = [page for page in pages if new[page] != old[page]]
        if not arguments.check:
            for page in changed:
                page.write_text(new[page], encoding="utf-8")
        changed += pictures.update(reports, arguments.root / "docs/images", arguments.check)
        changed += suites.update_pictures(reports, new.values(), arguments.root / "docs/images",
                                          arguments.check)
        if unused := reports.unused():
            raise ReportError(f"nothing is made from {unused[0]}")  # it would grow old unseen
    except ReportError as error:
        sys.exit(f"tables.py: {error}")
    except (KeyError, TypeError) as error:
        sys.exit(f"tables.py: a report lacks {error!r}")
    for path in changed:
        verb = "would change" if arguments.check else "written"
        print(f"{path.relative_to(arguments.root)} {verb}")
    sys.exit(1 if arguments.check and changed else 0)


if __name__ == "__main__":
    main()
