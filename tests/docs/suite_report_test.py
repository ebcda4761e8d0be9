#!/usr/bin/env python3
"""docs/benchmarks/suite_report.py, over made-up results of the suites in configs/benchmarks.

    tests/docs/suite_report_test.py

With SPARSELLM_BENCH, a path of sparsellm-bench, the names of cells are compared with its.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "docs/benchmarks"
SUITES = ROOT / "configs/benchmarks"
sys.path.insert(0, str(SCRIPTS))

from suite_files import Cell, matching, read_suite  # noqa: E402
from suite_panels import engine_panels  # noqa: E402
from suite_results import read_list, read_results, views  # noqa: E402

H200, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"


def engine_row(cell, rate, memory=40.0):
    return {"batch": cell.batch, "ranks": cell.gpus, "output": cell.output, "pattern": "uniform",
            "tokens_per_gpu_second": rate, "tokens_per_gpu_second_min": rate,
            "tokens_per_gpu_second_max": rate, "prefill_ms": 1e4 / rate, "decode_ms": 5e3 / rate,
            "memory_gib": memory, "note": ""}


def kernel_row(cell, speedup):
    out, columns = map(int, cell.subject.split("x"))
    return {"out": out, "in": columns, "tokens": cell.tokens, "sparsity": 0.8, "pattern": "uniform",
            "format": cell.format, "time_us": 100 / speedup, "speedup": speedup,
            "library_speedup": speedup, "note": ""}


def line_of(suite, cell, row=None, gpu=H200, commit="aaaaaaaaaaaa", date="2026-11-28", **more):
    environment = {"commit": commit, "date": f"{date}T10:00:00Z", "driver": "580.1"}
    if gpu != "cpu":
        environment |= {"gpu": gpu, "gpu_count": 2}
    value = {"suite": suite, "cell": cell.name if isinstance(cell, Cell) else cell,
             "commit": commit, "gpu": gpu, "environment": environment, **more}
    if row is not None:
        value["row"] = row
    return json.dumps(value)


def cells_of(name):
    return read_suite(SUITES / f"{name}.json").cells


def row_of(text, *begin):
    """The cells of the row of a table that begins so; empty ones repeat those above."""
    above = []
    for line in text.splitlines():
        if not line.startswith("|"):
            above = []
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        full = [mine or (above[at] if at < len(above) else "") for at, mine in enumerate(cells)]
        above = full
        if full[:len(begin)] == list(begin):
            return cells[len(begin):]
    raise AssertionError(f"no row {begin} in\n{text}")


class SuiteReport(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.folder = pathlib.Path(self._folder.name)

    def run_report(self, lines, *arguments, end="\n"):
        (self.folder / "results.jsonl").write_text("\n".join(lines) + end, encoding="utf-8")
        return subprocess.run(
            [sys.executable, "-B", SCRIPTS / "suite_report.py", self.folder, *arguments],
            capture_output=True, text=True, check=False)

    def report(self, lines, *arguments, end="\n"):
        outcome = self.run_report(lines, *arguments, end=end)
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        return (self.folder / "report.md").read_text(encoding="utf-8")

    def refused(self, lines, *arguments):
        outcome = self.run_report(lines, *arguments)
        self.assertEqual(outcome.returncode, 1, outcome.stderr)
        self.assertTrue(outcome.stderr.startswith("suite_report.py: "), outcome.stderr)
        self.assertEqual(outcome.stderr.count("\n"), 1, outcome.stderr)
        self.assertFalse((self.folder / "report.md").exists())
        return outcome.stderr

    def throughput_lines(self, **more):
        rates = {"dense/1gpu": 400, "dense/2gpu": 300, "tiled_csl": 480, "auto": 540}
        lines = []
        for cell in cells_of("flash_llm_fig13"):
            rate = next(rate for part, rate in rates.items() if part in cell.name)
            lines.append(line_of("flash_llm_fig13", cell, engine_row(cell, rate * cell.batch / 8),
                                 **more))
        return lines

    def test_throughput(self):
        text = self.report(self.throughput_lines())
        self.assertEqual(row_of(text, "OPT-30B", "1", "`tiled_csl`, plan flash-llm"),
                         ["480", "960", "1,920", "3,840"])
        over = "sparse on 1 GPU over dense on 2"
        self.assertEqual(row_of(text, f"ours: {over}, `tiled_csl`")[-4:], ["1.60"] * 4)
        self.assertEqual(row_of(text, f"ours: {over}, `auto`")[-4:], ["1.80"] * 4)
        self.assertEqual(row_of(text, f"**stated**: {over}, over FasterTransformer, A100")[-4:],
                         ["1.75", "1.70", "1.55", "1.41"])
        for at, verdict in ("8", "no"), ("16", "no"), ("32", "yes"), ("64", "yes"):
            claim = row_of(text, f"{over}, {at}")
            self.assertEqual(claim[2:], ["1.60", verdict], at)
        self.assertEqual(row_of(text, "dense on 1 GPU, at most")[-1], "baseline")
        self.assertEqual(row_of(text, "sparse on 1 GPU")[1:], ["1,187 tokens/s", "3,840", "yes"])
        self.assertIn("Flash-LLM's prompts, GPU (A100)", " ".join(text.split()))
        self.assertIn("baseline (FasterTransformer) are others", " ".join(text.split()))
        self.assertIn("commit aaaaaaa, 2026-11-28", text)
        tables = len(re.findall(r"\n\|---", text))
        self.assertEqual(len(re.findall(r"Ours is measured on", text)), tables)
        self.assertTrue(all(len(line) <= 120 or line.startswith("|")
                            for line in text.splitlines()))

    def test_cells_without_figures_say_why(self):
        lines = []
        for cell in cells_of("flash_llm_fig13"):
            if cell.name == "opt-30b/dense/1gpu/b8/o512":
                lines.append(line_of("flash_llm_fig13", cell, error="out of memory: 9 | 8 <b>"))
            elif cell.name == "opt-30b/dense/1gpu/b16/o512":
                lines.append(line_of("flash_llm_fig13", cell, error="the device | is gone"))
            elif cell.format == "auto":
                lines.append(line_of("flash_llm_fig13", cell, error="no kernels for auto"))
            elif cell.name == "opt-30b/dense/1gpu/b32/o512":
                row = dict(engine_row(cell, 1), tokens_per_gpu_second=None, note="out of memory")
                lines.append(line_of("flash_llm_fig13", cell, row))
        text = self.report(lines)
        self.assertEqual(row_of(text, "OPT-30B", "1", "dense"),
                         ["does not fit", "failed", "does not fit", "not measured"])
        self.assertEqual(row_of(text, "OPT-30B", "1", "`auto`, plan flash-llm")[0], "no kernels")
        self.assertEqual(row_of(text, "sparse on 1 GPU over dense on 2, 8")[2:],
                         ["not measured", ""])
        self.assertIn(r"failed: opt-30b/dense/1gpu/b16/o512: the device \| is gone", text)
        self.assertNotIn("ours: sparse on 1 GPU over dense on 2", text)

    def test_more_gpus_and_the_list(self):
        cells = cells_of("flash_llm_fig15")
        text = self.report([line_of("flash_llm_fig15", cells[0], engine_row(cells[0], 9))])
        self.assertEqual(row_of(text, "OPT-66B", "4", "dense"), ["needs 4 GPUs"] * 4)
        listed = self.folder / "list.txt"
        listed.write_text(
            "flash_llm_fig15/opt-66b/auto/s0.8/1gpu/b64/o512: does not fit: 63.1 of 47.0 GB\n"
            "flash_llm_fig15/opt-66b/auto/s0.8/1gpu/b32/o512: runs, 46.0 GB, about 9 s\n"
            "flash_llm_fig15/opt-66b/tiled_csl/s0.8/1gpu/b8/o512: no kernels for tiled_csl\n"
            "3 of 24 cells run, about 1 min\n", encoding="utf-8")
        self.assertEqual(len(read_list(listed)), 2)
        text = self.report([line_of("flash_llm_fig15", cells[0], engine_row(cells[0], 9))],
                           "--list", listed)
        self.assertEqual(row_of(text, "OPT-66B", "1", "`auto`, 80 %")[-2:],
                         ["not measured", "does not fit"])
        self.assertEqual(row_of(text, "OPT-66B", "1", "`tiled_csl`, 80 %")[0], "no kernels")

    def test_memory(self):
        gib = {8: 34.74, 16: 41.0, 32: 50.0, 64: 70.0, 128: 100.0}
        lines = [line_of("flash_llm_table1", cell, engine_row(cell, 100, gib[cell.batch]))
                 for cell in cells_of("flash_llm_table1") if cell.format == "tiled_csl"]
        lines.append(line_of("flash_llm_table1", "opt-30b/dense/1gpu/b32/o512",
                             error="out of memory: 85 of 80 GB"))
        text = self.report(lines)
        expected = {8: ["34.7", "yes"], 16: ["41.0", "no"], 32: ["50.0", "yes"],
                    64: ["70.0", "yes"], 128: ["fits, 100.0 GiB", "no"]}
        for batch, claim in expected.items():
            self.assertEqual(row_of(text, f"sparse on 1 GPU, {batch}")[2:], claim)
        self.assertEqual(row_of(text, "dense on 1 GPU, 32")[1:],
                         ["out of memory", "does not fit", "yes"])
        self.assertEqual(
            row_of(text, "**stated**: sparse on 1 GPU, Flash-LLM, A100")[-5:],
            ["34.7", "40.8", "52.9", "77.1", "out of memory"])

    def test_breakdown(self):
        lines = []
        for cell in cells_of("general_sparse_fig21"):
            rate = 100 if cell.format == "dense" else 150
            groups = [{"group": "linear layers, dense", "ms_per_step": 5.0, "percent": 50},
                      {"group": "linear layers, tca_bme", "ms_per_step": 2.0, "percent": 20},
                      {"group": "attention", "ms_per_step": 2.0, "percent": 20},
                      {"group": "rest of the step", "ms_per_step": 1.0, "percent": 10}]
            lines.append(line_of("general_sparse_fig21", cell, engine_row(cell, rate),
                                 groups=groups))
        text = self.report(lines)
        self.assertEqual(row_of(text, "OPT-30B", "1", "8", "dense"),
                         ["100.0", "50.00", "7.00 (70 %)", "2.00 (20 %)", "1.00 (10 %)"])
        self.assertEqual(row_of(text, "OPT-66B, prefill, sparse over dense")[1:],
                         ["1.45 x", "1.50", "yes"])
        self.assertEqual(row_of(text, "OPT-66B, decode, sparse over dense")[1:],
                         ["1.63 x", "1.50", "no"])
        self.assertEqual(row_of(text, "OPT-66B, decode, sparse over Flash-LLM")[2:],
                         ["needs --all-formats", ""])

    def test_activation(self):
        lines = [line_of("sparse_infer_fig4", cell,
                         engine_row(cell, 180 if cell.activation else 100))
                 for cell in cells_of("sparse_infer_fig4")]
        text = self.report(lines)
        self.assertEqual(row_of(text, "ProSparse-Llama-2-7B", "dense, predict 80 / 89, sign"),
                         ["27.78"])
        self.assertEqual(row_of(text, "Llama-2-7B, alpha 1.00, over dense")[1:],
                         ["1.74 x", "1.80", "yes"])

    def test_kernels(self):
        lines = []
        for cell in cells_of("flash_llm_fig9_12"):
            speedup = {"s0.7": 1.2, "s0.8": 1.8, "s0.9": 2.5}[cell.zeros]
            speedup = 0.9 if cell.tokens > 256 else speedup
            lines.append(line_of("flash_llm_fig9_12", cell, kernel_row(cell, speedup)))
        text = self.report(lines)
        self.assertEqual(row_of(text, "mean of 12 shapes", "`tiled_csl`, 70 %")[:4], ["1.20"] * 4)
        self.assertEqual(row_of(text, "36864 x 9216", "`tiled_csl`, 80 %")[-2:], ["0.90"] * 2)
        for at, claim in ("0.7", ["1.20", "no"]), ("0.8", ["1.80", "yes"]):
            self.assertEqual(row_of(text, f"8 to 64 tokens, mean of all shapes, {at}")[2:], claim)
        self.assertEqual(row_of(text, "slower than cuBLAS beyond 256 tokens, 512")[1:],
                         ["1.00 x", "0.90", "yes"])

    def test_ratios_of_kernels_are_of_the_same_zeros(self):
        lines = []
        for cell in cells_of("general_sparse_fig14"):
            base = 1.5 if cell.zeros == "s0.9" else 1.0
            base *= 2 if cell.pattern else 1
            ours = base * (1.35 if cell.format == "general_sparse" else 1)
            lines.append(line_of("general_sparse_fig14", cell, kernel_row(cell, ours)))
        text = self.report(lines)
        self.assertEqual(row_of(text, "over Flash-LLM, mean, 8")[2:], ["1.35", "yes"])
        self.assertEqual(row_of(text, "over Flash-LLM, mean, 64")[2:], ["1.35", "no"])

    def test_shares_of_a_mean_say_how_many(self):
        cells = [cell for cell in cells_of("spinfer_fig10") if cell.zeros == "s0.5"]
        lines = [line_of("spinfer_fig10", cell, kernel_row(cell, 1.7)) for cell in cells[1:]]
        text = self.report(lines)
        self.assertEqual(row_of(text, "mean of all shapes and tokens, 0.5")[2:],
                         [f"1.70 ({len(cells) - 1} of {len(cells)} cells)", "yes"])
        self.assertEqual(row_of(text, "mean of all shapes and tokens, 0.4")[2:],
                         ["not measured", ""])
        self.assertEqual(row_of(text, "prefill, slower than cuBLAS by at most")[2:],
                         ["no cells of ours", ""])

    def test_gpus_memories_and_commits_do_not_mix(self):
        cell = cells_of("flash_llm_fig13")[0]
        other = cells_of("flash_llm_fig13")[1]

        def line(of, rate, **more):
            return line_of("flash_llm_fig13", of, engine_row(of, rate), **more)

        lines = [line(cell, 222, commit="bbbbbbbbbbbb", date="2026-11-29"),
                 line(cell, 111), line(other, 112), line(cell, 333, gpu=H100),
                 line(cell, 444, gpu_memory="80G"), line(cell, 555, gpu="cpu")]
        text = self.report(lines)
        sections = dict(zip(re.findall(r"^### (.*)$", text, re.MULTILINE),
                            re.split(r"^### .*$", text, flags=re.MULTILINE)[1:]))
        self.assertEqual(list(sections), ["H200", "H100 80GB HBM3", "H200 as if of 80G", "CPU"])
        for rate, section in zip(("222", "333", "444", "555"), sections.values()):
            self.assertEqual(row_of(section, "OPT-30B", "1", "dense"),
                             [rate] + ["not measured"] * 3)
        self.assertIn("other commits, aaaaaaaaaaaa (2)", sections["H200"])
        text = self.report(lines, "--commit", "aaaa")
        self.assertEqual(row_of(text, "OPT-30B", "1", "dense")[:2], ["111", "112"])
        self.assertIn("no results", self.refused_after(lines, "--commit", "cccc"))

    def test_a_commit_has_the_results_that_it_was_resumed_from(self):
        first, second, third = cells_of("flash_llm_fig13")[:3]

        def line(of, rate, resumed=None, **more):
            text = line_of("flash_llm_fig13", of, engine_row(of, rate), **more)
            if resumed is None:
                return text
            value = json.loads(text)
            value["environment"]["command"] = f"sparsellm-bench suite --resume-from {resumed}"
            return json.dumps(value)

        lines = [line(first, 111, date="2026-11-27"), line(second, 112, date="2026-11-27"),
                 line(second, 222, "aaaaaaa", commit="bbbbbbbbbbbb", date="2026-11-28"),
                 line(first, 444, commit="dddddddddddd", date="2026-11-28"),
                 line(third, 333, "bbbb", commit="cccccccccccc", date="2026-11-29")]
        text = self.report(lines)
        self.assertEqual(row_of(text, "OPT-30B", "1", "dense"), ["111", "222", "333",
                                                                 "not measured"])
        self.assertIn("commit ccccccc, 1 of bbbbbbb, 1 of aaaaaaa, 2026-11-27 to 2026-11-29", text)
        self.assertIn("other commits, dddddddddddd (1)", text)
        text = self.report(lines, "--commit", "bbbb")
        self.assertEqual(row_of(text, "OPT-30B", "1", "dense")[:3],
                         ["111", "222", "not measured"])

    def refused_after(self, lines, *arguments):
        (self.folder / "report.md").unlink()
        return self.refused(lines, *arguments)

    def test_the_latest_result_counts(self):
        cell = cells_of("flash_llm_fig13")[0]
        lines = [line_of("flash_llm_fig13", cell, error="gone"),
                 line_of("flash_llm_fig13", cell, engine_row(cell, 123))]
        self.assertEqual(row_of(self.report(lines), "OPT-30B", "1", "dense")[0], "123")
        self.assertEqual(row_of(self.report(lines[::-1]), "OPT-30B", "1", "dense")[0], "failed")

    def test_other_formats(self):
        lines = self.throughput_lines()
        cells = [cell for cell in cells_of("flash_llm_fig13") if cell.format == "tiled_csl"]
        lines += [line_of("flash_llm_fig13", cell.name.replace("tiled_csl", "tca_bme"),
                          engine_row(cell, 600)) for cell in cells]
        lines.append(line_of("flash_llm_fig13", "opt-99b/dense/1gpu/b8/o512", {}))
        text = self.report(lines)
        self.assertEqual(row_of(text, "OPT-30B", "1", "`tca_bme`, plan flash-llm"), ["600"] * 4)
        self.assertIn("results of cells that the suite does not have (1)", text)

    def test_a_torn_line_does_not_count(self):
        lines = self.throughput_lines()
        text = self.report(lines + ['{"suite": "flash_llm_fi'], end="")
        self.assertEqual(row_of(text, "OPT-30B", "1", "dense")[0], "400")

    def test_damaged_lines(self):
        cell = cells_of("flash_llm_fig13")[0]
        good = line_of("flash_llm_fig13", cell, engine_row(cell, 100))
        value = json.loads(good)

        def changed(**more):
            return json.dumps({**value, **more})

        row = value["row"]
        damaged = {
            "garbage": "no result", "": "no result", "[]": "expected an object",
            "1" * 5000: "no result", "[" * 100_000: "no result",
            good[:-1] + ', "more": 1}': "unknown key",
            good[:-1] + ', "suite": "x"}': "twice",
            changed(suite="no_such_suite"): "no suite is called 'no_such_suite'",
            changed(suite=""): "expected a text", changed(cell=7): "expected a text",
            changed(error="x"): "either a row or an error",
            changed(row=[1]): "expected an object",
            changed(row={**row, "decode_ms": [1]}): "numbers and texts",
            changed(row={**row, "decode_ms": -1}): "decode_ms is no time",
            changed(row={**row, "decode_ms": "fast"}): "decode_ms is no time",
            changed(row={**row, "decode_ms": True}): "decode_ms is no time",
            changed(row={**row, "decode_ms": float("nan")}): "NaN is no number",
            changed(row={**row, "decode_ms": float("inf")}): "Infinity is no number",
            good.replace('"decode_ms": 50.0', '"decode_ms": 1e999'): "1e999 is too large",
            changed(row={**row, "batch": 16}): "has 16 as batch",
            changed(groups=[{"ms_per_step": 1}]): "expected a group",
            changed(groups={"a": 1}): "expected a list",
            changed(environment=1): "expected an object",
        }
        for line, expected in damaged.items():
            error = self.refused([good, line])
            self.assertIn(expected, error)
            self.assertIn("results.jsonl:2: ", error)
        (self.folder / "results.jsonl").write_bytes(b"\xff\xfe\n")
        outcome = subprocess.run([sys.executable, "-B", SCRIPTS / "suite_report.py", self.folder],
                                 capture_output=True, text=True, check=False)
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("no UTF-8", outcome.stderr)

    def test_hostile_texts_stay_in_their_place(self):
        cell = cells_of("flash_llm_fig13")[0]
        text = self.report([line_of("flash_llm_fig13", cell, error="a\n\n# b | <script> `c`",
                                    gpu="NVIDIA | $x$ <b>", commit="| `x`")])
        self.assertNotIn("\n# b", text)
        self.assertIsNone(re.search(r"(?<!\\)[<]", text))
        self.assertIn("### \\| $x$ \\<b\\>\n", text)
        self.assertIn("a # b \\| \\<script\\> \\`c\\`\n", text)

    def test_hostile_texts_can_be_drawn(self):
        lines = self.throughput_lines(gpu="NVIDIA $\\frac{$ <b> & _\n")
        text = self.report(lines)
        self.assertIn("### $\\\\frac{$ \\<b\\> & \\_\n", text)

    def test_damaged_suites(self):
        good = json.loads((SUITES / "flash_llm_fig13.json").read_text(encoding="utf-8"))
        path = self.folder / "flash_llm_fig13.json"

        def refuse(change, expected):
            value = json.loads(json.dumps(good))
            change(value)
            path.write_text(json.dumps(value), encoding="utf-8")
            self.assertIn(expected, self.refused(self.throughput_lines(), "--suites", path))

        refuse(lambda value: value.update(more=1), "unknown key 'more'")
        refuse(lambda value: value.update(metric="speed"), "'metric': expected one of")
        refuse(lambda value: value["cells"][0].update(batches=[0]), "cells[0]: 'batches'")
        refuse(lambda value: value["stated"][3].update(values=[1]), "stated[3]: 'values'")
        refuse(lambda value: value["stated"][0].update(value="much"), "stated[0]: 'value'")
        refuse(lambda value: value["cells"][0].update(formats=["`|`"]), "cells[0]: 'formats'")
        refuse(lambda value: value.update(title="a\nb"), "'title': expected one line")
        path.write_text('{"title": NaN}', encoding="utf-8")
        self.assertIn("NaN", self.refused(self.throughput_lines(), "--suites", path))
        self.assertIn("there is no", self.refused(self.throughput_lines(), "--suites",
                                                  self.folder / "none.json"))

    def test_suites_that_are_not_wanted_are_left_out(self):
        cell = cells_of("flash_llm_fig15")[0]
        lines = self.throughput_lines() + [
            line_of("flash_llm_fig15", cell, engine_row(cell, 9))]
        text = self.report(lines, "--suites", SUITES / "flash_llm_fig13.json")
        self.assertNotIn("OPT-66B", text)
        text = self.report(lines)
        self.assertIn("OPT-66B", text)
        self.assertIn("Without results:", text)

    def test_pictures_leave_out_what_was_not_measured(self):
        cells = [cell for cell in cells_of("flash_llm_fig15") if "/1gpu/b8/" in cell.name]
        self.report([line_of("flash_llm_fig15", cell, engine_row(cell, 9)) for cell in cells])
        suite = read_suite(SUITES / "flash_llm_fig15.json")
        [view] = views(suite, read_results(self.folder))
        [(_, [panel])] = engine_panels(view)
        self.assertEqual(list(panel["lines"]), ["auto, 80 %, 1 GPU", "tiled_csl, 80 %, 1 GPU"])
        self.assertEqual(list(panel["states"]), list(panel["lines"]))

    def test_pictures_are_the_same_again(self):
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            self.skipTest("there is no matplotlib")
        self.report(self.throughput_lines())
        images = sorted((self.folder / "images").iterdir())
        self.assertEqual([path.name for path in images],
                         ["H200-flash_llm_fig13-ratios.svg", "H200-flash_llm_fig13.svg"])
        texts = [path.read_bytes() for path in images]
        for text in texts:
            self.assertIn(b"A100, 2024", text)
            self.assertNotIn(b"<dc:date>", text)
        for path in images:
            path.unlink()
        self.report(self.throughput_lines())
        self.assertEqual([path.read_bytes() for path in images], texts)


class PaperScript(unittest.TestCase):
    """tools/gpu/paper.sh, with a program in place of sparsellm-bench."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.results = self.folder / "results"

    def run_script(self, *arguments, bench=""):
        program = self.folder / "build/bin/sparsellm-bench"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/bash\n" + bench, encoding="utf-8")
        program.chmod(0o755)
        return subprocess.run(
            [ROOT / "tools/gpu/paper.sh", *arguments], capture_output=True, text=True, check=False,
            env={**os.environ, "BUILD": str(self.folder / "build"), "RESULTS": str(self.results)})

    def bench(self, status):
        """What adds a result, and says how it was called."""
        cells = cells_of("flash_llm_fig13")
        line = line_of("flash_llm_fig13", cells[0], engine_row(cells[0], 100))
        called = self.folder / "called"
        return (f"echo \"$*\" >>'{called}'\n"
                "if [[ $* == *--list* ]]; then\n"
                f"  echo 'flash_llm_fig13/{cells[1].name}: does not fit: 9.0 of 8.0 GB'\n"
                "  exit\nfi\n"
                f"mkdir -p '{self.results}'\necho '{line}' >>'{self.results}/results.jsonl'\n"
                f"exit {status}\n")

    def test_measures_and_reports(self):
        for status in 0, 3:  # of the cells some failed: what there is is reported
            outcome = self.run_script("flash_llm_fig13", "--", "--budget", "9m",
                                      bench=self.bench(status))
            self.assertEqual(outcome.returncode, status, outcome.stderr)
            called = (self.folder / "called").read_text(encoding="utf-8").splitlines()
            begin = f"suite configs/benchmarks/flash_llm_fig13.json --results {self.results} "
            self.assertEqual(called[-2:], [begin + "--resume --budget 9m",
                                           begin + "--resume --budget 9m --list"])
            report = self.results / "report.md"
            self.assertEqual(row_of(report.read_text(encoding="utf-8"), "OPT-30B", "1", "dense"),
                             ["100", "does not fit", "not measured", "not measured"])
            report.unlink()

    def test_all_suites_are_measured_without_names(self):
        self.run_script(bench=self.bench(0))
        called = (self.folder / "called").read_text(encoding="utf-8").splitlines()[0]
        for path in SUITES.glob("*.json"):
            self.assertIn(f" configs/benchmarks/{path.name} ", called)

    def test_refuses_what_it_does_not_know(self):
        outcome = self.run_script("no_such_suite")
        self.assertEqual(outcome.returncode, 2)
        self.assertIn("no suite is called no_such_suite; there are flash_llm_fig13 ",
                      outcome.stderr)
        outcome = self.run_script("--budget", "9m")
        self.assertEqual(outcome.returncode, 2)
        self.assertIn("come after --", outcome.stderr)
        self.assertEqual(self.run_script(bench="exit 4\n").returncode, 4)  # and no results
        outcome = self.run_script("--help")
        self.assertEqual(outcome.returncode, 0)
        self.assertIn("tools/gpu/paper.sh [NAME ...] [-- ARGUMENT ...]", outcome.stdout)


