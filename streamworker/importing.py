"""From ``shop:app`` on a command line to the object: what a path may name, and what to say if not.

A path is ``MODULE:ATTRIBUTE``, as uvicorn has it. The module is imported with the current folder
first on the path. Behind the colon stands an :class:`~streamworker.App`, or where a command is
about a stream or a processor, the stream or the function itself, or just its name.

Importing an app connects to nothing, so all of this runs without Redis.
"""

import importlib
import os
import sys
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from streamworker.app import App, Processor, Stream
from streamworker.errors import ConfigurationError, StreamworkerError
from streamworker.processors import ProcessorSpec

REDIS_URL_OVERRIDE = "STREAMWORKER_DEV_REDIS_URL"
"""Set by ``streamworker dev`` for the processes it starts: its server wins over the URL that an
app names, so that an app written for production runs on a laptop unchanged."""


@dataclass(frozen=True, slots=True)
class Selection:
    """An app, and those of its processors that a path means."""

    app: App
    processors: tuple[ProcessorSpec, ...]


def resolve_app(path: str) -> App:
    """Return the app that a path names.

    Raises
    ------
    ConfigurationError
        Saying which part of the path is wrong, and which apps there are.
    """
    module, found = _resolve(path)
    if isinstance(found, App):
        return with_override(found)
    raise ConfigurationError(
        f"{path} is {_describe(found)}, not an App.", remedy=_apps_hint(module) + _made_by_hint(found)
    )


def resolve_stream(path: str, stream: str | None = None) -> Stream[Any]:
    """Return the stream that a path names.

    Parameters
    ----------
    path
        ``module:orders`` for a stream or the name of one, or ``module:app``.
    stream
        Name of the stream where the path is that of an app; not needed if it has one only.

    Raises
    ------
    ConfigurationError
        Naming the streams that there are.
    """
    module, found = _resolve(path, names=lambda app: app.streams)
    if isinstance(found, Stream):
        with_override(found.app)
        return found
    if not isinstance(found, App):
        raise ConfigurationError(
            f"{path} is {_describe(found)}, not a Stream.", remedy=_list("Streams there", _streams(module))
        )
    with_override(found)
    if stream is None and len(found.streams) == 1:
        return next(iter(found.streams.values()))
    if stream in found.streams:
        return found.streams[stream]
    what = f"App {found.name!r} has no stream {stream!r}." if stream else f"{path} is an App, not a Stream."
    raise ConfigurationError(
        what, remedy=f"Name one with --stream: {', '.join(found.streams) or 'it has none'}."
    )


def resolve_processors(path: str, names: list[str] | None = None) -> Selection:
    """Return the processors that a path means: one by its own path, or those of an app.

    Parameters
    ----------
    path
        ``module:price`` for a processor function or the name of one, or ``module:app``.
    names
        Which processors of an app; all if empty.

    Raises
    ------
    ConfigurationError
        Naming the processors that there are.
    """
    module, found = _resolve(path, names=lambda app: app.processors)
    if isinstance(found, App):
        app = with_override(found)
        unknown = [name for name in names or () if name not in app.processors]
        if unknown:
            raise ConfigurationError(
                f"App {app.name!r} has no processor {unknown[0]!r}.",
                remedy=_list("Its processors", list(app.processors)),
            )
        if not app.processors:
            raise ConfigurationError(
                f"App {app.name!r} has no processor.", remedy="Declare one: @app.processor(stream)."
            )
        return Selection(app, tuple(app.processors[name] for name in names or app.processors))
    if isinstance(found, Processor):
        for app in _apps(module).values():
            if app.processors.get(found.name) is found.spec:
                return Selection(with_override(app), (found.spec,))
        raise ConfigurationError(
            f"{path} is a processor of an app that is not in that module.",
            remedy="Give the module in which the App is.",
        )
    raise ConfigurationError(
        f"{path} is {_describe(found)}, neither a processor nor an App.",
        remedy=_list("Processors there", _processors(module)),
    )


