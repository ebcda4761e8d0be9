#!/usr/bin/env python3
"""Bits a weight, tokens per second, perplexity and KL divergence of several models, side by side.

  python3 tools/pareto.py LIST [--batch N] [--table FILE.md] [--picture FILE.svg]

LIST is a JSON file: a list of models, each with a label and the paths of three reports, which are
relative to the folder of LIST:

  [{"label": "dense", "convert": "dense.convert.json", "eval": "dense.compare.json",
    "throughput": "dense.throughput.jsonl"}, ...]

  convert      sparsellm-convert --json: bits a weight are those that linear layers take as stored
  eval         sparsellm-eval compare REFERENCE MODEL --json: the perplexity of MODEL, and the KL
               divergence from REFERENCE; all of the same text and reference
  throughput   sparsellm-bench throughput --format json or jsonl: tokens per second and GPU with N
               requests; all on the same device, with as many tokens

A model is dominated if another has no more bits, no lower speed and no higher perplexity, and is
better in one of these. The table is written to stdout unless --table says otherwise. The picture
needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

REPORTS = ("convert", "eval", "throughput")
# Of a throughput report: what its speed depends on beside the model.
SAME_DEVICE = ("device", "gpu", "gpu_count", "cpu", "cpu_isa")
SAME_FLAGS = ("--prompt", "--step-tokens", "--arrivals", "--tensor-parallel")
SAME_TEXT = ("text", "protocol", "context", "decode", "windows", "tokens")


class ParetoError(Exception):
    """Something about the input; its text is one line for the user."""


@dataclass
class Model:
    label: str
    bits: float        # a weight of a linear layer
    speed: float       # tokens per second and GPU
    perplexity: float
    kl: float          # mean over tokens, in nats, from the reference
    dominated_by: str = ""


# Reading


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ParetoError(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise ParetoError(f"{path} is no text in UTF-8") from None


def parse_json(text: str, where: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] or "nested too deeply"
        raise ParetoError(f"{where} is no JSON: {reason}") from None


def member(of: Any, key: str, where: Any) -> Any:
    if not isinstance(of, dict) or key not in of:
        raise ParetoError(f"{where} has no \"{key}\"")
    return of[key]


def number(of: Any, key: str, where: Any, least: float = 0.0) -> float:
    """A finite number that is at least `least`."""
    value = member(of, key, where)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            if math.isfinite(value) and value >= least:
                return float(value)
        except OverflowError:
            pass
    raise ParetoError(f"{where}: \"{key}\" is {shown(value)}, no number from {least:g} on")


def positive(of: Any, key: str, where: Any) -> float:
    value = number(of, key, where)
    if value == 0.0:
        raise ParetoError(f"{where}: \"{key}\" is 0")
    return value


def size(of: Any, key: str, where: Any) -> float:
    value = positive(of, key, where)
    if value >= 2.0 ** 63:
        raise ParetoError(f"{where}: \"{key}\" is {value:g}, which no file or matrix has")
    return value


def shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def tables_of(path: Path) -> tuple[dict, dict[str, list]]:
    """The environment of a report in json or jsonl, and its rows by table."""
    text = read_text(path)
    first = text.lstrip().split("\n", 1)[0]
    rows: dict[str, list] = {}
    if first.startswith("{\"table\""):  # jsonl
        environment: dict = {}
        for at, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            row = parse_json(line, f"{path}:{at}")
            name = member(row, "table", f"{path}:{at}")
            if name == "environment":
                if environment:
                    raise ParetoError(f"{path} has several reports; give one")
                environment = row
            else:
                rows.setdefault(str(name), []).append(row)
        return environment, rows
    report = parse_json(text, path)
    environment = member(report, "environment", path)
    tables = member(report, "tables", path)
    if not isinstance(environment, dict) or not isinstance(tables, list):
        raise ParetoError(f"{path} is no report: \"environment\" or \"tables\" is something else")
    for table in tables:
        found = member(table, "rows", path)
        if not isinstance(found, list):
            raise ParetoError(f"{path}: the rows of a table are {shown(found)}")
        rows.setdefault(str(member(table, "name", path)), []).extend(found)
    return environment, rows


def bits_of(path: Path) -> float:
    _, tables = tables_of(path)
    layers = tables.get("weights", [])
    if not layers:
        raise ParetoError(f"{path} has no table \"weights\"; sparsellm-convert --json writes one")
    weights = math.fsum(size(row, "out", path) * size(row, "in", path) for row in layers)
    return 8.0 * math.fsum(size(row, "stored_bytes", path) for row in layers) / weights


def quality_of(path: Path, same: Callable[[str, Any], None]) -> tuple[float, float]:
    report = parse_json(read_text(path), path)
    for key in SAME_TEXT:
        same(key, member(report, key, path))
    same("model_a", member(report, "model_a", path))
    # Of equal distributions it may be rounded to less than 0.
    return number(report, "perplexity_b", path, 1.0), number(report, "kl_mean", path, -1e-6)


def speed_of(path: Path, batch: int, same: Callable[[str, Any], None]) -> float:
    environment, tables = tables_of(path)
    rows = [row for row in tables.get("throughput", []) if isinstance(row, dict)]
    if not rows:
        raise ParetoError(f"{path} has no table \"throughput\"; sparsellm-bench throughput "
                          "--format json writes one")
    found = [row for row in rows if row.get("batch") == batch]
    if len(found) != 1:
        batches = sorted({str(row.get("batch")) for row in rows})
        raise ParetoError(f"{path} has {len(found)} rows of {batch} requests, not one; there are "
                          f"rows of {', '.join(batches)}: --batch")
    for key in SAME_DEVICE:
        same(key, environment.get(key))
    same("output", found[0].get("output"))
    same("ranks", found[0].get("ranks"))
    try:
        words = shlex.split(str(environment.get("command", "")))
    except ValueError:
        raise ParetoError(f"{path}: \"command\" is no command line") from None
    for flag in SAME_FLAGS:
        given = None
        for word, following in zip(words, words[1:] + [""]):
            if word == flag:
                given = following
            elif word.startswith(flag + "="):
                given = word.removeprefix(flag + "=")
        same(flag, given)
    if found[0].get("tokens_per_gpu_second") is None and found[0].get("note"):
        raise ParetoError(f"{path}: {batch} requests were not measured: {shown(found[0]['note'])}")
    return positive(found[0], "tokens_per_gpu_second", path)


class Same:
    """What has to be equal in all reports of one kind, or their figures are not comparable."""

    def __init__(self) -> None:
        self.first: dict[str, tuple[Any, Path]] = {}

    def of(self, path: Path) -> Callable[[str, Any], None]:
        def check(key: str, value: Any) -> None:
            known, where = self.first.setdefault(key, (value, path))
            if known != value:
                raise ParetoError(f"{path} and {where} are not comparable: \"{key}\" is "
                                  f"{shown(value)} and {shown(known)}")
        return check


def read_models(path: Path, batch: int) -> list[Model]:
    entries = parse_json(read_text(path), path)
    if not isinstance(entries, list) or not entries:
        raise ParetoError(f"{path} is no list of models")
    models: list[Model] = []
    texts, devices = Same(), Same()
    for at, entry in enumerate(entries, 1):
        where = f"{path}: model {at}"
        label = member(entry, "label", where)
        if not isinstance(label, str) or not label.strip() or not label.isprintable():
            raise ParetoError(f"{where}: the label is {shown(label)}, no line of text")
        if any(model.label == label for model in models):
            raise ParetoError(f"{where}: another model is called {shown(label)}, too")
        for key in entry:
            if key != "label" and key not in REPORTS:
                raise ParetoError(f"{where}: unknown key {shown(key)}; there are label, "
                                  f"{', '.join(REPORTS)}")
        files = {}
        for key in REPORTS:
            name = member(entry, key, where)
            if not isinstance(name, str) or not name or "\0" in name:
                raise ParetoError(f"{where}: \"{key}\" is {shown(name)}, no path of a report")
            files[key] = path.parent / name
        perplexity, kl = quality_of(files["eval"], texts.of(files["eval"]))
        models.append(Model(label=label, bits=bits_of(files["convert"]),
                            speed=speed_of(files["throughput"], batch,
                                           devices.of(files["throughput"])),
                            perplexity=perplexity, kl=kl))
    return models


# What is made of it


def mark_dominated(models: list[Model]) -> None:
    """Names the first that dominates a model."""
    def dominates(a: Model, b: Model) -> bool:
        no_worse = a.bits <= b.bits and a.speed >= b.speed and a.perplexity <= b.perplexity
        return no_worse and (a.bits, a.speed, a.perplexity) != (b.bits, b.speed, b.perplexity)

    for model in models:
        model.dominated_by = next(
            (other.label for other in models if dominates(other, model)), "")


def escaped(text: str) -> str:
    return "".join("\\" + c if c in "\\|`*_[]<>#" else c for c in text)


def table_of(models: list[Model]) -> str:
    lines = ["| model | bits a weight | tokens/s | perplexity | KL | dominated by |",
             "|---|--:|--:|--:|--:|---|"]
    for m in models:
        lines.append(f"| {escaped(m.label)} | {m.bits:.2f} | {m.speed:.1f} | {m.perplexity:.3f} | "
                     f"{m.kl:.5f} | {escaped(m.dominated_by)} |".replace("  |", " |"))
    return "\n".join(lines) + "\n"


PANELS = [("bits", "perplexity"), ("speed", "perplexity"), ("bits", "kl"), ("speed", "kl")]
TITLES = {"bits": "bits a weight", "speed": "tokens/s", "perplexity": "perplexity",
          "kl": "KL, nats"}


def picture_of(models: list[Model]) -> bytes:
    """An SVG with the same bytes whenever it is drawn with the same matplotlib."""
    try:
        import matplotlib
    except ImportError:
        raise ParetoError("--picture needs matplotlib, which is not installed") from None
    matplotlib.use("svg")
    import io
    from matplotlib import pyplot
    settings = {"svg.hashsalt": "pareto", "svg.fonttype": "none", "font.family": "sans-serif",
                "text.parse_math": False, "axes.grid": True, "grid.alpha": 0.3,
                "axes.axisbelow": True}
    with matplotlib.rc_context(settings):
        figure, axes = pyplot.subplots(2, 2, figsize=(9.5, 7.5), layout="constrained")
        try:
            for panel, (x, y) in zip(axes.flat, PANELS):
                for at, model in enumerate(models):
                    colour = f"C{at % 10}"
                    panel.plot([getattr(model, x)], [getattr(model, y)], linestyle="none",
                               marker="os^Dv"[at // 10 % 5], color=colour, label=name_of(model),
                               markerfacecolor="none" if model.dominated_by else colour)
                panel.set_xlabel(TITLES[x])
                panel.set_ylabel(TITLES[y])
            figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center",
                          ncols=2, fontsize="small")
            out = io.BytesIO()
            figure.savefig(out, format="svg", metadata={"Date": None})
        finally:
            pyplot.close(figure)
    return out.getvalue()


def name_of(model: Model) -> str:
    # A label that begins with an underscore would be no entry of a legend.
    shown_label = model.label if not model.label.startswith("_") else f" {model.label}"
    return f"{shown_label} (dominated)" if model.dominated_by else shown_label


def write_file(path: Path, data: bytes) -> None:
    """All of it, or none."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(name, 0o666 & ~mask)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise ParetoError(f"cannot write {path}: {error.strerror or error}") from None


def parse_arguments() -> argparse.Namespace:
    def count(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= 1 << 20:
            raise argparse.ArgumentTypeError(f"{text} is no number of requests")
        return int(text)

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("list", type=Path, metavar="LIST", help="JSON file that names the reports")
    parser.add_argument("--batch", type=count, default=1, metavar="N",
                        help="requests whose tokens per second are taken [1]")
    parser.add_argument("--table", type=Path, metavar="FILE.md",
                        help="write the table there [stdout]")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw a picture, too")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    try:
        models = read_models(arguments.list, arguments.batch)
        mark_dominated(models)
        picture = picture_of(models) if arguments.picture else None
        table = table_of(models)
        if arguments.table:
            write_file(arguments.table, table.encode())
        else:
            sys.stdout.write(table)
        if picture is not None:
            write_file(arguments.picture, picture)
    except ParetoError as error:
        print(f"pareto.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
