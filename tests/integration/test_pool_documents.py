#!/usr/bin/env python3
"""Documents and preambles follow the pool: changed on any instance, they are the same on all.

    test_pool_documents.py [NAME...]    only the cases of these names
"""
from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import hostile_member as hostile
from hostile_member import HostileMember
from http_helpers import REPO, Server, run_tests, tarn_test, wait_until
from pool_harness import PATIENT, Instance, Pool, need_pool

MODEL = REPO / "deploy" / "demo-model"
DOCUMENTS, PREAMBLES, CHAT = "/v1/documents", "/v1/preambles", "/v1/chat/completions"
A, B, ADMIN = "key-of-tenant-a", "key-of-tenant-b", "key-of-the-administrator"
SYSTEM = "You answer questions about ships, in one short sentence. " * 4
QUESTION = "Who is the captain?"
N_IMPORTED = 1000


def text_of(name: str, n: int = 12) -> str:
    return " ".join(f"The captain of {name} number {i} is called {name}-{i * 7}." for i in range(n))


def call(s: Server, method: str, path: str, body: Any = None, key: str = A
         ) -> tuple[int, dict[str, str], Any]:
    return s.request(method, path, body, {"Authorization": f"Bearer {key}"})


def ok(s: Server, method: str, path: str, body: Any = None, key: str = A) -> Any:
    status, _, answer = call(s, method, path, body, key)
    assert status == 200, f"{method} {path}: {status} {answer}"
    return answer


def at(name: str) -> str:
    return f"{DOCUMENTS}/{quote(name, safe='')}"


def put(s: Server, name: str, text: str = "", key: str = A, **more: Any) -> Any:
    return ok(s, "PUT", at(name), {"title": name, "text": text or text_of(name), **more}, key)


def get(s: Server, name: str, key: str = A) -> Any:
    """The document; None: it is not there."""
    status, _, answer = call(s, "GET", at(name), None, key)
    assert status in (200, 404, 503), answer  # 503: a step of a slow build takes over 10 s
    return answer if status == 200 else None


def wait_text(servers: list[Instance], name: str, text: str | None, key: str = A) -> None:
    """Until all servers have this text of the document. None: until none has the document."""
    def texts() -> list[str | None]:
        return [d and d["text"] for d in (get(s, name, key) for s in servers)]

    wait_until(lambda: texts() == [text] * len(servers),
               lambda: [(t or "")[:60] for t in texts()])


def wait_equal(servers: list[Instance], key: str = A) -> None:
    """Until all catalogs are equal and have the same digest in the directory. The digests there
    are up to two seconds old, so they can be equal from before the last change."""
    def digests() -> list[set[Any]]:
        return [{i["documents"] for i in ok(s, "GET", "/v1/instances", None, ADMIN)["data"]}
                for s in servers]

    def states() -> list[str]:
        return [json.dumps(state(s, key), sort_keys=True)[:2000] for s in servers]

    wait_until(lambda: all(state(s, key) == state(servers[0], key) for s in servers[1:]), states)
    wait_until(lambda: all(len(d) == 1 and None not in d for d in digests()), digests)


def state(s: Server, key: str = A) -> list[Any]:
    """All documents and preambles, without what counts uses."""
    data = []
    after = ""
    while True:
        page = ok(s, "GET", f"{DOCUMENTS}?limit=1000{after}", None, key)
        data += page["data"]
        if not page["has_more"]:
            break
        after = f"&after={quote(page['last_id'])}"
    for d in data:
        d.pop("uses", None)
    return data + ok(s, "GET", PREAMBLES, None, key)["data"]


def ask_about(s: Server, name: str) -> tuple[str, int, int]:
    """The answer about a registered document; tokens of the prompt, and cached ones."""
    answer = ok(s, "POST", CHAT, {
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}],
        "documents": [name], "max_tokens": 8, "temperature": 0})
    usage = answer["usage"]
    return (answer["choices"][0]["message"]["content"], usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"])


class Documents(Pool):
    """A pool whose instances have two tenants and an administrator."""

    def __init__(self) -> None:
        super().__init__(MODEL, options=PATIENT)
        keys = self.folder / "keys.json"
        keys.write_text(json.dumps({"keys": [{"name": "a", "key": A, "tenant": "team-a"},
                                             {"name": "b", "key": B, "tenant": "team-b"}]}))
        keys.chmod(0o600)
        self.keys = ("--api-key-file", str(keys), "--admin-api-key", ADMIN)

    def begin(self, n: int) -> list[Instance]:
        all_of_them = [self.start(i, *self.keys) for i in range(n)]
        for s in all_of_them:
            s.metrics = lambda s=s: admin_metrics(s)  # type: ignore[method-assign]
        self.wait(n)
        return all_of_them

    def again(self, s: Instance) -> Instance:
        """Start an instance that has ended once more: with its directory."""
        new = self.start(0, *self.keys, name=s.name)
        new.metrics = lambda: admin_metrics(new)  # type: ignore[method-assign]
        return new


def admin_metrics(s: Server) -> dict[str, float]:
    text = call(s, "GET", "/metrics", None, ADMIN)[2]
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
            for line in text.splitlines() if line and not line.startswith("#")}


