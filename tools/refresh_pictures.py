"""Draw the README's pictures anew, from real loads.

    python tools/refresh_pictures.py [FOLDER]

Writes SVG files to `docs/pictures`, or to FOLDER.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from casestudy import course
from casestudy.loaders import borrowed
from casestudy.plots import Picture, stream_map, text_comparison
from casestudy.reproduce import reproduce
from casestudy.trace import record

PICTURES = course.ROOT / "docs" / "pictures"


def the_cliff() -> Picture:
    """The incident: texts and losses of a right, a wrong and a fixed load."""
    result = reproduce()
    outcomes = {
        "loaded by safetensors": result.reference,
        "borrowed: the streamer's views, kept": result.borrowed,
        "cloned: the one-line fix": result.cloned,
    }
    return text_comparison(
        {name: each.text for name, each in outcomes.items()},
        {name: each.losses for name, each in outcomes.items()},
        len(result.prompt),
        course.index_topk(),
        "One checkpoint, one prompt, three loads",
    )


def the_buffer() -> Picture:
    """Six tensors kept while the streamer reuses a buffer of 2.4 tensors."""
    with tempfile.TemporaryDirectory() as folder:
        path = course.write_lesson_file(folder)
        stream, trace = record(borrowed(path, memory_limit=1843))
        kept = dict(stream)
        return stream_map(trace, f"{len(kept)} tensors kept, one buffer of 1843 bytes")


DRAWERS = {"the-cliff.svg": the_cliff, "the-buffer.svg": the_buffer}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in DRAWERS.items():
        draw().save(folder / name)
        print(f"wrote {folder / name}", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES)
