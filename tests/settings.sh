#!/usr/bin/env bash
# settings.sh - checks that messages below a program name options as {some_name}, not as flags.
#
#   tests/settings.sh TARN_SERVER     exit 1 when a string in base/, kernels/, cache/ or engine/
#                                     spells a flag, or names an option that tarn-server lacks
#
# Each program writes {some_name} as its own --some-name: base/option_table.h.
set -euo pipefail

server=$1
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folders=(base kernels cache engine)

# FILE:LINE:TEXT of all lines with a string, without comments. The option table itself has the two
# flags of every program.
strings() {
    grep -rnE --include='*.c' --include='*.h' --include='*.cu' --include='*.cuh' '"' \
        "${folders[@]}" |
        sed -E 's:/\*.*(\*/|$)::; s:^([^:]*\:[0-9]+\:)[[:space:]]*\*.*:\1:' |
        grep -v '^base/option_table\.c:'
}

failed=0
if strings | grep -E '"[^"]*--[a-z][a-z-]+'; then
    echo "settings: the lines above spell a flag; write {some_name} instead of --some-name"
    failed=1
fi
known=$("$server" --help | sed -nE 's/^  --(\[no-\])?([a-z0-9-]+).*/\2/p' | tr - _)
names=$(strings | grep -oE '"[^"]*\{[a-z_]{3,}\}[^"]*"' | grep -oE '\{[a-z_]{3,}\}' |
    tr -d '{}' | sort -u)
for name in $names; do
    if ! grep -qx "$name" <<<"$known"; then
        echo "settings: {$name} is no option of tarn-server"
        failed=1
    fi
done
if [[ -z $names ]]; then
    echo "settings: no {some_name} found: wrong folder?"
    failed=1
fi
[[ $failed == 0 ]] && echo "settings: $(wc -w <<<"$names") options are named, none by its flag"
exit "$failed"
