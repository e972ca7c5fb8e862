#!/usr/bin/env bash
# package_trial.sh - installs Tarn's Debian package, uses it and removes it again.
#
#   package_trial.sh FILE.deb
#
# Only for a Debian that may be changed: tests/chroot.sh runs it in a bare one, as root. The
# service's own command is run as the service's user, since no systemd runs in a chroot.
set -euo pipefail

# Any port: the network is the machine's, and something else may listen on 8000 there.
PORT=$((20000 + RANDOM % 10000))
URL=http://127.0.0.1:$PORT
LOG=/tmp/tarn-server.log

die() {
    echo "package_trial.sh: $1" >&2
    [[ ! -f $LOG ]] || tail -n 20 "$LOG" >&2
    exit 1
}

# The command of the unit, with its variables; the model as /etc/tarn/tarn.env would give it.
start_service() {
    local command
    command=$(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/tarn.service)
    install -d -o tarn -g tarn -m 0700 /var/lib/tarn # as StateDirectory= does
    # shellcheck disable=SC2086  # a command line
    setpriv --reuid tarn --regid tarn --clear-groups --no-new-privs \
        env -i PATH=/usr/bin:/bin XDG_CACHE_HOME=/var/lib \
        TARN_MODEL=/usr/share/tarn/demo-model TARN_PORT="$PORT" $command >"$LOG" 2>&1 &
    SERVER=$!
    for _ in $(seq 600); do
        if tarnctl --url "$URL" health >/dev/null 2>&1; then
            return 0
        fi
        kill -0 "$SERVER" 2>/dev/null || die "the server ended"
        sleep 0.1
    done
    die "the server is not ready after a minute"
}

ask() {
    local answer
    answer=$(tarnctl --url "$URL" chat \
        --document "Notes on Kumnordim: Kumnordim is a ship. The captain of Kumnordim is Stamos." \
        "Who is the captain of Kumnordim?")
    echo "answer: $answer"
    [[ $answer == *Stamos* ]] || die "the demo model knows better"
    tarnctl --url "$URL" metrics | grep '^vllm:' >/dev/null || die "no metrics"
    tarn-loadgen --url "$URL" --count 4 --concurrency 2 --input-len 32 --output-len 8 >/dev/null ||
        die "tarn-loadgen"
    tarn-bench --version
}

stop_service() {
    local status=0
    kill -TERM "$SERVER"
    wait "$SERVER" || status=$?
    ((status == 0)) || die "the server ended with $status after SIGTERM"
    [[ -s /var/lib/tarn/installation-secret ]] || die "no installation secret in /var/lib/tarn"
}

# Removing keeps configuration and data; purging leaves nothing.
remove() {
    local left
    echo "# mine" >>/etc/tarn/tarn.conf
    dpkg --remove tarn >/dev/null
    ! command -v tarn-server >/dev/null || die "tarn-server is still there"
    grep -q '^# mine' /etc/tarn/tarn.conf || die "removing took the configuration away"
    [[ -d /var/lib/tarn ]] || die "removing took the data away"
    dpkg --purge tarn >/dev/null
    left=$(find /etc /usr /var/lib /run -iname '*tarn*' -not -path '/var/lib/apt/*' | head)
    [[ -z $left ]] || die "purging left $left"
    ! getent passwd tarn >/dev/null || die "purging left the user"
}

main() {
    local deb=${1:?which package?}
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 install -y \
        --no-install-recommends "$deb" >/dev/null
    echo "installed $(dpkg-query -W -f '${Package} ${Version}, ${Installed-Size} KB' tarn)"
    getent passwd tarn
    start_service
    ask
    stop_service
    # Installing over it is an update: nothing is asked, the service's data stay.
    dpkg --install "$deb" >/dev/null
    [[ -s /var/lib/tarn/installation-secret ]] || die "an update lost the installation secret"
    remove
    echo "installed, asked, updated, removed and purged"
}

main "$@"
