#!/usr/bin/env bash
# chroot.sh - what a newcomer types, in a bare Debian 12: it alone shows a missing install line.
#
#   tests/chroot.sh [--worktree] [--shared] [--keep] [--dir DIR] [--quick | --package]
#
# In one bare Debian: deploy/quickstart, the same again, deploy/package, deploy/test. In a second
# one the package that the first has made: installed, asked, removed (tests/package_trial.sh); and,
# where systemd-nspawn is installed here, run as a service by a systemd (tests/package_service.sh).
#
#   --worktree  take the working tree as it is (tracked and new files) instead of a clone of HEAD
#   --shared    put a copy of ../shared beside the clone (without it those tests are skipped)
#   --keep      leave the chroot behind (its path is printed)
#   --dir DIR   where to put it (default: a new folder under ${TMPDIR:-/tmp}; 2 GB are needed)
#   --quick     deploy/quickstart only
#   --package   all but deploy/test
#
# Needs root, debootstrap, a network for Debian's packages and PyPI. Not part of CI. This machine's
# package sources, proxy settings and certificates are taken over, nothing else; only /proc and
# /dev/pts are mounted, in a mount namespace of their own. The full logs stay in DIR.logs.
set -euo pipefail

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SUITE=bookworm
DIR=''
KEEP=false
WORKTREE=false
SHARED=false
QUICK=false
TEST=true
# A bare Debian as an installer leaves it has these; debootstrap's minbase does not.
BASE_PACKAGES=ca-certificates

die() {
    echo "chroot.sh: $1" >&2
    exit 1
}

parse_arguments() {
    while (($# > 0)); do
        case $1 in
        --worktree) WORKTREE=true ;;
        --shared) SHARED=true ;;
        --keep) KEEP=true ;;
        --quick) QUICK=true ;;
        --package) TEST=false ;;
        --dir) DIR=${2:?--dir needs a folder}; shift ;;
        *) die "unknown argument $1; see the top of $0" ;;
        esac
        shift
    done
    ((EUID == 0)) || die "needs root"
    command -v debootstrap >/dev/null || die "needs debootstrap: apt-get install debootstrap"
}

# The first Debian archive that apt uses here.
mirror() {
    local uri
    uri=$({ grep -rhoE '^(deb |URIs:).*' /etc/apt/sources.list /etc/apt/sources.list.d \
        2>/dev/null || true; } | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1 | tr -d ' ')
    uri=${MIRROR:-$uri}
    [[ -n $uri ]] || die "apt here uses no Debian archive; name one: MIRROR=URL $0"
    echo "$uri"
}

copy_if_there() {
    local file
    for file in "$@"; do
        if [[ -e $file ]]; then
            mkdir -p "$DIR$(dirname "$file")"
            cp -aL "$file" "$DIR$(dirname "$file")/"
        fi
    done
}

# How this machine reaches its registries, and only Debian's own sources.
take_over_network() {
    local file
    copy_if_there /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt
    grep -rlE '^[^#]*(Proxy|Verify-Peer|CaInfo|Check-Date|Check-Valid-Until)' /etc/apt/apt.conf.d \
        2>/dev/null | while read -r file; do
        copy_if_there "$file"
    done
    cat >"$DIR/etc/apt/sources.list" <<LIST
deb $(mirror) $SUITE main
deb $(mirror) $SUITE-updates main
LIST
}

# The variables that package clients read; everything else of this shell stays out.
client_environment() {
    local pip='PIP_(CERT|INDEX_URL|DEFAULT_TIMEOUT)'
    env | grep -E "^(https?_proxy|no_proxy|HTTPS?_PROXY|NO_PROXY|$pip|SSL_CERT_FILE)=" || true
}

put_clone() {
    local target=$DIR/root/tarn
    mkdir -p "$target"
    if $WORKTREE; then
        (cd "$REPO" && tar --exclude=./build --exclude=./.git --exclude=__pycache__ -cf - .) |
            tar -C "$target" -xf -
    else
        git clone -q --no-hardlinks "$REPO" "$target"
    fi
    if $SHARED; then
        cp -a "$REPO/../shared" "$DIR/root/shared"
    fi
}

