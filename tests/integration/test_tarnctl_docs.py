#!/usr/bin/env python3
"""tarnctl docs and tarnctl preambles against a server with the demo model."""
from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path

from http_helpers import TIMEOUT, Server, run_tests, tarn_server, tarn_test, wait_until

SERVER: Server
FOLDER: Path


def ctl(*args: object, code: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(tarn_test.program("tarnctl")), "--url", SERVER.url,
                           *map(str, args)], capture_output=True, text=True, timeout=TIMEOUT,
                          input=stdin)
    assert done.returncode == code, (args, done)
    return done


def shown(id_: str) -> dict:
    return json.loads(ctl("docs", "show", id_, "--json").stdout)


def ids() -> set[str]:
    return {d["id"] for d in json.loads(ctl("docs", "list", "--limit", 1000,
                                            "--json").stdout)["data"]}


def write(name: str, text: str | bytes) -> Path:
    path = FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def a_file_is_added_and_removed() -> None:
    path = write("ship.md", "# The ship\nThe captain of Kumnordim is Stamos.\n")
    assert ctl("docs", "add", path).stdout == "created: ship.md, version 1\n"
    assert ctl("docs", "add", path).stdout == "unchanged: ship.md, version 1\n"
    path.write_text("The captain of Kumnordim is Milos.\n")
    assert ctl("docs", "add", path, "--title", "S", "--metadata", '{"k": 7}', "--pin", "--ttl",
               1000).stdout == "updated: ship.md, version 2\n"
    d = shown("ship.md")
    assert d["title"] == "S" and d["metadata"] == {"k": 7} and d["pin"] and d["expires_at"], d
    assert d["text"] == "The captain of Kumnordim is Milos.\n"
    text = ctl("docs", "show", "ship.md").stdout
    assert "\ntitle     S\n" in text and "pinned, expires in" in text, text
    assert ctl("docs", "rm", "ship.md").stdout == "removed: ship.md\n"
    missing = ctl("docs", "rm", "ship.md", code=1).stderr
    assert "the server answered 404" in missing and "ship.md" in missing, missing
    assert "ship.md" not in ids()


def standard_input_needs_an_id() -> None:
    assert "--id is missing" in ctl("docs", "add", "-", code=2).stderr
    ctl("docs", "add", "-", "--id", "of/stdin ?", stdin="text of stdin")
    assert shown("of/stdin ?")["text"] == "text of stdin"
    ctl("docs", "rm", "of/stdin ?")


def ids_are_pinned_and_warmed_one_after_the_other() -> None:
    for name in ("a", "b"):
        ctl("docs", "add", "-", "--id", name, "--prefill", "lazy", stdin="some text " + name)
    done = ctl("docs", "pin", "a", "missing", "b", code=1)
    assert done.stdout == "pinned: a\npinned: b\n" and "missing" in done.stderr, done
    assert shown("b")["pin"]
    ctl("docs", "unpin", "a", "b")
    assert not shown("b")["pin"]
    assert ctl("docs", "warm", "a").stdout == "will be prefilled: a\n"
    assert shown("a")["prefill"] == "now" and shown("b")["prefill"] == "lazy"
    ctl("docs", "rm", "a", "b")


def the_list_has_pages() -> None:
    ctl("docs", "import", "-", stdin="".join(f'{{"id":"p{i}","title":"T{i}","text":"x"}}\n'
                                            for i in range(5)))
    first = ctl("docs", "list", "--limit", 2, "--after", "p0")
    lines = [line.split() for line in first.stdout.splitlines()]
    assert [line[0] for line in lines] == ["id", "p1", "p2"], lines
    assert lines[1][-1] == "T1" and "--after p2" in first.stderr, first
    ctl("docs", "rm", *(f"p{i}" for i in range(5)))


def a_folder_is_imported() -> None:
    write("in/a.txt", "text a")
    write("in/sub/b.md", "\n# Title of b\ntext b")
    write("in/c.html", "not this one")
    write("in/.hidden/d.txt", "nor this one")
    write("in/bad.txt", b"\xff\xfe")
    write("in/empty.txt", "")
    done = ctl("docs", "import", FOLDER / "in", "--prefill", "lazy", code=1)
    assert done.stdout == "" and len(done.stderr.splitlines()) == 2, done
    assert "bad.txt: is not UTF-8" in done.stderr and "empty.txt: text" in done.stderr, done
    assert {i for i in ids() if i.startswith(("a.txt", "sub/", "c.", "bad", "emp", "."))} == {
        "a.txt", "sub/b.md"}
    assert shown("sub/b.md")["title"] == "Title of b" and shown("a.txt")["title"] == "a"
    again = json.loads(ctl("docs", "import", f"{FOLDER}/in/", "--json", code=1).stdout)
    assert (again["done"], again["unchanged"], again["failed"]) == (2, 2, 2), again
    ctl("docs", "rm", "a.txt", "sub/b.md")


