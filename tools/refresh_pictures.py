"""Draw the README's pictures anew, from real loads.

    python tools/refresh_pictures.py [FOLDER]

Writes SVG files to `docs/pictures`, or to FOLDER.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from casestudy import course
from casestudy.gallery import Wish, draw
from casestudy.plots import Picture

DRAWERS: dict[str, Callable[[], Picture]] = {
    "the-cliff": partial(draw, "text", Wish()),
    "the-buffer": partial(draw, "map", Wish(memory_limit=1843)),
    "the-bytes": partial(draw, "bytes", Wish(tensor="scale")),
    "the-strip": partial(draw, "strip", Wish()),
}


def main(folder: Path | None) -> None:
    for path in course.PICTURES:
        target = folder / path.name if folder else path
        target.parent.mkdir(parents=True, exist_ok=True)
        DRAWERS[path.stem]().save(target)
        print(f"wrote {target}", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
