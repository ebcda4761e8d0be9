"""Tables of what a server costs beside its engine, and of requests that need more than tokens."""

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
        (alone if run.option("--url") is None else served)[key_of(run)] = run
    rows = []
    for key, run in alone.items():
        if key not in served:
            raise ReportError(f"{run.where}: no run of a server with the same requests")
        streams, other = run.option("--batch"), served[key]
        if other.rows.get("failures"):
            raise ReportError(f"{other.where}: requests failed")
        if key[1]:
            one = run.rows["serving"][0]["tokens_per_gpu_second"]
            two = other.rows["serving"][0]["tokens_per_second"]
            rows.append([streams, "tokens per second", f"{one:,.0f}", f"{two:,.0f}",
                         f"{100 * two / one:.1f} %"])
            continue
        for metric in ("time to first token", "time per output token"):
            for quantile in ("p50", "p99"):
                one, two = latency(run, metric, quantile), latency(other, metric, quantile)
                rows.append([streams, f"{metric} at {run.rows['serving'][0]['rate']:.0f} requests "
                             f"a second, {quantile}, ms", f"{one:.2f}", f"{two:.2f}",
                             f"{round(two - one, 2) + 0.0:+.2f}"])
    return with_origin(table(["streams", "", "engine alone", "through HTTP", ""], rows),
                       list(alone.values()))


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
