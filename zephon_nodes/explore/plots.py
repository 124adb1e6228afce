"""Plots of a history. Lines are named where they end, so nothing is told by colour alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zephon_nodes.errors import ConfigError
from zephon_nodes.explore.history import Entry, amounts
from zephon_nodes.explore.matplotlib_figure import new_figure
from zephon_nodes.tally import shares

F64: TypeAlias = "npt.NDArray[np.float64]"
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#000000")
_WIDTH, _HEIGHT, _POINTS, _STRETCHES = 8.0, 3.4, 20_000, 60


def fill(entries: Sequence[Entry]) -> Any:
    """Share of padding in each output, and in all so far."""
    padding, tokens = _column(entries, "padding"), _column(entries, "tokens")
    if not tokens.sum():
        raise ConfigError("no output has tokens, so there is no padding to plot; pack or batch tokenized rows")
    axes, figure = _axes("output", "padding, % of positions")
    each = 100 * padding / np.maximum(1, padding + tokens)
    over_all = 100 * np.cumsum(padding) / np.maximum(1, np.cumsum(padding + tokens))
    axes.plot(each, color=COLOURS[4], linewidth=0.8)
    axes.plot(over_all, color=COLOURS[0], linewidth=2)
    axes.set_ylim(0, max(1.0, 1.1 * float(each.max())))
    _name(axes, len(each) - 1, [(float(over_all[-1]), f"{over_all[-1]:.2f}% in all", COLOURS[0])])
    axes.set_title("Padding of each output (thin) and so far (thick)", fontsize=10, loc="left")
    return figure


def mixture(entries: Sequence[Entry], weigh: str, target: Mapping[str, float] | None, window: int) -> Any:
    """Share of each dataset over a window, dashed what the mixture asked for. ``weigh``: "tokens" or "samples"."""
    weigh = "tokens" if weigh == "tokens" and _column(entries, "tokens").any() else "rows"
    came = [amounts(entry, weigh) for entry in entries]
    names = sorted({name for one in came for name in one} | set(target or ()))
    if not names:
        raise ConfigError("these outputs don't tell their datasets; record batches of a pipeline of datasets")
    given = np.array([[one.get(name, 0.0) for name in names] for one in came])
    asked = np.array([[entry.wanted.get(name, 0.0) for name in names] for entry in entries])
    if target is not None:
        fixed = shares(target)
        asked = np.tile([fixed.get(name, 0.0) for name in names], (len(entries), 1))
    axes, figure = _axes("output", "share, %")
    got, wished = _rolling(given, window), _rolling(asked, window)
    labels = []
    for i, name in enumerate(names):
        colour = COLOURS[i % len(COLOURS)]
        axes.plot(100 * got[:, i], color=colour, linewidth=1.6)
        if asked.any():
            axes.plot(100 * wished[:, i], color=colour, linewidth=1, linestyle="--")
        labels.append((100 * float(got[-1, i]), name, colour))
    axes.set_ylim(0, min(104.0, 115 * float(max(got.max(), wished.max()))))
    _name(axes, len(entries) - 1, labels)
    title = f"Share of each dataset in {weigh}, over {window} outputs" + (
        "; dashed: as asked for" if asked.any() else ""
    )
    axes.set_title(title, fontsize=10, loc="left")
    return figure


def lengths(entries: Sequence[Entry]) -> Any:
    """Histograms of the tokens of documents and of rows."""
    before = document_lengths(entries)
    after = np.array([n for entry in entries for n in entry.rows if n], np.float64)
    if not len(before):
        raise ConfigError("no output has documents of tokens, so there are no lengths to plot")
    axes, figure = _axes("tokens", "share, %")
    both = np.concatenate([before, after])
    edges = np.geomspace(both.min(), 1.01 * both.max(), 41)
    for values, name, colour, style in ((before, "documents", COLOURS[0], "-"), (after, "rows", COLOURS[5], "--")):
        counts = 100 * np.histogram(values, edges)[0] / len(values)
        label = f"{name}: {len(values):,}, {values.mean():,.0f} tokens on average"
        axes.stairs(counts, edges, color=colour, linewidth=1.8, linestyle=style, label=label)
        axes.stairs(counts, edges, color=colour, alpha=0.2, fill=True)
    axes.set_xscale("log")
    axes.minorticks_off()
    ticks = powers_of_two(float(edges[0]), float(edges[-1]))
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
    axes.set_title("Lengths before packing (documents) and after it (rows)", fontsize=10, loc="left")
    return figure


def powers_of_two(low: float, high: float, most: int = 12) -> list[int]:
    """Powers of two from ``low`` to ``high``, not all of them where there are more than ``most``; the ends if there is one
    or none."""
    found = [2**i for i in range(64) if low <= 2**i <= high]
    return found[:: -(-len(found) // most)] if len(found) > 1 else sorted({round(low), round(high)})


def document_lengths(entries: Sequence[Entry]) -> F64:
    """Tokens of each document, those of its parts together where packing has cut it and its row is known."""
    whole: Counter[Any] = Counter()
    for number, entry in enumerate(entries):
        told = len(entry.documents) == len(entry.origins)
        for i, tokens in enumerate(entry.documents):
            whole[entry.origins[i] if told else (number, i)] += tokens
    return np.array([tokens for tokens in whole.values() if tokens], np.float64)


def throughput(entries: Sequence[Entry]) -> Any:
    """Tokens, or samples, a second, in stretches of time."""
    seconds, amounts = _column(entries, "seconds"), _column(entries, "tokens")
    unit = "tokens/s"
    if not amounts.any():
        amounts, unit = _column(entries, "samples"), "samples/s"
    if len(entries) < 2 or not seconds[-1]:
        raise ConfigError(f"throughput needs at least 2 outputs, got {len(entries)}")
    edges = np.linspace(0, seconds[-1], min(_STRETCHES, max(2, len(entries) // 15)) + 1)
    done = np.histogram(seconds[1:], edges, weights=amounts[1:])[0]
    axes, figure = _axes("seconds since the first output", unit)
    axes.stairs(done / np.diff(edges), edges, color=COLOURS[0], linewidth=1.6)
    mean = float(amounts[1:].sum() / seconds[-1])
    axes.axhline(mean, color=COLOURS[5], linewidth=1, linestyle="--")
    axes.set_ylim(bottom=0)
    _name(axes, float(seconds[-1]), [(mean, f"{mean:,.0f}", COLOURS[5])])
    axes.set_title(f"{unit}; dashed: on average", fontsize=10, loc="left")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    return figure


def order(entries: Sequence[Entry]) -> Any:
    """Rank in the files against rank in the run, by dataset, in the first pass that there is of each."""
    rows = list(dict.fromkeys(at for entry in entries for at in entry.origins))
    begin = {at.dataset: at.pass_ for at in reversed(rows)}
    rows = [at for at in rows if at.pass_ == begin[at.dataset]]
    if not rows:
        raise ConfigError("these outputs don't tell their rows; record batches of a pipeline of datasets")
    axes, figure = _axes("rank in the run, %", "rank in the files, %", height=4.6)
    counts = Counter(at.dataset for at in rows)
    for i, (name, _) in enumerate(counts.most_common()):
        run, file = ranks([(at.shard, at.row) for at in rows if at.dataset == name])
        keep = slice(None, None, max(1, len(run) // _POINTS))
        moved = float(np.abs(run - file).mean())
        axes.plot(
            *(100 * run[keep], 100 * file[keep]),
            linestyle="none",
            marker=(".", "x", "+", "^")[i % 4],
            markersize=3,
            alpha=max(0.15, min(0.7, 1000 / len(run))),
            color=COLOURS[i % len(COLOURS)],
            label=f"{name}: {len(run):,} rows, moved {moved:.0%} on average",
        )
    legend = axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), markerscale=3, frameon=False)
    for handle in legend.legend_handles:
        handle.set_alpha(1)
    axes.set_title("Where rows came from (file order: the diagonal; a full shuffle moves 33%)", fontsize=10, loc="left")
    return figure


def ranks(places: Sequence[tuple[int, ...]]) -> tuple[F64, F64]:
    """For rows by (file, row) in the order in which they came: their ranks in the run and in file order, 0 to 1."""
    scale = max(1, len(places) - 1)
    by_file = sorted(range(len(places)), key=lambda i: places[i])
    file = np.empty(len(places))
    file[by_file] = np.arange(len(places))
    return np.arange(len(places)) / scale, file / scale


def _rolling(amounts: F64, window: int) -> F64:
    """Shares of each column over the last ``window`` rows."""
    total = np.cumsum(np.vstack([np.zeros(amounts.shape[1]), amounts]), axis=0)
    last = np.arange(1, len(total))
    recent = total[last] - total[np.maximum(0, last - window)]
    found: F64 = recent / np.maximum(1e-12, recent.sum(axis=1, keepdims=True))
    return found


def _column(entries: Sequence[Entry], field: str) -> F64:
    if not entries:
        raise ConfigError("the history is empty; add batches to it first")
    return np.array([getattr(entry, field) for entry in entries], np.float64)


def _axes(x: str, y: str, height: float = _HEIGHT) -> tuple[Any, Any]:
    figure, axes = new_figure(_WIDTH, height)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["right", "top"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    return axes, figure


def _name(axes: Any, x: float, labels: Sequence[tuple[float, str, str]]) -> None:
    """Names lines at their right ends, moved apart where they would cover each other."""
    low, high = axes.get_ylim()
    axes.set_xlim(0, max(x, 1e-9))
    step, free = 0.06 * (high - low), -np.inf
    for y, name, colour in sorted(labels):
        free = max(y, free + step)
        text = name.replace("$", r"\$")
        axes.annotate(
            *(text, (x, free), (6, 0)),
            textcoords="offset points",
            annotation_clip=False,  # a name that was moved up may stand above the axes
            color=colour,
            fontsize=8,
            va="center",
        )
