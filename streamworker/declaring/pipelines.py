"""The decorator ``@app.pipeline``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, ParamSpec, TypeVar

from streamworker.core.rules import checked
from streamworker.declaring.callables import look, takes_one
from streamworker.declaring.processor import Processor
from streamworker.declaring.resources import import_included, modules_of
from streamworker.declaring.specs import PipelineSpec, ProcessorSpec, has_several_types, rows_of_several_types
from streamworker.errors import ConfigurationError
from streamworker.redisio.keys import check_name
from streamworker.settings import Settings
from streamworker.spark.driver.checks import check_pipeline

P = ParamSpec("P")
R = TypeVar("R")


class Pipelines:
    """The part of an app that declares what Spark runs."""

    name: str
    settings: Settings

    def __init__(self, include_spark: Sequence[str] = ()) -> None:
        self.include_spark = modules_of("include_spark", include_spark)
        """Modules that declare pipelines, which workers do not import."""
        self.processors: dict[str, ProcessorSpec] = {}
        self.pipelines: dict[str, PipelineSpec] = {}

    def load_pipelines(self, load: Callable[[str], object] | None = None) -> None:
        """Import the modules that ``include_spark`` names; done by all that needs the pipelines.

        Parameters
        ----------
        load
            What imports a module.

        Raises
        ------
        ConfigurationError
            If one of them changes what workers have to know.
        """
        before = dict(self.processors)
        for module in self.include_spark:
            (load or import_included)(module)
        for name, spec in self.processors.items():
            if before.get(name) is not spec:
                raise ConfigurationError(
                    f"Processor {name!r} is declared, or told to forward its records, by a module of "
                    "include_spark=, which workers do not import.",
                    remedy="Declare it in one that they import, with forward=True if a pipeline reads it.",
                )

    @checked("Pipeline")
    def pipeline(
        self,
        processor: Processor[..., Any],
        *,
        name: str | None = None,
        trigger: str = "10 seconds",
        path: str | None = None,
        format: str = "parquet",
        mode: Literal["append", "complete", "update"] = "append",
        checkpoint: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Bind a function that turns a DataFrame into a DataFrame; ``streamworker spark`` runs it.

        Parameters
        ----------
        processor
            Whose forwarded rows are read. A processor that returns nothing forwards its records.
        name
            Name of the pipeline; the function's name if None.
        trigger
            ``"10 seconds"``, or ``"available now"`` to process the existing rows and stop.
        path, format, mode
            Where and how the returned DataFrame is written. A function that returns a stream writer
            needs none of them.
        checkpoint
            Spark's checkpoint directory; beside ``path`` if None.
        options
            Options of the source, named as in docs/spark.md, and of the writer.
        """

        def bind(function: Callable[P, R]) -> Callable[P, R]:
            looked = look(function, "Pipeline", name)
            label = check_name("pipeline", looked.name)
            if looked.is_async or not takes_one(looked):
                raise ConfigurationError(
                    f"{looked.whose} is async, or does not take one DataFrame.",
                    remedy="Write it as `def ...(rows)`: Spark's driver calls it once, at the start.",
                )
            if label in self.pipelines:
                raise ConfigurationError(
                    f"App {self.name!r} has two pipelines named {label!r}.",
                    remedy="Give one of them another name: @app.pipeline(..., name=...).",
                )
            source = processor.spec
            if not source.forward and not source.drops_rows:
                if has_several_types(source.into):
                    raise rows_of_several_types(f"Processor {source.name!r}")
                target = source.targets[0] if source.targets else source.stream
                target.record.check_single(f"the acked log that pipeline {label!r} reads")
                source = replace(source, forward=True, output=target.record)
                self.processors[source.name] = source
            spec = PipelineSpec(
                name=label,
                processor=source,
                function=looked.function,
                trigger=trigger,
                path=path,
                format=format,
                mode=mode,
                checkpoint=checkpoint,
                options=dict(options or {}),
            )
            check_pipeline(spec)
            self.pipelines[label] = spec
            return function

        return bind
