#!/usr/bin/env bash
# format.sh - checks that every C file is formatted as .clang-format says.
#
#   tests/format.sh         lists the files that differ; exit code 1 if there is one, 77 if
#                           clang-format 14 is not installed
#   tests/format.sh --fix   rewrites the files
#
# Versions of clang-format format differently, so the script uses version 14 only: the one that
# deploy/test installs in build/venv, or one in PATH.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_tool() {
    local tool
    for tool in "${TARN_BUILD_DIR:-build}/venv/bin/clang-format" build/venv/bin/clang-format \
        clang-format-14 clang-format; do
        if [[ $("$tool" --version 2>/dev/null) == *"version 14."* ]]; then
            echo "$tool"
            return 0
        fi
    done
    return 1
}

if ! TOOL=$(find_tool); then
    echo "clang-format 14 is not installed; deploy/test installs it in build/venv"
    exit 77
fi
mapfile -t FILES < <(find base kernels cache engine server clients loadgen tests \
    \( -name '*.c' -o -name '*.h' \) -not -path '*/build/*' | sort)
if [[ ${1:-} == --fix ]]; then
    "$TOOL" -i "${FILES[@]}"
    exit 0
fi
if "$TOOL" --dry-run -Werror "${FILES[@]}" >/dev/null 2>&1; then
    echo "format: ${#FILES[@]} files are as .clang-format wants them"
    exit 0
fi
for file in "${FILES[@]}"; do
    if ! "$TOOL" --dry-run -Werror "$file" >/dev/null 2>&1; then
        echo "$file differs from what clang-format writes; tests/format.sh --fix rewrites it"
    fi
done
exit 1
