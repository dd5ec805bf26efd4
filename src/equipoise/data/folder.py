"""`kind = "folder"`: one sub-folder per class, in a folder or a zip file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from equipoise.data.files import EXTENSIONS, open_files
from equipoise.data.options import SPLITS, DataOptions, Progress
from equipoise.data.rows import Bad, Row, gather
from equipoise.data.samples import Samples


class FolderData(DataOptions):
    """Images sorted into one folder per class, with or without train / validation / test folders above
    them."""

    kind: Literal["folder"] = "folder"
    path: str
    """A folder or zip file: CLASS/… or {train,val,test}/CLASS/…; deeper folders are searched too."""
    classes: tuple[str, ...] | None = None
    """The classes in order; by default the folder names, sorted."""

    def load(self, *, cache: Path, base: Path, progress: Progress | None = None) -> Samples:
        """Walk the folders and decode the images; an image's id is its path."""
        path = base / Path(self.path).expanduser()
        with open_files(path) as files:
            names = [name for name in files.names() if name.lower().endswith(EXTENSIONS)]
            parts = _unwrapped([name.split("/") for name in names])
            tops = {part[0] for part in parts if len(part) > 1}
            splits = bool(tops) and all(top.lower() in SPLITS for top in tops)
            depth = 1 if splits else 0
            classes = self.classes or tuple(sorted({part[depth] for part in parts if len(part) > depth + 1}))
            rows: list[Row | Bad] = []
            for number, (name, part) in enumerate(zip(names, parts, strict=True)):
                if len(part) <= depth + 1:
                    rows.append(Bad(number, f"{name}: lies outside a class folder"))
                    continue
                split = SPLITS[part[0].lower()] if splits else None
                rows.append(Row(number, name, name, part[depth], name, split=split))
            return gather(str(path), rows, files, path.name, classes, self, cache, progress)


def _unwrapped(parts: list[list[str]]) -> list[list[str]]:
    """Take off folders that hold everything, e.g. the one a zip program puts around the content."""
    while parts and all(len(part) > 2 and part[0] == parts[0][0] for part in parts):
        parts = [part[1:] for part in parts]
    return parts
