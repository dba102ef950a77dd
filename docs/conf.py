"""Settings of the site, for Sphinx: `make site`.

The source folder is the repository, so that a link between two pages leads to the same place here as on GitHub.
"""

import dataclasses
import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import chunkwise  # noqa: E402
from chunkwise.cli.verbs import VERBS  # noqa: E402

project = "chunkwise"
author = "the maintainers of chunkwise"
release = version = chunkwise.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "docs/*/*.md"]
exclude_patterns = [".*", "runs", "datasets", "build", "dist", "tests", "*.egg-info"]
language = "en"

myst_enable_extensions = ["substitution"]
myst_heading_anchors = 4
highlight_language = "text"  # indented blocks are commands, formulas or JSON; only fenced ones name their language

os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # `python` of their cells
# Notebooks are written as Markdown and executed by the build: what they show was computed by the code beside them.
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / ".cache/notebooks")
nb_execution_in_temp = True
nb_execution_timeout = 1200
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
autosummary_generate = False
python_maximum_signature_line_length = 100

linkcheck_timeout = 20
linkcheck_retries = 2
linkcheck_report_timeouts_as_broken = True

html_theme = "sphinx_book_theme"
html_title = f"chunkwise {release}"
templates_path = ["_templates"]
html_additional_pages = {"index": "to_root.html"}
html_theme_options = {
    "use_download_button": True,
    "use_fullscreen_button": False,
    "show_toc_level": 2,
    "home_page_in_toc": True,
    "navbar_persistent": [],  # the search is in the sidebar
}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = True
copybutton_prompt_text = "    "

SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields|Example|Examples):$")
ITEM = re.compile(r"(-|\d+\.) ")


def _table(rows: list[tuple[str, ...]]) -> str:
    """A table in Markdown whose first row is its head."""
    head, *rest = rows
    lines = [head, tuple("---" for _ in head), *rest]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


myst_substitutions = {
    "verbs": _table(
        [("verb", "what it does", "for example")]
        + [(f"`{name}`", verb.summary, f"`{verb.example}`") for name, verb in VERBS.items()]
    )
}


def escaped(line: str) -> str:
    """Returns a line whose mathematics is no markup, and whose code in backticks is code."""
    parts = line.split("`")
    if len(parts) % 2 == 0:
        return re.sub(r"([*|\\`])", r"\\\1", line)
    parts[::2] = (re.sub(r"([*|\\]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2])
    return "``".join(parts)


def as_restructured_text(lines: list[str]) -> list[str]:
    """Returns a docstring with indented lines as code, and with the signs of mathematics escaped.

    Args:
      lines: As they are written in this project: plain sentences, code in single backticks, formulas indented,
        sections of Google's style, which stay as they are.
    """
    made: list[str] = []
    section = code = item = False
    for line in lines:
        indented = bool(line.strip()) and line.startswith(" ")
        if line.strip() and not indented:
            section, item = bool(SECTION.match(line)), bool(ITEM.match(line))
            if code:
                made.append("")
            code = False
        if indented and not section and not item and not code:
            made += ["", "::", ""]
            code = True
        made.append(line if code or SECTION.match(line) else escaped(line))
    return made


def _process_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    from sphinx.ext.napoleon import Config, GoogleDocstring

    written = as_restructured_text(lines)
    # A field's text has no sections: words before a colon in it would be taken for its type.
    is_field = what in ("attribute", "data")
    lines[:] = written if is_field else GoogleDocstring(written, Config(), app, what, name, obj, options).lines()


def _process_signature(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, annotation: str | None
) -> tuple[str | None, str | None] | None:
    """The fields of a dataclass stand below it, each with its type, default and meaning: no signature repeats them."""
    return ("", None) if what == "class" and dataclasses.is_dataclass(obj) else None


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _process_docstring)
    app.connect("autodoc-process-signature", _process_signature)
