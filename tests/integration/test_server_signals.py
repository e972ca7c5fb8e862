#!/usr/bin/env python3
"""Signals to tarn-server: the end while it starts, and reading the TLS certificates again.

The model is the demo model, which is part of the repository.
"""
from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from http_helpers import REPO, run_tests, tarn_test
from network_helpers import make_certificate

MODEL = REPO / "deploy" / "demo-model"


class Real:
    """tarn-server on a free port; `log` has its stderr."""

    def __init__(self, *flags: str) -> None:
        self.log_file = tempfile.NamedTemporaryFile("w+b", prefix="tarn-log-")
        self.process = subprocess.Popen(
            [str(tarn_test.program("tarn-server")), "--model", str(MODEL), "--port", "0",
             "--no-profile-cost", *flags], stdout=subprocess.PIPE, stderr=self.log_file)
        self.port = 0

    def wait_until_it_serves(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            if found := re.search(rb"https?://[^ ]*:(\d+)/v1", line):
                self.port = int(found.group(1))
                return
        raise AssertionError(f"it ended with {self.process.wait()}: {self.log()}")

    def log(self) -> str:
        return Path(self.log_file.name).read_text(errors="replace")

    def wait_for_log(self, words: str, n_times: int = 1) -> None:
        end = time.monotonic() + 60
        while self.log().count(words) < n_times:
            assert time.monotonic() < end, (words, self.log())
            time.sleep(0.02)

    def __enter__(self) -> "Real":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(60) == 0, self.log()
        assert self.process.stdout
        self.process.stdout.close()


def sigterm_while_starting_ends_at_once() -> None:
    """The start waits for an answer about a model that never comes; the signal still ends it."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as hub:
        hub.settimeout(tarn_test.patience(60))
        os.environ |= {"HF_HOME": folder, "HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}"}
        for number in (signal.SIGTERM, signal.SIGINT):
            with Real("--model", "org/model", "--download") as server:
                asked, _ = hub.accept()
                start = time.monotonic()
                server.process.send_signal(number)
                assert server.process.wait(60) == 0, server.log()
                print(f"      {number.name}: ended after {time.monotonic() - start:.3f} s")
                assert "stopped while starting" in server.log(), server.log()
                asked.close()
        del os.environ["HF_HOME"], os.environ["HF_ENDPOINT"]


def sigterm_after_the_start_drains() -> None:
    with Real() as server:
        server.wait_until_it_serves()
        server.process.terminate()
        assert server.process.wait(60) == 0
        assert "draining" in server.log() and "while starting" not in server.log(), server.log()


def served(port: int) -> bytes:
    """The certificate that a new connection gets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port),
                                                      timeout=tarn_test.patience(60))) as s:
        der = s.getpeercert(binary_form=True)
        s.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert s.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert der
        return der


def of_file(path: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(path).read_text())


def sighup_serves_a_renewed_certificate() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cert, key = make_certificate(folder, "now")
        new_cert, new_key = make_certificate(folder, "new")
        first, second = of_file(cert), of_file(new_cert)
        assert first != second
        with Real("--tls-cert", cert, "--tls-key", key) as server:
            server.wait_until_it_serves()
            assert served(server.port) == first
            context = ssl.create_default_context(cafile=cert)
            old = context.wrap_socket(socket.create_connection(("127.0.0.1", server.port)),
                                      server_hostname="localhost")

            # Half a renewal: the new certificate with the old key. The old pair stays.
            shutil.copy(new_cert, cert)
            assert served(server.port) == first, "files are read when they are told to be"
            server.process.send_signal(signal.SIGHUP)
            server.wait_for_log("TLS certificate not loaded, the old one stays")
            assert cert in server.log() and "together" in server.log()
            assert served(server.port) == first

            shutil.copy(new_key, key)
            server.process.send_signal(signal.SIGHUP)
            server.wait_for_log("TLS certificate read again changed=1")
            assert served(server.port) == second

            server.process.send_signal(signal.SIGHUP)
            server.wait_for_log("TLS certificate read again changed=0")
            Path(cert).write_text("nonsense")
            server.process.send_signal(signal.SIGHUP)
            server.wait_for_log("the old one stays", 2)
            os.unlink(key)
            shutil.copy(new_cert, cert)
            server.process.send_signal(signal.SIGHUP)
            server.wait_for_log("the old one stays", 3)
            assert served(server.port) == second

            # A connection that was open all the time goes on.
            old.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert old.recv(4096).startswith(b"HTTP/1.1 200 ")
            old.close()


def a_certificate_chain_is_served() -> None:
    """A certificate with its intermediate behind it: a client that knows the root accepts."""
    with tempfile.TemporaryDirectory() as folder:
        def openssl(*arguments: str) -> None:
            subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)
        Path(folder, "ca.ext").write_text("basicConstraints=critical,CA:TRUE\n")
        Path(folder, "leaf.ext").write_text("subjectAltName=DNS:localhost\n")
        make_certificate(folder, "root")
        for name, issuer, extension in (("middle", "root", "ca.ext"),
                                        ("leaf", "middle", "leaf.ext")):
            openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
            openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{issuer}.crt", "-CAkey",
                    f"{issuer}.key", "-CAcreateserial", "-out", f"{name}.crt", "-days", "2",
                    "-extfile", extension)
        chain = Path(folder, "chain.pem")
        chain.write_text(Path(folder, "leaf.crt").read_text() +
                         Path(folder, "middle.crt").read_text())
        with Real("--tls-cert", str(chain), "--tls-key", f"{folder}/leaf.key") as server:
            server.wait_until_it_serves()
            context = ssl.create_default_context(cafile=f"{folder}/root.crt")
            with context.wrap_socket(socket.create_connection(("127.0.0.1", server.port)),
                                     server_hostname="localhost") as s:
                assert s.version() in ("TLSv1.2", "TLSv1.3")


TESTS = [
    sigterm_while_starting_ends_at_once,
    sigterm_after_the_start_drains,
    sighup_serves_a_renewed_certificate,
    a_certificate_chain_is_served,
]


if __name__ == "__main__":
    chosen = [t for t in TESTS if not sys.argv[1:] or t.__name__ in sys.argv[1:]]
    if not shutil.which("openssl"):
        print("      no openssl: without TLS")
        chosen = [t for t in chosen if "certificate" not in t.__name__]
    sys.exit(run_tests(chosen))
