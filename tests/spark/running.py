"""Pipelines that run while a test looks at them."""

import threading

from streamworker.declaring.specs import PipelineSpec
from streamworker.spark.driver.failures import TOO_BUSY
from streamworker.spark.driver.pipelines import run_pipelines
from streamworker.spark.driver.progress import PipelineProgress
from streamworker.spark.driver.session import Session
from tests.helpers import wait_for


def run_once(session: Session, *specs: PipelineSpec) -> tuple[int, str]:
    """Run pipelines over what the logs hold; return the exit code, and the error of one that failed."""
    told: list[PipelineProgress] = []
    code = run_pipelines(specs, session=session, once=True, on_progress=told.append)
    return code, next((each.error for each in told if each.state == "failed"), "")


class Running:
    """``run_pipelines`` in a thread, with all that it told."""

    def __init__(self, session: Session, *specs: PipelineSpec, once: bool = False) -> None:
        self.stop = threading.Event()
        self.told: list[PipelineProgress] = []
        self.code: int | None = None
        self._thread = threading.Thread(target=self._run, args=(session, specs, once), daemon=True)
        self._thread.start()

    def _run(self, session: Session, specs: tuple[PipelineSpec, ...], once: bool) -> None:
        self.code = run_pipelines(
            specs, session=session, stop=self.stop, on_progress=self.told.append, once=once
        )

    def rows(self) -> int:
        return sum(each.rows for each in self.told)

    def batches(self) -> int:
        return sum(each.state == "running" for each in self.told)

    def restarts(self) -> int:
        """Without those for a Python process that started too late: a busy machine makes some of them."""
        told = [each for each in self.told if each.state == "restarting"]
        return sum(not each.error.startswith(TOO_BUSY) for each in told)

    def position(self) -> int:
        return sum(self.told[-1].positions.values()) if self.told else 0

    def wait_for_rows(self, count: int) -> None:
        wait_for(lambda: self.rows() >= count, f"the pipeline has written {count} rows", timeout_s=60)

    def wait_for_state(self, state: str) -> PipelineProgress:
        """Wait until it says so, and return what it said."""
        return wait_for(
            lambda: next((each for each in self.told if each.state == state), None),
            f"the pipeline is {state}",
            timeout_s=60,
        )  # type: ignore[return-value]  # wait_for returns what is true

    def end(self) -> int | None:
        self.stop.set()
        self._thread.join(60)
        return self.code
