"""Markup of a page: texts, tables, images and videos that are put into it."""

import base64
import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from chunkwise.files import budget

KINDS = {".png": "image/png", ".mp4": "video/mp4"}


def text(value: object) -> str:
    """Returns a text as it stands in the markup."""
    return html.escape(str(value))


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Returns a table of markup that is ready; the second and later columns are set as numbers are."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    lines = ("".join(f"<td{' class=n' if k else ''}>{cell}</td>" for k, cell in enumerate(line)) for line in body)
    return f"<table><tr>{top}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def embedded(file: Path) -> str:
    """Returns an image or a video with its bytes. Raises DataError where they are over the limit of an image."""
    data = base64.b64encode(budget.read_bytes(file, "image_mib")).decode()
    source = f"data:{KINDS[file.suffix]};base64,{data}"
    return (
        f'<img src="{source}" alt="">'
        if file.suffix == ".png"
        else f'<video src="{source}" controls loop muted></video>'
    )


def link_to(file: Path, beside: Path) -> str:
    """Returns a link to a file, relative where it lies below the folder of the page."""
    file, beside = file.resolve(), beside.resolve()
    target = file.relative_to(beside).as_posix() if file.is_relative_to(beside) else file.as_uri()
    return f'<a href="{text(target)}">{text(file.name)}</a>'
