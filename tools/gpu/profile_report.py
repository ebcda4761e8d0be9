#!/usr/bin/env python3
"""The two halves of profile.sh that are not ncu's.

profile_report.py metrics KNOWN
    Which metrics to ask for; KNOWN is what --query-metrics printed.
profile_report.py report NCU_CSV BENCH FORMAT
    What they say of FORMAT's kernel; BENCH is the report of the benchmark, as jsonl.
"""

import csv
import io
import json
import re
import sys

PIPE = re.compile(r"sm(?:sp)?__inst_executed_pipe_(\w+)$")
# Those that are shown also if nothing went through them.
PIPES = ["alu", "fma", "fmaheavy", "lsu", "tensor_op_hmma", "tensor_op_imma", "uniform", "xu"]

REGISTERS = "launch__registers_per_thread"
TIME = "gpu__time_duration.sum"
DRAM_READ = "dram__bytes_read.sum"
DRAM_WRITE = "dram__bytes_write.sum"
DRAM_USE = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
INSTRUCTIONS = "smsp__inst_executed.sum"
IPC = "smsp__inst_executed.avg.per_cycle_active"
OF_PEAK = ".avg.pct_of_peak_sustained_elapsed"
TENSOR_USE = "sm__pipe_tensor_cycles_active" + OF_PEAK
SHARED_USE = "l1tex__data_pipe_lsu_wavefronts_mem_shared" + OF_PEAK
L1_USE = "l1tex__throughput" + OF_PEAK
L2_USE = "lts__throughput" + OF_PEAK
SM_USE = "sm__throughput" + OF_PEAK
ACTIVE_WARPS = "sm__warps_active.avg.pct_of_peak_sustained_active"
FIXED = [REGISTERS, TIME, DRAM_READ, DRAM_WRITE, DRAM_USE, CONFLICTS, WAVEFRONTS, INSTRUCTIONS, IPC,
         TENSOR_USE, SHARED_USE, L1_USE, L2_USE, SM_USE, ACTIVE_WARPS]

# To bytes and seconds, by the names that different versions have for them.
SCALES = {
    "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9,
    "nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3,
}


def known_metrics(path):
    """Names without their suffixes."""
    with open(path, encoding="utf-8", errors="replace") as file:
        words = (line.replace('"', " ").replace(",", " ").split() for line in file)
        return {first[0] for first in words if first and "__" in first[0]}


def metrics_to_ask(known):
    if not known:
        sys.exit("profile.sh: ncu lists no metrics of this GPU")
    # What belongs to a launch is not always listed.
    fixed = [name for name in FIXED
             if name.startswith("launch__") or name.split(".")[0] in known]
    return fixed + [f"{name}.sum" for name in sorted(known) if PIPE.match(name)]


def read_ncu(path):
    """The values of the first launch by metric, in bytes and seconds, and the name of its kernel."""
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    rows = list(csv.reader(io.StringIO("\n".join(lines[begin:]))))
    if len(rows) < 3:
        sys.exit(f"profile.sh: ncu has profiled no launch of the kernel: {' '.join(lines[-1:])}")
    names, units, launch = rows[:3]
    values = {}
    for name, unit, text in zip(names, units, launch):
        try:
            values[name] = float(text.replace(",", "")) * SCALES.get(unit, 1.0)
        except ValueError:
            pass  # a text, or a metric without a value
    return values, dict(zip(names, launch)).get("Kernel Name", "")


def read_bench(path, form):
    """The environment, and the row of the format."""
    environment, row = {}, None
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("{"):
                table = json.loads(line)
                if table["table"] == "environment":
                    environment = table
                elif table["table"] == "kernel" and table["format"] == form:
                    row = table
    if row is None:
        sys.exit("profile.sh: the benchmark has measured nothing")
    if row["note"] and row["note"].startswith("NOT VERIFIED"):
        sys.exit(f"profile.sh: {row['note']}")
    return environment, row


def shown(value, decimals):
    return "-" if value is None else f"{value:,.{decimals}f}"


def pipes_of(values):
    """Instructions by pipe; those of a multiprocessor only where its quarters are not counted."""
    pipes = {}
    for unit in ("smsp", "sm"):
        for metric, value in values.items():
            match = PIPE.match(metric.removesuffix(".sum"))
            if match and metric.startswith(unit + "__"):
                pipes.setdefault(match.group(1), value)
    for pipe in PIPES:
        pipes.setdefault(pipe, None)
    return pipes


def report(ncu_path, bench_path, form):
    environment, row = read_bench(bench_path, form)
    values, kernel = read_ncu(ncu_path)
    thousands = row["out"] * row["in"] / 1024

    def per_thousand(value):
        return None if value is None else value / thousands

    read, seconds = values.get(DRAM_READ), values.get(TIME)
    bandwidth = read / seconds * 1e-9 if read is not None and seconds else None
    for key in ("gpu", "driver", "cuda_runtime", "commit", "date"):
        print(f"{key:<14}{environment.get(key, '-')}")
    print(f"{'kernel':<14}{kernel}")
    print(f"{'product':<14}{row['out']}x{row['in']}, {row['tokens']} tokens, sparsity {row['sparsity']}, "
          f"{row['algorithm']}")
    microseconds = None if seconds is None else seconds * 1e6
    lines = [
        ("registers per thread", values.get(REGISTERS), 0, ""),
        ("time, cold and profiled", microseconds, 1, "us"),
        ("DRAM bytes read", read, 0, "bytes"),
        ("DRAM bytes written", values.get(DRAM_WRITE), 0, "bytes"),
        ("bytes of the encoding", row["encoded_bytes"], 0, "bytes"),
        ("DRAM read bandwidth", bandwidth, 0, "GB/s"),
        ("DRAM throughput", values.get(DRAM_USE), 1, "% of the peak"),
        ("L1 throughput", values.get(L1_USE), 1, "% of the peak"),
        ("L2 throughput", values.get(L2_USE), 1, "% of the peak"),
        ("shared memory, by ordinary loads", values.get(SHARED_USE), 1, "% of the peak"),
        ("multiprocessor throughput", values.get(SM_USE), 1, "% of the peak"),
        ("active warps", values.get(ACTIVE_WARPS), 1, "% of the most"),
        ("instructions per cycle and scheduler", values.get(IPC), 2, ""),
        ("tensor cores active", values.get(TENSOR_USE), 1, "% of the time"),
    ]
    print()
    for title, value, decimals, unit in lines:
        print(f"{title:<38}{shown(value, decimals):>14} {unit}".rstrip())
    print("\nper 1,024 elements of the matrix")
    counts = [("shared-memory wavefronts", values.get(WAVEFRONTS)),
              ("shared-memory bank conflicts", values.get(CONFLICTS)),
              ("warp instructions", values.get(INSTRUCTIONS))]
    counts += [(f"  pipe {pipe}", value) for pipe, value in sorted(pipes_of(values).items())
               if value is None or value > 0 or pipe in PIPES]
    for title, value in counts:
        print(f"{title:<38}{shown(per_thousand(value), 2):>14}")


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "metrics":
        print(",".join(metrics_to_ask(known_metrics(sys.argv[2]))))
    elif len(sys.argv) == 5 and sys.argv[1] == "report":
        report(sys.argv[2], sys.argv[3], sys.argv[4])
    else:
        sys.exit(__doc__)


main()
