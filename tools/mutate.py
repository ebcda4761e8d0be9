#!/usr/bin/env python3
"""Mutation testing: makes small random changes in the CPU code, one at a time, and looks whether the
tests see them.

  tools/mutate.py                     judges 300 changes; exit code 0 if 95 % are seen
  tools/mutate.py --count 20 --seed 7
  tools/mutate.py --files 'engine/*' 'tools/batch.cpp'
  tools/mutate.py --show              only prints the changes, as diffs

A change is an operator, a condition or a part of it, a constant, a removed statement, std::min for std::max, break
for continue, true for false. It is made in a copy of the sources, build/mutate/source; the tree
itself is never touched. A change counts as seen if a test fails, crashes or takes too long. Not
counted are changes that do not compile, that compile to the same machine code, and those that
tests/equivalent_mutants.txt names because no test could see them.

The changes depend on the seed and the sources alone. Every verdict is written down at once: the same
command goes on where it was interrupted, and --again judges anew what was not seen.
"""

import argparse
import bisect
import collections
import difflib
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
# Host sources of the CUDA device, which no test of the CPU device runs.
FOR_CUDA = ("*cuda*", "engine/device_tables.cpp", "sparse/expand_matmul.cpp", "tools/*ablation*",
            "tools/bench_attention.cpp", "tools/bench_load.cpp", "tools/replay_timer.*",
            "tools/verify_attention.cpp", "*_benchmark.cpp")
MAX_HEADER_USERS = 12  # a header that more sources include takes too long to build
MEMORY_BYTES = 12 << 30  # of address space of a test program
SHORTEST_LIMIT_S = 30.0  # for a run of a test program
SLOWDOWN = 6.0  # that is no timeout yet


def fail(message):
    print(f"mutate.py: {message}", file=sys.stderr)
    sys.exit(2)


# ---- Changes of a source.


@dataclass(frozen=True)
class Mutant:
    file: str
    begin: int
    end: int
    text: str  # in the place of [begin, end)
    kind: str


def blank_out(source):
    """The source with comments, literals of text and preprocessor lines as blanks, at the same
    offsets."""
    pattern = re.compile(
        r"//[^\n]*|/\*.*?\*/"
        r'|R"(?P<mark>[^(\s]{0,16})\(.*?\)(?P=mark)"'
        r'|"(?:\\.|[^"\\\n])*"'
        r"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'"
        r"|^[ \t]*#(?:\\\n|[^\n])*",
        re.DOTALL | re.MULTILINE,
    )
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), source)


def closing(code, begin):
    """Where the bracket at `begin` is closed; None if it is not."""
    pairs = {"(": ")", "{": "}", "[": "]"}
    open_, close = code[begin], pairs[code[begin]]
    depth = 0
    for m in re.compile(re.escape(open_) + "|" + re.escape(close)).finditer(code, begin):
        depth += 1 if m.group() == open_ else -1
        if depth == 0:
            return m.start()
    return None


def conditions(code):
    """(begin, end) inside the brackets of each if."""
    for m in re.finditer(r"\bif (?:constexpr )?\(", code):
        end = closing(code, m.end() - 1)
        if end is not None and "constexpr" not in m.group():
            yield m.end(), end


def cuda_blocks(code):
    """What runs on a GPU alone, which no test of the CPU device can see."""
    for begin, end in conditions(code):
        condition = code[begin:end]
        if "is_cuda()" not in condition or "!" in condition or "||" in condition:
            continue
        brace = code.find("{", end)
        if brace >= 0 and code[end + 1 : brace].strip() == "":
            yield begin, closing(code, brace) or len(code)
    for m in re.finditer(r"is_cuda\(\)[^;?]*\?", code):
        # "is_cuda() ? A : B": A, up to the colon.
        stop = re.compile(r"(?<!:):(?!:)").search(code, m.end())
        if stop:
            yield m.start(), stop.start()


