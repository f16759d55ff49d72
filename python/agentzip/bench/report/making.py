"""
From what a run has left to the two files that people read.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from agentzip.bench.report.blocks import Plot
from agentzip.bench.report.chapters import document_of
from agentzip.bench.report.html import to_html
from agentzip.bench.report.kept import Kept
from agentzip.bench.report.markdown import PLOTS, to_markdown
from agentzip.errors import InvalidSetting

__all__ = ["Written", "write"]


@dataclass(frozen=True, slots=True)
class Written:
    """Where the document is."""

    html: Path
    markdown: Path


def write(kept: Kept, folder: Path) -> Written:
    """
    Write the document in both forms, in place of one that is there.

    Raises:
        InvalidSetting: a result lacks what the document shows.
    """
    try:
        document = document_of(kept)
    except KeyError as error:
        raise InvalidSetting(
            f"a result in {folder} lacks {error}: another version made it",
            "run that section again with --only",
        ) from error
    written = Written(folder / "report.html", folder / "report.md")
    pictures = folder / PLOTS
    # Those of an earlier text may have other names.
    shutil.rmtree(pictures, ignore_errors=True)
    pictures.mkdir()
    for block in document.blocks:
        if isinstance(block, Plot):
            (pictures / f"{block.name}.svg").write_text(block.svg)
    written.markdown.write_text(to_markdown(document))
    written.html.write_text(to_html(document))
    return written
