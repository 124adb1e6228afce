"""matplotlib, when it is there: figures without pyplot, so that nothing global changes and no window opens."""

from __future__ import annotations

from typing import Any

from zephon_nodes.errors import ConfigError


def new_figure(width: float, height: float) -> tuple[Any, Any]:
    """A Figure of that many inches, and its axes. Raises ``ConfigError`` where matplotlib is missing.

    A notebook shows it as the last line of a cell; elsewhere ``figure.savefig("name.png")``.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Plain
    except ImportError as error:
        raise ConfigError('figures need matplotlib: pip install "zephon_nodes[plots]"') from error

    class Figure(Plain):
        def _repr_png_(self) -> bytes:
            import io

            stream = io.BytesIO()
            self.savefig(stream, format="png", dpi=110)
            return stream.getvalue()

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()
