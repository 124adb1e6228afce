"""What the Batch node gives: the payloads of some rows, where they come from, and their tensors for a training step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from zephon_nodes import laid_rows, training
from zephon_nodes.collate import DERIVED, assembled_row, converted, payload_field, renamed
from zephon_nodes.errors import ConfigError
from zephon_nodes.laid_rows import Sequences, Unlaid, gather
from zephon_nodes.stream import Origins, Pointer, Run, pointers_of, split_pass

Files: TypeAlias = "Mapping[str, Sequence[str] | Mapping[int, str]]"


class Origin(NamedTuple):
    """Row ``row`` of file ``file``, which is number ``shard`` of the dataset, read in pass ``pass_`` of
    epoch ``epoch`` (both from 0).

    ``file`` is "" if the dataset has no files.

    >>> next(iter(Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).batch(1))).origins[0][0].row
    0
    """

    dataset: str
    file: str
    row: int
    epoch: int
    pass_: int
    shard: int


class Microbatch:
    """The rows of one batch, all of one lane. Its length, items and iteration are those of ``payloads``.

    ``payloads``: one value a row, mostly a dict. ``pointers``: for each row, the rows of files that it is made of; as long as
    nobody has asked for them, ``made_of`` is what they are made of (see ``stream.Origins``; a ``Run`` stands for several rows).
    ``lane``: int. ``files``: dataset name -> names of its files. ``pad_token_id``: for rows that ``to_training`` pads.
    Can be pickled; only those file names that its rows need go along.

    >>> batch = next(iter(Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).batch(2)))
    >>> batch.to_training(extra=["text"])["text"]
    ['one', 'two words']
    >>> batch.origins[1]
    [Origin(dataset='demo', file='rows', row=1, epoch=0, pass_=0, shard=0)]
    """

    __slots__ = ("_payloads", "files", "lane", "made_of", "pad_token_id", "unlaid")

    def __init__(
        self,
        payloads: list[Any] | Sequences,
        pointers: Sequence[Origins | Run],
        lane: int,
        files: Files,
        pad_token_id: int = 0,
    ) -> None:
        self.unlaid: Sequences | None = None
        self.payloads = payloads
        self.made_of, self.lane, self.files, self.pad_token_id = pointers, lane, files, pad_token_id

    @property
    def pointers(self) -> list[tuple[Pointer, ...]]:
        made_of: Any = self.made_of
        if any(isinstance(row, (list, Run)) for row in made_of):
            found: list[tuple[Pointer, ...]] = []
            for row in made_of:
                found += [(at,) for at in row.pointers()] if isinstance(row, Run) else [pointers_of(row)]
            self.made_of = made_of = found
        return made_of  # type: ignore[no-any-return]

    @pointers.setter
    def pointers(self, given: Sequence[Origins | Run]) -> None:
        self.made_of = given

    @property
    def payloads(self) -> list[Any]:
        if self.unlaid is not None:
            self._payloads, self.unlaid = laid_rows.rows(self.unlaid), None
        return self._payloads

    @payloads.setter
    def payloads(self, given: list[Any] | Sequences) -> None:
        self.unlaid = _gathered(given)
        self._payloads = [] if self.unlaid is not None else [*map(_laid, given)]

    @property
    def origins(self) -> list[list[Origin]]:
        """The origins of each row, in order. The i-th one of a packed row is that of document i, if each document was
        made of one row of a file."""
        return [[self._origin(pointer) for pointer in row] for row in self.pointers]

    def _origin(self, pointer: Pointer) -> Origin:
        dataset, shard, row, pass_ = pointer
        files = self.files.get(dataset)
        return Origin(dataset, files[shard] if files else "", row, *split_pass(pass_), shard)

    def __len__(self) -> int:
        return len(self._payloads if self.unlaid is None else self.unlaid.paddings)

    def __getitem__(self, index: int) -> Any:
        return self.payloads[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.payloads)

    def __repr__(self) -> str:
        first = self.payloads[0] if self.payloads else None
        fields = f", fields {', '.join(map(str, first))}" if isinstance(first, Mapping) else ""
        return f"<Microbatch of {len(self)} rows, lane {self.lane}{fields}>"

    def __reduce__(self) -> tuple[Any, ...]:
        files: dict[str, dict[int, str]] = {}
        for row in self.origins:
            for origin in row:
                files.setdefault(origin.dataset, {})[origin.shard] = origin.file
        return Microbatch, (self.unlaid or self.payloads, self.pointers, self.lane, files, self.pad_token_id)

    def to_training(
        self,
        extra: Sequence[str] = (),
        *,
        cross_document: bool = False,
        flat: bool = False,
        rename: Mapping[str, str] | None = None,
        backend: str = "torch",
    ) -> dict[str, Any]:
        """The tensors of a training step: B rows of S tokens.

        Rows from the packing nodes are taken as they were packed. Other rows need ``input_ids`` (1-D ints): each is one
        document, padded to the longest row. A ``loss_mask`` in a payload, as long as its ``input_ids``, says with 0
        which tokens are not to be learned as targets.

        Always given, int64 (B, S): ``input_ids``, ``position_ids`` (from 0 in each document) and ``labels``, already
        shifted inside documents (don't shift again), -100 where nothing is to be learned. A row whose labels are all
        -100 is given as it is; see "num_valid_tokens". A batch without tokens or rows has S = 1.

        ``extra`` names what else is wanted:

        - "cu_seqlens": int32 (B, K), filled up with S, and "max_seqlen": int32 (B,); each brings the other. Padding is a segment of its own.
        - "document_ids": int32 (B, S), the document's place in its row, -1 at padding.
        - "loss_mask": float32 (B, S), 1.0 where there is a label. "num_valid_tokens": int, how many there are.
        - "padding_mask": bool (B, S), True at padding.
        - a field of the payloads: numbers and arrays of one shape are stacked to (B, ...) in their own dtype, all else
          is a list of B values; a field of the payloads in packed ``sequences`` is a list of lists.

        ``cross_document``: also train the last token of a document on the first of the next one. ``flat``: rows laid
        end to end, (B * S,), "cu_seqlens" (K,) for all of them, "max_seqlen" an int, document ids numbered through;
        fields of payloads stay (B, ...). ``rename``: old name -> new name. ``backend``: "torch" or "numpy".

        Raises ``ConfigError`` for rows without ``input_ids``, for unknown names, and for renames that collide.
        """
        if backend not in ("torch", "numpy"):
            raise ConfigError(f'to_training: backend={backend!r} is unknown: use "torch" or "numpy"')
        names = (extra,) if isinstance(extra, str) else tuple(extra)
        fields = {name: payload_field(self.payloads, name) for name in names if name not in DERIVED}
        if self.unlaid is not None:
            stack = laid_rows.stack(self.unlaid)
        else:
            rows = [assembled_row(payload, index, self.pad_token_id) for index, payload in enumerate(self.payloads)]
            stack = training.stack(rows, self.pad_token_id)
        out = renamed({**_token_fields(stack, names, cross_document, flat), **fields}, rename or {})
        return {name: converted(value, backend) for name, value in out.items()}


def _gathered(payloads: list[Any] | Sequences) -> Sequences | None:
    """Sequences that are to be laid out together; None if they are anything else, or stand among others."""
    if isinstance(payloads, Sequences):
        return payloads
    return gather(payloads) if {*map(type, payloads)} == {Unlaid} else None


def _laid(payload: Any) -> Any:
    return laid_rows.rows(gather([payload]))[0] if type(payload) is Unlaid else payload


def _token_fields(stack: Mapping[str, Any], names: Sequence[str], cross_document: bool, flat: bool) -> dict[str, Any]:
    """What is made of tokens, from the arrays of ``training.stack``."""
    ids, documents = stack["input_ids"], stack["document_ids"]
    labels = None if cross_document else stack.get("labels")
    if labels is None:
        labels = training.labels(ids, documents, stack["next_id"], stack["loss_mask"], cross_document=cross_document)
    out = {"input_ids": ids, "labels": labels, "position_ids": stack["position_ids"]}
    if "loss_mask" in names:
        out["loss_mask"] = training.loss_mask(labels)
    if "padding_mask" in names:
        out["padding_mask"] = documents < 0
    if flat:
        out = {name: array.reshape(-1) for name, array in out.items()}
    if "document_ids" in names:
        out["document_ids"] = training.flat_document_ids(documents) if flat else documents
    if "cu_seqlens" in names or "max_seqlen" in names:
        lengths = training.flat_cu_seqlens if flat else training.stack_cu_seqlens
        out["cu_seqlens"], out["max_seqlen"] = lengths(documents)
    if "num_valid_tokens" in names:
        out["num_valid_tokens"] = training.num_valid_tokens(labels)
    return out