class Suites(unittest.TestCase):
    def test_all_are_read(self):
        names = set()
        for path in sorted(SUITES.glob("*.json")):
            suite = read_suite(path)
            names.add(suite.name)
            self.assertEqual(len({cell.name for cell in suite.cells}), len(suite.cells))
            for figure in suite.stated:
                for point in figure.points:
                    self.assertTrue(not point.cells or matching(point.cells, suite.cells),
                                    f"{path}: {point.cells}")
        self.assertIn("sparse_infer_fig4", names)

    def test_names(self):
        cell = Cell(subject="opt-13b", format="tca_bme", zeros="s0.6", pattern="rows:0.5",
                    records="size", dtype="bf16", gpus=2, memory="24G", breakdown=True, batch=8,
                    prompt=128, output=64)
        self.assertEqual(cell.name,
                         "opt-13b/tca_bme/s0.6/rows:0.5/size/bf16/2gpu/24G/breakdown/b8/p128/o64")

    def test_names_are_those_of_the_program(self):
        program = os.environ.get("SPARSELLM_BENCH", "")
        if not os.path.exists(program):
            self.skipTest("there is no sparsellm-bench")
        paths = sorted(SUITES.glob("*.json"))
        outcome = subprocess.run([program, "suite", *paths, "--list", "--gpu-memory", "80G"],
                                 capture_output=True, text=True, check=False)
        if 'there is no command "suite"' in outcome.stderr:
            self.skipTest("sparsellm-bench runs no suites")
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        listed = [line.partition(": ")[0] for line in outcome.stdout.splitlines() if "/" in
                  line.partition(": ")[0]]
        ours = [f"{suite.name}/{cell.name}" for suite in map(read_suite, paths)
                for cell in suite.cells]
        self.assertEqual(sorted(listed), sorted(ours))


if __name__ == "__main__":
    unittest.main()
