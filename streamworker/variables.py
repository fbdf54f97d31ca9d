"""Environment variables of streamworker: their names, and how values are read.

Spark's executors import this module, so it knows nothing of the settings themselves.
"""

from collections.abc import Mapping
from importlib import import_module
from operator import attrgetter
from typing import cast

from streamworker.errors import ConfigurationError
from streamworker.urls import PLAINTEXT_VARIABLE, Credentials

ENV_PREFIX = "STREAMWORKER_"
PASSWORD_VARIABLE = "STREAMWORKER_ACL_PASSWORD"  # noqa: S105  (a variable's name)
CONNECTION_VARIABLE = "STREAMWORKER_CONNECTION_"
CONNECTIONS_VARIABLE = "STREAMWORKER_CONNECTIONS"
CREDENTIALS_VARIABLE = "STREAMWORKER_CREDENTIAL_PROVIDER"
URL_VARIABLE = "STREAMWORKER_REDIS_URL"
REDIS_URL_OVERRIDE = "STREAMWORKER_DEV_REDIS_URL"
"""Takes precedence over the URL that an app names, so that a production app runs on a laptop unchanged."""
OTHER_VARIABLES = {
    CONNECTION_VARIABLE + "<NAME>": "the URL of a [connection of Spark](spark-reference.md#connections)",
    CONNECTIONS_VARIABLE: "a file with such connections",
    PASSWORD_VARIABLE: "the password of the user that `streamworker acl` prints",
    REDIS_URL_OVERRIDE: "set by `streamworker dev` for the processes that it starts",
}
"""Variables that are not settings, and their purpose."""
_SWITCH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def plaintext_allowed(environ: Mapping[str, str]) -> bool:
    """Return whether the environment allows plain text."""
    return bool(read_value("allow_plaintext", environ.get(PLAINTEXT_VARIABLE, "0"), bool))


def provider_of(value: object, *, importing: bool = True) -> Credentials | None:
    """Return a credential provider, or the one that a text names as ``module:name``; None for None.

    Without ``importing`` a text is only looked at.
    """
    found, (module, colon, name) = value, str(value).partition(":")
    if isinstance(value, str) and colon:
        if not importing:
            return None
        try:
            found = attrgetter(name)(import_module(module))
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                f"The credential provider {value!r} cannot be imported: {error}.", remedy="Correct the path."
            ) from None
    if found is None or callable(getattr(found, "get_credentials", None)):
        return cast(Credentials | None, found)
    raise ConfigurationError(
        f"credential_provider is {value!r}, which is no redis.credentials.CredentialProvider.",
        remedy='Give an instance of a class of it, or name one: "module:name".',
    )


def read_value(name: str, text: str, kind: object) -> object:
    """Return the value of a setting that a variable gives as text, of the setting's type."""
    if kind is bool:
        if text.lower() not in _SWITCH:
            raise ConfigurationError(f"{ENV_PREFIX}{name.upper()} is {text!r}.", remedy="It must be 1 or 0.")
        return _SWITCH[text.lower()]
    if kind is not int:
        return text
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise ConfigurationError(
            f"{ENV_PREFIX}{name.upper()} is {text!r}.", remedy="It must be a whole number."
        ) from None
