"""Row F32 of the fault matrix: workers of two releases side by side, as in every rolling upgrade."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.chaos.figures import record
from tests.chaos.forked import ROOT, Forge
from tests.chaos.team import now_ms
from tests.chaos.yard import Yard

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(120),
    pytest.mark.full("needs the whole history of git, and waits for what a fault leads to"),
]

PREVIOUS = "10eb2e543f5cedaf53544b76540892533918b616"
"""The release before this one. There is none yet: a commit whose workers are to get on with today's."""
OURS = ("forked_main.py", "rows_app.py")


@pytest.fixture
def previous(tmp_path: Path) -> Path:
    """Return the previous release's tree, with the app of these tests beside it."""
    made = subprocess.run(
        ["git", "archive", PREVIOUS, "streamworker"], cwd=ROOT, capture_output=True, check=False
    )
    if made.returncode:
        said = f"the commit {PREVIOUS[:7]} is not in this checkout"
        # There the whole history is to be checked out: fetch-depth 0.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(said)
    tree = tmp_path / "previous"
    (tree / "tests" / "chaos").mkdir(parents=True)
    subprocess.run(["tar", "-x", "-C", tree], input=made.stdout, check=True)
    for name in OURS:
        shutil.copy(ROOT / "tests" / "chaos" / name, tree / "tests" / "chaos" / name)
    return tree


async def test_workers_of_two_releases_share_a_group_through_joins_deaths_and_leaves(
    yard: Yard, previous: Path, tmp_path: Path
) -> None:
    """And the way back: the newer ones go, and the older ones have it all."""
    logs = tmp_path / "previous-logs"
    logs.mkdir()
    changes = 0
    with Forge(logs, root=previous) as former:
        async with yard.group("mixed", partitions=8, single_entries=True) as team:
            latter = team.forge

            def hire(which: Forge, *names: str) -> None:
                team.forge = which
                team.hire(*names)

            async def step() -> None:
                nonlocal changes
                changes += 1
                await team.settled()
                await team.first_commits(now_ms(), range(team.partitions))

            hire(former, "old0", "old1")
            await team.settled()
            async with team.load(per_second=60):
                await step()
                hire(latter, "new0")
                await step()
                team.kill("old0")
                await step()
                hire(latter, "new1")
                await step()
                assert await team.ended(team.ask_to_leave("old1")) == 0
                await step()
                hire(former, "old2", "old3")
                await step()
                team.kill("new0")
                await step()
                assert await team.ended(team.ask_to_leave("new1")) == 0
                await step()
                await asyncio.sleep(0.2)
            await team.finished()
    record(
        "F32",
        f"workers of {PREVIOUS[:7]} beside those of today",
        times=changes,
        target="0 violations; a format that is not known is refused",
        verdict="met",
        said="0 violations through joins, deaths and leaves of both, and back",
        why="there is no earlier release, so an earlier commit stands in for it",
    )
