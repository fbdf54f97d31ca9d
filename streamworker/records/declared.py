"""What a class declares: its kind, its fields and their types."""

from functools import cached_property
from typing import Any

from streamworker.records.types import Field, Kind, hints_of


class Declared:
    """The declaration of a record class; codecs and tables work from it."""

    def __init__(self, python_type: Any, kind: Kind, declared: tuple[Field, ...]) -> None:
        self.python_type = python_type
        self.kind = kind
        self.declared = declared

    @property
    def name(self) -> str:
        """The name of the class."""
        return str(self.python_type.__name__)

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The resolved type hint of each field.

        Raises
        ------
        ConfigurationError
            If a hint names a type that is not defined (yet).
        """
        return dict(hints_of(self.python_type, self.kind))

    @property
    def is_positional(self) -> bool:
        """Whether msgspec encodes a record as an array of its values."""
        config = getattr(self.python_type, "__struct_config__", None)
        return self.kind is Kind.NAMED_TUPLE or (config is not None and config.array_like)
