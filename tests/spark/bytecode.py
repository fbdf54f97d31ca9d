"""Compile the modules that Spark hands to its Python processes: ``python -m tests.spark.bytecode``.

Each of these processes imports PySpark from a zip archive that Spark puts first on its path, even where
PySpark is installed. As it is published the archive holds source alone, and Python writes nothing into it:
so each process compiles all that it imports, more than half of its start, and the tests start some three
hundred. Here the archives of this environment are given bytecode beside the source, where Python looks
first (PEP 273). They lose PySpark's own tests, more than half of the names that each process reads, and are
not compressed, so that nothing is unpacked.
"""

import compileall
import py_compile
import shutil
import sys
import tempfile
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile

import pyspark

LIBRARIES = Path(pyspark.__file__).parent / "python" / "lib"


def add_bytecode(library: Path) -> bool:
    """Put the bytecode of each module into the archive, beside its source; return whether all compiled."""
    with tempfile.TemporaryDirectory(prefix="sw", dir=library.parent) as scratch:
        modules = Path(scratch, "modules")
        shutil.unpack_archive(library, modules)
        for tests in [each for each in modules.rglob("tests") if each.is_dir()]:
            shutil.rmtree(tests)
        # Valid without a look at the source: its time is another one in each archive.
        done = compileall.compile_dir(
            modules,
            stripdir=str(modules),
            prependdir=str(library),
            quiet=1,
            legacy=True,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
        new = Path(scratch, "new.zip")
        with ZipFile(new, "w", ZIP_STORED) as archive:
            for file in sorted(each for each in modules.rglob("*") if each.is_file()):
                archive.write(file, file.relative_to(modules))
        # As one step. A process that has begun with the old one may fail at its next import.
        new.replace(library)
    return bool(done)


if __name__ == "__main__":
    done = [add_bytecode(library) for library in LIBRARIES.glob("*.zip")]
    sys.exit(not all(done))
