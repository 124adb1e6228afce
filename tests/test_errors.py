import copy
import pickle
import traceback

import pytest

from zephon_nodes import (
    ClosedError,
    ConfigError,
    Dataset,
    Pipeline,
    Pointer,
    ReadError,
    RowError,
    StateError,
    ZephonError,
)
from zephon_nodes import StaticMixtureWorkSource as Mixture

AT = Pointer("wiki", 1, 7)
ERRORS = [
    ConfigError("num_lanes must be at least 1"),
    ReadError("can't open it", path="s3://bucket/a.parquet"),
    ReadError("no path known"),
    RowError("map failed", node="map", lane=3, origins=(AT, AT), where="row 7 of a.parquet"),
    RowError("only a message"),
    StateError("another recipe:\n  seed: 1 -> 2"),
    ClosedError("closed"),
    ZephonError(),
]


class Own(RowError):
    """A user's own, with arguments that her constructor insists on: plain pickling of exceptions fails on those."""

    def __init__(self, code, *, detail):
        super().__init__(f"error {code}", node="mine")
        self.code, self.detail = code, detail


class OwnRead(ReadError):
    def __init__(self, bucket, *, key):
        super().__init__(f"no {key} in {bucket}", path=f"s3://{bucket}/{key}")
        self.bucket = bucket


class OwnConfig(ConfigError):
    def __init__(self, setting, *, value):
        super().__init__(f"{setting} can't be {value}")
        self.setting = setting


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_passes_a_process_border_whole(error, protocol):
    back = pickle.loads(pickle.dumps(error, protocol))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args
    assert vars(back) == vars(error)


OWN = [Own(7, detail="x"), OwnRead("b", key="k"), OwnConfig("size", value=3)]


@pytest.mark.parametrize("error", OWN, ids=lambda error: type(error).__name__)
def test_errors_derived_from_ours_with_arguments_of_their_own_do_too(error):
    """torch #34130: the user saw "__init__() missing 1 required argument" instead of what went wrong."""
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))
    assert str(copy.copy(error)) == str(copy.deepcopy(error)) == str(error)


def test_facts_set_later_and_notes_go_along():
    error = RowError("failed", node="map")
    error.lane = 5
    error.__notes__ = ["on rank 3"]
    back = pickle.loads(pickle.dumps(error))
    assert (back.lane, back.__notes__) == (5, ["on rank 3"])


def fails(payload):
    raise ZeroDivisionError("no tokens")


def test_the_cause_is_there_after_a_process_border():
    """What the user's function raised, and where: that is what she has to mend."""
    rows = Dataset.from_rows("mine", [{"v": 1}])
    with pytest.raises(RowError) as caught:
        list(Pipeline(Mixture([rows]), runner="inline").map(fails))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    back = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(back.__cause__, ZeroDivisionError)
    assert str(back.__cause__) == "no tokens"


def test_a_row_error_names_node_dataset_file_row_and_cause():
    rows = Dataset.from_rows("mine", [{"v": 1}])
    with pytest.raises(RowError, match=r"wash failed on row 0 of rows.*'mine'.*ZeroDivisionError: no tokens") as caught:
        list(Pipeline(Mixture([rows])).map(fails, name="wash"))
    error = caught.value
    assert (error.node, error.lane, error.origins) == ("wash", 0, (Pointer("mine", 0, 0),))
    assert "mine" in error.where
    assert "in fails" in "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    ("kind", "plain"),
    [(ConfigError, ValueError), (StateError, ValueError), (ReadError, OSError), (ClosedError, RuntimeError)],
)
def test_code_that_catches_python_s_own_kinds_catches_ours(kind, plain):
    assert issubclass(kind, plain)
    assert issubclass(kind, ZephonError)


@pytest.mark.parametrize("kind", [ConfigError, RowError, StateError, ClosedError])
def test_only_trouble_with_files_is_an_os_error(kind):
    assert not issubclass(kind, OSError)
