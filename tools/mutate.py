#!/usr/bin/env python3
"""Mutation testing of the CPU code: makes small changes, one at a time, and looks whether a test fails.

  tools/mutate.py --count 300 --seed 1     takes many hours; for a nightly run, or by hand
  tools/mutate.py --files 'engine/*'       only changes of these files
  tools/mutate.py --again                  judges anew what no test saw, after tests were added

A change is another operator or constant, an inverted condition or one without a part, a removed
statement, std::min for std::max, break for continue, true for false. Lines are drawn at random from
engine, kernels, models, sparse, tokenizer and tools; which ones depends on the seed and the sources
alone.

All happens in a copy of the tree, build/mutate/source; the tree itself is only read. For each change
the programs that contain the changed file are built and run: first the tests of that file, then
those of its folder, then all others, the quick ones first. A change is seen if a test fails (twice,
so that chance does not count) or takes six times as long as usual. Changes that do not compile, that
give the same machine code, or that tests/equivalent_mutants.txt lists do not count.

Verdicts are kept in build/mutate/verdicts.jsonl as they are found: the same command goes on where it
was interrupted. The exit code is 0 if enough of the changes are seen.
"""

import argparse
import collections
import difflib
import fcntl
import fnmatch
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EQUIVALENT = "tests/equivalent_mutants.txt"
FOLDERS = ("engine", "kernels", "models", "sparse", "tokenizer", "tools")
# Host code of GPUs and of measurements, which tests on a CPU do not run.
LEFT_OUT = ("*cuda*", "engine/device_tables.cpp", "sparse/expand_matmul.*", "*ablation*",
            "tools/bench/attention.*", "tools/bench/load.*", "tools/bench/replay_timer.*",
            "tools/bench/verify_attention.*", "*_benchmark.cpp")
MOST_USERS = 40  # of a header: what more objects include takes too long to build
MEMORY_BYTES = 12 << 30  # of address space of a test program
SHORTEST_LIMIT_S = 20.0
SLOWDOWN = 6.0  # of a test, that is no timeout yet


def fail(message):
    print(f"mutate.py: {message}", file=sys.stderr)
    sys.exit(2)


# ---- Changes of a source.


@dataclass(frozen=True)
class Mutant:
    file: str
    source: str
    begin: int
    end: int
    text: str  # in the place of [begin, end)
    kind: str

    @property
    def line(self):
        return self.source.count("\n", 0, self.begin) + 1

    @property
    def changed(self):
        return self.source[: self.begin] + self.text + self.source[self.end :]

    @property
    def key(self):
        text = f"{self.file}:{self.begin}:{self.end}:{self.text}:{self.source}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def diff(self):
        """As difflib.unified_diff() has it of files below 200 lines: in longer ones that takes lines
        which are frequent for changed ones."""
        before, after = self.source.splitlines(True), self.changed.splitlines(True)
        matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
        diff = [f"--- a/{self.file}\n", f"+++ b/{self.file}\n"]
        for hunk in matcher.get_grouped_opcodes(n=2):
            first, last = hunk[0], hunk[-1]
            diff.append(f"@@ -{first[1] + 1},{last[2] - first[1]} +{first[3] + 1},"
                        f"{last[4] - first[3]} @@\n")
            for tag, i, i_end, j, j_end in hunk:
                equal = tag == "equal"
                diff += [(" " if equal else "-") + line for line in before[i:i_end]]
                diff += ["+" + line for line in after[j:j_end] if not equal]
        return "".join(diff)

    def lines(self):
        """What a diff takes out and puts in, without blanks around lines."""
        diff = self.diff().split("\n")[2:]
        return tuple("\n".join(line[1:].strip() for line in diff if line.startswith(sign))
                     for sign in "-+")


def blank_out(source):
    """The source with comments, texts, preprocessor lines and what is for GPUs alone as blanks, at
    the same offsets."""
    blanks = lambda m: re.sub(r"[^\n]", " ", m.group())
    code = re.sub(
        r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"'
        r"|(?<!\w)'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*",
        blanks, source, flags=re.DOTALL | re.MULTILINE)
    # How many digits a report shows is a matter of taste.
    code = re.sub(r"\.decimals = \d+", blanks, code)
    # A block ends where a line is indented as its first.
    code = re.sub(r"^( *)if \([^!\n|]*is_cuda\(\)[^\n|]*\) \{\n.*?^\1\}", blanks, code,
                  flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^[^\n]*(?:cuda|\btemplate\b|\bstatic_assert\b)[^\n]*", blanks, code,
                  flags=re.MULTILINE)


