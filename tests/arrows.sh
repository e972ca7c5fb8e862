#!/usr/bin/env bash
# arrows.sh - checks that includes point down only and that each library has one home.
#
#   tests/arrows.sh [ROOT]        check the tree (default: this repository); exit 1 on a violation
#   tests/arrows.sh --self-test   plant violations in a copy and see that each is found
#
# Includes are written from the root ("cache/cache.h"), so grep sees every arrow:
# server -> engine -> cache -> kernels -> base, and those between the folders inside of each. A
# header in <> is the C library's, the system's or a third party's; a third party's may be included
# by one module only.
set -euo pipefail

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
FOLDERS=(base kernels cache engine server clients loadgen tests deploy)

# Which file (regex) may include which header of Tarn (regex). The first row that matches a file
# counts.
arrows_table() {
    cat <<'TABLE'
^base/             ^base/
^kernels/          ^(base|kernels)/
^cache/policy/     ^base/|^cache/policy/
^cache/balance/    ^base/|^cache/balance/
^cache/tree/       ^base/|^cache/tree/|^cache/(cache|key)\.h$
^cache/disk/       ^base/|^cache/disk/|^cache/key\.h$
^cache/pool/       ^base/|^cache/(pool|balance)/|^cache/(key|events)\.h$
^cache/events      ^base/|^cache/(key|events)\.h$
^cache/tier/       ^base/|^cache/(tier|disk)/|^cache/key\.h$|^cache/pool/pool\.h$|^kernels/(params|device)\.h$
^cache/store/      ^base/|^cache/(store|tree|policy)/|^cache/(tier/tier|pool/pool)\.h$|^cache/(cache|key|events)\.h$|^kernels/params\.h$
^cache/            ^base/|^cache/(cache|cache_inner|cache_seq_inner|key|events)\.h$|^cache/(store/kv_store|tier/tier|policy/replace|pool/pool)\.h$|^kernels/(ops|params|device|pack)\.h$
^engine/text/jinja/  ^base/|^engine/text/jinja/|^engine/text/ranges\.h$
^engine/text/tokenizer/  ^base/|^engine/text/tokenizer/|^engine/text/ranges\.h$
^engine/text/      ^base/|^engine/text/
^engine/grammar/   ^base/|^engine/grammar/|^engine/text/tokenizer/tokenizer\.h$
^engine/sched/     ^base/|^engine/sched/
^engine/retrieval/  ^base/|^engine/retrieval/
^engine/model/     ^base/|^engine/model/|^kernels/(ops|params|device|pack)\.h$
^engine/run/       ^base/|^engine/(run|model)/|^engine/sched/cost_model\.h$|^cache/cache\.h$|^kernels/(ops|params|device|pack)\.h$
^engine/retrieval/ ^base/|^engine/retrieval/
^engine/           ^(base|engine)/|^cache/cache\.h$|^kernels/(ops|params|device|pack)\.h$
^server/http/      ^base/|^server/http/
^server/auth/      ^base/|^server/(auth|http)/|^server/(cache_dir|config|server)\.h$|^cache/cache\.h$
^server/events/    ^base/|^server/events/|^cache/cache\.h$
^server/           ^(base|engine|server)/|^cache/cache\.h$
^clients/tarnctl/verify  ^(base|clients)/|^cache/disk/disk_verify\.h$
^clients/tarnctl/models  ^(base|clients)/|^engine/model/hub_download\.h$
^clients/          ^(base|clients)/
^loadgen/load/options\.c$  ^(base|clients)/|^loadgen/load/|^engine/settings\.h$
^loadgen/load/main\.c$  ^(base|clients)/|^loadgen/load/|^loadgen/sim/command\.h$
^loadgen/load/report  ^(base|clients)/|^loadgen/load/|^loadgen/sim/result\.h$
^loadgen/load/     ^(base|clients)/|^loadgen/load/
^loadgen/bench/policy/  ^(base|clients|loadgen)/|^engine/sched/(scheduler|cost_model)\.h$|^cache/policy/replace\.h$
^loadgen/bench/    ^(base|clients|loadgen|engine|kernels)/|^cache/cache\.h$
^loadgen/sim/      ^(base|clients|loadgen)/|^engine/sched/(scheduler|cost_model|contest|estimate)\.h$|^engine/(lineup|settings)\.h$|^cache/cache\.h$|^cache/balance/|^kernels/(device|backend|params)\.h$
^loadgen/          ^(base|clients|loadgen)/
^tests/            .
^deploy/           ^(base|clients|deploy)/
TABLE
}

