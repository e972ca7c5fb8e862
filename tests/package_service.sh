#!/usr/bin/env bash
# package_service.sh - boots a Debian with Tarn's package in a container, with its own systemd, and
# checks that the service starts, answers, restarts after SIGKILL, drains and keeps its KV on disk.
#
#   package_service.sh ROOT     a debootstrap with packages tarn, systemd and systemd-sysv
#
# tests/chroot.sh runs this script, which needs root and systemd-nspawn (package systemd-container).
# The container has only a loopback network. Exit status 77: no container can be booted here.
set -euo pipefail

ROOT=$1
CONTAINER='' # pid of systemd-nspawn
INIT=''      # pid of the container's first process

die() {
    echo "package_service.sh: $1" >&2
    in_container journalctl --no-pager -n 30 -u tarn >&2 || true
    exit 1
}

in_container() {
    nsenter --target "$INIT" --all -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "$@"
}

# wait_for SECONDS COMMAND...: until it succeeds.
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || return 1
        sleep 0.2
    done
}

has_child() {
    INIT=$(pgrep -P "$CONTAINER" -f systemd | head -n 1)
    [[ -n $INIT ]]
}

boot() {
    systemd-nspawn --quiet -D "$ROOT" --register=no --keep-unit --private-network \
        --console=pipe -b </dev/null >"$ROOT/root/boot.log" 2>&1 &
    CONTAINER=$!
    if ! wait_for 60 has_child || ! wait_for 60 in_container test -S /run/systemd/private; then
        echo "SKIP: no container can be booted here: $(tail -n 1 "$ROOT/root/boot.log")"
        exit 77
    fi
}

shut_down() {
    if [[ -n $CONTAINER ]] && kill -0 "$CONTAINER" 2>/dev/null; then
        kill -TERM "$CONTAINER" 2>/dev/null || true
        wait "$CONTAINER" 2>/dev/null || true
    fi
}

main_pid() {
    in_container systemctl show --value -p MainPID tarn
}

chat() {
    in_container tarnctl chat --max-tokens 48 --usage "Tell me about the ships of the north. $1" \
        2>&1
}

has_written() {
    in_container tarnctl metrics | grep '^tarn:kv_disk_written_bytes_total.* [1-9]' >/dev/null
}

main() {
    local before cached
    cat >>"$ROOT/etc/tarn/tarn.env" <<'ENV'
TARN_MODEL=/usr/share/tarn/demo-model
TARN_KV_DISK_PATH=/var/lib/tarn/kv
TARN_KV_DISK_BYTES=64M
TARN_KV_DISK_MIN_USES=1
ENV
    trap shut_down EXIT
    boot
    in_container systemctl start tarn || die "systemctl start failed"
    wait_for 60 in_container tarnctl health || die "not ready after a minute"
    chat once
    grep -q io_uring <(in_container journalctl --no-pager -u tarn) ||
        die "the disk tier does not use io_uring under the unit's filter"
    echo "sandbox: $(in_container systemd-analyze security --no-pager tarn | tail -n 1)"

    wait_for 30 has_written || die "nothing was written to disk"
    before=$(main_pid)
    in_container systemctl kill --signal=KILL tarn
    wait_for 60 in_container tarnctl health || die "not started again after SIGKILL"
    [[ $(main_pid) != "$before" ]] || die "it was never killed"
    [[ $(in_container systemctl show --value -p NRestarts tarn) == 1 ]] || die "not restarted once"
    cached=$(chat once | grep -o '[0-9]* cached' || true)
    [[ $cached == "32 cached" ]] || die "the KV of the first chat was not found on disk: $cached"
    echo "after SIGKILL and a restart by systemd: $cached tokens"

    in_container systemctl reload tarn || die "systemctl reload failed"
    in_container tarnctl health >/dev/null || die "it did not survive a reload"
    in_container systemctl stop tarn || die "systemctl stop failed"
    [[ $(in_container systemctl show --value -p Result tarn) == success ]] || die "no clean end"
    echo "started, restarted, reloaded and stopped by systemd"
}

main
