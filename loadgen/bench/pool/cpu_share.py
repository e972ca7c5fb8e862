"""cpu_share.py - the same fixed share of processor time for each instance, by quotas of cgroups.

Instances on one machine share its cores: where one instance waits, another one gets its time. Four
machines would not do that. With a quota, an instance's unused time is lost, as it is there.

The controller `cpu` is used as the machine mounts it, in version 1 or 2 of cgroups. Groups need the
right to make folders there (root, or a delegated group). A group is removed with its CpuShares,
and groups of earlier runs that were killed are removed then, too.
"""
from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

PERIOD_US = 10_000       # short beside a request, so that no request waits long for its share
QUOTA_MIN_US = 1_000     # the kernel's
REMOVE_SECONDS = 5.0     # a group is busy until the kernel has reaped its last process
NAME = "tarn-show"


class Unavailable(Exception):
    """No group with a quota can be made here; the text says why."""


# --- where groups can be made ---

def mounts_of(kind: str) -> list[tuple[Path, list[str]]]:
    """Mount points of cgroup file systems of this kind, with their options."""
    rows = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return [(Path(row[1]), row[3].split(",")) for row in rows if row[2] == kind]


def own_group(version: int) -> str:
    """The path of this process's group within the hierarchy that has the controller cpu."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if (number == "0" and not controllers) if version == 2 else "cpu" in controllers.split(","):
            return path
    return "/"


def parents_of(root: Path, own: str) -> list[Path]:
    """The groups from the root of the hierarchy down to the parent of this process's group: in
    version 2 a group with processes of its own can give no controller to groups below it."""
    out = [root]
    for part in Path(own.lstrip("/")).parts[:-1]:
        out.append(out[-1] / part)
    return [p for p in out if p.is_dir()]


def usable_parent() -> tuple[int, Path]:
    """Version of cgroups, and a group below which groups with a quota can be made."""
    tried: list[str] = []
    places = [(1, root) for root, options in mounts_of("cgroup") if "cpu" in options]
    places += [(2, root) for root, _ in mounts_of("cgroup2")]
    for version, root in places:
        for parent in parents_of(root, own_group(version)):
            try:
                with make_group(version, parent, f"{NAME}-{os.getpid()}-try") as group:
                    set_quota(version, group, 1.0)
                return version, parent
            except OSError as e:
                tried.append(f"{parent}: {e.strerror or e}")
    raise Unavailable("; ".join(tried) or "no cgroup file system with the controller cpu")


# --- groups ---

@contextlib.contextmanager
def make_group(version: int, parent: Path, name: str):
    group = parent / name
    group.mkdir()
    try:
        if version == 2 and not (group / "cpu.max").exists():
            (parent / "cgroup.subtree_control").write_text("+cpu")
        yield group
    finally:
        remove_group(group)


def remove_group(group: Path) -> None:
    end = time.monotonic() + REMOVE_SECONDS
    while True:
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def set_quota(version: int, group: Path, share: float) -> None:
    quota_us = max(round(share * PERIOD_US), QUOTA_MIN_US)
    if version == 2:
        (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))


def remove_left_over(parent: Path) -> None:
    """Remove the groups of runs whose process does not live any more."""
    for group in parent.glob(f"{NAME}-*-*"):
        pid = group.name.split("-")[2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            with contextlib.suppress(OSError):
                group.rmdir()


class CpuShares:
    """A group with a quota for each of n processes, until close(). The processes end before."""

    def __init__(self, n: int, share: float) -> None:
        """share: cores of each. Raises Unavailable."""
        self.version, parent = usable_parent()
        remove_left_over(parent)
        self.stack = contextlib.ExitStack()
        try:
            self.groups = [self.stack.enter_context(
                make_group(self.version, parent, f"{NAME}-{os.getpid()}-{i}")) for i in range(n)]
            for group in self.groups:
                set_quota(self.version, group, share)
        except OSError as e:
            self.stack.close()
            raise Unavailable(f"{parent}: {e.strerror or e}") from None

    def add(self, i: int, pid: int) -> None:
        """Put the process, with all its threads, into group i."""
        (self.groups[i] / "cgroup.procs").write_text(str(pid))

    def command(self, i: int, command: list[str]) -> list[str]:
        """The command, run in group i from its beginning."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.groups[i] / "cgroup.procs"),
                *map(str, command)]

    def waited(self) -> list[float]:
        """Of each group, the share of its periods in which it used up its quota and had to wait."""
        out = []
        for group in self.groups:
            rows = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
            out.append(int(rows["nr_throttled"]) / max(int(rows["nr_periods"]), 1))
        return out

    def close(self) -> None:
        self.stack.close()


def default_share(n: int) -> float:
    """Cores of each of n instances, so that a fifth of the machine is left for what is around."""
    return 0.8 * (os.cpu_count() or 1) / n


def chosen_share(asked: float | None, n: int) -> tuple[float, str]:
    """The cores of each of n instances, 0 for no limit, and words about a limit that cannot be had.
    asked: None for the default."""
    share = default_share(n) if asked is None else asked
    if share <= 0:
        return 0.0, ""
    try:
        usable_parent()
        return share, ""
    except Unavailable as e:
        return 0.0, ("no share of processor time for each instance, all share the cores: no cgroup "
                     f"with a quota can be made ({e}). Run as root, or in a delegated group.")
