"""Run the fixed loader on this machine's GPU and record what happened.

    python tools/record_gpu.py

Writes `data/recorded/gpu.json`: device, driver, versions, date and figures. Refuses without a
GPU, and when anything that was loaded is wrong.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from dataclasses import asdict

import torch

from casestudy import course
from casestudy.errors import CaseStudyError
from casestudy.gpu import run_on_device
from casestudy.loaders import streamer_version


def main() -> None:
    try:
        run_on_device("cuda")  # the first pass pays for start-up; the second is recorded
        run = run_on_device("cuda")
    except CaseStudyError as error:
        sys.exit(f"nothing recorded: {error}")
    if run.wrong or not run.text_equal:
        sys.exit(f"nothing recorded: the load went wrong, {run}")
    record = {
        "device_name": torch.cuda.get_device_name(),
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "streamer": streamer_version(),
        "date": datetime.date.today().isoformat(),
        **asdict(run),
    }
    course.GPU_RECORD.parent.mkdir(exist_ok=True)
    course.GPU_RECORD.write_text(json.dumps(record, indent=2) + "\n")
    print(f"wrote {course.GPU_RECORD}; now run make checksums")


def driver_version() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, check=True, capture_output=True, text=True).stdout.split()[0]


if __name__ == "__main__":
    main()
