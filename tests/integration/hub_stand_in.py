"""A stand-in for huggingface.co: models in memory, and the faults that a test asks for."""
from __future__ import annotations

import hashlib
import http.server
import json
import re
import socket
import threading
import time
from typing import Any


def git_sum(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub(http.server.ThreadingHTTPServer):
    """Serves `files` (path -> bytes) as org/name at one commit. Large files are those of more than
    `lfs_bytes`; they are redirected to `store`, another Hub, where there is one."""

    daemon_threads = True
    COMMIT = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self, files: dict[str, bytes], lfs_bytes: int = 100_000,
                 store: "Hub | None" = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.lfs_bytes = lfs_bytes
        self.store = store
        self.seen: list[tuple[str, dict[str, str]]] = []  # path, headers
        self.answers: list[tuple[int, dict[str, str]]] = []  # statuses given before the real one
        self.cut_after: dict[str, int] = {}  # path -> bytes of its first answer
        self.stall_after: dict[str, int] = {}  # path -> bytes after which the answer stands still
        self.wrong: dict[str, bytes] = {}  # path -> what is sent instead
        self.listed: dict[str, Any] | None = None  # the list of files, instead of the true one
        self.token = ""  # needed where it is not empty
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def is_large(self, path: str) -> bool:
        return len(self.files[path]) > self.lfs_bytes

    def list(self) -> dict[str, Any]:
        siblings = []
        for path, content in self.files.items():
            one: dict[str, Any] = {"rfilename": path, "size": len(content),
                                   "blobId": git_sum(content)}
            if self.is_large(path):
                one["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content),
                              "pointerSize": 130}
            siblings.append(one)
        return {"id": "org/name", "sha": self.COMMIT, "siblings": siblings}

    def handle_error(self, *_: object) -> None:
        """A client that leaves is part of a test."""

    def requests(self, part: str) -> list[tuple[str, dict[str, str]]]:
        with self.lock:
            return [(path, headers) for path, headers in self.seen if part in path]

    def __enter__(self) -> "Hub":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        hub = self.server
        with hub.lock:
            hub.seen.append((self.path, dict(self.headers.items())))
            status, headers = hub.answers.pop(0) if hub.answers else (0, {})
        if status:
            self.answer(status, b'{"error":"as asked"}', **headers)
        elif hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self.answer(401)
        elif re.fullmatch(r"/api/models/org/name/revision/(main|%s)\?blobs=true" % hub.COMMIT,
                          self.path):
            body = json.dumps(hub.list() if hub.listed is None else hub.listed).encode()
            self.answer(200, body)
        elif found := re.fullmatch(r"/org/name/resolve/%s/(.*)" % hub.COMMIT, self.path):
            self.send_file(found[1])
        elif found := re.fullmatch(r"/store/(.*)\?signature=secret", self.path):
            self.send_file(found[1])
        else:
            self.answer(404)

    def send_file(self, path: str) -> None:
        hub = self.server
        if path not in hub.files:
            self.answer(404)
            return
        if hub.store and hub.is_large(path):
            self.answer(302, Location=f"{hub.store.url}/store/{path}?signature=secret")
            return
        content = hub.wrong.get(path, hub.files[path])
        total, begin = len(content), 0
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if wanted:
            begin = int(wanted[1])
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{total - 1}/{total}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(total - begin))
        self.end_headers()
        with hub.lock:
            cut = hub.cut_after.pop(path, None)
            stall = hub.stall_after.pop(path, None)
        end = total if cut is None and stall is None else begin + (cut or stall or 0)
        self.wfile.write(content[begin:end])
        self.wfile.flush()
        if stall is not None:
            time.sleep(30)  # the client leaves before; the thread is a daemon
        if end < total:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
