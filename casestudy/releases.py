"""Other streamer releases, each in a folder of its own, and programs run under them.

python -m casestudy.releases        installs the compared releases into the cache folder
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from casestudy.errors import CaseStudyError

PACKAGE = "runai-model-streamer"
RELEASES = ("0.15.8", "0.16.1", "0.17.1")  # the incident's, the last that lends, the newest


def cache_folder() -> Path:
    """Where releases are kept: `casestudy/releases` in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache).resolve() / "casestudy" / "releases"


def install(release: str) -> Path:
    """The folder of one release, which is fetched without dependencies if it is not there yet.

    Raises `CaseStudyError` if it cannot be had.
    """
    folder = cache_folder() / release
    if (folder / "runai_model_streamer").is_dir():
        return folder
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as directory:
            fresh = Path(directory) / release
            done = subprocess.run(
                [*pip, "--target", fresh, f"{PACKAGE}=={release}"], capture_output=True, text=True
            )
            if done.returncode:
                raise CaseStudyError(
                    f"{PACKAGE} {release} cannot be installed; check its number and the network: "
                    f"{done.stderr.strip().splitlines()[-1]}"
                )
            fresh.rename(folder)
    except OSError as error:
        raise CaseStudyError(
            f"{folder.parent} cannot be written ({error.strerror}); "
            f"set XDG_CACHE_HOME to a folder that can."
        ) from None
    return folder


def run_under(release: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs this Python with `arguments` in a new process in which `release` is what is imported."""
    environment = {**os.environ, "PYTHONPATH": str(install(release))}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True
    )


if __name__ == "__main__":
    try:
        for each in RELEASES:
            print(install(each), file=sys.stderr)
    except CaseStudyError as error:
        sys.exit(str(error))
