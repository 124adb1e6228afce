from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_nodes.errors import ConfigError, RowError
from zephon_nodes.packing import (
    ALGORITHMS,
    BestFit,
    BestFitWrap,
    FirstFit,
    Part,
    Wrap,
    check_overlong,
    overlong_reason,
    packer,
)

lengths_lists = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 60)), max_size=60)
limits = {"max_length": st.integers(1, 12), "num_bins": st.integers(1, 5), "cap": st.none() | st.integers(1, 4)}


def run(p, lengths):
    """(sequences before the flush, sequences of the flush)"""
    early = [sequence for doc, length in enumerate(lengths) for sequence in p.add(doc, length)]
    return early, p.flush()


def size(parts):
    return sum(part.stop - part.start for part in parts)


# Plain references: a bin is a list of (doc, start, stop); searched from end to end for each document.


def room(bin_, max_length):
    return max_length - sum(stop - start for _, start, stop in bin_)


def full(bin_, max_length, cap):
    return room(bin_, max_length) == 0 or len(bin_) == cap


def reference_wrap(pieces, max_length, cap):
    out, current = [], []
    for doc, start, stop in pieces:
        todo = deque([(start, stop)])
        while todo:
            start, stop = todo.popleft()
            middle = min(stop, start + room(current, max_length))
            current.append((doc, start, middle))
            if middle < stop:
                todo.append((middle, stop))
            if full(current, max_length, cap):
                out.append(current)
                current = []
    return out, [current] if current else []


def reference_fit(algorithm, lengths, max_length, num_bins, cap):
    out, bins = [], []  # bins in the order of opening

    def place(piece):
        need = piece[2] - piece[1]
        fitting = [b for b in bins if room(b, max_length) >= need]
        if not fitting and len(bins) == num_bins:
            return False
        if not fitting:
            bins.append([])
            fitting = [bins[-1]]
        chosen = fitting[0] if algorithm == "first_fit" else min(fitting, key=lambda b: room(b, max_length))
        chosen.append(piece)
        if full(chosen, max_length, cap):
            out.append(chosen)
            bins[:] = [b for b in bins if b is not chosen]
        return True

    for doc, length in enumerate(lengths):
        start = 0
        while length - start >= max_length:
            out.append([(doc, start, start + max_length)])
            start += max_length
        if start == length > 0:
            continue
        if not place((doc, start, length)):
            leaving = bins[0] if algorithm == "first_fit" else min(bins, key=lambda b: room(b, max_length))
            bins[:] = [b for b in bins if b is not leaving]
            out.append(leaving)
            if algorithm == "best_fit_wrap":
                middle = start + room(leaving, max_length)
                leaving.append((doc, start, middle))
                start = middle
            assert place((doc, start, length))
    if algorithm == "best_fit_wrap":
        early, late = reference_wrap([piece for b in bins for piece in b], max_length, cap)
        return out, early + late
    return out, bins


def plain(sequences):
    return [[(part.doc, part.start, part.stop) for part in sequence] for sequence in sequences]


@settings(deadline=None, max_examples=60)
@given(lengths=lengths_lists, **limits)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_equals_the_plain_reference(algorithm, lengths, max_length, num_bins, cap):
    early, late = run(packer(algorithm, max_length, num_bins, cap), lengths)
    if algorithm == "wrap":
        pieces = [(doc, 0, length) for doc, length in enumerate(lengths)]
        expected = reference_wrap(pieces, max_length, cap)
    else:
        expected = reference_fit(algorithm, lengths, max_length, num_bins, cap)
    assert (plain(early), plain(late)) == expected


@settings(deadline=None, max_examples=60)
@given(lengths=lengths_lists, **limits)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_loses_nothing_repeats_nothing_and_keeps_order(algorithm, lengths, max_length, num_bins, cap):
    early, late = run(packer(algorithm, max_length, num_bins, cap), lengths)
    parts = [part for sequence in early + late for part in sequence]
    for doc, length in enumerate(lengths):
        own = [part for part in parts if part.doc == doc]
        assert own, "every document is in some sequence, also an empty one"
        assert own[0].start == 0 and own[-1].stop == length
        assert all(a.stop == b.start for a, b in pairwise(own))
        assert {part.length for part in own} == {length}
        assert len(own) == 1 or all(part.start < part.stop for part in own)


@settings(deadline=None, max_examples=60)
@given(lengths=lengths_lists, **limits)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_sequences_keep_their_limits_and_only_their_last_part_is_cut(algorithm, lengths, max_length, num_bins, cap):
    early, late = run(packer(algorithm, max_length, num_bins, cap), lengths)
    for sequence in early + late:
        assert 1 <= len(sequence) <= (cap or len(sequence))
        assert size(sequence) <= max_length
        assert all(part.stop == part.length for part in sequence[:-1])
        if sequence[-1].stop < sequence[-1].length:
            assert size(sequence) == max_length, "a cut part always ends a full sequence"
        assert len({part.doc for part in sequence}) == len(sequence)


@settings(deadline=None, max_examples=60)
@given(lengths=lengths_lists, max_length=st.integers(1, 12), num_bins=st.integers(1, 5))
@pytest.mark.parametrize("algorithm", ["wrap", "best_fit_wrap"])
def test_the_wrap_kinds_give_at_most_one_short_sequence_a_flush(algorithm, lengths, max_length, num_bins):
    early, late = run(packer(algorithm, max_length, num_bins), lengths)
    assert all(size(sequence) == max_length for sequence in early + late[:-1])
    assert len(early) + len(late) - sum(lengths) // max_length <= 1


