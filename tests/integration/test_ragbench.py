#!/usr/bin/env python3
"""loadgen/bench/rag on a small scale: scenarios follow from the seed, recorded lists keep their
order, and the simulated parts have all figures. No time is checked."""
from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "loadgen" / "bench" / "rag"))
import scenario  # noqa: E402
import show as show_module  # noqa: E402

sys.path.insert(0, str(REPO / "tests" / "tools"))
from tarn_test import patience  # noqa: E402

SHOW = REPO / "loadgen" / "bench" / "rag" / "show.py"
DATA = REPO / "loadgen" / "data" / "rag"
OWN = ["--documents", DATA / "documents.jsonl", "--data", "/nonexistent"]


def show(*options: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, str(SHOW), *map(str, options)], capture_output=True,
                          text=True, timeout=patience(400), check=False)
    assert done.returncode == code, (options, done.returncode, done.stdout, done.stderr)
    return done


def corpus(n: int) -> scenario.Corpus:
    return scenario.Corpus([{"title": f"{i}", "text": f"word{i} " * 100} for i in range(n)],
                           [[f"What is {i}?"] for i in range(n)], "made")


def a_seed_makes_one_scenario() -> None:
    lists = [[0, 1], [1, 2], [2, 0], [1, 1]]
    one, two, other = (scenario.Scenario(corpus(3), lists, "recorded", 2, 7, seed)
                       for seed in (1, 1, 2))
    assert one.lists == two.lists and one.questions == two.questions
    assert len(other.lists) == 7 and all(len(set(names)) == 2 for names in one.lists)
    # Lists come in their own order, from some place on; [1, 1] has only one document.
    assert one.lists[:4] == one.lists[3:7], one.lists


def the_figures_of_an_endless_cache_are_counted_by_hand() -> None:
    made = scenario.Scenario(corpus(3), [[0, 1], [0, 2], [0, 1]], "questions", 2, 3, 1)
    shape = made.describe()
    n = scenario.n_tokens("word " * 100)
    assert n == 130
    nodes = {tuple(names[:i]) for names in made.lists for i in (1, 2)}
    assert shape["path_tokens"] == len(nodes) * 160  # whole blocks of 32 tokens
    assert abs(shape["hit_share_of_an_endless_cache"] - 3 / 6) < 1e-9


def recorded_passages_become_documents_by_rank() -> None:
    with tempfile.TemporaryDirectory(prefix="tarn-ragbench-") as name:
        folder = Path(name) / scenario.RAGPULSE
        folder.mkdir()
        rows = [("20", [7, 5]), ("3", [5, 9, 7]), ("100", [5])]
        scenario.write_lines(folder / "0_trace.jsonl", [
            {"timestamp": t, "hash_ids": {"passages_ids": ids}} for t, ids in rows])
        # 5 is used three times, 7 twice; 9 is beyond the last of two documents.
        assert scenario.recorded_lists(Path(name), 2) == [[0, 1], [1, 0], [0]]


def own_documents_and_questions_are_taken() -> None:
    found, lists = scenario.own(DATA / "documents.jsonl", DATA / "questions.jsonl")
    assert len(found.documents) == 48 and lists and len(lists) == 96
    first = scenario.read_lines(DATA / "questions.jsonl")[0]
    assert lists[0] == first["retrieved"] and first["question"] in found.questions[lists[0][0]]


def the_simulated_parts_have_all_figures() -> None:
    with tempfile.TemporaryDirectory(prefix="tarn-ragbench-") as name:
        file = Path(name, "out.json")
        show("--quick", "--requests", 60, "--json", file, "--parts",
             "simulated,speculation,background", *OWN)
        out = json.loads(file.read_text())
        again = Path(name, "again.json")
        show("--quick", "--requests", 60, "--json", again, "--parts", "simulated", *OWN)
        def without_command(part: dict) -> dict:
            return {k: v for k, v in part.items() if k != "command"}
        assert without_command(json.loads(again.read_text())["simulated"]) == \
            without_command(out["simulated"])
    cache = out["simulated"]["caches"]["1"]
    assert {"lru", "tree", "oracle"} <= set(cache)
    for row in cache.values():
        assert row["throughput_ratio"] > 0.9
        for one in row["loads"].values():
            assert one["completed"] == 60 and 0 < one["hit_share"] < 1
            assert one["p50_ttft_s"] <= one["p95_ttft_s"] <= one["p99_ttft_s"]
    control = out["simulated"]["control"]["0.5"]
    assert control["hit_share"] == 0
    assert cache["tree"]["loads"]["0.5"]["tokens_computed"] < control["tokens_computed"]
    alone = out["speculation"]["final"]["0.25"]["alone"]
    assert alone["auto"]["mean_ttft_s"] < alone["off"]["mean_ttft_s"]
    assert alone["off"]["hit_share"] == 0 < alone["auto"]["hit_share"]
    assert out["background"]["p99_ratio"] > 0
    assert {row["name"] for row in out["targets"]} == \
        {row["name"] for row in show_module.targets_of(out)} and len(out["targets"]) >= 6


def mistakes_are_answered_in_words() -> None:
    assert "not one of" in show("--parts", "everything", code=2).stderr
    assert "--documents" in show("--parts", "simulated", "--data", "/nonexistent", code=1).stderr


def main() -> None:
    for test in (a_seed_makes_one_scenario, the_figures_of_an_endless_cache_are_counted_by_hand,
                 recorded_passages_become_documents_by_rank, own_documents_and_questions_are_taken,
                 the_simulated_parts_have_all_figures, mistakes_are_answered_in_words):
        test()
        print("ok:", test.__name__)


if __name__ == "__main__":
    main()
