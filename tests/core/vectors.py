"""Keys and their partitions, with which an implementation of the partitioner in any language is tested."""

import datetime as dt
import uuid
from decimal import Decimal

VECTORS: tuple[tuple[object, bytes, int, int], ...] = (
    ("", b"", 0x00000000, 0),
    ("ann", b"ann", 0xE7207273, 3),
    ("Zo\u00eb", b"Zo\xc3\xab", 0x67AC422A, 10),
    ("\u65e5\u672c", b"\xe6\x97\xa5\xe6\x9c\xac", 0xC7B7CDCC, 12),
    (b"\x00\xff", b"\x00\xff", 0x6CDBFD72, 2),
    (0, b"0", 0xF4DBDF21, 1),
    (7, b"7", 0x6ABF4A82, 2),
    (-42, b"-42", 0xBC29AED6, 6),
    (2**70, b"1180591620717411303424", 0xA52C76F7, 7),
    (True, b"true", 0xFDFC4C8D, 13),
    (False, b"false", 0x2BCD6830, 0),
    (
        uuid.UUID("6BA7B810-9DAD-11D1-80B4-00C04FD430C8"),
        b"6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        0x51509E86,
        6,
    ),
    (dt.date(2024, 2, 29), b"2024-02-29", 0xF8A8B86E, 14),
    (dt.datetime(2024, 2, 29, 12, 0, 0, 5), b"2024-02-29T12:00:00.000005", 0x14AAB5E1, 1),  # noqa: DTZ001 - a key without a zone
    (
        dt.datetime(2024, 2, 29, 12, 0, tzinfo=dt.timezone(dt.timedelta(hours=2))),
        b"2024-02-29T10:00:00.000000Z",
        0x5B546AE8,
        8,
    ),
    (Decimal("1.50"), b"1.5", 0x875C9BBA, 10),
    (Decimal("-0.00"), b"0", 0xF4DBDF21, 1),
    (Decimal("1E+3"), b"1000", 0xB427A317, 7),
    (("ann", 7), b"3:ann1:7", 0xE49D10D9, 9),
    (("a", "b:c", None), b"1:a3:b:c-", 0x3C2C2620, 0),
)
"""Keys with their bytes, the CRC-32 of those bytes, and their partition among 16."""
