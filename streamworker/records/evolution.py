"""What becomes of stored records when their type changes: compares the JSON Schemas of two versions.

A worker stores the JSON Schema of its stream's record type. Before a deploy, ``streamworker schema check``
compares it with the type of the new program. The rules are those of the decoders: a field that is missing in
an old entry gets its default, a field that the new type lacks is ignored, and a value must be of the field's
type, where a whole number serves as a number.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from streamworker.records.types import Declared, RecordKind

Schema = Mapping[str, Any]

_WORDS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


class FieldChange(NamedTuple):
    """One difference between two versions of a record type."""

    what: str
    effect: str
    """What it means for stored records."""
    breaks: bool
    """Whether stored records cannot be read."""


def json_schema(record: Declared) -> Schema:
    """Return the JSON Schema of a record type; empty if one of its types has none.

    >>> class Order(msgspec.Struct):
    ...     sku: str
    ...     count: int = 1
    >>> sorted(json_schema(Declared(Order, RecordKind.STRUCT))["$defs"]["Order"]["properties"])
    ['count', 'sku']
    """
    try:
        if record.kind is RecordKind.PYDANTIC:
            found: Schema = record.python_type.model_json_schema()
        else:
            found = msgspec.json.schema(record.python_type)
    except Exception:  # noqa: BLE001 - a type of the program may raise anything, and works without a schema
        return {}
    return found


def changes(old: Schema, new: Schema, name: str) -> list[FieldChange]:
    """Return the differences of two versions of a record type, in the order of the fields.

    >>> one = {"properties": {"n": {"type": "integer"}}, "required": ["n"]}
    >>> two = {"properties": {"n": {"type": "number"}, "m": {"type": "string"}}, "required": ["n", "m"]}
    >>> [(each.what, each.breaks) for each in changes(one, two, "Order")]
    [('Order.n: int -> float', False), ('Order gains `m: str`', True)]
    """
    return _Comparison(old, new).compare(name, old, new)


_SHAPES = {"array", "object"}
_JUDGED = {
    "type",
    "enum",
    "const",
    "$ref",
    "$defs",
    "properties",
    "required",
    "items",
    "prefixItems",
    "anyOf",
    "oneOf",
}
_JUDGED |= {
    "default",
    "format",
    "contentEncoding",
    "additionalProperties",
    "discriminator",
    "title",
    "description",
}
_JUDGED |= {"examples", "deprecated"}
"""Keywords of JSON Schema that are compared each in its way, or mean nothing to a decoder."""

_JSON = (str, int, float, list, type(None))
_READS: dict[str, Any] = {"string": str, "null": type(None), "array": list, "object": dict}
_READS |= dict.fromkeys(("integer", "number"), (int, float))


def may_hold(schema: Schema, value: Any, definitions: Schema, is_lax: bool) -> bool:
    """Return whether the type of a JSON Schema could read a stored value; where it is not sure it says yes.

    It looks at required fields and types, and not at values; a type that ``is_lax`` reads a text as a number.
    """
    schema = _resolved(schema, definitions)
    if len(several := _alternatives(schema)) > 1:
        return any(may_hold(each, value, definitions, is_lax) for each in several)
    if isinstance(value, dict) and (fields := schema.get("properties")):
        parts = [(fields[name], value[name]) for name in fields.keys() & value.keys()]
        if not value.keys() >= {*schema.get("required", ())}:
            return False
    elif isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        parts = [(schema["items"], each) for each in value]
    else:
        is_open = is_lax or "format" in schema or not isinstance(value, _JSON)
        return is_open or isinstance(value, _READS.get(schema.get("type", ""), _JSON))
    return all(may_hold(part, each, definitions, is_lax) for part, each in parts)


class _Comparison:
    def __init__(self, old: Schema, new: Schema) -> None:
        self._old, self._new = old.get("$defs", {}), new.get("$defs", {})
        self._seen: set[tuple[str, str]] = set()

    def compare(self, name: str, old: Schema, new: Schema) -> list[FieldChange]:
        before, after = _resolved(old, self._old), _resolved(new, self._new)
        if before.get("type") != after.get("type") and {before.get("type"), after.get("type")} <= _SHAPES:
            words = f"{name} is stored as {before['type']}, and read as {after['type']}"
            return [FieldChange(words, "breaks: no stored value can be read", True)]
        if "properties" not in before or "properties" not in after:
            # The members of a union are told by their names, which what they refer to does not have.
            is_union = len(_alternatives(before)) > 1 or len(_alternatives(after)) > 1
            return self._types(name, *((old, new) if is_union else (before, after)))
        found = self._rules(name, before, after)
        had, has = before["properties"], after["properties"]
        for field in had:
            if field not in has:
                is_closed = after.get("additionalProperties") is False
                effect = "fine: old entries are read without it; workers of the old version may need it"
                effect = (
                    "breaks: old entries have it, and unknown fields are forbidden" if is_closed else effect
                )
                found.append(FieldChange(f"{name} loses `{field}`", effect, is_closed))
            else:
                if field in after.get("required", ()) and field not in before.get("required", ()):
                    effect = "not judged: old entries without it cannot be read"
                    found.append(FieldChange(f"{name}.{field} loses its default", effect, False))
                found += self._types(f"{name}.{field}", had[field], has[field])
        for field in has:
            if field in had:
                continue
            text = f"{name} gains `{field}: {_text(has[field])}"
            if field in after.get("required", ()):
                found.append(FieldChange(f"{text}`", "breaks: old entries lack it; give it a default", True))
            elif "default" in has[field]:
                default = repr(has[field]["default"])
                found.append(
                    FieldChange(f"{text} = {default}`", f"fine: old entries read as {default}", False)
                )
            else:
                found.append(FieldChange(f"{text}`", "fine: old entries read as its default", False))
        return found

    def _types(self, path: str, old: Schema, new: Schema) -> list[FieldChange]:
        mine, theirs = _alternatives(new), _alternatives(old)
        stored, taken = _values(theirs, self._old), _values(mine, self._new)
        found = self._sets(path, stored, taken, mine) if stored else []
        if stored and taken:  # Both are enums or Literals, whatever their names.
            mine = [each for each in mine if not _values([each], self._new)]
            theirs = [each for each in theirs if not _values([each], self._old)]
        elif stored:
            theirs = [each for each in theirs if not _values([each], self._old)]
        for each in theirs:
            same = next((other for other in mine if _text(other) == _text(each)), None)
            # In a union of record types each of them names its fields.
            where = path if len(theirs) == 1 or "." in path else _text(each)
            found += self._inner(where, each, same) if same is not None else ()
        texts = {_text(each) for each in mine}
        texts |= {"int"} if "float" in texts else set()
        lost = [each for each in map(_text, theirs) if each not in texts]
        if {*map(_text, theirs)} != {*map(_text, mine)} and not (found and found[0].breaks):
            what = f"{path}: {_text(old)} -> {_text(new)}"
            effect = "fine: every stored value can be read"
            if lost:
                effect = (
                    f"breaks: stored values of type {' and '.join(lost)} cannot be read; add a field instead"
                )
            found.append(FieldChange(what, effect, bool(lost)))
        return found

    def _sets(self, path: str, stored: list[Any], taken: list[Any], mine: list[Schema]) -> list[FieldChange]:
        """Compare the values of enums and Literals; a plain type of the new version takes all of its type."""
        plain = tuple(
            _READS[each["type"]] for each in mine if each.get("type") in _READS and "enum" not in each
        )
        lost = [each for each in stored if each not in taken and not isinstance(each, plain)]
        gained = [each for each in taken if each not in stored]
        found = []
        if lost:
            effect = "breaks: stored entries with it cannot be read"
            found.append(FieldChange(f"{path} loses {', '.join(map(repr, lost))}", effect, True))
        if gained:
            effect = (
                "fine: stored entries are read; workers of the old version cannot read new entries with it"
            )
            found.append(FieldChange(f"{path} gains {', '.join(map(repr, gained))}", effect, False))
        return found

    def _rules(self, path: str, old: Schema, new: Schema) -> list[FieldChange]:
        """Name what this comparison does not judge: nothing that differs is passed over in silence."""
        names = sorted(name for name in {*old, *new} - _JUDGED if old.get(name) != new.get(name))
        closes = new.get("additionalProperties") is False and old.get("additionalProperties") is not False
        if closes and "properties" in new:
            names.append("additionalProperties")
        if not names:
            return []
        effect = "not judged: a stored value that breaks the new rule cannot be read"
        if not any(name in new for name in names):
            effect = "fine: every stored value can be read"
        said = ", ".join(f"{name} {_rule(old, name)} -> {_rule(new, name)}" for name in names)
        return [FieldChange(f"{path}: {said}", effect, False)]

    def _inner(self, path: str, old: Schema, new: Schema) -> list[FieldChange]:
        if "$ref" in old and "$ref" in new:
            pair = (old["$ref"], new["$ref"])
            if pair in self._seen:
                return []
            self._seen.add(pair)
            return self.compare(path, old, new)
        found = self._rules(path, old, new)
        before, after = old.get("prefixItems", ()), new.get("prefixItems", ())
        if before or after:
            least, most = new.get("minItems", 0), new.get("maxItems")
            if len(before) < least or (most is not None and len(before) > most):
                what = f"{path}: {len(before)} -> {len(after)} values"
                found = [FieldChange(what, "breaks: stored values have another length", True)]
            elif len(before) != len(after):
                effect = "fine: stored values are read; workers of the old version may not read new ones"
                found = [FieldChange(f"{path}: {len(before)} -> {len(after)} values", effect, False)]
            for index, (one, other) in enumerate(zip(before, after, strict=False)):
                found += self._types(f"{path}[{index}]", one, other)
        for inside, suffix in (("items", "[]"), ("additionalProperties", "{}")):
            if isinstance(old.get(inside), Mapping) and isinstance(new.get(inside), Mapping):
                return found + self._types(path + suffix, old[inside], new[inside])
        return found


def _rule(schema: Schema, name: str) -> str:
    return f"{schema[name]!r:.60}" if name in schema else "none"


def _values(schemas: list[Schema], definitions: Schema) -> list[Any]:
    """Return the values of the enums and Literals among some schemas."""
    found = [_resolved(each, definitions) for each in schemas]
    return [value for each in found for value in each.get("enum", [each["const"]] if "const" in each else [])]


def _resolved(schema: Schema, definitions: Schema) -> Schema:
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    return schema


def _alternatives(schema: Schema) -> list[Schema]:
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return list(schema[several])
    if isinstance(schema.get("type"), list):
        return [{**schema, "type": each} for each in schema["type"]]
    return [schema]


def _text(schema: Schema) -> str:
    """Return a type as Python writes it."""
    several = _alternatives(schema)
    if len(several) > 1:
        return " | ".join(map(_text, several))
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    kind = schema.get("type")
    if kind == "array":
        return f"list[{_text(schema['items'])}]" if isinstance(schema.get("items"), Mapping) else "list"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"dict[str, {_text(values)}]" if isinstance(values, Mapping) else "dict"
    if "enum" in schema:
        return " | ".join(map(repr, schema["enum"]))
    if "contentEncoding" in schema or schema.get("format") == "binary":
        return "bytes"
    return str(schema.get("format") or _WORDS.get(str(kind), "any value"))
