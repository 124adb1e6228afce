"""A graph as text: what runs where, and what decides about the data."""

from __future__ import annotations

import threading

from tokenizers_for_tests import train_tokenizer

from zephon_nodes import Dataset, Loader, Node, Pipeline, StaticMixtureWorkSource
from zephon_nodes.describe import describe


def rows(lanes=2, **options):
    dataset = Dataset.from_rows("wiki", [{"text": f"row {i}", "v": i} for i in range(30)])
    return Pipeline(StaticMixtureWorkSource([dataset], None, lanes, seed=7), **options)


def double(payload):
    return payload


def line(text, word):
    """The one line that begins with a word."""
    (found,) = [part for part in text.splitlines() if part.split()[:1] == [word]]
    return found


def test_the_source_says_lanes_seed_and_rows():
    first = rows(lanes=6).describe().splitlines()[0]
    assert first.startswith("StaticMixtureWorkSource: 6 lanes")
    assert "seed=7" in first and "30 rows" in first and "wiki" in first


def test_every_node_has_a_line_in_the_order_of_the_graph():
    text = rows().map(double).filter(double, name="odd").shuffle(9).batch(4).take(2).describe()
    assert [part.split()[0] for part in text.splitlines()[1:]] == ["read", "map", "odd", "shuffle", "batch", "take"]
    assert "odd (filter)" in text
    assert "buffer_size=9" in line(text, "shuffle") and "rounds=2" in line(text, "take")
    assert "double" in line(text, "map")


def test_fused_nodes_share_a_hop_and_others_do_not():
    text = rows(parallelism=3).map(double, name="a").map(double, name="b").batch(4).describe()
    assert "hop 1, 3 threads" in line(text, "read")
    assert "hop 1, 3 threads" in line(text, "a") and "hop 1, 3 threads" in line(text, "b")
    assert "driver" in line(text, "batch") and "hop 1" not in line(text, "batch")
    text = rows().map(double, name="a", parallelism=2).map(double, name="b", parallelism=5).describe()
    assert "hop 1, 2 threads" in line(text, "a")
    assert "hop 2, 5 threads" in line(text, "b")


def test_inline_everything_is_the_drivers():
    text = rows(runner="inline").map(double, parallelism=4).batch(2).describe()
    assert "threads" not in text and text.count("driver") == 3


def test_long_settings_are_cut_and_digests_shortened():
    text = rows().tokenize(train_tokenizer(), "text").pack_flat(16).batch(2).describe()
    assert max(map(len, text.split(", "))) < 200
    assert not [word for word in text.replace("=", " ").replace(",", " ").split() if len(word) == 64]


def test_a_node_of_the_users_is_described_like_any_other():
    class Own(Node):
        kind = "own"

        def settings(self):
            return {"strength": 11, "nothing": None}

        def worker(self, setup):
            return lambda records: records

    text = describe(rows().then(Own).node, 2)
    assert "strength=11" in line(text, "own") and "nothing" not in text


def test_ipython_shows_the_same_text():
    class Printer:
        def text(self, said):
            self.said = said

    printer, pipeline = Printer(), rows().batch(2)
    pipeline._repr_pretty_(printer, cycle=False)
    assert printer.said == pipeline.describe()


def test_describing_reads_no_row_and_starts_no_thread():
    def fail(payload):
        raise AssertionError("a row was read")

    before = threading.active_count()
    pipeline = rows().map(fail).batch(2)
    assert str(pipeline) == pipeline.describe()
    assert threading.active_count() == before
    assert isinstance(pipeline.loader, Loader)
