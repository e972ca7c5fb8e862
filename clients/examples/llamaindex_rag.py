#!/usr/bin/env python3
"""LlamaIndex with Tarn's documents: a retriever, and a chat that names documents by their ids.

    pip install llama-index-llms-openai-like
    llamaindex_rag.py [URL]
"""
from __future__ import annotations

import sys

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.llms.openai_like import OpenAILike

from tarn_documents import DOCUMENTS, TarnDocuments


class TarnRetriever(BaseRetriever):
    """Searches the documents that are registered with a Tarn server."""

    def __init__(self, tarn: TarnDocuments, top_k: int = 2) -> None:
        self.tarn, self.top_k = tarn, top_k
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return [NodeWithScore(score=d["score"],
                              node=TextNode(id_=d["id"], text=self.tarn.text(d["id"]),
                                            metadata={"title": d["title"]}))
                for d in self.tarn.search(query_bundle.query_str, self.top_k)]


def main() -> None:
    tarn = TarnDocuments(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
    for name, text in DOCUMENTS.items():
        tarn.put(name, text, title=name, prefill="now")

    question = "Who is the captain of Selkandor?"
    found = TarnRetriever(tarn).retrieve(question)
    # The ids are enough: the texts are in the server, and so is their KV.
    chat = OpenAILike(api_base=tarn.url + "/v1", api_key=tarn.api_key, model=tarn.model,
                      is_chat_model=True, temperature=0, max_tokens=32,
                      additional_kwargs={"extra_body": {"documents": [n.node_id for n in found]}})
    answer = chat.chat([ChatMessage(role="user", content=question)])
    print(answer.message.content)
    for n in found:
        print(f"  {n.metadata['title']}: {n.text}")
    usage = answer.raw.usage
    print(f"  {usage.prompt_tokens_details.cached_tokens} of {usage.prompt_tokens} "
          "prompt tokens cached")


if __name__ == "__main__":
    main()
