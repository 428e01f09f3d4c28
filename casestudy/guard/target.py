"""What the `check` command is pointed at: PACKAGE.MODULE:NAME, and how it is called."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from casestudy.checkpoint import shard_paths
from casestudy.errors import CaseStudyError

QUIET = {"use_tqdm_on_load": False}  # vLLM's and SGLang's iterators ask for it


def resolve(spec: str) -> Callable[..., Any]:
    """The function that `spec`, PACKAGE.MODULE:NAME, stands for; also one in the current folder.

    Raises `CaseStudyError` if there is none.
    """
    module_name, colon, name = spec.partition(":")
    if not (module_name and colon and name):
        raise CaseStudyError(
            f"{spec!r} is not PACKAGE.MODULE:NAME, such as my_package.loader:load."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError:
        raise CaseStudyError(f"there is no {name} in {module_name}.") from None
    except (Exception, SystemExit) as error:  # whatever a stranger's module does when it is read
        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        raise CaseStudyError(f"{module_name} cannot be imported: {kind}{error}.") from error
    if not callable(found):
        raise CaseStudyError(f"{spec} is a {type(found).__name__}, not a function.")
    function: Callable[..., Any] = found
    return function


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files themselves; of a folder, the shards of its checkpoint."""
    return [file for path in paths for file in (shard_paths(path) if path.is_dir() else [path])]


def iterator_factory(spec: str, files: Sequence[Path]) -> Callable[[], Iterable[Sequence[Any]]]:
    """A function without arguments that makes the iterator over `files`."""
    function = resolve(spec)
    parameters = _parameters(function)
    options = {name: value for name, value in QUIET.items() if name in parameters}
    _check_call(spec, parameters, 1, options)
    return lambda: function([str(file) for file in files], **options)


def consumer(spec: str, files: Sequence[Path]) -> Callable[[Any], Any]:
    """A function of an iterator alone; `files` go along if the function asks for a second thing."""
    function = resolve(spec)
    parameters = _parameters(function)
    also = [list(files)] if len(_required(parameters, {})) == 2 else []
    _check_call(spec, parameters, 1 + len(also), {})
    return lambda weights: function(weights, *also)


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except ValueError:  # written in C, and it does not say
        return {}


def _required(parameters: dict[str, inspect.Parameter], given: dict[str, Any]) -> list[str]:
    return [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in given
    ]


def _check_call(
    spec: str, parameters: dict[str, inspect.Parameter], positional: int, given: dict[str, Any]
) -> None:
    surplus = _required(parameters, given)[positional:]
    if surplus:
        raise CaseStudyError(
            f"{spec} also needs {', '.join(surplus)}; write a function that gives it that and "
            f"takes nothing but what it reads, and name that one."
        )
