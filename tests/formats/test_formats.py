import pytest

from zephon_nodes import formats
from zephon_nodes.errors import ConfigError
from zephon_nodes.formats import format_for, format_named, known_suffixes, register_format


class Text:
    name = "verse"
    suffixes = (".verse", ".b.jsonl")

    def open(self, file, columns):
        raise NotImplementedError


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    monkeypatch.setattr(formats, "_formats", dict(formats._formats))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.parquet", "parquet"),
        ("d/a.PQ", "parquet"),
        ("a.jsonl", "jsonl"),
        ("a.b.ndjson.zst", "jsonl"),
        ("a.jsonl.gz", "jsonl"),
    ],
)
def test_suffixes(name, expected):
    assert format_for(name).name == expected
    assert format_named(expected) is format_for(name)


@pytest.mark.parametrize("name", ["a.json", "a.gz", "parquet", "a.parquet.gz", ""])
def test_unknown_suffixes_list_the_known(name):
    with pytest.raises(ConfigError, match=r"known: \.parquet, \.pq, \.jsonl, .*fmt="):
        format_for(name)


def test_unknown_names_list_the_known():
    with pytest.raises(ConfigError, match="fmt='csv': no format has this name; known: parquet, jsonl"):
        format_named("csv")


def test_a_registered_format_is_found_and_the_longest_suffix_wins():
    register_format(Text())
    assert format_for("x.verse").name == format_named("verse").name == "verse"
    assert format_for("x.b.jsonl").name == "verse"
    assert format_for("x.jsonl").name == "jsonl"
    assert ".verse" in known_suffixes()


def test_registering_again_replaces():
    register_format(Text())
    newer = Text()
    register_format(newer)
    assert format_named("verse") is newer


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("name", "", "a format needs a name"),
        ("suffixes", (".pq",), "suffix '.pq' belongs to format 'parquet'"),
        ("suffixes", ("txt",), "starts with a dot; got 'txt'"),
        ("suffixes", (".TXT",), "lower case"),
    ],
)
def test_a_format_that_does_not_fit_is_refused_and_not_kept(attribute, value, message):
    fmt = Text()
    setattr(fmt, attribute, value)
    with pytest.raises(ConfigError, match=message):
        register_format(fmt)
    assert "verse" not in formats._formats
