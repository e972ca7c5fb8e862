#!/usr/bin/env python3
"""scripted_server - an OpenAI-style server whose every delay and fault is written down beforehand.

    scripted_server.py [--host H] [--port P] [--unix PATH] [--script FILE]
                       [--tls-cert FILE --tls-key FILE]

Standard library only, one process, one thread; 10,000 connections at once. The first line on
standard output is `listening on URL`; it ends on SIGTERM, or when standard input is closed
with --until-eof. From Python: `with ScriptedServer(args...) as server: server.url`.

Routes: POST /v1/chat/completions, /v1/completions, /tokenize, /detokenize; DELETE /cache; GET
/health, /v1/models, /metrics, /cache; and about the server itself
    GET  /scripted/stats    counters, see class Stats
    GET  /scripted/log      one JSON object a line for each generating request so far:
                            {"n", "arrived_ns", "path", "body", "sent_ns": [...], "end": "..."}
    POST /scripted/reset    forget counters and log
Times are CLOCK_MONOTONIC in ns, so a client on the same machine can compare them with its own.
"end" is "done", "client left", or the fault that was played.

The script of a generating request determines its answer: a JSON object, merged from (later wins)
--script FILE, the header `X-Script: {...}`, and the member "script" of the body. All members are
optional:

  time    counted from when the whole request has been read
    ttft_ms          until the first token                                        (0)
    gap_ms           between tokens: a number, or a list that is repeated         (0)
    head_ms          until the response headers                                   (0)
    role_ms          until the role chunk of a chat                               (0)
    n_together       the first token waits until so many requests generate at once (0)
    comment_ms       a comment line every so often until the first token          (never)
  content
    n_tokens         how many (max_tokens of the body, or 16)
    token            text of the i-th token (from 0), %d is i                     ("t%d ")
    token_bytes      pad each token's text to that many bytes with 'x'            (0)
    tokens_per_chunk how many tokens one event carries; gap_ms is then between events (1)
    role_chunk       a chat begins with a chunk of role only                      (true)
    empty_chunks     so many chunks with "" before each event with text           (0)
    finish_with_last finish_reason in the last token's chunk, not in its own      (false)
    finish_reason    ("length")
    usage            true, false or "asked": chunk (or member) with usage         ("asked")
    prompt_tokens    (words of the prompt, or its token ids)
    cached_tokens    prompt_tokens_details.cached_tokens; null leaves it out      (0)
    cached_tiers     prompt_tokens_details.cached_tokens_details, an object       (left out)
    stamp            each chunk has "sent_ns", the time right before it was written (false)
  form
    framing          "chunked", "length" (all at once at the end) or "close"      ("chunked")
    newline          line end of events: "\\n", "\\r\\n", "\\r"                   ("\\n")
    split            write at most so many bytes of an event at a time; 1: every byte (whole)
    split_ms         between such pieces; without it the kernel may join them     (0)
    done             data: [DONE] at the end                                      (true)
    headers          further response headers, an object                          ({})
    content_type     of a stream                                     ("text/event-stream")
  faults; N counts tokens sent before it; -1: instead of response headers; 0: after the headers
    status           this HTTP status with an error body; no stream               (200)
    error            text or object of the error                                  ("scripted")
    retry_after      header Retry-After
    error_after      N, then an event with the error, then the end without [DONE]
    error_style      "data": data: {"error"}, "event": event: error, "field": error: {} ("data")
    bad_json_after   N, then data: {"oops, then the rest as if nothing had been
    reset_after      N, then RST
    close_after      N, then FIN in the middle of the response, socket closed
    half_close_after N, then FIN, but the socket is still read for hold_ms       (hold_ms 60000)
    stall_after      N, then nothing for stall_ms, then the rest                  (stall_ms 3600000)
    garbage          this text instead of an HTTP response, then close
    header_bytes     a response header of that length
    big_event        one more event of that many bytes before the first token

A connection that the client leaves ends its script. A client that does not read stops its script
(the server holds at most 64 KB beyond the kernel's buffers) and its times move back.
"""
import argparse
import asyncio
import collections
import json
import os
import resource
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time