def resolve_processor(path: str) -> Selection:
    """Return the one processor that a path names; an app must have only one.

    Raises
    ------
    ConfigurationError
        Naming the processors that there are.
    """
    selection = resolve_processors(path)
    if len(selection.processors) == 1:
        return selection
    module = path.partition(":")[0]
    choices = ", ".join(f"{module}:{spec.name}" for spec in selection.processors)
    raise ConfigurationError(
        f"{path} has {len(selection.processors)} processors.", remedy=f"Name one of them: {choices}."
    )


def _resolve(path: str, names: Any = None) -> tuple[ModuleType, object]:
    """Import the module and look behind the colon: an attribute, or a name within its apps."""
    module_name, colon, attribute = path.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigurationError(f"{path!r} is not the path of an app.", remedy=_path_hint(path))
    if module_name.endswith(".py") or "/" in module_name or os.sep in module_name:
        dotted = _dotted(module_name)
        raise ConfigurationError(
            f"{module_name} is a file, and a module is needed.", remedy=f"Write {dotted}:{attribute}."
        )
    module = _import(module_name)
    found: object = module
    try:
        for part in attribute.split("."):
            found = getattr(found, part)
        return module, found
    except AttributeError:
        pass
    for app in _apps(module).values() if names is not None else ():
        if attribute in names(app):
            named = names(app)[attribute]
            # A processor is found by its name even where its function has another one.
            return module, named if isinstance(named, Stream) else Processor(app, attribute, named.function)
    raise ConfigurationError(
        f"Module {module_name!r} ({_place(module)}) has no {attribute!r}.",
        remedy=_attribute_hint(module, names),
    )


def _import(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only if the module itself is missing; one that it imports is a fault inside it.
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
    except Exception as error:
        raise _failed(name, error) from error


def _failed(name: str, error: Exception) -> ConfigurationError:
    """Show the fault inside the user's module as Python would, without our frames around it."""
    frames = "".join(traceback.format_list(_user_frames(error)))
    what = "".join(traceback.format_exception_only(error)).rstrip()
    return ConfigurationError(f"Importing module {name!r} failed.\n{frames}{what}")


def _user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    ours = str(Path(__file__).parent)
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((ours, "<frozen importlib")) and "importlib" not in frame.filename
    ]


def with_override(app: App) -> App:
    """Let ``streamworker dev`` put its server in the place of the one that the app names."""
    url = os.environ.get(REDIS_URL_OVERRIDE)
    if url and app.settings.redis_url != url:
        app.settings = replace(app.settings, redis_url=url)
    return app


def _apps(module: ModuleType) -> dict[str, App]:
    """Return the apps in a module by attribute; the first name of each."""
    apps: dict[str, App] = {}
    for name, value in vars(module).items():
        if isinstance(value, App) and value not in apps.values():
            apps[name] = value
    return apps


def _streams(module: ModuleType) -> list[str]:
    return sorted({name for app in _apps(module).values() for name in app.streams})


def _processors(module: ModuleType) -> list[str]:
    return sorted({name for app in _apps(module).values() for name in app.processors})


def _list(what: str, names: list[str]) -> str:
    return f"{what}: {', '.join(names) or 'none'}."


def _apps_hint(module: ModuleType) -> str:
    names = [f"{module.__name__}:{name}" for name in _apps(module)]
    return _list("Apps in that module", names)


def _attribute_hint(module: ModuleType, names: Any) -> str:
    hint = _apps_hint(module)
    inside = sorted({name for app in _apps(module).values() for name in names(app)}) if names else []
    return f"{hint} {_list('Names in them', inside)}" if inside else hint


def _made_by_hint(found: object) -> str:
    if callable(found) and not isinstance(found, type | Processor):
        return " If it makes the App, call it in the module and name the result."
    return ""


def _describe(found: object) -> str:
    kind = type(found).__name__
    article = "an" if kind[0].lower() in "aeiou" else "a"
    return f"{article} {kind}"


def _place(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "a namespace package"


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
