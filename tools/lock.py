"""Write `requirements.lock` anew from `pyproject.toml`.

    python tools/lock.py

Resolves in a throw-away environment; the pins in PINNED are decided by hand, all others follow.
The file holds pins only: no index, no hash, no local build tag.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
PINNED = {"torch": "2.13.0", "runai-model-streamer": "0.15.8"}  # 0.15.8: the incident's release


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        venv.create(directory, with_pip=True)
        pip = [str(Path(directory) / "bin" / "python"), "-m", "pip"]
        pins = [f"{name}=={version}" for name, version in PINNED.items()]
        subprocess.run([*pip, "install", *pins, *requirements()], check=True)
        frozen = subprocess.check_output([*pip, "freeze"], text=True)
    LOCK.write_text("".join(f"{pin}\n" for pin in pins_of(frozen)))
    print(f"wrote {LOCK}", file=sys.stderr)


def requirements() -> list[str]:
    """What the package, its tests and its checks need, as `pyproject.toml` says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["dev"]]


def pins_of(frozen: str) -> list[str]:
    """`name==version` lines without local build tags (`+cpu`)."""
    return sorted(line.split("+")[0] for line in frozen.splitlines() if "==" in line)


if __name__ == "__main__":
    main()
