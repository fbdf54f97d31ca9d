"""What may be declared of an archive, and what an archiver's group is."""

from typing import Any

import msgspec
import pytest

from streamworker import App, Archive, ConfigurationError


class Order(msgspec.Struct):
    """A record."""

    customer: str


class Odd(msgspec.Struct):
    """A record with the name of a column of segments."""

    customer: str
    partition: int = 0


@pytest.mark.parametrize("url", ["", "ftp://lake/x", "s3://", "s3://key@lake/x", "abfss://a:b@lake/x"])
def test_a_url_of_no_store_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="archive="):
        Archive(url)


@pytest.mark.parametrize(
    ("option", "value"), [("every", "1 month"), ("size", "64"), ("after", -1), ("keep", "2"), ("every", 0)]
)
def test_an_option_that_is_none_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{option}="):
        Archive("s3://lake/orders", **{option: value})


def test_a_record_with_the_name_of_a_column_needs_an_archive_without_columns() -> None:
    app = App("shop")
    with pytest.raises(ConfigurationError, match=r"'partition'.*columns=False"):
        app.stream("odd", Odd, archive="s3://lake/odd")
    app.stream("odd", Odd, archive=Archive("s3://lake/odd", columns=False))


def test_no_processor_may_have_the_name_of_the_archiver() -> None:
    app = App("shop")
    orders = app.stream("orders", Order, archive="s3://lake/orders")

    async def archive(order: Order) -> None: ...

    with pytest.raises(ConfigurationError, match="No processor may be named 'archive'"):
        app.processor(orders)(archive)


def test_an_archive_says_what_it_does() -> None:
    assert str(Archive("s3://lake/orders", keep="2 years")).endswith("after 1 minute, kept 2 years")
    azure = "abfss://lake@shop.dfs.core.windows.net/orders"
    assert str(Archive(azure)).startswith(azure)
