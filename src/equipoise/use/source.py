"""Where a predictor comes from: a run folder, or a file that `export` wrote."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from equipoise import __version__
from equipoise.config import Config, read_folder
from equipoise.errors import ConfigError, MethodError, StorageError, WeightsError
from equipoise.evaluate.observer import read_history
from equipoise.exchange import unseal
from equipoise.exchange.codec import CodecError
from equipoise.keeping import read_json
from equipoise.methods import METHODS
from equipoise.names import unknown
from equipoise.opening import read_regular
from equipoise.running import RESULT, read_result
from equipoise.server import Checkpoints
from equipoise.server.checkpoint import Header
from equipoise.setup import SIGHT, Sight, make_sight, material
from equipoise.site import Store
from equipoise.tree import Tree, unflatten
from equipoise.use.predictor import Facts, Input, Predictor

LARGEST = 8 * 2**30
"""bytes of the largest file that is read: an exported model, or the metrics of a long run"""


def load(path: str | Path, site: str | None = None, *, trust: bool = False) -> Predictor:
    """The predictor of the round a run selected: the global one, or a site's own. `path` is a run folder or
    an exported file.

    `trust` lets a run folder run a method's file or module that you have not run before.
    """
    path = Path(path)
    return _from_file(path, site) if path.is_file() else _from_run(path, site, trust)


# From a run folder ------------------------------------------------------------------------------------------


def _from_run(folder: Path, site: str | None, trust: bool) -> Predictor:
    config = read_folder(folder, trust)
    rounds, endings, sites = _history(folder)
    server, header = _checkpoint(folder, rounds)
    number = header.round
    tree = config.method.serving(server)
    net, mine = dict(tree["model"]), dict[str, Tree]()
    if site is not None:
        kept = _private(folder, site, sites, header)
        mine = kept.get("mine", {})
        net |= kept.get("net", {}) | kept.get("tuned", {}) | dict(config.method.personal(mine))
    sight, data = _sight(folder, config), config.data
    facts = Facts(
        task=sight.task,
        classes=sight.classes,
        input=Input(
            **sight.model_dump(include={"image_size", "channels", "mean", "std"}),
            **data.model_dump(include={"resize", "crop_keep", "colour_constancy", "brightness"}),
        ),
        net=config.net.model_copy(update={"weights": None, "sha256": None}),
        method=config.table()["method"],
        site=site,
        round=number,
        ending_of=endings[-1] if endings else None,
        rule=config.evaluate.select,
        shots=sight.shots,
        fingerprint=sight.fingerprint,
        config=config.digest,
        state=header.state,
        version=__version__,
    )
    rest = {name: branch for name, branch in tree.items() if name != "model"}
    model = Predictor(facts, {"net": net, "server": rest, "mine": mine}, config.method)
    model.own_metrics = config.evaluate.own_metrics
    if not model.whole():
        raise MethodError(
            f"'{config.method_name}' leaves parts of the model at the sites, so there is no predictor "
            f"without them: "
            f"name a site ({', '.join(sites)})"
            if site is None
            else f"what site '{site}' keeps does not make a whole predictor with round {number}: start the "
            f"run anew"
        )
    return model


def _history(folder: Path) -> tuple[list[int], list[int], list[str]]:
    """The reported rounds (a method's ending counts as one after the last), those whose endings they are, and
    the sites."""
    try:
        result = read_result(folder)
    except FileNotFoundError:
        raise StorageError(
            f"{folder} has no {RESULT}: finish the run with `equipoise resume {folder}`"
        ) from None
    rows = read_history(folder, result["metrics_hash"])
    sites = sorted({site for row in rows for site in (*row["sites"], *row.get("test", {}).get("sites", ()))})
    return result["selected_rounds"], result.get("ending_of", []), sites


def _checkpoint(folder: Path, rounds: list[int]) -> tuple[Tree, Header]:
    """The coordinator's state after the reported round, the last of several; without any, the newest."""
    checkpoints = Checkpoints(folder / "checkpoints")
    found = checkpoints.load(rounds[-1]) if rounds else checkpoints.newest()
    if found is None:
        raise StorageError(f"{folder} has no checkpoint: finish the run with `equipoise resume {folder}`")
    return found


def _private(folder: Path, site: str, sites: list[str], header: Header) -> Tree:
    """What a site kept in that round."""
    if site not in sites:
        raise ConfigError(unknown("site", site, sites))
    if not header.versions:
        return {}  # a method whose sites keep nothing: each uses the global predictor
    if site not in header.versions:
        raise StorageError(
            f"site '{site}' was never drawn up to the selected round, so it has no predictor of its own yet"
        )
    if not (folder / "sites" / site).is_dir():
        raise StorageError(
            f"{folder} does not hold what site '{site}' keeps: in a real federation that never leaves the "
            f"site"
        )
    return unflatten(Store(folder / "sites").read(site, header.versions[site]))


def _sight(folder: Path, config: Config) -> Sight:
    """Noted by the run; of a run that did not, found out from its data."""
    path = folder / SIGHT
    if not path.is_file():
        return make_sight(config, material(config))
    try:
        return Sight.model_validate(read_json(path, f"delete it, then `equipoise resume {folder}`"))
    except ValidationError as error:
        raise StorageError(f"{path} is damaged: delete it, then `equipoise resume {folder}`") from error


# From an exported file --------------------------------------------------------------------------------------


def _from_file(path: Path, site: str | None) -> Predictor:
    refusal = f"{path} is not a model that `equipoise export --to safetensors` wrote: export it again"
    try:
        header, flat = unseal(read_regular(path, LARGEST))
        facts = Facts.model_validate(header)
        tensors = unflatten(flat)
    except (OSError, CodecError, ValidationError, ValueError) as error:
        raise StorageError(refusal) from error
    if facts.method.get("name") not in METHODS:
        # The name of a method of one's own leads to a Python file, and a model must not choose what is
        # executed.
        raise StorageError(
            f"{path} names the method '{facts.method.get('name')}', which is not one of Equipoise's own"
        )
    if site not in (None, facts.site):
        raise ConfigError(f"{path} holds {facts.title}: leave --site out, or export that site's")
    try:
        model = Predictor(facts, {"net": {}, **tensors})
        whole = model.whole()
    except (WeightsError, LookupError, RuntimeError) as error:
        raise StorageError(refusal) from error
    if not whole:
        raise StorageError(refusal)
    return model
