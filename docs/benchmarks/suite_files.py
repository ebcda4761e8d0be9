"""Reads suites: figures and tables of papers as lists of cells, configs/benchmarks/*.json.

docs/bench.md describes their keys. sparsellm-bench refuses everything that is not as it should be;
here a file is read as far as a report needs it, and what would make a wrong report is an error.
"""

import dataclasses
import itertools
import json
import pathlib
import re

from reports import ReportError, unique

PROMPT, OUTPUT = 64, 512  # tokens, where a suite is silent
MOST_CELLS = 10_000
MOST_BYTES = 1 << 20
METRICS = ["tokens_per_gpu_second", "tokens_per_second", "prefill_ms", "decode_ms", "ms_per_step",
           "memory_gib", "speedup", "library_speedup", "time_us"]
SPEEDUPS = ("speedup", "library_speedup")
LOWER_IS_BETTER = ("prefill_ms", "decode_ms", "ms_per_step", "memory_gib", "time_us")
STATISTICS = ["each", "mean", "most", "least", "share_faster"]
OUTCOMES = ["fits", "out of memory"]
WITH_RECORDS = ("tca_bme", "auto")  # formats whose records are for speed or for size

GROUP_KEYS = {
    "engine": {"kind", "models", "formats", "plans", "sparsities", "patterns", "records",
               "activation_sparsity", "dtype", "gpus", "gpu_memory", "batches", "prompt",
               "outputs", "breakdown"},
    "kernel": {"kind", "models", "shapes", "formats", "sparsities", "patterns", "dtype", "tokens"},
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """What is measured at once: a batch of requests, or with `tokens` a product."""
    subject: str  # "opt-30b", or "36864x9216"
    format: str
    zeros: str = ""  # "s0.8" or "plan:flash-llm"
    pattern: str = ""
    records: str = "speed"
    activation: str = ""
    dtype: str = ""
    gpus: int = 1
    memory: str = ""  # "24G": as if the GPU had so much
    breakdown: bool = False
    batch: int = 0
    prompt: int = PROMPT
    output: int = OUTPUT
    tokens: int = 0

    @property
    def name(self):
        """The key of its results."""
        begin = [self.subject, self.format, self.zeros, self.pattern,
                 "size" if self.records == "size" else "", self.activation, self.dtype]
        if self.tokens:
            end = [f"n{self.tokens}"]
        else:
            end = [f"{self.gpus}gpu", self.memory, "breakdown" if self.breakdown else "",
                   f"b{self.batch}", f"p{self.prompt}" if self.prompt != PROMPT else "",
                   f"o{self.output}"]
        return "/".join(filter(None, begin + end))

    @property
    def work(self):
        """What both cells of a ratio have: one model and its requests, or one shape."""
        return self.subject, self.batch, self.prompt, self.output, self.tokens

    def agreement(self, other):
        """In how much of the rest they agree."""
        return sum(getattr(self, name) == getattr(other, name) for name in (
            "zeros", "pattern", "records", "activation", "dtype", "gpus", "memory", "breakdown"))


@dataclasses.dataclass(frozen=True)
class Point:
    cells: str  # a pattern of names; empty: there are none of ours
    over: str
    at: str  # "8", by which points of one figure differ; empty: there is one alone
    value: float | str  # or one of OUTCOMES


@dataclasses.dataclass(frozen=True)
class Figure:
    """What a paper states in its text or in a table."""
    what: str
    metric: str
    unit: str
    place: str
    gpu: str
    framework: str
    statistic: str
    points: tuple

    @property
    def is_ratio_of_cells(self):
        return self.unit == "x" and any(point.over for point in self.points)


@dataclasses.dataclass
class Suite:
    name: str
    title: str
    source: str
    gpu: str
    framework: str
    metric: str
    cells: list
    stated: list

    @property
    def year(self):
        found = re.search(r"\b(?:19|20)\d\d\b", self.source)
        return found[0] if found else ""

    @property
    def is_kernel(self):
        return any(cell.tokens for cell in self.cells)

    @property
    def is_breakdown(self):
        return any(cell.breakdown for cell in self.cells)


def cell_pattern(pattern):
    """A pattern of names as a compiled expression: * are any characters, ? is one, | between."""
    return re.compile("|".join(
        "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in one)
        for one in pattern.split("|")), re.DOTALL)


def matching(pattern, cells):
    if not pattern:
        return []
    expression = cell_pattern(pattern)
    return [cell for cell in cells if expression.fullmatch(cell.name)]


# JSON


def no_constant(text):
    raise ValueError(f"{text} is no number")


def finite_number(text):
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is too large")
    return value


def whole_number(text):
    if len(text) > 18:
        raise ValueError("a number is too large")
    return int(text)


def no_key_twice(pairs):
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name!r} is there twice")
    return dict(pairs)


