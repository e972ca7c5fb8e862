#!/usr/bin/env python3
"""POST /v1/embeddings: the vectors are those of engine/embedder.h, which sentence-transformers has
too (tests/golden/embed-*), in every form of request, and with the official openai package."""
from __future__ import annotations

import array
import base64
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from http_helpers import TIMEOUT, Server, run_tests, tarn_server, tarn_test, wait_until
from venv_helpers import use_venv

use_venv("openai")
import openai  # noqa: E402

MODEL = tarn_test.REPO / "deploy" / "demo-model"
GOLDEN = tarn_test.REPO / "tests" / "golden"
PATH = "/v1/embeddings"
TOLERANCE = 1e-4  # as test_embed_golden.py
WORDS = ["the server", "answers", "a question", "cafe"]

SERVER: Server
CLIENT: openai.OpenAI
EMBEDDER: Path


def post(**body: Any) -> Any:
    return SERVER.post(PATH, body)


def vectors(**body: Any) -> list[list[float]]:
    data = post(**body)["data"]
    assert [d["index"] for d in data] == list(range(len(data))), data
    return [d["embedding"] for d in data]


def floats(text: str) -> array.array:
    out = array.array("f")
    out.frombytes(base64.b64decode(text, validate=True))
    return out


def by_embedder(text: str, *options: str) -> bytes:
    """The bytes of a vector, from the program of the embedder's own tests."""
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder) / "text", Path(folder) / "out"
        file.write_text(text, encoding="utf-8")
        subprocess.run([str(tarn_test.program("tarn-embed")), str(EMBEDDER), str(file), str(out),
                        *options], check=True, capture_output=True, timeout=TIMEOUT)
        return out.read_bytes()


def golden_vectors_of_sentence_transformers_are_answered() -> None:
    for case in json.loads((EMBEDDER / "texts.json").read_text(encoding="utf-8")):
        answer = post(input=case["text"], input_type=case["role"], truncate_prompt_tokens=-1)
        got, want = answer["data"][0]["embedding"], case["vector"]
        scale = max(abs(x) for x in want)
        assert max(abs(a - b) for a, b in zip(got, want, strict=True)) <= TOLERANCE * scale, case
        assert answer["usage"]["prompt_tokens"] == case["n_tokens"], (answer["usage"], case)


def bits_are_those_of_the_embedder() -> None:
    for text in WORDS:
        coded = vectors(input=text, input_type="document", encoding_format="base64")[0]
        assert floats(coded).tobytes() == by_embedder(text)


def both_encodings_and_any_batch_give_the_same_bits() -> None:
    alone = [floats(vectors(input=text, encoding_format="base64")[0]) for text in WORDS]
    batch = [floats(v) for v in vectors(input=WORDS, encoding_format="base64")]
    numbers = [array.array("f", v) for v in vectors(input=WORDS[::-1])][::-1]
    assert alone == batch == numbers


def documents_are_ranked_by_their_vectors() -> None:
    texts = [*WORDS, WORDS[1]]
    query = vectors(input="who answers", input_type="query")[0]
    scores = [sum(a * b for a, b in zip(query, v))
              for v in vectors(input=texts, input_type="document")]
    order = sorted(range(len(texts)), key=lambda i: (-scores[i], i))
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        answer = SERVER.post(path, {"query": "who answers", "documents": texts})
        assert [r["index"] for r in answer["results"]] == order, (answer, scores)
        assert all(abs(r["relevance_score"] - scores[r["index"]]) < 1e-6
                   for r in answer["results"]), (answer, scores)
        assert all("document" not in r for r in answer["results"]), answer
        assert answer["usage"]["prompt_tokens"] > len(texts) and answer["id"], answer


def a_ranking_may_be_cut_and_repeat_its_documents() -> None:
    mixed = [{"text": WORDS[0], "id": 7}, WORDS[1], "x " * 500]
    whole = SERVER.post("/v1/rerank", {"query": "server", "documents": mixed})
    answer = SERVER.post("/v1/rerank", {"query": "server", "documents": mixed, "top_n": 2,
                                        "return_documents": True, "user": "u"})
    assert [r["index"] for r in answer["results"]] == [r["index"] for r in whole["results"]][:2]
    for r in answer["results"]:
        given = mixed[r["index"]]
        assert r["document"] == ({"text": given} if isinstance(given, str) else given), answer
    short = SERVER.post("/v1/rerank", {"query": "server", "documents": mixed,
                                       "max_tokens_per_doc": 3})
    assert short["usage"]["total_tokens"] <= 12 < whole["usage"]["total_tokens"], short


