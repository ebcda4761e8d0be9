"""Tables and figures of MLPs whose neurons are zero, or predicted to be."""

from reports import ReportError, decode_speedup, model_title, shape_title, throughput_file, unique
from texts import table, with_origin

MODELS = ["prosparse-llama-2-7b", "prosparse-llama-2-13b", "opt-13b", "opt-30b"]
SMALL = MODELS[0]  # measured with more requests, and on a CPU
GPU = "h200"
OFF = "off"
PREDICTED = "predict 90 / 90"
MLP_TOKENS = [1, 2, 4, 8]  # of the table of single MLPs; the kernel takes no more at once
MLP_VOTES = ["weighted", "sign"]


# Whole models


def case_of(run):
    """"off", "exact 90" or "predict 90 / 90": the mode, and the shares asked for, in percent."""
    shares = [run.option(flag) for flag in ("--predicted", "--zeros")]
    shares = [f"{100 * float(share):g}" for share in shares if share is not None]
    return " ".join([run.option("--activation-sparsity", OFF), " / ".join(shares)]).strip()


def throughput_rows(reports, model, form="activation"):
    """The rows of batches, by case and number of requests."""
    name = throughput_file(GPU, model, form)
    cases = {}
    for run in reports.runs(name):
        rows = cases.setdefault(case_of(run), {})
        for row in run.rows.get("throughput", []):
            if row["batch"] in rows:
                raise ReportError(f"{run.where}: {row['batch']} requests were measured twice")
            rows[row["batch"]] = row
    return cases


def ms(row):
    value = row["decode_ms"]
    return "" if value is None else f"{value:.{2 if value < 100 else 0}f}"


def step_cells(cases, requests, titles):
    """Milliseconds of a decode step, and over `off`; of what was not measured there are none."""
    off = cases[OFF][requests]
    cells = []
    for title in titles:
        row = cases[title][requests]
        cells.append(ms(row))
        if title != OFF and off["decode_ms"] and row["decode_ms"]:
            cells[-1] += f" ({decode_speedup(off, row):.2f})"
    return cells


def models(reports, names=tuple(MODELS), form="activation"):
    cases = {name: throughput_rows(reports, name, form) for name in names}
    titles = list(cases[names[0]])
    rows = [[model_title(name)] + step_cells(of_model, 1, titles)
            for name, of_model in cases.items()]
    runs = [run for name in names for run in reports.runs(throughput_file(GPU, name, form))]
    return with_origin(table(["1 request"] + titles, rows), runs)


def cpu(reports):
    return models(reports, (SMALL,), "activation_cpu")


def requests(reports):
    """The small model, those cases that were measured with several numbers of requests."""
    cases = throughput_rows(reports, SMALL)
    titles = [title for title, rows in cases.items() if len(rows) > 1]
    counts = list(cases[OFF])
    rows = [[title] + [step_cells(cases, count, [title])[0] for count in counts]
            for title in titles]
    runs = [run for run in reports.runs(throughput_file(GPU, SMALL, "activation"))
            if case_of(run) in titles]
    return with_origin(table([f"{model_title(SMALL)}, requests"] + list(map(str, counts)), rows),
                       runs)


def step(reports):
    """The small model's step with one request."""
    cases = throughput_rows(reports, SMALL)
    off, predicted = (cases[title][1] for title in (OFF, PREDICTED))
    return f"{ms(off)} -> {ms(predicted)} ms, {decode_speedup(off, predicted):.2f} x"


def reached(reports):
    """How far the means over the layers are from the shares asked for, at most, in points."""
    distances = []
    for model in MODELS:
        for run in reports.runs(throughput_file(GPU, model, "activation")):
            for flag, column in ("--predicted", "predicted"), ("--zeros", "zeros"):
                share = run.option(flag)
                distances += [abs(row[f"{column}_mean_percent"] - 100 * float(share))
                              for row in run.rows.get("activation sparsity", [])
                              if share is not None]
    return f"{max(distances):.1f}"


# One MLP


def mlp(reports):
    name = f"{GPU}/mlp"
    cells = {}
    for run in reports.runs(name):
        for row in run.rows.get("mlp", []):
            cell = ((row["neurons"], row["hidden"]), row["kind"], row["tokens"], row["part"],
                    row["votes"])
            if cell in cells:
                raise ReportError(f"{run.where}: {cell} was measured twice")
            cells[cell] = row
    rows = []
    for shape, kind in unique(cell[:2] for cell in cells):
        for tokens in MLP_TOKENS:
            of = {(part, votes): cells[shape, kind, tokens, part, votes]
                  for part in ("fused", "predictor") for votes in MLP_VOTES}
            first = of["fused", MLP_VOTES[0]]
            rows.append([f"{shape_title(shape)}, {kind}", str(tokens),
                         "{active_union_percent:.0f} %".format(**first),
                         "{dense_us:.1f} / {overlapped_dense_us:.1f}".format(**first)])
            rows[-1] += ["{time_us:.1f} / {overlapped_us:.1f}".format(**of["predictor", votes])
                         for votes in MLP_VOTES]
            rows[-1] += ["{time_us:.1f} / {overlapped_us:.1f} ({speedup:.2f} / "
                         "{overlapped_speedup:.2f})".format(**of["fused", votes])
                         for votes in MLP_VOTES]
            rows[-1].append(f"{first['read_gb_per_s'] / 1000:.1f}")
    head = ["neurons x inputs", "tokens", "union", "dense us"]
    head += [f"predictor us, {votes}" for votes in MLP_VOTES]
    head += [f"fused us (over dense), {votes}" for votes in MLP_VOTES]
    return with_origin(table(head + ["fused reads, TB/s"], rows), reports.runs(name))


def dense_rate(reports):
    """TB/s of the dense MLPs, with the tokens of the table."""
    rates = [row["read_gb_per_s"] / 1000 for run in reports.runs(f"{GPU}/mlp")
             for row in run.rows.get("mlp", [])
             if row["part"] == "dense" and row["tokens"] in MLP_TOKENS]
    return f"{min(rates):.1f} to {max(rates):.1f}"


def ablation(reports):
    """Of one shape: parts by the factor of alpha."""
    runs = reports.runs(f"{GPU}/mlp_ablation")
    cells = {}
    shapes = []
    for run in runs:
        for row in run.rows.get("mlp ablation", []):
            shapes.append((row["neurons"], row["hidden"]))
            cells[row["part"], round(row["alpha_factor"], 3)] = row
    if len(set(shapes)) != 1:
        raise ReportError(f"{runs[0].where}: an ablation of {len(set(shapes))} shapes")
    factors = sorted({factor for _, factor in cells})
    rows = []
    for part in unique(part for part, _ in cells):
        rows.append([f"`{part}`"])
        for factor in factors:
            row = cells[part, factor]
            rows[-1].append(f"{row['time_us']:.1f}")
            if row["speedup"] is not None:
                rows[-1][-1] += f" ({row['speedup']:.2f})"
    head = [f"{shape_title(shapes[0])}, us"]
    for factor in factors:
        skipped = cells[rows[0][0].strip("`"), factor]["predicted_percent"]
        head.append(f"alpha x {factor:.2f}: {skipped:.0f} %")
    return with_origin(table(head, rows), runs)


TABLES = {
    "activation-models": models,
    "activation-requests": requests,
    "activation-cpu": cpu,
    "mlp": mlp,
    "mlp-ablation": ablation,
}

VALUES = {
    "activation-step": step,
    "activation-reached": reached,
    "mlp-dense-rate": dense_rate,
}
