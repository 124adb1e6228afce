"""What the packing nodes have in common: who may share a sequence, and what becomes of documents that are too long."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from zephon_nodes.accumulator import Accumulator, Place
from zephon_nodes.errors import ConfigError
from zephon_nodes.hashing import child_identity
from zephon_nodes.node import Gives, Node, OnError, Runner
from zephon_nodes.packing import Packer, Part, check_overlong, overlong_reason, packer
from zephon_nodes.stream import Drop, Piece, Pointer, Record, Row, Together

Homogeneity: TypeAlias = "Literal['none', 'component'] | Mapping[str, Sequence[str]]"
Length: TypeAlias = Callable[[Any], int]
_INT32 = np.dtype(np.int32)


class PackNode(Node):
    """Base of the packing nodes. See ``PackFlat`` and ``PackSequences`` for the settings."""

    takes = ("rows",)
    holds = True
    cheap = True

    def __init__(  # noqa: PLR0913
        self,
        source: Node,
        max_length: int,
        algorithm: str,
        *,
        num_bins: int,
        max_documents: int | None,
        overlong: str,
        homogeneity: Homogeneity,
        name: str | None,
        parallelism: int | None,
        runner: Runner | None,
        on_error: OnError | None,
    ) -> None:
        super().__init__(source, name=name, parallelism=parallelism, runner=runner, on_error=on_error)
        packer(algorithm, max_length, num_bins, max_documents)
        check_overlong(overlong)
        if overlong != "split" and "wrap" in algorithm:
            raise ConfigError(
                f"overlong={overlong!r} doesn't go with algorithm={algorithm!r}, which cuts documents anyway"
            )
        self.max_length, self.algorithm, self.num_bins = max_length, algorithm, num_bins
        self.max_documents, self.overlong, self.homogeneity = max_documents, overlong, homogeneity
        self._groups = self._check_homogeneity(homogeneity)

    @property
    def gives(self) -> Gives:
        return "packed"

    def settings(self) -> dict[str, Any]:
        groups = dict(self._groups) if isinstance(self.homogeneity, Mapping) else self.homogeneity
        bins = {} if self.algorithm == "wrap" else {"num_bins": self.num_bins, "overlong": self.overlong}
        return {
            "max_length": self.max_length,
            "algorithm": self.algorithm,
            "max_documents": self.max_documents,
            "homogeneity": groups,
            **bins,
        }

    def _check_homogeneity(self, homogeneity: Homogeneity) -> dict[str, str]:
        """Component name -> group name."""
        if not isinstance(homogeneity, Mapping):
            if homogeneity not in ("none", "component"):
                raise ConfigError(
                    f"homogeneity must be 'none', 'component' or a dict of groups, group -> dataset names, got {homogeneity!r}"
                )
            return {}
        groups: dict[str, str] = {}
        known = {dataset.name for dataset in self.work_source.datasets}
        for group, members in homogeneity.items():
            for member in members:
                if member in groups or (known and member not in known):
                    problem = "stands in two groups" if member in groups else f"is none of the datasets {sorted(known)}"
                    raise ConfigError(f"homogeneity: {member!r} of group {group!r} {problem}")
                groups[member] = group
        return groups

    def group_of(self, record: Record) -> str:
        """Records share sequences with those of the same group only."""
        if self.homogeneity == "none":
            return ""
        return "+".join(sorted({self._groups.get(at.dataset, f"\0{at.dataset}") for at in record.origins}))

    aligned: tuple[str, ...] = ()
    """Fields that every document must have, as long as its ``input_ids``."""

    def length(self, payload: Any) -> int:
        """The length of a document. Raises ``ValueError`` saying why it can't be packed."""
        return check_document(payload, self.aligned)

    def lengths(self, payloads: Sequence[Any]) -> list[int]:
        """The length of each of some documents."""
        return [*map(self.length, payloads)]

    def accumulator(self, place: Place) -> Accumulator:
        return _Packing(self, place.node)