def faults_of_a_ranking_are_named() -> None:
    for body, param in (({}, "documents"), ({"query": "q"}, "documents"),
                        ({"query": "q", "documents": []}, "documents"),
                        ({"documents": ["a"]}, "query"),
                        ({"query": "", "documents": ["a"]}, "query"),
                        ({"query": "q", "documents": ["a", 1]}, "documents[1]"),
                        ({"query": "q", "documents": [{"txt": "a"}]}, "documents[0]"),
                        ({"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
                        ({"query": "q", "documents": ["a"] * 2048}, "documents")):
        status, _, answer = SERVER.request("POST", "/v1/rerank", body)
        assert status == 400 and answer["error"]["param"] == param, (body, answer)
    status, _, answer = SERVER.request("POST", "/v1/rerank", {"model": "no", "query": "q",
                                                              "documents": ["a"]})
    assert status == 404 and answer["error"]["code"] == "model_not_found", answer


def the_package_reads_the_answer() -> None:
    answer = CLIENT.embeddings.create(model="embedder", input=WORDS, user="somebody")
    assert answer.model == "embedder" and answer.object == "list"
    assert [d.index for d in answer.data] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(WORDS)
    # Without encoding_format the package asks for base64, and decodes it.
    plain = CLIENT.embeddings.create(model="embedder", input=WORDS, encoding_format="float")
    for a, b in zip(answer.data, plain.data, strict=True):
        assert array.array("f", a.embedding) == array.array("f", b.embedding)
    short = CLIENT.embeddings.create(model="embedder", input=WORDS[0], dimensions=5)
    head = plain.data[0].embedding[:5]
    length = sum(x * x for x in head) ** 0.5
    assert all(abs(a - b / length) < 1e-6 for a, b in zip(short.data[0].embedding, head,
                                                         strict=True))


def the_package_names_errors() -> None:
    for kind, code, body in (
            (openai.BadRequestError, "invalid_value", {"input": ""}),
            (openai.BadRequestError, "context_length_exceeded", {"input": "a " * 300}),
            (openai.BadRequestError, "invalid_value", {"input": "a", "dimensions": 10 ** 6}),
            (openai.NotFoundError, "model_not_found", {"input": "a", "model": "demo"})):
        try:
            CLIENT.embeddings.create(**{"model": "embedder", **body})
        except kind as error:
            assert error.code == code, error
        else:
            raise AssertionError(body)
    try:
        CLIENT.with_options(api_key="wrong").embeddings.create(model="embedder", input="a")
    except openai.AuthenticationError:
        return
    raise AssertionError("no AuthenticationError")


def both_models_are_listed() -> None:
    assert [m.id for m in CLIENT.models.list()] == ["demo", "embedder"]
    assert CLIENT.models.retrieve("embedder").id == "embedder"


def metrics_count_inputs_and_tokens() -> None:
    def sample(name: str) -> float:
        return SERVER.metrics()[name]
    route = 'http_requests_total{route="/v1/embeddings",status="200"}'
    before = sample(route), sample("tarn:embedding_tokens_total")
    inputs = sample("tarn:embedding_inputs_total")
    usage = post(input=WORDS)["usage"]["total_tokens"]
    # The exchange is counted when its last byte was sent, which may be after the client has it.
    wait_until(lambda: sample(route) == before[0] + 1)
    assert sample("tarn:embedding_tokens_total") == before[1] + usage
    assert sample("tarn:embedding_inputs_total") == inputs + len(WORDS)


TESTS = [golden_vectors_of_sentence_transformers_are_answered, bits_are_those_of_the_embedder,
         both_encodings_and_any_batch_give_the_same_bits]


def run(name: str, *more: Any) -> int:
    """Run the tests with an embedding model of tests/golden."""
    global SERVER, CLIENT, EMBEDDER
    EMBEDDER = GOLDEN / name
    print(name)
    with tarn_server(MODEL, "--served-model-name", "demo", "--documents-path", "none",
                     "--embedding-model", str(EMBEDDER), "--served-embedding-model-name",
                     "embedder", env={"TARN_API_KEY": "sesame",
                                      "TARN_ADMIN_API_KEY": "boss"}) as SERVER:
        plain = SERVER.request
        SERVER.request = lambda m, p, b=None, h=None: plain(  # type: ignore[method-assign]
            m, p, b, {"x-api-key": "boss", **(h or {})})
        CLIENT = openai.OpenAI(base_url=SERVER.url + "/v1", api_key="sesame", max_retries=0,
                               timeout=TIMEOUT)
        return run_tests([*TESTS, *more])


if __name__ == "__main__":
    sys.exit(run("embed-bert-mean", documents_are_ranked_by_their_vectors,
                 a_ranking_may_be_cut_and_repeat_its_documents, faults_of_a_ranking_are_named,
                 the_package_reads_the_answer, the_package_names_errors, both_models_are_listed,
                 metrics_count_inputs_and_tokens)
             or run("embed-qwen3"))
