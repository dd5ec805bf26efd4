"""Hooks of mkdocs: links to files of the project that are no pages of the site become their names, and the
search needs no network."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)\s]*)\)")
FETCHED = "https://unpkg.com/iframe-worker/shim"
"""what the theme would fetch for searching in a folder; `worker.js` does the same"""


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page as it stands in the site."""
    folder = PurePosixPath("docs", page.file.src_uri).parent

    def name(found: re.Match[str]) -> str:
        path = os.path.normpath(folder / found[2])
        if path.startswith("docs/"):
            return found[0]
        return f"`{path}`" if found[1] in path else f"{found[1]} (`{path}`)"

    return LINK.sub(name, markdown)


def on_post_build(*, config: Any, **_: Any) -> None:
    """Have every page load our own script instead of the theme's."""
    site = Path(config["site_dir"])
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        own = os.path.relpath(site / "worker.js", path.parent).replace(os.sep, "/")
        path.write_text(text.replace(FETCHED, own), encoding="utf-8")
