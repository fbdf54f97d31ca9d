"""Steps in words, also of what nobody should have written."""

from streamworker.core.protocols.membership.events import DocumentRead
from streamworker.core.transcript import step_in_words
from streamworker.core.words import name_of


def test_a_document_that_cannot_be_read_does_not_end_who_writes_about_it() -> None:
    """A worker goes on with what it owns; its log at level debug must not be what stops it."""
    for document in (b"garbage", b'{"generation":5,"v":2}'):
        assert step_in_words(DocumentRead(document, 0), []) == ["DocumentRead: it cannot be read"]


def test_a_name_with_dots_is_a_whole_name() -> None:
    """Two hosts of one domain are two workers."""
    assert name_of("a.example.org.1f2e") == "a.example.org"
    assert name_of("w1.1") == "w1"
    assert name_of("") == ""
