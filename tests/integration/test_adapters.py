#!/usr/bin/env python3
"""Adapters (LoRA) over HTTP: requests name them, lists and metrics have them, and they come and go
while the server runs. The calls of models go through the official openai package.

Skipped where the package cannot be had (venv_helpers.py).
"""
from __future__ import annotations

import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from http_helpers import TIMEOUT, Server, make_model, run_tests, tarn_server, wait_until
from venv_helpers import use_venv

ADAPTERS = {"red": ("--rank", "4"), "green": ("--rank", "8", "--seed", "2", "--rslora"),
            "late": ("--rank", "2", "--seed", "3", "--targets", "q_proj,down_proj"),
            "wide": ("--rank", "32")}


def make_adapters(folder: str) -> dict[str, str]:
    """The tools need NumPy, which the venv need not have: make the files with this Python."""
    from tarn_test import TOOLS
    model = make_model(folder)
    for name, options in ADAPTERS.items():
        subprocess.run([sys.executable, str(TOOLS / "make_tiny_adapter.py"), str(model),
                        str(Path(folder) / "adapters" / name), *options], check=True)
    return {"TARN_TEST_MODEL": str(model), "TARN_TEST_ADAPTERS": str(Path(folder) / "adapters")}


with tempfile.TemporaryDirectory() as place:
    use_venv("openai", env=lambda: make_adapters(place))
import openai  # noqa: E402

SERVER: Server
CLIENT: openai.OpenAI
FOLDER: Path
BODY: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "logprobs": 3,
                        "extra_body": {"ignore_eos": True, "return_token_ids": True}}


def ids(model: str, prompt: str = "where is the red house", n: int = 12) -> list[int]:
    answer = CLIENT.completions.create(model=model, prompt=prompt, **{**BODY, "max_tokens": n})
    assert answer.model == model, answer
    return answer.choices[0].token_ids


def admin(path: str, body: dict[str, Any]) -> tuple[int, Any]:
    status, _, answer = SERVER.request("POST", path, body)
    return status, answer


def adapters_are_listed_with_their_model() -> None:
    found = {m.id: m for m in CLIENT.models.list()}
    assert set(found) == {"tiny", "red", "green"}, found
    assert found["tiny"].parent is None
    assert found["red"].parent == "tiny" and found["red"].root == str(FOLDER / "red")
    assert found["green"].parent == "other/base"
    assert CLIENT.models.retrieve("green").id == "green"
    status, _, answer = SERVER.request("GET", "/v1/models", None,
                                       {"anthropic-version": "2023-06-01"})
    assert status == 200 and answer["last_id"] == "green", answer
    assert [m["id"] for m in answer["data"]] == ["tiny", "red", "green"]


def each_adapter_has_answers_of_its_own() -> None:
    answers = [ids(name) for name in ("tiny", "red", "green")]
    assert len({tuple(a) for a in answers}) == 3, answers
    assert ids("red") == answers[1] and ids("tiny") == answers[0]
    chat = [CLIENT.chat.completions.create(
        model=name, max_tokens=12, temperature=0, extra_body={"ignore_eos": True},
        messages=[{"role": "user", "content": "hi"}]) for name in ("tiny", "red", "tiny:red")]
    texts = [c.choices[0].message.content for c in chat]
    assert texts[0] != texts[1] == texts[2], texts  # SGLang's form names the same adapter
    assert chat[2].model == "red"


def all_apis_take_an_adapter() -> None:
    answer = CLIENT.responses.create(model="red", input="hi", max_output_tokens=16)
    assert answer.model == "red", answer
    message = SERVER.post("/v1/messages", {"model": "red", "max_tokens": 4, "messages": [
        {"role": "user", "content": "hi"}]})
    assert message["model"] == "red", message
    assert SERVER.post("/tokenize", {"model": "red", "prompt": "hi"})["count"] > 0
    frames, _ = SERVER.stream("/v1/chat/completions", {
        "model": "red", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]})
    assert {f["model"] for f in frames} == {"red"}, frames


def unknown_adapters_are_404() -> None:
    for name in ("blue", "tiny:blue", "other:red"):
        try:
            ids(name)
        except openai.NotFoundError as e:
            assert e.code == "model_not_found", e
        else:
            raise AssertionError(f"{name} was served")