def parse_json(text):
    """A JSON text in which all numbers are finite. Throws ValueError."""
    try:
        return json.loads(text, parse_constant=no_constant, parse_float=finite_number,
                          parse_int=whole_number, object_pairs_hook=no_key_twice)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class Reader:
    """A JSON object whose members are taken by name and type; errors name the member."""

    def __init__(self, value, where, keys):
        self.where = where
        if not isinstance(value, dict):
            raise ReportError(f"{where}: expected an object")
        for key in value:
            if key not in keys:
                raise ReportError(f"{where}: unknown key {key!r}")
        self._value = value

    def has(self, key):
        return key in self._value

    def refuse(self, key, expected):
        raise ReportError(f"{self.where}: {key!r}: expected {expected}")

    def get(self, key, types, expected, default=None):
        value = self._value.get(key, default)
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            self.refuse(key, expected)
        return value

    def text(self, key, default=None):
        value = self.get(key, (str,), "a text", default)
        if not value or len(value) > 400 or not value.isprintable():
            self.refuse(key, "one line of text")
        return value

    def one_of(self, key, names, default=None):
        value = self.text(key, default)
        if value not in names:
            self.refuse(key, f"one of {', '.join(names)}")
        return value

    def list(self, key, types, expected, default=None):
        values = self.get(key, (list,), "a list", default)
        if not 1 <= len(values) <= 256:
            self.refuse(key, "a list of 1 to 256 elements")
        for value in values:
            if not isinstance(value, types) or isinstance(value, bool):
                self.refuse(key, f"a list of {expected}")
        return values

    def names(self, key, default=None):
        """Texts that become parts of names of cells."""
        values = self.list(key, (str,), "names", default)
        for value in values:
            if value and not re.fullmatch(r"[A-Za-z0-9_.:/-]{1,100}", value):
                self.refuse(key, "a list of names")
        return values

    def counts(self, key, default=None):
        values = self.list(key, (int,), "whole numbers", default)
        if min(values) < 1:
            self.refuse(key, "numbers from 1 on")
        return values


def number_text(value):
    """0.8 as "0.8", 1.0 as "1": as names of cells have it."""
    return str(int(value)) if value == int(value) else repr(float(value))


# Shapes


def linear_shapes(path):
    """"OUTxIN" of the linear layers that are usually pruned, as the engine joins them."""
    config = read_json(path)
    try:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        if config["architectures"] == ["OPTForCausalLM"]:
            inner = config["ffn_dim"]
            shapes = [(3 * hidden, hidden), (hidden, hidden), (inner, hidden), (hidden, inner)]
        else:  # Llama's, and its relatives'
            inner = config["intermediate_size"]
            head = config.get("head_dim") or hidden // heads
            pairs = config.get("num_key_value_heads") or heads
            shapes = [((heads + 2 * pairs) * head, hidden), (hidden, heads * head),
                      (2 * inner, hidden), (hidden, inner)]
    except (KeyError, TypeError) as error:
        raise ReportError(f"{path}: no config of a model: {error}") from None
    return unique(f"{rows}x{columns}" for rows, columns in shapes)


# Files


def read_text(path, most_bytes):
    try:
        if path.stat().st_size > most_bytes:
            raise ReportError(f"{path}: larger than {most_bytes} bytes")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ReportError(f"there is no {path}") from None
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ReportError(f"{path}: no UTF-8") from None


def read_json(path):
    text = read_text(path, MOST_BYTES)
    try:
        return parse_json(text)
    except ValueError as error:
        raise ReportError(f"{path}: no JSON: {error}") from None


def activation_name(value, where):
    mode = Reader(value, where, {"mode", "votes", "predicted", "zeros"})
    name = mode.one_of("mode", ["off", "exact", "predict"])
    if name == "off":
        return ""
    parts = [name]
    for key in "predicted", "zeros":
        if mode.has(key):
            parts.append(number_text(mode.get(key, (int, float), "a number")))
    if name == "predict":
        parts.append(mode.one_of("votes", ["sign", "weighted"], "weighted"))
    return ":".join(parts)


def weights_of(group, formats):
    """All ways in which the weights of a group can be, as keywords of Cell."""
    if formats == ["dense"]:
        zeros = [""]
    elif group.has("plans"):
        zeros = [f"plan:{plan}" for plan in group.names("plans")]
    else:
        zeros = [f"s{number_text(share)}" for share in group.list(
            "sparsities", (int, float), "numbers")]
    patterns = group.names("patterns", [""])
    patterns = ["" if pattern == "uniform" else pattern for pattern in patterns]
    records = group.names("records", ["speed"])
    ways = []
    for form in formats:
        if form == "dense":
            ways.append({"format": form})
            continue
        of_form = records if form in WITH_RECORDS else ["speed"]
        ways += [{"format": form, "pattern": pattern, "zeros": share, "records": record}
                 for pattern, share, record in itertools.product(patterns, zeros, of_form)]
    return ways


