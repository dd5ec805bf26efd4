"""A hook of mkdocs: links to files of the project that are no pages of the site become their names."""

from __future__ import annotations

import os
import re
from pathlib import PurePosixPath
from typing import Any

LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)\s]*)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page as it stands in the site."""
    folder = PurePosixPath("docs", page.file.src_uri).parent

    def name(found: re.Match[str]) -> str:
        path = os.path.normpath(folder / found[2])
        if path.startswith("docs/"):
            return found[0]
        return f"`{path}`" if found[1] in path else f"{found[1]} (`{path}`)"

    return LINK.sub(name, markdown)