def answers_do_not_depend_on_what_runs_beside_them() -> None:
    prompts = [f"once upon a time {i} there was" for i in range(4)]
    names = ("tiny", "red", "green")
    alone = {(n, p): ids(n, p, 24) for p in prompts for n in names}
    SERVER.post("/reset_prefix_cache", {})
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        together = {key: pool.submit(ids, *key, 24) for key in alone}
    assert {key: f.result() for key, f in together.items()} == alone


def cached_tokens(model: str, prompt: str) -> int:
    answer = CLIENT.completions.create(model=model, prompt=prompt, max_tokens=1)
    return answer.usage.prompt_tokens_details.cached_tokens


def kv_is_cached_for_each_adapter_alone() -> None:
    prompt = "the server answers the question with the documents " * 12
    assert [cached_tokens(n, prompt) for n in ("red", "tiny", "green")] == [0, 0, 0]
    assert all(cached_tokens(n, prompt) > 0 for n in ("red", "tiny", "green"))


def documents_are_computed_with_the_adapter() -> None:
    """Also in the order that the cache prefers: its lookup is in the adapter's scope."""
    documents = [{"title": t, "text": f"{t} is a ship. " * 20} for t in ("Ama", "Bor")]
    ask = {"messages": [{"role": "user", "content": "Which?"}], "max_tokens": 4, "temperature": 0,
           "ignore_eos": True, "documents_order": "cache"}
    cached = []
    for name, order in (("tiny", [0, 1]), ("red", [1, 0]), ("red", [0, 1]), ("tiny", [1, 0])):
        answer = SERVER.post("/v1/chat/completions", {
            **ask, "model": name, "documents": [documents[i] for i in order]})
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[1] == 0 and cached[2] > 100 and cached[3] > 100, cached


def an_adapter_comes_and_goes_while_the_server_runs() -> None:
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    assert admin(load, {"lora_name": "late", "lora_path": "late", "base_model_name": "b"})[0] == 200
    assert CLIENT.models.retrieve("late").parent == "b"
    first = ids("late")
    status, answer = admin(load, {"lora_name": "late", "lora_path": str(FOLDER / "late")})
    assert status == 400 and "load_inplace" in answer["error"]["message"], answer
    status, words = admin(load, {"lora_name": "late", "lora_path": "red", "load_inplace": True})
    assert status == 200 and words == "Success: LoRA adapter 'late' added successfully.", words
    assert ids("late") == ids("red") != first
    assert admin(unload, {"lora_name": "late"})[0] == 200
    status, answer = admin(unload, {"lora_name": "late"})
    assert status == 404 and answer["error"]["param"] == "lora_name", answer
    assert "late" not in [m.id for m in CLIENT.models.list()]
    status, answer = admin("/load_lora_adapter", {"lora_name": "late", "lora_path": "late"})
    assert status == 200 and answer["success"] and set(answer["loaded_adapters"]) == {
        "red", "green", "late"}, answer
    assert ids("late") == first
    assert "late" not in admin("/unload_lora_adapter", {"lora_name": "late"})[1]["loaded_adapters"]


def a_request_ends_with_the_adapter_that_it_began_with() -> None:
    assert admin("/load_lora_adapter", {"lora_name": "late", "lora_path": "late"})[0] == 200
    want = ids("late", "a", 600)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = pool.submit(ids, "late", "a", 600)
        wait_until(lambda: SERVER.metrics()["vllm:num_requests_running"] > 0 or running.done())
        assert admin("/unload_lora_adapter", {"lora_name": "late"})[0] == 200
        assert running.result() == want


def paths_outside_of_the_folder_are_not_there() -> None:
    (FOLDER / "out").unlink(missing_ok=True)
    (FOLDER / "out").symlink_to("/etc")
    for path in ("..", "../adapters/../model", "/etc", "out", "red/../../model", "nowhere"):
        status, answer = admin("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": path})
        assert status == 404 and answer["error"]["param"] == "lora_path", (path, answer)
    (FOLDER / "out").unlink()


def bad_adapters_and_names_are_refused() -> None:
    load = "/v1/load_lora_adapter"
    for body, field in (({}, "lora_name"), ({"lora_name": "x"}, "lora_path"),
                        ({"lora_name": "tiny", "lora_path": "red"}, "lora_name"),
                        ({"lora_name": "a,b", "lora_path": "red"}, "lora_name"),
                        ({"lora_name": "x" * 300, "lora_path": "red"}, "lora_name"),
                        ({"lora_name": 3, "lora_path": "red"}, "lora_name"),
                        ({"lora_name": "x", "lora_path": "red", "base_model_name": "b" * 256},
                         "base_model_name")):
        status, answer = admin(load, body)
        assert status == 400 and answer["error"]["param"] == field, (body, answer)
    status, answer = admin(load, {"lora_name": "x", "lora_path": "wide"})
    assert status == 413 and "rank 32" in answer["error"]["message"], answer
    names = [f"n{i}" for i in range(3)]
    answers = [admin(load, {"lora_name": n, "lora_path": "late"}) for n in names]
    assert [a[0] for a in answers] == [200, 200, 413], answers  # --max-loras 4
    assert "--max-loras" in answers[2][1]["error"]["message"], answers
    for n in names[:2]:
        assert admin("/v1/unload_lora_adapter", {"lora_name": n})[0] == 200


