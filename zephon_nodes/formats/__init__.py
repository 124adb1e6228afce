"""The formats that are known, by name and by the ends of file names. Users add their own with ``register_format``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from zephon_nodes.errors import ConfigError
from zephon_nodes.formats.array_record import ArrayRecordFormat
from zephon_nodes.formats.arrow_ipc import ArrowFormat
from zephon_nodes.formats.base import Format
from zephon_nodes.formats.images import ImagesFormat
from zephon_nodes.formats.jsonl import JsonlFormat
from zephon_nodes.formats.lance import LanceFormat
from zephon_nodes.formats.litdata import LitDataFormat
from zephon_nodes.formats.mds import MdsFormat
from zephon_nodes.formats.megatron import MegatronFormat
from zephon_nodes.formats.parquet import ParquetFormat
from zephon_nodes.formats.text import TextFormat
from zephon_nodes.formats.tokens import TokensFormat
from zephon_nodes.formats.vortex import VortexFormat
from zephon_nodes.formats.webdataset import WebDatasetFormat
from zephon_nodes.storage import StoredFile

_formats: dict[str, Format] = {}


def register_format(fmt: Format) -> None:
    """Makes a format known to ``Dataset.from_path`` in this process. One of the same name is replaced.

    Raises ``ConfigError`` if its name or a suffix is no text, or if another format has one of its suffixes.

    >>> from zephon_nodes.formats.memory import MemoryFormat
    >>> class Squares(MemoryFormat):
    ...     name, suffixes = "squares", (".squares",)
    ...     def __init__(self):
    ...         super().__init__([{"v": i * i} for i in range(4)])
    >>> register_format(Squares())
    """
    if not isinstance(fmt.name, str) or not fmt.name:
        raise ConfigError(f"a format needs a name, a non-empty string; got {fmt.name!r}")
    for suffix in fmt.suffixes:
        if not suffix.startswith(".") or suffix != suffix.lower():
            raise ConfigError(f"format {fmt.name!r}: a suffix is lower case and starts with a dot; got {suffix!r}")
        owner = next((other.name for other in _formats.values() if suffix in other.suffixes), fmt.name)
        if owner != fmt.name:
            raise ConfigError(f"format {fmt.name!r}: suffix {suffix!r} belongs to format {owner!r}")
    _formats[fmt.name] = fmt


def known_suffixes() -> tuple[str, ...]:
    """All suffixes that some format claims."""
    return tuple(suffix for fmt in _formats.values() for suffix in fmt.suffixes)


def format_for(name: str) -> Format:
    """The format of a file, by the longest known suffix of its name (upper and lower case are alike).

    Raises ``ConfigError``, with the known suffixes, if there is none.
    """
    fits = [suffix for suffix in known_suffixes() if name.lower().endswith(suffix)]
    if not fits:
        known = ", ".join(known_suffixes())
        raise ConfigError(f"{name!r}: no format has this suffix; known: {known}; or say which with fmt=")
    longest = max(fits, key=len)
    return next(fmt for fmt in _formats.values() if longest in fmt.suffixes)


def format_named(fmt: str) -> Format:
    """The format of a name, such as "parquet". Raises ``ConfigError``, with the known names, if there is none."""
    if fmt not in _formats:
        raise ConfigError(f"fmt={fmt!r}: no format has this name; known: {', '.join(_formats)}")
    return _formats[fmt]


def companions_of(fmt: Format) -> tuple[str, ...]:
    """Endings of files that lie beside a format's data and are no shards."""
    return cast("tuple[str, ...]", getattr(fmt, "companions", ()))


def wanted_suffixes(fmt: Format | None) -> tuple[str, ...]:
    """Endings of the files to look for: those of a format, or of all, and of what lies beside them."""
    fmts = _formats.values() if fmt is None else [fmt]
    return tuple(dict.fromkeys(suffix for each in fmts for suffix in (*each.suffixes, *companions_of(each))))


def format_of(files: Sequence[StoredFile]) -> Format:
    """The one format of all files, by their suffixes. Companions don't count.

    Raises ``ConfigError`` if there are several, or if a file has no known suffix.
    """
    known = [file for file in files if file.name.lower().endswith(known_suffixes())]
    for file in files:
        if not file.name.lower().endswith(wanted_suffixes(None)):
            format_for(file.name)  # raises
    fmts = {fmt.name: fmt for fmt in (format_for(file.name) for file in known or files)}
    for fmt in fmts.values():
        others = [file for file in known if format_for(file.name) is not fmt]
        if all(file.name.lower().endswith(companions_of(fmt)) for file in others):
            return fmt
    raise ConfigError(f"files of several formats were found ({', '.join(fmts)}); say which with fmt=")


def without_strangers(fmt: Format, files: Sequence[StoredFile]) -> list[StoredFile]:
    """The files that are of a format or lie beside its data, without what only belongs to others, such as a stray .json."""
    return [file for file in files if file.name.lower().endswith(wanted_suffixes(fmt))]


def gather(fmt: Format, files: Sequence[StoredFile]) -> list[StoredFile]:
    """The shards among the files that were found. Raises ``ConfigError`` if there are none."""
    shards = cast("list[StoredFile]", fmt.gather(files)) if hasattr(fmt, "gather") else list(files)
    if not shards:
        found = ", ".join(file.name for file in files[:3])
        raise ConfigError(f"no file of format {fmt.name!r} ({', '.join(fmt.suffixes)}) was found; there are: {found}")
    return shards


for _format in (
    ParquetFormat(),
    JsonlFormat(),
    ArrayRecordFormat(),
    ArrowFormat(),
    ImagesFormat(),
    LanceFormat(),
    LitDataFormat(),
    MdsFormat(),
    MegatronFormat(),
    TextFormat(),
    TokensFormat(),
    VortexFormat(),
    WebDatasetFormat(),
):
    register_format(_format)
