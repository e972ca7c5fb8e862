# lib.sh - functions of deploy/quickstart, pool, test and package. Sourced, not run.
# shellcheck shell=bash

REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Packages that the build and the server need.
BUILD_PACKAGES=(gcc libc6-dev cmake ninja-build pkg-config libmicrohttpd-dev libgnutls28-dev
    libjansson-dev libsodium-dev libpcre2-dev libutf8proc-dev libcurl4-openssl-dev
    liburing-dev libsqlite3-dev g++ libfaiss-dev libblas-dev liblapack-dev libucx-dev
    libhiredis-dev libzmq3-dev libmsgpack-dev python3 curl ca-certificates)
# Further packages for building the Debian package.
# shellcheck disable=SC2034  # used by deploy/package
PACKAGE_PACKAGES=(dpkg-dev file)
# Further packages for the tests.
# shellcheck disable=SC2034  # used by deploy/test
TEST_PACKAGES=(libcmocka-dev python3-numpy python3-venv "${PACKAGE_PACKAGES[@]}" mandoc zsh
    systemd redis-server haproxy iproute2 nftables procps openssl)
# Packages for compiling the kernels for 64-bit ARM and running them.
# shellcheck disable=SC2034  # used by deploy/test
AARCH64_PACKAGES=(gcc-aarch64-linux-gnu qemu-user)
# Of all these, packages that bring a service: installed without it.
SERVICE_PACKAGES=(redis-server haproxy)
POLICY=/usr/sbin/policy-rc.d

if [[ -t 1 ]]; then
    BOLD=$'\e[1m' DIM=$'\e[2m' PLAIN=$'\e[0m'
else
    BOLD='' DIM='' PLAIN=''
fi

die() {
    printf '\n%s: %s\n' "$(basename "$0")" "$1" >&2
    shift
    if (($# > 0)); then
        printf '  %s\n' "$@" >&2
    fi
    exit 1
}

# value_of OPTION VALUE: print the value of an option of the command line.
value_of() {
    if (($# < 2)) || [[ -z $2 ]]; then
        die "$1 needs a value"
    fi
    echo "$2"
}

# port_is_free PORT: try to bind it, as the server will.
port_is_free() {
    python3 - "$1" <<'PY'
import socket, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    s.bind(("127.0.0.1", int(sys.argv[1])))
except OSError:
    sys.exit(1)
PY
}

now_ms() {
    local t=${EPOCHREALTIME/[.,]/}
    echo $((t / 1000))
}

# seconds_since MS: print the seconds since then, such as 3.2
seconds_since() {
    local ms=$(($(now_ms) - $1))
    printf '%d.%d' $((ms / 1000)) $((ms % 1000 / 100))
}

# step "words" COMMAND...: print a heading, run the command, print its duration.
step() {
    local words=$1 start status=0
    shift
    start=$(now_ms)
    printf '%s==> %s%s\n' "$BOLD" "$words" "$PLAIN"
    "$@" || status=$?
    if ((status == 0)); then
        printf '%s    %s: %s s%s\n' "$DIM" "$words" "$(seconds_since "$start")" "$PLAIN"
    else
        printf '    %s FAILED after %s s\n' "$words" "$(seconds_since "$start")"
    fi
    return "$status"
}

missing_packages() {
    local package
    for package in "$@"; do
        if [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) != installed ]]; then
            echo "$package"
        fi
    done
}

# Run a command as root: directly, or by sudo.
as_root() {
    if ((EUID == 0)); then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        return 126
    fi
}

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 \
        -o DPkg::Lock::Timeout=120 -o Acquire::Retries=2 \
        install -y --no-install-recommends "$@" >/dev/null
}

# install_without_services PACKAGE...: apt_install, without the services that the packages bring.
# $POLICY (policy-rc.d of Debian) keeps them from starting now, `systemctl disable` from starting
# with the machine: the tests and deploy/pool start programs of their own. A policy that is there
# already stays as it is.
install_without_services() (
    mapfile -t services < <(printf '%s\n' "$@" |
        grep -Fx "$(printf '%s\n' "${SERVICE_PACKAGES[@]}")")
    if ((${#services[@]} > 0)) && [[ ! -e $POLICY ]]; then
        trap 'as_root rm -f "$POLICY"' EXIT
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$POLICY" >/dev/null
        as_root chmod 755 "$POLICY"
    fi
    apt_install "$@" || exit 1
    if ((${#services[@]} > 0)) && command -v systemctl >/dev/null; then
        as_root systemctl --quiet disable "${services[@]}" 2>/dev/null || true
    fi
)

# Install the packages that are missing; without apt if none is. No service is started or enabled.
ensure_packages() {
    local -a missing
    if ! command -v dpkg-query >/dev/null; then
        echo "    there is no dpkg to check or install packages; Tarn needs these:"
        echo "    $*"
        return 0
    fi
    mapfile -t missing < <(missing_packages "$@")
    if ((${#missing[@]} == 0)); then
        echo "    all $# are installed"
        return 0
    fi
    if ((EUID != 0)) && ! command -v sudo >/dev/null; then
        die "packages are missing, and installing them needs root or sudo. As root, run" \
            "apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
    fi
    echo "    installing ${missing[*]}"
    if ! as_root apt-get -qq -o Acquire::Retries=2 update; then
        echo "    apt-get update failed; trying with the old package lists" >&2
    fi
    if ! install_without_services "${missing[@]}"; then
        die "apt could not install: ${missing[*]}" \
            "See its message above. Usual reasons: no network, an old release (Tarn is tested on" \
            "Debian 12), another running apt, or no root rights. Then run this command again."
    fi
}

# Remove the configuration of a build folder that belongs to another checkout (the folder was moved
# or copied): CMake would refuse it.
drop_foreign_build() {
    local dir=$1 home
    [[ -f $dir/CMakeCache.txt ]] || return 0
    home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$dir/CMakeCache.txt")
    if [[ $home != "$REPO" ]]; then
        echo "    $dir belongs to $home: configuring afresh"
        rm -rf "$dir/CMakeCache.txt" "$dir/CMakeFiles"
    fi
}

# The preset of the release build. In CI warnings are errors. quickstart and test use the same
# preset, because otherwise each of them would build everything again.
release_preset() {
    if [[ ${CI:-} == true ]]; then echo ci; else echo cpu; fi
}

# configure_preset PRESET DIR [CMAKE OPTIONS...]: configure; prints CMake's output only on failure.
configure_preset() {
    local preset=$1 dir=$2 log
    shift 2
    drop_foreign_build "$dir"
    mkdir -p "$dir"
    log=$dir/configure.log
    if [[ ! -f $dir/CMakeCache.txt ]] && command -v ninja >/dev/null; then
        set -- -G Ninja "$@"
    fi
    if ! (cd "$REPO" && cmake --preset "$preset" "$@") >"$log" 2>&1; then
        cat "$log" >&2
        die "cmake could not configure preset $preset (see above, or $log)" \
            "If a library is named as missing: ${BUILD_PACKAGES[*]}"
    fi
    sed -n '/Found/d; s/^-- \(  \S.*\)/  \1/p' "$log"
}

# build_dir DIR [TARGET...]: build on all cores, with ninja's progress.
build_dir() {
    local dir=$1 target
    local -a args=()
    shift
    for target in "$@"; do
        args+=(--target "$target")
    done
    NINJA_STATUS='    [%f/%t %es] ' cmake --build "$dir" -j "$(nproc)" "${args[@]}" ||
        die "the build in $dir failed: see the compiler's message above"
}