@settings(deadline=None, max_examples=60)
@given(lengths=lengths_lists, **limits)
@pytest.mark.parametrize("algorithm", ["first_fit", "best_fit"])
def test_the_fit_kinds_cut_only_what_is_too_long(algorithm, lengths, max_length, num_bins, cap):
    early, late = run(packer(algorithm, max_length, num_bins, cap), lengths)
    for sequence in early + late:
        for part in sequence:
            if part.length <= max_length:
                assert (part.start, part.stop) == (0, part.length)
    assert len(late) <= num_bins


@settings(deadline=None, max_examples=60)
@given(lengths=lengths_lists, cut=st.integers(0, 60), **limits)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_many_documents_at_once_are_one_after_another(algorithm, lengths, cut, max_length, num_bins, cap):
    single, many = (packer(algorithm, max_length, num_bins, cap) for _ in range(2))
    docs = range(len(lengths))
    one_by_one = [(taken, done) for taken, doc in enumerate(docs, 1) for done in single.add(doc, lengths[doc])]
    first, second = (many.add_all(docs[part], lengths[part]) for part in (slice(cut), slice(cut, None)))
    skipped = min(cut, len(lengths))
    assert first + [(skipped + taken, done) for taken, done in second] == one_by_one
    assert many.flush() == single.flush()


@settings(deadline=None, max_examples=60)
@given(before=lengths_lists, lengths=lengths_lists, **limits)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_flush_leaves_a_clean_packer(algorithm, before, lengths, max_length, num_bins, cap):
    used = packer(algorithm, max_length, num_bins, cap)
    run(used, before)
    assert used.flush() == []
    assert run(used, lengths) == run(packer(algorithm, max_length, num_bins, cap), lengths)


def test_wrap_by_hand():
    p = Wrap(4)
    assert p.add("a", 3) == []
    assert p.add("b", 6) == [[Part("a", 0, 3, 3), Part("b", 0, 1, 6)], [Part("b", 1, 5, 6)]]
    assert p.flush() == [[Part("b", 5, 6, 6)]]


def test_the_cap_closes_a_wrapped_sequence_early():
    p = Wrap(100, max_documents=2)
    assert p.add("a", 3) == []
    assert p.add("b", 0) == [[Part("a", 0, 3, 3), Part("b", 0, 0, 0)]]
    assert p.flush() == []


def test_first_fit_sends_off_the_oldest_and_best_fit_the_fullest():
    first, best = FirstFit(10, 2), BestFit(10, 2)
    for p in (first, best):
        assert p.add("a", 6) == p.add("b", 8) == []
    assert first.add("c", 5) == [[Part("a", 0, 6, 6)]]
    assert best.add("c", 5) == [[Part("b", 0, 8, 8)]]


def test_first_fit_takes_the_first_bin_with_room_and_best_fit_the_fullest():
    first, best = FirstFit(10, 2), BestFit(10, 2)
    for p in (first, best):
        p.add("a", 6)
        p.add("b", 7)
    assert first.add("c", 3) == []
    assert best.add("c", 3) == [[Part("b", 0, 7, 7), Part("c", 0, 3, 3)]]


def test_best_fit_wrap_fills_the_fullest_bin_with_the_head_of_a_document():
    p = BestFitWrap(10, 2)
    p.add("a", 6)
    p.add("b", 8)
    assert p.add("c", 5) == [[Part("b", 0, 8, 8), Part("c", 0, 2, 5)]]
    assert p.flush() == [[Part("a", 0, 6, 6), Part("c", 2, 5, 5)]]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_empty_documents_only_come_out_at_the_flush(algorithm):
    p = packer(algorithm, 4, 2)
    assert p.add("a", 0) == p.add("b", 0) == []
    assert p.flush() == [[Part("a", 0, 0, 0), Part("b", 0, 0, 0)]]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_parts_of_a_long_document_grow_with_its_length_only(algorithm):
    counts = []
    for length in (100_000, 200_000):
        p = packer(algorithm, 100, 4)
        p.add("short", 1)
        counts.append(sum(map(len, p.add("long", length) + p.flush())))
    assert counts[1] - counts[0] == 1000


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "8", None])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_wrong_numbers_are_refused(algorithm, value):
    with pytest.raises(ConfigError, match="max_length="):
        packer(algorithm, value, 1)
    with pytest.raises(ConfigError, match="num_bins="):
        packer(algorithm, 8, value)
    if value is not None:
        with pytest.raises(ConfigError, match="max_documents="):
            packer(algorithm, 8, 1, value)


def test_an_unknown_algorithm_is_refused_with_the_list():
    with pytest.raises(ConfigError, match=r"'worst_fit'.*'wrap', 'first_fit', 'best_fit', 'best_fit_wrap'"):
        packer("worst_fit", 8, 1)


def test_overlong_policies():
    for policy in ("split", "drop", "raise"):
        check_overlong(policy)
        assert overlong_reason(8, 8, policy) is None
    with pytest.raises(ConfigError, match="'skip'"):
        check_overlong("skip")
    assert overlong_reason(9, 8, "split") is None
    assert overlong_reason(9, 8, "drop") == "longer than max_length=8"
    with pytest.raises(RowError, match=r'9 tokens.*max_length is 8.*overlong="raise"'):
        overlong_reason(9, 8, "raise")
