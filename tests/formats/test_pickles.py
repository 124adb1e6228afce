import collections
import datetime
import pickle

import pytest

from zephon_nodes.formats.mds_values import value_reader
from zephon_nodes.formats.pickles import unpickled

PLAIN = [None, True, 2**70, 1.5, "ü", b"x", [1, [2]], (1,), {"a": {1, 2}}, frozenset({3})]


@pytest.mark.parametrize("value", PLAIN)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_need_no_leave(value, protocol):
    assert unpickled(memoryview(pickle.dumps(value, max(protocol, 4))), False) == value


def test_what_names_a_class_needs_leave():
    value = [datetime.date(2026, 1, 2), collections.OrderedDict(a=1)]
    piece = memoryview(pickle.dumps(value))
    with pytest.raises(ValueError, match=r"the pickle names datetime\.date, .*allow_pickle=True"):
        unpickled(piece, False)
    assert unpickled(piece, True) == value
    assert value_reader("pkl", True)(piece) == value


class Evil:
    def __reduce__(self):
        return print, ("this must not run",)


def test_code_does_not_run_without_leave(capsys):
    with pytest.raises(ValueError, match=r"names builtins\.print"):
        unpickled(memoryview(pickle.dumps(Evil())), False)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("allow", [True, False])
@pytest.mark.parametrize("data", [b"", b"junk", pickle.dumps([1] * 99)[:20]])
def test_broken_pickles(data, allow):
    with pytest.raises(ValueError, match="it can't be unpickled: "):
        unpickled(memoryview(data), allow)