def instances_of(s: Server) -> str:
    """What `tarnctl instances` prints."""
    return subprocess.run(
        [str(tarn_test.program("tarnctl")), "--url", f"http://127.0.0.1:{s.port}", "--api-key",
         ADMIN, "instances"], capture_output=True, text=True, check=False).stdout


def is_warm(document: Any, preamble: str) -> bool:
    return any(p["preamble"] == preamble and p["ready"] for p in (document or {}).get("paths", []))


# --- cases ---

def a_change_on_any_instance_is_known_on_all() -> None:
    with Documents() as pool:
        servers = pool.begin(3)
        made = put(servers[0], "x", metadata={"year": 7}, ttl=5000)
        assert made["version"] == 1
        wait_text(servers, "x", text_of("x"))
        seen = [get(s, "x") for s in servers]
        for field in ("version", "title", "metadata", "created_at", "updated_at", "expires_at"):
            assert len({json.dumps(d[field]) for d in seen}) == 1, (field, seen)
        changed = put(servers[1], "x", "Another text.")
        assert (changed["version"], changed["status"]) == (2, "updated"), changed
        wait_text(servers, "x", "Another text.")
        ok(servers[2], "POST", at("x"), {"pin": True})
        wait_until(lambda: all(get(s, "x")["pin"] for s in servers))
        # Tenants stay apart everywhere, and public documents are everybody's.
        assert all(get(s, "x", B) is None for s in servers)
        put(servers[2], "open", key=ADMIN, public=True)
        wait_text(servers, "open", text_of("open"), B)
        ok(servers[2], "DELETE", at("x"))
        wait_text(servers, "x", None)
        wait_equal(servers)
        assert state(servers[0]) == state(servers[1]) == state(servers[2])
        assert servers[0].metric("tarn:documents_refused_total") == 0
        assert servers[1].metric("tarn:documents_followed_total") >= 4
        wait_until(lambda: servers[0].metric("tarn:documents_peers_that_differ") == 0)
        # The instances tell the directory of their catalogs one after the other.
        wait_until(lambda: "documents: the catalogs of 3 instances agree" in instances_of(
            servers[0]), lambda: instances_of(servers[0]))


def two_writers_end_in_the_same_state() -> None:
    with Documents() as pool:
        servers = pool.begin(2)
        rng = random.Random(4)
        for step in range(60):
            s, name = rng.choice(servers), f"d{rng.randrange(6)}"
            if rng.random() < 0.25:
                assert call(s, "DELETE", at(name))[0] in (200, 404)
            else:
                put(s, name, f"Text {step} of {name}.")
        wait_equal(servers)
        assert state(servers[0]) == state(servers[1])
        for name in {d["id"] for d in state(servers[0])}:
            assert get(servers[0], name)["text"] == get(servers[1], name)["text"]


def the_pool_works_without_redis() -> None:
    with Documents() as pool:
        servers = pool.begin(2)
        put(servers[0], "before")
        wait_text(servers, "before", text_of("before"))
        pool.redis.stop()
        put(servers[0], "x")
        wait_text(servers, "x", text_of("x"))
        put(servers[1], "x", "Changed while Redis is away.")
        wait_text(servers, "x", "Changed while Redis is away.")
        ok(servers[0], "DELETE", at("before"))
        wait_text(servers, "before", None)
        pool.redis.start()
        wait_equal(servers)


def an_instance_that_was_away_catches_up() -> None:
    with Documents() as pool:
        one, two = pool.begin(2)
        put(one, "gone")
        put(one, "changed")
        wait_text([one, two], "gone", text_of("gone"))
        wait_text([one, two], "changed", text_of("changed"))
        two.kill()
        ok(one, "DELETE", at("gone"))
        put(one, "changed", "A second text.")
        put(one, "new")
        two = pool.again(two)
        wait_text([one, two], "gone", None)
        wait_text([one, two], "changed", "A second text.")
        wait_text([one, two], "new", text_of("new"))
        wait_equal([one, two])
        # Both restart: all is kept, and the next change wins.
        one.end()
        one = pool.again(one)
        wait_text([one, two], "changed", "A second text.")
        assert put(one, "changed", "A third text.")["version"] == 3
        wait_text([one, two], "changed", "A third text.")


