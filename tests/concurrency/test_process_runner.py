"""Graphs in worker processes: the same data as inline, errors that tell, and nothing left behind."""

from __future__ import annotations

import ctypes
import functools
import gc
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import cloudpickle
import numpy as np
import pytest
import torch
from threads import in_thread, running, still_running
from tokenizers_for_tests import train_tokenizer
from workers import alive, descriptors, gone, worker_pids

from multimodal import FixedGrid, LoadImages
from zephon_nodes import (
    ClosedError,
    ConfigError,
    Dataset,
    Emit,
    Loader,
    Map,
    Node,
    Pipeline,
    RowError,
    StaticMixtureWorkSource,
    WorkerError,
)
from zephon_nodes.testing import assert_resumes_everywhere, digest

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # else a worker would import this file, and torch with it

LONG = 20
"""Seconds after which something that should have happened is taken to hang."""


def source(rows=120, lanes=2, payload=lambda i: {"v": i, "text": f"text {i} of many"}, **settings):
    dataset = Dataset.from_rows("d", [payload(i) for i in range(rows)])
    return StaticMixtureWorkSource([dataset], None, lanes, 16, 2, **settings)


def graph(rows=120, lanes=2, shuffle="windows", **options):
    return Pipeline(source(rows, lanes, shuffle=shuffle), **{"runner": "process", "parallelism": 1, **options})


def double(payload):
    return {**payload, "v": payload["v"] * 2}


# the same data


class Summed:
    def __init__(self):
        self.held = []

    def push(self, payload):
        self.held.append(payload)
        if len(self.held) == 3:
            yield Emit({"v": sum(p["v"] for p in self.held), "text": ""}, tuple(self.held))
            self.held = []

    @staticmethod
    def work(payload):
        return {**payload, "pid": os.getpid() != MAIN}


MAIN = os.getpid()


def noisy(payload, rng):
    return {**payload, "noise": rng.random(3)}


def odd_fails(payload):
    if payload["v"] % 7 == 3:
        raise ValueError("odd")
    return payload


def whole_graph(**options):
    """Every kind of node that takes a user's function, and those that have work of their own."""
    return (
        Pipeline(source(), on_error="skip", **options)
        .map(double)
        .filter(lambda p: p["v"] % 5)
        .flat_map(lambda p: [{**p, "copy": i} for i in range(p["v"] % 3)])
        .map(odd_fails)
        .map(noisy)
        .map_group(lambda ps: ps[::-1], 4)
        .switch({1: lambda n: Map(n, double)}, by=lambda p: p["copy"], default=lambda n: n)
        .tokenize(train_tokenizer())
        .fill_in_the_middle(250, 251, 252)
        .pack_flat(16, runner=options.get("runner"))
        .map(lambda p: {**p, "sum": int(p["input_ids"].sum())})
        .batch(3, runner=options.get("runner"))
        .map_batch(lambda batch: batch.to_training())
    )


@pytest.fixture(scope="module")
def wanted():
    graph = whole_graph(runner="inline")
    return [digest(output) for output in graph], graph.drops.total


def test_every_kind_of_node_gives_in_processes_what_it_gives_inline(wanted):
    with whole_graph(runner="process", parallelism=2) as pipeline:
        assert ([digest(output) for output in pipeline], pipeline.drops.total) == wanted


def test_nodes_in_threads_processes_and_the_driver_may_be_mixed():
    def mixed(**options):
        return (
            Pipeline(source(), **options)
            .map(double, runner="process", parallelism=1)
            .map(noisy, runner="thread")
            .map(double, runner="inline")
            .stateful_transform(Summed, runner="process", parallelism=2)
            .batch(2)
        )

    want = [[p | {"pid": True} for p in batch.payloads] for batch in mixed(runner="inline")]
    with mixed() as pipeline:
        got = [batch.payloads for batch in pipeline]
        text = pipeline.describe()
    assert all(p["pid"] for batch in got for p in batch)
    assert digest(got) == digest(want)
    assert "1 processes" in text and "2 processes" in text and "driver" in text and "threads" in text


def test_rows_may_be_read_in_a_process_if_asked():
    def read(runner):
        return (
            Loader(
                Map(
                    _read(source(shuffle="windows"), runner=runner),
                    lambda p: {**p, "here": os.getpid() == MAIN},
                    runner=runner,
                ),
                parallelism=1,
            ),
        )[0]

    with read("process") as loader:
        got = list(loader)
    assert [p["v"] for p in got] == [p["v"] for p in read("inline")]
    assert not any(p["here"] for p in got)


