#!/usr/bin/env python3
"""POST /rerank, /score and /classify with a model that has labels (--rerank-model): logits of
transformers and scores of sentence-transformers (tests/golden/rerank-*, classify-*) in every form
of request; each pair has the same bits alone and among others."""
from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from http_helpers import TIMEOUT, Server, run_tests, tarn_server, tarn_test
from venv_helpers import use_venv

use_venv("openai")
import openai  # noqa: E402

MODEL = tarn_test.REPO / "deploy" / "demo-model"
GOLDEN = tarn_test.REPO / "tests" / "golden"
RERANK = ("/rerank", "/v1/rerank", "/v2/rerank")
SCORE = ("/score", "/v1/score")
CLASSIFY = ("/classify", "/v1/classify")

SERVER: Server
CASES: dict[str, Any]


def near(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-4 * max(1.0, abs(b))


def post(path: str, **body: Any) -> Any:
    return SERVER.post(path, body)


def scores(**body: Any) -> list[float]:
    answer = post("/score", **body)
    data = answer["data"]
    assert [d["index"] for d in data] == list(range(len(data))), data
    assert all(d["object"] == "score" for d in data), data
    return [d["score"] for d in data]


def fits(case: dict[str, Any]) -> bool:
    """Whether the texts need not be cut."""
    return case["n_tokens"] < 48


def scores_are_those_of_sentence_transformers() -> None:
    for case in CASES["pairs"]:
        answer = post("/v1/score", text_1=case["first"], text_2=case["second"],
                      truncate_prompt_tokens=-1)
        assert near(answer["data"][0]["score"], case["score"]), (answer, case)
        assert answer["usage"] == {"prompt_tokens": case["n_tokens"], "completion_tokens": 0,
                                   "total_tokens": case["n_tokens"],
                                   "prompt_tokens_details": None}, answer
        assert answer["object"] == "list" and answer["model"] == "judge", answer
        assert answer["id"].startswith("score-") and answer["created"] > 10 ** 9, answer
        plain = post("/score", text_1=case["first"], text_2=case["second"], use_activation=False,
                     truncate_prompt_tokens=-1)
        assert near(plain["data"][0]["score"], case["logits"][0]), (plain, case)


def every_form_of_a_score_is_the_same() -> None:
    pairs = CASES["pairs"][:2]
    first, second = [c["first"] for c in pairs], [c["second"] for c in pairs]
    want = [scores(text_1=a, text_2=b)[0] for a, b in zip(first, second)]
    for one, two in (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"),
                     ("data_1", "data_2")):
        assert scores(**{one: first, two: second}) == want
        assert scores(**{one: first[0], two: [{"text": second[0]}]}) == want[:1]
    crossed = scores(queries=first[0], documents=[*second, second[0]])
    assert crossed == scores(queries=[first[0]], documents=[*second, second[0]])
    assert crossed[0] == crossed[2] == want[0]


def a_pair_has_the_same_bits_alone_and_among_others() -> None:
    pairs = [(c["first"], c["second"]) for c in CASES["pairs"]]
    alone = [scores(text_1=a, text_2=b, truncate_prompt_tokens=-1)[0] for a, b in pairs]
    many = scores(text_1=[a for a, _ in pairs] * 2, text_2=[b for _, b in pairs] * 2,
                  truncate_prompt_tokens=-1)
    assert many == alone * 2


def documents_are_ranked_by_their_scores() -> None:
    query, texts = CASES["pairs"][0]["first"], [c["second"] for c in CASES["pairs"] if fits(c)] * 2
    want = scores(queries=query, documents=texts)
    order = sorted(range(len(texts)), key=lambda i: (-want[i], i))
    for path in RERANK:
        answer = post(path, query=query, documents=texts)
        assert [r["index"] for r in answer["results"]] == order, (answer, want)
        assert [r["relevance_score"] for r in answer["results"]] == [want[i] for i in order]
        assert answer["model"] == "judge" and answer["id"].startswith("rerank-"), answer
    answer = post("/rerank", query=query, documents=texts, top_n=1, return_documents=True)
    assert [r["document"] for r in answer["results"]] == [{"text": texts[order[0]]}], answer
    # A document above the model's length is cut; max_tokens_per_doc cuts it more.
    whole = post("/rerank", query=query, documents=["the ship " * 200])["usage"]["total_tokens"]
    short = post("/rerank", query=query, documents=["the ship " * 200],
                 max_tokens_per_doc=5)["usage"]["total_tokens"]
    assert whole == 48 > short, (whole, short)


def a_model_with_one_label_classifies_by_its_sigmoid() -> None:
    for case in CASES["texts"]:
        if not fits(case):
            continue
        entry = post("/classify", input=case["text"])["data"][0]
        assert near(entry["probs"][0], 1 / (1 + math.exp(-case["logits"][0]))), (entry, case)
        assert entry["num_classes"] == 1 and entry["label"] == "LABEL_0", entry


def faults_are_named() -> None:
    for path, body, param in (
            ("/score", {}, "text_1"), ("/score", {"text_1": "a"}, "text_1"),
            ("/score", {"text_1": "a", "text_2": []}, "text_2"),
            ("/score", {"text_1": [], "text_2": ["a"]}, "text_1"),
            ("/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_1"),
            ("/score", {"text_1": "a", "text_2": ["b", 3]}, "text_2[1]"),
            ("/score", {"queries": "a", "documents": [{"txt": ""}]}, "documents[0]"),
            ("/score", {"text_1": "", "text_2": "b"}, "text_1"),
            ("/score", {"text_1": "a", "text_2": ["b"] * 2048}, "text_2"),
            ("/score", {"text_1": "a", "text_2": "b", "use_activation": 1}, "use_activation"),
            ("/score", {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 2},
             "truncate_prompt_tokens"),
            ("/score", {"query": "a", "items": ["b"]}, "label_token_ids"),
            ("/rerank", {"query": ["a"], "documents": ["a"]}, "query"),
            ("/rerank", {"query": "a", "documents": "a"}, "documents"),
            ("/rerank", {"query": "a", "documents": ["a"], "max_tokens_per_doc": 0},
             "max_tokens_per_doc"),
            ("/classify", {}, "input"), ("/classify", {"input": []}, "input"),
            ("/classify", {"input": [[1], [10 ** 6]]}, "input[1][0]"),
            ("/classify", {"input": {"a": 1}}, "input")):
        status, _, answer = SERVER.request("POST", path, body)
        assert status == 400 and answer["error"]["param"] == param, (path, body, answer)
    too_long = {"text_1": "a", "text_2": "the ship " * 99}
    status, _, answer = SERVER.request("POST", "/score", too_long)
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded", answer
    for path, body in (("/score", {"text_1": "a", "text_2": "b"}), ("/classify", {"input": "a"}),
                       ("/rerank", {"query": "q", "documents": ["a"]})):
        status, _, answer = SERVER.request("POST", path, {**body, "model": "no"})
        assert status == 404 and answer["error"]["code"] == "model_not_found", answer
        assert '"judge"' in answer["error"]["message"], answer
    status, _, answer = SERVER.request("POST", "/v1/embeddings", {"input": "a", "model": "judge"})
    assert status == 404 and "--embedding-model" in answer["error"]["message"], answer


def the_package_reads_answers() -> None:
    client = openai.OpenAI(base_url=SERVER.url + "/v1", api_key="any", max_retries=0,
                           timeout=TIMEOUT)
    assert [m.id for m in client.models.list()] == ["demo", "judge"]
    assert client.models.retrieve("judge").id == "judge"
    case = CASES["pairs"][0]
    answer: Any = client.post("/score", cast_to=object, body={
        "model": "judge", "queries": case["first"], "documents": [case["second"]],
        "user": "somebody"})
    assert near(answer["data"][0]["score"], case["score"]), answer
    answer = client.post("/classify", cast_to=object, body={"input": ["a", "b"]})
    assert [d["index"] for d in answer["data"]] == [0, 1], answer
    try:
        client.post("/classify", cast_to=object, body={"input": ""})
    except openai.BadRequestError as error:
        assert error.code == "invalid_value", error
    else:
        raise AssertionError("no BadRequestError")


def classes_are_those_of_transformers() -> None:
    for path in CLASSIFY:
        for case in CASES["texts"]:
            answer = post(path, input=case["text"], truncate_prompt_tokens=-1)
            entry = answer["data"][0]
            top = max(case["logits"])
            powers = [math.exp(x - top) for x in case["logits"]]
            want = [p / sum(powers) for p in powers]
            assert all(near(a, b) for a, b in zip(entry["probs"], want, strict=True)), entry
            assert entry["label"] == ["calm", "storm", "fog"][want.index(max(want))], entry
            assert entry["num_classes"] == 3 and entry["index"] == 0, entry
            assert answer["usage"]["prompt_tokens"] == case["n_tokens"], (answer, case)
            assert answer["id"].startswith("classify-") and answer["object"] == "list", answer


def inputs_are_classified_alike_in_every_form() -> None:
    texts = [c["text"] for c in CASES["texts"] if fits(c)]
    alone = [post("/classify", input=t)["data"][0]["probs"] for t in texts]
    assert [d["probs"] for d in post("/classify", input=texts)["data"]] == alone
    plain = post("/classify", input=texts, use_activation=False)["data"]
    for case, entry in zip(CASES["texts"], plain):
        assert all(near(a, b) for a, b in zip(entry["probs"], case["logits"])), (entry, case)
    for name in ("activation", "softmax"):
        assert post("/classify", **{"input": texts, name: False})["data"] == plain
    bare = post("/classify", input="a", add_special_tokens=False)["usage"]["prompt_tokens"]
    assert bare == 1 < post("/classify", input="a")["usage"]["prompt_tokens"]


def pairs_need_a_model_with_one_label() -> None:
    for path, body in (("/score", {"text_1": "a", "text_2": "b"}),
                       ("/rerank", {"query": "a", "documents": ["b"]})):
        status, _, answer = SERVER.request("POST", path, body)
        assert status == 404 and "3 labels" in answer["error"]["message"], answer


def an_embedding_model_scores_by_its_vectors() -> None:
    """The server has both models, but the one with labels has three."""
    ranked = post("/rerank", query="who answers", documents=["the server", "a question"])
    assert ranked["model"] == "embedder", ranked
    by_index = {r["index"]: r["relevance_score"] for r in ranked["results"]}
    got = scores(text_1="who answers", text_2=["the server", "a question"])
    assert got == [by_index[0], by_index[1]], (got, ranked)
    assert all(-1 <= s <= 1 for s in got), got
    assert scores(text_1=["who answers"] * 2, text_2=["the server", "a question"]) == got
    assert post("/classify", input="a")["model"].endswith("classify-bert")
    ids = [m["id"] for m in SERVER.request("GET", "/v1/models")[2]["data"]]
    assert len(ids) == 3 and "embedder" in ids, ids


def without_models_the_options_are_named() -> None:
    for path, body, option in (("/score", {"text_1": "a", "text_2": "b"}, "--rerank-model"),
                               ("/classify", {"input": "a"}, "--rerank-model"),
                               ("/rerank", {"query": "a", "documents": ["b"]}, "--embedding-model"),
                               ("/v1/embeddings", {"input": "a"}, "--embedding-model")):
        status, _, answer = SERVER.request("POST", path, body)
        assert status == 404 and option in answer["error"]["message"], answer
        assert answer["error"]["code"] == "model_not_found", answer


def a_model_of_the_other_kind_is_refused_by_its_option() -> None:
    for option, model, words in (
            ("--rerank-model", GOLDEN / "embed-bert-cls", "has no labels"),
            ("--embedding-model", GOLDEN / "rerank-bert", "name it by --rerank-model")):
        with tempfile.TemporaryDirectory() as name:
            done = subprocess.run(
                [str(tarn_test.program("tarn-server")), "--model", str(MODEL), "--port", "0",
                 "--cache-dir", str(Path(name)), option, str(model)],
                capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert done.returncode != 0 and words in done.stderr and option in done.stderr, done.stderr


def run(name: str | None, tests: list[Any], *options: str) -> int:
    global SERVER, CASES
    more = list(options)
    print(name or "no further model")
    if name:
        CASES = json.loads((GOLDEN / name / "texts.json").read_text(encoding="utf-8"))
        more += ["--rerank-model", str(GOLDEN / name)]
    with tarn_server(MODEL, "--served-model-name", "demo", "--documents-path", "none",
                     *more) as SERVER:
        return run_tests(tests)


PAIRS = [scores_are_those_of_sentence_transformers, every_form_of_a_score_is_the_same,
         a_pair_has_the_same_bits_alone_and_among_others]

if __name__ == "__main__":
    NAME = ("--served-rerank-model-name", "judge")
    sys.exit(run("rerank-bert", [*PAIRS, documents_are_ranked_by_their_scores,
                                 a_model_with_one_label_classifies_by_its_sigmoid,
                                 faults_are_named, the_package_reads_answers], *NAME)
             or run("rerank-xlm-roberta", PAIRS, *NAME)
             or run("classify-bert", [classes_are_those_of_transformers,
                                      inputs_are_classified_alike_in_every_form,
                                      pairs_need_a_model_with_one_label])
             or run("classify-bert", [an_embedding_model_scores_by_its_vectors],
                    "--embedding-model", str(GOLDEN / "embed-bert-mean"),
                    "--served-embedding-model-name", "embedder")
             or run(None, [without_models_the_options_are_named,
                           a_model_of_the_other_kind_is_refused_by_its_option]))
