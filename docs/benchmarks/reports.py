"""Reads the files that `sparsellm-bench --output jsonl` wrote.

A file has one run or several, one after the other. A run is its environment and the rows that
follow, each with the name of its table.
"""

import json
import math
import pathlib
import shlex

# Models of the tables of whole models, in their order.
SPARSE_MODELS = {"h200": ["opt-30b", "opt-13b", "llama-2-7b"],
                 "h100": ["opt-30b", "llama-2-7b"]}
DENSE_MODELS = ["llama-2-7b", "llama-3.1-8b", "llama-2-13b", "opt-13b", "opt-30b"]
ZEROS = 0.6  # of the tables by tokens and of whole models


class ReportError(Exception):
    """A file that is missing, damaged, or without a row that a table needs."""


class Run:
    """A run of sparsellm-bench: `environment`, the `words` of its command, and its rows."""

    def __init__(self, environment, where):
        self.environment = environment
        self.where = where
        self.words = shlex.split(environment["command"])
        self.rows = {}
        for word in self.words:
            if word.startswith("/"):
                raise ReportError(f"{where}: {word} in the command is an absolute path")

    def option(self, name, default=None):
        """What follows `name` in the command, the last time that it is there."""
        value = default
        for word, following in zip(self.words, self.words[1:]):
            if word == name:
                value = following
        return value

    @property
    def model(self):
        config = self.option("--config")
        if config is None:
            raise ReportError(f"{self.where}: the command has no --config")
        return pathlib.PurePosixPath(config).stem


def read_runs(path):
    """The runs of a file, oldest first."""
    runs = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ReportError(f"there is no {path}") from None
    for number, line in enumerate(lines, 1):
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
            table = row.pop("table")
            if table == "environment":
                runs.append(Run(row, where))
                continue
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReportError(f"{where}: no line of a report: {error}") from None
        if not runs:
            raise ReportError(f"{where}: a row before the environment")
        if (row.get("note") or "").startswith("NOT VERIFIED"):
            raise ReportError(f"{where}: {row['note']}")
        runs[-1].rows.setdefault(table, []).append(row)
    if not runs:
        raise ReportError(f"{path} is empty")
    return runs


class Reports:
    """The files of docs/benchmarks, each read once."""

    def __init__(self, folder):
        self._folder = folder
        self._runs = {}

    def runs(self, name):
        """Those of the file `name`, such as "h200/kernel_means"."""
        if name not in self._runs:
            self._runs[name] = read_runs(self._folder / f"{name}.jsonl")
        return self._runs[name]

    def path(self, name):
        """Of a file that is read by others."""
        self._runs.setdefault(name, [])
        return self._folder / f"{name}.jsonl"

    def unused(self):
        """The files that were not read."""
        files = {path.relative_to(self._folder) for path in self._folder.rglob("*.jsonl")}
        return sorted(files - {pathlib.Path(f"{name}.jsonl") for name in self._runs})

    def kernels(self, name, form):
        """The rows of single products of one format, by (out, in), tokens and zeros."""
        cells = {}
        for run in self.runs(name):
            for row in run.rows.get("kernel", []):
                if row["format"] == form:
                    cell = ((row["out"], row["in"]), row["tokens"], round(row["sparsity"], 3))
                    if cell in cells:
                        raise ReportError(f"{run.where}: {form} of {cell} was measured twice")
                    cells[cell] = row
        if not cells:
            raise ReportError(f"{name}.jsonl has no rows of {form}")
        return cells

    def bitmaps(self, name):
        return self.kernels(name, "tca_bme")

    def throughput(self, name):
        """The rows of a batch by number of requests."""
        rows = {}
        for run in self.runs(name):
            for row in run.rows.get("throughput", []):
                if row["batch"] in rows:
                    raise ReportError(f"{run.where}: {row['batch']} requests were measured twice")
                rows[row["batch"]] = row
        if not rows:
            raise ReportError(f"{name}.jsonl has no rows")
        return rows

    def both(self, gpu, model):
        """The rows of dense and of bitmap weights, by number of requests."""
        return (self.throughput(throughput_file(gpu, model, "dense")),
                self.throughput(throughput_file(gpu, model, "tca_bme")))


def mean(values):
    """The geometric one."""
    values = list(values)
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def mean_over_shapes(cells, column):
    """Geometric means by (tokens, zeros), all of the same shapes."""
    shapes = {shape for shape, _, _ in cells}
    means = {}
    for tokens, zeros in unique((tokens, zeros) for _, tokens, zeros in cells):
        means[tokens, zeros] = mean(cells[shape, tokens, zeros][column] for shape in shapes)
    return means


def decode_speedup(dense, sparse):
    return dense["decode_ms"] / sparse["decode_ms"]


def unique(values):
    return list(dict.fromkeys(values))


def throughput_file(gpu, model, form):
    return f"{gpu}/throughput_{model}_{form}"


def model_title(name):
    """"opt-30b" as its makers write it."""
    names = {"opt": "OPT", "prosparse": "ProSparse"}
    return "-".join(names.get(word, word.upper() if word[0].isdigit() else word.capitalize())
                    for word in name.split("-"))


def shape_title(shape):
    return f"{shape[0]} x {shape[1]}"
