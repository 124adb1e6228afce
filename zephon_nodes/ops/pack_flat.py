"""Documents laid end to end in sequences of one length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zephon_nodes.errors import ConfigError
from zephon_nodes.laid_rows import Unlaid, gather, rows
from zephon_nodes.node import Node, OnError, Runner, Setup
from zephon_nodes.pack_node import Homogeneity, PackNode, check_documents, packed_record
from zephon_nodes.packing import Part
from zephon_nodes.stream import Record
from zephon_nodes.training import assemble, check_token_id


class PackFlat(PackNode):
    """Packs documents into sequences of exactly ``max_length`` tokens; what is left over is padded.

    Takes records with ``input_ids``, ints (tokens,), and perhaps ``loss_mask`` (tokens,). Gives dicts of ``input_ids``,
    ``position_ids`` (from 0 in each document) and ``document_ids`` (0, 1, ... in order, -1 at padding), int32
    (max_length,), ``padding_length``, an int, and ``next_id``, the token after a document that the sequence's end has cut
    (-100 if none). ``loss_mask`` and the other ``fields`` of every document are laid end to end as well, with their own
    dtype, zeros at padding; other fields of the documents end here.

    ``algorithm`` ("wrap"): "wrap" cuts documents at the sequence's end and pads only a span's last sequence;
    "first_fit" and "best_fit" keep documents whole, in up to ``num_bins`` open sequences a lane; "best_fit_wrap" does so
    too, but fills a sequence up with a cut document rather than pad it.
    ``num_bins`` (32): more pads less and holds more. ``max_documents``: cap on documents a sequence.
    ``overlong`` ("split"): documents longer than ``max_length``, for the fit algorithms: "split", "drop" (counted and
    reported) or "raise". ``homogeneity`` ("none"): who may share a sequence: everybody, documents of one "component",
    or of one group of components, {"code": ["python", "java"], ...}. ``pad_token_id``: by default the tokenizer's.

    A span's end empties all sequences; nothing is lost. Raises ``ConfigError`` for settings that can't work.

    >>> for row in Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).pack_flat(4):
    ...     print(row["input_ids"], row["document_ids"], row["padding_length"])
    [1 1 2 1] [0 1 1 2] 0
    [2 3 1 2] [0 0 1 1] 0
    [3 4 0 0] [ 0  0 -1 -1] 2
    """

    kind = "pack_flat"
    ours = True
    takes_together = True

    def __init__(  # noqa: PLR0913
        self,
        source: Node,
        max_length: int,
        algorithm: str = "wrap",
        *,
        num_bins: int = 32,
        max_documents: int | None = None,
        overlong: str = "split",
        homogeneity: Homogeneity = "none",
        fields: Sequence[str] = (),
        pad_token_id: int | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        runner: Runner | None = None,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(
            source,
            max_length,
            algorithm,
            num_bins=num_bins,
            max_documents=max_documents,
            overlong=overlong,
            homogeneity=homogeneity,
            name=name,
            parallelism=parallelism,
            runner=runner,
            on_error=on_error,
        )
        clash = {"input_ids", "position_ids", "document_ids", "padding_length", "next_id"} & set(fields)
        if isinstance(fields, str) or clash:
            raise ConfigError(f"pack_flat: fields must be a list of names other than its own outputs, got {fields!r}")
        check_token_id("pad_token_id", pad_token_id)
        self.fields = sorted({*fields} - {"loss_mask"})
        self.aligned = tuple(self.fields)
        self._pad = pad_token_id

    @property
    def pad_token_id(self) -> int:
        return super().pad_token_id if self._pad is None else self._pad

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"pad_token_id": self.pad_token_id, "fields": self.fields}

    def lengths(self, payloads: Sequence[Any]) -> list[int]:
        return check_documents(payloads, self.aligned)

    def blank_record(self) -> Any:
        fields = {field: np.zeros(self.max_length, np.int32) for field in self.fields}
        return {**assemble([], self.max_length, self.pad_token_id), **fields}

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        pad = self.pad_token_id
        later = setup.laid_later and not self.fields and not self.parallelism and self.runner is None

        def packed(parts: list[Part]) -> list[Record]:
            unlaid = Unlaid(parts, self.max_length, pad)
            if later:
                return [packed_record(unlaid, parts)]
            payload = rows(gather([unlaid]))[0]
            for field in self.fields:
                payload[field] = self._laid(field, parts)
            return [packed_record(payload, parts)]

        return packed

    def _laid(self, field: str, parts: list[Part]) -> Any:
        """One field of all parts, end to end, zeros at padding."""
        laid = np.concatenate([np.asarray(part.doc.payload[field])[part.start : part.stop] for part in parts])
        out = np.zeros((self.max_length, *laid.shape[1:]), laid.dtype)
        out[: len(laid)] = laid
        return out