# Which third-party header (regex) may be included by which files (regex).
libraries_table() {
    cat <<'TABLE'
^microhttpd\.h$              ^server/http/http[._]
^gnutls/                     ^server/http/http_tls\.
^jansson\.h$                 ^base/json\.
^sodium\.h$|^sodium/         ^base/hash\.
^sqlite3\.h$                 ^base/store[._]
^liburing\.h$|^liburing/     ^base/aio\.
^curl/                       ^base/http[._]
^pcre2\.h$                   ^engine/text/tokenizer/
^utf8proc\.h$                ^engine/text/tokenizer/
^faiss/                      ^engine/retrieval/faiss_index\.cc$
^nccl\.h$                    ^kernels/cuda/collective\.|^tests/cuda_emulation/nccl\.
^(cuda|cublas|cooperative_)  ^kernels/cuda/|^tests/(gpu|cuda_emulation)/
^uc[pst]/                    ^cache/pool/transport_ucx
^hiredis/                    ^cache/pool/directory_redis
^zmq\.h$                     ^server/events/publisher\.
^msgpack\.h$                 ^server/events/batch\.
^cmocka\.h$                  ^tests/
^tarn_client\.h$             ^clients/(c/example|examples/[a-z]+)\.c$|^tests/integration/installed/
^(algorithm|c[a-z]+|memory|new|stdexcept|vector)$  ^engine/retrieval/faiss_index\.cc$|^tests/cuda_emulation/
^(condition_variable|deque|functional|limits|map)$  ^tests/cuda_emulation/
^(mutex|string|tuple|type_traits)$  ^tests/cuda_emulation/
^(elf|link)\.h$               ^tests/cuda_emulation/
^gnu/libc-version\.h$        ^tests/
TABLE
}

# The C library's and the system's: free for all.
SYSTEM_HEADERS='^(assert|complex|ctype|errno|fenv|float|inttypes|iso646|limits|locale|math|setjmp|signal|stdalign|stdarg|stdatomic|stdbool|stddef|stdint|stdio|stdlib|stdnoreturn|string|tgmath|threads|time|uchar|wchar|wctype|alloca|byteswap|dirent|dlfcn|endian|execinfo|fcntl|fnmatch|ftw|getopt|glob|grp|ifaddrs|libgen|malloc|netdb|poll|pthread|pwd|regex|sched|semaphore|spawn|strings|syslog|termios|ucontext|unistd|utime|[a-z]*mmintrin|x86intrin|cpuid|arm_neon|omp)\.h$|^(sys|linux|asm|arpa|net|netinet|sanitizer)/'

# Lines "file include" of every include in ROOT; quotes stay so that "x" and <x> can be told apart.
list_includes() {
    local root=$1 folder
    local present=()
    for folder in "${FOLDERS[@]}"; do
        if [[ -d $root/$folder ]]; then
            present+=("$folder")
        fi
    done
    cd "$root" || return 1
    { grep -rHE --include='*.c' --include='*.h' --include='*.cc' --include='*.cu' \
        --include='*.cuh' '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]' "${present[@]}" ||
        [[ $? == 1 ]]; } |
        sed -E 's/^([^:]+):[[:space:]]*#[[:space:]]*include[[:space:]]*(["<][^">]*[">]).*/\1 \2/'
}