SWAPS = {
    "comparison": {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="},
    "logic": {"&&": "||", "||": "&&"},
    "arithmetic": {"+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "+=": "-=", "-=": "+="},
}
STATEMENT = re.compile(
    r"(?:\+\+|--|\*)?[A-Za-z_][\w:]*"
    r"(?:(?:\.|->)\w+|\[[^\[\]]*\]|\((?:[^()]|\([^()]*\))*\)(?=\.|->))*"
    r"\s*(?:[-+*/|&^]?=[^=].*|\(.*\)|)",
    re.DOTALL,
)
KEYWORDS = re.compile(
    r"(?:return|if|for|while|using|const|auto|static|constexpr|namespace|typedef|struct|class|enum|"
    r"case|default|break|continue|throw|else|template|public|private|protected|goto|do|switch|"
    r"friend|static_assert|assert|virtual|explicit|inline|try|catch|co_return)\b"
)


def statements(code):
    """(begin, end) of statements that are calls or assignments."""
    for m in re.finditer(r"[;{}]\s*(?=[A-Za-z_*+-])", code):
        begin = m.end()
        if KEYWORDS.match(code, begin):
            continue
        end = begin
        while end < len(code) and code[end] not in ";{}":
            end = (closing(code, end) or len(code)) if code[end] in "([" else end
            end += 1
        if end >= len(code) or code[end] != ";":
            continue
        text = code[begin:end]
        # Two names side by side are a declaration.
        if STATEMENT.fullmatch(text) and re.search(r"[(=]|\+\+|--", text):
            yield begin, end + 1


def trimmed(code, begin, end):
    text = code[begin:end]
    return begin + len(text) - len(text.lstrip()), begin + len(text.rstrip())


def operands(code, begin, end):
    """What stands before and behind the && or || at [begin, end), up to the next of them."""
    depth, left = 0, begin
    while left > 0:
        c = code[left - 1]
        depth += (c in ")]}") - (c in "([{")
        if depth < 0 or depth == 0 and (
            c in ";,?" or code.endswith(("&&", "||", " = ", "+= ", "-= ", " : ", "return "), 0, left)
        ):
            break
        left -= 1
    depth, right = 0, end
    while right < len(code):
        c = code[right]
        depth += (c in "([{") - (c in ")]}")
        if depth < 0 or depth == 0 and (
            c in ";,?" or code.startswith(("&&", "||", " : "), right)
        ):
            break
        right += 1
    return trimmed(code, left, begin), trimmed(code, end, right)


def mutants_of(file, source):
    code = blank_out(source)
    hidden = list(cuda_blocks(code))
    found = []

    def add(begin, end, text, kind):
        if text != source[begin:end] and not any(b <= begin < e for b, e in hidden):
            found.append(Mutant(file, begin, end, text, kind))

    for kind, swaps in SWAPS.items():
        operators = "|".join(re.escape(o) for o in sorted(swaps, key=len, reverse=True))
        # clang-format puts blanks around binary operators, and none around those of templates and
        # references. An operator may end a line.
        for m in re.finditer(rf"(?<=[\w)\]}}]) ({operators})(?=\s)", code):
            line = code[code.rfind("\n", 0, m.start()) + 1 : m.start()]
            if "template" not in line and "operator" not in line:
                add(m.start(1), m.end(1), swaps[m.group(1)], kind)
                if kind == "logic":
                    # Without one of its parts; the compiler warns of some mixtures of && and ||.
                    neutral = "true" if m.group(1) == "&&" else "false"
                    for part in operands(code, m.start(1), m.end(1)):
                        add(*part, neutral, "part of a condition")
    for begin, end in conditions(code):
        condition = source[begin:end]
        if ";" not in code[begin:end]:
            add(begin, end, f"!({condition})", "condition")
    for m in re.finditer(r"(?<=[(\s])!(?=[\w(])", code):
        add(m.start(), m.end(), "", "negation")
    for a, b in (("min", "max"), ("max", "min")):
        for m in re.finditer(rf"\bstd::{a}\b(?=[<(])", code):
            add(m.start(), m.end(), f"std::{b}", "min and max")
    for a, b in (("break", "continue"), ("continue", "break")):
        for m in re.finditer(rf"\b{a};", code):
            add(m.start(), m.end(), f"{b};", "break and continue")
    for a, b in (("true", "false"), ("false", "true")):
        for m in re.finditer(rf"\b{a}\b", code):
            add(m.start(), m.end(), b, "true and false")
    for m in re.finditer(r"(?<![\w.'])(\d[\d']*)(?![\w.'])", code):
        value = int(m.group(1).replace("'", ""))
        add(m.start(), m.end(), str(value + 1), "constant")
        if value > 0:
            add(m.start(), m.end(), str(value - 1), "constant")
    for begin, end in statements(code):
        # The lines stay, so that those of messages do.
        add(begin, end, ";" + "\n" * source.count("\n", begin, end), "statement")
    return found


def changed(source, mutant):
    return source[: mutant.begin] + mutant.text + source[mutant.end :]


def changed_lines(source, mutant):
    """The lines that a change takes out and puts in, without the blanks around them."""
    begin = source.rfind("\n", 0, mutant.begin) + 1
    end = source.find("\n", mutant.end)
    end = len(source) if end < 0 else end
    out = source[begin:end]
    in_ = source[begin : mutant.begin] + mutant.text + source[mutant.end : end]
    return tuple(
        "\n".join(line.strip() for line in text.split("\n") if line.strip(" ;"))
        for text in (out, in_)
    )


def diff_of(source, mutant):
    before, after = source.splitlines(True), changed(source, mutant).splitlines(True)
    name = mutant.file
    return "".join(difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", n=2))


def key_of(source, mutant):
    text = f"{mutant.file}:{mutant.begin}:{mutant.end}:{mutant.text}"
    return hashlib.sha256((text + source).encode()).hexdigest()[:16]


# Kinds take turns at random: there are more constants than anything else.
def in_random_order(mutants, seed):
    chance = random.Random(seed)
    kinds = collections.defaultdict(list)
    for mutant in mutants:
        kinds[mutant.kind].append(mutant)
    for kind in sorted(kinds):
        chance.shuffle(kinds[kind])
    while kinds:
        kind = chance.choice(sorted(kinds))
        yield kinds[kind].pop()
        if not kinds[kind]:
            del kinds[kind]


def read_equivalent(sources):
    """{(file, lines out, lines in)} of the kept list; see its head for the format."""
    path = ROOT / EQUIVALENT
    known = set()
    for number, block in enumerate(re.split(r"\n\s*\n", path.read_text()), 1):
        lines = [line for line in block.split("\n") if line.strip()]
        if not lines or all(line.startswith("#") for line in lines):
            continue
        file = lines[0].strip()
        out = "\n".join(line[1:].strip() for line in lines if line.startswith("-"))
        in_ = "\n".join(line[1:].strip() for line in lines if line.startswith("+"))
        if not out or not any(line.startswith("#") for line in lines):
            fail(f"{EQUIVALENT}: block {number} needs a file, - and + lines and a reason after #")
        text = "\n".join(line.strip() for line in sources.get(file, "").split("\n"))
        if out not in text:
            print(f"note: {EQUIVALENT}: {file} does not have {out!r} any more", file=sys.stderr)
        known.add((file, out, in_))
    return known


# ---- The copy of the tree, and what is built of it.


class Copy:
    def __init__(self, folder, jobs):
        self.source = folder / "source"
        self.build = self.source / "build" / "cpu"  # as in the tree, so that ccache finds it
        self.scratch = folder / "tmp"
        self.jobs = jobs
        self.objects = {}  # of the sources as they are: hash by path

    def synchronize(self):
        """Takes over what is new in the tree, and takes back a change that was left behind."""
        names = subprocess.run(
            ["git", "-C", str(ROOT), "ls-files", "-z", "-c", "-o", "--exclude-standard"],
            check=True, capture_output=True,
        ).stdout.decode().split("\0")
        wanted = {name for name in names if name and (ROOT / name).is_file()}
        for name in wanted:
            new, old = ROOT / name, self.source / name
            data = new.read_bytes()
            if not old.is_file() or old.read_bytes() != data:
                old.parent.mkdir(parents=True, exist_ok=True)
                old.write_bytes(data)
            if old.stat().st_mode != new.stat().st_mode:
                old.chmod(new.stat().st_mode)
        for old in list(self.source.rglob("*")):
            name = str(old.relative_to(self.source))
            if not name.startswith("build/") and old.is_file() and name not in wanted:
                old.unlink()

    def configure(self):
        subprocess.run(
            ["cmake", "--preset", "cpu", "-DSPARSELLM_BENCHMARKS=OFF",
             "-DSPARSELLM_TESTS=ON", "-DCMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE=PRE_TEST"],
            cwd=self.source, check=True, stdout=subprocess.DEVNULL,
        )

    def ninja(self, *arguments):
        return subprocess.run(
            ["ninja", "-C", str(self.build), "-j", str(self.jobs), *arguments],
            capture_output=True, text=True, errors="replace",
        )

    def build_all(self, tests):
        result = self.ninja(*tests)
        if result.returncode != 0:
            fail("the sources do not build as they are:\n" + result.stdout[-3000:])
        self.objects = {p: self.hash_of(p) for p in self.build.rglob("*.o")}

    @staticmethod
    def hash_of(path):
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def commands(self):
        return json.loads((self.build / "compile_commands.json").read_text())

    def users(self):
        """{file: objects that depend on it}, of the last build."""
        users = collections.defaultdict(set)
        target = None
        for line in self.ninja("-t", "deps").stdout.split("\n"):
            if line.startswith("    "):
                path = os.path.normpath(self.build / line.strip())
                if path.startswith(str(self.source) + "/"):
                    users[os.path.relpath(path, self.source)].add(target)
            elif line.endswith("(VALID)"):
                target = line.split(": ")[0]
        return users

    def write(self, file, text):
        (self.source / file).write_text(text)


def test_programs(copy):
    """{name: its sources} of the test programs."""
    programs = collections.defaultdict(list)
    for command in copy.commands():
        match = re.search(r"CMakeFiles/(\w+_test)\.dir/", command.get("output", command["command"]))
        if match:
            programs[match.group(1)].append(os.path.relpath(command["file"], copy.source))
    return dict(programs)


class Tests:
    def __init__(self, copy, programs):
        self.copy = copy
        self.programs = programs
        self.seconds = {}  # that a program takes if all is well

    def run(self, program, gtest_filter=None):
        """"passed", "failed" or "timeout". As many parts of it at a time as there are jobs; the
        first that fails ends it."""
        # A filter leaves too little to share.
        parts = 1 if gtest_filter else self.copy.jobs
        limit = max(SHORTEST_LIMIT_S, SLOWDOWN * self.seconds.get(program, 600.0))
        shutil.rmtree(self.copy.scratch, ignore_errors=True)
        self.copy.scratch.mkdir(parents=True)
        command = [str(self.copy.build / "bin" / program), "--gtest_fail_fast", "--gtest_brief=1"]
        if gtest_filter:
            command.append("--gtest_filter=" + gtest_filter)
        running = []
        log = open(self.copy.scratch.parent / "test.log", "wb")
        try:
            for part in range(parts):
                environment = dict(
                    os.environ, TMPDIR=str(self.copy.scratch), GTEST_TOTAL_SHARDS=str(parts),
                    GTEST_SHARD_INDEX=str(part),
                )
                running.append(subprocess.Popen(
                    command, cwd=self.copy.build, env=environment, stdout=log, stderr=log,
                    stdin=subprocess.DEVNULL, start_new_session=True,
                    preexec_fn=lambda: resource.setrlimit(
                        resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
                ))
            end = time.monotonic() + limit
            while running:
                if time.monotonic() > end:
                    return "timeout"
                for process in list(running):
                    if process.poll() is not None:
                        running.remove(process)
                        if process.returncode != 0:
                            return "failed"
                time.sleep(0.01)
            return "passed"
        finally:
            for process in running:
                os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
                process.wait()
            log.close()
            shutil.rmtree(self.copy.scratch, ignore_errors=True)

    def stamp(self, program):
        """Of what a run of it depends on but for test data."""
        names = [program]
        if "tests/tools/run_program.cpp" in self.programs[program]:
            names += sorted(p.name for p in (self.copy.build / "bin").glob("sparsellm-*"))
        return " ".join(self.copy.hash_of(self.copy.build / "bin" / name) for name in names)

    def measure(self):
        """All of them have to pass before anything is changed. What has not been built anew since
        has passed already."""
        path = self.copy.source.parent / "seconds.json"
        known = json.loads(path.read_text()) if path.is_file() else {}
        for program in sorted(self.programs):
            stamp = self.stamp(program)
            if program not in known or known[program]["stamp"] != stamp:
                start = time.monotonic()
                if self.run(program) != "passed":
                    log = (self.copy.source.parent / "test.log").read_text(errors="replace")
                    fail(f"{program} fails without any change:\n{log[-3000:]}")
                known[program] = {"stamp": stamp, "seconds": time.monotonic() - start}
                print(f"  {program}: {known[program]['seconds']:.1f} s", file=sys.stderr)
                path.write_text(json.dumps(known))
            self.seconds[program] = known[program]["seconds"]

    def in_order(self, file):
        """(program, filter): first the tests of this very file, then whole programs; the quick ones,
        and those with tests of its folder, first."""
        folder, stem = os.path.split(os.path.splitext(file)[0])
        stem = re.sub(r"_(cpu|args|loader)$", "", stem)
        first, rest = [], []
        for program, sources in self.programs.items():
            own = [s for s in sources if re.search(rf"/{re.escape(stem)}\w*_test\.cpp$", s)]
            suites = set()
            for source in own:
                text = (self.copy.source / source).read_text()
                suites |= set(re.findall(r"\bTEST(?:_[FP])?\((\w+),", text))
            if suites:
                patterns = ":".join(f"{s}.*:*/{s}.*" for s in sorted(suites))
                first.append((self.seconds[program], program, patterns))
            # A test of the same folder is worth a wait.
            near = own or any(os.path.dirname(s) == "tests/" + folder for s in sources)
            rest.append((self.seconds[program] * (0.1 if near else 1.0), program))
        return [(p, f) for _, p, f in sorted(first)] + [(p, None) for _, p in sorted(rest)]


# ---- Verdicts.

COUNTED = ("seen", "timeout", "unseen")


def judge(copy, tests, users, mutant, source):
    """Builds and tests a change: (verdict, by which program)."""
    copy.write(mutant.file, changed(source, mutant))
    try:
        objects = sorted(users[mutant.file])
        if copy.ninja(*objects).returncode != 0:
            return "does not compile", ""
        paths = [copy.build / o for o in objects]
        if all(copy.hash_of(p) == copy.objects.get(p) for p in paths):
            return "same code", ""
        built = set()
        for program, gtest_filter in tests.in_order(mutant.file):
            if program not in built:
                plan = copy.ninja("-n", program).stdout
                if not re.search(r"(?:Building|Linking) CXX", plan):
                    continue  # does not depend on the file
                if copy.ninja(program).returncode != 0:
                    return "does not compile", ""
                built.add(program)
            result = tests.run(program, gtest_filter)
            if result != "passed":
                return "timeout" if result == "timeout" else "seen", program
        return "unseen", ""
    finally:
        copy.write(mutant.file, source)


class Verdicts:
    """Kept in a file, a line each."""

    def __init__(self, path):
        self.path = path
        self.of = {}
        if path.is_file():
            for line in path.read_text().split("\n"):
                try:
                    entry = json.loads(line)
                    self.of[entry["key"]] = (entry["verdict"], entry["by"], entry["seconds"])
                except (ValueError, KeyError):
                    pass  # the end of a file that an interrupt has cut

    def add(self, key, mutant, verdict, by, seconds):
        self.of[key] = (verdict, by, seconds)
        entry = {"key": key, "file": mutant.file, "kind": mutant.kind, "verdict": verdict,
                 "by": by, "seconds": round(seconds, 1)}
        with open(self.path, "a") as file:
            file.write(json.dumps(entry) + "\n")


def table(rows, title, of):
    columns = ("seen", "timeout", "unseen", "does not compile", "same code", "equivalent")
    groups = collections.defaultdict(collections.Counter)
    for mutant, verdict in rows:
        groups[of(mutant)][verdict] += 1
        groups["all"][verdict] += 1
    print(f"\n{title:20}" + "".join(f"{c:>18}" for c in columns) + f"{'share seen':>12}")
    for name in sorted(groups, key=lambda n: (n == "all", n)):
        counts = groups[name]
        counted = sum(counts[c] for c in COUNTED)
        share = f"{100 * (counted - counts['unseen']) / counted:.1f} %" if counted else "-"
        print(f"{name:20}" + "".join(f"{counts[c]:18}" for c in columns) + f"{share:>12}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="changes that count (300)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--files", nargs="+", default=["*"], metavar="GLOB",
                        help="only in these files, e.g. 'engine/*'")
    parser.add_argument("--threshold", type=float, default=95.0, metavar="PERCENT",
                        help="that have to be seen for exit code 0 (95)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mutate",
                        help="of copy and verdicts (build/mutate)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--again", action="store_true", help="judges anew what was not seen")
    parser.add_argument("--show", action="store_true", help="prints the changes, judges none")
    options = parser.parse_args()
    if options.count < 1 or options.jobs < 1:
        fail("--count and --jobs are at least 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))

    copy = Copy(options.folder.resolve(), options.jobs)
    copy.source.mkdir(parents=True, exist_ok=True)
    copy.synchronize()
    copy.configure()
    compiled = {os.path.relpath(c["file"], copy.source) for c in copy.commands()}
    names = [n for n in compiled if n.split("/")[0] in FOLDERS]
    programs = test_programs(copy)
    users = collections.defaultdict(set)
    if not options.show:
        print("building the sources as they are", file=sys.stderr)
        copy.build_all(sorted(programs))
        users = copy.users()
        names = [n for n in users if n.split("/")[0] in FOLDERS
                 and (n.endswith(".cpp") or len(users[n]) <= MAX_HEADER_USERS)]
    matches = lambda name, globs: any(fnmatch.fnmatch(name, g) for g in globs)
    names = sorted(n for n in names if matches(n, options.files) and not matches(n, FOR_CUDA))
    sources = {n: (copy.source / n).read_text() for n in names}
    equivalent = read_equivalent({str(p.relative_to(ROOT)): p.read_text() for f in FOLDERS
                                  for p in (ROOT / f).rglob("*") if p.suffix in (".cpp", ".h")})
    mutants = [m for n in names for m in mutants_of(n, sources[n])]
    print(f"{len(mutants)} changes are possible in {len(names)} files", file=sys.stderr)

    if options.show:
        for mutant in list(in_random_order(mutants, options.seed))[: options.count]:
            print(diff_of(sources[mutant.file], mutant))
        return 0

    tests = Tests(copy, programs)
    print("the tests without any change", file=sys.stderr)
    tests.measure()
    verdicts = Verdicts(options.folder / "verdicts.jsonl")
    rows = []
    counted = 0
    interrupted = False
    try:
        for mutant in in_random_order(mutants, options.seed):
            if counted == options.count:
                break
            source = sources[mutant.file]
            key = key_of(source, mutant)
            if (mutant.file, *changed_lines(source, mutant)) in equivalent:
                rows.append((mutant, "equivalent"))
                continue
            if key not in verdicts.of or (options.again and verdicts.of[key][0] == "unseen"):
                start = time.monotonic()
                verdict, by = judge(copy, tests, users, mutant, source)
                verdicts.add(key, mutant, verdict, by, time.monotonic() - start)
            verdict, by, seconds = verdicts.of[key]
            rows.append((mutant, verdict))
            counted += verdict in COUNTED
            line = bisect.bisect_left([m.start() for m in re.finditer("\n", source)],
                                      mutant.begin) + 1
            print(f"{counted:4} {mutant.file}:{line} {mutant.kind}: {verdict} {by} "
                  f"({seconds:.1f} s)", file=sys.stderr)
    except (KeyboardInterrupt, SystemExit):
        interrupted = True
        print("interrupted; the same command goes on", file=sys.stderr)

    table(rows, "folder", lambda m: m.file.split("/")[0])
    table(rows, "change", lambda m: m.kind)
    unseen = [m for m, verdict in rows if verdict == "unseen"]
    if unseen:
        print(f"\nNot seen by any test ({EQUIVALENT} is for those that cannot be):\n")
        for mutant in unseen:
            print(diff_of(sources[mutant.file], mutant))
    if interrupted:
        return 130
    share = 100.0 * (counted - len(unseen)) / counted if counted else 100.0
    print(f"{counted - len(unseen)} of {counted} seen: {share:.1f} %; at least "
          f"{options.threshold:g} % are wanted")
    return 0 if share >= options.threshold else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        sys.exit(130)
