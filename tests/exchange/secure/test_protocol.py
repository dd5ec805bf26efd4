"""The protocol between honest sites: exact sums whoever drops out, and as few exchanges as promised."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from tests.exchange.secure.test_streams import distance
from tests.exchange.secure.town import RUN, Hamlet, answer, ask, hamlet, masking_of, plain, question

from equipoise.errors import SiteError
from equipoise.exchange.secure.keys import Roster, seeded, seeded_identity
from equipoise.exchange.secure.letters import Order, read, threshold, write
from equipoise.exchange.secure.member import Member, Memory


@pytest.mark.parametrize(
    ("count", "step"), [(4, 1), (5, 1), (7, 6), pytest.param(7, 1, marks=pytest.mark.sweep)]
)
def test_the_sum_is_exact_for_every_set_that_may_drop_out(count: int, step: int) -> None:
    """Of seven sites, every sixth set; all in the sweep."""
    sizes = range(count - threshold(count) + 1)
    sets = [silent for size in sizes for silent in combinations(range(count), size)]
    for silent in sets[::step]:
        town = hamlet(count)
        names = list(town.members)
        total, arrived = ask(town, masking_of(town), question(names), {names[i] for i in silent})
        assert len(arrived) == count - len(silent)
        assert torch.equal(total, plain(arrived))


def test_more_than_two_thirds_must_stay() -> None:
    assert [threshold(n) for n in (3, 4, 5, 6, 7, 9, 10, 20)] == [3, 3, 4, 5, 5, 7, 7, 14]
    assert all(3 * threshold(n) > 2 * n and n - threshold(n) == (n - 1) // 3 for n in range(3, 200))


@pytest.mark.parametrize("step", ["advertise", "share", "unmask"])
def test_letters_may_be_lost_at_every_step(step: str) -> None:
    town = hamlet(7)
    names = list(town.members)
    town.lost = lambda what, site: what == step and site in names[:2]
    total, arrived = ask(town, masking_of(town), question(names))
    assert arrived == (names if step == "unmask" else names[2:])
    assert torch.equal(total, plain(arrived))


def test_one_lost_before_one_between_and_one_within() -> None:
    """Ten sites: one never shares, one never answers, one does not help to unmask; seven still do."""
    town = hamlet(10)
    names = list(town.members)
    town.lost = lambda what, site: (what, site) in {("share", names[0]), ("unmask", names[5])}
    total, arrived = ask(town, masking_of(town), question(names), {names[3]})
    assert arrived == [name for i, name in enumerate(names) if i not in (0, 3)]
    assert torch.equal(total, plain(arrived))


def test_too_few_help_and_nothing_is_known() -> None:
    town = hamlet(4)
    names = list(town.members)
    town.lost = lambda what, site: what == "unmask" and site in names[:2]
    with pytest.raises(SiteError, match="only 2 of 4 sites helped to unmask"):
        ask(town, masking_of(town), question(names))


def test_a_question_costs_two_exchanges() -> None:
    town = hamlet(4)
    masking = masking_of(town)
    for round in range(3):
        for name in ("train", "evaluate"):
            total, arrived = ask(town, masking, question(list(town.members), round, name))
            assert torch.equal(total, plain(arrived))
    assert town.steps == ["advertise", "share"] + ["unmask"] * 6


def test_other_sites_than_expected_cost_one_exchange_more() -> None:
    town = hamlet(7)
    names, masking = list(town.members), masking_of(town)
    for round, sites in enumerate((names, names[:4], names, names[2:])):
        total, arrived = ask(town, masking, question(sites, round))
        assert arrived == sorted(sites) and torch.equal(total, plain(arrived))
    assert town.steps == ["advertise", "share", "unmask", *["share", "unmask"] * 3]


def test_a_site_that_was_lost_comes_back() -> None:
    town = hamlet(4)
    names, masking = list(town.members), masking_of(town)
    town.lost = lambda what, site: what == "unmask" and site == names[0]
    ask(town, masking, question(names, 0))
    town.lost = lambda what, site: False
    total, arrived = ask(town, masking, question(names, 1))
    assert arrived == names and torch.equal(total, plain(names))


def test_a_site_that_was_started_anew_has_no_secrets_and_new_ones_soon() -> None:
    """Its part in unmasking is lost with the process; from the next question on it is there again."""
    town = hamlet(4)
    names, masking = list(town.members), masking_of(town)
    opened = masking.open(question(names), [], 50)
    total = torch.stack([answer(town, site, opened.question) for site in names]).sum(0)
    town.members[names[0]] = anew(town, names[0])
    masking.close(opened, names, total)
    assert torch.equal(total, plain(names))
    assert "no longer has them" in town.refused[names[0]]
    total, arrived = ask(town, masking, question(names, 1))
    assert arrived == names and torch.equal(total, plain(names))


def anew(town: Hamlet, name: str) -> Member:
    people = {one: seeded_identity(1, one) for one in town.members}
    roster = Roster({one: person.public for one, person in people.items()})
    return Member(name, RUN, people[name], roster, seeded(2, name), Memory())


def test_a_repeated_letter_has_the_same_answer() -> None:
    town = hamlet(3)
    names, masking, said = list(town.members), masking_of(town), dict[str, bytes]()
    relay = town.relay

    def twice(step: str, letters: dict[str, bytes], round: int):  # type: ignore[no-untyped-def]
        for site, first in relay(step, letters, round):
            said[step] = first
            if step != "advertise":
                assert town.members[site].step(step, letters[site]) == first
            yield site, first

    town.relay = twice  # type: ignore[method-assign, assignment]
    opened = masking.open(question(names), [], 50)
    first = [answer(town, site, opened.question) for site in names]
    again = [answer(town, site, opened.question) for site in names]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    total = torch.stack(first).sum(0)
    masking.close(opened, names, total)
    assert torch.equal(total, plain(names)) and set(said) == {"advertise", "share", "unmask"}


def test_one_false_share_is_found_and_left_out() -> None:
    town = hamlet(5)
    names = list(town.members)
    relay = town.relay

    def lie(step: str, letters: dict[str, bytes], round: int):  # type: ignore[no-untyped-def]
        for site, data in relay(step, letters, round):
            if step == "unmask" and site == names[1]:
                data = data.replace(b'"own":{"s00":"', b'"own":{"s00":"00')
            yield site, data

    town.relay = lie  # type: ignore[method-assign, assignment]
    total, arrived = ask(town, masking_of(town), question(names))
    assert torch.equal(total, plain(arrived))


def test_a_site_s_whole_transcript_is_uniform_words() -> None:
    """A million words of one site, as the coordinator gets them before and after unmasking the sum: neither
    can be told from chance. The sum of the other sites' words does not help."""
    town, count = hamlet(3), 10**6
    names, masking = list(town.members), masking_of(town)
    opened = masking.open(question(names), [], count)
    seen = {site: answer(town, site, opened.question, count=count) for site in names}
    assert distance(seen[names[0]]) < 1.95 / 1000
    alone = seen[names[0]].clone()
    masking.close(opened, names, alone)  # all own masks of the three are taken away; pairs are left
    assert distance(alone) < 1.95 / 1000


def test_a_masked_order_is_one_for_one_set() -> None:
    """The masks of a site depend on run, round, question, sites and the broadcast: any other gives others."""
    town = hamlet(4)
    names, masking = list(town.members), masking_of(town)
    opened = masking.open(question(names), [], 50)
    order = read(Order, opened.question.letters[names[0]])
    assert write(order) == opened.question.letters[names[0]]
    first = answer(town, names[0], opened.question)
    for other in (question(names, 1), question(names, 0, "evaluate")):
        town = hamlet(4)
        opened = masking_of(town).open(other, [], 50)
        assert not torch.equal(answer(town, names[0], opened.question), first)
