"""Figures by matplotlib, which is imported where one is drawn: that takes 0.8 s, and most programs draw nothing."""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(**settings: Any) -> "Figure":
    """Returns an empty figure, to be saved to a file.

    A notebook sets MPLBACKEND for the programs that it starts, to a module that they may not have, and matplotlib then
    refuses to be imported. Figures that are saved need none, so it is imported without.

    Args:
      settings: matplotlib.figure.Figure's; its parts are laid out so that none covers another.
    """
    try:
        from matplotlib.figure import Figure
    except ValueError:
        backend = os.environ.pop("MPLBACKEND", None)
        if backend is None:
            raise
        try:
            from matplotlib.figure import Figure
        finally:
            os.environ["MPLBACKEND"] = backend
    return Figure(**settings, layout="constrained")