# inside ROOT WORDS COMMAND: runs it in the chroot, keeps the output and the time.
inside() {
    local root=$1 words=$2 command=$3 begin=$SECONDS status=0
    local -a environment
    mapfile -t environment < <(client_environment)
    echo "== $words"
    # shellcheck disable=SC2016  # the inner shell expands its arguments
    unshare --mount --pid --fork --kill-child bash -c '
        mount -t proc proc "$1/proc" || exit 1
        mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/dev/pts" || exit 1
        mount --bind "$1/dev/pts/ptmx" "$1/dev/ptmx" || exit 1
        dir=$1; shift
        exec chroot "$dir" /usr/bin/env -i "$@"' bash "$root" \
        PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "${environment[@]}" \
        bash -c "cd /root/tarn && $command" </dev/null >"$DIR.logs/$words" 2>&1 || status=$?
    tail -n 25 "$DIR.logs/$words" | sed 's/^/   | /'
    SUMMARY+=("$(printf '%-12s exit %d after %4d s   %s' "$words" "$status" $((SECONDS - begin)) \
        "$(tail -n 1 "$DIR.logs/$words")")")
    return "$status"
}

clean_up() {
    if $KEEP; then
        echo "left behind: $DIR $DIR.bare"
    elif [[ -n $DIR ]]; then
        rm -rf --one-file-system "$DIR" "$DIR.bare"
    fi
}

# The package, made where quickstart has built, and tried where nothing was ever built.
try_package() {
    local debs
    inside "$DIR" package "deploy/package" || return 1
    mkdir -p "$DIR.bare/root/tarn"
    debs=("$DIR"/root/tarn/build/tarn_*.deb)
    cp "${debs[-1]}" "$DIR.bare/root/tarn.deb"
    cp "$REPO/tests/package_trial.sh" "$DIR.bare/root/tarn/"
    inside "$DIR.bare" trial "./package_trial.sh /root/tarn.deb" || return 1
    if ! command -v systemd-nspawn >/dev/null; then
        SUMMARY+=("service      not tried: no systemd-nspawn (apt-get install systemd-container)")
        return 0
    fi
    inside "$DIR.bare" systemd "DEBIAN_FRONTEND=noninteractive apt-get -qq install -y \
        --no-install-recommends systemd systemd-sysv /root/tarn.deb" || return 1
    try_service
}

try_service() {
    local begin=$SECONDS status=0 log=$DIR.logs/service
    echo "== service"
    "$REPO/tests/package_service.sh" "$DIR.bare" >"$log" 2>&1 || status=$?
    tail -n 25 "$log" | sed 's/^/   | /'
    SUMMARY+=("$(printf '%-12s exit %d after %4d s   %s' service "$status" $((SECONDS - begin)) \
        "$(tail -n 1 "$log")")")
    ((status == 0 || status == 77))
}

main() {
    local failed=0 begin
    SUMMARY=()
    parse_arguments "$@"
    if [[ -z $DIR ]]; then
        DIR=$(mktemp -d "${TMPDIR:-/tmp}/tarn-chroot.XXXXXX")
    fi
    trap clean_up EXIT
    mkdir -p "$DIR.logs"
    begin=$SECONDS
    echo "== debootstrap $SUITE from $(mirror) into $DIR"
    debootstrap --variant=minbase --include="$BASE_PACKAGES" "$SUITE" "$DIR" "$(mirror)" \
        >"$DIR.logs/debootstrap" 2>&1 ||
        { tail -n 20 "$DIR.logs/debootstrap" >&2; die "debootstrap failed: $DIR.logs/debootstrap"; }
    take_over_network
    $QUICK || cp -a "$DIR" "$DIR.bare"
    put_clone
    SUMMARY+=("$(printf '%-12s ready after %4d s' chroot $((SECONDS - begin)))")
    inside "$DIR" quickstart "deploy/quickstart --once" || failed=1
    inside "$DIR" again "deploy/quickstart --once" || failed=1
    if ! $QUICK; then
        try_package || failed=1
        ! $TEST || inside "$DIR" test "deploy/test" || failed=1
    fi
    echo "== summary"
    printf '%s\n' "${SUMMARY[@]}" "logs: $DIR.logs"
    return "$failed"
}

main "$@"
