"""What the figures say, in sentences for people who read no metrics: each with the question it answers.

Every sentence follows from the numbers of the run. What rests on few images is said to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import numpy as np

from equipoise.report.crowd import crowded
from equipoise.report.figures import site_gains
from equipoise.report.folder import SMALL, Run, percent, standard, start_of
from equipoise.report.lacking import mean_only, missing, tested, untested, withheld_note
from equipoise.report.table import Figure
from equipoise.text import listed

FEW = 100
"""test images in all, below which a figure is said to rest on few"""
CHANCE = 0.05
NAMED = 10
"""sites that a sentence names, at most"""
SIMULATED = "simulated on one machine"
"""what is said of a run in which no hospital took part"""
REHEARSED = "rehearsed on one machine, each site a process of its own"
"""what is said of a federation that was only tried out"""
DRAWN = "Sites are drawn anew with every seed, so a site's figure is a mean over several that share a name."

Answer = tuple[str, str]
"""a question and its answer"""


# One run ----------------------------------------------------------------------------------------------------


def in_short(run: Run) -> list[Answer]:
    """What was trained, on whose data, how good it is, for which classes, at which sites, and who gains by
    joining."""
    answers = [("What was trained", _trained(run)), ("On whose data", whose(run))]
    if run.test is None:
        return [*answers, ("How good", "Not known. No round was evaluated, so there are no figures.")]
    return [
        *answers,
        ("How good", _good(run, run.test)),
        *([("Who was missing", missing(run))] if untested(run) else []),
        *([("What is not reported", text)] if (text := withheld_note(run)) else []),
        *([("Trained long enough?", _settled(run))] if "converged" in run.result else []),
        ("For which classes", _classes(run, run.test)),
        ("At which sites", _sites(run, run.test)),
        ("Who gains by joining", _gain(run)),
    ]


def _trained(run: Run) -> str:
    net, data, train = run.config["net"], run.data, run.config["train"]
    task = (
        "name the one class of an image out of" if data["task"] == "single" else "find, in any image, any of"
    )
    start = start_of(run)
    sites = many(len(data["sites"]), "site")
    network = f"{net['name']} network"
    where = place(run, "whose images stayed where they are")
    how = f"One {network} was trained with {run.method} at {sites}, {where},"
    if run.standard == "alone":
        how = f"Each of {sites}, {where}, trained a {network} of its own, with nothing exchanged,"
    if run.standard == "pooled":
        how = f"One {network} was trained on the images of {sites} in one place, {where},"
    early = run.result.get("stopped_early")
    done = f"{train['rounds']}" if run.finished and not early else f"{run.done} of {train['rounds']}"
    text = f"{how} to {task} {len(data['classes'])}: {listed(data['classes'])}. From {start}, {done} rounds."
    return f"{text} It stopped early: {early['reason']}." if early else text


def place(run: Run, real: str) -> str:
    """Where a run was trained: what is said of real hospitals, or that it was one machine."""
    return SIMULATED if not run.federated else real if run.rehearsal is None else REHEARSED


def whose(run: Run) -> str:
    """Who holds how much, and how unequal the classes are."""
    data = run.data
    sites = {name: held["train"]["images"] for name, held in data["sites"].items()}
    held = data["sites"].values()
    counts = {split: sum(one[split]["images"] for one in held) for split in data["splits"]}
    parts = [
        f"{count:,} for {'training' if split == 'train' else split}"
        for split, count in counts.items()
        if count
    ]
    most, least = max(sites, key=lambda name: sites[name]), min(sites, key=lambda name: sites[name])
    text = f"{run.data_name}, {data['images']:,} images: {listed(parts)}."
    if run.federated and run.rehearsal is None:
        text = f"{data['images']:,} images of the sites' own, as they reported: {listed(parts)}. "
        text += f"For training, {listed([f'{name} has {count:,}' for name, count in sites.items()])}."
    elif len(sites) > 1:
        text += f" {most} trains on the most ({sites[most]:,}), {least} on the fewest ({sites[least]:,})."
    if any(held["train"].get("untold") for held in data["sites"].values()):
        return f"{text} Not every site tells how many images it has of each class."
    absent = [name for name, count in zip(data["classes"], data["train"], strict=True) if not count]
    if absent:
        return f"{text} No site has a training image of {listed(absent)}."
    top, low = (pick(data["train"]) for pick in (max, min))
    names = [data["classes"][data["train"].index(n)] for n in (top, low)]
    return (
        f"{text} For one training image of {names[1]} ({low:,} in all) there are {top / low:.1f} of "
        f"{names[0]} ({top:,})."
    )


def _good(run: Run, test: Mapping[str, Any]) -> str:
    everyone, classes = test["generalisation"], len(run.data["classes"])
    images, where, absent = held_out(run), "all sites", untested(run)
    if _drawn(run) and mean_only(run):
        # Which sites they were is not known: their images are counted only where each has one label.
        images = sum(everyone["support"]) if run.data["task"] == "single" else 0
        where = f"{run.config['evaluate']['sites']:,} drawn sites"
    elif _drawn(run):
        images = sum(held_out(run, site) for site in test["sites"])
        where = f"{len(test['sites']):,} drawn sites"
    if absent:
        where = f"the sites that answered ({several(tested(run))}; not {several(absent)})"
    who = "the sites' models reach on average" if run.standard == "alone" else "the global model reaches"
    far = (
        "" if run.reach is None else f" (95 % interval {100 * run.reach[0]:.1f} to {100 * run.reach[1]:.1f})"
    )
    if run.data["task"] == "single":
        meaning, chance = "the share of images it names rightly, every class counting the same", 1 / classes
    else:
        meaning, chance = "the mean of sensitivity and specificity, every finding counting the same", 0.5
    count = f"{images:,} " if images else ""
    text = (
        f"On the {count}test images of {where} together {who} a balanced accuracy of "
        f"{percent(everyone['balanced_accuracy'])}{far}: {meaning}. Guessing would reach {percent(chance)}."
    )
    if run.reach is not None and run.reach[0] <= chance:
        text += " That it is no better than guessing cannot be ruled out."
    if 0 < images < FEW:
        text += f" {images} test images are few: others could give another figure."
    if not run.finished:
        text += " The run goes on, so this is not its result."
    return text


def _settled(run: Run) -> str:
    """Whether more rounds would change the figures, as validation tells."""
    return {
        True: "As far as the validation images tell: their balanced accuracy in the last quarter of rounds "
        "is within one point of the quarter before.",
        False: "No: the balanced accuracy on the validation images still changed by more than one point from "
        "the quarter of rounds before to the last. More rounds may change all figures.",
        None: "Not known: that takes validation images, and two evaluated rounds in each of the last two "
        "quarters of the rounds.",
    }[run.result["converged"]]


def _classes(run: Run, test: Mapping[str, Any]) -> str:
    everyone = test["generalisation"]
    support = [int(n or 0) for n in everyone["support"]]
    recalls = list(zip(run.data["classes"], everyone["recall"], support, strict=True))
    judged = sorted((recall, name, n) for name, recall, n in recalls if n >= SMALL and recall is not None)
    few = [f"{name} ({n})" for name, _, n in recalls if n < SMALL]
    text = f"No class has {SMALL} test images."
    if judged:
        (low, worst, n_low), (top, best, n_top) = judged[0], judged[-1]
        verb = "recognised" if run.data["task"] == "single" else "found"
        text = f"Best {verb} is {best}, {percent(top)} of {n_top:,} test images"
        text += f"; least {worst}, {percent(low)} of {n_low:,}." if len(judged) > 1 else "."
    if few:
        text += f" With fewer than {SMALL} test images nothing can be said of {listed(few)}."
    if run.data["task"] == "multi":
        text += " This does not count false alarms; a figure below does."
    return text


def _sites(run: Run, test: Mapping[str, Any]) -> str:
    if mean_only(run):
        reached = percent(test["specialisation"]["balanced_accuracy"])
        return (
            "Not reported for each site. Judged by their own test images, the sites' own predictors reach "
            f"{reached} on average."
        )
    scored = sorted(
        (one["balanced_accuracy"], site, held_out(run, site))
        for site, one in test["sites"].items()
        if one["balanced_accuracy"] is not None
    )
    judged = [one for one in scored if one[2] >= SMALL]
    few = [f"{site} ({n})" for _, site, n in scored if n < SMALL]
    text = f"No site has {SMALL} test images."
    if judged:
        (low, worst, n_low), (top, best, n_top) = judged[0], judged[-1]
        reached = (
            f"each site's own predictor reaches from {percent(low)} at {worst} ({n_low:,} images) to "
            f"{percent(top)} at {best} ({n_top:,})"
            if len(judged) > 1
            else f"the own predictor of {best} reaches {percent(top)} ({n_top:,} images)"
        )
        text = f"Judged by its own test images, {reached}."
    if crowded(judged):
        half, most = (percent(float(np.quantile([one[0] for one in judged], q))) for q in (0.5, 0.1))
        text += f" Half of {many(len(judged), 'site')} reach {half} or more, nine of ten {most}."
    if few:
        text += f" With fewer than {SMALL} test images nothing can be said of {several(few)}."
    return text


def _gain(run: Run) -> str:
    if run.standard == "alone":
        return "Nobody joined: this is the training alone that joining is compared with."
    if run.standard == "pooled":
        return "Nobody joined: all images were in one place, which is the most that joining could replace."
    return (
        "One run does not tell: it takes the same training without joining. `equipoise compare FILE.toml "
        f"--methods {standard('alone')},{run.method}` shows it for every site."
    )


# Several runs -----------------------------------------------------------------------------------------------

Arms = Sequence[tuple[str, Sequence[Run]]]
"""title and runs of each arm"""


def compared(facts: Mapping[str, Any], arms: Arms) -> list[Answer]:
    """What was compared, what is best, whether that may be chance, and who gains by joining."""
    arms = [(label, runs) for label, runs in arms if runs]
    if not arms:
        return [("What was compared", "Nothing: every run failed.")]
    run = arms[0][1][0]
    over = f"seed{'s' * (len(facts['seeds']) > 1)} {listed([str(seed) for seed in facts['seeds']])}"
    over += f" and {facts['folds']} folds each" if facts["folds"] else ""
    what = (
        f"{listed([label for label, _ in arms])} on the same images, each trained "
        f"{times(facts['runs'])} ({over}), with sites {SIMULATED}."
    )
    answers = [("What was compared", what), ("On whose data", whose(run))]
    beyond = [label for label, runs in arms if runs[0].standard == "pooled"]
    figures = {
        label: Figure(**one["figures"]["generalisation"]["balanced_accuracy"])
        for label, one in facts["arms"].items()
        if one["figures"]["generalisation"]["balanced_accuracy"] is not None and label not in beyond
    }
    if figures:
        answers += [("How good", _best(facts, figures, arms)), ("More than chance?", _chance(facts, figures))]
        answers += [("Trained long enough?", text)] if (text := _settled_arms(arms)) else []
        answers += [("For the rare classes", text)] if (text := _rare(facts, run)) else []
    answers.append(("Who gains by joining", _gains(arms)))
    return [*answers, *([("How much is left to gain", text)] if (text := _left(facts)) else [])]


def _best(facts: Mapping[str, Any], figures: Mapping[str, Figure], arms: Arms) -> str:
    if facts["collapsed"]:
        return f"Not at all: {facts['collapsed'][0]}."
    order = sorted(figures, key=lambda label: -figures[label].mean)
    first = order[0]
    text = f"{first} is best on the test images of all sites together: balanced accuracy {figures[first]} %"
    text += f", before {order[1]} with {figures[order[1]]} %." if len(order) > 1 else "."
    images = mean(held_out(run) for _, runs in arms for run in runs)
    if images < FEW:
        text += f" {images:.0f} test images are few: others could give another order."
    return text


def _chance(facts: Mapping[str, Any], figures: Mapping[str, Figure]) -> str:
    """The best against its reference; if the reference is the best, the runner-up against it."""
    order = sorted(figures, key=lambda label: -figures[label].mean)
    rivals = [label for label in order if label in facts["versus"]]
    if not rivals:
        return f"There is nothing to set against {facts['reference']}."
    label = rivals[0]
    one = facts["versus"][label]
    reference = one["reference"]
    more = "above" if one["difference"] >= 0 else "below"
    text = f"{label} is {100 * abs(one['difference']):.1f} points {more} {reference}. "
    images, runs = one["holm"]["images"], one["holm"]["t"]
    if images is not None:
        text += f"For these models on other such patients, {_verdict(images)}. "
    if runs is None:
        return f"{text}One run each says nothing about how training again would turn out."
    over = many(len(one["differences"]), "run")
    return f"{text}For the methods trained again, {_verdict(runs)}, over {over} of each."


def _settled_arms(arms: Arms) -> str:
    """Which arms have runs that were still changing."""
    known = {label: [run.result.get("converged") for run in runs] for label, runs in arms}
    if all(one is None for runs in known.values() for one in runs):
        return ""
    still = [label for label, runs in known.items() if not all(runs)]
    if not still:
        return "As far as the validation images tell: every run had converged."
    return (
        f"Not in every run of {listed(still)}: the balanced accuracy on the validation images was still "
        f"changing, or too few rounds were evaluated to know. More rounds may change the order."
    )


def _verdict(p: float) -> str:
    shown = "< 0.001" if p < 0.001 else f"= {p:.3f}"
    verdict = "more than chance explains" if p < CHANCE else "not more than chance may explain"
    return f"that is {verdict} (p {shown})"


def _rare(facts: Mapping[str, Any], run: Run) -> str:
    every = {label: one["figures"]["generalisation"]["tail"] for label, one in facts["arms"].items()}
    tails = {label: Figure(**tail) for label, tail in every.items() if tail is not None}
    if not tails:
        return ""
    best = max(tails, key=lambda label: tails[label].mean)
    text = (
        f"Of the rarest third of the classes {best} recognises the most: {tails[best]} %, every class "
        f"counting the same"
    )
    reference = facts["arms"][best]["reference"]
    text += f"; {reference} {tails[reference]} %." if reference in tails and reference != best else "."
    support = (run.test or {}).get("generalisation", {}).get("support", [])
    few = [name for name, n in zip(run.data["classes"], support, strict=False) if int(n or 0) < SMALL]
    return text + (f" Fewer than {SMALL} test images have {listed(few)}." if few else "")


def _gains(arms: Arms) -> str:
    alone = [run for _, runs in arms if runs[0].standard == "alone" for run in runs]
    others = [(label, runs) for label, runs in arms if runs[0].standard not in ("alone", "pooled")]
    if not alone or not others:
        return (
            f"Not known: nobody trained alone and with others. Add {standard('alone')} to the methods to see "
            f"it for every site."
        )
    first = others[0][1][0]
    few = [site for site in first.data["sites"] if held_out(first, site) < SMALL]
    scored = {
        label: {site: mean(each) for site, (_, each) in site_gains(runs, alone).items() if site not in few}
        for label, runs in others
    }
    label = max(scored, key=lambda name: mean(scored[name].values()) if scored[name] else -1.0)
    gains = scored[label]
    text = f"No site has {SMALL} test images."
    if gains:
        winners, top = sum(gain > 0 for gain in gains.values()), max(gains, key=lambda site: gains[site])
        text = (
            f"With {label}, {winners} of {many(len(gains), 'site')} recognise their own patients better "
            f"than after training alone"
        )
        text += f", {top} most of all ({_points(gains[top])})." if winners else "."
        losers = [f"{site} ({_points(gain)})" for site, gain in gains.items() if gain <= 0]
        text += f" No gain for {several(losers)}." if losers else ""
        text += f" With fewer than {SMALL} test images nothing can be said of {several(few)}." if few else ""
    return text + (f" {DRAWN}" if drawn(arms) else "")


def _left(facts: Mapping[str, Any]) -> str:
    """How much of the way from training alone to pooled images the best arm has gone."""
    gaps = {label: one for label, one in facts.get("gaps", {}).items() if one["views"]["generalisation"]}
    if not gaps:
        return ""
    label = max(gaps, key=lambda name: gaps[name]["views"]["generalisation"]["joined"])
    one = gaps[label]
    gap = one["views"]["generalisation"]
    text = (
        f"On the test images of all sites, {one['pooled']}, with all images in one place, is "
        f"{100 * abs(gap['gap']):.1f} points {'above' if gap['gap'] >= 0 else 'below'} {one['alone']}, where "
        f"every site trains by itself. "
    )
    if gap["closed"] is None:
        return f"{text}That is too little to say how much of it joining closes."
    return f"{text}{label} comes furthest: it closes {100 * gap['closed']:.0f} % of that gap."


def drawn(arms: Arms) -> bool:
    """Whether a site's name means another site in another run."""
    runs = [run for _, each in arms for run in each]
    fixed = runs[0].config["partition"]["kind"] == "column"
    return not fixed and len({run.config["train"]["seed"] for run in runs}) > 1


# Pieces -----------------------------------------------------------------------------------------------------


def held_out(run: Run, site: str | None = None) -> int:
    """Test images, at one site, or in all at those that answered."""
    absent = untested(run) if site is None else ()
    sites = run.data["sites"].items()
    return sum(held["test"]["images"] for name, held in sites if site in (None, name) and name not in absent)


def _drawn(run: Run) -> bool:
    """Whether only some of the sites were asked for their test images (`evaluate.sites`)."""
    tested = run.test["sites"] if run.test else {}
    return bool(run.config.get("evaluate", {}).get("sites")) and len(tested) < len(run.data["sites"])


def many(count: int, noun: str) -> str:
    """1 site, 3 sites."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def several(names: Sequence[str]) -> str:
    """Sites by name, or of many their number."""
    return listed(names) if len(names) <= NAMED else many(len(names), "site")


def _points(gain: float) -> str:
    return f"{100 * gain:+.1f} points"
