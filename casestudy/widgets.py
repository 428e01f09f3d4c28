"""Pictures that can be moved. They hold no logic: each calls a loader and a plot.

Every widget works by keyboard, says in words what it shows, and falls back to a static picture
where no kernel runs.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from anywidget import AnyWidget
from ipywidgets import HTML, Button, VBox
from traitlets import Int, List, Unicode

from casestudy import course, plots
from casestudy.consumers import Parameters
from casestudy.errors import CaseStudyError
from casestudy.loaders import LOADERS
from casestudy.observe import Observation, Subject, observe
from casestudy.reproduce import Outcome, outcome
from casestudy.trace import Trace

HERE = Path(__file__).parent


class Control(AnyWidget):
    """One of several options, chosen by a native form element: "slider", "player" or "list".

    A player is a slider with buttons to step, go back and play, an option a second.
    """

    _esm = HERE / "controls.js"
    _css = HERE / "controls.css"
    kind = Unicode("slider").tag(sync=True)
    label = Unicode().tag(sync=True)
    options = List(Unicode()).tag(sync=True)
    index = Int(0).tag(sync=True)


class Shown(VBox):
    """A box of controls and pictures that has a static picture to fall back on."""

    @property
    def static(self) -> plots.Picture:
        """What stands in where widgets do not run."""
        raise NotImplementedError

    def _repr_mimebundle_(self, **options: object) -> dict[str, object]:
        """The widget where a front end can show it, the static picture everywhere else."""
        return {**self.static._repr_mimebundle_(), **_view(super()._repr_mimebundle_(**options))}


class StreamPlayer(Shown):
    """Play, step and go back over a recorded trace; the map and the byte view follow.

    Raises `CaseStudyError` if nothing has been recorded yet.
    """

    def __init__(self, trace: Trace, title: str = "Who lies where, and for how long") -> None:
        if not trace.steps:
            raise CaseStudyError("the trace is empty; consume the recorded iterator first.")
        names = [step.name for step in trace.steps]
        last = len(names) - 1
        self.trace = trace
        self.map = plots.stream_map(trace, title)
        self.step = Control(
            kind="player",
            label="Step",
            options=[f"{number} of {last}" for number in range(len(names))],
        )
        self.watched = Control(kind="list", label="Bytes of", options=names)
        self.moment, self.map_shown, self.bytes_shown = HTML(), HTML(), HTML()
        for control in (self.step, self.watched):
            control.observe(lambda _: self._show(), "index")
        self._show()
        pictures = [self.moment, self.map_shown, self.watched, self.bytes_shown]
        super().__init__([self.step, *pictures])

    @property
    def static(self) -> plots.Picture:
        """The map of the whole trace."""
        return plots.stream_map(self.trace, f"{self.map.title} (in JupyterLab: a player)")

    def _show(self) -> None:
        now, watched = self.step.index, self.trace.steps[self.watched.index]
        self.moment.value = _said(self.map.moment(now))
        self.map_shown.value = self.map.html_at(now)
        self.bytes_shown.value = plots.byte_grid(watched, now)


class _Loads(Shown):
    """Loads for real whenever its control is moved; shows map, damage and, if asked, the text.

    `subject`: from `observe.subject(path)`.
    """

    def __init__(self, subject: Subject, control: Control) -> None:
        self.subject = subject
        self.control = control
        self.verdict, self.map_shown, self.damage_shown = HTML(), HTML(), HTML()
        self.write, self.text_shown = Button(description="Let the model write"), HTML()
        self.write.on_click(lambda _: self._write())
        self._show(self._observe())
        control.observe(lambda _: self._load(), "index")
        writing = [self.write, self.text_shown] if subject.directory else []
        super().__init__([control, self.verdict, *writing, self.damage_shown, self.map_shown])

    @property
    def static(self) -> plots.Picture:
        """The damage of the load that is shown."""
        title = f"{self.observation.summary} (in JupyterLab: to be moved)"
        return plots.damage(self.observation.telling, title=title)

    def _observe(self) -> Observation:
        raise NotImplementedError

    def _load(self) -> None:
        self.verdict.value = _said("Loading.")
        try:
            self._show(self._observe())
        except (CaseStudyError, ValueError) as error:  # the file may be another one by now
            self.verdict.value = _said(str(error))
            for picture in (self.damage_shown, self.map_shown, self.text_shown):
                picture.value = ""

    def _show(self, observation: Observation) -> None:
        self.observation = observation
        self.verdict.value = _said(observation.verdict)
        self.damage_shown.value = plots.damage(observation.telling).html()
        self.map_shown.value = plots.stream_map(observation.trace).html()
        self.text_shown.value = ""

    def _write(self) -> None:
        self.text_shown.value = _said("The model writes; this takes some seconds.")
        try:
            self.text_shown.value = self._told().html()
        except CaseStudyError as error:
            self.text_shown.value = _said(str(error))

    def _told(self) -> plots.Picture:
        prompt = course.long_prompt()
        outcomes = {
            "loaded by safetensors": self._outcome(prompt, self.subject.reference),
            self.observation.loader: self._outcome(prompt, self.observation.parameters),
        }
        told = plots.Continuations(outcomes, len(prompt), course.index_topk())
        return plots.text_comparison(told)

    def _outcome(self, prompt: str, parameters: Parameters) -> Outcome:
        directory, reference = self.subject.directory, self.subject.reference
        assert directory is not None
        return outcome(directory, parameters, reference, prompt, course.LONG_CONTINUATION)


class MemoryLimitSlider(_Loads):
    """Moves the streamer's memory limit; each move loads the files again through `loader`."""

    def __init__(self, subject: Subject, loader: str = "borrowed") -> None:
        self.loader = loader
        self.limits = subject.limits()
        options = [subject.spell(limit) for limit in self.limits]
        super().__init__(subject, Control(label="Buffer", options=options))

    def _observe(self) -> Observation:
        return observe(self.subject, self.loader, self.limits[self.control.index])


class LoaderSwitch(_Loads):
    """Switches between the loaders at one memory limit; each switch loads the files again."""

    def __init__(self, subject: Subject, memory_limit: int | None = 0) -> None:
        self.memory_limit = memory_limit
        super().__init__(subject, Control(kind="list", label="Loader", options=[*LOADERS]))

    def _observe(self) -> Observation:
        loader = self.control.options[self.control.index]
        return observe(self.subject, loader, self.memory_limit)


def _said(sentence: str) -> str:
    """A sentence that a screen reader speaks when it changes."""
    return f'<p role="status" style="font-size: 1.1em">{escape(sentence)}</p>'


def _view(bundle: dict[str, object] | None) -> dict[str, object]:
    kind = "application/vnd.jupyter.widget-view+json"
    return {kind: bundle[kind]} if bundle and kind in bundle else {}
