"""A proxy between a client and a server that forwards bytes at once and records their times.

    recording_proxy.py HOST:PORT FILE     listens on a free port, which it prints; at the end of its
                                          standard input it writes the connections to FILE

Two load generators that measure a server one after the other would also measure the server's
differences between the runs. Here each client's figures are compared with the recorded times of the
same stream. Times are CLOCK_MONOTONIC, which all processes share. Times of the server's bytes are
taken before they are forwarded; times of the client's bytes are the kernel's, which do not include
the wait for a free processor. The proxy is a process of its own, because a thread of the test would
wait for Python's lock. HTTP is parsed only after the recording.
"""
import bisect
import gc
import json
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

READ_BYTES = 1 << 18
SO_TIMESTAMPNS = 35  # Linux's; the module does not name it


# --- the process in the middle ---

def accept(listener, upstream, selector, connections):
    client, _ = listener.accept()
    server = socket.socket()  # create_connection() would look the address up each time
    server.connect(upstream)
    record = {"up": [], "down": []}
    connections.append(record)
    for source, sink, way in ((client, server, "up"), (server, client, "down")):
        source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(source, selectors.EVENT_READ, (sink, record[way], way == "up"))


def receive(source):
    """Received bytes, the time of this call, and the time at which the kernel received them."""
    data, notes, _, _ = source.recvmsg(READ_BYTES, socket.CMSG_SPACE(16))
    now = arrived = time.monotonic_ns()
    for _, kind, stamp in notes:
        if kind == SO_TIMESTAMPNS:
            seconds, ns = struct.unpack("qq", stamp)
            arrived = seconds * 10**9 + ns + time.monotonic_ns() - time.time_ns()
    return data, now, min(arrived, now)


def forward(source, sink, segments, is_up, selector):
    try:
        data, now, arrived = receive(source)
        if data:
            sink.sendall(data)
            segments.append((arrived if is_up else now, data))
            return
        sink.shutdown(socket.SHUT_WR)
    except OSError:  # one side has closed; the other side sees that by its own socket
        pass
    selector.unregister(source)


def record_until_told(upstream):
    """All connections until the end of standard input."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)  # accepted sockets inherit the option
    print(listener.getsockname()[1], flush=True)
    selector, connections = selectors.DefaultSelector(), []
    selector.register(listener, selectors.EVENT_READ, None)
    selector.register(sys.stdin, selectors.EVENT_READ, None)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                return connections
            if key.fileobj is listener:
                accept(listener, upstream, selector, connections)
            else:
                forward(key.fileobj, *key.data, selector)


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    gc.disable()  # a collection would look like a slow server
    connections = record_until_told((host, int(port)))
    with open(sys.argv[2], "w") as f:
        for c in connections:
            for way in ("up", "down"):
                c[way] = [(ns, data.decode("latin-1")) for ns, data in c[way]]
            f.write(json.dumps(c) + "\n")


# --- the records ---

class Stamped:
    """Bytes of one direction, and when each of them passed."""

    def __init__(self, segments):
        parts = [data.encode("latin-1") for _, data in segments]
        self.data = b"".join(parts)
        self.times = [ns for ns, _ in segments]
        self.ends, end = [], 0
        for part in parts:
            end += len(part)
            self.ends.append(end)

    def time_of(self, position):
        return self.times[bisect.bisect_right(self.ends, position)]


def read_head(stream, at):
    """The first line, the fields (lower case) and where the body begins."""
    end = stream.data.index(b"\r\n\r\n", at)
    first, *lines = stream.data[at:end].decode("latin-1").split("\r\n")
    fields = [line.split(":", 1) for line in lines]
    return first, {k.strip().lower(): v.strip() for k, v in fields}, end + 4


def read_body(stream, fields, at):
    """The body, the position of each of its bytes in the stream, and where the message ends: where
    the stream does, when it was hung up before."""
    end = len(stream.data)
    if fields.get("transfer-encoding", "").lower() != "chunked":
        n = int(fields.get("content-length", 0))  # a GET has no body
        return stream.data[at:at + n], range(at, at + n), min(at + n, end)
    body, positions = bytearray(), []
    while True:
        line_end = stream.data.find(b"\r\n", at)
        if line_end < 0:
            return bytes(body), positions, end
        size = int(stream.data[at:line_end].split(b";")[0], 16)
        at = line_end + 2
        body += stream.data[at:at + size]
        positions += range(at, at + size)
        at += size + 2
        if size == 0 or at > end:
            return bytes(body), positions, min(at, end)


def read_messages(stream):
    """All messages of one direction."""
    at = 0
    while at < len(stream.data):
        first, fields, body_at = read_head(stream, at)
        body, positions, end = read_body(stream, fields, body_at)
        yield {"line": first, "fields": fields, "body": body, "first_ns": stream.time_of(at),
               "last_ns": stream.time_of(end - 1), "positions": positions, "stream": stream}
        at = end


def events_of(answer):
    """(when it was complete, its data) for each event of an answer that is a stream of events."""
    body, at = answer["body"], 0
    while True:
        end = body.find(b"\n\n", at)
        if end < 0:
            return
        event, at = body[at:end], end + 2
        if event.startswith(b"data: "):
            yield answer["stream"].time_of(answer["positions"][end + 1]), event[6:]


class Tap:
    """A running tap; stop() gives (request, answer) pairs of messages."""

    def __init__(self, url):
        self.file = tempfile.NamedTemporaryFile(prefix="tarn-tap-")
        self.process = subprocess.Popen(
            [sys.executable, __file__, url.split("//")[1].rstrip("/"), self.file.name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def stop(self):
        self.process.communicate("")
        assert self.process.returncode == 0, "the tap failed"
        exchanges = []
        for line in Path(self.file.name).read_text().splitlines():
            record = json.loads(line)
            up, down = Stamped(record["up"]), Stamped(record["down"])
            exchanges += zip(read_messages(up), read_messages(down))
        return exchanges


if __name__ == "__main__":
    main()
