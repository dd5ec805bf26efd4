"""A coordinator that wants to read one site: what it tries, and why it gets nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.exchange.secure.town import RUN, answer, ask, hamlet, masking_of, plain, question

from equipoise.exchange.secure.keys import Forged, seeded, seeded_identity
from equipoise.exchange.secure.letters import Advert, Arrived, Group, Order, deal_of, read, write
from equipoise.exchange.secure.member import Member, Memory


def test_another_broadcast_for_one_site_gives_noise() -> None:
    town = hamlet(4)
    names = list(town.members)
    total, _ = ask(town, masking_of(town), question(names), payloads={names[1]: b"another model"})
    assert not torch.equal(total, plain(names))
    assert float(((total - plain(names)).double().abs() > 2.0**50).float().mean()) > 0.9


def test_a_second_sum_that_lacks_one_site_is_refused() -> None:
    """The same round and question again, this time without one: by new keys, or by the same."""
    town = hamlet(5)
    names, masking = list(town.members), masking_of(town)
    ask(town, masking, question(names))
    masking._ready = None
    opened = masking.open(question(names), [], 50)
    total = torch.stack([answer(town, site, opened.question) for site in names[1:]]).sum(0)
    letter = Arrived(deal=deal_of(RUN, list(opened.dealt.group.values())), sites=tuple(names[1:]))
    for site in names[1:]:
        with pytest.raises(Forged, match="another set of sites was unmasked"):
            town.members[site].step("unmask", write(letter))
    assert total is not None
    # and as it should be: the same set again is the same sum
    again, arrived = ask(town, masking, question(names))
    assert arrived == names and torch.equal(again, plain(names))


def test_a_set_that_lacks_a_site_of_the_first_sum_is_not_even_masked() -> None:
    town = hamlet(5)
    names, masking = list(town.members), masking_of(town)
    ask(town, masking, question(names))
    masking._ready = None
    opened = masking.open(replace(question(names), asked=tuple(names[1:])), [], 50)
    with pytest.raises(Forged, match="answered for another set of sites"):
        answer(town, names[1], opened.question)


def test_both_kinds_of_shares_are_never_given() -> None:
    town = hamlet(4)
    names, masking = list(town.members), masking_of(town)
    opened = masking.open(question(names), [], 50)
    for site in names:
        answer(town, site, opened.question)
    deal = deal_of(RUN, list(opened.dealt.group.values()))
    said = town.members[names[0]].unmask(Arrived(deal=deal, sites=tuple(names)))
    assert set(said.own) == set(names) and not said.keys
    with pytest.raises(Forged, match="another set of sites was unmasked"):
        town.members[names[0]].unmask(Arrived(deal=deal, sites=tuple(names[:3])))
    other = town.members[names[1]].unmask(Arrived(deal=deal, sites=tuple(names[:3])))
    assert set(other.own) == set(names[:3]) and set(other.keys) == {names[3]}


@pytest.mark.parametrize("least", [3, 5])
def test_fewer_sites_than_the_least_are_refused(least: int) -> None:
    town = hamlet(6, least)
    masking = masking_of(town)
    few = list(town.members)[: least - 1]
    with pytest.raises(Exception, match="no site shared"):
        masking.open(question(few), [], 50)
    assert all(f"at least {least} sites" in reason for reason in town.refused.values())


def test_a_sum_of_two_thirds_or_fewer_is_not_unmasked() -> None:
    town = hamlet(6)
    names, masking = list(town.members), masking_of(town)
    opened = masking.open(question(names), [], 50)
    answer(town, names[0], opened.question)
    deal = deal_of(RUN, list(opened.dealt.group.values()))
    with pytest.raises(Forged, match="two thirds"):
        town.members[names[0]].unmask(Arrived(deal=deal, sites=tuple(names[:4])))
    with pytest.raises(Forged, match="not of sites that were asked together"):
        town.members[names[0]].unmask(Arrived(deal=deal, sites=(*names[:5], "s99")))


def test_keys_of_a_made_up_site_are_refused() -> None:
    """A coordinator that plays sites itself: not in the roster, or with a key that is not the roster's."""
    town = hamlet(3)
    names = list(town.members)
    adverts = [town.members[name].advertise() for name in names]
    stranger = seeded_identity(9, "s99")
    facts = adverts[1].model_dump() | {"site": "s99", "signature": "00"}
    signed = stranger.sign(Advert(**facts).signed(RUN)).hex()
    group = Group(adverts=(adverts[0], adverts[1], Advert(**(facts | {"signature": signed}))))
    with pytest.raises(Forged, match="not in this site's roster"):
        town.members[names[0]].share(group)
    for change in ({"mask": "11" * 32}, {"box": "11" * 32}, {"seed": "11" * 32}, {"signature": "11" * 64}):
        false = adverts[1].model_copy(update=change)
        with pytest.raises(Forged, match="not signed by it"):
            town.members[names[0]].share(Group(adverts=(adverts[0], false, adverts[2])))


