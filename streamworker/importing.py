"""Resolves a path such as ``shop:app`` on the command line to its object, with errors that help.

A path is ``MODULE:ATTRIBUTE``, as in uvicorn. The module is imported with the current folder first on the
import path. The attribute is an :class:`~streamworker.App`. For commands about a stream or a processor it
may also be the stream or the function itself, or its name.

Importing an app connects to nothing, so this module needs no Redis.
"""

import importlib
import os
import sys
import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from streamworker.app import App
from streamworker.declaring.processors import Processor
from streamworker.declaring.specs import ProcessorSpec, TimerSpec
from streamworker.declaring.stream import Stream
from streamworker.declaring.table import Table
from streamworker.declaring.timed.timers import Timer
from streamworker.declaring.windows import Windowed
from streamworker.errors import ConfigurationError, StreamworkerError

Kind = Literal["", "streams", "processors", "tables", "timers", "archived"]
"""What a path names beside an app."""


@dataclass(frozen=True, slots=True)
class Selection:
    """An app, and the processors of it that a path selects."""

    app: App
    processors: tuple[ProcessorSpec, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it has all processors of the app."""
        return len(self.processors) == len(self.app.registry.processors)

    @property
    def groups(self) -> tuple[ProcessorSpec, ...]:
        """Its processors, and of a whole app those that archive its streams."""
        archivers = self.app.registry.archivers.values() if self.is_whole else ()
        return (*self.processors, *(each for each in archivers if each not in self.processors))


def resolve_app(path: str) -> App:
    """Return the app that a path names; an error says which part of the path is wrong, and lists the apps."""
    module, found = _resolve(path)
    if isinstance(found, App):
        return found
    remedy = _apps_hint(module)
    if callable(found) and not isinstance(found, type | Processor):
        remedy += " If it makes the App, call it in the module and name the result."
    raise ConfigurationError(f"{path} is {_describe(found)}, not an App.", remedy=remedy)


def resolve_stream(path: str, stream: str | None = None) -> Stream[Any]:
    """Return the stream that a path names: ``module:orders``, or ``module:app`` and the name of a stream.

    An app that has only one stream needs no name. An error lists the streams.
    """
    module, found = _resolve(path, "streams")
    if isinstance(found, Stream):
        return found
    if not isinstance(found, App):
        raise _wrong(path, found, "not a Stream", module, "streams")
    if stream is None and len(found.registry.streams) == 1:
        return next(iter(found.registry.streams.values()))
    if stream in found.registry.streams:
        return found.registry.streams[stream]
    what = f"App {found.name!r} has no stream {stream!r}." if stream else f"{path} is an App, not a Stream."
    there = [f"{path.partition(':')[0]}:{name}" for name in found.registry.streams]
    raise ConfigurationError(what, remedy=_list("Name one of its streams", there))


def resolve_table(path: str) -> Table[Any, Any]:
    """Return the table that a path names, or of a processor of windows what is open; an error lists them."""
    module, found = _resolve(path, "tables")
    if isinstance(found, Windowed):
        return found.open
    if not isinstance(found, Table):
        raise _wrong(path, found, "not a Table", module, "tables")
    return found


def resolve_processors(path: str, names: list[str] | None = None) -> Selection:
    """Return the processors that a path selects: ``module:price``, or with ``module:app`` those of the app.

    ``module:orders.archive`` is the group that archives the stream ``orders``. ``names`` selects some
    processors of an app. An error lists the processors.
    """
    module, found = _resolve(path, "processors")
    if isinstance(found, ProcessorSpec):
        app = next(app for app in _apps(module).values() if found in app.registry.archivers.values())
        return Selection(app, (found,))
    if isinstance(found, App):
        if (chosen := found.registry.chosen(names)) or found.registry.archivers:
            return Selection(found, tuple(chosen))
        raise ConfigurationError(
            f"App {found.name!r} has no processor.", remedy="Declare one: @app.processor(stream)."
        )
    if isinstance(found, Processor):
        if names and set(names) != {found.name}:
            raise ConfigurationError(
                f"{path} is processor {found.name!r} alone, and --processor names {', '.join(names)}.",
                remedy="Leave --processor out, or give the path of the App.",
            )
        for app in _apps(module).values():
            if app.registry.processors.get(found.name) is found.spec:
                return Selection(app, (found.spec,))
        raise ConfigurationError(
            f"{path} is a processor of an app that is not in that module.",
            remedy="Give the module in which the App is.",
        )
    raise _wrong(path, found, "neither a processor nor an App", module, "processors")


def resolve_archived(path: str) -> tuple[App, list[Stream[Any] | ProcessorSpec]]:
    """Return an app, and what it archives of what a path names: streams, and processors for their acked logs.

    A path names an app, a stream or a processor. An error lists what the app archives.
    """
    module, found = _resolve(path, "archived")
    if isinstance(found, App):
        return found, [*found.registry.archived.values()]
    for app in _apps(module).values():
        for its in app.registry.archived.values():
            if its is found or (isinstance(found, Processor) and its is found.spec):
                return app, [its]
    raise _wrong(path, found, "and has no archive", module, "archived")


def resolve_timer(path: str) -> tuple[App, ProcessorSpec, TimerSpec]:
    """Return the app, the group and the timer that a path names; an error lists the timers."""
    module, found = _resolve(path, "timers")
    for app in _apps(module).values():
        for group in app.registry.groups:
            for timer in group.timers:
                if timer is (found.spec if isinstance(found, Timer) else found):
                    return app, group, timer
    raise _wrong(path, found, "not a timer", module, "timers")


def resolve_processor(path: str, *, or_archiver: bool = False) -> tuple[App, ProcessorSpec]:
    """Return an app and its processor that a path names; an app must have only one. An error lists them."""
    selection = resolve_processors(path)
    if len(selection.processors) == 1:
        found = selection.processors[0]
        if found.is_archiver and not or_archiver:
            raise ConfigurationError(
                f"{path} archives a stream, and is no processor.",
                remedy="Look at it with status and `archive status`; pause, resume and retry take it, too.",
            )
        return selection.app, found
    module = path.partition(":")[0]
    choices = ", ".join(f"{module}:{spec.name}" for spec in selection.processors)
    raise ConfigurationError(
        f"{path} has {len(selection.processors)} processors.", remedy=f"Name one of them: {choices}."
    )


def _wrong(path: str, found: object, what: str, module: ModuleType, kind: Kind) -> ConfigurationError:
    remedy = _list(f"{kind.capitalize()} there", _inside(module, kind))
    return ConfigurationError(f"{path} is {_describe(found)}, {what}.", remedy=remedy)


def _resolve(path: str, kind: Kind = "") -> tuple[ModuleType, object]:
    """Import the module, and return its attribute, or the stream or processor of that name in its apps."""
    module_name, colon, attribute = path.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigurationError(f"{path!r} is not the path of an app.", remedy=_path_hint(path))
    if module_name.endswith(".py") or "/" in module_name or os.sep in module_name:
        dotted = _dotted(module_name)
        raise ConfigurationError(
            f"{module_name} is a file, and a module is needed.", remedy=f"Write {dotted}:{attribute}."
        )
    module = _import(module_name)
    for app in _apps(module).values():
        for more in app.include:
            _import(more)
    with suppress(AttributeError):
        return module, attrgetter(attribute)(module)
    for app in _apps(module).values():
        if (named := _named(app, kind).get(attribute)) is not None:
            # A processor is found by its name, even if its function has another name.
            is_archiver = named in app.registry.archivers.values()
            if is_archiver or isinstance(named, Stream | Table | TimerSpec):
                return module, named
            return module, Processor(app, attribute, named.function)
    file = getattr(module, "__file__", None) or "a namespace package"
    remedy = _apps_hint(module)
    if inside := _inside(module, kind):
        remedy += f" {_list(f'{kind.capitalize()} in them', inside)}"
    raise ConfigurationError(f"Module {module_name!r} ({file}) has no {attribute!r}.", remedy=remedy)


def _import(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only if the module itself is missing: a missing import inside it is a fault of the module.
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise ConfigurationError(
                f"There is no module {name!r} in {folder}, nor is one installed.",
                remedy=_module_hint(Path(folder)),
            ) from None
        raise _failed(name, error) from error
    except StreamworkerError as error:
        frame = _user_frames(error)[-1:]
        if frame:
            error.add_note(f"At {frame[0].filename}, line {frame[0].lineno}: {frame[0].line}")
        raise
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> ConfigurationError:
    """Return the error for a fault in the user's module, with its traceback without our frames."""
    frames = "".join(traceback.format_list(_user_frames(error)))
    what = "".join(traceback.format_exception_only(error)).rstrip()
    failed = ConfigurationError(f"Importing module {name!r} failed: {what.splitlines()[-1]}")
    failed.add_note(frames + what)
    return failed


def _user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    ours = str(Path(__file__).parent)
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        # "<" begins the names of generated or frozen code, which has no file to show.
        if not frame.filename.startswith((ours, "<")) and "importlib" not in frame.filename
    ]


