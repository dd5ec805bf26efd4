"""The config: one sentence for every mistake, every default filled in, and a digest of what can change the
result."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from equipoise.config import SECTIONS, Config, departures, override, read, resolve
from equipoise.errors import ConfigError
from equipoise.methods import METHODS


def text(table: dict[str, Any], overrides: list[str] | None = None) -> str:
    """The sentence a table is refused with."""
    with pytest.raises(ConfigError) as caught:
        resolve(override(table, overrides or []))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nothing_said_is_a_whole_run() -> None:
    config = resolve({})
    assert (config.data.kind, config.partition.kind, config.net.name, config.method_name) == (
        "phantom",
        "column",
        "small-cnn",
        "fedavg",
    )
    assert config.train.rounds == 20
    assert [part.name for part in config.objective.parts] == ["cross_entropy"]


# Mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"trian": {}}, "unknown section 'trian': did you mean 'train'? valid: data"),
        ({"train": {"round": 3}}, "unknown key 'train.round': did you mean 'rounds'? valid: "),
        ({"train": {"stop": {"patince": 3}}}, "unknown key 'train.stop.patince': did you mean 'patience'?"),
        ({"train": {"lerning_rate": 3}}, "unknown key 'train.lerning_rate'"),
        (
            {"data": {"split": {"tset": 0.2}}},
            "unknown key 'data.split.tset': did you mean 'test'? valid: column, fold, folds, seed, test, "
            "validation",
        ),
        (
            {"train": {"augment": {"rotatoin": 3}}},
            "unknown key 'train.augment.rotatoin': did you mean 'rotation'?",
        ),
        ({"data": {"kind": "phantm"}}, "data.kind: unknown kind 'phantm': did you mean 'phantom'?"),
        ({"data": {"kind": ["phantom"]}}, "data.kind: unknown kind"),
        (
            {"partition": {"kind": "dirichelt"}},
            "partition.kind: unknown kind 'dirichelt': did you mean 'dirichlet'?",
        ),
        ({"method": {"name": "fedavgg"}}, "method.name: unknown method 'fedavgg': did you mean 'fedavg'?"),
        (
            {"method": {"name": "fca", "lambda_onw": 2}},
            "unknown key 'method.lambda_onw': did you mean 'lambda_own'?",
        ),
        ({"method": {"nam": "fca"}}, "unknown key 'method.nam': did you mean 'name'?"),
        (
            {"method": {"name": "fca", "preset": "papr"}},
            "method.preset: unknown preset of 'fca' 'papr': did you mean 'paper'?",
        ),
        ({"method": {"name": "fca", "preset": ["paper"]}}, "method.preset: unknown preset of 'fca'"),
        (
            {"method": {"name": "fca", "direction": "persnal"}},
            "'method.direction' is \"persnal\": input should be",
        ),
        ({"train": {"optimizer": "adm"}}, "did you mean 'adam'?"),
        ({"engine": {"kind": "pol"}}, "(did you mean 'pool'?)"),
        ({"train": {"rounds": "ten"}}, "'train.rounds' is \"ten\": input should be a valid integer"),
        ({"train": {"rounds": -1}}, "'train.rounds' is -1: input should be greater than or equal to 0"),
        ({"train": {"participation": 0}}, "'train.participation' is 0: input should be greater than 0"),
        (
            {"exchange": {"max_weight": 1e9}},
            "'exchange.max_weight' is 1000000000.0: input should be less than or equal to",
        ),
        ({"train": {"views": ["waek"]}}, "train.views: unknown view 'waek': did you mean 'weak'?"),
        *(
            (
                {"method": {"name": name}, "train": {"views": ["flip"]}},
                f"train.views: '{name}' sees 2 views of every image and ['flip'] has 1: "
                f"set train.views = [{own}], or leave it out",
            )
            for name, own in (
                ("rscfed", '"weak", "weak"'),
                ("fedfixmatch", '"weak", "rand"'),
                ("fedirm", '"weak", "weak"'),
                ("fedlsr", '"weak", "weak"'),
                ("fediic", '"rand", "sim"'),
                ("fedmlp", '"weak", "weak"'),
            )
        ),
        ({"train": {"objective": "crossentropy"}}, "train.objective"),
        (
            {"train": {"objective": "ldam"}},
            "train.objective: 'ldam' needs cosines: set net.head = \"cosine\"",
        ),
        ({"train": 3}, "'train' must be a section, written [train]"),
        ({"data": {"kind": "csv"}}, "'data."),
        ({"data": {"split": {"test": 0.6, "validation": 0.6}}}, "leave nothing to train on"),
        ({"net": {"name": "small-cn"}}, "small-cnn"),
    ],
)
def test_a_mistake_is_told_with_its_place(table: dict[str, Any], expected: str) -> None:
    assert expected in text(table)


@pytest.mark.parametrize("name", METHODS)
def test_views_of_the_user_s_are_at_least_as_many_as_the_method_sees(name: str) -> None:
    sees = len(METHODS[name].views)
    for count in (1, 2, 3):
        table = {"method": {"name": name}, "train": {"views": ["flip"] * count}}
        if count < sees:
            assert "or leave it out" in text(table)
        else:
            assert resolve(table).train.views == ("flip",) * count


@pytest.mark.parametrize("section", SECTIONS)
def test_an_unknown_key_in_any_section_is_told_with_the_valid_ones(section: str) -> None:
    found = text({section: {"no_such_key_at_all": 1}})
    assert found.startswith(f"unknown key '{section}.no_such_key_at_all': ")
    assert "valid: " in found


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("train.batchsize=3", "batch_size"),
        ("train.epoch=3", "epochs"),
        ("train.weight_dacay=0", "weight_decay"),
        ("engine.worker=3", "workers"),
        ("evaluate.slect='last'", "select"),
        ("data.imagesize=3", "image_size"),
        ("exchange.min_site=3", "min_sites"),
        ("partition.min_szie=3", "min_size"),
    ],
)
def test_typing_errors_are_understood(typed: str, meant: str) -> None:
    assert f"did you mean '{meant}'?" in text({}, [typed])


def test_a_file_that_is_not_there_or_no_toml_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no config file .*none\.toml"):
        read(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"is a folder, not a config file; .*equipoise resume"):
        read(tmp_path)
    os.mkfifo(tmp_path / "fifo.toml")
    with pytest.raises(ConfigError, match=r"fifo\.toml cannot be read: not a regular file"):
        read(tmp_path / "fifo.toml")
    bad = tmp_path / "bad.toml"
    for content in (b"[train\nrounds = 3", b"rounds == 3", b"\xff\xfe", b"[train]\nrounds = 1\nrounds = 2"):
        bad.write_bytes(content)
        with pytest.raises(ConfigError, match=r"bad\.toml is not valid TOML: "):
            read(bad)


# Overrides --------------------------------------------------------------------------------------------------


def test_overrides_are_toml_or_plain_text() -> None:
    table = {"train": {"rounds": 3}}
    changed = override(
        table,
        [
            "train.rounds=5",
            "train.lr = 1e-2",
            "method.name=fca",
            "data.split.test=0.3",
            "train.nesterov=true",
            "train.milestones=[1, 2]",
        ],
    )
    assert changed == {
        "train": {"rounds": 5, "lr": 0.01, "nesterov": True, "milestones": [1, 2]},
        "method": {"name": "fca"},
        "data": {"split": {"test": 0.3}},
    }
    assert table == {"train": {"rounds": 3}}
    assert override({}, ['method.name="fca"', "data.root=a=b"]) == {
        "method": {"name": "fca"},
        "data": {"root": "a=b"},
    }


@pytest.mark.parametrize("bad", ["train.rounds", "=3", "train.=3", ".rounds=3", ""])
def test_an_override_has_a_form(bad: str) -> None:
    assert text({}, [bad]) == f"'{bad}' is not of the form section.key=value"


def test_an_override_below_a_value_is_told() -> None:
    assert (
        text({"train": {"rounds": 3}}, ["train.rounds.x=1"])
        == "'train.rounds.x=1': 'rounds' is not a section"
    )


def test_dates_in_the_file_do_not_trip_overrides(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[data]\nname = 2020-01-01\n")
    with pytest.raises(ConfigError, match=r"'data\.name' is \"2020-01-01\": input should be a valid string"):
        read(path, ["train.rounds=3"])


def test_a_file_with_overrides(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[train]\nrounds = 3\nlr = 1e-3\n")
    config = read(path, ["train.rounds=7"])
    assert (config.train.rounds, config.train.lr) == (7, 1e-3)


# What a method brings ---------------------------------------------------------------------------------------


def test_presets_fill_in_and_explicit_values_win() -> None:
    method = resolve({"method": {"name": "fca", "preset": "lambda-2-1", "lambda_own": 9}}).method
    assert method.model_dump()["lambda_fed"] == 2
    assert method.model_dump()["lambda_own"] == 9
    assert (
        resolve({"method": {"name": "fca", "preset": "released"}}).method.model_dump()["variant"]
        == "released"
    )


def test_recommended_training_gives_way_to_what_is_said() -> None:
    config = resolve({"method": {"name": "fca"}})
    assert config.train.persist_optimizer is True
    assert [part.name for part in config.objective.parts] == ["balanced_softmax"]
    said = resolve({"method": {"name": "fca"}, "train": {"persist_optimizer": False, "objective": "focal"}})
    assert said.train.persist_optimizer is False
    assert [part.name for part in said.objective.parts] == ["focal"]


def test_a_run_that_is_not_as_its_method_recommends_says_so() -> None:
    said = {"persist_optimizer": False, "objective": {"name": "focal", "gamma": 1.0}}
    assert departures(resolve({"method": {"name": "fca"}, "train": said})) == [
        'fca: objective = { name = "focal", gamma = 1.0 } as the config says; the method recommends '
        '"balanced_softmax"',
        "fca: persist_optimizer = false as the config says; the method recommends true",
    ]
    for table in (
        {"method": {"name": "fca"}},
        {"train": said},
        {"method": {"name": "fca"}, "train": {"lr": 0.5}},
    ):
        assert departures(resolve(table)) == []


def test_weights_that_were_trained_with_another_normalisation_say_so() -> None:
    net = {"name": "efficientnet-lite0", "weights": "lite0.pth"}
    assert departures(resolve({"net": net})) == [
        'efficientnet-lite0: augment.normalise = "imagenet"; the published weights were trained with "half"'
    ]
    assert departures(resolve({"net": net, "train": {"augment": {"normalise": "half"}}})) == []
    for other in ({"name": "efficientnet-lite0"}, {"name": "mobilenet-v2", "weights": "v2.pt"}):
        assert departures(resolve({"net": other})) == []


@pytest.mark.parametrize(
    ("task", "method", "objective"),
    [
        ("multi", "rscfed", '{ name = "bce", pos_weight = true }'),
        ("single", "rscfed", '"cross_entropy"'),
        ("multi", "fednoro", '"bce"'),
        ("single", "fednoro", '"cross_entropy"'),
        ("single", "fca", '"balanced_softmax"'),
        (
            "single",
            "cbafed",
            '{ name = "bce", pos_weight = true }',
        ),  # refused later; of npz files the task is not yet known
    ],
)
def test_a_recommended_objective_fits_the_labels(task: str, method: str, objective: str) -> None:
    config = resolve({"data": {"kind": "phantom", "task": task}, "method": {"name": method}})
    assert config.objective.toml == objective
    assert departures(config) == []


def test_an_objective_tells_the_labels_where_the_data_does_not() -> None:
    said = {"objective": {"name": "bce", "missing": "negative"}}
    table = {"data": {"kind": "npz", "path": "images.npz"}, "method": {"name": "rscfed"}, "train": said}
    (line,) = departures(resolve(table))
    assert line.endswith('the method recommends { name = "bce", pos_weight = true }')
    kept = resolve(table, yields=("objective",))
    assert kept.objective.toml == '{ name = "bce", pos_weight = true }' and departures(kept) == []


MINE = """
from __future__ import annotations
from typing import Literal
from equipoise.methods import Method