def a_folder_of_pipes_is_refused_and_holds_nothing_up() -> None:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        folder = FOLDER / "pipes"
        shutil.copytree(FOLDER / "red", folder)
        (folder / name).unlink()
        os.mkfifo(folder / name)
        status, answer = admin("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "pipes"})
        assert status == 400 and "not a regular file" in answer["error"]["message"], answer
        shutil.rmtree(folder)


def metrics_name_the_adapters_that_run() -> None:
    def info() -> str:
        text = SERVER.request("GET", "/metrics")[2]
        return next(line for line in text.splitlines()
                    if line.startswith("vllm:lora_requests_info{"))

    assert 'max_lora="4"' in info() and SERVER.metrics()["tarn:adapters"] == 2
    with concurrent.futures.ThreadPoolExecutor() as pool:
        running = pool.submit(ids, "green", "b", 900)
        wait_until(lambda: 'running_lora_adapters="green"' in info() or running.done())
        running.result()
    wait_until(lambda: 'running_lora_adapters=""' in info(), info)


def a_server_without_the_folder_loads_nothing() -> None:
    """And one without adapters says so; vLLM's JSON form names one, too."""
    model, red = Path(os.environ["TARN_TEST_MODEL"]), FOLDER / "red"
    with tarn_server(model, "--lora-modules", '{"name": "j", "path": "%s"}' % red) as server:
        status, _, answer = server.request("POST", "/v1/load_lora_adapter",
                                           {"lora_name": "x", "lora_path": "red"})
        assert status == 403 and "--lora-dir" in answer["error"]["message"], answer
        assert server.post("/v1/completions", {"model": "j", "prompt": "a", "max_tokens": 1})
    with tarn_server(model, "--admin-api-key", "boss", "--api-key", "a", "--lora-dir",
                     str(FOLDER)) as server:
        for key, want in (("a", 403), ("boss", 200)):
            status, _, _ = server.request("POST", "/v1/load_lora_adapter",
                                          {"lora_name": "x", "lora_path": "red"},
                                          {"x-api-key": key})
            assert status == want, (key, status)


TESTS = [adapters_are_listed_with_their_model, each_adapter_has_answers_of_its_own,
         all_apis_take_an_adapter, unknown_adapters_are_404,
         answers_do_not_depend_on_what_runs_beside_them, kv_is_cached_for_each_adapter_alone,
         documents_are_computed_with_the_adapter, an_adapter_comes_and_goes_while_the_server_runs,
         a_request_ends_with_the_adapter_that_it_began_with,
         paths_outside_of_the_folder_are_not_there, bad_adapters_and_names_are_refused,
         a_folder_of_pipes_is_refused_and_holds_nothing_up,
         metrics_name_the_adapters_that_run, a_server_without_the_folder_loads_nothing]


def serve(model: Path) -> int:
    global SERVER, CLIENT
    options = ["--served-model-name", "tiny", "--lora-dir", str(FOLDER), "--max-loras", "4",
               "--max-lora-rank", "16", "--lora-modules", f"red={FOLDER / 'red'}",
               '{"name": "green", "path": "%s", "base_model_name": "other/base"}'
               % (FOLDER / "green")]
    with tarn_server(model, *options) as SERVER:
        CLIENT = openai.OpenAI(base_url=SERVER.url + "/v1", api_key="none", timeout=TIMEOUT,
                               max_retries=0)
        return run_tests(TESTS)


def main() -> int:
    global FOLDER
    with tempfile.TemporaryDirectory() as folder:
        if "TARN_TEST_ADAPTERS" not in os.environ:
            os.environ.update(make_adapters(folder))
        FOLDER = Path(os.environ["TARN_TEST_ADAPTERS"])
        return serve(Path(os.environ["TARN_TEST_MODEL"]))


if __name__ == "__main__":
    sys.exit(main())
