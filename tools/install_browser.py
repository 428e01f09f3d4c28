"""Put in place what the tests in `tests/browser` need: Debian's chromium, and axe-core from npm.

    python tools/install_browser.py

Both come through the machine's own package managers; what is there already is left as it is.
Where that is not possible, one sentence says what to install by hand.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

AXE_VERSION = "4.14.1"
AXE = Path(sys.prefix) / f"axe-core-{AXE_VERSION}" / "axe.min.js"
WARNINGS = ("W:", "WARNING", "npm warn", "npm notice")
BY_HAND = "Install the browser tests' programs by hand: sudo apt-get install chromium npm"


def main() -> None:
    programs = [] if shutil.which("chromium") else ["chromium"]
    if not AXE.is_file() and not shutil.which("npm"):
        programs.append("npm")
    if programs:
        install(programs)
    if not AXE.is_file():
        fetch_axe()
    print(shutil.which("chromium"), AXE, sep="\n", file=sys.stderr)


def install(programs: list[str]) -> None:
    """Debian's packages of these names; on a person's machine only if sudo asks for nothing."""
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    apt = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
    run([*apt, "update"])
    run([*apt, "install", "-y", "--no-install-recommends", *programs])


def fetch_axe() -> None:
    """One file out of the npm package; nothing of it is run here."""
    with tempfile.TemporaryDirectory() as directory:
        pack = ["npm", "pack", f"axe-core@{AXE_VERSION}", "--pack-destination", directory]
        run([*pack, "--ignore-scripts", "--fetch-retries=0", "--fetch-timeout=60000"])
        with tarfile.open(next(Path(directory).glob("*.tgz"))) as package:
            member = package.extractfile(f"package/{AXE.name}")
            assert member, "a file, not a folder"
            script = member.read()
    AXE.parent.mkdir(exist_ok=True)
    AXE.write_bytes(script)


def run(command: list[str]) -> None:
    """Runs `command`; if it fails, one sentence instead of a traceback, and exit status 1."""
    print(*command, file=sys.stderr)
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be run ({error.strerror}). {BY_HAND}")
    if done.returncode:
        sys.exit(f"This failed ({reason(done.stderr)}). {BY_HAND}")


def reason(said: str) -> str:
    """The first line that is not just a warning; the last one is often the place of a log."""
    lines = [line for line in said.splitlines() if not line.startswith(WARNINGS)]
    return lines[0] if lines else "no reason given"


if __name__ == "__main__":
    main()
