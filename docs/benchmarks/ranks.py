"""Tables of models that several GPUs share, and of the sums over these."""

from reports import ReportError, model_title
from texts import percent, table, with_origin

GPU = "h200"
MODELS = f"{GPU}/ranks"
SUMS = f"{GPU}/comm"
KIBI = 1024


def form_of(run):
    """"dense", "tca_bme, 60 % zeros" or "predict, 90 % zeros"."""
    form = run.option("--activation-sparsity") or run.option("--weight-format", "dense")
    zeros = run.option("--zeros") or run.option("--sparsity")
    return form if zeros is None else f"`{form}`, {percent(float(zeros))} zeros"


def cells_of(reports):
    """The rows of batches by model, form, length of the prompt and requests; of each by ranks."""
    cells = {}
    for run in reports.runs(MODELS):
        if "--no-sums" in run.words:
            continue
        for row in run.rows.get("throughput", []):
            cell = cells.setdefault(
                (run.model, form_of(run), run.option("--prompt"), row["batch"]), {})
            if row["ranks"] in cell:
                raise ReportError(f"{run.where}: {row['batch']} requests were measured twice")
            cell[row["ranks"]] = row
    return cells


def steps(reports):
    """Decode steps on one GPU and on two."""
    rows = []
    for (model, form, _, requests), by_ranks in cells_of(reports).items():
        one, two = by_ranks.get(1), by_ranks.get(2)
        if two is None or two["decode_ms"] is None:
            continue
        row = [model_title(model), form, str(requests)]
        if one is None or one["decode_ms"] is None:
            row += ["does not fit", f"{two['decode_ms']:.2f}", "", ""]
        else:
            row += [f"{one['decode_ms']:.2f}", f"{two['decode_ms']:.2f}",
                    f"{one['decode_ms'] / two['decode_ms']:.2f}",
                    f"{one['tokens_per_gpu_second']:,.0f}"]
        row += [f"{two['tokens_per_gpu_second']:,.0f}",
                "" if one is None or one["memory_gib"] is None else f"{one['memory_gib']:.1f}",
                f"{two['memory_gib']:.1f}"]
        rows.append(row)
    head = ["model", "weights", "requests", "1 GPU ms", "2 GPUs ms", "speed-up",
            "tokens per GPU-second, 1 GPU", "2 GPUs", "GiB, 1 GPU", "of each of 2"]
    return with_origin(table(head, rows, first=2), reports.runs(MODELS))


def prefill(reports):
    """Prompts on one GPU and on two."""
    rows = []
    for (model, form, prompt, requests), by_ranks in cells_of(reports).items():
        if requests == 1 and int(prompt) > 512 and len(by_ranks) == 2:
            one, two = by_ranks[1]["prefill_ms"], by_ranks[2]["prefill_ms"]
            rows.append([model_title(model), form, f"{int(prompt):,}", f"{one:.1f}", f"{two:.1f}",
                         f"{one / two:.2f}"])
    return table(["model", "weights", "tokens", "1 GPU ms", "2 GPUs ms", "speed-up"], rows)


def size_of(count):
    return f"{count // KIBI} KiB" if count < KIBI * KIBI else f"{count // KIBI // KIBI} MiB"


def sums(reports):
    """Microseconds of a sum over two ranks, by size and way."""
    runs = reports.runs(SUMS)
    cells = {}
    for run in runs:
        for row in run.rows.get("comm", []):
            if row["ranks"] == 2:
                cells.setdefault(row["bytes"], {})[row["way"]] = row
    ways = list(next(iter(cells.values())))
    rows = [[size_of(count)] + [f"{by_way[way]['time_us']:.1f}" for way in ways]
            for count, by_way in cells.items()]
    return with_origin(table(["bytes"] + ways, rows), runs)


TABLES = {
    "ranks-steps": steps,
    "ranks-prefill": prefill,
    "ranks-sums": sums,
}
