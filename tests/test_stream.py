import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_nodes.hashing import MASK
from zephon_nodes.pack_node import packed_record
from zephon_nodes.packing import Part
from zephon_nodes.stream import (
    Cut,
    Drop,
    End,
    Failure,
    Flush,
    Pointer,
    Record,
    Run,
    Together,
    merged,
    pass_number,
    pointers_of,
    rows_in,
    split_pass,
)
from zephon_nodes.work.base import Chunk, identity

A, B, C = Pointer("wiki", 0, 7), Pointer("wiki", 1, 7), Pointer("news", 0, 7, 1)


def test_a_replaced_payload_leaves_everything_else():
    record = Record({"v": 1}, 11, (A,), Cut(2, 3, "token"))
    other = record.replaced(None)
    assert (other.payload, other.identity, other.origins, other.cut) == (None, 11, (A,), Cut(2, 3, "token"))
    assert record.payload == {"v": 1}


def test_parts_of_a_record_have_identities_of_their_own_and_its_origins():
    record = Record("abc", 11, (A, B), Cut(0, 1))
    parts = [record.child(letter, i) for i, letter in enumerate("abc")]
    assert [part.payload for part in parts] == ["a", "b", "c"]
    assert len({11, *(part.identity for part in parts)}) == 4
    assert all(part.origins == (A, B) and part.cut == Cut(0, 1) for part in parts)
    assert [part.identity for part in parts] == [record.child("other", i).identity for i in range(3)]


def test_a_merged_record_has_the_origins_of_its_parts_in_order():
    one, two = Record(1, 11, (A, B)), Record(2, 22, (C,))
    both, reverse = merged("x", [one, two]), merged("x", [two, one])
    assert (both.payload, both.origins, both.cut) == ("x", (A, B, C), None)
    assert reverse.origins == (C, A, B)
    assert both.identity != reverse.identity
    assert merged("y", [one, two]).identity == both.identity
    assert merged("x", []).origins == ()


def together(count, first=0):
    pointers = [Pointer("ab"[i % 3 == 0], i % 2, i, i // 4) for i in range(first + count + 2)]
    chunk = Chunk.of(pointers, ["a", "b"])
    return Together([{"n": i} for i in range(count)], Run(chunk, first, first + count)), pointers[first : first + count]


@given(st.integers(1, 9), st.integers(0, 3), st.data())
def test_rows_that_were_read_together_are_the_records_that_they_are_apart(count, first, data):
    rows, pointers = together(count, first)
    records = rows.records()
    assert [record.payload for record in records] == [row.payload for row in rows.rows()] == rows.payloads
    assert [record.origins for record in records] == [row.origins for row in rows.rows()] == [(at,) for at in pointers]
    assert [record.identity for record in records] == [identity(at) for at in pointers]
    assert [row.identity for row in rows.rows()] == [identity(at) for at in pointers]
    cut = data.draw(st.integers(0, count))
    parts = [rows.part(0, cut), rows.part(cut, count)]
    assert [record.origins for part in parts for record in part.records()] == [(at,) for at in pointers]
    runs = [part.run for part in parts]
    by_runs, one_by_one = Record("x", [*runs], [*runs]), merged("x", records)
    assert by_runs.identity == one_by_one.identity
    assert rows_in(by_runs.made_of) == rows_in(one_by_one.made_of) == count
    assert by_runs.origins == pointers_of(one_by_one.made_of) == one_by_one.origins == tuple(pointers)
    assert merged("y", [by_runs, one_by_one]).origins == tuple(pointers * 2)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=6))
def test_a_sequence_of_rows_is_that_of_their_records(places):
    rows, _ = together(6)
    of_rows = packed_record("x", [Part(rows.rows()[i], start, start + n, 9) for i, start, n in places])
    apart = packed_record("x", [Part(rows.records()[i], start, start + n, 9) for i, start, n in places])
    mixed = packed_record(
        "x",
        [Part((rows.rows() if k % 2 else rows.records())[i], s, s + n, 9) for k, (i, s, n) in enumerate(places)],
    )
    for other in (apart, mixed):
        assert rows_in(of_rows.made_of) == rows_in(other.made_of) == len(places)
        assert (of_rows.identity, of_rows.origins, of_rows.parts) == (other.identity, other.origins, other.parts)


@given(st.lists(st.integers(0, MASK), max_size=4), st.lists(st.integers(0, MASK), max_size=4))
def test_merged_records_of_other_members_have_other_identities(ones, others):
    one, other = (merged(None, [Record(None, i, ()) for i in members]) for members in (ones, others))
    assert (one.identity == other.identity) == (ones == others)
    assert 0 <= one.identity <= MASK


def test_how_records_are_split_and_merged_again_can_be_told_from_the_identity():
    """Else a random crop of a part and of the whole would be the same."""
    record = Record(None, 11, (A,))
    first, second = record.child(None, 0), record.child(None, 1)
    made = [record, first, second, first.child(None, 0), merged(None, [record]), merged(None, [first, second])]
    made += [merged(None, [merged(None, [first]), second]), merged(None, [first]), merged(None, [record, record])]
    assert len({part.identity for part in made}) == len(made)


@pytest.mark.parametrize("payload", [None, 0, "", [], {"a": None}, float("nan")])
def test_none_and_other_empty_things_are_payloads_like_any_other(payload):
    record = Record(payload, 0, ())
    assert record.payload is payload
    assert record.replaced(payload).child(payload, 0).payload is payload


def test_a_record_can_not_take_fields_by_mistake():
    for item in (Record(1, 2, ()), Drop("map", "why", ()), Failure(ValueError())):
        with pytest.raises(AttributeError):
            item.lane = 3


@pytest.mark.parametrize("item", [Record({"v": 1}, 5, (A, C), Cut(1, 2)), Drop("map", "ValueError: x", (A,), True)])
def test_items_cross_a_process_border(item):
    back = pickle.loads(pickle.dumps(item))
    assert all(getattr(back, name) == getattr(item, name) for name in item.__slots__)
    assert repr(back) == repr(item)


def test_marks_are_equal_by_what_they_say():
    assert Flush(1, 2) == Flush(1, 2, None) != Flush(1, 2, "token")
    assert Cut(0, 0) != Cut(0, 1)
    assert End(1) != End(2)
    assert not isinstance(Flush(1, 2), (End, Cut))


def test_what_a_person_debugging_sees_names_row_and_reason():
    assert "row=7" in repr(Record("text", 5, (A,)))
    assert "'text'" in repr(Record("text", 5, (A,)))
    drop = repr(Drop("clean", "ValueError: too short", (B,)))
    assert all(word in drop for word in ("clean", "too short", "wiki", "shard=1", "row=7"))


EPOCH, PASS = st.integers(0, 2**31 - 1), st.integers(0, 2**32 - 1)


@given(EPOCH, PASS, EPOCH, PASS)
def test_every_pass_of_every_epoch_has_a_number_of_its_own(epoch, pass_, other_epoch, other_pass):
    one, other = pass_number(epoch, pass_), pass_number(other_epoch, other_pass)
    assert split_pass(one) == (epoch, pass_)
    assert (one == other) == ((epoch, pass_) == (other_epoch, other_pass))
    assert (one < other) == ((epoch, pass_) < (other_epoch, other_pass))
    assert 0 <= one < 2**63