def _read(work, **settings):
    from zephon_nodes import Read

    return Read(work, **settings)


def test_a_run_in_processes_stops_and_resumes_anywhere():
    def make(**options):
        return Pipeline(source(60), **options).map(noisy).map_group(lambda ps: ps[::-1], 3).batch(4)

    want = [digest(output) for output in make(runner="inline")]
    got, state = [], None
    for take in (1, 4, 100):
        with make(runner="process", parallelism=1) as pipeline:
            if state:
                pipeline.load_state_dict(json.loads(json.dumps(state)))
            got += [digest(output) for output in itertools.islice(pipeline, take)]
            state = pipeline.state_dict()
    assert got == want
    assert_resumes_everywhere(lambda: make(), steps=3, runner="inline")


def test_images_are_decoded_in_processes_as_inline():
    import io

    from PIL import Image

    def picture(i):
        file = io.BytesIO()
        Image.fromarray(np.full((40, 50, 3), i, np.uint8)).save(file, "PNG")
        return {"image": file.getvalue()}

    def make(**options):
        return Pipeline(source(12, payload=picture), **options).then(LoadImages, FixedGrid(size=32)).batch(2)

    want = [digest(output) for output in make(runner="inline")]
    with make(runner="process", parallelism=1) as pipeline:
        assert [digest(output) for output in pipeline] == want


@dataclass
class Sample:
    value: int
    array: np.ndarray


def test_payloads_of_a_class_of_the_script_keep_their_class():
    with graph(10).map(lambda p: Sample(p["v"], np.full(9000, p["v"]))).map_group(lambda s: s, 2) as pipeline:
        got = list(pipeline)
    assert all(type(sample) is Sample for sample in got)
    assert sorted(sample.value for sample in got) == list(range(10))
    assert all((sample.array == sample.value).all() and sample.array.flags.writeable for sample in got)


def test_tensors_cross_both_ways():
    def make(payload):
        return {"t": torch.full((70, 100), payload["v"], dtype=torch.bfloat16), "v": payload["v"]}

    with (
        Pipeline(source(20), parallelism=1)
        .map(make)
        .map(lambda p: {**p, "t": p["t"] + 1, "threads": torch.get_num_threads()}, runner="process") as pipeline
    ):
        got = list(pipeline)
    assert all(p["t"].dtype is torch.bfloat16 and (p["t"] == p["v"] + 1).all() for p in got)
    assert {p["threads"] for p in got} == {1}


# what a worker is


def test_workers_import_what_their_functions_need_and_no_more():
    with graph(8).map(lambda p: sorted({"torch", "torchdata", "tokenizers"} & set(sys.modules))) as pipeline:
        assert list(pipeline) == [[]] * 8


def test_the_packages_names_and_torchdata_are_there_when_a_function_wants_them():
    def asks(payload):
        import torchdata.nodes

        import zephon_nodes
        from zephon_nodes import Pointer, ops

        return [Pointer.__name__, ops.__name__, torchdata.nodes.Loader.__name__, "Batch" in dir(zephon_nodes)]

    with graph(2).map(asks) as pipeline:
        assert list(pipeline) == [["Pointer", "zephon_nodes.ops", "Loader", True]] * 2


def test_functions_may_print_log_and_start_threads(capfd):
    def chatty(payload):
        if payload["v"] == 3:
            print("printed in a worker")
            logging.getLogger("user").warning("logged in a worker")
        got = []
        thread = threading.Thread(target=got.append, args=(payload["v"],))
        thread.start()
        thread.join()
        return got[0]

    with graph(20, 1).map(chatty) as pipeline:
        assert sorted(pipeline) == list(range(20))
    said = capfd.readouterr()
    assert said.out == "printed in a worker\n"
    assert said.err == "logged in a worker\n"


def test_what_a_function_imports_by_a_path_of_the_trainer_is_found(tmp_path, monkeypatch):
    (tmp_path / "module_of_the_user.py").write_text("def triple(p):\n    return p['v'] * 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    import module_of_the_user

    with graph(5, 1).map(module_of_the_user.triple) as pipeline:
        assert sorted(pipeline) == [0, 3, 6, 9, 12]


def test_hops_without_a_number_share_their_processes_and_others_have_their_own():
    def pid(payload):
        return {**payload, "pids": [*payload.get("pids", []), os.getpid()]}

    shared = graph(40, parallelism=2).map(pid).map_group(lambda ps: list(map(pid, ps)), 2)
    with shared as pipeline:
        assert len({pid for p in pipeline for pid in p["pids"]}) <= 2
    own = graph(40).map(pid, parallelism=1).map_group(lambda ps: list(map(pid, ps)), 2, parallelism=1)
    with own as pipeline:
        assert len({pid for p in pipeline for pid in p["pids"]}) == 2


# errors


def at(value, action):
    def function(payload):
        if payload["v"] == value:
            action()
        return payload

    return function


DEATHS = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: ctypes.string_at(0),
    "code 3": lambda: os._exit(3),
}


