"""A classifier in closed form: discriminant analysis from sums over images, which sites can add up.

With z the features of an image, brought to length 1, a site sums z and counts images for every class, and
sums (z, 1)(z, 1)ᵀ over all images, or class by class. From the totals come class means μ_c, the covariance Σ
within classes (of all images, or the mean of the classes' own), and the logits of Gaussian classes that are
all equally likely, against an image that is the mean m of all, or of all classes:
    w_c = Σ_r⁻¹ (μ_c − m),   b_c = −½ (μ_c + m)ᵀ w_c,   Σ_r = Σ + r (tr Σ / d) I,   r = k d / n
for d features and n images: with few images small variances are mostly chance. (Several labels: n images are
labelled for one, on average, since Σ_r⁻¹ also multiplies the chance in the means of those.) So is part of the
length of the mean of few images, which lowers b_c:
    E μ̂ᵀ Σ_r⁻¹ μ̂ = μᵀ Σ_r⁻¹ μ + tr(Σ_r⁻¹ Σ) / n_c
Corrected, b_c gets half of the last term back; without that a rare class is found too seldom where there are
many features.
Classes may also have covariances of their own (regularised discriminant analysis, Friedman 1989): Σ_c is
(1 − α) Σ + α the class's own, with one α = h / (h + s d) for all classes and h the harmonic mean of how many
images they have. Then the logit of z is −½ (z − μ_c)ᵀ Σ_c,r⁻¹ (z − μ_c) − ½ log |Σ_c,r|. An α for each class
would make the covariances of rare classes wider than those of others, and rare classes found too seldom.
Totals do not depend on how images are divided among sites: it is the classifier that all images in one place
would give. With several labels per image each label has two classes, absent and present, and its logit is the
difference of theirs; an image without the label is in neither, and Σ is the covariance of all images. Where
training has driven classes far apart, all logits are scaled so that no class mean has more than 20 of its
own. Sums are by class or over all: a coordinator that weighed classes could work out what a site withholds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise.exchange import Answers
from equipoise.leaves import SAMPLES, Limit
from equipoise.nets import Net
from equipoise.site import Loc
from equipoise.tree import Tree

LEAST = 1e-4
"""variance within classes, at least; of features of length 1 all variance together is at most 1"""
LARGEST = 20.0
"""how far the logit of a class at its own mean is above that of the mean of all, at most"""
NEVER = -100.0
"""logit of a class without images: below any other, and still a number that can be sent"""
BELOW = 30.0
"""how far below all others the logit of a class is that a site does not have, where nothing else is known"""
UNEVEN = 0.2
"""shape of the distribution of a class's share over sites: the smaller, the more they differ"""
LEAST_OWN = 0.05
"""share α of a class's own covariance, at least; below it a matrix for each class is not worth sending"""

SUMMED = Limit(images=1.0, signed=True)
"""of numbers between -1 and 1, one for each image"""
LIMITS: Mapping[str, Limit] = {
    "describe.counts": SAMPLES,
    "describe.sums": SUMMED,
    "describe.second": SUMMED,
}
"""of the answers to the question `describe`, see `sums`"""


def packed(symmetric: Tensor) -> Tensor:
    """The lower triangles, row by row, of symmetric matrices [..., n, n]: [..., n (n + 1) / 2]."""
    row, column = torch.tril_indices(*symmetric.shape[-2:])
    return symmetric[..., row, column]


def unpacked(triangle: Tensor) -> Tensor:
    """The symmetric matrices that have these lower triangles."""
    size = (math.isqrt(8 * triangle.shape[-1] + 1) - 1) // 2
    row, column = torch.tril_indices(size, size)
    symmetric = triangle.new_empty(*triangle.shape[:-1], size, size)
    symmetric[..., row, column] = triangle
    symmetric[..., column, row] = triangle
    return symmetric