def test_an_advert_of_another_run_is_refused() -> None:
    town = hamlet(3)
    names = list(town.members)
    adverts = [town.members[name].advertise() for name in names]
    elsewhere = Member(
        names[1],
        "f" * 16,
        seeded_identity(1, names[1]),
        None,
        seeded(3, "x"),
        Memory(),  # type: ignore[arg-type]
    )
    with pytest.raises(Forged, match="not signed by it"):
        town.members[names[0]].share(Group(adverts=(adverts[0], elsewhere.advertise(), adverts[2])))


def test_boxes_are_for_one_site_and_one_group() -> None:
    town = hamlet(4)
    names, masking = list(town.members), masking_of(town)
    opened = masking.open(question(names), [], 50)
    order = read(Order, opened.question.letters[names[0]])
    theirs = read(Order, opened.question.letters[names[1]])
    swapped = order.boxes | {names[2]: theirs.boxes[names[2]]}
    with pytest.raises(Forged, match="does not open"):
        town.members[names[0]].masks(order.model_copy(update={"boxes": swapped}), 0, "train", "")
    short = {site: box for site, box in order.boxes.items() if site != names[2]}
    with pytest.raises(Forged, match="box of 's02' is missing"):
        town.members[names[0]].masks(order.model_copy(update={"boxes": short}), 0, "train", "")


def test_one_set_of_keys_serves_one_question() -> None:
    town = hamlet(4)
    names, masking = list(town.members), masking_of(town)
    opened = masking.open(question(names), [], 50)
    answer(town, names[0], opened.question)
    with pytest.raises(Forged, match="used for another question"):
        answer(town, names[0], opened.question, b"another model")
    with pytest.raises(Forged, match="used for another question"):
        answer(town, names[0], replace(opened.question, round=1))


def test_the_late_answer_of_a_site_that_was_counted_out_stays_unreadable() -> None:
    """Its key is known by then, its own mask is not."""
    town = hamlet(4)
    names, masking = list(town.members), masking_of(town)
    opened = masking.open(question(names), [], 50)
    words = {site: answer(town, site, opened.question) for site in names}
    total = torch.stack([words[site] for site in names[:3]]).sum(0)
    masking.close(opened, names[:3], total)
    assert torch.equal(total, plain(names[:3]))
    late = words[names[3]] + sum(words[site] for site in names[:3]) - total  # all that the sums tell of it
    assert float(((late - plain([names[3]])).double().abs() > 2.0**50).float().mean()) > 0.9


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"adverts": 3}', b'{"deal": "x", "sites": []}'])
def test_letters_that_are_none_are_refused(data: bytes) -> None:
    member = hamlet(3).members["s00"]
    for step in ("share", "unmask", "else"):
        with pytest.raises(Forged):
            member.step(step, data)
