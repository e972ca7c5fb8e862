"""charts.py - the plots of show.py's JSON, each an SVG file."""
from __future__ import annotations

import policies
from plot import Chart, page
from simulated import LEVELS, RATES, Points, points_of

LIVE_TITLES = {"live": "Log-normal outputs, mean 64, CV 4", "lmsys": "LMSYS lengths, scaled",
               "sharegpt": "ShareGPT lengths, scaled",
               "little-kv": "Log-normal outputs, KV memory for 16"}
COLOUR = {"fcfs": 1, "skip-join-mlfq": 0, "srpt": 2, "as released": 4, "alpha 300 ms": 6,
          "mlfq": 0, "learned": 3, "auto": 5}
DATA_NAMES = {"sharegpt": "ShareGPT", "alpaca": "Alpaca"}
DASH = "7 4"
SECONDS_RANGE = (0.02, 3.0)


# --- live ---

def live_chart(part: str, rounds: list[dict]) -> Chart:
    """The share of the requests with at most this latency."""
    chart = Chart(LIVE_TITLES[part], "normalized latency (ms/token)", "share of requests (%)",
                  log_x=True, y_limits=(0, 100))
    for pair, policy in ((0, "fcfs"), (0, "skip-join-mlfq"), (1, "srpt")):
        pooled = sorted(x for r in rounds
                        for x in r["pairs"][pair]["runs"][policy]["normalized_quantiles_ms"])
        points = [(x, 100 * (i + 0.5) / len(pooled)) for i, x in enumerate(pooled)]
        chart.line(policy, points, like=COLOUR[policy], marker=False)
    chart.level(95, "P95")
    return chart


def rounds_chart(out: dict) -> Chart:
    """The ratios of each round, to show the noise."""
    chart = Chart("fcfs / skip-join-mlfq, normalized latency", "round", "ratio", log_y=True)
    n_rounds = 1
    for i, part in enumerate(p for p in LIVE_TITLES if "summary" in out.get(p, {})):
        s = out[part]["summary"]
        for of, dash in (("mean", None), ("p95", DASH)):
            values = s[f"{of}_ratio_of_rounds"]["rounds"]
            n_rounds = max(n_rounds, len(values))
            chart.line(f"{part}, {of}", [(k + 1, v) for k, v in enumerate(values)], like=i,
                       dash=dash)
    chart.level(1, "equal")
    chart.x_limits = (0.5, n_rounds + 0.5)
    return chart


# --- simulated ---

def ranges_of(row: dict, of: str) -> list[tuple[float, float, float]]:
    return [(p["rate"], p[f"{of}_low_s"], p[f"{of}_high_s"]) for p in row["points"]]


def burst_chart(burst: dict, data: str, batch: int, of: str, source: str) -> Chart:
    whose = "the authors' rerun" if source == "rerun" else "the paper"
    chart = Chart(f"{DATA_NAMES[data]}, batch {batch}, {of}: ours (bold) and {whose} (dashed)",
                  "arrival rate (requests/s)", f"{of} normalized latency (s/token)", log_y=True,
                  y_limits=SECONDS_RANGE)
    for row in burst["curves"]:
        if (row["data"], row["batch"]) == (data, batch):
            chart.line(row["policy"], points_of(row, of), like=COLOUR[row["policy"]],
                       ranges=ranges_of(row, of))
    for row in burst["authors"]:
        if ((row["data"], row["batch"], row["statistic"], row["source"])
                == (data, batch, of, source) and row["points"] and row["system"] != "vLLM"):
            like = COLOUR["fcfs" if row["system"] == "FCFS" else "skip-join-mlfq"]
            chart.line(f"{row['system']} ({source})", row["points"], like=like, dash=DASH,
                       marker=False)
    chart.level(LEVELS[-1], f"{LEVELS[-1]} s/token", at_left=True)
    return chart


def burst_charts(burst: dict) -> list[Chart]:
    shown = list(dict.fromkeys((c["data"], c["batch"]) for c in burst["curves"]))
    charts = []
    for data, batch in [key for key in RATES if key in shown]:
        charts.append(burst_chart(burst, data, batch, "mean", "rerun"))
        if (data, batch) == ("sharegpt", 16):
            charts.append(burst_chart(burst, data, batch, "p95", "rerun"))
            charts.append(burst_chart(burst, data, batch, "mean", "paper"))
    return charts


def steady_chart(rows: list[dict], batch: int) -> Chart:
    chart = Chart(f"ShareGPT, batch {batch}: load held", "arrival rate (requests/s)",
                  "normalized latency (s/token)", log_y=True)
    for row in rows:
        for of, dash in (("mean", None), ("p95", DASH)):
            chart.line(f"{row['policy']}, {of}", points_of(row, of), like=COLOUR[row["policy"]],
                       dash=dash)
    chart.level(LEVELS[-1], f"{LEVELS[-1]} s/token", at_left=True)
    return chart


