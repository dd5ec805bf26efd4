"""The package as a user's type checker sees it: checked by `make lint`, never run. A line with `type: ignore`
is a mistake that must be seen, and is an error itself where it is not."""

from __future__ import annotations

import equipoise


class Mine(equipoise.Method):
    mu: float = 0.1


def best(name: str) -> float:
    result: equipoise.Result = equipoise.run({"train": {"rounds": 1}}, out="runs/x", early_stopping=5)
    folder: str = str(equipoise.resume(result.folder).folder)
    table: equipoise.Comparison = equipoise.compare(
        "a.toml", methods=["fedavg", name], seeds=range(3), grid={"train.lr": [0.1]}, out=folder
    )
    table = equipoise.reproduce("fca-table4", data="x", scale="small")
    equipoise.methods().rows()
    equipoise.ledger("a.toml").rows()
    equipoise.inspect("a.toml").rows()
    equipoise.load("runs/x")
    table.plot().save("x.svg")
    return float(sum(row["value"] for row in table.rows()))


def mistakes() -> None:
    equipoise.run(3)  # type: ignore[arg-type]
    equipoise.compare("a.toml", seeds=[0, 4], rounds=3)  # type: ignore[call-arg]
    x: int = equipoise.run("a.toml").folder  # type: ignore[assignment]
    print(x)
