"""Names and keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamworker.core.time.lifetimes import Lifetime
from streamworker.errors import ConfigurationError
from streamworker.redisio.group.operations import HASHES, KEY_TABLE
from streamworker.redisio.keys import GroupKeys, KeyRow, StreamKeys, check_name, declared_by

STREAM, GROUP = StreamKeys("app", "stream"), GroupKeys("app", "stream", "GROUP")


@pytest.mark.parametrize("name", ["a", "A9", "orders.v2_b-c", "0", "x" * 64])
def test_a_good_name_is_returned(name: str) -> None:
    """Letters, digits and three marks."""
    assert check_name("stream", name) == name


@pytest.mark.parametrize(
    "name, message",
    [
        ("", "The stream name is empty"),
        ("sh{op", "has '{' as character 3"),
        ("a:b", "has ':' as character 2"),
        ("a*", r"has '\*' as character 2"),
        (".a", r"has '\.' as character 1"),
        ("a b", "has ' ' as character 2"),
        ("a\n", r"has '\\n' as character 2"),
        ("naïve", "has 'ï' as character 3"),
        ("x" * 65, "has 65 characters"),
    ],
)
def test_a_bad_name_is_refused_with_its_character(name: str, message: str) -> None:
    """The message says which name, which character and what is allowed."""
    with pytest.raises(ConfigurationError, match=message) as caught:
        check_name("stream", name)
    assert "Use 1 to 64 letters" in str(caught.value)


@given(st.text(max_size=70))
def test_whatever_is_accepted_cannot_change_a_key(name: str) -> None:
    """No name moves the hash tag, runs two names together, or is a pattern."""
    try:
        key = StreamKeys("app", name).events(3)
    except ConfigurationError:
        return
    assert key == f"sw:{{app.{name}.3}}:events"
    assert (key.count("{"), key.count("}"), key.count(":")) == (1, 1, 2)
    assert not set(key) & set("*?[]\\ \r\n\0")


def test_groups_and_streams_agree_about_the_entries() -> None:
    """A producer writes where a worker reads."""
    assert STREAM.events(7) == GROUP.events(7)


def test_the_table_has_the_true_form_of_each_kind_of_key() -> None:
    """docs/redis-keys.md is made from it."""
    of_stream = {STREAM.meta, STREAM.events(0), STREAM.seen(0, "ID"), *GROUP.tables(0, {"TABLE": Lifetime()})}
    of_group = {GROUP.lock(0), *GROUP.outbox(0)[:2], GROUP.members, *map(GROUP.of_group, HASHES)}
    forms = {row.key.replace(".P}", ".0}") for row in KEY_TABLE}
    assert of_stream | of_group | {declared_by("app")} <= forms


@pytest.mark.parametrize("row", KEY_TABLE, ids=lambda row: row.key)
def test_a_key_of_each_kind_has_the_form_that_the_table_shows(row: KeyRow) -> None:
    """Filling the form in gives the key."""
    form = row.key.replace("app", "shop").replace("stream", "orders", 1).replace("GROUP", "price")
    expected = form.replace(".P}", ".3}").replace("ID", "4f1c2a")
    assert row.named("shop", "orders", "price", 3, "4f1c2a") == expected
