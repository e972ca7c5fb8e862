"""Tarn's documents for the examples of LangChain and LlamaIndex: register, search, read.

Standard library only. A search is a chat with max_tokens 0: Tarn finds the documents and computes
the prompt with them, so that the chat that follows finds their KV in the cache.
"""
from __future__ import annotations

import json
import urllib.parse
import urllib.request

DOCUMENTS = {
    "Kumnordim": "Kumnordim is a ship. The captain of Kumnordim is Stamos.",
    "Mirandol": "Mirandol is a ship. The captain of Mirandol is Tavish.",
    "Selkandor": "Selkandor is a ship. The captain of Selkandor is Milos.",
}


class TarnDocuments:
    def __init__(self, url: str, api_key: str = "none") -> None:
        self.url, self.api_key = url.rstrip("/"), api_key
        self.model = self.call("GET", "/v1/models")["data"][0]["id"]

    def call(self, method: str, path: str, body: dict | None = None) -> dict:
        request = urllib.request.Request(
            self.url + path, method=method, data=json.dumps(body).encode() if body else None,
            headers={"Content-Type": "application/json",
                     "Authorization": f"Bearer {self.api_key}"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def put(self, id_: str, text: str, **fields: object) -> None:
        self.call("PUT", "/v1/documents/" + urllib.parse.quote(id_, safe=""),
                  {"text": text, **fields})

    def text(self, id_: str) -> str:
        return self.call("GET", "/v1/documents/" + urllib.parse.quote(id_, safe=""))["text"]

    def search(self, query: str, top_k: int) -> list[dict]:
        """The best documents: dicts with id, title and score."""
        answer = self.call("POST", "/v1/chat/completions", {
            "model": self.model, "max_tokens": 0, "retrieval": {"top_k": top_k},
            "messages": [{"role": "user", "content": query}]})
        return answer.get("documents", {}).get("used", [])
