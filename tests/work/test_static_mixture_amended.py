"""Amendments of a source: nothing changes before them, and after them chunks are what the definition says."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mixture_by_hand import chunks_by_hand, clock
from mixtures import counted, lane_rows

from zephon_nodes import ConfigError, Dataset, Phases, StaticMixtureWorkSource, TokenEstimation

WEIGHT = st.sampled_from([0, 1, "0.5", "1/3"])


def dataset(name, units=10):
    return counted(name, [[8] * units + [3]])[0]


def source(weights=None, names="ab", lanes=2, chunk_size=8, flush_every=2, **settings):
    weights = dict.fromkeys(names, 1) if weights is None else weights
    return StaticMixtureWorkSource(
        [dataset(name) for name in names], weights, lanes, chunk_size, flush_every, **settings
    )


@st.composite
def histories(draw):
    """(sources, amendments): the first source, and each one amended from it: (epoch, span, weights)."""
    stop = draw(st.sampled_from(["last", "first", "redistribute"]))
    first = source(
        {"a": draw(st.sampled_from([1, "1/3"])), "b": 1},
        lanes=draw(st.sampled_from([1, 3])),
        chunk_size=draw(st.sampled_from([5, 16])),
        flush_every=draw(st.sampled_from([1, 2])),
        shuffle=draw(st.sampled_from(["windows", "global", "none"])),
        stop=stop,
        seed=draw(st.integers(0, 9)),
    )
    sources, said, names = [first], [], ["a", "b"]
    at = (0, 0)
    for n in range(draw(st.integers(1, 3))):
        at = draw(st.sampled_from([(at[0], at[1] + 1), (at[0], at[1] + 2), (at[0] + 1, 1), (at[0] + 1, 2)]))
        new = [f"new{n}"] if draw(st.booleans()) else []
        names += new
        weights = draw(st.fixed_dictionaries({name: WEIGHT for name in names}).filter(lambda w: any(w.values())))
        weights |= dict.fromkeys(new, 1)
        try:
            changed = sources[-1].amended(at[1], weights, [dataset(name, 3) for name in new], epoch=at[0])
        except ConfigError as error:
            assert "end" in str(error), "only what comes after the end of its epoch may be refused"
            assume(False)
        sources.append(changed)
        said.append((*at, weights))
    return sources, said


def rows(chunk):
    return [] if chunk is None else list(chunk)


@given(histories())
def test_everything_before_an_amendment_stays_as_it_was(history):
    sources, said = history
    for before, after, (epoch, span, _) in zip(sources, sources[1:], said, strict=False):
        for earlier in range(epoch + 1):
            upto = span * before.flush_every if earlier == epoch else (before.chunks(earlier) or 0) + 1
            for lane in range(before.num_lanes):
                for index in range(upto):
                    was = rows(before.chunk(lane, index, earlier))
                    assert rows(after.chunk(lane, index, earlier)) == was, f"epoch {earlier} lane {lane} chunk {index}"


def test_a_dataset_that_retires_takes_nothing_back():
    """ "a" is still being gone through at the amendment, and "b" has had its pass, so "b" alone would have ended the epoch."""
    before = StaticMixtureWorkSource([dataset("a", 100), dataset("b", 2)], {"a": 1, "b": 1}, 1, 8, 2, shuffle="none")
    assert before.chunks() > 40
    after = before.amended(10, {"b": 1})
    for index in range(20):
        assert rows(after.chunk(0, index)) == rows(before.chunk(0, index)), f"chunk {index}"


@pytest.mark.parametrize("stop", ["last", "first", "redistribute"])
def test_an_amendment_after_the_end_is_refused_or_changes_nothing_before_it(stop):
    """A tired user counts spans in steps. The epoch must not grow by half a chunk of repeats on the way there."""
    before = source(stop=stop)
    beyond = before.chunks() // 2 + 10
    try:
        after = before.amended(beyond, {"a": 1, "c": 1}, [dataset("c")])
    except ConfigError as error:
        assert "end" in str(error)
    else:
        for lane in range(2):
            for index in range(2 * beyond):
                assert rows(after.chunk(lane, index)) == rows(before.chunk(lane, index)), f"chunk {index}"


@settings(max_examples=15)
@given(histories(), st.integers(0, 2))
def test_chunks_of_an_amended_source_are_what_the_definition_says(history, epoch):
    """An epoch begins with the last mixture of those before it; a new dataset begins with its first row."""
    sources, said = history
    last = sources[-1]
    current = [{"a": last.phases(0)[0].shares["a"], "b": last.phases(0)[0].shares["b"]}]
    current += [weights for at, _, weights in said if at < epoch]
    phases = [(0, current[-1])] + [(span * last.flush_every, weights) for at, span, weights in said if at == epoch]
    time = clock(last, phases)
    assume(len(phases) == 1 or time.end > phases[-1][0])
    want = chunks_by_hand(last, time, epoch)
    for (lane, index), pointers in want.items():
        assert rows(last.chunk(lane, index, epoch)) == pointers, f"chunk {index} of lane {lane}"
    assert not any(last.chunk(lane, 1 + max(index for _, index in want), epoch) for lane in range(last.num_lanes))


@pytest.mark.parametrize("shuffle", ["windows", "none"])
def test_a_new_dataset_is_read_from_its_first_row_on_in_every_lane(shuffle):
    """As much as if it had been alone from the start: the same rows in the same order."""
    alone = StaticMixtureWorkSource([dataset("c")], None, 2, 8, 2, shuffle=shuffle)
    added = source(shuffle=shuffle, stop="redistribute").amended(3, {"a": 1, "c": 1}, [dataset("c")])
    for lane in range(2):
        assert [at for at in lane_rows(added, lane) if at.dataset == "c"] == lane_rows(alone, lane)


def test_redistribute_gives_every_row_once_across_amendments():
    changed = source(stop="redistribute").amended(2, {"a": 1, "b": 3, "c": 1}, [dataset("c", 4)])
    changed = changed.amended(4, {"a": 2, "b": 1, "c": 1, "d": 1}, [dataset("d", 2)])
    for epoch in range(2):
        seen = sorted((at.dataset, at.row) for lane in range(2) for at in lane_rows(changed, lane, epoch))
        assert seen == [(d.name, row) for d in changed.datasets for row in range(d.rows)]


def test_an_amendment_may_bring_phases_which_count_from_it():
    changed = source().amended(2, Phases([(0, {"a": 1}), (3, {"b": 1})]))
    assert [(phase.start, phase.shares) for phase in changed.phases()][1:] == [(4, {"a": 1}), (7, {"b": 1})]
    assert [(phase.start, phase.shares) for phase in changed.phases(1)] == [(0, {"a": 1}), (3, {"b": 1})]


def test_what_was_planned_after_an_amendment_is_planned_no_more():
    planned = source(Phases([(0, {"a": 1, "b": 1}), (9, {"b": 1})]), passes=None)
    assert [phase.start for phase in planned.amended(2, {"a": 1, "b": 2}).phases()] == [0, 4]
    assert [phase.start for phase in planned.amended(6, {"a": 1, "b": 2}).phases()] == [0, 9, 12]


def test_the_next_epoch_can_begin_with_another_mixture():
    """Span 0 of an epoch to come is before everything that has been read."""
    changed = source().amended(0, {"a": 1}, epoch=1)
    assert {at.dataset for at in lane_rows(changed, 0, 0)} == {"a", "b"}
    assert {at.dataset for at in lane_rows(changed, 0, 1)} == {"a"}


def test_an_amendment_takes_nested_weights_as_the_construction_does():
    changed = source().amended(2, {"a": 1, "web": (1, {"b": 1, "c": 3})}, [dataset("c")])
    assert {name: str(share) for name, share in changed.phases()[-1].shares.items()} == {
        "a": "1/2",
        "b": "1/8",
        "c": "3/8",
    }


def test_the_source_that_was_amended_stays_as_it_is():
    before = source()
    recipe, first = before.recipe(), rows(before.chunk(0, 4))
    before.amended(2, {"c": 1}, [dataset("c")])
    assert before.recipe() == recipe
    assert rows(before.chunk(0, 4)) == first


# what a tired user gets wrong


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"at": 0}, "after the last one|at least 1"),
        ({"at": -1}, "at must be an integer of at least"),
        ({"at": 2.0}, "at must be an integer"),
        ({"at": True}, "at must be an integer"),
        ({"at": 2, "epoch": -1}, "epoch must be an integer of at least 0"),
        ({"at": 2, "mixture": {"a": 1, "c": 1}}, r"\['c'\].*add=\[...\]"),
        ({"at": 2, "mixture": {"a": 0, "b": 0}}, "positive weight"),
        ({"at": 2, "mixture": {"a": -1}}, "'a'.*positive"),
        ({"at": 2, "mixture": {}}, "positive weight"),
        ({"at": 2, "mixture": None}, "dict of weights"),
        ({"at": 2, "mixture": [1, 2]}, "dict of weights"),
        ({"at": 2, "add": [dataset("b")]}, "different names.*'b'.*rename"),
        ({"at": 2, "mixture": {"c": 1}, "add": [Dataset.from_rows("c", [])]}, "'c'.*no rows"),
        ({"at": 2, "add": ["c.parquet"]}, "list of Dataset"),
        ({"at": 2, "add": None}, "list of Dataset"),
        ({"at": 2, "mixture": {"a": 1}, "add": [dataset("c")]}, "'c'"),
        ({"at": 2, "mixture": Phases([(0, {"a": 1})], unit="tokens")}, r"token_estimation=TokenEstimation\(\)"),
    ],
)  # fmt: skip
def test_an_amendment_that_can_not_be_is_refused_with_what_to_do(arguments, words):
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        source().amended(**{"mixture": {"a": 1, "b": 1}, **arguments})


def test_a_dataset_that_is_not_in_a_list_is_refused_unread():
    """Forgetting the brackets must not read the whole corpus to print it."""
    forgotten, reads = counted("c", [[8] * 50])
    with pytest.raises(ConfigError, match="list of Dataset"):
        source().amended(2, {"a": 1, "c": 1}, forgotten)
    assert sum(reads.values()) == 0


@pytest.mark.parametrize("where", [(0, 2), (0, 3), (1, 1)])
def test_amendments_come_one_after_the_other(where):
    twice = source().amended(3, {"a": 1}).amended(1, {"b": 1}, epoch=1)
    with pytest.raises(ConfigError, match="after the last one, at span 1 of epoch 1"):
        twice.amended(where[1], {"a": 1}, epoch=where[0])


def test_tokens_of_a_new_dataset_are_measured_before_anything_is_read():
    changed = source(token_estimation=TokenEstimation({"a": 3, "b": 4})).amended(2, {"c": 1}, [dataset("c")])
    assert changed.unmeasured() == ["c"]
    with pytest.raises(ConfigError, match=r"\['c'\].*source.measured"):
        changed.chunk(0, 0)
    assert changed.measured({"c": 5}).chunk(0, 0) is not None
