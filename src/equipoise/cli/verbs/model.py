"""Verbs of a trained model: predict, evaluate, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.arguments import Json, Model, Site, Trust
from equipoise.cli.output import note, print_json
from equipoise.errors import DataError


def mount(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    for verb in (predict, evaluate, export):
        app.command()(verb)


def predict(
    model: Model,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGES…", help="Image files, folders, zip files; DICOM too.")
    ],
    site: Site = None,
    trust: Trust = False,
    out: Annotated[Path | None, typer.Option(help="A CSV file. [default: CSV on standard output]")] = None,
    json: Json = False,
) -> None:
    """Classify images with a trained model: CSV with the predicted class and a probability per class.

    Example: `equipoise predict runs/fca new-patients.zip --site north --out answers.csv`
    """
    from equipoise.cli.answers import answers, table, write
    from equipoise.use import load

    predictor = load(model, site, trust=trust)
    note(predictor.title, json)
    rows = list(predictor.predict(images))
    bad = [row for row in rows if row.error is not None]
    if json:
        print_json(answers(predictor, rows))
    elif out is None:
        print(table(predictor, rows), end="")
    else:
        write(out, table(predictor, rows))
        print(f"{len(rows) - len(bad):,} images classified, in {out}")
    for row in bad:
        note(f"{row.file} cannot be read: {row.error}", json)
    if bad and json:
        raise typer.Exit(DataError.exit_code)
    if bad:
        first = f"{bad[0].file}: {bad[0].error}"
        raise DataError(f"{len(bad)} of {len(rows)} images cannot be read, the first is {first}")


def evaluate(
    model: Model,
    data: Annotated[
        Path,
        typer.Option(metavar="FILE.toml", help="A file whose [data] section says where the new images are."),
    ],
    site: Site = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Test a trained model on new data, such as a hospital that took no part.

    Example: `equipoise evaluate runs/fca --data other-hospital.toml`
    """
    from equipoise.cli.show import runs as show
    from equipoise.use import evaluate as work
    from equipoise.use import load

    metrics = work(load(model, site, trust=trust), data)
    print_json(metrics) if json else show.evaluated(metrics)


def export(
    model: Model,
    to: Annotated[str, typer.Option(help="safetensors or onnx.")],
    out: Annotated[
        Path | None, typer.Option(help="The file. [default: `model.<kind>` in the run folder]")
    ] = None,
    site: Site = None,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Write a trained model to one file, with its pre-processing, and check that it answers as the model
    does.

    Example: `equipoise export runs/fca --to onnx --out fca.onnx`
    """
    from equipoise.use import export as work
    from equipoise.use import load

    predictor = load(model, site, trust=trust)
    folder = model.parent if model.is_file() else model
    path = out or folder / f"model{'' if predictor.origin.site is None else f'-{predictor.origin.site}'}.{to}"
    difference = work(predictor, path, to)
    if json:
        print_json({"model": predictor.title, "file": str(path), "largest_difference": difference})
    else:
        print(f"{predictor.title}, in {path}; largest difference of a probability {difference:.1e}")