def sums(net: Net, loc: Loc, features: Callable[[Net, Tensor], Tensor], even: bool) -> dict[str, Tensor]:
    """What a site adds to the totals: `sums` [C, d], `counts` [C], several labels: [C, 2, d] and [C, 2]; and
    `second`, of the symmetric matrix [d + 1, d + 1] one triangle, see `packed`: (d + 1)(d + 2) / 2 numbers;
    with `even` and one label per image as many for each class."""
    z = torch.cat([F.normalize(features(net, batch.x)).cpu().double() for batch in loc.scan()])
    y = loc.train.labels.cpu()
    longer = F.pad(z, (0, 1), value=1.0)
    if y.dim() == 1:
        member = F.one_hot(y, len(loc.classes)).double()
    else:
        member = torch.stack([1 - y, y], 2).nan_to_num(0.0).double()
    if even and y.dim() == 1:
        second = torch.stack([packed((longer * of[:, None]).T @ longer) for of in member.T])
    else:
        second = packed(longer.T @ longer)
    return {"sums": torch.einsum("n...,nd->...d", member, z), "counts": member.sum(0), "second": second}


def solve(
    total: Tree | Answers, ridge: float, corrected: bool = True, spread: float | None = None
) -> dict[str, Tensor]:
    """What the classifier is made of: `mean` as `sums` is shaped, that of all images for what was never seen;
    `middle` [d]; `precision` = Σ_r⁻¹ [d, d] with k = `ridge`, or [C, d, d] where classes have covariances of
    their own, s = `spread`; and as `counts` is shaped `seen`, 1 or 0, `chance`, what is given back for it
    less half the logarithm of the volume, and with one label per image `share`, how many images are of the
    class. With a `second` of each class all classes weigh the same. Where classes have covariances of their
    own, `precision` and `chance` are scaled already, see `restrained`."""
    count, second = total["counts"].double(), unpacked(total["second"].double())
    seen, weight, images = count > 0, count, second[..., -1, -1].sum().clamp_min(1)
    each = None
    if second.dim() == 3:
        each = second / count.clamp_min(1)[:, None, None]
        second, weight = each.sum(0), seen.double()
    whole = second[-1, -1].clamp_min(1)
    middle = second[-1, :-1] / whole
    mean = torch.where(seen[..., None], total["sums"].double() / count.clamp_min(1)[..., None], middle)
    within = second[:-1, :-1] / whole - torch.outer(middle, middle)
    if count.dim() == 1:
        within -= ((mean - middle).T * weight) @ (mean - middle) / whole
    # r times the mean variance is k / n times all of it
    known = images if count.dim() == 1 else count.sum(1).mean().clamp_min(1)
    added = ridge / known * within.trace().clamp_min(LEAST) * torch.eye(len(within)).to(within)
    covariance = positive(within + added, float(added[0, 0]))
    precision, volume = torch.linalg.inv(covariance), torch.zeros_like(count)
    if each is not None and spread is not None and (share := own_share(count, len(within), spread)):
        scale = restrained(mean - middle, precision)
        own = each[:, :-1, :-1] - mean[:, :, None] * mean[:, None]
        within = (1 - share) * within + share * torch.where(seen[:, None, None], own, within)
        wide = positive(within + added, float(added[0, 0]))
        precision = scale * torch.linalg.inv(wide)
        volume = scale * (torch.logdet(wide) - torch.logdet(covariance))
    chance = corrected * seen * (precision * within).sum((-2, -1)) / count.clamp_min(1)
    bias = 0.5 * (chance - volume)
    found = {"mean": mean, "middle": middle, "precision": precision, "seen": seen, "chance": bias}
    if count.dim() == 1:
        found["share"] = count / images
    return {name: value.float() for name, value in found.items()}


def positive(covariance: Tensor, least: float) -> Tensor:
    """Symmetric matrices as they are where all are positive definite, as those of features always are; or,
    where a site sent something else, with eigenvalues of at least `least`."""
    if not torch.linalg.cholesky_ex(covariance).info.any():
        return covariance
    values, vectors = torch.linalg.eigh(covariance)
    repaired: Tensor = (vectors * values.clamp_min(least)[..., None, :]) @ vectors.mT
    return repaired


def restrained(from_middle: Tensor, precision: Tensor) -> Tensor:
    """What logits are multiplied by, at most 1, so that at no class mean one is above `LARGEST`: features
    learnt by heart hardly differ within a class, and logits would be without measure. `precision` is that of
    all classes: one that is narrow by itself does not flatten the logits of others."""
    reached = 0.5 * ((from_middle @ precision) * from_middle).sum(-1).max()
    return LARGEST / reached.clamp_min(LARGEST)