def an_import_arrives_on_the_other() -> None:
    with Documents() as pool:
        one, two = pool.begin(2)
        lines = "\n".join(json.dumps({"id": f"d{i}", "title": f"d{i}",
                                      "text": f"Document {i} is about ship {i * 7}."})
                          for i in range(N_IMPORTED)).encode()
        status, _, _ = one.request("POST", f"{DOCUMENTS}/bulk", lines,
                                   {"Authorization": f"Bearer {A}"})
        assert status == 200
        wait_until(lambda: two.metric("tarn:documents") == N_IMPORTED, two.log_text)
        wait_equal([one, two])
        assert state(one) == state(two)
        assert two.metric("tarn:documents_refused_total") == 0


def preambles_are_prefilled_on_all() -> None:
    with Documents() as pool:
        servers = pool.begin(2)
        ok(servers[0], "PUT", f"{PREAMBLES}/ships", {"system": SYSTEM})
        wait_until(lambda: [p["id"] for p in ok(servers[1], "GET", PREAMBLES)["data"]] == ["ships"])
        put(servers[1], "warm", prefill="now")
        for s in servers:
            wait_until(lambda s=s: is_warm(get(s, "warm"), "ships"), lambda s=s: get(s, "warm"))
        ok(servers[1], "DELETE", f"{PREAMBLES}/ships")
        wait_until(lambda: not ok(servers[0], "GET", PREAMBLES)["data"])
        ok(servers[0], "PUT", f"{PREAMBLES}/open", {"system": SYSTEM, "public": True}, ADMIN)
        wait_until(lambda: [p["id"] for p in ok(servers[1], "GET", PREAMBLES, None, B)["data"]]
                   == ["open"])


def deleted_documents_leave_no_kv_on_any_instance() -> None:
    with Documents() as pool:
        servers = pool.begin(2)
        put(servers[0], "x")
        wait_text(servers, "x", text_of("x"))
        first = [ask_about(s, "x") for s in servers]
        assert first[0][0] == first[1][0]
        assert ask_about(servers[1], "x")[2] > 100
        wait_until(lambda: all(get(s, "x")["paths"] for s in servers))
        # Another text on one instance: the other one answers about it, from KV of its own.
        put(servers[0], "x", text_of("y"))
        wait_text(servers, "x", text_of("y"))
        alone = [ask_about(s, "x")[0] for s in servers]
        put(servers[0], "twin", text_of("y"))
        body = {"messages": [{"role": "system", "content": SYSTEM},
                             {"role": "user", "content": QUESTION}], "max_tokens": 8,
                "temperature": 0, "documents": [{"title": "x", "text": text_of("y")}]}
        inline = ok(servers[1], "POST", CHAT, body)["choices"][0]["message"]["content"]
        assert alone[0] == alone[1] == inline, (alone, inline)
        wait_until(lambda: all(s.metric("tarn:documents_erased_blocks_total") > 0
                               for s in servers),
                   lambda: [s.metric("tarn:documents_erased_blocks_total") for s in servers])
        before = [s.metric("tarn:documents_erased_blocks_total") for s in servers]
        wait_until(lambda: all(get(s, "x")["paths"] for s in servers))
        ok(servers[1], "DELETE", at("x"))
        wait_text(servers, "x", None)
        wait_until(lambda: all(s.metric("tarn:documents_erased_blocks_total") > n
                               for s, n in zip(servers, before)),
                   lambda: (before, [s.metric("tarn:documents_erased_blocks_total")
                                     for s in servers]))


def keys_of_the_command_line_name_the_same_tenants() -> None:
    with Pool(MODEL, options=PATIENT) as pool:
        one = pool.start(0, "--api-key", f"{A},{B}", "--admin-api-key", ADMIN)
        two = pool.start(0, "--api-key", f"{B},{A}", "--admin-api-key", ADMIN)
        for s in (one, two):
            s.metrics = lambda s=s: admin_metrics(s)  # type: ignore[method-assign]
        pool.wait(2)
        put(one, "x")
        wait_text([one, two], "x", text_of("x"))
        assert get(two, "x", B) is None and get(one, "x", B) is None


TEAM_A, TEAM_B = "t/team-a", "t/team-b"