SWAPS = {
    "comparison": {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    "logic": {"&&": "||", "||": "&&"},
    "arithmetic": {"+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "+=": "-=", "-=": "+="},
}
WORDS = {"std::min": "std::max", "std::max": "std::min", "break": "continue", "continue": "break",
         "true": "false", "false": "true"}


def operand(code, at, step):
    """The end of what stands before (step -1) or after (+1) the && or || at `at`."""
    stops = (" && ", " || ", "&&\n", "||\n", " = ", " ? ", " : ")
    depth = 0
    while 0 < at < len(code):
        c = code[at - 1 if step < 0 else at]
        depth += step * ((c in "([{") - (c in ")]}"))
        if depth < 0 or depth == 0 and (
                c in ";," or code.startswith(stops, at - 4 if step < 0 else at)
                or step < 0 and (code.endswith(("return ", " = ", "&&\n", "||\n"), 0, at))):
            break
        at += step
    return at


def mutants_of(file, source):
    code = blank_out(source)
    found = []

    def add(begin, end, text, kind):
        if source[begin:end].strip() not in ("", text):
            found.append(Mutant(file, source, begin, end, text, kind))

    for kind, swaps in SWAPS.items():
        # clang-format puts blanks around binary operators, and around no others.
        operators = "|".join(re.escape(o) for o in swaps)
        for m in re.finditer(rf"(?<=[\w)\]}}] )({operators})(?=\s)", code):
            add(*m.span(), swaps[m.group()], kind)
            if kind == "logic":  # also without one of its parts
                neutral = "true" if m.group() == "&&" else "false"
                add(operand(code, m.start() - 1, -1), m.start() - 1, neutral, "part of a condition")
                add(m.end() + 1, operand(code, m.end() + 1, 1), neutral, "part of a condition")
    for word, other in WORDS.items():
        for m in re.finditer(rf"\b{word}\b", code):
            add(*m.span(), other, word)
    for m in re.finditer(r"\bif \(([^;\n]*)\) \{$", code, re.MULTILINE):
        add(*m.span(1), f"!({source[m.start(1):m.end(1)]})", "condition")
    for m in re.finditer(r"(?<=[(\s])!(?=[\w(])", code):
        add(*m.span(), "", "negation")
    for m in re.finditer(r"(?<![\w.'])\d[\d']*(?![\w.'])", code):
        value = int(m.group().replace("'", ""))
        add(*m.span(), str(value + 1), "constant")
        if value > 0:
            add(*m.span(), str(value - 1), "constant")
    # A call or an assignment; two words side by side are a declaration, or begin with a keyword.
    for m in re.finditer(r"(?<=[;{}:])\s*^ +((?:\+\+|--|\*)?[\w.:>\[\]-]+(?:\(| \W?\W?= |\+\+;|--;)"
                         r"(?:[^;{}]*;)?)$", code, re.MULTILINE):
        if m.group(1).endswith(";"):
            add(*m.span(1), ";" + "\n" * m.group(1).count("\n"), "statement")
    return found


def in_random_order(mutants, seed):
    """One change of each line, so that no line counts more than another."""
    chance = random.Random(seed)
    lines = collections.defaultdict(list)
    for mutant in mutants:
        lines[mutant.file, mutant.line].append(mutant)
    order = sorted(lines)
    chance.shuffle(order)
    for line in order:
        kind = chance.choice(sorted({m.kind for m in lines[line]}))
        yield chance.choice([m for m in lines[line] if m.kind == kind])


def read_equivalent():
    """{(file, lines out, lines in)}; the head of the list has the format."""
    known = set()
    for block in re.split(r"\n\s*\n", (ROOT / EQUIVALENT).read_text()):
        lines = [line for line in block.split("\n") if line]
        if all(line.startswith("#") for line in lines):
            continue
        out, in_ = ("\n".join(line[1:].strip() for line in lines if line.startswith(sign))
                    for sign in "-+")
        path = ROOT / lines[0]
        text = path.read_text() if path.is_file() else ""
        if not out or out not in "\n".join(line.strip() for line in text.split("\n")):
            print(f"note: {EQUIVALENT}: {lines[0]} has no lines {out!r}", file=sys.stderr)
        if not any(line.startswith("#") for line in lines):
            fail(f"{EQUIVALENT}: no reason for the change of {out!r}")
        known.add((lines[0], out, in_))
    return known


# ---- The copy of the tree, and its tests.


@dataclass(frozen=True)
class Unit:
    """The tests of one source."""
    program: str
    source: str
    gtest_filter: str


class Copy:
    def __init__(self, folder, jobs):
        self.folder = folder
        self.jobs = jobs
        self.source = folder / "source"
        self.build = self.source / "build" / "cpu"
        self.scratch = folder / "tmp"  # of tests

    def synchronize(self):
        """Takes over what is new in the tree; takes back a change that an interrupt left behind."""
        names = subprocess.run(
            ["git", "-C", str(ROOT), "ls-files", "-z", "-c", "-o", "--exclude-standard"],
            check=True, capture_output=True, text=True).stdout.split("\0")
        names = {name for name in names if name and (ROOT / name).is_file()}
        for name in names:
            tree, copy = ROOT / name, self.source / name
            if not copy.is_file() or copy.read_bytes() != tree.read_bytes():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(tree, copy)
        for path in list(self.source.rglob("*")):
            name = str(path.relative_to(self.source))
            if path.is_file() and not name.startswith("build/") and name not in names:
                path.unlink()
        # All that tests depend on, but for themselves.
        digest = hashlib.sha256()
        for name in sorted(names):
            if name.endswith((".cpp", ".h", ".txt", ".json")) and not name.endswith("_test.cpp") \
                    and name != EQUIVALENT:
                digest.update((self.source / name).read_bytes())
        self.stamp = digest.hexdigest()

    def ninja(self, *arguments):
        return subprocess.run(["ninja", "-C", str(self.build), "-j", str(self.jobs), *arguments],
                              capture_output=True, text=True, errors="replace")

    def prepare(self):
        """Builds the tests as they are and measures them. A case that fails is left out."""
        self.synchronize()
        subprocess.run(["cmake", "--preset", "cpu", "-DSPARSELLM_BENCHMARKS=OFF",
                        "-DCMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE=PRE_TEST"],
                       cwd=self.source, check=True, stdout=subprocess.DEVNULL)
        commands = json.loads((self.build / "compile_commands.json").read_text())
        self.compiled = {os.path.relpath(c["file"], self.source) for c in commands}
        self.units = sorted({unit for c in commands for unit in self.units_of(c)},
                            key=lambda unit: unit.source)
        print("building the tests as they are", file=sys.stderr)
        programs = sorted({unit.program for unit in self.units})
        result = self.ninja(*programs)
        if result.returncode != 0:
            fail("the sources do not build as they are:\n" + result.stdout[-3000:])
        self.binaries = {program: self.hash_of(program) for program in programs}
        self.dependencies = self.ninja("-t", "deps").stdout
        self.measure()

    def units_of(self, command):
        source = os.path.relpath(command["file"], self.source)
        program = re.search(r"/CMakeFiles/(\w+_test)\.dir/", command["command"])
        if program and source.endswith("_test.cpp"):
            text = (self.source / source).read_text()
            suites = sorted(set(re.findall(r"\bTEST(?:_[FP])?\((\w+),", text)))
            yield Unit(program.group(1), source, ":".join(f"{s}.*:*/{s}.*" for s in suites))

    def measure(self):
        """Runs all tests that have changed, or depend on what has, since the last time."""
        path = self.folder / "seconds.json"
        known = json.loads(path.read_text()) if path.is_file() else {}
        self.seconds = {}

        def stamp_of(unit):
            text = self.stamp + (self.source / unit.source).read_text()
            return hashlib.sha256(text.encode()).hexdigest()

        changed = [u for u in self.units if known.get(u.source, {}).get("stamp") != stamp_of(u)]
        self.left_out = {u.source: set() if u in changed else set(known[u.source]["left_out"])
                         for u in self.units}

        def passed(unit, seconds):
            print(f"  {unit.source}: {seconds:.1f} s", file=sys.stderr)
            known[unit.source] = {"stamp": stamp_of(unit), "seconds": seconds,
                                  "left_out": sorted(self.left_out[unit.source])}
            path.write_text(json.dumps(known))

        while failed := self.run([u for u in changed if known.get(u.source, {}).get(
                "stamp") != stamp_of(u)], passed):
            verdict, unit = failed
            cases = set(re.findall(r"^\[  FAILED  \] ([\w/]+\.[\w/]+)", self.log, re.MULTILINE))
            if verdict == "timeout" or not cases - self.left_out[unit.source]:
                fail(f"{unit.source} ends with a {verdict} without any change:\n{self.log[-3000:]}")
            failure = self.log.find("Failure")
            print(f"note: {', '.join(sorted(cases))} of {unit.source} is left out, since it fails "
                  f"without any change:\n{self.log[max(0, failure - 200):][:2000]}", file=sys.stderr)
            self.left_out[unit.source] |= cases
        self.seconds = {unit: known[unit.source]["seconds"] for unit in self.units}

    def hash_of(self, program):
        """Of a test, with the programs that it runs."""
        paths = [self.build / "bin" / program]
        if any("run_program.h" in (self.source / u.source).read_text()
               for u in self.units if u.program == program):
            paths += sorted((self.build / "bin").glob("sparsellm-*"))
        return [hashlib.sha256(p.read_bytes()).hexdigest() for p in paths]

    def run(self, units, passed=lambda unit, seconds: None):
        """Runs these, `jobs` at a time; ("seen" or "timeout", unit) of the first that fails."""
        waiting, running, tries = list(units), [], collections.Counter()
        self.scratch.mkdir(parents=True, exist_ok=True)
        try:
            while waiting or running:
                while waiting and len(running) < self.jobs:
                    unit = waiting.pop(0)
                    tries[unit] += 1
                    running.append((unit, time.monotonic(), *self.start(unit, tries[unit])))
                for one in list(running):
                    unit, start, process, log = one
                    limit = max(SHORTEST_LIMIT_S, SLOWDOWN * self.seconds.get(unit, 600.0))
                    seconds = time.monotonic() - start
                    if process.poll() is None and seconds < limit:
                        continue
                    self.log = log.read_text(errors="replace")
                    if process.returncode is None:
                        return "timeout", unit
                    running.remove(one)
                    if process.returncode == 0:
                        passed(unit, seconds)
                    elif tries[unit] == 2:
                        return "seen", unit
                    else:
                        waiting.insert(0, unit)
                time.sleep(0.01)
            return None
        finally:
            for _, _, process, _ in running:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            shutil.rmtree(self.scratch, ignore_errors=True)

    def start(self, unit, number):
        folder = self.scratch / f"{unit.source.replace('/', '-')}-{number}"
        folder.mkdir()
        log = folder.with_suffix(".log")
        without = "".join(("-", ":".join(sorted(self.left_out[unit.source]))))
        with open(log, "wb") as file:
            process = subprocess.Popen(
                [self.build / "bin" / unit.program, "--gtest_fail_fast", "--gtest_brief=1",
                 "--gtest_filter=" + unit.gtest_filter + without],
                cwd=self.build, env=dict(os.environ, TMPDIR=str(folder)), stdout=file, stderr=file,
                stdin=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES,) * 2))
        return process, log

    def judge(self, mutant):
        """Builds and tests a change: (verdict, source of the test that saw it)."""
        folder, stem = os.path.split(os.path.splitext(mutant.file)[0])
        stem = re.sub(r"_(cpu|args|loader)$", "", stem)
        near = lambda u: os.path.dirname(u.source) == "tests/" + folder
        own = lambda u: near(u) and os.path.basename(u.source).startswith(stem)
        groups = ([u for u in self.units if own(u)],
                  [u for u in self.units if near(u) and not own(u)],
                  [u for u in self.units if not near(u)])
        (self.source / mutant.file).write_text(mutant.changed)
        try:
            tested = False
            for group in groups:
                programs = sorted({unit.program for unit in group})
                if programs and self.ninja(*programs).returncode != 0:
                    return "does not compile", ""
                differ = [p for p in programs if self.hash_of(p) != self.binaries[p]]
                units = sorted((u for u in group if u.program in differ), key=self.seconds.get)
                tested |= bool(units)
                seen = self.run(units)
                if seen:
                    return seen[0], seen[1].source
            return ("unseen" if tested else "same code"), ""
        finally:
            (self.source / mutant.file).write_text(mutant.source)


