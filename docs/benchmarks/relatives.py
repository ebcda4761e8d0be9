"""Tables of what Llama's relatives add: norms of heads, and attention over a window."""

from texts import table, with_origin


def head_norms(reports, gpu):
    """Decode steps with norms of heads, over those of the same shapes without them."""
    runs = reports.runs(f"{gpu}/head_norms")
    times = [{row["batch"]: row["decode_ms"] for row in run.rows["throughput"]} for run in runs]
    with_norms, without = times
    rows = [[str(batch), f"{without[batch]:.3f}", f"{with_norms[batch]:.3f}",
             f"{with_norms[batch] / without[batch]:.3f}"] for batch in sorted(without)]
    heads = ["requests", "ms of a step without norms", "with norms", "with over without"]
    return with_origin(table(heads, rows), runs, show_commands=False)


def attention_window(reports, gpu):
    """A decode step's attention by context, over all of it and over a window."""
    runs = reports.runs(f"{gpu}/attention_window")
    cells = {(row["window"], row["context"]): row["time_us"]
             for run in runs for row in run.rows["attention"]}
    contexts = sorted({context for _, context in cells})
    windows = sorted({window for window, _ in cells if window})
    rows = [[f"{window:,} tokens" if window else "everything"] +
            [f"{cells[window, context]:.1f}" for context in contexts] for window in windows + [None]]
    return with_origin(table(["a row sees"] + [f"context {context:,}" for context in contexts],
                             rows), runs)


TABLES = {
    "head-norms-h200": lambda reports: head_norms(reports, "h200"),
    "attention-window-h200": lambda reports: attention_window(reports, "h200"),
}