class Mine(Method):
    '''A method of one's own.'''
    strength: float = 2.0
    '''how strong'''
    side: Literal["left", "right"] = "left"
    '''which side'''

NotAMethod = 3
"""


@pytest.mark.parametrize("name", METHODS)
def test_a_preset_is_read_back_as_it_was_written(name: str) -> None:
    """A run folder's config is what the run is continued with; TOML has no word for nothing, so "none" is."""
    for preset in METHODS[name].presets:
        config = resolve({"method": {"name": name, "preset": preset}})
        again = resolve(tomllib.loads(tomli_w.dumps(config.table())))
        assert (again.method, again.digest) == (config.method, config.digest), preset


def test_none_is_a_word() -> None:
    config = resolve(override({"method": {"name": "equipoise"}}, ["method.own=none"]))
    assert config.method.own is None and config.table()["method"]["own"] == "none"  # type: ignore[attr-defined]
    assert "patience" not in config.table()["train"] and resolve(config.table()).digest == config.digest
    with pytest.raises(ConfigError, match=r"method\.mixup"):
        resolve(override({"method": {"name": "equipoise"}}, ["method.mixup=none"]))
    with pytest.raises(ConfigError, match=r"'method\.own' is \"non\": .* number.*or \"none\" to do without"):
        resolve(override({"method": {"name": "equipoise"}}, ["method.own=non"]))
    with pytest.raises(ConfigError, match=r"parse string as a number$"):
        resolve(override({"method": {"name": "equipoise"}}, ["method.beta=non"]))