class _Packing(Accumulator):
    """A packer for each group of components. Calls are lists of parts, a sequence each."""

    def __init__(self, node: PackNode, name: str) -> None:
        self._node, self._name = node, name
        self._packers: dict[str, Packer] = {}

    def push(self, record: Record) -> Iterable[Any]:
        node = self._node
        length = node.length(record.payload)
        if length > node.max_length:
            reason = overlong_reason(length, node.max_length, node.overlong)
            if reason is not None:
                return [Drop(self._name, reason, record.origins)]
        return self._packer(node.group_of(record)).add(record, length)

    def push_together(self, rows: Together) -> list[tuple[int, Any]] | None:
        node = self._node
        try:
            lengths = node.lengths(rows.payloads)
        except Exception:  # noqa: BLE001 - comes again when the record is pushed by itself
            return None
        if node.homogeneity != "none" or (node.overlong != "split" and max(lengths, default=0) > node.max_length):
            return None
        return self._packer("").add_all(rows.rows(), lengths)

    def _packer(self, group: str) -> Packer:
        found = self._packers.get(group)
        if found is None:
            node = self._node
            found = packer(node.algorithm, node.max_length, node.num_bins, node.max_documents)
            self._packers[group] = found
        return found

    def flush(self) -> Iterable[list[Part]]:
        return [parts for found in self._packers.values() for parts in found.flush()]


def check_document(payload: Any, aligned: Sequence[str] = ()) -> int:
    """The length of a document fit to be packed. Raises ``ValueError`` unless its ``input_ids`` are 1-D ints within int32,
    and its ``loss_mask`` and the ``aligned`` fields as long."""
    length = token_count(payload)
    ids = payload["input_ids"]
    if type(ids) is not np.ndarray or ids.ndim != 1 or ids.dtype != np.int32:
        _check_ids(ids)
    if "loss_mask" in payload:
        aligned = (*aligned, "loss_mask")
    for field in aligned:
        if payload.get(field) is None:
            raise ValueError(
                f"field {field!r} is {'null' if field in payload else 'missing'}; it must go along with input_ids"
            )
        shape = np.shape(payload[field])
        if not shape or shape[0] != length or (field == "loss_mask" and len(shape) > 1):
            raise ValueError(f"field {field!r} has shape {shape}, but input_ids of its document has {length} tokens")
        if field == "loss_mask" and np.asarray(payload[field]).dtype.kind not in "biuf":
            raise ValueError(f"loss_mask must be numbers or bools, got {np.asarray(payload[field]).dtype}")
    return length


def check_documents(payloads: Sequence[Any], aligned: Sequence[str] = ()) -> list[int]:
    """``check_document`` of each."""
    if not aligned and {*map(type, payloads)} == {dict}:
        ids = [payload.get("input_ids") for payload in payloads]
        plain = {*map(type, ids)} == {np.ndarray} and [one.dtype for one in ids].count(_INT32) == len(ids)
        if plain and {one.ndim for one in ids} == {1} and not any("loss_mask" in payload for payload in payloads):
            return [*map(len, ids)]
    return [check_document(payload, aligned) for payload in payloads]


def _check_ids(ids: Any) -> None:
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"input_ids must be 1-D integers, got {array.dtype} of shape {array.shape}")
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    if low < -(2**31) or high >= 2**31:
        raise ValueError(f"input_ids must fit into int32, got values from {low} to {high}")


def token_count(payload: Any) -> int:
    """Tokens of a payload. Raises ``ValueError`` saying what is missing."""
    if not isinstance(payload, dict) or "input_ids" not in payload:
        has = sorted(map(str, payload)) if isinstance(payload, dict) else type(payload).__name__
        raise ValueError(f"packing needs a field 'input_ids', the record has {has}; put tokenize before it")
    return len(payload["input_ids"])


def packed_record(payload: Any, parts: Sequence[Part]) -> Record:
    """The record of a sequence: its identity is made of the parts' in order, its origins are theirs."""
    pieces: list[Piece] = []  # not the documents, which would live as long as the batch
    for doc, start, stop, _ in parts:
        if type(doc) is not Row:
            break
        pieces.append(_piece((doc.chunk, doc.place, start, stop)))
    else:
        return Record(payload, pieces, pieces, parts=pieces)
    members: list[int] = []
    origins: list[Pointer] = []
    sizes: list[tuple[str, int]] = []
    for record, start, stop, _ in parts:
        rows = record.origins
        members.append(child_identity(record.identity, start) if start else record.identity)
        origins += rows
        sizes.append((rows[0].dataset if rows else "", stop - start))
    return Record(payload, members, tuple(origins), parts=tuple(sizes))


_piece: Callable[[Any], Piece] = functools.partial(tuple.__new__, Piece)
"""As ``Piece._make``, without a frame of Python."""
