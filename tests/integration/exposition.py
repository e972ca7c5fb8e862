"""A strict reader of Prometheus' text format, version 0.0.4."""
from __future__ import annotations

import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{((?:{LABEL})(?:,{LABEL})*)?\}})? "
                    r"([+-]?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|Inf)|NaN)$")


def check_family(name: str, kind: str, samples: list[tuple[str, str, float]]) -> None:
    """Check the rules of the text format for one metric."""
    suffixes = {"histogram": {"_bucket", "_sum", "_count"}, "counter": {""}, "gauge": {""}}[kind]
    assert samples, f"{name} has no sample"
    assert len({(n, labels) for n, labels, _ in samples}) == len(samples), f"{name}: twice the same"
    assert (kind == "counter") <= name.endswith("_total"), f"{name}: a counter without _total"
    for full, _, value in samples:
        assert full.removeprefix(name) in suffixes, f"{full} in the family {name}"
        assert kind == "gauge" or value >= 0, (full, value)
    if kind != "histogram":
        return
    series: dict[str, list[tuple[float, float]]] = {}
    for full, labels, value in samples:
        if full.endswith("_bucket"):
            pairs = re.findall(LABEL, labels)
            (le,) = [p[4:-1] for p in pairs if p.startswith("le=")]
            rest = ",".join(p for p in pairs if not p.startswith("le="))
            series.setdefault(rest, []).append((float(le.replace("+Inf", "inf")), value))
    counts = {labels: v for full, labels, v in samples if full == name + "_count"}
    sums = {labels for full, labels, _ in samples if full == name + "_sum"}
    assert set(series) == set(counts) == sums, name
    for labels, buckets in series.items():
        assert buckets == sorted(buckets), f"{name}: bounds or counts fall"
        assert [v for _, v in buckets] == sorted(v for _, v in buckets), name
        assert buckets[-1][0] == float("inf") and buckets[-1][1] == counts[labels], name


def check_exposition(text: str) -> dict[str, str]:
    """Strict version 0.0.4: HELP and TYPE once each before all samples of a family, in one group,
    labels and values well-formed, histograms cumulative. Return name -> type."""
    assert text.endswith("\n") and "\r" not in text
    kinds: dict[str, str] = {}
    helps: set[str] = set()
    family, samples = "", []
    for line in text[:-1].split("\n"):
        head = re.fullmatch(rf"# (HELP|TYPE) ({NAME}) (\S.*)", line)
        if not head:
            found = SAMPLE.match(line)
            assert found, f"malformed: {line!r}"
            assert family and found[1].startswith(family), f"{line!r} stands in {family}"
            samples.append((found[1], found[2] or "", float(found[3])))
        elif head[1] == "HELP":
            if family:
                check_family(family, kinds[family], samples)
            assert head[2] not in helps, f"{head[2]}: two HELP"
            helps.add(head[2])
            family, samples = head[2], []
        else:
            assert head[2] == family and not samples and family not in kinds, line
            assert head[3] in ("counter", "gauge", "histogram"), line
            kinds[family] = head[3]
    check_family(family, kinds[family], samples)
    assert helps == set(kinds)
    return kinds


def read_samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Name and labels (escapes undone) -> value."""
    out = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        found = SAMPLE.match(line)
        assert found, line
        pairs = [pair.split("=", 1) for pair in re.findall(LABEL, found[2] or "")]
        labels = frozenset((name, re.sub(r"\\(.)", lambda m: m[1].replace("n", "\n"), value[1:-1]))
                           for name, value in pairs)
        out[found[1], labels] = float(found[3])
    return out