# ---- Verdicts.


def read_verdicts(path):
    """{key: verdict}; a later line replaces an earlier one."""
    verdicts = {}
    for line in path.read_text().split("\n") if path.is_file() else []:
        try:
            entry = json.loads(line)
            verdicts[entry["key"]] = entry["verdict"]
        except ValueError:
            pass  # the end of a file that an interrupt has cut
    return verdicts


def print_table(rows):
    columns = ("seen", "timeout", "unseen", "equivalent", "same code", "does not compile")
    print(f"\n{'':10}" + "".join(f"{c:>18}" for c in columns))
    for name in (*FOLDERS, "all"):
        counts = collections.Counter(
            verdict for mutant, verdict in rows if name in ("all", mutant.file.split("/")[0]))
        print(f"{name:10}" + "".join(f"{counts[c]:18}" for c in columns))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="changes that count (300)")
    parser.add_argument("--seed", type=int, default=1, help="(1)")
    parser.add_argument("--files", nargs="+", default=["*"], metavar="GLOB")
    parser.add_argument("--again", action="store_true", help="judges anew what was not seen")
    parser.add_argument("--percent", type=float, default=95.0,
                        help="that have to be seen for exit code 0 (95)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if options.count < 1 or options.jobs < 1:
        fail("--count and --jobs are at least 1")
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    equivalent = read_equivalent()
    copy = Copy(ROOT / "build" / "mutate", options.jobs)
    copy.source.mkdir(parents=True, exist_ok=True)
    folder = os.open(copy.folder, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail(f"{copy.folder} is in use by another run")
    copy.prepare()
    headers = {str(p.relative_to(copy.source)) for f in FOLDERS
               for p in (copy.source / f).rglob("*.h")}
    headers = {h for h in headers if 0 < copy.dependencies.count(f"/{h}\n") <= MOST_USERS}
    matches = lambda name, globs: any(fnmatch.fnmatch(name, g) for g in globs)
    files = sorted(n for n in copy.compiled | headers
                   if n.startswith(FOLDERS) and not matches(n, LEFT_OUT))
    mutants = [m for n in files for m in mutants_of(n, (copy.source / n).read_text())]
    print(f"{len(mutants)} changes are possible in {len(files)} files", file=sys.stderr)

    path = copy.folder / "verdicts.jsonl"
    verdicts = read_verdicts(path)
    rows, counted = [], 0
    try:
        for mutant in in_random_order(mutants, options.seed):
            if not matches(mutant.file, options.files):
                continue
            if counted == options.count:
                break
            verdict, by = verdicts.get(mutant.key), ""
            if (mutant.file, *mutant.lines()) in equivalent:
                verdict = "equivalent"
            elif verdict is None or verdict == "unseen" and options.again:
                start = time.monotonic()
                verdict, by = copy.judge(mutant)
                entry = {"key": mutant.key, "file": mutant.file, "line": mutant.line,
                         "kind": mutant.kind, "verdict": verdict, "by": by,
                         "seconds": round(time.monotonic() - start), "diff": mutant.diff()}
                with open(path, "a") as file:
                    file.write(json.dumps(entry) + "\n")
            rows.append((mutant, verdict))
            counted += verdict in ("seen", "timeout", "unseen")
            print(f"{counted:4} {mutant.file}:{mutant.line} {mutant.kind}: {verdict} {by}",
                  file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        counted = 0

    unseen = [mutant for mutant, verdict in rows if verdict == "unseen"]
    for mutant in unseen:
        print(f"\nnot seen:\n{mutant.diff()}", end="")
    print_table(rows)
    if counted == 0:
        return 130
    share = 100.0 * (counted - len(unseen)) / counted
    print(f"\n{counted - len(unseen)} of {counted} seen: {share:.1f} %")
    return 0 if share >= options.percent else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