def engine_cells(group, weights, dtype):
    activations = [activation_name(value, group.where) for value in group.list(
        "activation_sparsity", (dict,), "objects", [{"mode": "off"}])]
    breakdown = group.get("breakdown", (bool,), "true or false", False)
    prompt = group.get("prompt", (int,), "a number", PROMPT)
    dimensions = (group.names("models"), group.counts("gpus", [1]), group.names("gpu_memory", [""]),
                  weights, activations, group.counts("batches"), group.counts("outputs", [OUTPUT]))
    for model, gpus, memory, way, activation, batch, output in itertools.product(*dimensions):
        yield Cell(subject=model, gpus=gpus, memory=memory, activation=activation, dtype=dtype,
                   breakdown=breakdown, batch=batch, prompt=prompt, output=output, **way)


def kernel_cells(group, weights, dtype, configs):
    shapes = group.names("shapes") if group.has("shapes") else []
    models = group.names("models") if group.has("models") or not shapes else []
    for model in models:
        shapes = shapes + linear_shapes(configs / f"{model}.json")
    for shape in shapes:
        if not re.fullmatch(r"[1-9]\d{0,9}x[1-9]\d{0,9}", shape):
            group.refuse("shapes", "OUTxIN")
    for shape, way, tokens in itertools.product(unique(shapes), weights, group.counts("tokens")):
        yield Cell(subject=shape, tokens=tokens, dtype=dtype, **way)


def group_cells(value, where, configs):
    kind = value.get("kind", "engine") if isinstance(value, dict) else "engine"
    if kind not in ("engine", "kernel"):
        raise ReportError(f"{where}: 'kind': expected engine or kernel")
    group = Reader(value, where, GROUP_KEYS[kind])
    weights = weights_of(group, group.names("formats"))
    dtype = group.one_of("dtype", ["f16", "bf16"]) if group.has("dtype") else ""
    if kind == "kernel":
        return kernel_cells(group, weights, dtype, configs)
    return engine_cells(group, weights, dtype)


def stated_value(value, figure):
    if value in OUTCOMES:
        return value
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value < 0:
        figure.refuse("value", "a number, \"fits\" or \"out of memory\"")
    return value


def stated_figure(value, where, suite):
    figure = Reader(value, where, {"what", "metric", "unit", "place", "gpu", "framework",
                                   "statistic", "cells", "over", "at", "value", "values"})
    cells, over = (figure.text(key) if figure.has(key) else "" for key in ("cells", "over"))
    if figure.has("at"):
        at = [number_text(number) for number in figure.list("at", (int, float), "numbers")]
        values = figure.list("values", (int, float, str), "numbers and texts")
        if len(at) != len(values):
            figure.refuse("values", f"{len(at)} elements, as \"at\" has")
        points = [Point(cells.replace("{}", text), over.replace("{}", text), text,
                        stated_value(number, figure)) for text, number in zip(at, values)]
    else:
        points = [Point(cells, over, "", stated_value(
            figure.get("value", (int, float, str), "a number or a text"), figure))]
    return Figure(figure.text("what"), figure.one_of("metric", METRICS, suite.metric),
                  figure.text("unit"), figure.text("place"), figure.text("gpu", suite.gpu),
                  figure.text("framework", suite.framework),
                  figure.one_of("statistic", STATISTICS, "each"), tuple(points))


def read_suite(path, configs=None):
    """Of configs/benchmarks/NAME.json; `configs` is the folder of models, that above by default."""
    path = pathlib.Path(path)
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", path.stem):
        raise ReportError(f"{path}: expected a name of letters, digits, _, - and .")
    json_of = Reader(read_json(path), str(path), {"title", "source", "gpu", "framework", "metric",
                                                  "cells", "stated"})
    suite = Suite(path.stem, json_of.text("title"), json_of.text("source"), json_of.text("gpu"),
                  json_of.text("framework"), json_of.one_of("metric", METRICS), [], [])
    configs = configs or path.parent / ".."
    for number, group in enumerate(json_of.list("cells", (dict,), "objects")):
        for cell in group_cells(group, f"{path}: cells[{number}]", configs):
            suite.cells.append(cell)
            if len(suite.cells) > MOST_CELLS:
                raise ReportError(f"{path}: more than {MOST_CELLS} cells")
    if json_of.has("stated"):
        for number, value in enumerate(json_of.list("stated", (dict,), "objects")):
            suite.stated.append(stated_figure(value, f"{path}: stated[{number}]", suite))
    return suite
