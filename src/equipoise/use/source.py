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
from equipoise.initial import parts_of_run, read_blueprint, read_frozen, read_result, read_selected
from equipoise.locate import Parts, context
from equipoise.names import unknown
from equipoise.nets import ONNX, encoder_sha256
from equipoise.opening import read_regular
from equipoise.predict import Origin, Predictor, assemble
from equipoise.run_folder import CONFIG, METRICS, PRIVATE, RunFolder
from equipoise.server.checkpoint import Header
from equipoise.site import Store
from equipoise.text import parse_toml
from equipoise.tree import Tree, unflatten
from equipoise.trust import allow_encoder, nothing

LARGEST = 8 * 2**30
"""bytes of the largest file that is read: an exported model, or the metrics of a long run"""


def load(path: str | Path, site: str | None = None, *, trust: bool = False) -> Predictor:
    """The predictor of the round a run selected: the global one, or a site's own. `path` is a run folder or
    an exported file.

    `trust` lets a run folder run a method's file or module, or an ONNX encoder, that you have not run before.
    """
    path = Path(path)
    return _from_file(path, site, trust) if path.is_file() else _from_run(RunFolder(path), site, trust)


# From a run folder ------------------------------------------------------------------------------------------


def _from_run(run: RunFolder, site: str | None, trust: bool) -> Predictor:
    parts = parts_of_run(run, trust)
    blueprint = read_blueprint(run, parts)
    table = parse_toml(run.text(CONFIG))["evaluate"]
    options = EvaluateOptions.model_validate(table, context=context(parts))
    result, sites = _result(run)
    endings = result.get("ending_of", [])
    server, header = read_selected(run, result["selected_rounds"])
    origin = Origin(
        site=site,
        round=header.round,
        ending_of=endings[-1] if endings else None,
        rule=options.select,
        state=header.state,
    )
    private_state = None if site is None else _private(run, site, sites, header)
    frozen = read_frozen(run, blueprint)
    if blueprint.net.name == ONNX:
        allow_encoder(encoder_sha256(frozen), run.path, trust)
    model = assemble(blueprint, server, origin, private_state, frozen=frozen)
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


def _result(run: RunFolder) -> tuple[dict[str, Any], list[str]]:
    """What the run came to, and its sites."""
    result = read_result(run)
    rows = run.rows(METRICS, result["metrics_hash"])
    sites = sorted({site for row in rows for site in (*row["sites"], *row.get("test", {}).get("sites", ()))})
    return result, sites


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


def _from_file(path: Path, site: str | None, trust: bool) -> Predictor:
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
        if blueprint.net.name == ONNX:
            allow_encoder(encoder_sha256(tensors["net"]), path, trust)
        model = Predictor(blueprint, {"net": {}, **tensors}, origin)
        whole = model.whole()
    except (WeightsError, LookupError, RuntimeError) as error:
        raise StorageError(refusal) from error
    if not whole:
        raise StorageError(refusal)
    if site not in (None, origin.site):
        raise ConfigError(f"{path} holds {model.title}: leave --site out, or export that site's")
    return model
