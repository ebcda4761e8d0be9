#!/usr/bin/env python3
"""tools/pareto.py, over made-up reports.

    tests/tools/pareto_test.py

With SPARSELLM_BIN, the folder of the programs, over theirs, too.
"""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import xml.etree.ElementTree as xml
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import pareto  # noqa: E402

ENVIRONMENT = {"commit": "aaaaaaaaaaaa", "device": "cpu", "cpu": "a CPU",
               "command": "sparsellm-bench throughput --prompt 8 --output 8"}


def report_of(name, rows, environment):
    return {"environment": environment, "tables": [{"name": name, "columns": [], "rows": rows}]}


def convert_report(bits, **changed):
    layer = {"module": "a", "out": 100, "in": 80, "stored_bytes": int(bits * 1000), **changed}
    return report_of("weights", [layer], {})


def eval_report(perplexity, kl, **changed):
    return {"model_a": "dense", "model_b": "b", "text": "t.txt", "protocol": "windows",
            "context": 512, "decode": False, "windows": 3, "tokens": 1533,
            "perplexity_b": perplexity, "kl_mean": kl, **changed}


def throughput_rows(speed):
    return [{"batch": batch, "output": 8, "ranks": 1, "tokens_per_gpu_second": speed * batch,
             "note": None} for batch in (1, 8)]


def lines_of(rows, environment):
    return "".join(json.dumps(line) + "\n" for line in
                   [{"table": "environment", **environment}] +
                   [{"table": "throughput", **row} for row in rows])


