"""Data kinds of one's own, named in `data.kind`: what their `load` gives is looked at before it is used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.options import DataOptions, Progress
from equipoise.data.samples import Samples
from equipoise.errors import DataError, EquipoiseError
from equipoise.locate import named


def load_samples(
    options: DataOptions, *, cache: Path, base: Path, progress: Progress | None = None
) -> Samples:
    """The data set that the options describe; where somebody's code reads it, one sentence about what is
    wrong."""
    if not named(options.kind):
        return options.load(cache=cache, base=base, progress=progress)
    where = f"data.kind '{options.kind}'"
    try:
        samples: Any = options.load(cache=cache, base=base, progress=progress)
    except EquipoiseError:
        raise
    except Exception as error:
        raise DataError(f"{where} fails: {type(error).__name__}: {error}") from error
    if not isinstance(samples, Samples):
        raise DataError(f"{where} must load Samples, and loaded a {type(samples).__name__}")
    for problem in _problems(samples, options):
        raise DataError(f"{where}: {problem}")
    return samples


def _problems(samples: Samples, options: DataOptions) -> Iterator[str]:
    images, labels, count = samples.images, samples.labels, len(samples.labels)
    size, classes = options.image_size, len(samples.classes)
    if images.dtype != np.uint8 or images.shape != (count, size, size, options.channels):
        wanted = [count, size, size, options.channels]
        yield f"images must be uint8 {wanted}, and are {images.dtype} {list(images.shape)}"
    single = samples.task == "single"
    kind, shape = (np.int64, (count,)) if single else (np.float32, (count, classes))
    if labels.dtype != kind or labels.shape != shape:
        yield f"labels must be {kind.__name__} {list(shape)}, and are {labels.dtype} {list(labels.shape)}"
    elif single and count and not 0 <= labels.min() <= labels.max() < classes:
        yield f"labels must be 0 to {classes - 1}, and are {labels.min()} to {labels.max()}"
    elif not single and not (np.isin(labels, (0, 1)) | np.isnan(labels)).all():
        yield "labels must be 0 or 1 for every class, or NaN where an image is not labelled for it"
    columns = {"ids": samples.ids, "site": samples.site, "split": samples.split, "group": samples.group}
    for name, column in {**columns, **samples.attributes}.items():
        if column is not None and len(column) != count:
            yield f"'{name}' has {len(column)} entries for {count} images"
    if not samples.fingerprint:
        yield "fingerprint must be a digest of the images and labels, so that a run notices when they change"
