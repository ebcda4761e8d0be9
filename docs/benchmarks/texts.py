"""Tables, commands and origins as the pages have them."""

import math
import re
import shlex
import textwrap

from reports import ReportError, unique

COLUMNS = 100  # of a command
PAGE_COLUMNS = 120


# Texts


def percent(share):
    return f"{100 * share:g} %"


def table(head, rows, first=1):
    """Lines of a table. Of the `first` columns a cell that repeats the one above stays empty."""
    def line(cells):
        return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)

    lines = [line(head), "|" + "---|" * len(head)]
    above = [None] * first
    for row in rows:
        same = True
        cells = []
        for column, cell in enumerate(row):
            same = same and column < first and above[column] == cell
            cells.append("" if same else cell)
        above = row[:first]
        lines.append(line(cells))
    return lines


def paragraph(text):
    return textwrap.wrap(text, PAGE_COLUMNS, break_long_words=False, break_on_hyphens=False)


# Where figures come from


def normalised(words):
    """The command of a run as a page has it: without its folder and the form of its output."""
    command = ["sparsellm-bench"]
    words = words[1:]
    at = 0
    while at < len(words):
        word, following = words[at], words[at + 1] if at + 1 < len(words) else ""
        if word in ("--output", "--format") and following == "jsonl":
            at += 2
            continue
        if word == "--shape" and len(following) > COLUMNS // 2:  # the flag may be repeated
            shapes = following.split(",")
            for begin in range(0, len(shapes), 6):
                command += [word, ",".join(shapes[begin:begin + 6])]
            at += 2
            continue
        command.append(word)
        at += 1
    return tuple(command)


def wrapped(words):
    """A command in lines of at most COLUMNS columns; a flag stays beside its value."""
    pieces = []
    for word in map(shlex.quote, words):
        if pieces and pieces[-1].startswith("-") and " " not in pieces[-1] and word[0] != "-":
            pieces[-1] += " " + word
        else:
            pieces.append(word)
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if len(lines[-1]) + len(piece) + 3 <= COLUMNS:
            lines[-1] += " " + piece
        else:
            lines[-1] += " \\"
            lines.append("    " + piece)
    return lines


def placeholders(run):
    """What stands in place of the values that runs of one table differ in, with these values."""
    places = {}
    config = run.option("--config")
    if config is not None:
        places["MODEL"] = (config, "configs/MODEL.json", run.model)
    form = run.option("--weight-format")
    if form is not None:
        places["FORMAT"] = (form, "FORMAT", form)
    return places


def commands(runs):
    """Lines of a block with the commands; those that differ in model and format alone are one."""
    groups = {}
    for run in runs:
        words = normalised(run.words)
        places = placeholders(run)
        for value, text, _ in places.values():
            words = tuple(text if word == value else word for word in words)
        groups.setdefault(words, []).append({name: of[2] for name, of in places.items()})
    for words, values in list(groups.items()):
        ways = [unique(of_run[name] for of_run in values) for name in values[0]]
        if len(unique(map(str, values))) < math.prod(map(len, ways)):
            raise ReportError(f"{words}: not each model was measured with each format")
    lines = ["```sh gpu"]
    said = None
    for words, values in groups.items():
        several = []
        for name in values[0]:
            of_name = unique(of_run[name] for of_run in values)
            if len(of_name) == 1:
                words = tuple(re.sub(rf"\b{name}\b", of_name[0], word) for word in words)
            else:
                several.append(f"{name}: " + ", ".join(of_name))
        if several and several != said:
            lines.append("# " + "; ".join(several))
            said = several
        lines += wrapped(words)
    return lines + ["```"]


def device(run):
    """"H200, driver 580.1, CUDA 13.0, cuBLAS 13.1", or the same of a CPU."""
    environment = run.environment
    if "gpu" not in environment:
        name = re.sub(r"\(R\)|\(TM\)", "", environment["cpu"])
        return f"{name}, {environment['cpu_cores']} cores"
    texts = [environment["gpu"].removeprefix("NVIDIA ")]
    for key, title in ("driver", "driver"), ("cuda_runtime", "CUDA"), ("cublas", "cuBLAS"):
        if key in environment:
            texts.append(f"{title} {environment[key]}")
    return ", ".join(texts)


def commit(run):
    """Seven digits of it, and whether the tree had changes."""
    name, _, dirty = run.environment["commit"].partition("-")
    return name[:7] + (" with changes" if dirty else "")


def origin(runs):
    """One line: devices, commits and days."""
    of_device = {}
    for run in runs:
        of_device.setdefault(device(run), []).append(run)
    texts = []
    for name, of_one in of_device.items():
        commits = unique(commit(run) for run in of_one)
        days = sorted({run.environment["date"][:10] for run in of_one})
        texts.append(f"{name}, commit {' and '.join(commits)}, {' and '.join(days)}")
    return "; ".join(texts)


def with_origin(lines, runs, show_commands=True):
    """A table and, below it, where it comes from."""
    lines = [*lines, ""]
    if show_commands:
        return lines + [*paragraph(origin(runs) + ":"), "", *commands(runs)]
    return lines + paragraph(origin(runs) + ".")
