#!/usr/bin/env python3
"""Downloads from a hub into the Hugging Face cache: tarnctl models download, --download.

The hub is a stand-in (hub_stand_in.py); the model is the demo model of the repository.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Iterator

from http_helpers import REPO, run_tests, tarn_test
from hub_stand_in import Hub, git_sum

DEMO = REPO / "deploy" / "demo-model"
TOKEN = "hf_this-is-a-secret"
NAMES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
         "model.safetensors")
NOISE = {"README.md": b"words", "pytorch_model.bin": b"pickle" * 100, ".gitattributes": b"x",
         "onnx/model.onnx": b"onnx", "pytorch_model.bin.index.json": b"{}"}
WEIGHTS = "model.safetensors"


def demo_files() -> dict[str, bytes]:
    return {name: (DEMO / name).read_bytes() for name in NAMES} | NOISE


def small_files() -> dict[str, bytes]:
    """Files of the right names; nobody loads them."""
    return {"config.json": b'{"model_type": "llama"}', WEIGHTS: bytes(range(256)) * 2000}


@contextlib.contextmanager
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tarn-hub-") as folder:
        yield Path(folder)


def environment(hub: Hub, folder: Path, **more: str) -> dict[str, str]:
    usual = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "TARN_"))}
    return usual | {"HF_HOME": str(folder), "HF_ENDPOINT": hub.url, "HOME": str(folder)} | more


def start(hub: Hub, folder: Path, *words: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen([str(tarn_test.program("tarnctl")), "models", "download", *words],
                            env=environment(hub, folder, **more), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def download(hub: Hub, folder: Path, *words: str, **more: str) -> tuple[int, str, str]:
    process = start(hub, folder, *(words or ("org/name",)), **more)
    out, err = process.communicate(timeout=tarn_test.patience(60))
    return process.returncode, out, err


def repo(folder: Path) -> Path:
    return folder / "hub" / "models--org--name"


def snapshot(folder: Path) -> Path:
    return repo(folder) / "snapshots" / Hub.COMMIT


def refused(hub: Hub, folder: Path, words: str, *arguments: str) -> None:
    code, out, err = download(hub, folder, *arguments)
    assert code == 1 and not out and words in err, (code, out, err)
    assert not (repo(folder) / "refs" / "main").exists()


def wait_for_bytes(hub: Hub, folder: Path, n: int) -> None:
    """Wait until the weights are here as far as that."""
    unfinished = (repo(folder) / "blobs" /
                  f"{hashlib.sha256(hub.files[WEIGHTS]).hexdigest()}.incomplete")
    end = time.monotonic() + tarn_test.patience(30)
    while not unfinished.exists() or unfinished.stat().st_size < n:
        assert time.monotonic() < end
        time.sleep(0.02)


def a_server_downloads_its_model_and_answers() -> None:
    with Hub(demo_files()) as hub, home() as folder:
        os.environ.update(HF_HOME=str(folder), HF_ENDPOINT=hub.url)
        with tarn_test.server("org/name", "--download", "--no-profile-cost") as url:
            answer = tarn_test.post(f"{url}/v1/completions",
                                    {"model": "org/name", "prompt": "a", "max_tokens": 2})
            assert answer["usage"]["completion_tokens"] > 0, answer
        n = len(hub.seen)
        with tarn_test.server("org/name", "--download", "--no-profile-cost"):
            assert len(hub.seen) == n  # nothing is asked when the model is there


def without_download_a_server_says_how_to_get_the_model() -> None:
    with Hub(demo_files()) as hub, home() as folder:
        done = subprocess.run([str(tarn_test.program("tarn-server")), "--model", "org/name"],
                              env=environment(hub, folder), capture_output=True, text=True,
                              timeout=tarn_test.patience(60))
        assert done.returncode == 1 and "tarnctl models download org/name" in done.stderr, done
        assert not hub.seen


def the_cache_has_the_layout_of_huggingface_hub() -> None:
    with Hub(demo_files()) as hub, home() as folder:
        code, out, err = download(hub, folder)
        assert code == 0, err
        assert out == f"{snapshot(folder)}\n"
        assert (repo(folder) / "refs" / "main").read_text() == Hub.COMMIT
        assert sorted(p.name for p in snapshot(folder).iterdir()) == sorted(NAMES)
        for name in NAMES:
            link = snapshot(folder) / name
            large = hub.is_large(name)
            want = (hashlib.sha256(hub.files[name]).hexdigest() if large
                    else git_sum(hub.files[name]))
            assert os.readlink(link) == f"../../blobs/{want}", os.readlink(link)
            assert link.read_bytes() == hub.files[name]
        assert not list((repo(folder) / "blobs").glob("*.incomplete"))
        n = len(hub.requests("/resolve/"))
        assert download(hub, folder)[0] == 0 and len(hub.requests("/resolve/")) == n
        assert download(hub, folder, f"org/name@{Hub.COMMIT}")[0] == 0
        assert len(hub.requests("/resolve/")) == n


def shards_are_those_of_the_index() -> None:
    index = {"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}
    files = {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode(),
             "x-1.safetensors": b"1" * 300, "x-2.safetensors": b"2" * 300,
             "consolidated.safetensors": b"the same again"}
    with Hub(files) as hub, home() as folder:
        code, _, err = download(hub, folder)
        assert code == 0, err
        assert sorted(p.name for p in snapshot(folder).iterdir()) == [
            "config.json", "model.safetensors.index.json", "x-1.safetensors", "x-2.safetensors"]
    files["model.safetensors.index.json"] = b'{"weight_map": {"a": "../../../x"}}'
    with Hub(files) as hub, home() as folder:
        refused(hub, folder, "the hub has no such file")


def a_cut_download_continues_where_it_was_cut() -> None:
    with Hub(small_files()) as hub, home() as folder:
        hub.cut_after[WEIGHTS] = 100_000
        code, _, err = download(hub, folder)
        assert code == 0, err
        ranges = [headers.get("Range") for _, headers in hub.requests(WEIGHTS)]
        assert ranges[0] is None and len(ranges) == 2, ranges
        assert ranges[1] == "bytes=100000-", ranges
        assert (snapshot(folder) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


def a_stopped_download_continues() -> None:
    for number, status in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        with Hub(small_files()) as hub, home() as folder:
            hub.stall_after[WEIGHTS] = 200_000
            process = start(hub, folder, "org/name")
            wait_for_bytes(hub, folder, 200_000)
            process.send_signal(number)
            _, err = process.communicate(timeout=tarn_test.patience(30))
            assert process.returncode == status, (process.returncode, err)
            assert not (snapshot(folder) / WEIGHTS).exists()
            assert download(hub, folder)[0] == 0
            assert hub.requests(WEIGHTS)[-1][1].get("Range") == "bytes=200000-"
            assert (snapshot(folder) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


def a_server_that_is_stopped_while_it_downloads_continues() -> None:
    with Hub(small_files()) as hub, home() as folder:
        hub.stall_after[WEIGHTS] = 200_000
        server = subprocess.Popen(
            [str(tarn_test.program("tarn-server")), "--model", "org/name", "--download"],
            env=environment(hub, folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_bytes(hub, folder, 200_000)
        server.terminate()
        assert server.wait(tarn_test.patience(30)) == 0
        assert download(hub, folder)[0] == 0
        assert hub.requests(WEIGHTS)[-1][1].get("Range") == "bytes=200000-"


def a_wrong_checksum_is_refused_and_the_bytes_are_dropped() -> None:
    for name in (WEIGHTS, "config.json"):  # SHA-256, git's sum
        with Hub(small_files()) as hub, home() as folder:
            right = hub.files[name]
            hub.wrong[name] = right[:-1] + b"!"
            refused(hub, folder, f"{name}: the checksum of what arrived is not")
            assert not (snapshot(folder) / name).exists()
            blobs = {p.name for p in (repo(folder) / "blobs").iterdir()}
            assert not any(hashlib.sha256(right).hexdigest() in b or git_sum(right) in b
                           for b in blobs), blobs
            hub.wrong.clear()
            assert download(hub, folder)[0] == 0


def an_unfinished_file_of_wrong_bytes_is_begun_again() -> None:
    with Hub(small_files()) as hub, home() as folder:
        blobs = repo(folder) / "blobs"
        blobs.mkdir(parents=True)
        name = hashlib.sha256(hub.files[WEIGHTS]).hexdigest()
        (blobs / f"{name}.incomplete").write_bytes(b"not these bytes")
        assert download(hub, folder)[0] == 0
        assert (snapshot(folder) / WEIGHTS).read_bytes() == hub.files[WEIGHTS]


def the_token_goes_to_the_hub_and_not_to_its_store() -> None:
    files = small_files()
    with Hub(files) as store, Hub(files, store=store) as hub, home() as folder:
        hub.token = TOKEN
        code, out, err = download(hub, folder, HF_TOKEN=TOKEN)
        assert code == 0 and TOKEN not in out + err, err
        assert all(h.get("Authorization") == f"Bearer {TOKEN}" for _, h in hub.seen)
        assert store.seen and not any("Authorization" in h for _, h in store.seen)
    with Hub(files) as hub, home() as folder:
        (folder / "token").write_text(TOKEN + "\n")
        hub.token = TOKEN
        assert download(hub, folder)[0] == 0


def answers_that_refuse_are_told() -> None:
    for status, words in ((401, "a token is needed (HF_TOKEN)"), (403, "accept the model's"),
                          (404, "no such model, revision or file"), (410, "answers 410")):
        with Hub(small_files()) as hub, home() as folder:
            hub.answers = [(status, {})]
            refused(hub, folder, words)
            assert len(hub.seen) == 1  # not tried again
    with Hub(small_files()) as hub, home() as folder:
        hub.token = "another"
        code, _, err = download(hub, folder, HF_TOKEN=TOKEN)
        assert code == 1 and "the token gives no access" in err and TOKEN not in err, err


def failures_that_may_pass_are_tried_again() -> None:
    now = {"Retry_After": "0"}
    with Hub(small_files()) as hub, home() as folder:
        hub.answers = [(429, now), (500, now), (503, now)]
        code, _, err = download(hub, folder)
        assert code == 0, err
    with Hub(small_files()) as hub, home() as folder:
        hub.answers = [(503, now)] * 50
        refused(hub, folder, "answers 503")
        assert len(hub.seen) == 5, len(hub.seen)
    with Hub(small_files()) as hub, home() as folder:
        hub.answers = [(302, {"Location": "/api/models/org/name"})] * 50
        refused(hub, folder, "redirects")
    with Hub(small_files()) as hub, home() as folder:
        hub.answers = [(302, {"Location": "file:///etc/passwd"})]
        refused(hub, folder, "no valid URL")


def hostile_lists_are_refused() -> None:
    names = ("../x.json", "/etc/x.json", "a/../../x.json", "a//x.json", "a\\x.json", "./x.json",
             "x\n.json", "", "n" * 300 + ".json")
    with Hub(small_files()) as hub, home() as folder:
        for name in names:
            hub.listed = hub.list()
            hub.listed["siblings"][0]["rfilename"] = name
            refused(hub, folder, "the file name")
        wrong = ({"sha": "main"}, {"sha": "../../x"}, {"siblings": []}, {"siblings": "x"},
                 {"siblings": [{"rfilename": "config.json", "size": -1, "blobId": "0" * 40}]},
                 {"siblings": [{"rfilename": "config.json", "size": 1 << 60, "blobId": "0" * 40}]},
                 {"siblings": [{"rfilename": "config.json", "size": 1,
                                 "blobId": "../" * 13 + "x"}]},
                 {"siblings": [{"rfilename": "config.json", "size": 1}]},
                 {"siblings": [{"rfilename": "a", "size": 1, "lfs": {"sha256": "A" * 64}}]},
                 {"siblings": hub.list()["siblings"] * 2})
        for change in wrong:
            hub.listed = hub.list() | change
            refused(hub, folder, "the hub's list of files")
        assert not hub.requests("/resolve/")
        assert sorted(p.name for p in folder.rglob("*") if p.is_file()) == []


def more_bytes_than_listed_are_refused() -> None:
    with Hub(small_files()) as hub, home() as folder:
        hub.wrong[WEIGHTS] = hub.files[WEIGHTS] * 3
        refused(hub, folder, "sends more than")


def a_model_larger_than_the_disk_is_refused_before_its_bytes() -> None:
    with Hub(small_files()) as hub, home() as folder:
        hub.listed = hub.list()
        for one in hub.listed["siblings"]:
            if one["rfilename"] == WEIGHTS:
                one["size"] = 1 << 42
        refused(hub, folder, "GB free")
        assert not hub.requests("/resolve/")


def two_downloads_at_once_fetch_each_file_once() -> None:
    with Hub(demo_files()) as hub, home() as folder:
        both = [start(hub, folder, "org/name") for _ in range(2)]
        for process in both:
            _, err = process.communicate(timeout=tarn_test.patience(60))
            assert process.returncode == 0, err
        for name in NAMES:
            assert len(hub.requests(f"/{name}")) == 1, (name, hub.seen)


def one_gguf_file_is_chosen_by_name() -> None:
    files = {"m-Q4_K_M.gguf": b"GGUF4", "m-Q8_0.gguf": b"GGUF8", "README.md": b"",
             "mmproj-f16.gguf": b"GGUFm", "big/m-f16-00001-of-00002.gguf": b"GGUFa",
             "big/m-f16-00002-of-00002.gguf": b"GGUFb"}
    with Hub(files) as hub, home() as folder:
        refused(hub, folder, "several GGUF files")
        refused(hub, folder, "m-Q8_0.gguf", "org/name")
        refused(hub, folder, "fits Q5_K_M", "org/name:Q5_K_M")
        assert download(hub, folder, "org/name:q4_k_m")[0] == 0
        assert [p.name for p in snapshot(folder).iterdir()] == ["m-Q4_K_M.gguf"]
        assert download(hub, folder, "org/name:big/m-f16-00001-of-00002.gguf")[0] == 0
        assert sorted(p.name for p in (snapshot(folder) / "big").iterdir()) == [
            "m-f16-00001-of-00002.gguf", "m-f16-00002-of-00002.gguf"]
        assert (snapshot(folder) / "big" / "m-f16-00002-of-00002.gguf").read_bytes() == b"GGUFb"


def include_takes_other_files_and_nothing_readable_is_told() -> None:
    with Hub(demo_files()) as hub, home() as folder:
        code, _, err = download(hub, folder, "org/name", "--include", "*.md", "--include", "onnx/*")
        assert code == 0, err
        assert sorted(p.name for p in snapshot(folder).iterdir()) == ["README.md", "onnx"]
    with Hub({"pytorch_model.bin": b"x"}) as hub, home() as folder:
        refused(hub, folder, "it has: pytorch_model.bin")
    with Hub(demo_files()) as hub, home() as folder:
        code, _, err = download(hub, folder, HF_HUB_OFFLINE="1")
        assert code == 1 and "HF_HUB_OFFLINE" in err and not hub.seen


TESTS = [
    a_server_downloads_its_model_and_answers,
    without_download_a_server_says_how_to_get_the_model,
    the_cache_has_the_layout_of_huggingface_hub,
    shards_are_those_of_the_index,
    a_cut_download_continues_where_it_was_cut,
    a_stopped_download_continues,
    a_server_that_is_stopped_while_it_downloads_continues,
    a_wrong_checksum_is_refused_and_the_bytes_are_dropped,
    an_unfinished_file_of_wrong_bytes_is_begun_again,
    the_token_goes_to_the_hub_and_not_to_its_store,
    answers_that_refuse_are_told,
    failures_that_may_pass_are_tried_again,
    hostile_lists_are_refused,
    more_bytes_than_listed_are_refused,
    a_model_larger_than_the_disk_is_refused_before_its_bytes,
    two_downloads_at_once_fetch_each_file_once,
    one_gguf_file_is_chosen_by_name,
    include_takes_other_files_and_nothing_readable_is_told,
]


if __name__ == "__main__":
    sys.exit(run_tests([t for t in TESTS if not sys.argv[1:] or t.__name__ in sys.argv[1:]]))