@pytest.mark.parametrize("how", DEATHS)
def test_a_worker_that_dies_is_an_error_that_names_node_and_rows(how):
    reader, got = in_thread(lambda: list(graph().map(at(77, DEATHS[how]), name="mine")))
    reader.join(LONG)
    assert not reader.is_alive(), "hangs"
    (error,) = got
    assert isinstance(error, WorkerError)
    assert error.node == "mine" and "mine: its worker process" in str(error) and how in str(error)
    assert 77 in [row.row for row in error.origins] and f"row {error.origins[0].row} of" in str(error)
    assert not running()


def test_a_worker_killed_from_outside_is_an_error_within_two_seconds():
    iterator = iter(graph(100_000, parallelism=2).map(double).batch(2))
    next(iterator)
    pids = worker_pids()
    assert len(pids) == 2
    os.kill(pids[0], signal.SIGKILL)
    begin = time.monotonic()
    reader, got = in_thread(lambda: list(iterator))
    reader.join(LONG)
    assert isinstance(got[0], WorkerError) and "SIGKILL" in str(got[0])
    assert time.monotonic() - begin < LONG / 2
    assert gone(pids)


def test_a_worker_that_is_dead_before_it_has_begun_is_an_error():
    with pytest.raises(WorkerError, match="exited with code 9"):
        list(graph().map(functools.partial(at(0, lambda: None), **{})).map(_Exploding()))


class _Exploding:
    """Ends the process that unpickles it."""

    def __call__(self, payload):
        return payload

    def __reduce__(self):
        return os._exit, (9,)


def test_a_grandchild_that_holds_the_connection_hides_no_death():
    def function(payload):
        if payload["v"] == 5:
            if os.fork() == 0:
                time.sleep(3)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        return payload

    reader, got = in_thread(lambda: list(graph().map(function)))
    reader.join(LONG)
    assert isinstance(got[0], WorkerError)


class TwoArguments(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


class Unpicklable(Exception):
    def __init__(self, message):
        super().__init__(message)
        self.lock = threading.Lock()


def fails_with(error):
    def user_function(payload):
        if payload["v"] == 33:
            try:
                {}["why"]
            except KeyError as cause:
                raise error() from cause
        return payload

    return user_function


@pytest.mark.parametrize(
    "error", [lambda: TwoArguments(1, 2), lambda: Unpicklable("locked"), lambda: OSError(2, "no file", "name")]
)
@pytest.mark.parametrize("runner", ["thread", "process"])
def test_errors_of_functions_tell_type_message_cause_traceback_node_and_row(error, runner):
    import traceback

    with pytest.raises(RowError) as caught:
        list(graph(runner=runner).map(fails_with(error), name="mine"))
    said = "".join(traceback.format_exception(caught.value))
    inner = error()
    assert f"mine failed on row 33 of rows (dataset 'd'): {type(inner).__name__}: {inner}" in str(caught.value)
    assert type(inner).__name__ in said and str(inner) in said and "KeyError: 'why'" in said
    assert "in user_function" in said and __file__ in said
    assert caught.value.node == "mine" and [row.row for row in caught.value.origins] == [33]
    if type(inner) is not Unpicklable:
        assert type(caught.value.__cause__) is type(inner)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("by hand"), GeneratorExit()])
def test_what_is_no_exception_is_raised_as_it_is(error):
    def function(payload):
        raise error

    with pytest.raises(type(error)):
        list(graph().map(function))


LOCK = threading.Lock()


def test_a_function_that_cannot_be_pickled_is_an_error_at_once_that_names_its_node():
    lock = threading.Lock()
    pipeline = graph().map(double).map(lambda p: lock and p, name="locked").map(double, name="after")
    with pytest.raises(WorkerError, match=r"locked: its function can't be sent.*'_thread.lock'") as caught:
        next(iter(pipeline))
    assert caught.value.node == "locked"
    assert not running()