def a_member_that_lies_is_refused() -> None:
    """Records with wrong names, owners, counters, versions and texts, asked for and not."""
    far = 1 << 20
    wrong = {
        "another name": hostile.record(TEAM_A, "x", "False.", far,
                                       named=hostile.name_of(hostile.DOCUMENT, TEAM_B, "x")),
        "no tenant's": hostile.record("../etc", "x", "False.", far),
        "a counter": hostile.record(TEAM_A, "x", "False.", (1 << 62) - 1),
        "a version": hostile.record(TEAM_A, "x", "False.", far, (1 << 32) - 1),
        "no UTF-8": hostile.record(TEAM_A, "x", "False.", far).replace(b"False.", b"\xff\xfe\0..."),
        "no id": hostile.record(TEAM_A, "", "False.", far),
        "half of one": hostile.record(TEAM_A, "x", "False.", far)[:-3],
    }
    with Documents() as pool:
        one, = pool.begin(1)
        put(one, "x")
        put(one, "open", key=ADMIN, public=True)
        before = state(one)
        with HostileMember(pool, one) as member:
            for what, bytes_of_it in wrong.items():
                name = bytes_of_it[:hostile.NAME_BYTES]
                member.answer = lambda kind, items, r=bytes_of_it: (
                    hostile.records(1, r) if kind == hostile.WANT else None)
                n_refused, n_wants = (one.metric("tarn:documents_refused_total"),
                                      member.n_heard(hostile.WANT))
                member.send(hostile.follow(hostile.STAMPS, hostile.stamp(name, far + n_wants)))
                member.wait_heard(hostile.WANT, n_wants + 1)
                wait_until(lambda n=n_refused: one.metric("tarn:documents_refused_total") > n,
                           lambda w=what: f"{w} was not refused")
                assert state(one) == before, what
            member.answer = lambda kind, items: None
            n_refused = one.metric("tarn:documents_refused_total")
            for note in (b"", b"\1", b"\1\7\0\0", hostile.follow(hostile.DIGESTS, bytes(8)),
                         hostile.follow(hostile.STAMPS, bytes(32)),
                         hostile.follow(hostile.WANT, bytes(16 * 257))):
                if note:
                    member.send(note)
            member.send(hostile.records(1, hostile.record(TEAM_A, "x", "False.", far)))
            member.send(hostile.follow(hostile.ERASE, os.urandom(32 * 64)))
            wait_until(lambda: one.metric("tarn:documents_refused_total") >= n_refused + 5)
            assert state(one) == before
            # Its words go through as any member's; other tenants do not see what is one's.
            theirs = hostile.record(TEAM_B, "theirs", "Of team b.", far)
            n_wants = member.n_heard(hostile.WANT)
            member.answer = lambda kind, items: (
                hostile.records(1, theirs) if kind == hostile.WANT else None)
            member.send(hostile.follow(hostile.STAMPS,
                                       hostile.stamp(theirs[:hostile.NAME_BYTES], far)))
            wait_text([one], "theirs", "Of team b.", B)
            assert get(one, "theirs") is None
            assert put(one, "x", "Changed.")["version"] == 2


def a_member_that_never_ends_keeps_nobody_waiting() -> None:
    """Lists as long as they may be, again and again, whose records never come."""
    with Documents() as pool:
        one, = pool.begin(1)
        put(one, "x")
        with HostileMember(pool, one) as member:
            flood = member.frame_of(hostile.follow(hostile.STAMPS, b"".join(
                hostile.stamp(os.urandom(hostile.NAME_BYTES), 9) for _ in range(8000))))
            wants = member.frame_of(hostile.follow(hostile.WANT, hostile.name_of(
                hostile.DOCUMENT, TEAM_A, "x")))
            member.repeat(flood, *([wants] * 30))
            # Of one peer few wait, and few a second are read.
            wait_until(lambda: sum(n for name, n in one.metrics().items() if
                                   name.startswith("tarn:documents_refused_total") or
                                   'notes_total' in name and 'result="dropped"' in name) > 0)
            put(one, "y")
            assert get(one, "x") and get(one, "y")
            two = pool.start(0, *pool.keys)
            two.metrics = lambda: admin_metrics(two)  # type: ignore[method-assign]
            wait_text([one, two], "x", text_of("x"))
            put(two, "z")
            wait_text([one, two], "z", text_of("z"))


TESTS = [a_member_that_lies_is_refused, a_member_that_never_ends_keeps_nobody_waiting,
         a_change_on_any_instance_is_known_on_all, two_writers_end_in_the_same_state,
         the_pool_works_without_redis, an_instance_that_was_away_catches_up,
         an_import_arrives_on_the_other, preambles_are_prefilled_on_all,
         deleted_documents_leave_no_kv_on_any_instance,
         keys_of_the_command_line_name_the_same_tenants]

if __name__ == "__main__":
    need_pool(MODEL)
    sys.exit(run_tests([t for t in TESTS if not sys.argv[1:] or t.__name__ in sys.argv[1:]]))
