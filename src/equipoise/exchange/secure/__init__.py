"""Secure aggregation: sites mask their answers so that the coordinator learns their sum and nothing else.

The protocol is that of Bonawitz et al. 2017 with a share of more than two thirds:

    advertise   a site signs two fresh public keys with the key the roster knows it by
    share       it has received the others' keys: the secrets behind its masks go to the others in shares,
                each encrypted for one of them; the coordinator passes them on
    mask        it answers a question with masked words: a mask per other site, which cancels out in the sum,
                and one of its own
    unmask      it is told whose answers arrived, and gives for each of those the share of its own mask, and
                for each of the others the share of the key behind its pairwise masks; never both

A question costs two exchanges: `share` for the next one goes along with `unmask`. Needs the package
`cryptography`, which is imported here and nowhere else in this room.
"""
