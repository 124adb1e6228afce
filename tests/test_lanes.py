"""Lanes, ranks and rounds at the end of finite data, against plain lists; ranks of a simulated world wait for each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import World

from zephon_nodes.engine import LaneEnd, LaneFailure, Output
from zephon_nodes.errors import ConfigError
from zephon_nodes.lanes import Blank, Rounds, legal_worlds, owned_lanes
from zephon_nodes.stream import Cut


def events(lengths, given, ended, knows, failing=None):
    """What the engine of a rank gives: the outputs of its lanes in the order of turns, an end each. ``knows``: how many
    more finished outputs of a lane the engine has at hand when it gives one, so what it is sure of."""
    lanes, round_ = [lane for lane in lengths if lane not in ended], 0
    while lanes:
        for lane in list(lanes):
            if round_ < given[lane]:
                continue
            if failing == (lane, round_):
                yield LaneFailure(lane, ValueError("broken"))
                return
            if round_ < lengths[lane]:
                yield Output(lane, (lane, round_), Cut(0, 0), (), min(lengths[lane], round_ + 1 + knows))
            else:
                lanes.remove(lane)
                yield LaneEnd(lane, ())
        round_ += 1


def plain(turn):
    if isinstance(turn, Output):
        return turn.payload
    return ("blank", turn.lane) if isinstance(turn, Blank) else ("failed", turn.lane)


def one_rank(lengths, at_end, agree, knows=0, given=None, ended=(), failing=None):
    given = given or dict.fromkeys(lengths, 0)
    left = events(lengths, given, ended, knows, failing)
    rounds = Rounds(given, set(ended), at_end, lambda: next(left), agree)
    out = []
    while (turn := rounds.next()) is not None:
        if not isinstance(turn, LaneEnd):
            out.append(plain(turn))
        if isinstance(turn, LaneFailure):
            break
    rest = [plain(event) for event in rounds.rest() if isinstance(event, Output)] if turn is None else []
    return out, rest


def alone(rounds, largest):
    return rounds


LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=8)


@given(LENGTHS, st.integers(0, 3))
def test_ragged_passes_over_lanes_that_have_ended(lengths, knows):
    want = [(lane, r) for r in range(max(lengths)) for lane, n in enumerate(lengths) if r < n]
    assert one_rank(dict(enumerate(lengths)), "ragged", alone, knows) == (want, [])


@given(LENGTHS, st.sampled_from([1, 2, 4]), st.lists(st.integers(0, 3), min_size=4, max_size=4), st.integers(0, 7))
def test_pad_gives_every_rank_the_rounds_of_the_longest_lane(lengths, world, knows, start):
    lengths = (lengths * world)[: max(1, len(lengths) // world) * world]
    start = min(start, max(lengths))
    total, world_of = max(lengths), World(world)

    def rank_of(rank):
        lanes = owned_lanes(len(lengths), rank, world)
        given = dict.fromkeys(lanes, start)
        ended = {lane for lane in lanes if lengths[lane] < start}
        mine = {lane: lengths[lane] for lane in lanes}
        return lambda agree: one_rank(mine, "pad", agree, knows[rank], given, ended)

    for rank, (out, _) in enumerate(world_of.run([rank_of(rank) for rank in range(world)])):
        want = []
        for r in range(start, total):
            lanes = owned_lanes(len(lengths), rank, world)
            want += [(lane, r) if r < lengths[lane] else ("blank", lane) for lane in lanes]
        assert out == want


@given(LENGTHS, st.sampled_from([1, 2, 4]), st.lists(st.integers(0, 3), min_size=4, max_size=4), st.integers(0, 7))
def test_drop_stops_every_rank_at_the_end_of_the_shortest_lane_and_names_the_rest(lengths, world, knows, start):
    lengths = (lengths * world)[: max(1, len(lengths) // world) * world]
    total = min(lengths)
    start, world_of = min(start, total), World(world)

    def rank_of(rank):
        mine = {lane: lengths[lane] for lane in owned_lanes(len(lengths), rank, world)}
        return lambda agree: one_rank(mine, "drop", agree, knows[rank], dict.fromkeys(mine, start))

    for rank, (out, rest) in enumerate(world_of.run([rank_of(rank) for rank in range(world)])):
        lanes = owned_lanes(len(lengths), rank, world)
        assert out == [(lane, r) for r in range(start, total) for lane in lanes]
        assert sorted(rest) == [(lane, r) for lane in lanes for r in range(total, lengths[lane])]


@given(LENGTHS, st.data(), st.integers(0, 3), st.sampled_from(["ragged", "pad", "drop"]))
def test_an_error_comes_in_its_place_and_is_never_taken_for_the_end(lengths, data, knows, at_end):
    lane = data.draw(st.integers(0, len(lengths) - 1))
    failing = lane, data.draw(st.integers(0, lengths[lane]))
    out, _ = one_rank(dict(enumerate(lengths)), at_end, alone, knows, failing=failing)
    want = []
    for r in range(failing[1] + 1):
        for other, n in enumerate(lengths):
            if (other, r) == failing:
                want.append(("failed", lane))
                break
            if r < n:
                want.append((other, r))
            elif at_end == "pad":
                want.append(("blank", other))
            elif at_end == "drop":
                break
        else:
            continue
        break
    if at_end == "drop" and want[-1:] != [("failed", lane)]:
        want = [(other, r) for r in range(min(lengths)) for other in range(len(lengths))]
    assert out == want


@given(LENGTHS, st.integers(0, 40), st.sampled_from(["ragged", "pad", "drop"]))
def test_a_stop_in_the_middle_of_a_round_goes_on_with_the_next_lane(lengths, stop, at_end):
    mine = dict(enumerate(lengths))
    whole = one_rank(mine, at_end, alone)[0]
    given, ended = dict.fromkeys(mine, 0), set()
    for turn in whole[:stop]:
        lane = turn[1] if turn[0] == "blank" else turn[0]
        given[lane] += 1
        if turn[0] == "blank":
            ended.add(lane)
    assert one_rank(mine, at_end, alone, 1, given, ended)[0] == whole[stop:]


def test_ranks_own_contiguous_blocks_that_cover_all_lanes_once():
    for lanes in range(1, 25):
        for world in legal_worlds(lanes):
            blocks = [list(owned_lanes(lanes, rank, world)) for rank in range(world)]
            assert [lane for block in blocks for lane in block] == list(range(lanes)) and len(
                {len(block) for block in blocks}
            ) == 1
    assert legal_worlds(12) == [1, 2, 3, 4, 6, 12]


@pytest.mark.parametrize(("lanes", "world"), [(8, 3), (1, 2), (12, 24)])
def test_a_world_that_does_not_divide_the_lanes_is_refused_with_those_that_do(lanes, world):
    with pytest.raises(ConfigError) as found:
        owned_lanes(lanes, 0, world)
    for word in (f"num_lanes={lanes}", f"world_size={world}", str(legal_worlds(lanes))):
        assert word in str(found.value)


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 0), (4, 1)])
def test_a_rank_outside_the_world_is_refused(rank, world):
    with pytest.raises(ConfigError, match=rf"rank={rank}, world_size={world}"):
        owned_lanes(4, rank, world)
