#!/usr/bin/env python3
"""Register documents once, then ask about them: openai_rag.py [URL]  (pip install openai)"""
import sys

import openai

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
DOCUMENTS = {
    "Kumnordim": "Kumnordim is a ship. The captain of Kumnordim is Stamos.",
    "Mirandol": "Mirandol is a ship. The captain of Mirandol is Tavish.",
    "Selkandor": "Selkandor is a ship. The captain of Selkandor is Milos.",
}
client = openai.OpenAI(base_url=URL + "/v1", api_key="none")
model = client.models.list().data[0].id

# Once: Tarn keeps the documents, and computes their KV in idle moments.
for name, text in DOCUMENTS.items():
    client.put(f"/documents/{name}", cast_to=object,
               body={"title": name, "text": text, "prefill": "now"})

# For every question: Tarn finds the best documents and puts them into the prompt.
answer = client.chat.completions.create(
    model=model, temperature=0, max_tokens=32,
    messages=[{"role": "user", "content": "Who is the captain of Kumnordim?"}],
    extra_body={"retrieval": {"top_k": 2}})
print(answer.choices[0].message.content)
for used in answer.documents["used"]:
    print(f"  {used['title']}: score {used['score']:.3f}, "
          f"{used['cached_tokens']} of {used['n_tokens']} tokens cached")
