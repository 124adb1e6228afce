"""Import paths lead to a thing and back."""

import functools
import json

import pytest
from graphs import Delay, double

from zephon_nodes.errors import ConfigError
from zephon_nodes.import_path import import_path, imported


class Outer:
    class Inner:
        pass

    @classmethod
    def made(cls):
        return cls()


@pytest.mark.parametrize("thing", [double, Delay, json.dumps, len, Outer.Inner, Outer.made, dict.fromkeys])
def test_there_and_back(thing):
    if thing == dict.fromkeys:
        with pytest.raises(ValueError, match="no import path"):
            import_path(thing)
    else:
        assert imported(import_path(thing), "here") == thing


def test_what_has_no_path_says_why(monkeypatch):
    def inside():
        pass

    for thing, why in [
        (lambda row: row, "a lambda has no import path; put it into a module"),
        (inside, "inside, made inside a function,"),
        (functools.partial(double), "a partial has no import path"),
    ]:
        with pytest.raises(ValueError, match=why):
            import_path(thing)
    monkeypatch.setattr(double, "__module__", "__main__")
    with pytest.raises(ValueError, match="double is defined in the program or notebook itself"):
        import_path(double)


def test_a_name_that_means_something_else_by_now_is_refused(monkeypatch):
    old = double
    monkeypatch.setattr("graphs.double", len)
    with pytest.raises(ValueError, match="graphs:double names another object now"):
        import_path(old)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("graphs.double", "is no import path; write 'package.module:function'"),
        ("graphs:", "is no import path"),
        (3, "is no import path"),
        ("no_such_module:f", "can't be imported: No module named 'no_such_module'"),
        ("graphs:trouble", "isn't there: module 'graphs' has no attribute 'trouble'"),
    ],
)
def test_what_a_path_does_not_lead_to(path, said):
    with pytest.raises(ConfigError, match=f"here: .*{said}"):
        imported(path, "here")
