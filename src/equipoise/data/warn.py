"""What may be wrong with data that can be read: warnings, each with the rows and the fix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations

import numpy as np

from equipoise.data.pixels import DARK, FLAT, Survey, label_of
from equipoise.data.samples import Samples
from equipoise.names import edits

MISSING = frozenset((
    "-", "--", ".", "?", "??", "#n/a", "empty", "missing", "n.a.", "n/a", "na", "nan", "nil", "none",
    "not available", "null", "tbd", "undefined", "unk", "unknown",
))  # fmt: skip
"""words that tables use where nothing is known"""

SHOWN = 3
"""rows named in one warning; the rest are counted"""

LONG = 5
"""letters of a word in which any single slip counts; in shorter ones ('bcc', 'scc') a changed letter is
another word"""


def warnings_of(
    samples: Samples, splits: Mapping[str, np.ndarray], survey: Survey, declared: bool, agreed: bool = False
) -> list[str]:
    """Everything doubtful about a data set; `splits` are its rows by use, `declared` says that the config
    lists the classes, `agreed` that they are those of a federation, of which a site may lack some."""
    warnings = []
    if not declared:
        keep = ", or list all in data.classes if they are right"
        warnings += doubtful_names("class", _by_class(samples), samples.ids, keep)
    if samples.site is not None:
        warnings += doubtful_names("site", _by_value(samples.site), samples.ids)
    warnings += doubtful_groups(samples.group, samples.site, samples.ids)
    warnings += absent(samples, splits, agreed)
    warnings += same_picture(samples, survey)
    warnings += hardly_visible(samples, survey)
    return warnings


def doubtful_names(what: str, rows: Mapping[str, np.ndarray], ids: np.ndarray, keep: str = "") -> list[str]:
    """Names that are words for 'missing', or nearly the same as another; `rows` are those of each name, and
    `keep` says how they are allowed."""
    warnings = missing_words(what, rows, ids, keep)
    for one, other in combinations(sorted(rows, key=lambda name: len(rows[name])), 2):
        how = alike(one, other)
        if how is not None:
            names = " and ".join(f"{what} '{name}' ({listed(ids[rows[name]])})" for name in (one, other))
            warnings.append(f"{names} {how}: write them the same way{keep}")
    return warnings


def missing_words(what: str, rows: Mapping[str, np.ndarray], ids: np.ndarray, keep: str = "") -> list[str]:
    """Names that mean that there is none."""
    return [
        f"{what} '{name}' ({listed(ids[held])}) is a word for a missing value: fill it in, or remove the rows"
        f"{keep}"
        for name, held in rows.items()
        if " ".join(name.lower().split()) in MISSING
    ]


def alike(one: str, other: str) -> str | None:
    """How two different names may be the same, or None: equal but for case and spaces, or a slip apart."""
    a, b = (re.sub(r"[\W_]+", " ", name.casefold()).strip() for name in (one, other))
    if a.replace(" ", "") == b.replace(" ", ""):
        return "differ only in case, spaces or signs" if a else None
    words, others = a.split(), b.split()
    if len(words) != len(others):
        return None
    pairs = [pair for pair in zip(words, others, strict=True) if pair[0] != pair[1]]
    return "are one letter apart" if len(pairs) == 1 and _slip(*pairs[0]) else None


def _slip(a: str, b: str) -> bool:
    """Whether one word may be the other one mistyped; numbers, letters that count ('a', 'b') and prefixes
    ('atypical') are no slips."""
    short, long = sorted((a, b), key=len)
    if len(short) < 3 or len(long) > len(short) + 1 or not (a + b).isalpha() or long.endswith(short):
        return False
    if edits(a, b) != 1:
        return False
    return len(short) >= LONG or len(short) != len(long) or sorted(a) == sorted(b)


def doubtful_groups(group: np.ndarray | None, site: np.ndarray | None, ids: np.ndarray) -> list[str]:
    """Patients that are words for 'missing', and those whose images are at more than one site."""
    if group is None:
        return []
    warnings = missing_words("patient or group", _by_value(group), ids)
    if site is None:
        return warnings
    sites: dict[str, dict[str, None]] = {}
    for name, place in zip(group.tolist(), site.tolist(), strict=True):
        if name:
            sites.setdefault(name, {})[place] = None
    both = {group: list(names) for group, names in sites.items() if len(names) > 1}
    if not both:
        return warnings
    shown = "; ".join(f"'{group}' at {', '.join(names)}" for group, names in list(both.items())[:SHOWN])
    rest = f"; and {len(both) - SHOWN:,} more" if len(both) > SHOWN else ""
    many = "1 patient or group is" if len(both) == 1 else f"{len(both):,} patients or groups are"
    return [
        *warnings,
        f"{many} at several sites ({shown}{rest}): if they are different people, put the site's name in "
        f"front of theirs; if not, give their images to one site",
    ]


def absent(samples: Samples, splits: Mapping[str, np.ndarray], agreed: bool = False) -> list[str]:
    """Classes that have no image (unless `agreed`), or none in a split that has others."""
    rows = _by_class(samples)
    empty = [name for name, held in rows.items() if not len(held) and not agreed]
    fix = "add some, or remove it from data.classes"
    warnings = [f"class '{name}' has no image at all: {fix}" for name in empty]
    effects = {"train": ", so they cannot be learnt", "test": ", so nothing will be known of them"}
    for split, used in splits.items():
        none = {name: held for name, held in rows.items() if len(held) and not np.isin(held, used).any()}
        if len(used) and none:
            names = ", ".join(f"'{name}' ({listed(samples.ids[held])})" for name, held in none.items())
            effect = effects.get(split, "")
            text = f"no image for {split} is of class {names}{effect}"
            warnings.append(f"{text}: add images, or change data.split")
    return warnings


def same_picture(samples: Samples, survey: Survey) -> list[str]:
    """Images that are the same, pixel by pixel, under different labels."""
    rows: dict[bytes, list[int]] = {}
    for row, digest in enumerate(survey.digests):
        rows.setdefault(digest, []).append(row)
    pairs = []
    for held in rows.values():
        if pair := conflict(np.asarray(samples.labels)[held]):
            texts = (f"'{samples.ids[held[i]]}' ({label_of(samples, held[i])})" for i in pair)
            pairs.append(" and ".join(texts))
    if not pairs:
        return []
    rest = f"; and {len(pairs) - SHOWN:,} more" if len(pairs) > SHOWN else ""
    return [
        f"the same picture stands under different labels: {'; '.join(pairs[:SHOWN])}{rest}: correct the "
        f"labels, or remove the rows"
    ]


def conflict(labels: np.ndarray) -> tuple[int, int] | None:
    """Two rows of the labels of one picture that cannot both be true; a missing label contradicts none."""
    for column in labels.reshape(len(labels), -1).T:
        known = np.flatnonzero(~np.isnan(column))
        other = known[column[known] != column[known[:1]]]
        if len(other):
            return int(known[0]), int(other[0])
    return None


def hardly_visible(samples: Samples, survey: Survey) -> list[str]:
    """Images that came out nearly black, or nearly without contrast."""
    kinds = (
        (survey.dark, f"no pixel brighter than {DARK - 1} of 255"),
        (survey.flat & ~survey.dark, f"fewer than {FLAT} levels of 256 between darkest and brightest pixel"),
    )
    return [
        f"{int(rows.sum()):,} of {len(samples):,} images have {what} ({listed(samples.ids[rows])}): see them "
        "with `equipoise data inspect … --contact-sheet`, and set data.bits or data.window if they were "
        "read wrongly"
        for rows, what in kinds
        if rows.any()
    ]


def listed(ids: np.ndarray) -> str:
    """How many rows, and the first of them."""
    rest = ", …" if len(ids) > SHOWN else ""
    names = ", ".join(f"'{name}'" for name in ids[:SHOWN].tolist())
    return f"{len(ids):,} {'row' if len(ids) == 1 else 'rows'}: {names}{rest}"


def _by_value(column: np.ndarray) -> dict[str, np.ndarray]:
    """The positions of the rows of each value."""
    values, of = np.unique(column, return_inverse=True)
    order = np.argsort(of, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(of[order])) + 1)
    return dict(zip(values.tolist(), parts, strict=True))


def _by_class(samples: Samples) -> dict[str, np.ndarray]:
    """The positions of the rows of each class."""
    labels = np.asarray(samples.labels)
    return {
        name: np.flatnonzero(labels == i if samples.task == "single" else labels[:, i] > 0)
        for i, name in enumerate(samples.classes)
    }
