"""Reads the results of suites: DIR/results.jsonl, a line for each cell that was measured.

`sparsellm-bench suite --results DIR` writes it. Results of different GPUs and of different memory
that a GPU was said to have are never seen together; those of different commits only where cells
were left out because the other commit had measured them (--resume-from).
"""

import dataclasses
import re

from reports import ReportError, unique
from suite_files import (LOWER_IS_BETTER, METRICS, WITH_RECORDS, matching, parse_json, read_text)

FILE = "results.jsonl"
MOST_BYTES = 1 << 30
KEYS = {"suite", "cell", "commit", "gpu", "gpu_memory", "row", "error", "groups", "environment"}
SCALARS = (str, int, float, bool, type(None))
FIT = "does not fit"
NOT_MEASURED = "not measured"


@dataclasses.dataclass(frozen=True)
class Result:
    where: str  # the file and the line
    suite: str
    cell: str
    commit: str
    gpu: str
    memory: str  # of --gpu-memory; empty: what the GPU has
    row: dict | None
    groups: list
    environment: dict
    error: str

    @property
    def date(self):
        date = self.environment.get("date")
        return date if isinstance(date, str) else ""


def require_scalars(value, where, what):
    if not isinstance(value, dict) or not all(isinstance(each, SCALARS) for each in value.values()):
        raise ReportError(f"{where}: {what}: expected an object of numbers and texts")
    for metric in METRICS:
        figure = value.get(metric)
        is_number = isinstance(figure, (int, float)) and not isinstance(figure, bool)
        # What is between the groups of a step may come out as less than nothing.
        if figure is not None and not (is_number and (figure > 0 or metric == "ms_per_step")):
            raise ReportError(f"{where}: {what}: {metric} is no time, rate or size: {figure!r}")


def parse_result(line, where):
    try:
        value = parse_json(line)
    except ValueError as error:
        raise ReportError(f"{where}: no result: {error}") from None
    if not isinstance(value, dict):
        raise ReportError(f"{where}: no result: expected an object")
    for key in value:
        if key not in KEYS:
            raise ReportError(f"{where}: unknown key {key[:40]!r}")
    for key in ("suite", "cell", "commit", "gpu", "gpu_memory", "error"):
        optional = key in ("gpu_memory", "error")
        if optional and key not in value:
            continue
        if not isinstance(value.get(key), str) or not value[key]:
            raise ReportError(f"{where}: {key!r}: expected a text")
    if ("row" in value) == ("error" in value):
        raise ReportError(f"{where}: expected either a row or an error")
    groups = value.get("groups", [])
    if not isinstance(groups, list) or ("groups" in value and "error" in value):
        raise ReportError(f"{where}: 'groups': expected a list beside a row")
    for group in groups:
        require_scalars(group, where, "groups")
        if not isinstance(group.get("group"), str) or "ms_per_step" not in group:
            raise ReportError(f"{where}: groups: expected a group and its ms_per_step")
    if "row" in value:
        require_scalars(value["row"], where, "row")
    environment = value.get("environment")
    if not isinstance(environment, dict):
        raise ReportError(f"{where}: 'environment': expected an object")
    return Result(where, value["suite"], value["cell"], value["commit"], value["gpu"],
                  value.get("gpu_memory", ""), value.get("row"), groups, environment,
                  value.get("error", ""))


def read_results(folder):
    """All whole lines, oldest first; one without its end is just being written, or torn."""
    path = folder / FILE
    lines = read_text(path, MOST_BYTES).split("\n")
    return [parse_result(line, f"{path}:{number}") for number, line in enumerate(lines[:-1], 1)]


def read_list(path):
    """Why cells are not measured, by (suite, cell): of the output of `suite --list`."""
    reasons = {}
    for line in read_text(path, MOST_BYTES).splitlines():
        name, _, text = line.partition(": ")
        suite, _, cell = name.partition("/")
        if text.startswith((FIT, "needs ", "no kernels")):
            reasons[suite, cell] = text
    return reasons


# What became of a cell


@dataclasses.dataclass(frozen=True)
class Outcome:
    state: str  # "measured", FIT, "needs 4 GPUs", "no kernels", "not verified", "failed", ...
    result: Result | None = None
    detail: str = ""

    def value(self, metric, cell):
        """A figure of a measured cell; nothing where it has none."""
        if self.state != "measured":
            return None
        if metric == "tokens_per_second":
            rate = self.result.row.get("tokens_per_gpu_second")
            return None if rate is None else rate * cell.gpus
        if metric == "ms_per_step":
            metric = "decode_ms"  # all groups together
        return self.result.row.get(metric)


def state_of(text):
    """Of an error or a note, in a word or two."""
    if "NOT VERIFIED" in text:
        return "not verified"
    if re.search(r"out of memory|does not fit", text, re.IGNORECASE):
        return FIT
    found = re.search(r"needs (\d+) GPUs", text)
    if found:
        return found[0]
    return "no kernels" if "no kernels" in text else "failed"


def outcome_of(result, cell):
    if result.error:
        return Outcome(state_of(result.error), result, result.error)
    row = result.row
    if cell.tokens:
        rows, columns = map(int, cell.subject.split("x"))
        expected = {"out": rows, "in": columns, "tokens": cell.tokens}
    else:
        expected = {"batch": cell.batch, "ranks": cell.gpus, "output": cell.output}
    for key, value in expected.items():
        if key in row and row[key] != value:
            raise ReportError(f"{result.where}: the row of {cell.name} has {row[key]!r} as {key}")
    note = row.get("note")
    note = note if isinstance(note, str) else ""
    figure = row.get("time_us" if cell.tokens else "tokens_per_gpu_second")
    if note.startswith("NOT VERIFIED") or figure is None:
        return Outcome(state_of(note), result, note)
    return Outcome("measured", result)