def policies_chart(out: dict, mix: str, metric: str) -> Chart:
    """Mean and P99 of each policy, as multiples of fcfs."""
    chart = Chart(mix, "load (share of the capacity)", f"{metric} latency / that of fcfs",
                  log_y=True)
    cases = {load: rows for (of, load), rows in policies.by_case(out).items()
             if of == mix and "fcfs" in rows}
    for policy in policies.POLICIES:
        for statistic, dash in (("mean", None), ("p99", DASH)):
            field = f"{statistic}_{policies.METRICS[metric]}"
            points = [(load, policies.ratio_of(rows, policy, "fcfs", field))
                      for load, rows in cases.items() if policy in rows]
            if points and policy != "fcfs":
                chart.line(f"{policy}, {statistic}", points, like=COLOUR[policy], dash=dash)
    chart.level(1, "fcfs")
    chart.x_limits = (0.65, 1)
    return chart


def swap_chart(swap: dict) -> Chart:
    chart = Chart("Swapping, ShareGPT, batch 16: ours and the paper (dashed)",
                  "arrival rate (requests/s)", "mean normalized latency (s/token)", log_y=True,
                  y_limits=SECONDS_RANGE)
    for i, row in enumerate(swap["curves"]):
        chart.line(row["swap"], points_of(row, "mean"), like=i, ranges=ranges_of(row, "mean"))
    names = [row["swap"] for row in swap["curves"]]
    for row in swap["authors"]:
        points: Points = row["points"]
        chart.line(f"{row['swap']} (paper)", points, like=names.index(row["swap"]),
                   dash=DASH, marker=False)
    chart.level(LEVELS[-1], f"{LEVELS[-1]} s/token", at_left=True)
    return chart


# --- the rest ---

def long_chart(out: dict) -> Chart:
    chart = Chart("100 tokens behind a prefill of "
                  f"{out['settings']['long_tokens']:,} tokens", "attempt",
                  "time to first token (s)", log_y=True)
    for policy, row in out["policies"].items():
        chart.line(policy, [(i + 1, s) for i, s in enumerate(row["behind_s"])],
                   like=COLOUR[policy])
    chart.x_limits = (0.5, 0.5 + max(len(r["behind_s"]) for r in out["policies"].values()))
    alone = out["policies"]["skip-join-mlfq"]["alone_median_s"]
    chart.level(alone, "alone")
    chart.level(alone + 0.6, "target: alone and 0.6 s")
    return chart


def planning_chart(rows: list[dict], of: str, title: str) -> Chart:
    chart = Chart(title, "queued requests", f"{of} of a plan (us)", log_x=True, log_y=True)
    for i, policy in enumerate(dict.fromkeys(r["policy"] for r in rows)):
        worst: dict[int, float] = {}
        for r in rows:
            if r["policy"] == policy:
                worst[r["n_queued"]] = max(worst.get(r["n_queued"], 0), r["plan_s"][of] * 1e6)
        chart.line(policy, list(worst.items()), like=i)
    chart.level(50, "target at 1,000: 50 us")
    chart.level(1000, "target at 100,000: 1 ms")
    return chart


def all_of(out: dict) -> dict[str, str]:
    """File name -> SVG, of the parts with results."""
    files: dict[str, str] = {}
    shown = [p for p in LIVE_TITLES if "summary" in out.get(p, {})]
    if shown:
        files["live.svg"] = page([*(live_chart(p, out[p]["rounds"]) for p in shown),
                                  rounds_chart(out)])
    if out.get("policies", {}).get("rows"):
        mixes = list(dict.fromkeys(mix for mix, _ in policies.by_case(out["policies"])))
        for metric in ("normalized", "e2e"):
            files[f"policies-{metric}.svg"] = page(
                [policies_chart(out["policies"], mix, metric) for mix in mixes])
    if "gains" in out.get("burst", {}):
        files["burst.svg"] = page(burst_charts(out["burst"]))
        steady = out["burst"]["steady"]
        files["steady.svg"] = page([steady_chart([r for r in steady if r["batch"] == b], b)
                                    for b in dict.fromkeys(r["batch"] for r in steady)])
    if "authors" in out.get("swap", {}):
        files["swap.svg"] = page([swap_chart(out["swap"])])
    if "long" in out:
        files["long.svg"] = page([long_chart(out["long"])])
    if "planning" in out:
        rows = out["planning"]["rows"]
        files["planning.svg"] = page([planning_chart(rows, "median", "One scheduler_plan()"),
                                      planning_chart(rows, "p99", "The slowest of a hundred")])
    return files
