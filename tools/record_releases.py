"""Run the probe of the tests under every release of the streamer and record what it found.

    python tools/record_releases.py

Writes `data/recorded/releases.json` with the date and torch's version, for notebooks that must
run without a network; `tests/test_releases.py` holds the record to what the releases do today.
"""

from __future__ import annotations

import datetime
import json
import sys

import torch

from casestudy import course
from casestudy.releases import RELEASES, run_under


def main() -> None:
    found = {}
    for release in RELEASES:
        done = run_under(release, "-m", "tests.releases_probe")
        if done.returncode:
            sys.exit(f"nothing recorded, the probe failed under {release}: {done.stderr}")
        found[release] = json.loads(done.stdout)
    record = {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "releases": found,
    }
    course.RELEASES_RECORD.parent.mkdir(exist_ok=True)
    course.RELEASES_RECORD.write_text(json.dumps(record, indent=2) + "\n")
    print(f"wrote {course.RELEASES_RECORD}; now run make checksums")


if __name__ == "__main__":
    main()