def test_a_method_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    config = resolve({"method": {"name": "mine.py:Mine", "strength": 3}}, tmp_path)
    assert config.method.model_dump() == {"crt": 0, "strength": 3.0, "side": "left"}
    assert resolve(config.table()).digest == config.digest
    for name, expected in [
        ("mine.py:Your", "has no 'Your'"),
        ("mine.py:NotAMethod", "'NotAMethod' of 'mine.py' is not a method class"),
        ("yours.py:Mine", "there is no file"),
        ("no_such_module_here:Mine", "the module 'no_such_module_here' cannot be imported"),
    ]:
        with pytest.raises(ConfigError, match=r"method\.name: .*" + expected):
            resolve({"method": {"name": name}}, tmp_path)
    with pytest.raises(ConfigError, match=r"unknown key 'method\.strenght': did you mean 'strength'"):
        resolve({"method": {"name": "mine.py:Mine", "strenght": 3}}, tmp_path)


# Tables and digests -----------------------------------------------------------------------------------------

RUNS: list[dict[str, Any]] = [
    {},
    {
        "method": {"name": "fca", "preset": "released"},
        "train": {"clip_norm": 1.0, "milestones": [60, 70], "schedule": "steps"},
    },
    {
        "partition": {"kind": "dirichlet", "alpha": 0.3},
        "data": {"split": {"test": 0.3}},
        "train": {"views": ["weak"]},
    },
    {"train": {"objective": [{"name": "balanced_softmax"}, {"name": "focal", "gamma": 1.5}]}},
    {"data": {"kind": "phantom", "task": "multi"}, "method": {"name": "fedprox", "mu": 0.1}},
]


