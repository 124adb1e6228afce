"""EnsureMixture: nothing lost, every prefix near the target, packs by their parts."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import chained, plain, run, spans

from zephon_nodes import (
    ConfigError,
    Dataset,
    EnsureMixture,
    Mix,
    Phases,
    Pipeline,
    Place,
    Pointer,
    Read,
    StaticMixtureWorkSource,
    TokenEstimation,
)
from zephon_nodes.stream import Drop, Record
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere


def dataset(name, rows, tokens=1):
    return Dataset.from_rows(name, [{"d": name, "v": i, "input_ids": [i] * tokens, "w": tokens} for i in range(rows)])


def source(mixture, rows=120, lanes=1, tokens=(1, 1, 1), **settings):
    names = sorted(mixture.names if isinstance(mixture, Phases) else mixture)
    datasets = [dataset(name, rows, n) for name, n in zip(names, tokens, strict=False)]
    settings = {"chunk_size": 8, "flush_every": 4, "shuffle": "none", **settings}
    return StaticMixtureWorkSource(datasets, mixture, lanes, **settings)


def keep(row):
    return row["d"] != "a" or row["v"] % 4


def record(name, size, i):
    return Record({"input_ids": [0] * size}, i, (Pointer(name, 0, i),))


SIZED = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=80)
WEIGHTS = st.lists(st.integers(1, 9), min_size=3, max_size=3)


def balance(weights, buffer, strict=False, by="tokens"):
    """An accumulator of one span, and the shares that it is to keep."""
    mixture = dict(zip("abc", weights, strict=True))
    node = EnsureMixture(Read(source(mixture)), buffer, weight_by=by, strict=strict)
    shares = {name: weight / sum(weights) for name, weight in mixture.items()}
    return node.accumulator(Place("ensure_mixture", 0, 0, 0, node.work_source)), shares


def deviation(given, shares):
    """How far the most distant component is from its share, in tokens, after all of ``given`` (component, size)."""
    sizes = Counter()
    for name, size in given:
        sizes[name] += size
    return max(abs(sizes[name] - share * sizes.total()) for name, share in shares.items())


def sized(item):
    return item.origins[0].dataset, len(item.payload["input_ids"])


@given(SIZED, WEIGHTS, st.integers(1, 12))
def test_it_never_holds_more_than_its_buffer_and_loses_nothing(given, weights, buffer):
    held, _ = balance(weights, buffer)
    records = [record(name, size, i) for i, (name, size) in enumerate(given)]
    out = []
    for n, each in enumerate(records, 1):
        out += held.push(each)
        assert n - len(out) <= buffer
    out += held.flush()
    assert Counter(map(id, out)) == Counter(map(id, records))
    for name in "abc":
        assert [r for r in out if r.origins[0].dataset == name] == [r for r in records if r.origins[0].dataset == name]


@given(SIZED, WEIGHTS, st.integers(1, 12))
def test_a_prefix_is_no_further_from_the_target_than_the_input_was_and_what_is_held(given, weights, buffer):
    """Whatever comes: out = in - held, so the deviations differ by at most the tokens held."""
    held, shares = balance(weights, buffer)
    out = []
    for n, (name, size) in enumerate(given):
        for each in held.push(record(name, size, n)):
            out.append(sized(each))
            waiting = sum(size for _, size in given[: n + 1]) - sum(size for _, size in out)
            assert deviation(out, shares) <= deviation(given[: n + 1], shares) + waiting + 1e-6


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=80), WEIGHTS)
def test_every_prefix_tracks_the_target_within_a_record_if_the_buffer_covers_the_inputs_drift(given, weights):
    """Component k goes only while it is owed, gone_k < share_k (total + 1), so it is ahead by less than the record and 1.

    It waits for an owed component a only until in_a = gone_a < share_a (total + 1). With an input that is never further
    than D from the target, share_a in - D <= in_a, less than D / share_a + 1 tokens wait: at most as many records.
    """
    shares = balance(weights, 1)[1]
    drift = max((deviation(given[:n], shares) for n in range(1, len(given) + 1)), default=0)
    held, _ = balance(weights, int(drift / min(shares.values())) + 3)
    gone = Counter()
    for i, (name, size) in enumerate(given):
        for each in held.push(record(name, size, i)):
            name_out, size_out = sized(each)
            gone[name_out] += size_out
            ahead = {name: gone[name] - share * gone.total() for name, share in shares.items()}
            assert max(ahead.values()) <= 9 + 1
            assert min(ahead.values()) >= -2 * (9 + 1)


@given(SIZED, WEIGHTS, st.integers(1, 12))
def test_strict_keeps_the_bound_to_the_end_of_the_span_and_counts_what_it_drops(given, weights, buffer):
    held, shares = balance(weights, buffer, strict=True)
    out = [each for i, (name, size) in enumerate(given) for each in held.push(record(name, size, i))]
    out += held.flush()
    drops = [each for each in out if isinstance(each, Drop)]
    sent = [sized(each) for each in out if isinstance(each, Record)]
    assert len(sent) + len(drops) == len(given)
    gone = Counter()
    for name, size in sent:
        gone[name] += size
        assert gone[name] - shares[name] * gone.total() <= size + 1


def clumps(row):
    return row["d"] != "a" or row["v"] // 30 % 2


@pytest.mark.parametrize("by", ["samples", "w"])
def test_a_filter_that_spoils_the_mixture_is_made_good_within_the_buffers_reach(by):
    """The filter takes every other clump of a. Counted are rows, or the field w, 4 for a row of b."""
    work = source({"a": 0.5, "b": 0.5}, 400, tokens=(1, 4), flush_every=100)
    shares = {"samples": {"a": 1 / 3, "b": 2 / 3}, "w": {"a": 1 / 9, "b": 8 / 9}}[by]
    graph = Pipeline(work, runner="inline").filter(clumps)
    errors = []
    for each in (graph, graph.ensure_mixture(128, weight_by=by, mixture=shares)):
        sizes = [(row["d"], row["w"] if by == "w" else 1) for row in run(each)[0][:300]]
        errors.append(max(deviation(sizes[:n], shares) for n in range(1, 301)))
    assert errors[0] > 9 and errors[1] <= (1 if by == "samples" else 4) + 1


def test_a_pack_counts_by_its_parts():
    below = Pipeline(source({"a": 0.5, "b": 0.5})).pack_flat(16).node
    made = Record({}, 0, (Pointer("a", 0, 0), Pointer("b", 0, 0)), parts=(("a", 3), ("b", 5), ("a", 2)))
    assert EnsureMixture(below, weight_by="tokens").sizes(made) == {"a": 5, "b": 5}
    assert EnsureMixture(below, weight_by="samples").sizes(made) == {"a": 2, "b": 1}


@pytest.mark.parametrize("by", ["tokens", "samples"])
def test_what_went_through_packs_is_told_by_parts(by):
    pipeline = Pipeline(source({"a": 0.5, "b": 0.5}, 60, tokens=(3, 5))).pack_flat(30, homogeneity="component")
    pipeline = pipeline.ensure_mixture(8, weight_by=by)
    run(pipeline)
    share = {"tokens": 3 / 8, "samples": 1 / 2}[by]
    assert pipeline.node.stats()["a"] == pytest.approx(share, abs=0.03)  # cut documents count for each part
    assert sum(pipeline.node.stats().values()) == pytest.approx(1)


def test_a_phase_changes_the_target_at_its_span():
    work = source(Phases([(0, {"a": 3, "b": 1}), (8, {"a": 1, "b": 3})]), 800, passes=None)
    rows = run(Pipeline(work).ensure_mixture(32).take(128))[0]
    shares = {"a": 0.75, "b": 0.25}, {"a": 0.25, "b": 0.75}
    for share, part in zip(shares, (rows[:64], rows[64:]), strict=True):
        assert max(deviation([(row["d"], 1) for row in part[:n]], share) for n in range(1, 65)) <= 2


def test_strict_does_not_take_a_phase_that_begins_within_a_span_for_surplus():
    """Nothing disturbs the mixture here, so nothing is too much; or else the phase is refused."""
    for start in (4, 2):
        work = source(Phases([(0, {"a": 1}), (start, {"b": 1})]), 96, passes=None)
        try:
            pipeline = Pipeline(work, runner="inline").ensure_mixture(8, strict=True).take(64)
        except ConfigError as error:
            assert start == 2 and "span" in str(error) and "strict" in str(error)
            continue
        assert len(run(pipeline)[0]) == 64 and pipeline.drops.total == 0


def test_strict_does_not_take_what_was_redistributed_for_surplus():
    """Of stop="redistribute" the user expects every row exactly once."""
    datasets = [dataset("a", 10), dataset("b", 200)]
    work = StaticMixtureWorkSource(datasets, {"a": 0.5, "b": 0.5}, 1, 8, 4, stop="redistribute")
    pipeline = Pipeline(work).ensure_mixture(8, strict=True)
    assert len(run(pipeline)[0]) == 210


def test_strict_reports_each_row_that_it_drops():
    pipeline = Pipeline(source({"a": 0.5, "b": 0.5})).filter(keep).ensure_mixture(4, strict=True, name="mix")
    rows = run(pipeline)[0]
    assert pipeline.drops.counts["mix", "too much of its component (strict)"] > 10
    left = [row.where.split() for row in pipeline.drops.rows]
    assert len(rows) + len(left) == 240 == len({(r["d"], str(r["v"])) for r in rows} | {(w[3], w[1]) for w in left})


@given(st.integers(1, 20), st.booleans(), st.lists(st.integers(0, 30), max_size=5))
def test_any_chain_of_resumes_is_one_run_with_the_same_counts(buffer, strict, cuts):
    def make():
        work = source({"a": 0.7, "b": 0.3}, 20, 2)
        return Pipeline(work, runner="inline").filter(keep).ensure_mixture(buffer, strict=strict).batch(3)

    whole = make()
    out = run(whole)[0]
    got, state = chained(make, cuts)
    assert got == out and state == whole.state_dict()


def test_neither_schedule_nor_world_changes_the_order():
    def make():
        return Pipeline(source({"a": 0.7, "b": 0.3}, 60, 4)).filter(keep).ensure_mixture(7).batch(2)

    assert_any_schedule(make, schedules=2)
    assert_any_world(make, [1, 2, 4])
    assert_resumes_everywhere(make, 12)


def test_no_record_leaves_its_span():
    work = source({"a": 0.5, "b": 0.5}, 60)
    out = run(Pipeline(work).ensure_mixture(100))[0]
    for span in spans(work, 0):
        part, out = out[: len(span)], out[len(span) :]
        assert sorted(map(str, part)) == sorted(map(str, span))


def test_stats_of_records_without_tokens_are_no_error():
    pipeline = Pipeline(source({"a": 1, "b": 1}, tokens=(0, 0))).ensure_mixture(weight_by="tokens")
    assert pipeline.node.stats() == {}
    assert len(run(pipeline)[0]) == 240 and sum(pipeline.node.stats().values()) == 0


def test_stats_tell_what_was_delivered_and_not_what_was_measured():
    work = source({"a": 0.5, "b": 0.5}, 40, tokens=(1, 3), stop="first", token_estimation=TokenEstimation())
    pipeline = Pipeline(work, runner="inline").ensure_mixture(8)
    tokens = Counter()
    for row in map(plain, pipeline):
        tokens[row["d"]] += row["w"]
    assert pipeline.node.stats() == pytest.approx({name: n / tokens.total() for name, n in tokens.items()})


WRONG = [
    ({"mixture": {"web": 1}}, r"\['web'\] are none of the datasets \['a', 'b'\]"),
    ({"mixture": {"a": 0, "b": 1}}, "weight of 'a' must be positive"),
    ({"mixture": {"a": -1, "b": 1}}, "weight of 'a' must be positive"),
    ({"mixture": {}}, "at least one dataset"),
    ({"buffer_size": 0}, "buffer_size must be an integer of at least 1, got 0"),
]


@pytest.mark.parametrize(("settings", "words"), WRONG, ids=[words for _, words in WRONG])
def test_settings_that_cannot_work_are_refused_at_construction(settings, words):
    with pytest.raises(ConfigError, match=words):
        EnsureMixture(Read(source({"a": 1, "b": 1})), **settings)


def test_a_field_of_packed_records_is_refused_at_construction():
    with pytest.raises(ConfigError, match="weight_by='score' is a field, which packed records don't have"):
        Pipeline(source({"a": 1, "b": 1})).pack_flat(8).ensure_mixture(weight_by="score")


def test_a_source_without_a_mixture_asks_for_one():
    mixed = Mix([(source({"a": 1}), 1), (source({"b": 1}), 1)])
    with pytest.raises(ConfigError, match=r"needs mixture=\{dataset: weight\}: Mix has no mixture"):
        Pipeline(mixed).ensure_mixture()
    assert len(run(Pipeline(mixed).ensure_mixture(mixture={"a": 1, "b": 1}))[0]) == 240


def test_a_mixture_that_changes_within_a_span_is_that_of_the_span_as_a_whole():
    """Shares by lane time: half a span of "a" alone, then "b" alone; and a dataset that leaves in mid-span."""
    work = source(Phases([(0, {"a": 1}), (2, {"b": 1})]), 96, passes=None)
    assert work.shares(0, 0) == {"a": 0.5, "b": 0.5} and work.shares(0, 1) == {"b": 1}
    assert [work.steady(0, span) for span in range(3)] == [False, True, True]
    leaves = StaticMixtureWorkSource(
        [dataset("a", 10), dataset("b", 200)], {"a": 1, "b": 1}, 1, 8, 4, stop="redistribute"
    )
    assert leaves.shares(0, 0) == {"a": 10 / 32, "b": 22 / 32} and not leaves.steady(0, 0)
    assert leaves.shares(0, 1) == {"b": 1} and leaves.steady(0, 1) and leaves.shares(0, 1000) == {"a": 0.5, "b": 0.5}


def test_strict_drops_in_steady_spans_of_a_source_that_changes_elsewhere():
    work = source(Phases([(0, {"a": 1, "b": 1}), (4, {"b": 1})]), 96, passes=None)
    pipeline = Pipeline(work, runner="inline").filter(keep).ensure_mixture(2, strict=True).take(60)
    run(pipeline)
    assert pipeline.drops.counts["ensure_mixture", "too much of its component (strict)"] > 0