def own_share(count: Tensor, features: int, spread: float) -> float:
    """α: how much of a class's covariance is its own; 0 where that is next to nothing."""
    known = count[count > 0]
    images = float(len(known) / known.reciprocal().sum()) if len(known) else 0.0
    share = images / (images + spread * features)
    return share if share >= LEAST_OWN else 0.0


def own_means(solved: Tree, mine: Tree, strength: float) -> Tensor:
    """A site's class means [C, d] from its `sums` and `counts`: what all its images have in common against
    the federation's means of their classes (scanner, staining), then what is left class by class, each drawn
    towards 0 as if `strength` images more had shown nothing."""
    count, total = (mine[name].to(solved["mean"]) for name in ("counts", "sums"))
    count = count[:, None]
    away = total - count * solved["mean"]
    shift = away.sum(0) / (count.sum() + strength)
    result: Tensor = solved["mean"] + shift + (away - count * shift) / (count + strength)
    return result


def logits(features: Tensor, solved: Tree, mean: Tensor | None = None) -> Tensor:
    """What the classifier, or one with other class means, says of features [N, d] as the body gives them.

    A class without images is never predicted; a label of which one side was never seen gets 0.
    """
    solved = {name: tensor.to(features) for name, tensor in solved.items()}
    mean = solved["mean"] if mean is None else mean.to(features)
    z, seen, precision = F.normalize(features), solved["seen"], solved["precision"]
    if precision.dim() == 3:
        away = z[:, None] - mean
        scores = solved["chance"] - 0.5 * torch.einsum("ncd,cde,nce->nc", away, precision, away)
        scores = scores.masked_fill(seen == 0, -math.inf)
        result: Tensor = (scores - scores.amax(1, keepdim=True)).clamp_min(NEVER)
        return result
    from_middle = mean - solved["middle"]
    scale = restrained(from_middle, precision)
    weight = scale * (from_middle @ precision)
    bias = scale * solved["chance"] - 0.5 * (weight * (mean + solved["middle"])).sum(-1)
    if seen.dim() == 1:
        bias = torch.where(seen > 0, bias, torch.full_like(bias, NEVER))
    else:
        both = seen.amin(1)
        weight, bias = (weight[:, 1] - weight[:, 0]) * both[:, None], (bias[:, 1] - bias[:, 0]) * both
    return F.linear(z, weight, bias)


def beside(
    trained: Tensor, features: Tensor, solved: Tree, share: float, mine: Tree | None, own: float | None
) -> dict[str, Tensor]:
    """Logits by who gives them: `both`, of which the classifier has this share and a trained head the rest,
    and each by itself. Where a site has sums of its own and `own` is given, class means are drawn towards
    the site's, see `own_means`. A label of which one side was never seen is left to the trained head."""
    solved = {name: tensor.to(features) for name, tensor in solved.items()}
    mean = own_means(solved, mine, own) if own is not None and mine and "sums" in mine else None
    computed = logits(features, solved, mean)
    part = share * (1.0 if solved["seen"].dim() == 1 else solved["seen"].amin(1))
    return {"both": (1 - part) * trained + part * computed, "trained": trained, "computed": computed}


def held(loc: Loc) -> dict[str, Tensor]:
    """What a site keeps for `limited`: which classes are `present` [C], and how many `images` it has."""
    return {"present": loc.counts > 0, "images": loc.counts.sum()}


def limited(scores: Tensor, mine: Tree, share: Tensor | None) -> Tensor:
    """Logits [N, C] of a site, less what speaks against the classes that it lacks; `mine` as by `held`.

    A class has `share` [C] of all images of the federation. Its share at one site is taken for drawn from a
    Gamma distribution around that, of shape a = `UNEVEN`. Where e = share · images of the site were expected
    and none is found, what is expected of it from then on falls to a / (a + e), of which the logarithm is
    added: it says little that a rare class is not there. Without `share` such classes are far below others.
    """
    absent: Tensor = ~mine["present"].to(scores.device)
    if share is None:
        return torch.where(absent, scores.amin(1, keepdim=True) - BELOW, scores)
    expected = share.to(scores) * mine["images"].to(scores)
    return scores - absent * torch.log1p(expected / UNEVEN)