def lines_are_imported_in_batches() -> None:
    n = 700
    lines = [json.dumps({"id": f"line{i}", "text": f"text {i}", "prefill": "lazy"})
             for i in range(n)]
    lines[300] = '{"id": "line300"}'
    lines[301] = "nonsense"
    lines[302] = "[1]"
    lines[303] = ""
    path = write("many.jsonl", "\n".join(lines) + "\n")
    done = ctl("docs", "import", path, "--pin", "--json", code=1)
    sums = json.loads(done.stdout)
    assert (sums["done"], sums["created"], sums["failed"]) == (n - 4, n - 4, 3), sums
    assert sorted(line.split(": ")[1] for line in done.stderr.splitlines()) == [
        "line 301", "line 302", "line 303"], done.stderr
    assert shown("line699")["pin"]
    for at in range(0, n, 100):
        there = [f"line{i}" for i in range(at, at + 100) if i not in (300, 301, 302, 303)]
        ctl("docs", "rm", *there)


def a_terminal_sees_progress() -> None:
    write("t/a.txt", "text a")
    leader, follower = pty.openpty()
    done = subprocess.run([str(tarn_test.program("tarnctl")), "--url", SERVER.url, "docs",
                           "import", str(FOLDER / "t")], stdout=subprocess.PIPE, stderr=follower,
                          timeout=TIMEOUT)
    os.close(follower)
    seen = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert done.returncode == 0 and done.stdout == b"", (done, seen)
    assert "1 documents, 0 failed, " in seen and "1 new, 0 changed, 0 unchanged" in seen, seen
    ctl("docs", "rm", "a.txt")


def an_import_ends_when_the_server_is_away() -> None:
    done = subprocess.run([str(tarn_test.program("tarnctl")), "--url", "http://127.0.0.1:1",
                           "docs", "import", "-"], input='{"id":"x","text":"y"}\n' * 600,
                          capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 1 and done.stderr.count("is a server running") == 1, done


def preambles_are_listed() -> None:
    path = write("brief", "Be brief.\nAlways.\n")
    assert ctl("preambles", "add", path).stdout.startswith("created: brief")
    line = next(line for line in ctl("preambles", "list").stdout.splitlines()
                if line.startswith("brief"))
    assert line.endswith("Be brief."), line
    # FILE.json has tools too; the demo model's template does not know them.
    desk = write("desk.json", json.dumps({"system": "Be kind.\n", "tools": []}))
    assert ctl("preambles", "add", desk, "--id", "desk").stdout.startswith("created: desk")
    assert "Be kind." in ctl("preambles", "list").stdout
    tool = {"type": "function", "function": {"name": "find"}}
    desk = write("desk.json", json.dumps({"system": "Be kind.", "tools": [tool]}))
    done = ctl("preambles", "add", desk, "--id", "desk", code=1)
    assert "tools" in done.stderr, done
    for wrong, words in (("{", "desk.json"), ('{"system": "x", "tool": []}', '"tool"'),
                         ('{"tools": []}', "system"), ("[]", "system")):
        done = ctl("preambles", "add", write("desk.json", wrong), code=2)
        assert words in done.stderr, (wrong, done)
    assert ctl("preambles", "rm", "brief", "desk").stdout == "removed: brief\nremoved: desk\n"
    assert "brief" not in ctl("preambles", "list").stdout


def the_cache_shows_titles() -> None:
    ctl("docs", "add", "-", "--id", "k", "--title", "Kumnordim\u202e", "--prefill", "lazy",
        stdin="Kumnordim is a ship. The captain of Kumnordim is Stamos.")
    asked = ctl("--document-id", "k", "--temperature", "0", "chat",
                "Who is the captain of Kumnordim?").stdout
    assert asked == "Stamos.\n", asked
    # The librarian notes the place of the document's KV a moment later.
    wait_until(lambda: any(line.endswith("  Kumnordim?")
                           for line in ctl("cache", "--spans", 256).stdout.splitlines()))
    ctl("docs", "rm", "k")


def wrong_command_lines_are_refused() -> None:
    for words in (["docs"], ["docs", "frob"], ["docs", "rm"], ["docs", "show"],
                  ["docs", "show", "a", "b"], ["docs", "list", "x"], ["preambles"],
                  ["docs", "list", "--limit", "0"], ["docs", "list", "--limit", "1001"],
                  ["docs", "add", "/nonexistent"], ["docs", "import", "/nonexistent"],
                  ["docs", "add", "-", "--id", "x", "--prefill", "soon"],
                  ["docs", "add", "-", "--id", "x", "--ttl", "0"]):
        assert "tarnctl: " in ctl(*words, code=2).stderr, words
    bad = ctl("docs", "add", "-", "--id", "x", "--metadata", "{", code=1, stdin="text").stderr
    assert "metadata is not JSON" in bad, bad
    assert "neither" in ctl("docs", "show", "..", code=1).stderr


def main() -> int:
    global SERVER, FOLDER
    with tempfile.TemporaryDirectory() as folder:
        FOLDER = Path(folder)
        with tarn_server(tarn_test.REPO / "deploy" / "demo-model", "--cache-dir",
                         str(FOLDER / "cache")) as s:
            SERVER = s
            return run_tests([
                a_file_is_added_and_removed, standard_input_needs_an_id,
                ids_are_pinned_and_warmed_one_after_the_other, the_list_has_pages,
                a_folder_is_imported, lines_are_imported_in_batches, a_terminal_sees_progress,
                an_import_ends_when_the_server_is_away, preambles_are_listed,
                the_cache_shows_titles, wrong_command_lines_are_refused])


if __name__ == "__main__":
    sys.exit(main())