def test_results_and_records_that_cannot_be_pickled_are_errors_that_name_node_type_and_row():
    with pytest.raises(
        WorkerError, match=r"gives gave a lock that can't be sent.*cannot pickle '_thread.lock'.*row 5 of"
    ):
        list(graph().map(lambda p: threading.Lock() if p["v"] == 5 else p, name="gives"))
    with pytest.raises(WorkerError, match=r"takes: what comes to it can't be sent.*'_thread.lock'.*row 0 of") as caught:
        list(graph(shuffle="none").map(lambda p: threading.Lock(), runner="thread").map(lambda p: p, name="takes"))
    assert caught.value.node == "takes"


def test_results_that_cannot_be_loaded_here_and_functions_that_cannot_be_loaded_there_are_errors():
    with pytest.raises(
        WorkerError, match="what it gave can't be loaded from its worker process: RuntimeError: not here"
    ):
        list(graph().map(lambda p: _NotHere()))
    with pytest.raises(WorkerError, match="functions can't be loaded in a worker process: ModuleNotFoundError"):
        list(graph().map(_missing_module()))


class _NotHere:
    def __reduce__(self):
        return _not_here, (os.getpid(),)


def _not_here(pid):
    if pid != os.getpid():
        raise RuntimeError("not here")
    return _NotHere()


def _missing_module():
    import types

    module = types.ModuleType("module_that_is_nowhere")
    exec("def function(p): return p", module.__dict__)
    sys.modules[module.__name__] = module
    return module.function


def test_a_row_that_fails_under_skip_is_dropped_with_the_same_words():
    reports = []
    for runner in ("inline", "process"):
        with graph(runner=runner, on_error="skip").map(odd_fails) as pipeline:
            assert len(list(pipeline)) == 103
            reports.append(str(pipeline.drops))
    assert reports[0] == reports[1]


def test_a_process_that_cannot_be_started_is_an_error(monkeypatch):
    monkeypatch.setattr("multiprocessing.spawn.get_executable", lambda: "/nonexistent/python")
    with pytest.raises(WorkerError, match="can't be started"):
        list(graph().map(double))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"runner": "fork"}, "runner must be 'thread', 'process' or 'inline'"),
        ({"runner": "inline", "parallelism": 2}, "contradict"),
        ({"runner": "process", "parallelism": 0}, "contradict"),
    ],
)
def test_runners_that_cannot_be_are_refused_at_construction(settings, message):
    with pytest.raises(ConfigError, match=message):
        graph().map(double, **settings)


def test_the_runner_is_no_data_setting():
    assert graph().map(double).recipe == graph(runner="thread").map(double, runner="process").recipe


def test_a_node_of_the_users_whose_worker_holds_the_node_itself():
    class Adding(Node):
        kind = "adding"

        def __init__(self, source, amount, **settings):
            super().__init__(source, **settings)
            self.amount = amount

        def worker(self, setup):
            return lambda records: [record.replaced(record.payload["v"] + self.amount) for record in records]

    with graph(10, 1).then(Adding, 5, runner="process") as pipeline:
        assert sorted(pipeline) == list(range(5, 15))


# nothing is left behind (see also conftest, and the programs of test_exit)


@pytest.mark.parametrize("how", ["close", "break", "forgotten", "error in the loop", "to the end"])
def test_no_process_thread_or_descriptor_is_left(how):
    before = descriptors()
    pipeline = graph(400, parallelism=2).map(double).batch(2)
    iterator = iter(pipeline)
    next(iterator)
    pids = worker_pids()
    assert len(pids) == 2
    if how == "close":
        pipeline.close()
    elif how == "to the end":
        assert sum(len(batch) for batch in iterator) == 398
    elif how == "error in the loop":
        with pytest.raises(ZeroDivisionError):
            for _ in iterator:
                1 / 0
        pipeline.close()
    del iterator, pipeline
    gc.collect()
    assert gone(pids)
    assert not running() and descriptors() == before


def test_close_does_not_wait_for_a_function_that_hangs():
    def hangs(payload):
        if payload["v"] > 20:
            threading.Event().wait()
        return payload

    pipeline = graph(shuffle="none", lanes=1).map(hangs)
    next(iter(pipeline))
    pids = worker_pids()
    closer, _ = in_thread(pipeline.close)
    closer.join(LONG)
    assert not closer.is_alive()
    assert not any(map(alive, pids))


def test_next_in_another_thread_is_woken_by_close():
    def hangs(payload):
        threading.Event().wait()

    pipeline = graph().map(hangs)
    reader, got = in_thread(lambda: next(iter(pipeline)))
    while not worker_pids():
        time.sleep(0.01)
    pipeline.close()
    reader.join(LONG)
    assert not reader.is_alive() and "closed" in str(got[0])


