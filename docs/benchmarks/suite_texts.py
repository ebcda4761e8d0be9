"""How cells, formats and figures of suites are written."""

import re

from reports import model_title
from suite_files import SPEEDUPS
from texts import percent

METRIC_TITLES = {
    "tokens_per_gpu_second": "tokens per GPU-second", "tokens_per_second": "tokens per second",
    "prefill_ms": "prefill, ms", "decode_ms": "decode step, ms", "ms_per_step": "decode step, ms",
    "memory_gib": "GiB of a GPU", "speedup": "speed-up over the fastest dense product",
    "library_speedup": "speed-up over cuBLAS or cuBLASLt", "time_us": "us",
}
DECIMALS = {"prefill_ms": 1, "decode_ms": 2, "ms_per_step": 2, "memory_gib": 1, "time_us": 1}


def clean(text, most=200):
    """A text of others for one line of Markdown."""
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    text = text if len(text) <= most else text[:most - 3] + "..."
    return re.sub(r"([\\|<>`\[\]*_])", r"\\\1", text)


def figure_text(value, metric):
    if metric in SPEEDUPS:
        return f"{value:.2f}"
    if metric.startswith("tokens"):
        return f"{value:,.{0 if value >= 100 else 1}f}"
    return f"{value:,.{DECIMALS[metric]}f}"


def subject_title(cell):
    return cell.subject.replace("x", " x ") if cell.tokens else model_title(cell.subject)


def zeros_title(cell):
    if not cell.zeros:
        return ""
    kind, _, plan = cell.zeros.partition(":")
    return f"plan {plan}" if plan else percent(float(kind[1:]))


def activation_title(cell):
    """"predict 90 / 90, sign"."""
    if not cell.activation:
        return ""
    mode, *rest = cell.activation.split(":")
    shares = [f"{100 * float(text):g}" for text in rest if text[0].isdigit()]
    votes = [text for text in rest if not text[0].isdigit()]
    return ", ".join(filter(None, [" ".join([mode, " / ".join(shares)]).strip(), *votes]))


def weights_title(cell, mark="`"):
    form = cell.format if cell.format == "dense" else f"{mark}{cell.format}{mark}"
    return ", ".join(filter(None, [
        form, zeros_title(cell), cell.pattern, "for size" if cell.records == "size" else "",
        cell.dtype, activation_title(cell)]))
