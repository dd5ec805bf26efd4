"""Where a predictor comes from: a run folder, or a file that `export` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from equipoise.blueprint import Blueprint
from equipoise.errors import ConfigError, MethodError, StorageError, Untrusted, WeightsError
from equipoise.evaluate import EvaluateOptions
from equipoise.exchange import unseal
from equipoise.exchange.codec import CodecError
from equipoise.locate import Parts, context
from equipoise.names import unknown
from equipoise.opening import read_regular
from equipoise.predict import Origin, Predictor, assemble
from equipoise.run_folder import BLUEPRINT, CHECKPOINTS, CONFIG, METRICS, PRIVATE, RESULT, RunFolder
from equipoise.server import Checkpoints
from equipoise.server.checkpoint import Header
from equipoise.site import Store
from equipoise.text import parse_toml
from equipoise.tree import Tree, unflatten
from equipoise.trust import nothing, of_folder

LARGEST = 8 * 2**30
"""bytes of the largest file that is read: an exported model, or the metrics of a long run"""


def load(path: str | Path, site: str | None = None, *, trust: bool = False) -> Predictor:
    """The predictor of the round a run selected: the global one, or a site's own. `path` is a run folder or
    an exported file.

    `trust` lets a run folder run a method's file or module that you have not run before.
    """
    path = Path(path)
    return _from_file(path, site) if path.is_file() else _from_run(RunFolder(path), site, trust)


# From a run folder ------------------------------------------------------------------------------------------


def _from_run(run: RunFolder, site: str | None, trust: bool) -> Predictor:
    table = parse_toml(run.text(CONFIG))
    parts = Parts(Path(str(table["base"])), of_folder(run, trust))
    blueprint = read_blueprint(run, parts)
    options = EvaluateOptions.model_validate(table["evaluate"], context=context(parts))
    result, sites = _result(run)
    endings = result.get("ending_of", [])
    server, header = _checkpoint(run, result["selected_rounds"])
    origin = Origin(
        site=site,
        round=header.round,
        ending_of=endings[-1] if endings else None,
        rule=options.select,
        state=header.state,
    )
    kept = None if site is None else _private(run, site, sites, header)
    model = assemble(blueprint, server, origin, kept)
    model.own_metrics = options.own_metrics
    if not model.whole():
        raise MethodError(
            f"'{blueprint.method_name}' leaves parts of the model at the sites, so there is no predictor "
            f"without them: name a site ({', '.join(sites)})"
            if site is None
            else f"what site '{site}' keeps does not make a whole predictor with round {header.round}: "
            f"start the run anew"
        )
    return model


def read_blueprint(run: RunFolder, parts: Parts) -> Blueprint:
    """The blueprint of a run; code that it names is found in `parts`."""
    try:
        return Blueprint.model_validate(run.read(BLUEPRINT), context=context(parts))
    except ValidationError as error:
        raise StorageError(f"{run / BLUEPRINT} is damaged: {run.fix(BLUEPRINT)}") from error


def _result(run: RunFolder) -> tuple[dict[str, Any], list[str]]:
    """What the run came to, and its sites."""
    if not run.has(RESULT):
        raise StorageError(f"{run} has no {RESULT}: finish the run with `equipoise resume {run}`")
    result = run.read(RESULT)
    rows = run.rows(METRICS, result["metrics_hash"])
    sites = sorted({site for row in rows for site in (*row["sites"], *row.get("test", {}).get("sites", ()))})
    return result, sites


def _checkpoint(run: RunFolder, rounds: list[int]) -> tuple[Tree, Header]:
    """The coordinator's state after the reported round, the last of several; without any, the newest."""
    checkpoints = Checkpoints(run / CHECKPOINTS)
    found = checkpoints.load(rounds[-1]) if rounds else checkpoints.newest()
    if found is None:
        raise StorageError(f"{run} has no checkpoint: finish the run with `equipoise resume {run}`")
    return found


def _private(run: RunFolder, site: str, sites: list[str], header: Header) -> Tree:
    """What a site kept in that round."""
    if site not in sites:
        raise ConfigError(unknown("site", site, sites))
    if not header.versions:
        return {}  # a method whose sites keep nothing: each uses the global predictor
    if site not in header.versions:
        raise StorageError(
            f"site '{site}' was never drawn up to the selected round, so it has no predictor of its own yet"
        )
    if not (run / PRIVATE / site).is_dir():
        raise StorageError(
            f"{run} does not hold what site '{site}' keeps: in a real federation that never leaves the site"
        )
    return unflatten(Store(run / PRIVATE).read(site, header.versions[site]))


# From an exported file --------------------------------------------------------------------------------------


def _from_file(path: Path, site: str | None) -> Predictor:
    refusal = f"{path} is not a model that `equipoise export --to safetensors` wrote: export it again"
    try:
        header, flat = unseal(read_regular(path, LARGEST))
        # Code of one's own is refused: a model must not choose what is executed.
        blueprint = Blueprint.model_validate(header["blueprint"], context=context(Parts(Path(), nothing)))
        origin = Origin.model_validate(header["origin"])
        tensors = unflatten(flat)
    except Untrusted as error:
        raise StorageError(f"{path} cannot be used: {error}") from error
    except (OSError, CodecError, ValidationError, ValueError, LookupError, TypeError) as error:
        raise StorageError(refusal) from error
    try:
        model = Predictor(blueprint, {"net": {}, **tensors}, origin)
        whole = model.whole()
    except (WeightsError, LookupError, RuntimeError) as error:
        raise StorageError(refusal) from error
    if not whole:
        raise StorageError(refusal)
    if site not in (None, origin.site):
        raise ConfigError(f"{path} holds {model.title}: leave --site out, or export that site's")
    return model
