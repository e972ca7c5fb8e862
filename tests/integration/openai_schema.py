"""OpenAI's own schema of its API (shared data openai-openapi) as a judge of bodies.

Needs jsonschema and PyYAML: call use_venv("jsonschema", "yaml") first.
"""
from __future__ import annotations

import functools
import re
from typing import Any

from http_helpers import tarn_test

URN = "urn:openai"
# Members that OpenAI's recorded answers have as null, which its schema forbids.
NULL_IN_ANSWERS = {"Response": ("usage",), "ModelResponseProperties": ("user",),
                   "CreateChatCompletionStreamResponse": ("usage",)}


class Schemas(dict[str, Any]):
    """components/schemas, parsed one by one when used: the whole file takes seconds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        part = text[text.index("\n  schemas:\n"):].split("\n", 2)[2]
        names = list(re.finditer(r"^    (\S+):\n", part, re.M))
        outside = re.search(r"^ {0,2}\S", part, re.M)
        ends = [m.start() for m in names[1:]] + [outside.start() if outside else len(part)]
        self.texts = {m[1]: part[m.end():end] for m, end in zip(names, ends) if m.end() < end}

    def __missing__(self, name: str) -> Any:
        import yaml
        self[name] = yaml.load(self.texts[name], getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        allow_null(self[name])
        for member in NULL_IN_ANSWERS.get(name, ()):
            for part in (self[name], *self[name].get("allOf", ())):
                if member in part.get("properties", {}):
                    part["properties"][member] = {
                        "anyOf": [part["properties"][member], {"type": "null"}]}
        return self[name]


def allow_null(value: Any) -> None:
    """Say OpenAPI 3.0's nullable in JSON schema's words."""
    if isinstance(value, dict) and value.pop("nullable", False) is True:
        if isinstance(value.get("type"), str):
            value["type"] = [value["type"], "null"]
        if "enum" in value:
            value["enum"].append(None)
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, (dict, list)):
            allow_null(item)


@functools.lru_cache(None)
def document() -> Any:
    path = tarn_test.shared_data("openai-openapi") / "openapi.yaml"
    return {"components": {"schemas": Schemas(path.read_text())}}


@functools.lru_cache(None)
def validator(name: str) -> Any:
    """For one of components/schemas."""
    import jsonschema
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT202012
    registry = Registry().with_resource(
        URN, Resource.from_contents(document(), default_specification=DRAFT202012))
    return jsonschema.Draft202012Validator({"$ref": f"{URN}#/components/schemas/{name}"},
                                           registry=registry)


@functools.lru_cache(None)
def events() -> dict[str, str]:
    """The type of each event of a streamed response -> the name of its schema."""
    schemas, out = document()["components"]["schemas"], {}
    for one in schemas["ResponseStreamEvent"]["anyOf"]:
        name = one["$ref"].rsplit("/", 1)[1]
        out[schemas[name]["properties"]["type"]["enum"][0]] = name
    return out


def check(name: str, value: Any) -> None:
    for error in validator(name).iter_errors(value):
        raise AssertionError(f"{name}: {error.json_path}: {error.message[:400]}")
