"""The `casestudy` command. It parses, calls and prints; the work is done elsewhere.

Exit status: 0 as it should be, 1 not, 2 misuse.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from rich.text import Text

from casestudy import course
from casestudy.errors import CaseStudyError

if TYPE_CHECKING:
    from casestudy.guard import Report
    from casestudy.reproduce import Reproduction

NOT, MISUSE = 1, 2

app = typer.Typer(
    help="See, understand and fix a loader that lends views of a buffer it reuses.",
    epilog="Exit status: 0 as it should be, 1 not, 2 misuse.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
progress_console = Console(stderr=True)

check = typer.Typer(
    help="Check a loader of your own: does this iterator lend, does this consumer keep?",
    epilog="Exit status: 0 owned or keeps nothing, 1 lends or keeps, 2 misuse.",
    no_args_is_help=True,
)
app.add_typer(check, name="check")

PictureName = Literal["map", "storage", "bytes", "strip", "damage", "text"]
PICTURES = (
    "map: who lies where, and for how long; storage: where kept tensors lie, before and after "
    "the fix; bytes: the same bytes at three moments; strip: a file, its pairs, its requests; "
    "damage: which parameters are wrong; text: what the models write."
)
LoaderName = Literal["borrowed", "cloned"]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command()
def run(
    out: Annotated[Path, typer.Option(help="Where the HTML pages go.")] = Path("build"),
) -> None:
    """Execute every notebook of the course, write them as HTML, and say how each went."""
    from casestudy.notebooks import (
        cell_count,
        course_notebooks,
        execute,
        prepare_output_folder,
        write_html,
        write_index,
    )

    paths = course_notebooks()
    prepare_output_folder(out)
    table = Table("notebook", "seconds", "verdict")
    runs = []
    with _progress() as progress:
        for path in paths:
            task = progress.add_task(path.stem, total=cell_count(path))
            done = execute(path, on_cell=partial(progress.advance, task))
            write_html(done, out)
            table.add_row(path.stem, f"{done.seconds:.0f}", Text(done.verdict))
            runs.append(done)
    index = write_index(runs, out)
    console.print(table)
    failed = [each.path.stem for each in runs if each.verdict != "as stored"]
    if failed:
        console.print(
            f"Not as it should be: {', '.join(failed)}. The pages are in {out}/.", markup=False
        )
        raise typer.Exit(NOT)
    console.print(
        f"All {len(runs)} notebooks ran and printed what they should. Open {index} to read them.",
        markup=False,
    )


@app.command()
def reproduce(
    memory_limit: Annotated[
        int, typer.Option(min=-1, help="Bytes of the streamer's buffer; 0 smallest, -1 no limit.")
    ] = 0,
    checkpoint: Annotated[
        Path, typer.Option(help="A checkpoint folder laid out like the course's.")
    ] = course.CHECKPOINT,
    device: Annotated[str, typer.Option(help="Where the model lives: cpu or cuda.")] = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Load the tiny checkpoint wrongly and rightly, and let both continue the same prompt."""
    from casestudy.reproduce import diagnosis
    from casestudy.reproduce import reproduce as run_reproduction

    with _progress() as progress:
        task = progress.add_task("loading and writing three times", total=3)
        result = run_reproduction(
            checkpoint,
            memory_limit=memory_limit,
            device=device,
            on_outcome=partial(progress.advance, task),
        )
    if as_json:
        print(json.dumps(_plain(result), indent=2))
    else:
        _show_reproduction(result)
    if not result.happened:
        progress_console.print(diagnosis(result))
        raise typer.Exit(NOT)


@app.command()
def show(
    picture: Annotated[PictureName, typer.Argument(help=PICTURES)],
    target: Annotated[
        Path | None,
        typer.Argument(help="A .safetensors file or a checkpoint folder; else the course's own."),
    ] = None,
    loader: Annotated[LoaderName, typer.Option(help="Who yields.")] = "borrowed",
    memory_limit: Annotated[
        int, typer.Option(min=-1, help="Bytes of the streamer's buffer; 0 smallest, -1 no limit.")
    ] = 0,
    tensor: Annotated[
        str | None, typer.Option(help="Whose bytes to show; else the first that went stale.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write an .svg or .png file instead of a table.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over the file.")] = False,
) -> None:
    """Load, and show what the bytes did: as a table, or as a picture file.

    Of a checkpoint folder with indexer.wk pairs the incident's consumer fills the parameters, and
    keeps nothing but those pairs; of any other folder, and of a file, every tensor is kept.
    """
    from casestudy.gallery import Wish, draw
    from casestudy.plots.picture import check_ending

    if out is not None:
        check_ending(out)
        _may_write(out, force)
    with progress_console.status("loading and drawing"):
        drawn = draw(picture, Wish(target, loader, memory_limit, tensor))
        if out is not None:
            drawn.save(out)
    if out is None:
        console.print(Text(drawn.text(console.width)), soft_wrap=True)
    else:
        console.print(Text(f"Wrote {out}: {drawn.title}"), soft_wrap=True)


FilesArgument = Annotated[
    list[Path], typer.Argument(help="Files to load, such as .safetensors; of a folder its shards.")
]