def test_a_fork_of_the_trainer_leaves_the_workers_alone():
    iterator = iter(graph(2000).map(double))
    next(iterator)
    pid = os.fork()
    if pid == 0:
        try:
            iterator._loader.close()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert len(list(iterator)) == 1999


def test_a_fork_that_lives_on_does_not_keep_the_workers():
    pipeline = graph(2000).map(double)
    next(iter(pipeline))
    pids = worker_pids()
    pid = os.fork()
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    try:
        pipeline.close()
        assert not any(map(alive, pids))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_the_thread_that_first_asked_may_end():
    pipeline = graph(2000).map(double)
    iterator = iter(pipeline)
    reader, got = in_thread(lambda: next(iterator))
    reader.join(LONG)
    assert len(got) == 1
    assert len(list(iterator)) == 1999


def test_start_reading_and_closing_many_times_leaves_nothing(request):
    before = descriptors()
    for n in range(20 if request.config.getoption("--deep") else 4):
        with graph(50).map(double) as pipeline:
            assert len(list(itertools.islice(pipeline, n % 3))) == n % 3
    assert descriptors() == before and not worker_pids()


KEEPS = """
import itertools, os, resource, sys
import numpy as np
from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
def image(p):
    return {"x": np.full(20_000, p["v"] % 200, np.uint8)}
d = Dataset.from_rows("d", [{"v": i} for i in range(6400)])
p = Pipeline(StaticMixtureWorkSource([d], shuffle="none"), runner="process", parallelism=4).map(image).batch(2)
kept, counts = [], []
for batch in p:
    kept.append(batch)
    counts.append(len(os.listdir("/proc/self/fd")))
assert len(kept) >= 3000
assert all((q["x"] == (2 * i + j) % 200).all() for i, b in enumerate(kept) for j, q in enumerate(b.payloads))
print(max(counts[200:-1]) - min(counts[200:-1]), max(counts))
print([name for name in os.listdir("/dev/shm")])
"""


def test_three_thousand_batches_kept_with_256_descriptors():
    before = set(os.listdir("/dev/shm"))
    done = subprocess.run([sys.executable, "-c", KEEPS], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    grown, most = done.stdout.splitlines()[0].split()
    assert int(grown) <= 4 * 12 and int(most) < 150, "blocks are made as they are needed, and then no more"
    assert set(os.listdir("/dev/shm")) <= before


def test_workers_that_hops_share_take_what_is_nearest_to_the_trainer_first():
    from zephon_nodes.concurrency.tasks import WorkTask
    from zephon_nodes.concurrency.threads import _LastHopFirst
    from zephon_nodes.concurrency.wheel import STOP
    from zephon_nodes.plan import Hop

    first, last = Hop(["map"], 2, False), Hop(["map_batch"], 2, False)
    inbox, tasks = _LastHopFirst({1: first, 3: last}), []
    for hop in (first, last, first, last):
        tasks.append(WorkTask(hop, []))
        inbox.put(tasks[-1])
    assert [inbox.get_nowait() for _ in range(3)] == [tasks[1], tasks[3], tasks[0]] and inbox.qsize() == 1
    inbox.put(STOP)
    assert inbox.get() is tasks[2] and inbox.get() is STOP


def test_a_signal_handler_may_close_while_the_trainer_hands_a_task_to_shared_workers(monkeypatch):
    """The trainer runs the engine itself, so a handler may come in the middle of a queue: none may need a lock to be told to end."""
    from zephon_nodes.concurrency.threads import _LastHopFirst
    from zephon_nodes.concurrency.wheel import STOP, Stopped

    put, closed = _LastHopFirst.put, []

    def interrupted(self, task):
        if task is not STOP and len(closed) == 0 and threading.current_thread() is threading.main_thread():
            closed.append(True)
            self._tasks[id(task.hop)].put(task)
            pipeline.close()
            self._ready.put(task)
            return
        put(self, task)

    monkeypatch.setattr("zephon_nodes.concurrency.wheel._SHORT_SECONDS", 1e9)
    monkeypatch.setattr(_LastHopFirst, "put", interrupted)
    pipeline = (
        Pipeline(
            StaticMixtureWorkSource([Dataset.from_rows("d", [{"v": i} for i in range(4000)])]),
            runner="process",
            parallelism=1,
            prefetch=1,
        )
        .map(dict)
        .shuffle(4)
        .map(dict)
        .batch(2)
    )
    with pytest.raises(ClosedError):
        for _ in pipeline:
            pass
    assert closed and still_running() == []
    stop = Stopped()
    assert not stop.wait(0.0)
    stop.set()
    assert stop.wait(60.0) and stop.is_set()
