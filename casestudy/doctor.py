"""Is this machine ready for the course? One check a line, each failure with its remedy."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from casestudy import course, loaders

SUPPORTED = ((0, 15, 8), (0, 18))  # streamer releases: from, up to but without
FREE_DISK = 1 << 30  # bytes
SHARED_MEMORY = 64 << 20  # bytes
CHECKSUMS = "SHA256SUMS"


class Check(NamedTuple):
    """One line of the examination. `remedy` is empty where all is well."""

    name: str
    ok: bool
    found: str
    remedy: str = ""


def examine() -> Iterator[Check]:
    """Runs every check, in order; a check that breaks is a failed check, never an exception."""
    for check in CHECKS:
        try:
            yield check()
        except Exception as error:
            name = check.__name__.replace("_", " ")
            yield Check(name, False, f"{type(error).__name__}: {error}", "reinstall: make run")


def operating_system() -> Check:
    found = f"{platform.system()} {platform.machine()}"
    ok = platform.system() == "Linux"
    return _check("operating system", ok, found, "use Linux: the streamer has no other builds")


def python() -> Check:
    ok = sys.version_info >= (3, 11)
    return _check("Python", ok, platform.python_version(), "install Python 3.11 or newer")


def torch_and_cuda() -> Check:
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    return Check("torch", True, f"{torch.__version__}, {device}")


def streamer() -> Check:
    release = loaders.streamer_version()
    lends = "lends by default" if loaders.lends_by_default() else "lends only if asked to"
    first, end = SUPPORTED
    number = tuple(int(part) for part in release.split(".")[:3])
    ok = first <= number < end
    return _check(
        "streamer", ok, f"{release}, {lends}", "pip install -r requirements.lock brings 0.15.8"
    )


def memory_limit() -> Check:
    value = os.environ.get(loaders.MEMORY_LIMIT_VARIABLE)
    return _check(
        "memory limit",
        value is None,
        f"{loaders.MEMORY_LIMIT_VARIABLE} is {'not set' if value is None else value}",
        f"unset {loaders.MEMORY_LIMIT_VARIABLE}",
    )


def data() -> Check:
    sums = course.DATA / CHECKSUMS
    if not sums.is_file():
        return Check("data", False, f"{sums} is missing", "work in a clone of the repository")
    listed = [line.split(maxsplit=1) for line in sums.read_text().splitlines()]
    damaged = [name for digest, name in listed if _sha256(course.DATA / name) != digest]
    found = f"{len(listed)} files as they should be"
    if damaged:
        found = f"{damaged[0]} is missing or changed"
    return _check("data", not damaged, found, "git checkout -- data")


def free_disk() -> Check:
    folder = Path.cwd()
    free = shutil.disk_usage(folder).free
    return _check(
        "free disk", free >= FREE_DISK, f"{free >> 20} MiB in {folder}", "free 1 GiB there"
    )


def writable_folder() -> Check:
    try:
        with tempfile.TemporaryDirectory() as folder:
            return Check("temporary files", True, str(Path(folder).parent))
    except OSError as error:
        return Check("temporary files", False, str(error), "set TMPDIR to a writable folder")


def shared_memory() -> Check:
    folder = Path("/dev/shm")
    free = 0
    with suppress(OSError):
        free = shutil.disk_usage(folder).free
    return _check(
        "shared memory",
        free >= SHARED_MEMORY,
        f"{free >> 20} MiB in {folder}",
        "give the container more: docker run --shm-size=1g",
    )


CHECKS: tuple[Callable[[], Check], ...] = (
    operating_system,
    python,
    torch_and_cuda,
    streamer,
    memory_limit,
    data,
    free_disk,
    writable_folder,
    shared_memory,
)


def _check(name: str, ok: bool, found: str, remedy: str) -> Check:
    return Check(name, ok, found, "" if ok else remedy)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