HEAD_BYTES_MAX = 64 << 10
BODY_BYTES_MAX = 256 << 20
LOG_MAX = 100_000
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found",
           405: "Method Not Allowed", 413: "Payload Too Large", 429: "Too Many Requests",
           500: "Internal Server Error", 503: "Service Unavailable"}


class Stats:
    """The counters of /scripted/stats."""

    def __init__(self):
        self.n_connections = 0   # accepted
        self.n_open = 0
        self.n_open_peak = 0
        self.n_requests = 0      # all routes but /scripted
        self.n_generating = 0    # running now
        self.n_generating_peak = 0
        self.n_done = 0          # scripts played to their end, faults included
        self.n_left = 0          # clients that left before
        self.n_write_pauses = 0  # a client's socket was full


def words_of(body):
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return len(prompt)
    if prompt is None:
        messages = body.get("messages")
        messages = messages if isinstance(messages, list) else []
        prompt = " ".join(str(m.get("content")) for m in messages if isinstance(m, dict))
    return len(str(prompt).split())


class Script:
    """The steps of one answer: `steps()` gives (seconds after the request, what) in order, where
    what is bytes to write or a word: "reset", "close", "half_close", "end"."""

    def __init__(self, values, body, chat):
        self.v = values
        self.body = body
        self.chat = chat
        self.n_tokens = int(values.get("n_tokens", body.get("max_tokens") or
                                       body.get("max_completion_tokens") or 16))
        self.status = int(values.get("status", 200))
        self.stream = bool(body.get("stream"))
        self.framing = values.get("framing", "chunked" if self.stream else "length")
        self.at = 0.0
        self.id = ("chatcmpl-" if chat else "cmpl-") + "scripted"

    def get(self, name, default=None):
        return self.v.get(name, default)

    # --- pieces ---

    def token(self, i):
        template = self.get("token", "t%d ")
        text = template.replace("%d", str(i))
        return text.ljust(int(self.get("token_bytes", 0)), "x")

    def usage(self):
        n_prompt = int(self.get("prompt_tokens", words_of(self.body)))
        usage = {"prompt_tokens": n_prompt, "completion_tokens": self.n_tokens,
                 "total_tokens": n_prompt + self.n_tokens}
        details = {}
        if self.get("cached_tokens", 0) is not None:
            details["cached_tokens"] = self.get("cached_tokens", 0)
        if self.get("cached_tiers") is not None:
            details["cached_tokens_details"] = self.get("cached_tiers")
        if details:
            usage["prompt_tokens_details"] = details
        return usage

    def wants_usage(self):
        asked = self.get("usage", "asked")
        if asked == "asked":
            options = self.body.get("stream_options")
            return not self.stream or bool(isinstance(options, dict) and
                                           options.get("include_usage"))
        return bool(asked)

    def error(self):
        error = self.get("error", "scripted")
        if isinstance(error, dict):
            return {"error": error}
        return {"error": {"message": error, "type": "scripted_error", "param": None,
                          "code": "scripted"}}

    def chunk(self, delta, finish=None, **more):
        said = {"delta": delta} if self.chat else {"text": delta.get("content", "")}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish}
        return self.envelope([choice], **more)

    def envelope(self, choices, **more):
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        out = {"id": self.id, "object": kind, "created": 0, "model": "scripted",
               "choices": choices, **more}
        if self.get("stamp"):
            out["sent_ns"] = 0
        return out

    def event(self, data, field="data", before=""):
        newline = self.get("newline", "\n")
        text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
        return f"{before}{field}: {text}{newline}{newline}".encode()

    # --- steps ---

    def gap(self, i):
        gaps = self.get("gap_ms", 0)
        return (gaps[i % len(gaps)] if isinstance(gaps, list) else gaps) / 1000

    def head(self, length=None):
        lines = [f"HTTP/1.1 {self.status} {REASONS.get(self.status, 'Scripted')}"]
        if self.status != 200 or not self.stream:
            lines.append("Content-Type: application/json")
        else:
            lines.append("Content-Type: " + self.get("content_type", "text/event-stream"))
        if length is not None:
            lines.append(f"Content-Length: {length}")
        elif self.framing == "chunked":
            lines.append("Transfer-Encoding: chunked")
        else:
            lines.append("Connection: close")
        if self.get("retry_after") is not None:
            lines.append(f"Retry-After: {self.get('retry_after')}")
        if self.get("header_bytes"):
            lines.append("X-Padding: " + "p" * int(self.get("header_bytes")))
        lines += [f"{k}: {v}" for k, v in self.get("headers", {}).items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def fault(self, n):
        """The steps of a fault at token n, or None; the second says whether it is the end."""
        if self.get("stall_after") == n:
            self.at += self.get("stall_ms", 3_600_000) / 1000
        if self.get("bad_json_after") == n:
            return [self.framed(self.event('{"oops'))], False
        if self.get("error_after") == n and n >= 0:
            style = self.get("error_style", "data")
            before = "event: error" + self.get("newline", "\n") if style == "event" else ""
            text = self.event(self.error(), "error" if style == "field" else "data", before)
            return [self.framed(text), *self.last(done=False)], True
        for name in ("reset", "close", "half_close"):
            if self.get(name + "_after") == n:
                return [name], True
        return None, False

    def framed(self, data):
        if self.framing == "chunked" and data:
            return b"%x\r\n%s\r\n" % (len(data), data)
        return data

    def last(self, done=True):
        steps = [self.framed(self.event("[DONE]"))] if done and self.get("done", True) else []
        if self.framing == "chunked":
            steps.append(b"0\r\n\r\n")
        return steps + ["end" if self.framing == "chunked" else "close"]

    def steps(self):
        if self.get("garbage") is not None:
            yield 0, self.get("garbage").encode()
            yield 0, "close"
            return
        self.at = self.get("head_ms", 0) / 1000
        steps, over = self.fault(-1)
        yield from ((self.at, s) for s in steps or [])
        if over:
            return
        if self.status != 200:
            data = json.dumps(self.error()).encode()
            yield self.at, self.head(len(data)) + data
            yield self.at, "end"
        elif self.stream:
            yield from self.stream_steps()
        else:
            yield from self.whole_steps()

    def whole_steps(self):
        self.at = self.get("ttft_ms", 0) / 1000 + sum(self.gap(i)
                                                      for i in range(self.n_tokens - 1))
        text = "".join(self.token(i) for i in range(self.n_tokens))
        choice = {"index": 0, "finish_reason": self.get("finish_reason", "length")}
        choice.update({"message": {"role": "assistant", "content": text}} if self.chat
                      else {"text": text})
        out = self.envelope([choice])
        out["object"] = "chat.completion" if self.chat else "text_completion"
        if self.wants_usage():
            out["usage"] = self.usage()
        data = json.dumps(out).encode()
        head = self.head(len(data))
        steps, over = self.fault(0)
        if steps:
            yield self.at, head + data[:len(data) // 2]
            yield from ((self.at, s) for s in steps)
        if not over:
            yield self.at, head + data
            yield self.at, "end"

    def comments(self, until):
        every = self.get("comment_ms", 0) / 1000
        while every > 0 and self.at + every < until:
            self.at += every
            yield self.at, self.framed(self.event("still here", field=""))

    def stream_steps(self):
        yield self.at, self.head()
        steps, over = self.fault(0)
        yield from ((self.at, s) for s in steps or [])
        if over:
            return
        if self.chat and self.get("role_chunk", True):
            self.at = max(self.at, self.get("role_ms", 0) / 1000)
            yield self.at, self.framed(self.event(self.chunk({"role": "assistant", "content": ""})))
        if self.get("big_event"):
            delta = {"content": "", "padding": "y" * int(self.get("big_event"))}
            yield self.at, self.framed(self.event(self.chunk(delta)))
        first = max(self.at, self.get("ttft_ms", 0) / 1000)
        yield from self.comments(first)
        self.at = first
        over = yield from self.token_steps()
        if over:
            return
        if not self.get("finish_with_last"):
            finish = self.chunk({}, self.get("finish_reason", "length"))
            yield self.at, self.framed(self.event(finish))
        if self.wants_usage():
            yield self.at, self.framed(self.event(self.envelope([], usage=self.usage())))
        yield from ((self.at, s) for s in self.last())

    def token_steps(self):
        per_chunk = max(1, int(self.get("tokens_per_chunk", 1)))
        n_events = 0
        for n in range(0, self.n_tokens, per_chunk):
            if n > 0:
                self.at += self.gap(n_events - 1)
            n_events += 1
            end = min(n + per_chunk, self.n_tokens)
            is_last = end == self.n_tokens and self.get("finish_with_last")
            for _ in range(int(self.get("empty_chunks", 0))):
                yield self.at, self.framed(self.event(self.chunk({"content": ""})))
            text = "".join(self.token(i) for i in range(n, end))
            finish = self.get("finish_reason", "length") if is_last else None
            yield self.at, ("token", self.chunk({"content": text}, finish))
            for i in range(n + 1, end + 1):
                steps, over = self.fault(i)
                yield from ((self.at, s) for s in steps or [])
                if over:
                    return True
        return False


def cache_answer(query):
    """As Tarn's /cache; with as many spans as ?spans= says, else 2."""
    n = int(dict(p.split("=") for p in query.split("&") if "=" in p).get("spans", 2))
    tier = {"name": "device", "bytes": 4 << 20, "nodes": 5, "hit_tokens": 320, "order": "worth",
            "evicted_blocks": 6, "moved_in_blocks": 7,
            "blocks": {"total": 100, "free": 60, "cached": 30, "in_use": 10, "in_transfer": 0,
                       "leaked": 0}}
    span = {"depth": 0, "tokens": 64, "blocks": 2, "blocks_by_tier": {"device": 2, "host": 0},
            "nodes": 1, "children": 0, "uses": 8, "hit_tokens": 300, "idle_s": 0.5,
            "in_use": False, "held": False}
    return {"object": "cache", "tiers": [tier], "copies_failed": 0,
            "tokens": {"queried": 640, "hit": 320, "restored": 0, "hit_rate": 0.5},
            "tree": {"nodes": 5, "spans": 9, "holds": 0, "held_blocks": 0, "metadata_bytes": 99},
            "top_spans": [{"key": f"{i:064x}", **span} for i in range(n)]}


class Connection(asyncio.Protocol):
    """One client: reads requests, plays one script after the other."""

    def __init__(self, server):
        self.server = server
        self.stats = server.stats
        self.loop = server.loop
        self.input = bytearray()
        self.playing = None      # iterator of steps
        self.pending = None      # the step that waits for its time
        self.pieces = collections.deque()
        self.timer = None
        self.full = False        # the transport wants no more bytes
        self.record = None

    # --- transport ---

    def connection_made(self, transport):
        self.transport = transport
        transport.set_write_buffer_limits(high=64 << 10)
        self.stats.n_connections += 1
        self.stats.n_open += 1
        self.stats.n_open_peak = max(self.stats.n_open_peak, self.stats.n_open)

    def connection_lost(self, _why):
        self.stats.n_open -= 1
        if self.playing is not None:
            self.stats.n_left += 1
            self.finish("client left")

    def pause_writing(self):
        self.full = True
        self.stats.n_write_pauses += 1

    def resume_writing(self):
        self.full = False
        if self.playing is not None and self.timer is None:
            self.play()

    def data_received(self, data):
        self.input += data
        if self.playing is None:
            self.read_request()

    def read_request(self):
        end = self.input.find(b"\r\n\r\n")
        if end < 0:
            if len(self.input) > HEAD_BYTES_MAX:
                self.transport.abort()
            return
        lines = self.input[:end].decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        length = int(headers.get("content-length") or 0)
        if length > BODY_BYTES_MAX:
            self.transport.abort()
            return
        if len(self.input) < end + 4 + length:
            if "100-continue" in headers.get("expect", "") and len(self.input) == end + 4:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        body = bytes(self.input[end + 4:end + 4 + length])
        del self.input[:end + 4 + length]
        method, path = (lines[0].split(" ") + ["", ""])[:2]
        self.handle(method, path, headers, body)

    # --- routes ---

    def reply(self, status, body, content_type="application/json"):
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.transport.write(f"HTTP/1.1 {status} {REASONS.get(status, 'Scripted')}\r\n"
                             f"Content-Type: {content_type}\r\n"
                             f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        if self.input:
            self.loop.call_soon(self.read_request)

    def handle(self, method, path, headers, body):
        if path.startswith("/scripted/"):
            self.handle_own(method, path)
            return
        self.stats.n_requests += 1
        if method == "POST":
            try:
                parsed = json.loads(body or b"{}")
                if not isinstance(parsed, dict):
                    raise ValueError("not an object")
            except ValueError as e:
                self.reply(400, {"error": {"message": f"malformed: {e}", "code": "malformed"}})
                return
            if path in ("/v1/chat/completions", "/v1/completions"):
                self.generate(path, headers, parsed, body)
                return
            self.handle_post(path, parsed)
            return
        if method == "DELETE" and path == "/cache":
            self.reply(200, {"object": "cache.reset", "status": "ok",
                             "cached_blocks": {"device": 12, "host": 3}, "holds": 0})
            return
        if method == "DELETE" and path.startswith("/cache?span="):
            self.reply(200, {"object": "cache.erase", "status": "ok",
                             "span": path.partition("=")[2], "blocks": 7})
            return
        path, _, query = path.partition("?")
        answers = {"/health": {"status": "ready"}, "/cache": cache_answer(query),
                   "/v1/models": {"object": "list", "data": [{"id": "scripted"}, {"id": "other"}]}}
        if path in answers:
            self.reply(200, answers[path])
        elif path == "/metrics":
            self.reply(200, "scripted_requests_total %d\n" % self.stats.n_requests, "text/plain")
        else:
            self.reply(404, {"error": {"message": "no such path", "code": "not_found"}})

    def handle_post(self, path, body):
        if path == "/tokenize":
            self.reply(200, {"tokens": [len(w) for w in str(body.get("prompt")).split()]})
        elif path == "/detokenize":
            self.reply(200, {"prompt": " ".join("w" * t for t in body.get("tokens", []))})
        else:
            self.reply(404, {"error": {"message": "no such path", "code": "not_found"}})

    def handle_own(self, method, path):
        if method == "POST" and path == "/scripted/reset":
            self.server.reset()
            self.reply(200, {})
        elif path == "/scripted/stats":
            self.reply(200, vars(self.stats))
        elif path == "/scripted/log":
            self.reply(200, "".join(json.dumps(r) + "\n" for r in self.server.log), "text/plain")
        else:
            self.reply(404, {})

    # --- playing a script ---

    def generate(self, path, headers, body, raw):
        values = dict(self.server.script)
        values.update(json.loads(headers.get("x-script") or "{}"))
        values.update(body.get("script") or {})
        self.script = Script(values, body, path == "/v1/chat/completions")
        self.begin = self.loop.time()
        self.record = {"n": self.server.n_logged, "arrived_ns": time.monotonic_ns(), "path": path,
                       "body": raw.decode("utf-8", "replace"), "sent_ns": [], "end": None}
        self.server.note(self.record)
        self.stats.n_generating += 1
        self.stats.n_generating_peak = max(self.stats.n_generating_peak, self.stats.n_generating)
        if self.stats.n_generating_peak >= self.script.get("n_together", 0):
            for held in self.server.held:
                self.loop.call_soon(held.play)
            self.server.held = []
        self.playing = self.script.steps()
        self.pending = None
        self.play()

    def finish(self, how):
        if self.timer:
            self.timer.cancel()
        self.timer = self.playing = self.pending = None
        self.pieces.clear()
        self.stats.n_generating -= 1
        self.record["end"] = how
        if how != "client left":
            self.stats.n_done += 1

    def again(self):
        self.timer = None
        self.play()

    def play(self):
        """Do every step whose time has come, then set a timer for the next."""
        while self.playing is not None and not self.full and not self.transport.is_closing():
            if self.pieces:
                self.transport.write(self.pieces.popleft())
                if self.pieces and self.script.get("split_ms", 0) > 0:
                    self.timer = self.loop.call_later(self.script.get("split_ms") / 1000,
                                                      self.again)
                    return
                continue
            if self.pending is None:
                self.pending = next(self.playing, (0, "end"))
            due = self.begin + self.pending[0]
            if due > self.loop.time():
                self.timer = self.loop.call_at(due, self.again)
                return
            if isinstance(self.pending[1], tuple) and \
                    self.stats.n_generating_peak < self.script.get("n_together", 0):
                self.server.held.append(self)
                return
            what, self.pending = self.pending[1], None
            self.do(what)

    def do(self, what):
        if isinstance(what, tuple): # a token: stamped as late as possible
            self.record["sent_ns"].append(time.monotonic_ns())
            if "sent_ns" in what[1]:
                what[1]["sent_ns"] = self.record["sent_ns"][-1]
            what = self.script.framed(self.script.event(what[1]))
        if isinstance(what, bytes):
            split = int(self.script.get("split", 0)) or len(what) or 1
            self.pieces.extend(what[i:i + split] for i in range(0, len(what), split))
            return
        self.finish("done" if what == "end" else what)
        if what == "reset":
            # Linger 0 makes close() send RST; bytes that the kernel has not sent yet are lost.
            self.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        elif what == "close":
            self.transport.close()
        elif what == "half_close":
            self.transport.write_eof()
            hold = self.script.get("hold_ms", 60_000) / 1000
            self.loop.call_later(hold, self.transport.abort)
        elif self.input:
            self.loop.call_soon(self.read_request)


class Server:
    def __init__(self, script):
        self.script = script
        self.loop = asyncio.get_running_loop()
        self.reset()

    def reset(self):
        open_now = self.stats.n_open if hasattr(self, "stats") else 0
        running = self.stats.n_generating if hasattr(self, "stats") else 0
        if not hasattr(self, "stats"):
            self.stats = Stats()
        self.stats.__init__() # the same object: connections hold it
        self.stats.n_open = self.stats.n_open_peak = open_now
        self.stats.n_generating = self.stats.n_generating_peak = running
        self.log = []
        self.held = []           # requests that wait for others, see n_together
        self.n_logged = 0

    def note(self, record):
        self.n_logged += 1
        if len(self.log) < LOG_MAX:
            self.log.append(record)


class ScriptedServer:
    """The server as a child process: `with ScriptedServer("--script", FILE) as s: s.url`."""

    def __init__(self, *args):
        self.args = args

    def __enter__(self):
        self.process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--port", "0", "--until-eof", *self.args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            raise RuntimeError(f"scripted server did not start: {line!r}")
        self.url = line.split()[2]
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


def raise_descriptor_limit():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def tls_context(args):
    if not args.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(args.tls_cert, args.tls_key)
    return context


async def serve(args):
    script = {}
    if args.script:
        with open(args.script, encoding="utf-8") as f:
            script = json.load(f)
    server = Server(script)
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        server.loop.add_signal_handler(number, over.set)
    if args.until_eof:
        server.loop.add_reader(0, lambda: os.read(0, 4096) or over.set())

    def make():
        return Connection(server)

    if args.unix:
        listener = await server.loop.create_unix_server(make, args.unix, backlog=4096)
        url = "http://localhost"
    else:
        listener = await server.loop.create_server(make, args.host, args.port, backlog=4096,
                                                   ssl=tls_context(args))
        port = listener.sockets[0].getsockname()[1]
        url = f"{'https' if args.tls_cert else 'http'}://{args.host}:{port}"
    print(f"listening on {url}", flush=True)
    await over.wait()
    listener.close()


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=0)
    p.add_argument("--unix")
    p.add_argument("--script")
    p.add_argument("--tls-cert")
    p.add_argument("--tls-key")
    p.add_argument("--until-eof", action="store_true")
    args = p.parse_args()
    raise_descriptor_limit()
    asyncio.run(serve(args))


if __name__ == "__main__":
    main()
