"""Documents that share a sequence and stay apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zephon_nodes.errors import ConfigError
from zephon_nodes.laid_rows import next_token
from zephon_nodes.node import Node, OnError, Runner, Setup
from zephon_nodes.pack_node import Homogeneity, Length, PackNode, packed_record
from zephon_nodes.packing import Part
from zephon_nodes.recipe import describe_function
from zephon_nodes.stream import Record


class PackSequences(PackNode):
    """Groups whole records so that their lengths sum to at most ``target_length``.

    Gives {"sequences": [payload, ...], "target_length": int}; the payloads keep all their fields. ``Batch`` lays them end
    to end and pads them to ``target_length``.

    ``length_fn``: the length of a payload; by default the number of its ``input_ids``. ``algorithm`` ("first_fit"),
    ``num_bins``, ``max_documents``, ``homogeneity``: as in ``PackFlat``. ``overlong``: "split" (default without a
    ``length_fn``: ``input_ids`` and ``loss_mask`` are cut), "drop" (counted and reported) or "raise" (default with one).

    Raises ``ConfigError`` if documents would have to be cut by a length that isn't their tokens'.

    >>> [[one["text"] for one in row["sequences"]] for row in Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).pack_sequences(5)]
    [['one', 'two words'], ['three of them'], ['and the last one']]
    """

    kind = "pack_sequences"
    ours = True
    takes_together = True

    def __init__(  # noqa: PLR0913
        self,
        source: Node,
        target_length: int,
        algorithm: str = "first_fit",
        *,
        length_fn: Length | None = None,
        num_bins: int = 32,
        max_documents: int | None = None,
        overlong: str | None = None,
        homogeneity: Homogeneity = "none",
        name: str | None = None,
        parallelism: int | None = None,
        runner: Runner | None = None,
        on_error: OnError | None = None,
    ) -> None:
        if length_fn is not None and (overlong == "split" or "wrap" in algorithm):
            raise ConfigError(
                f"pack_sequences can't cut records of which only length_fn knows the length: with algorithm={algorithm!r} "
                f"and overlong={overlong!r} it would have to; use first_fit or best_fit, and overlong='drop' or 'raise'"
            )
        super().__init__(
            source,
            target_length,
            algorithm,
            num_bins=num_bins,
            max_documents=max_documents,
            overlong=overlong or ("split" if length_fn is None else "raise"),
            homogeneity=homogeneity,
            name=name,
            parallelism=parallelism,
            runner=runner,
            on_error=on_error,
        )
        self.length_fn = length_fn

    def settings(self) -> dict[str, Any]:
        return super().settings() | ({"length_fn": describe_function(self.length_fn)} if self.length_fn else {})

    def length(self, payload: Any) -> int:
        length = super().length(payload) if self.length_fn is None else int(self.length_fn(payload))
        if length < 0:
            raise ValueError(f"length_fn gave {length}; a length is at least 0")
        return length

    def blank_record(self) -> Any:
        return {"sequences": [], "target_length": self.max_length}

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        def packed(parts: list[Part]) -> list[Record]:
            payload = {"sequences": [_cut(part) for part in parts], "target_length": self.max_length}
            return [packed_record(payload, parts)]

        return packed


def _cut(part: Part) -> Any:
    payload = part.doc.payload
    if part.stop - part.start == part.length:
        return payload
    aligned = {name: payload[name][part.start : part.stop] for name in ("input_ids", "loss_mask") if name in payload}
    return {**payload, **aligned, "next_id": next_token(part)}
