"""Memory this process may use on the host: /proc/meminfo and every cgroup limit above it, v1 or v2.

Without torch, because planning asks too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from kvpipe.backends.base import MemoryInfo

# A v1 cgroup without a limit says 2^63 less a page; nothing real is larger than this.
_NO_LIMIT = 1 << 60


def host_memory(root: Path = Path("/")) -> MemoryInfo:
    """total: of the machine or the tightest cgroup; free: what can be taken below every limit.

    root: where /proc and /sys lie (tests put files elsewhere).
    """
    total, free, source = _machine(root)
    for limit, used, path in _cgroups(root):
        if limit < total:
            total, source = limit, f"cgroup {path}"
        free = min(free, max(limit - used, 0))
    return MemoryInfo(total_bytes=total, free_bytes=min(free, total), source=source)


def _machine(root: Path) -> tuple[int, int, str]:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:  # macOS and others: pages that exist, and pages that are free if it tells
        page, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
        free = os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in os.sysconf_names else pages
        return page * pages, page * free, "sysconf"
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if ":" in line}
    return kib["MemTotal"] * 1024, kib["MemAvailable"] * 1024, "/proc/meminfo"


def _cgroups(root: Path) -> Iterator[tuple[int, int, str]]:
    """(limit, used without reclaimable file cache, name) of each limited cgroup above us."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = root / "sys/fs/cgroup"
            names = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container the path may be the host's, and the mount shows only our own group.
        folder = base / path.lstrip("/")
        for each in {folder, *folder.parents} if folder.is_dir() else {base}:
            if each == base or base in each.parents:
                yield from _limit(each, *names, f"/{each.relative_to(base)}".removesuffix("/."))


def _limit(
    folder: Path, limit_file: str, used_file: str, cache_key: str, name: str
) -> Iterator[tuple[int, int, str]]:
    try:
        limit = (folder / limit_file).read_text().strip()
        used = int((folder / used_file).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return
    if limit != "max" and int(limit) < _NO_LIMIT:
        yield int(limit), used - int(stat.get(cache_key, 0)), name or "/"
