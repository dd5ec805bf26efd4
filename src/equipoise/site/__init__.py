"""Inside one hospital: batches, views, local training, private store."""

from equipoise.site.batches import Batch, Pooled, SiteData
from equipoise.site.loc import Loc
from equipoise.site.measure import coarse, measure
from equipoise.site.options import START, TrainOptions
from equipoise.site.store import Store

__all__ = ["START", "Batch", "Loc", "Pooled", "SiteData", "Store", "TrainOptions", "coarse", "measure"]