# Print one line per violation; exit status 1 if there is any.
check_tree() {
    local root=$1
    # By the environment: awk would take the backslashes of -v for its own.
    (list_includes "$root") | SYSTEM_HEADERS=$SYSTEM_HEADERS ARROWS=$(arrows_table) \
        LIBRARIES=$(libraries_table) awk '
        function bad(why) { print $1 ": " $2 ": " why; n_bad++ }
        function home_of(header,   i) {
            for (i = 1; i <= n_lib; i++)
                if (header ~ lib_header[i])
                    return lib_home[i]
            return ""
        }
        function check_ours(file, header,   i) {
            if (header ~ /\.c$/)
                return bad("a source file is never included")
            if (header !~ /\// && file ~ /^tests\//)
                return # a helper beside its test
            if (header !~ /\//)
                return bad("write the path from the root, as in \"base/buf.h\"")
            for (i = 1; i <= n_arrow; i++)
                if (file ~ arrow_from[i]) {
                    if (header !~ arrow_to[i])
                        bad("this folder may include only " arrow_to[i])
                    return
                }
            bad("this file lies in no known folder")
        }
        function check_library(file, header,   home) {
            if (header ~ system_headers)
                return
            home = home_of(header)
            if (home == "")
                bad("a library that tests/arrows.sh does not know: give it one home there")
            else if (file !~ home)
                bad("only " home " may include this library")
        }
        BEGIN {
            system_headers = ENVIRON["SYSTEM_HEADERS"]
            n = split(ENVIRON["ARROWS"], rows, "\n")
            for (i = 1; i <= n; i++) {
                split(rows[i], f, " ")
                arrow_from[++n_arrow] = f[1]; arrow_to[n_arrow] = f[2]
            }
            n = split(ENVIRON["LIBRARIES"], rows, "\n")
            for (i = 1; i <= n; i++) {
                split(rows[i], f, " ")
                lib_header[++n_lib] = f[1]; lib_home[n_lib] = f[2]
            }
        }
        {
            n_seen++
            header = substr($2, 2, length($2) - 2)
            if ($2 ~ /^</)
                check_library($1, header)
            else if (home_of(header) != "")
                check_library($1, header)
            else
                check_ours($1, header)
        }
        END {
            if (n_bad > 0) { print n_bad " violations in " n_seen " includes"; exit 1 }
            if (n_seen == 0) { print "no include found: wrong folder?"; exit 1 }
            print "arrows: " n_seen " includes, all point down; every library has one home"
        }'
}

# plant FILE INCLUDE: the copy must be refused, and the words must name the file and the include.
plant() {
    local copy=$1 file=$2 include=$3 out status=0
    mkdir -p "$copy/$(dirname "$file")"
    printf '#include %s\n' "$include" >"$copy/$file"
    out=$(check_tree "$copy") || status=$?
    if [[ $status == 0 ]]; then
        echo "self-test: NOT found: $file includes $include"
        return 1
    fi
    if ! grep -qF "$file: $include:" <<<"$out"; then
        echo "self-test: found, but not named: $file includes $include"
        return 1
    fi
    rm "$copy/$file"
    n_planted=$((n_planted + 1))
}

self_test() {
    local copy failed=0 file folder include
    n_planted=0
    copy=$(mktemp -d)
    # shellcheck disable=SC2064  # expand now: the variable is local
    trap "rm -rf '$copy'" EXIT
    # One good file per folder represents the tree, so that the test does not depend on the state of
    # the tree.
    for folder in "${FOLDERS[@]}"; do
        mkdir -p "$copy/$folder"
        printf '#include <stdio.h>\n#include "base/status.h"\n' >"$copy/$folder/good.c"
    done
    check_tree "$copy" || { echo "self-test: a clean tree is refused"; return 1; }
    while read -r file include; do
        plant "$copy" "$file" "$include" || failed=1
    done <<'PLANTS'
base/planted.c "kernels/ops.h"
base/planted.h "engine/engine.h"
kernels/planted.c "cache/cache.h"
kernels/cpu/planted.c "server/http/http.h"
cache/planted.c "engine/request.h"
cache/planted.c "kernels/cpu/pool.h"
cache/planted.c "cache/store/kv_store_inner.h"
cache/policy/planted.c "cache/cache.h"
cache/balance/planted.c "cache/key.h"
cache/tree/planted.c "cache/store/kv_store.h"
cache/disk/planted.c "cache/store/kv_store.h"
cache/disk/planted.c "cache/cache.h"
cache/disk/planted.c "cache/tier/tier.h"
cache/tier/planted.c "cache/store/kv_store.h"
cache/tier/planted.c "cache/cache.h"
cache/tier/planted.c "cache/tree/knowledge_tree.h"
cache/store/planted.c "cache/disk/disk.h"
cache/store/planted.c "cache/tier/tier_inner.h"
cache/store/planted.c "kernels/device.h"
engine/planted.c "server/http/http.h"
engine/planted.c "cache/store/kv_store.h"
engine/planted.c "kernels/cpu/pool.h"
engine/text/planted.c "engine/engine.h"
engine/text/planted.c "kernels/params.h"
engine/text/jinja/planted.c "engine/text/chat_template.h"
engine/text/tokenizer/planted.c "engine/text/detokenize.h"
engine/sched/planted.c "cache/cache.h"
engine/sched/planted.c "engine/lineup.h"
engine/model/planted.c "engine/run/forward.h"
engine/retrieval/planted.c "engine/request.h"
engine/retrieval/vectors_planted.c <faiss/Index.h>
engine/retrieval/planted.c <vector>
engine/run/planted.c "engine/request.h"
engine/retrieval/planted.c "engine/engine.h"
server/planted.c "cache/store/kv_store.h"
server/planted.c "kernels/ops.h"
server/planted.c "tests/tools/x.h"
server/http/planted.c "server/api/route.h"
server/http/planted.c "engine/engine.h"
server/auth/planted.c "server/api/route.h"
server/events/planted.c "server/config.h"
server/planted.c <zmq.h>
server/events/planted.c <msgpack.h>
engine/planted.c "engine.h"
tests/unit/base/planted.c "base/buf.c"
base/buf_planted.c <jansson.h>
base/planted.c <sodium.h>
clients/planted.c <curl/curl.h>
clients/planted.c "engine/engine.h"
clients/planted.c "cache/disk/disk_verify.h"
clients/tarnctl/verify_planted.c "cache/cache.h"
clients/tarnctl/models_planted.c "engine/model/model.h"
loadgen/planted.c "engine/engine.h"
loadgen/load/planted.c "loadgen/sim/sim.h"
loadgen/bench/policy/planted.c "engine/engine.h"
loadgen/planted.c "server/config.h"
loadgen/sim/planted.c "engine/engine.h"
server/planted.c <microhttpd.h>
server/planted.c <jansson.h>
server/http/http_planted.c <gnutls/gnutls.h>
engine/planted.c <pcre2.h>
engine/text/planted.c <utf8proc.h>
engine/planted.c "pcre2.h"
kernels/planted.c <cuda_runtime.h>
cache/planted.c <hiredis/hiredis.h>
cache/planted.c <ucp/api/ucp.h>
base/planted.c <cmocka.h>
engine/planted.c <sqlite3.h>
base/planted.c <zlib.h>
PLANTS
    # Spelling must not hide an include.
    printf '  #  include   "engine/engine.h"  /* words */\n' >"$copy/base/planted.c"
    if check_tree "$copy" >/dev/null; then
        echo "self-test: NOT found: an include written with blanks"
        failed=1
    fi
    echo "self-test: $n_planted planted violations found"
    return "$failed"
}

case ${1:-} in
--self-test) self_test ;;
-*) echo "usage: $0 [ROOT | --self-test]" >&2; exit 2 ;;
*) check_tree "${1:-$REPO}" ;;
esac
