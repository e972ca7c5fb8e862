#!/usr/bin/env python3
"""LangChain with Tarn's documents: a retriever, and a chat that names documents by their ids.

    pip install langchain-openai
    langchain_rag.py [URL]
"""
from __future__ import annotations

import sys

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_openai import ChatOpenAI

from tarn_documents import DOCUMENTS, TarnDocuments


class TarnRetriever(BaseRetriever):
    """Searches the documents that are registered with a Tarn server."""
    tarn: TarnDocuments
    top_k: int = 2
    model_config = {"arbitrary_types_allowed": True}

    def _get_relevant_documents(self, query: str, *,
                                run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return [Document(page_content=self.tarn.text(d["id"]), id=d["id"],
                         metadata={"title": d["title"], "score": d["score"]})
                for d in self.tarn.search(query, self.top_k)]


def main() -> None:
    tarn = TarnDocuments(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
    for name, text in DOCUMENTS.items():
        tarn.put(name, text, title=name, prefill="now")

    question = "Who is the captain of Mirandol?"
    found = TarnRetriever(tarn=tarn).invoke(question)
    # The ids are enough: the texts are in the server, and so is their KV.
    chat = ChatOpenAI(base_url=tarn.url + "/v1", api_key=tarn.api_key, model=tarn.model,
                      temperature=0, max_tokens=32,
                      extra_body={"documents": [d.id for d in found]})
    answer = chat.invoke(question)
    print(answer.content)
    for d in found:
        print(f"  {d.metadata['title']}: {d.page_content}")
    usage = answer.response_metadata["token_usage"]
    print(f"  {usage['prompt_tokens_details']['cached_tokens']} of {usage['prompt_tokens']} "
          "prompt tokens cached")


if __name__ == "__main__":
    main()
