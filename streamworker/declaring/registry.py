"""``Registry``: what one app has declared; and ``DeclaringApp``, what the decorators need of an app."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

from streamworker.core.data.archives import GROUP
from streamworker.declaring.middleware import Layer
from streamworker.declaring.parameters import Resource
from streamworker.declaring.specs import TIMERS_STREAM, PipelineSpec, ProcessorSpec
from streamworker.declaring.stream import Stream, StreamApp
from streamworker.declaring.table import Table
from streamworker.errors import ConfigurationError
from streamworker.settings import Settings

Kind = Literal["streams", "tables", "processors", "resources", "pipelines"]


class Registry:
    """All that one app has declared, by name."""

    def __init__(self, app: str) -> None:
        self.app = app
        self.streams: dict[str, Stream[Any]] = {}
        self.tables: dict[str, Table[Any, Any]] = {}
        self.processors: dict[str, ProcessorSpec] = {}
        self.archivers: dict[str, ProcessorSpec] = {}
        """The groups that archive streams, by the stream."""
        self.timers: ProcessorSpec | None = None
        """The group whose owner of the one partition runs the app's timers; the specification of a processor
        has its own."""
        self.resources: dict[str, Resource[..., Any]] = {}
        self.middleware: list[Layer] = []
        """The outermost first."""
        self.pipelines: dict[str, PipelineSpec] = {}

    @property
    def groups(self) -> list[ProcessorSpec]:
        """What workers run: processors, archivers, and the group of the app's timers if there are any."""
        return [*self.processors.values(), *self.archivers.values(), *filter(None, (self.timers,))]

    @property
    def named(self) -> dict[str, ProcessorSpec]:
        """Processors, and archivers as ``orders.archive``, by the names that commands take."""
        return self.processors | {each.called: each for each in self.archivers.values()}

    @property
    def archived(self) -> dict[str, Stream[Any] | ProcessorSpec]:
        """What has an archive, by name: streams, and processors whose acked log has one.

        A processor that has the name of such a stream gets another one, so that both are there.
        """
        found: dict[str, Stream[Any] | ProcessorSpec] = {name: self.streams[name] for name in self.archivers}
        logs = [each for each in self.processors.values() if each.options.archive_of_log]
        return found | {f"{each.name} log" if each.name in found else each.name: each for each in logs}

    def keep(self, spec: ProcessorSpec) -> None:
        """Keep a group, or what has become of it."""
        if spec.stream.has_records:
            self.processors[spec.name] = spec
        else:
            self.timers = spec

    def chosen(self, names: Sequence[str] | None) -> list[ProcessorSpec]:
        """Return the groups of these names, or all processors; raise ConfigurationError if one is unknown."""
        named = self.named
        for name in names or ():
            if name not in named:
                raise ConfigurationError(
                    f"App {self.app!r} has no processor {name!r}.",
                    remedy=f"Its processors: {', '.join(named) or 'none'}.",
                )
        found = [named[name] for name in names or self.processors]
        for spec in found:
            if spec.window is not None and (error := spec.window.lacks()):
                raise error
        return found

    def check_new(self, kind: Kind, name: str, remedy: str = "Give one of them another name.") -> None:
        """Raise ConfigurationError if the app has declared one of this name before."""
        if (kind, name) == ("processors", GROUP):
            raise ConfigurationError(
                f"No processor may be named {GROUP!r}: it is the name of the group that archives a stream.",
                remedy="Give it another name: @app.processor(..., name=...).",
            )
        if name in getattr(self, kind) or (kind, name) == ("streams", TIMERS_STREAM):
            raise ConfigurationError(f"App {self.app!r} has two {kind} named {name!r}.", remedy=remedy)


class DeclaringApp(StreamApp):
    """An app that has a registry, and modules that declare more of it."""

    def __init__(
        self, name: str, settings: Settings, include: Sequence[str], include_spark: Sequence[str]
    ) -> None:
        self.registry = Registry(name)
        super().__init__(name, settings, self.registry.streams)
        self.include = _modules("include", include)
        self.include_spark = _modules("include_spark", include_spark)

    def load(self) -> None:
        """Import the modules that ``include`` names; done by all that runs an app or reads its tables.

        Raises ConfigurationError if there is no such module.
        """
        for module in self.include:
            _import(module)

    def load_pipelines(self, load: Callable[[str], object] | None = None) -> list[PipelineSpec]:
        """Import the modules that ``include_spark`` names, and return all pipelines.

        Parameters
        ----------
        load
            What imports a module.

        Raises
        ------
        ConfigurationError
            If one of them changes what workers have to know.
        """
        before = dict(self.registry.processors)
        for module in self.include_spark:
            (load or _import)(module)
        for name, spec in self.registry.processors.items():
            if before.get(name) is not spec:
                raise ConfigurationError(
                    f"Processor {name!r} is declared, or told to forward its records, by a module of "
                    "include_spark=, which workers do not import.",
                    remedy="Declare it in one that they import, with forward=True if a pipeline reads it.",
                )
        return list(self.registry.pipelines.values())


def _modules(argument: str, modules: Sequence[str]) -> tuple[str, ...]:
    """Return the modules that an argument of the app names."""
    if not isinstance(modules, list | tuple):  # Text would be taken letter by letter.
        raise ConfigurationError(
            f"{argument}={modules!r} is no list.", remedy=f"Write {argument}=[{modules!r}]."
        )
    return tuple(modules)


def _import(module: str) -> None:
    """Import a module that an argument of the app names."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A missing import inside the module is a fault of the module.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ConfigurationError(
            f"There is no module {module!r}, which the app's include= or include_spark= names.",
            remedy="Write it as in an import statement, from the folder that Python starts in.",
        ) from None
