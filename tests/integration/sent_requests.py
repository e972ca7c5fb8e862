"""The requests that a test really sent to a server: endpoints, and the parameters that these
accepted.

docs/user/parameters.md names a test for each parameter of each endpoint. sent.json has that table,
and a test whose row is no longer true fails at its end. With TARN_SENT_DIR a test writes what was
sent into a file of that folder; `openapi_page.py --sent DIR` makes sent.json of such files.

A parameter counts where a request with it, which is not null, was answered with 2xx. Members of
objects count as "name.member", words as "name=word". A parameter that is refused by name counts as
"!name" where the error's `param` is its name.
"""
from __future__ import annotations

import atexit
import json
import os
import sys
import urllib.parse
from pathlib import Path
from typing import Any, Iterator

import tarn_test

TABLE = Path(__file__).with_name("sent.json")
WORD_LENGTH_MAX = 40
Sent = dict[str, set[str]]  # "POST /v1/models" -> parameters
SENT: Sent = {}


def names_in(body: Any) -> Iterator[str]:
    for name, value in body.items() if isinstance(body, dict) else ():
        if value is None:
            continue
        yield name
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str) and len(one) <= WORD_LENGTH_MAX:
                yield f"{name}={one}"
        if isinstance(value, dict):
            for member, inner in value.items():
                if inner is not None:
                    yield f"{name}.{member}"
                if isinstance(inner, str) and len(inner) <= WORD_LENGTH_MAX:
                    yield f"{name}.{member}={inner}"


def note(method: str, target: str, body: bytes | str | None, status: int,
         answer: Any = None) -> None:
    """A request with this answer. Bodies that are no JSON have no parameters."""
    path, _, query = target.partition("?")
    sent = SENT.setdefault(f"{method} {path}", set())
    try:
        parsed = json.loads(body) if body else {}
    except (ValueError, RecursionError):
        parsed = {}
    error = answer.get("error") if isinstance(answer, dict) else None
    if status // 100 == 2:
        sent.add("")
        sent.update(names_in(parsed))
        sent.update(names_in(dict(urllib.parse.parse_qsl(query))))
    elif isinstance(error, dict) and isinstance(parsed, dict):
        name = error.get("param") or str(error.get("message")).split(":")[0]
        sent.update(f"!{one}" for one in parsed if one == name)


def watch_sdks() -> None:
    """Note what clients send by httpx. It is imported by them under two names."""
    for name in ("httpx", "httpx2"):
        module: Any = sys.modules.get(name)
        if not module or getattr(module, "is_watched", False):
            continue
        module.is_watched = True
        watch(module.HTTPTransport, module.AsyncHTTPTransport)


def watch(transport: Any, async_transport: Any) -> None:
    send, send_async = transport.handle_request, async_transport.handle_async_request

    def noted(self: Any, request: Any) -> Any:
        response = send(self, request)
        note(request.method, str(request.url.raw_path, "ascii"), request.read(),
             response.status_code)
        return response

    async def noted_async(self: Any, request: Any) -> Any:
        response = await send_async(self, request)
        note(request.method, str(request.url.raw_path, "ascii"), await request.aread(),
             response.status_code)
        return response

    transport.handle_request = noted
    async_transport.handle_async_request = noted_async


def by_operation(sent: Sent) -> Sent:
    """The paths as /openapi.json has them."""
    import openapi_page
    found: Sent = {}
    for request, names in sent.items():
        method, path = request.split(" ", 1)
        operation = openapi_page.operation_of(method, path)
        if operation:
            found.setdefault(operation, set()).update(names)
    return found


def check_at_end() -> None:
    """Compare what this process sent with the table when it ends. Nothing is compared where tests
    were chosen by arguments, or where a sanitized build runs fewer."""
    if check in CHECKS:
        return
    CHECKS.append(check)
    atexit.register(check)


CHECKS: list[Any] = []


def check() -> None:
    name = Path(sys.argv[0]).name
    folder = os.environ.get("TARN_SENT_DIR")
    if folder:
        found = {operation: sorted(names) for operation, names in by_operation(SENT).items()}
        (Path(folder) / name).with_suffix(".json").write_text(json.dumps(found))
        return
    claimed = json.loads(TABLE.read_text()).get(name, {})
    if not claimed or len(sys.argv) > 1 or tarn_test.is_sanitized(tarn_test.program("tarn-server")):
        return
    found_sets = by_operation(SENT)
    missing = {operation: sorted(set(names) - found_sets.get(operation, set()))
               for operation, names in claimed.items()}
    missing = {operation: names for operation, names in missing.items() if names}
    if missing:
        print(f"FAIL  {TABLE.name} says that {name} sends {missing}: it did not, or the answer "
              "was an error. See tests/integration/sent_requests.py", flush=True)
        sys.stdout.flush()
        os._exit(1)