@check.command()
def iterator(
    factory: Annotated[
        str,
        typer.Argument(
            metavar="PACKAGE.MODULE:FACTORY",
            help="A function that takes a list of files and returns an iterator of (name, tensor).",
        ),
    ],
    files: FilesArgument,
    memory_limit: Annotated[
        int | None,
        typer.Option(
            min=-1,
            help="Bytes of the streamer's buffer in the first run; 0 smallest, -1 no limit. The "
            "second run always forces the smallest.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Does this iterator lend? Keeps all that it yields, and looks for bytes that changed."""
    from casestudy.guard import check_iterator, target
    from casestudy.loaders import memory_limit_set, plain

    paths = target.files_of(files)
    make = target.iterator_factory(factory, paths)
    are_safetensors = all(path.suffix == ".safetensors" for path in paths)
    reference = partial(plain, paths) if are_safetensors else None
    with _told(factory), memory_limit_set(memory_limit):
        report = check_iterator(make, reference)
    _show_report(report, as_json)


@check.command()
def consumer(
    function: Annotated[
        str,
        typer.Argument(
            metavar="PACKAGE.MODULE:FUNCTION",
            help="A function that takes an iterator of (name, tensor), and perhaps the files.",
        ),
    ],
    files: FilesArgument,
    as_json: JsonOption = False,
) -> None:
    """Does this consumer keep what it is lent? Feeds it the files' tensors on loan."""
    from casestudy.guard import check_consumer, target
    from casestudy.loaders import plain

    paths = target.files_of(files)
    consume = target.consumer(function, paths)
    tensors = dict(plain(paths))
    with _told(function):
        report = check_consumer(consume, tensors)
    _show_report(report, as_json)


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Check whether this machine is ready for the course."""
    from casestudy.doctor import examine

    checks = list(examine())
    if as_json:
        print(json.dumps([check._asdict() for check in checks], indent=2))
    else:
        for check in checks:
            mark = Text("ok  ", "green") if check.ok else Text("FAIL", "bold red")
            remedy = f"  → {check.remedy}" if check.remedy else ""
            console.print(mark, Text(f" {check.name}: {check.found}{remedy}"), soft_wrap=True)
    if not all(check.ok for check in checks):
        raise typer.Exit(NOT)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(context: typer.Context) -> None:
    """Open the course in JupyterLab; other options go to JupyterLab (try --no-browser)."""
    from casestudy.notebooks import course_notebooks

    first = course_notebooks()[0].relative_to(course.ROOT)
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={course.ROOT}"]
    if os.geteuid() == 0:  # usual in a container
        command.append("--allow-root")
    command.append(f"--LabApp.default_url=/lab/tree/{first}")
    raise typer.Exit(subprocess.run([*command, *context.args]).returncode)


def main() -> None:
    """The console script: a person's mistake is told in a sentence, without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows only ASCII
    try:
        app()
    except CaseStudyError as error:
        progress_console.print(Text(str(error)), soft_wrap=True)
        sys.exit(MISUSE)


def _may_write(out: Path, force: bool) -> None:
    """Asks before a file is written over; without anybody to ask, refuses."""
    if not out.exists() or force:
        return
    if not sys.stdin.isatty():
        raise CaseStudyError(f"{out} exists; name another file, or add --force.")
    typer.confirm(f"{out} exists. Write over it?", abort=True)


@contextmanager
def _told(spec: str) -> Iterator[None]:
    """Runs somebody's own code: whatever it raises is told with its name."""
    try:
        with progress_console.status(f"running {spec}"):
            yield
    except CaseStudyError:
        raise
    except (Exception, SystemExit) as error:
        raise CaseStudyError(f"{spec} raised {type(error).__name__}: {error}") from error


def _show_report(report: Report, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        console.print(Text(str(report)), soft_wrap=True)
    if not report.ok:
        raise typer.Exit(NOT)


def _progress() -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
    return Progress(*columns, MofNCompleteColumn(), console=progress_console, transient=True)


def _plain(result: Reproduction) -> dict[str, Any]:
    plain = asdict(result)
    for name in ("reference", "borrowed", "cloned"):
        del plain[name]["losses"]
    return plain


def _show_reproduction(result: Reproduction) -> None:
    console.print(
        f"streamer {result.streamer}, memory limit {result.memory_limit}, on {result.device}"
    )
    console.print(Panel(Text(result.prompt), title="prompt"))
    table = Table("", "reference", "borrowed", "cloned", show_lines=True)
    outcomes = (result.reference, result.borrowed, result.cloned)
    table.add_row("text", *(Text(each.text) for each in outcomes))
    table.add_row("loss, nats a character", *(f"{each.loss:.2g}" for each in outcomes))
    table.add_row("wrong parameters", *(str(len(each.wrong)) for each in outcomes))
    console.print(table)
    if result.borrowed.wrong:
        console.print("Wrong through borrowed, and nothing raised:")
    for name in result.borrowed.wrong:
        console.print(Text(f"  {name}"), soft_wrap=True)


if __name__ == "__main__":
    main()
