"""The decoders of ``test_fuzz``, with inputs that libFuzzer looks for: ``python -m tests.security.guided``.

Random damage hits what lies at the surface of a decoder. libFuzzer sees which lines an input reaches, keeps
what reaches new ones, and goes on from there. It chooses the bytes from which a decoder's own maker draws,
so that its inputs are as near to whole ones as those of ``test_fuzz``.

Ends with 0 when the time is over; with another code after an error that is not ours, an input that takes
longer than ten seconds, or 256 MiB more than at the start. Then the input lies in the folder, and
``python -m tests.security.guided FILE`` runs it again. Needs ``pip install 'streamworker[fuzz]'``.
"""

import argparse
import random
import resource
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["streamworker"]):
    from tests.security.test_fuzz import DECODERS, MEMORY_MAX_KIB, read

LATE_S = 10
INPUT_BYTES_MAX = 2_048


class Drawn(random.Random):
    """Draws from given bytes, and zeros once they are used up."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._data = data

    def getrandbits(self, k: int, /) -> int:
        taken, self._data = self._data[: (k + 7) // 8], self._data[(k + 7) // 8 :]
        return int.from_bytes(taken, "little") & ((1 << k) - 1)

    def random(self) -> float:
        return self.getrandbits(53) / 2**53


def try_one(data: bytes) -> None:
    """Have one decoder read one input; raises what is not an error of ours."""
    if not data:
        return
    decoder = DECODERS[data[0] % len(DECODERS)]
    read(decoder, decoder.make(Drawn(data[1:])))


def main() -> None:
    """Look for inputs until the time is over, or try those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="inputs to try again")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="where an input goes that fails")
    given = parser.parse_args()
    now_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    options = [
        f"-max_total_time={max(1, round(60 * given.minutes))}",
        f"-seed={given.seed}",
        f"-timeout={LATE_S}",
        f"-rss_limit_mb={now_mib + MEMORY_MAX_KIB // 1024}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-artifact_prefix={given.folder}/",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *map(str, given.files), *options], try_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
