"""Figures by matplotlib, which is imported where one is drawn: that takes 0.8 s, and most programs draw nothing."""

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(**settings: Any) -> "Figure":
    """Returns an empty figure, to be saved to a file.

    A notebook sets MPLBACKEND for the programs that it starts, to a module that they may not have, and matplotlib then
    refuses to be imported; a second try would find parts of the first. Figures that are saved need no backend, so it
    is imported without.

    Args:
      settings: matplotlib.figure.Figure's; its parts are laid out so that none covers another.
    """
    if "matplotlib" not in sys.modules:
        backend = os.environ.pop("MPLBACKEND", None)
        try:
            import matplotlib
        finally:
            if backend is not None:
                os.environ["MPLBACKEND"] = backend
        if backend:
            with contextlib.suppress(ValueError):  # as matplotlib sets it itself, for who draws on a screen after this
                matplotlib.rcParams["backend"] = backend
    from matplotlib.figure import Figure

    return Figure(**settings, layout="constrained")
