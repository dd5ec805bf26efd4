"""Print the figures of docs/privacy.md: `python -m tests.attacks [sites IMAGES]`, from the project's folder.

Without an argument, what a curious coordinator finds out, with and without protection (a minute). `sites`
and the folder of real images: what hostile sites do to a model, a run for each cell (some minutes).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tests.attacks import figures, hostile_sites


def curious() -> None:
    """A row per attack and protection."""
    print("| attack | protection | what is measured | figure |\n|---|---|---|---|")
    for name, protections in figures.TRIED.items():
        attack = getattr(figures, name)
        about = (attack.__doc__ or "").split(".")[0]
        for words, protection in protections.items():
            found = f"{attack(protection):.2f}" if figures.known(protection) else "not in this version"
            print(f"| {name.replace('_', ' ')} | {words} | {about} | {found} |", flush=True)


def hostile(images: Path) -> None:
    """A row per attack, a column per way to combine updates."""
    print(f"| two of ten sites | {' | '.join(hostile_sites.RULES)} |")
    print("|---" * (1 + len(hostile_sites.RULES)) + "|")
    for attack in hostile_sites.ATTACKS:
        cells = [f"{hostile_sites.accuracy(images, rule, attack):.1f}" for rule in hostile_sites.RULES]
        print(f"| {attack} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["sites"]:
        hostile(Path(sys.argv[2]))
    else:
        curious()