class Pareto(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.models = []

    def write(self, name, value):
        text = value if isinstance(value, str) else json.dumps(value)
        (self.folder / name).write_text(text, encoding="utf-8")
        return name

    def add(self, label, bits, speed, perplexity, kl):
        at = len(self.models)
        self.models.append({
            "label": label,
            "convert": self.write(f"c{at}", convert_report(bits)),
            "eval": self.write(f"e{at}", eval_report(perplexity, kl)),
            "throughput": self.write(f"t{at}", lines_of(throughput_rows(speed), ENVIRONMENT)
                                     if at % 2 else report_of(
                                         "throughput", throughput_rows(speed), ENVIRONMENT))})

    def add_some(self):
        self.add("dense", 16, 10, 50, 0)
        self.add("sparse | 60 %", 10, 14, 52.5, 0.125)
        self.add("worse", 10, 13, 53, 0.2)
        self.add("i8 $x$", 6, 20, 52.5, 0.126)

    def run_script(self, *args):
        self.write("list.json", self.models)
        return self.run_over("list.json", *args)

    def run_over(self, models, *args):
        out, err = io.StringIO(), io.StringIO()
        with mock.patch.object(sys, "argv", ["pareto.py", str(self.folder / models), *args]), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = pareto.main()
        return types.SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())

    def refused(self, *parts, args=()):
        outcome = self.run_script(*args)
        self.assertNotEqual(outcome.returncode, 0)
        self.assertEqual(outcome.stdout, "")
        self.assertEqual(len(outcome.stderr.splitlines()), 1, outcome.stderr)
        for part in parts:
            self.assertIn(part, outcome.stderr)

    def test_table(self):
        self.add_some()
        outcome = self.run_script()
        self.assertEqual(outcome.stderr, "")
        self.assertEqual(outcome.stdout.splitlines(), [
            "| model | bits a weight | tokens/s | perplexity | KL | dominated by |",
            "|---|--:|--:|--:|--:|---|",
            "| dense | 16.00 | 10.0 | 50.000 | 0.00000 | |",
            "| sparse \\| 60 % | 10.00 | 14.0 | 52.500 | 0.12500 | i8 $x$ |",
            "| worse | 10.00 | 13.0 | 53.000 | 0.20000 | sparse \\| 60 % |",
            "| i8 $x$ | 6.00 | 20.0 | 52.500 | 0.12600 | |"])

    def test_program(self):
        self.add_some()
        self.write("list.json", self.models)
        outcome = subprocess.run(
            [sys.executable, "-B", str(ROOT / "tools/pareto.py"), "list.json"], cwd=self.folder,
            capture_output=True, text=True, check=False)
        self.assertEqual((outcome.returncode, outcome.stderr), (0, ""))
        self.assertEqual(outcome.stdout, self.run_script().stdout)

    def test_batch(self):
        self.add_some()
        self.assertIn("| 80.0 |", self.run_script("--batch", "8").stdout)
        self.refused("0 rows of 4 requests", "1, 8", args=("--batch", "4"))

    def test_equal_models_do_not_dominate_each_other(self):
        self.add("a", 6, 20, 50, 0.1)
        self.add("b", 6, 20, 50, 0.2)
        outcome = self.run_script()
        self.assertEqual(outcome.stdout.count("| |"), 2, outcome.stdout)

    def test_picture(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.add_some()
            self.refused("matplotlib", args=("--picture", str(self.folder / "p.svg")))
            self.skipTest("there is no matplotlib")
        self.add_some()
        self.models[2]["label"] = "_<b> & \\frac{ $"
        drawings = []
        for name in ("p.svg", "q.svg"):
            outcome = self.run_script("--picture", str(self.folder / name), "--table",
                                      str(self.folder / "t.md"))
            self.assertEqual((outcome.stdout, outcome.stderr), ("", ""))
            drawings.append((self.folder / name).read_bytes())
        self.assertEqual(drawings[0], drawings[1])
        texts = "".join(xml.fromstring(drawings[0]).itertext())
        for part in ("dense", "sparse | 60 % (dominated)", "<b> & \\frac{ $", "i8 $x$", "tokens/s",
                     "bits a weight", "perplexity", "KL"):
            self.assertIn(part, texts)
        self.assertIn("| dense |", (self.folder / "t.md").read_text())
        self.assertEqual(sorted(path.name for path in self.folder.iterdir() if path.suffix),
                         ["list.json", "p.svg", "q.svg", "t.md"])

    def test_files_that_cannot_be_written(self):
        self.add_some()
        self.refused("cannot write", args=("--table", str(self.folder / "none/t.md")))

    def test_lists(self):
        for models, part in [
                ([], "no list of models"), ({}, "no list of models"), ([1], "no \"label\""),
                ([{"label": "a"}], "model 1 has no \"convert\""),
                ([{"label": ""}], "the label is"), ([{"label": "a\nb"}], "the label is"),
                ([{"label": 7}], "the label is 7"),
                ([{"label": "a", "colour": 1}], "unknown key \"colour\""),
                ([{"label": "a", "convert": 5}], "is 5, no path"),
                ([{"label": "a", "convert": "x\0", "eval": "y", "throughput": "z"}], "no path"),
                ([{"label": "a", "convert": "no", "eval": "no", "throughput": "no"}],
                 "No such file")]:
            with self.subTest(part=part):
                self.models = models
                self.refused(part)
        self.models = []
        self.add_some()
        self.models[1]["label"] = "dense"
        self.refused("another model is called \"dense\"")
        outcome = self.run_over(".")
        self.assertEqual(outcome.returncode, 1)
        self.assertEqual(len(outcome.stderr.splitlines()), 1)

    def test_hostile_reports(self):
        for key in ("convert", "eval", "throughput"):
            for text in ("", "{", "null", "7", "\"x\"", "[]", "{}", "[" * 100000,
                         "{\"tables\":[1]}",
                         "{\"environment\":{},\"tables\":[{\"name\":\"weights\",\"rows\":{}}]}",
                         "{\"environment\":[],\"tables\":[]}", "{\"table\":\"environment\"}\n{",
                         "{\"environment\":{},\"tables\":[{\"name\":\"weights\",\"rows\":[3]},"
                         "{\"name\":\"throughput\",\"rows\":[3]}]}"):
                with self.subTest(key=key, text=text[:40]):
                    self.models = []
                    self.add_some()
                    self.write(self.models[1][key], text)
                    self.refused(self.models[1][key])
            self.models = []
            self.add_some()
            (self.folder / self.models[1][key]).write_bytes(b"\xff\xfe{}")
            self.refused("no text in UTF-8")

    def test_hostile_figures(self):
        for value in ("NaN", "Infinity", "-1", "1e999", "0", "true", "null", "\"9\"", "[]",
                      "1" + 400 * "0"):
            for key, text, what in [
                    ("convert", json.dumps(convert_report(4, stored_bytes="VALUE")),
                     "stored_bytes"),
                    ("convert", json.dumps(convert_report(4, out="VALUE")), "out"),
                    ("eval", json.dumps(eval_report("VALUE", 0.1)), "perplexity_b"),
                    ("throughput", lines_of(throughput_rows(1)[:1], ENVIRONMENT).replace(
                        "\"tokens_per_gpu_second\": 1", "\"tokens_per_gpu_second\": \"VALUE\""),
                     "tokens_per_gpu_second")]:
                with self.subTest(value=value[:9], what=what):
                    self.models = []
                    self.add_some()
                    self.write(self.models[1][key], text.replace("\"VALUE\"", value))
                    self.refused(f"\"{what}\" is")
        for key in ("stored_bytes", "out", "in"):
            self.models = []
            self.add_some()
            self.write(self.models[1]["convert"], convert_report(4, **{key: 1e308}))
            self.refused(f"\"{key}\" is 1e+308, which no file or matrix has")
        self.models = []
        self.add_some()
        self.write(self.models[1]["eval"], eval_report(50, -0.5))
        self.refused("\"kl_mean\" is -0.5")

    def test_what_is_not_comparable(self):
        def refused(key, report, what):
            with self.subTest(what=what):
                self.models = []
                self.add_some()
                self.write(self.models[2][key], report)
                self.refused("not comparable", f"\"{what}\"")

        for what, value in [("text", "u.txt"), ("tokens", 9), ("context", 4), ("decode", True),
                            ("model_a", "another")]:
            refused("eval", eval_report(50, 0.1, **{what: value}), what)
        rows = throughput_rows(5)
        for what, value in [("cpu", "another"), ("gpu", "one"), ("device", "cuda:0")]:
            refused("throughput", lines_of(rows, {**ENVIRONMENT, what: value}), what)
        for flag in ("--prompt 9", "--prompt=9", "--prompt 8 --prompt=9"):
            refused("throughput", lines_of(
                rows, {**ENVIRONMENT, "command": f"sparsellm-bench throughput {flag}"}), "--prompt")
        refused("throughput", lines_of([{**row, "output": 9} for row in rows], ENVIRONMENT),
                "output")

    def test_commands(self):
        for command in ("sparsellm-bench throughput --prompt=8 --output 8",
                        "sparsellm-bench throughput --model a\u2028b\u0085c --prompt 8"):
            self.models = []
            self.add_some()
            lines = lines_of(throughput_rows(5), {**ENVIRONMENT, "command": command})
            self.write(self.models[2]["throughput"],
                       lines.replace("\\u2028", "\u2028").replace("\\u0085", "\u0085"))
            self.assertEqual(self.run_script().stderr, "")

    def test_several_or_failed_measurements(self):
        self.add_some()
        name = self.models[1]["throughput"]
        lines = lines_of(throughput_rows(5), ENVIRONMENT)
        self.write(name, lines + lines)
        self.refused("several reports")
        self.write(name, lines_of(throughput_rows(5) * 2, ENVIRONMENT))
        self.refused("2 rows of 1 requests")
        self.write(name, lines_of([{"batch": 1, "output": 8, "ranks": 1, "note": "no memory",
                                    "tokens_per_gpu_second": None}], ENVIRONMENT))
        self.refused("1 requests were not measured: \"no memory\"")
        self.write(name, lines_of(throughput_rows(5), {**ENVIRONMENT, "command": "a \"b"}))
        self.refused("is no command line")

    @unittest.skipUnless("SPARSELLM_BIN" in os.environ, "there is no SPARSELLM_BIN")
    def test_reports_of_the_programs(self):
        programs = pathlib.Path(os.environ["SPARSELLM_BIN"])
        reference = ROOT / "tests/data/tiny/llama3"
        text = self.folder / self.write("text.txt", "Once upon a time there was a fox.")

        def report(name, program, *args):
            outcome = subprocess.run([str(programs / program), *map(str, args), "--quiet"],
                                     capture_output=True, text=True, check=False)
            self.assertEqual(outcome.returncode, 0, outcome.stderr)
            return self.write(name, outcome.stdout)

        for label, flags, form in [("dense", ["--format", "dense"], "json"),
                                   ("i8", ["--prune", "magnitude", "--sparsity", "0.5", "--format",
                                           "tca_bme", "--values", "i8"], "jsonl")]:
            model = self.folder / f"model {label}"
            self.models.append({
                "label": label,
                "convert": report(f"{label}.c", "sparsellm-convert", "-m", reference, "--output",
                                  model, *flags, "--json", "-t", 1),
                "eval": report(f"{label}.e", "sparsellm-eval", "compare", reference, model,
                               "--device", "cpu", "--text", text, "--context", 8, "--json"),
                "throughput": report(f"{label}.t", "sparsellm-bench", "throughput", "-m", model,
                                     "--device", "cpu", "--batch", 1, "--prompt", 4, "--output", 4,
                                     "--repeat", 1, "--format", form, "-t", 1)})
        outcome = self.run_script()
        self.assertEqual(outcome.stderr, "")
        rows = [[cell.strip() for cell in line.split("|")[1:-1]]
                for line in outcome.stdout.splitlines()[2:]]
        self.assertEqual([row[0] for row in rows], ["dense", "i8"])
        self.assertGreaterEqual(float(rows[0][1]), 16.0)
        self.assertLess(float(rows[1][1]), 16.0)
        self.assertEqual(float(rows[0][4]), 0.0)
        self.assertGreater(float(rows[1][4]), 0.0)


if __name__ == "__main__":
    unittest.main()