@pytest.mark.parametrize("table", RUNS)
def test_the_resolved_table_resolves_to_the_same_run(table: dict[str, Any], tmp_path: Path) -> None:
    config = resolve(table)
    assert resolve(config.table()).digest == config.digest
    assert resolve(config.table()).table() == config.table()
    (tmp_path / "c.toml").write_text(tomli_w.dumps(config.table()))
    assert read(tmp_path / "c.toml").digest == config.digest


def test_the_digest_is_of_what_can_change_the_result(tmp_path: Path) -> None:
    config = resolve({})
    assert resolve({"engine": {"kind": "pool", "workers": 7}}).digest == config.digest
    assert resolve({}, tmp_path).digest == config.digest
    moved = config.with_engine(kind="pool", workers=3)
    assert (moved.engine.kind, moved.engine.workers, moved.digest) == ("pool", 3, config.digest)
    changes = [
        "train.seed=1",
        "train.lr=0.01",
        "method.name=fedprox",
        "data.scale=0.02",
        "exchange.max_norm=5.0",
        "evaluate.every=2",
    ]
    digests = {resolve(override({}, [change])).digest for change in changes}
    assert len(digests | {config.digest}) == 1 + len(changes)


def test_a_config_cannot_be_changed() -> None:
    config = resolve({})
    with pytest.raises(AttributeError):
        config.method_name = "other"  # type: ignore[misc]
    assert isinstance(config, Config)
    with pytest.raises(ValueError, match="frozen"):
        config.train.rounds = 3
