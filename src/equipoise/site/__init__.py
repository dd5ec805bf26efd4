"""Inside one hospital: batches, views, local training, private store."""

from equipoise.site.batches import Batch, Look, Pooled, SiteData
from equipoise.site.cached import Cached
from equipoise.site.loc import Loc
from equipoise.site.measure import coarse, measure
from equipoise.site.options import START, TrainOptions
from equipoise.site.privacy import PrivacyOptions
from equipoise.site.store import Store

__all__ = [
    "START",
    "Batch",
    "Cached",
    "Loc",
    "Look",
    "Pooled",
    "PrivacyOptions",
    "SiteData",
    "Store",
    "TrainOptions",
    "coarse",
    "measure",
]
