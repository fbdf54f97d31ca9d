"""``@app.pipeline``: what Spark makes of what a processor forwards."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from streamworker.core.rules import checked
from streamworker.declaring.callables import P, R, look, takes_one
from streamworker.declaring.processors import Processor
from streamworker.declaring.registry import DeclaringApp
from streamworker.declaring.specs import PipelineSpec, has_several_types, rows_of_several_types
from streamworker.errors import ConfigurationError
from streamworker.redisio.keys import check_name
from streamworker.spark.driver.checks import check_pipeline


@checked("Pipeline")
def pipeline(
    app: DeclaringApp,
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
        app.registry.check_new(
            "pipelines", label, "Give one of them another name: @app.pipeline(..., name=...)."
        )
        source = processor.spec
        if not source.forward and source.options.forward is None:
            if has_several_types(source.into):
                raise rows_of_several_types(f"Processor {source.name!r}")
            target = source.targets[0] if source.targets else source.stream
            target.record.check_single(f"the acked log that pipeline {label!r} reads")
            source = replace(source, forward=True, output=target.record)
            app.registry.processors[source.name] = source
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
        app.registry.pipelines[label] = spec
        return function

    return bind