def with_pipelines(app: App) -> App:
    """Import the modules with pipelines that workers do not import."""
    app.load_pipelines(_import)
    return app


def _apps(module: ModuleType) -> dict[str, App]:
    """Return the apps in a module by attribute name; each app under its first name."""
    apps: dict[str, App] = {}
    for name, value in vars(module).items():
        if isinstance(value, App) and value not in apps.values():
            apps[name] = value
    return apps


def _named(app: App, kind: Kind) -> Mapping[str, Any]:
    if kind == "timers":
        timers = [timer for group in app.registry.groups for timer in group.timers]
        names = Counter(timer.name for timer in timers)
        # Two processors may each have a timer of one name, which then says too little.
        return {timer.name: timer if names[timer.name] == 1 else None for timer in timers}
    return getattr(app.registry, "named" if kind == "processors" else kind) if kind else {}


def _inside(module: ModuleType, kind: Kind) -> list[str]:
    return sorted({name for app in _apps(module).values() for name in _named(app, kind)})


def _list(what: str, names: list[str]) -> str:
    return f"{what}: {', '.join(names) or 'none'}."


def _apps_hint(module: ModuleType) -> str:
    return _list("Apps in that module", [f"{module.__name__}:{name}" for name in _apps(module)])


def _describe(found: object) -> str:
    kind = type(found).__name__
    article = "an" if kind[0].lower() in "aeiou" else "a"
    return f"{article} {kind}"


def _dotted(file: str) -> str:
    return file.removesuffix(".py").replace(os.sep, ".").replace("/", ".").strip(".")


def _path_hint(path: str) -> str:
    general = "Write MODULE:ATTRIBUTE, such as shop:app for `app = App(...)` in shop.py."
    name = path.strip(":")
    if name.endswith(".py"):
        return f"{general} Here perhaps {_dotted(name)}:app."
    return f"{general} Here perhaps {name}:app." if name.replace(".", "").isidentifier() else general


def _module_hint(folder: Path) -> str:
    here = sorted(file.stem for file in folder.glob("*.py") if file.stem.isidentifier())
    packages = sorted(init.parent.name for init in folder.glob("*/__init__.py"))
    found = [*here, *packages][:8]
    if not found:
        return "There are no Python modules in that folder: change to the one with your app."
    return f"Modules in that folder: {', '.join(found)}."
