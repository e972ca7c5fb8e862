#!/usr/bin/env bash
# rag.sh - register documents with Tarn and ask about them, with curl: rag.sh [URL]
set -euo pipefail
url=${1:-http://127.0.0.1:8000}

put() {
    curl -sSf -X PUT "$url/v1/documents/$1" -H 'Content-Type: application/json' \
        -d "{\"title\": \"$1\", \"text\": \"$2\", \"prefill\": \"now\"}"
    echo
}

put Kumnordim "Kumnordim is a ship. The captain of Kumnordim is Stamos."
put Mirandol "Mirandol is a ship. The captain of Mirandol is Tavish."

echo "--- documents that the server finds"
curl -sSf "$url/v1/chat/completions" -H 'Content-Type: application/json' -d '{
  "messages": [{"role": "user", "content": "Who is the captain of Kumnordim?"}],
  "retrieval": {"top_k": 1}, "temperature": 0, "max_tokens": 32}'
echo
echo "--- documents by their ids"
curl -sSf "$url/v1/chat/completions" -H 'Content-Type: application/json' -d '{
  "messages": [{"role": "user", "content": "Who is the captain of Mirandol?"}],
  "documents": ["Mirandol"], "temperature": 0, "max_tokens": 32}'
echo