def with_format(cell, form):
    """The same in another format."""
    if form == "dense":
        return dataclasses.replace(cell, format=form, zeros="", pattern="", records="speed")
    records = cell.records if form in WITH_RECORDS else "speed"
    return dataclasses.replace(cell, format=form, records=records)


def other_formats(suite, names):
    """Cells of the suite in formats that it does not list, those that were measured."""
    known = {cell.name for cell in suite.cells}
    subjects = unique(cell.subject for cell in suite.cells)
    unknown = {name for name in names if name not in known}
    forms = set()
    for name in unknown:
        for subject in subjects:
            if name.startswith(subject + "/"):
                forms.add(name[len(subject) + 1:].split("/")[0])
    forms = sorted(form for form in forms if re.fullmatch("[a-z][a-z0-9_]*", form))[:16]
    found = {}
    for form in forms:
        for cell in suite.cells:
            other = with_format(cell, form)
            if cell.format != "dense" and other.name in unknown:
                found[other.name] = other
    return list(found.values())


class View:
    """What was measured of one suite with one kind of GPU: the last result of each cell."""

    def __init__(self, suite, results, reasons):
        self.suite = suite
        latest = {result.cell: result for result in results}
        self.cells = suite.cells + other_formats(suite, latest)
        names = {cell.name for cell in self.cells}
        self.unknown = [name for name in latest if name not in names]
        self.results = [result for result in latest.values() if result.cell in names]
        self._some = results[-1]
        self.older = []  # (commit, number of results) that are left out
        gpus = [result.environment.get("gpu_count") for result in results]
        gpus = max((count for count in gpus if isinstance(count, int)), default=None)
        self._matching, self._partners = {}, {}  # by pattern
        self._outcomes = {}
        for cell in self.cells:
            if cell.name in latest:
                outcome = outcome_of(latest[cell.name], cell)
            elif (suite.name, cell.name) in reasons:
                text = reasons[suite.name, cell.name]
                outcome = Outcome(state_of(text), None, text)
            elif gpus is not None and cell.gpus > gpus:
                outcome = Outcome(f"needs {cell.gpus} GPUs")
            else:
                outcome = Outcome(NOT_MEASURED)
            self._outcomes[cell.name] = outcome

    def outcome(self, cell):
        return self._outcomes[cell.name]

    def value(self, cell, metric=None):
        return self.outcome(cell).value(metric or self.suite.metric, cell)

    def matching(self, pattern):
        if pattern not in self._matching:
            self._matching[pattern] = matching(pattern, self.cells)
        return self._matching[pattern]

    def partner(self, cell, pattern):
        """The cell that a ratio of `cell` is over; nothing if there is none, or several."""
        if pattern not in self._partners:
            by_work = self._partners[pattern] = {}
            for other in self.matching(pattern):
                by_work.setdefault(other.work, []).append(other)
        there = [other for other in self._partners[pattern].get(cell.work, []) if other != cell]
        most = max(map(cell.agreement, there), default=0)
        best = [other for other in there if cell.agreement(other) == most]
        return best[0] if len(best) == 1 else None

    def ratio(self, cell, over, metric):
        """How much better a cell is than another one; nothing if one has no figure."""
        here, there = self.value(cell, metric), self.value(over, metric)
        if not here or not there:
            return None
        return there / here if metric in LOWER_IS_BETTER else here / there

    @property
    def gpu(self):
        return self._some.gpu

    @property
    def memory(self):
        return self._some.memory

    @property
    def commits(self):
        """(commit, its number of results), the newest first."""
        numbers = {self._some.commit: 0}
        for result in reversed(self.results):
            numbers[result.commit] = numbers.get(result.commit, 0) + 1
        return list(numbers.items())

    @property
    def title(self):
        """"H200", or "H200 as if of 24G"."""
        name = "CPU" if self.gpu == "cpu" else self.gpu.removeprefix("NVIDIA ")
        return name + (f" as if of {self.memory}" if self.memory else "")


def resumed_from(name, by_commit):
    """The commits that results of this one were resumed from, and those that these were; the one
    that was measured first is the first. Each has the results of `by_commit`."""
    found, left = [], [name]
    while left:
        name = left.pop(0)
        if name in found:
            continue
        found.insert(0, name)
        for _, _, result in by_commit[name]:
            command = result.environment.get("command")
            for other in re.findall(r"--resume-from[ =](\w+)", str(command)):
                left += [known for known in by_commit if known.startswith(other)]
    return found


def views(suite, results, reasons=None, commit=None):
    """One for each kind of GPU and memory: of the newest commit, or of the one that is named, and
    of those that it was resumed from."""
    of_kind = {}
    for number, result in enumerate(results):
        if result.suite == suite.name:
            by_commit = of_kind.setdefault((result.gpu, result.memory), {})
            by_commit.setdefault(result.commit, []).append((result.date, number, result))
    last = max(range(len(results)), default=None, key=lambda at: (results[at].date, at))
    found = []
    for (gpu, memory), by_commit in of_kind.items():
        def newest(name):
            return max((date, number) for date, number, _ in by_commit[name])

        names = [name for name in by_commit if name.startswith(commit or "")]
        if not names:
            continue
        chosen = commit if commit in by_commit else max(names, key=newest)
        is_last_kind = (gpu, memory) == (results[last].gpu, results[last].memory)
        shown = resumed_from(chosen, by_commit)
        view = View(suite, [result for name in shown for _, _, result in by_commit[name]],
                    reasons if reasons and is_last_kind else {})
        view.older = [(name, len(of)) for name, of in by_commit.items() if name not in shown]
        found.append(view)
    return found
