"""A runner for property tests: every hop in one worker process that is kept warm over many graphs.

Tasks end in drawn orders, as with ``testing.scheduled``, but each of them crosses to the process and back.
"""

from __future__ import annotations

from contextlib import contextmanager

from zephon_nodes.concurrency import WorkTask
from zephon_nodes.concurrency.processes import WorkerProcess, pickled_hops
from zephon_nodes.testing import ScheduledDriver


class WarmTask(WorkTask):
    __slots__ = ("process",)

    def run(self):
        if self.process.send(self):
            self.process.receive()


class WarmDriver(ScheduledDriver):
    def __init__(self, make_engine, plan, seed, process):
        super().__init__(make_engine, plan, seed)
        self._process = process
        process._locate = plan.source.locate
        self._crossing = pickled_hops([hop for hop in plan.hops if hop.parallelism])
        process.load(self._crossing)

    def _submit(self, i, hop, calls):
        if "+".join(hop.names) not in self._crossing:
            return super()._submit(i, hop, calls)
        task = WarmTask(hop, calls)
        task.process = self._process
        self._waiting.append(task)
        return task


@contextmanager
def warm_process():
    """Gives a function of a seed that makes the runner."""
    with WorkerProcess({}, str) as process:
        yield lambda seed: lambda make_engine, plan: WarmDriver(make_engine, plan, seed, process)
