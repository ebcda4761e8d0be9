"""Tables of what a server costs beside its engine, and of requests that need more than tokens."""

import statistics

from reports import ReportError
from texts import percent, table, with_origin

GPU = "h200"
SERVER = f"{GPU}/server"
ADJUSTED = f"{GPU}/adjusted"
AT_ONCE = 1e5  # arrivals a second that are all at once


def latency(run, metric, quantile):
    for row in run.rows["latency"]:
        if row["metric"] == metric:
            return row[f"{quantile}_ms"]
    raise ReportError(f"{run.where}: no {metric}")


def key_of(run):
    """Requests, and whether they keep the server full, which an engine alone is by arrivals that
    come at once."""
    rate = run.option("--arrivals")
    full = rate is None or float(rate.split(":")[1]) >= AT_ONCE
    return int(run.option("--requests")), full


def through_http(reports):
    alone, served = {}, {}
    for run in reports.runs(SERVER):
        runs = alone if run.option("--url") is None else served
        runs.setdefault(key_of(run), []).append(run)
    rows = []
    for key, runs in alone.items():
        others = served.get(key, [])
        if len(others) != len(runs):
            raise ReportError(f"{runs[0].where}: {len(runs)} runs, and {len(others)} of a server")
        for other in others:
            if other.rows.get("failures"):
                raise ReportError(f"{other.where}: requests failed")
        streams = runs[0].option("--batch")
        if key[1]:
            one = runs[0].rows["serving"][0]["tokens_per_gpu_second"]
            two = others[0].rows["serving"][0]["tokens_per_second"]
            rows.append([streams, "tokens per second", f"{one:,.0f}", f"{two:,.0f}",
                         f"{100 * two / one:.1f} %"])
            continue
        for metric in ("time to first token", "time per output token"):
            for quantile in ("p50", "p99"):
                one = [latency(run, metric, quantile) for run in runs]
                two = [latency(run, metric, quantile) for run in others]
                more = [b - a for a, b in zip(one, two)]
                rows.append([streams, f"{metric} at {runs[0].rows['serving'][0]['rate']:.0f} "
                             f"requests a second, {quantile}, ms", spread(one), spread(two),
                             spread(more, "+")])
    return with_origin(table(["streams", "", "engine alone", "through HTTP", ""], rows),
                       [runs[0] for runs in alone.values()])


def spread(values, sign=""):
    """The median, and the least and the largest where there are several."""
    def text(value):
        return f"{round(value, 2) + 0.0:{sign}.2f}"
    middle = text(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({text(min(values))} to {text(max(values))})"


def adjusted(reports):
    """Decode steps with and without adjusted requests; prompts with and without their scores."""
    runs = reports.runs(ADJUSTED)
    plain, more = {}, {}
    for run in runs:
        changed = "--adjusted" in run.words or "--scored" in run.words
        for row in run.rows["throughput"]:
            (more if changed else plain)[run.option("--prompt"), row["batch"]] = run, row
    rows = []
    for key, (_, row) in plain.items():
        run, other = more[key]
        if "--scored" in run.words:
            one, two = row["prefill_ms"], other["prefill_ms"]
            what = f"{key[1]} prompts of {key[0]} tokens, scored"
        else:
            one, two = row["decode_ms"], other["decode_ms"]
            what = f"a step of {key[1]} requests, one of {run.option('--adjusted')} adjusted"
        rows.append([what, f"{one:.2f}", f"{two:.2f}", percent(round(two / one - 1, 3))])
    return with_origin(table(["", "ms without", "ms with", "more"], rows), runs)


TABLES = {"server-http": through_http, "server-adjusted": adjusted}
