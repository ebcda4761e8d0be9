#!/usr/bin/env python3
"""Measures what pruning and narrow values do to the models of tests/data, on the CPU.

    docs/benchmarks/measure_quality.py [--made] BUILD WORK [FOLDER]

BUILD is a build folder with sparsellm-convert and sparsellm-eval. Models and single reports go to
WORK, and what is there is not made again; all takes about an hour of one core. FOLDER
(docs/benchmarks/quality) gets a file for each model: its environment, and a row a comparison.
With --made these are of what there is in WORK, and nothing is measured.
"""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = "tests/data/models"
TEXT = "tests/data/text/peter_pan.txt"
CALIBRATION = "tests/data/text/calibration.txt"
NAMES = ["fable-opt-8m", "fable-llama-relu-8m"]
ZEROS = [0.5, 0.6, 0.7, 0.8]
# Of what sparsellm-eval compare writes.
KEPT = ["text", "protocol", "context", "windows", "tokens", "perplexity_a",
        "perplexity_a_standard_error", "perplexity_b", "perplexity_b_standard_error",
        "perplexity_ratio", "perplexity_ratio_standard_error", "kl_mean", "kl_standard_error",
        "kl_median", "kl_p99", "kl_max", "top1_agreement_percent"]


def made(path, command, only_made):
    """What the command writes, kept in `path`; None if it is not there and must not be made."""
    if not path.exists():
        if only_made:
            return None
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            subprocess.run(list(map(str, command)), cwd=ROOT, stdout=file, check=True)
        part.rename(path)
    return json.loads(path.read_text(encoding="utf-8"))


def convert_flags(zeros, values):
    prune = ["--prune", "none"]
    if zeros > 0:
        prune = ["--prune", "wanda", "--sparsity", zeros, "--calibration", CALIBRATION]
    return [*prune, "--format", "tca_bme", *([] if values == "f16" else ["--values", values])]


def bits_per_weight(report):
    """Of all linear layers, and the share of their elements that are zero."""
    layers = next(table for table in report["tables"] if table["name"] == "weights")["rows"]
    elements = sum(layer["out"] * layer["in"] for layer in layers)
    return (8 * sum(layer["stored_bytes"] for layer in layers) / elements,
            1 - sum(layer["nonzeros"] for layer in layers) / elements)


def comparisons():
    """Zeros, values, and what the model is compared with: the dense one, or that with the same
    zeros in f16."""
    for zeros in ZEROS:
        yield zeros, "f16", "dense"
        for values in ("i8", "i4"):
            yield zeros, values, "zeros"
            yield zeros, values, "dense"
    yield 0.0, "i4", "dense"


def measure(build, work, name, only_made):
    for zeros, values, against in comparisons():
        model = work / "out" / f"{name}-{zeros}-{values}"
        report = work / "rep" / f"{name}-{zeros}-{values}"
        reference = ROOT / MODELS / name
        if against == "zeros":
            reference = work / "out" / f"{name}-{zeros}-f16"
        converted = made(pathlib.Path(f"{report}.convert.json"), [
            build / "bin/sparsellm-convert", "-m", f"{MODELS}/{name}", "--output", model,
            *convert_flags(zeros, values), "--force", "--json", "--quiet"], only_made)
        compared = made(pathlib.Path(f"{report}.vs-{against}.json"), [
            build / "bin/sparsellm-eval", "compare", reference, model, "--text", TEXT, "--json",
            "--quiet"], only_made)
        if converted is None or compared is None:
            continue
        bits, share = bits_per_weight(converted)
        of_reference = {}
        if against == "zeros":
            path = work / "rep" / f"{name}-{zeros}-f16.convert.json"
            of_reference = {"reference_bits_per_weight":
                            bits_per_weight(json.loads(path.read_text(encoding="utf-8")))[0]}
        yield {"table": "quality", "zeros": zeros, "values": values, "against": against,
               "bits_per_weight": bits, "share_of_zeros": share, **of_reference,
               **{key: compared[key] for key in KEPT}}


def main():
    words = sys.argv[1:]
    only_made = words[:1] == ["--made"]
    words = words[only_made:]
    if len(words) not in (2, 3):
        sys.exit(f"usage: {__doc__.splitlines()[2].strip()}")
    build, work = (pathlib.Path(text).resolve() for text in words[:2])
    folder = pathlib.Path(words[2]) if len(words) > 2 else ROOT / "docs/benchmarks/quality"
    for path in (work / "out", work / "rep", folder):
        path.mkdir(parents=True, exist_ok=True)
    version = subprocess.run([build / "bin/sparsellm-eval", "--version"], capture_output=True,
                             text=True, check=True).stdout.split()
    for name in NAMES:
        environment = {
            "table": "environment", "version": version[1], "commit": version[3].rstrip(")"),
            "command": f"sparsellm-eval compare REFERENCE MODEL --text {TEXT} --json",
            "convert": f"sparsellm-convert -m {MODELS}/{name} --output MODEL --prune wanda "
                       f"--sparsity S --calibration {CALIBRATION} --format tca_bme --values V",
            "model": name, "device": "cpu"}
        rows = [environment, *measure(build, work, name, only_made)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows),
                                              encoding="utf-8")


if __name__ == "__main__":
    main()
