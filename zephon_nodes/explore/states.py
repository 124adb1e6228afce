"""What a checkpoint says, and how two recipes differ: as text and as tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, overload

from zephon_nodes.describe import brief
from zephon_nodes.errors import ConfigError, StateError
from zephon_nodes.explore.grid import escape, html_grid, text_grid
from zephon_nodes.recipe import changes
from zephon_nodes.state import PREFIX, LaneState, check_shape, lane_numbers

_COLUMNS = ["lane", "span", "taken", "rounds", "ended", "dropped", "failed", "rows", "skipped"]


class Change(NamedTuple):
    """One setting that differs. Values are JSON, "(absent)" where a recipe lacks it."""

    setting: str
    first: str
    second: str


class Diff(Sequence[Change]):
    """The settings in which two recipes differ, like a list. Prints as a table; empty if there are none."""

    def __init__(self, found: Sequence[Change]) -> None:
        self._found = tuple(found)

    def __len__(self) -> int:
        return len(self._found)

    @overload
    def __getitem__(self, i: int) -> Change: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Change]: ...
    def __getitem__(self, i: int | slice) -> Any:
        return self._found[i]

    def __repr__(self) -> str:
        return text_grid(Change._fields, self._found) if self._found else "the recipes are equal"

    def _repr_html_(self) -> str:
        count = "1 setting differs" if len(self) == 1 else f"{len(self)} settings differ"
        said = count if self._found else "the recipes are equal"
        return html_grid(Change._fields, self._found, said)


def diff(first: Any, second: Any) -> Diff:
    """The settings in which two recipes differ, with both values.

    ``first``, ``second``: each a recipe (``pipeline.recipe``, or the dict of its JSON), a state, a pipeline or a loader.
    What the recipe leaves out, such as paths, runner and microbatch size, can't differ. Raises ``ConfigError`` for
    anything else.

    >>> source = StaticMixtureWorkSource([rows], seed=1)
    >>> diff(Pipeline(source).pack_flat(8), Pipeline(source).pack_flat(16))
    setting                     first  second
    --------------------------  -----  ------
    nodes.pack_flat.max_length  8      16
    """
    return Diff([Change(*change) for change in changes(recipe_of(first), recipe_of(second))])


def recipe_of(value: Any) -> Mapping[str, Any]:
    """The recipe of a state, a pipeline, a loader, JSON text, or itself."""
    found = value if isinstance(value, (str, Mapping)) else getattr(value, "recipe", None)
    if isinstance(found, Mapping) and isinstance(found.get("recipe"), str):
        found = found["recipe"]
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            found = None
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"a recipe, a state, a pipeline or a loader is needed, got {type(value).__name__} {value!r:.60}"
        )
    return found


class StateView:
    """What a state says. ``recipe``: as a dict. ``lanes``: by number, the fields of their leaves; see ``state``."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        check_shape(state)
        self.epoch, self.world_size = int(state["epoch"]), int(state["world_size"])
        self.recipe: dict[str, Any] = json.loads(state["recipe"])
        keys = {lane: f"{PREFIX}{lane}" for lane in lane_numbers(state)}
        self.lanes = {lane: LaneState.of(key, state[key]) for lane, key in keys.items()}

    @property
    def rows(self) -> int | None:
        """About how many rows of files lie before the lanes' spans in this epoch; None if the recipe doesn't tell."""
        each = [self._rows(at) for at in self.lanes.values()]
        return None if None in each else sum(count for count in each if count is not None)

    @property
    def tokens(self) -> int | None:
        """About how many tokens that is; None unless the mixture is in tokens, so that their number per row is known."""
        rows, source = self.rows, self.recipe["source"]
        known = source.get("tokens_per_row")
        shares = _shares(source.get("mixture"))
        if rows is None or not known or not shares or not set(shares) <= set(known):
            return None
        return round(rows / sum(share / Fraction(known[name]) for name, share in shares.items()))

    def _rows(self, at: LaneState) -> int | None:
        """Chunks before the span are delivered, each of about ``chunk_size`` rows; what is taken of a span is records."""
        source = self.recipe["source"]
        chunk, flush = source.get("chunk_size"), source.get("flush_every")
        return at.span * flush * chunk if isinstance(chunk, int) and isinstance(flush, int) else None

    def __repr__(self) -> str:
        return "\n".join([*self._lines(), "", text_grid(_COLUMNS, list(self._cells()))])

    def _repr_html_(self) -> str:
        lines = "".join(f"<div>{escape(line)}</div>" for line in self._lines())
        said = f'<div style="white-space:pre-wrap;margin-bottom:8px">{lines}</div>'
        table = html_grid(_COLUMNS, list(self._cells()))
        return f'<div style="font-family:system-ui,sans-serif;font-size:12px">{said}{table}</div>'

    def _lines(self) -> list[str]:
        source = self.recipe["source"]
        level = all(at.level for at in self.lanes.values())
        where = "loads on any legal world size" if level else "in mid-round, so loads on as many ranks only"
        total = source.get("num_lanes")
        some = f" of {total}" if total not in (None, len(self.lanes)) else ""
        done = [f"at least about {self.rows:,} rows"] if self.rows else []
        done += [f"{self.tokens:,} tokens"] if self.tokens else []
        ranks = f"{self.world_size} rank{'s' * (self.world_size != 1)}"
        lines = [
            f"epoch {self.epoch}, saved on {ranks}, {len(self.lanes)}{some} lanes; {where}",
            f"delivered: {sum(at.rounds for at in self.lanes.values()):,} outputs"
            + "".join(f", {part}" for part in done),
            f"source: {brief({k: v for k, v in source.items() if k != 'datasets'})}",
        ]
        datasets = source.get("datasets") or {}
        lines += [
            f"  dataset {name}: {brief({k: v for k, v in facts.items() if k != 'list'})}"
            for name, facts in datasets.items()
        ]
        for name in self.recipe.get("graph", ()):
            lines.append(f"  {name}: {brief(self._node(name))}".rstrip(": "))
        return lines

    def _node(self, name: str) -> dict[str, Any]:
        return {setting: value for setting, value in self.recipe["nodes"].get(name, {}).items() if setting != "op"}

    def _cells(self) -> Iterator[list[str]]:
        for lane, at in self.lanes.items():
            rows = self._rows(at)
            counts = [str(lane), *(f"{n:,}" for n in (at.span, at.taken, at.rounds))]
            ended = "yes" if at.ended else ""
            skips = ", ".join(f"{a}+{b} to {c}+{d}" for a, b, c, d in at.skips)
            yield [*counts, ended, str(at.dropped), str(at.failed), "" if rows is None else f"{rows:,}", skips]


def inspect_state(state: Mapping[str, Any]) -> StateView:
    """What a checkpoint says: epoch, recipe, and the place of each lane. Prints as text; a table in a notebook.

    ``span``, ``taken``: the lane's place; ``rounds``: outputs of this epoch; ``rows``: about how many rows lie before the
    span. Works without the data. Raises ``StateError`` for what isn't a state.

    >>> graph = Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).batch(2)
    >>> first = next(iter(graph))
    >>> view = inspect_state(graph.state_dict())
    >>> view.lanes[0].taken, view.recipe["source"]["seed"]
    (2, 0)
    """
    if not isinstance(state, Mapping):
        raise StateError(f"a state is a dict, got {type(state).__name__}")
    return StateView(state)


def _shares(mixture: Any) -> dict[str, Fraction]:
    """Shares by dataset, where the mixture is one that doesn't change."""
    if not isinstance(mixture, Mapping):
        return {}
    try:
        return {str(name): Fraction(share) for name, share in mixture.items()}
    except (TypeError, ValueError):
        return {}
