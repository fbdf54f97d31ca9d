"""The reference on the site: what a reader of the text alone does not see, and what he should not see.

Griffe reads modules without importing them. So `stream = data.stream` in a class is no method to it.
"""

import copy

import griffe


class Declared(griffe.Extension):
    """Makes methods of what ``App`` takes from other modules, and leaves out what nobody calls."""

    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        """Change what was read before it is shown."""
        for thing in _all(pkg):
            if thing.is_function:
                if thing.overloads:
                    thing.returns = thing.overloads[-1].returns
                thing.overloads = []
            elif thing.is_attribute and thing.labels == {"instance-attribute"}:
                thing.value = None  # how ``__init__`` makes it
            elif thing.is_class and "Parameters\n" not in (thing.docstring.value if thing.docstring else ""):
                thing.members.pop("__init__", None)  # streamworker makes its objects
        app = pkg["app.App"]
        for name, member in list(app.members.items()):
            if member.is_attribute and isinstance(member.value, griffe.ExprAttribute):
                module, _, function = str(member.value).partition(".")
                home = pkg["app"].imports[module].removeprefix("streamworker.")
                app.set_member(name, _method(pkg[f"{home}.{function}"], pkg))


def _method(function: griffe.Function, pkg: griffe.Module) -> griffe.Function:
    """Return a function whose first parameter is the app as a method, with each option by its name."""
    method = copy.copy(function)
    given = list(function.parameters)[1:]
    if given and str(given[-1].annotation) == "Unpack[Options]":
        kind = griffe.ParameterKind.keyword_only
        options = pkg["declaring.options.ProcessorOptions"].attributes.values()
        given[-1:] = [
            griffe.Parameter(option.name, annotation=option.annotation, kind=kind, default=str(option.value))
            for option in options
            if "property" not in option.labels
        ]
    method.parameters = griffe.Parameters(*given)
    if text := function.docstring:
        parsed = {"parser": text.parser, "parser_options": text.parser_options}
        method.docstring = griffe.Docstring(text.value, lineno=text.lineno, parent=method, **parsed)
    return method


def _all(thing: griffe.Object) -> list[griffe.Object]:
    """Return all that a module or class has, and it."""
    found = [member for member in thing.members.values() if not member.is_alias]
    return [thing, *(inner for member in found for inner in _all(member))]
