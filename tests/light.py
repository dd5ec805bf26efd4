"""Settings under which a few rounds take every path of a method, quickly: for all tests that run every
method, and which of them `make test` leaves to `make test-all`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

LIGHT: dict[str, dict[str, Any]] = {
    "fediic": {"spread_steps": 50},
    "fedmas": {"target": "small-cnn"},
    "fedmlp": {"warmup": 1},
    "fedirm": {"warmup": 1},
    "cbafed": {"warmup": 1, "every": 1},
    "fednoro": {"warmup": 1},
    "creff": {"features": 10, "match_steps": 50, "head_epochs": 100, "draws": 2},
    "prr-imb": {"warmup": 1},
}
"""The heavy parts of a method are made light where its arithmetic stays the same."""

LEARNING: dict[str, dict[str, Any]] = LIGHT | {
    "cbafed": {"warmup": 0, "every": 1},
    "fedavgm": {"beta": 0.3},
    "fedadagrad": {"lr": 0.03},
    "moon": {"size": 16},
    "isfl": {"sigma": 0.5},
    "equipoise": {"ridge": 1.0},
}
"""Under these a few rounds are enough to learn 64 images by heart; the published ones need more. The numbers
in `golden/methods.json` are of these."""

LIGHTEST: dict[str, dict[str, Any]] = LIGHT | {
    "fediic": {"spread_steps": 20},
    "creff": {"features": 10, "match_steps": 10, "head_epochs": 10, "draws": 2},
    "moon": {"size": 16},
}
"""Where nothing has to be learnt."""

ALIKE = (
    *("fedavg-pl", "fedprox", "fedrs", "fedlc", "fedfocal", "ldam-fl", "bsm-fl", "fedlsr", "fedfixmatch"),
    *("fedadam", "fedyogi", "fedadagrad"),
)
"""What they ask and send is what fedavg and fedavgm do (tests/flower/test_methods.py looks): they differ in
the loss, or in the server's step. Rules about processes, files and messages are tried with others."""


OWN = ("fedavg", "fca", "fediic", "fedmas", "fedmlp", "fedsdc", "fedsdc+", "equipoise")
"""The five systems, what they are compared with, and our own method: with these every rule is tried."""

ONLY: dict[str, tuple[str, ...]] = {
    "audit/test_flips.py::test_a_few_flipped_bits": ("done", "cache", "federation"),
    "cli/test_new.py::test_the_config_runs_from_where_it_was_made": ("single",),
    "cli/test_new.py::test_the_method_keeps_the_rules": ("single",),
    "engine/test_pool.py::test_the_order_of_answers_does_not_matter": ("fca",),
    "engine/test_probe.py::test_every_real_answer_is_in_the_ledger": ("equipoise-False", "fca-True"),
    "evaluate/test_ending.py::test_a_method_without_an_ending_is_reported_as_it_was": ("last",),
    "evaluate/test_ending.py::test_the_ending_of_what_was_chosen_is_reported": (
        "both-mean_last_5",
        "heads at the end-best_validation",
    ),
    "evaluate/test_scores.py::test_the_reported_rounds_are_kept_also_after_a_break": ("last-multi-2",),
    "flower/test_hostile_coordinator.py::test_own_results_have_no_bin_with_few_images": ("9",),
    "flower/test_methods.py::test_a_method_over_flower_is_the_simulation": ("fediic", "creff"),
    "flower/test_reduce.py::test_a_robust_sum_over_flower_is_the_simulation": ("krum",),
    "flower/test_small_cells.py::test_it_trains_to_the_bits_of_a_simulation_with_the_same_policy": (
        "fedsdc+-single",
    ),
    "flower/test_small_cells.py::test_no_message_tells_of_a_small_cell": ("multi",),
    "flower/test_small_cells.py::test_sites_that_can_tell_nothing_of_a_test_still_train": ("single",),
    "flower/test_two_runs.py::test_a_site_is_in_the_runs_that_it_approves": ("2",),
    "methods/parts/test_crt.py::test_bank_of_heads_is_dealt_to_all_sites": ("0.67-True",),
    "methods/parts/test_crt.py::test_stage_changes_the_classifier_and_nothing_else": ("fca", "creff"),
    "methods/test_blank_cells.py::test_nothing_depends_on_a_cell_without_a_label": ("fedavg", "fedmlp"),
    "methods/test_conformance.py::test_method_for_several_labels": ("fednoro",),
    "methods/test_moon.py::test_fedavg_with_the_same_head": ("0.0-3-True", "1.0-1-True"),
    "methods/test_partial_labels.py::test_every_option_counts": ("FedLSR",),
    "methods/test_partial_labels.py::test_labels_a_site_does_not_have_change_nothing": ("FedIRM", "CBAFed"),
    "methods/test_partial_labels.py::test_neutral_is_fedavg_also_where_labels_are_missing": ("CBAFed",),
    "methods/test_shaped.py::test_hidden_labels_never_enter": ("LDAMFL", "FedRS"),
    "nets/test_borrowed.py::test_a_checkpoint_of_moco_loads": ("resnet18-shapes2-True",),
    "nets/test_borrowed.py::test_gives_one_vector_per_image": (
        *("resnet18", "densenet121", "efficientnet-b0"),
    ),
    "nets/test_borrowed.py::test_grey_images": ("resnet18", "efficientnet-b0"),
    "nets/test_borrowed.py::test_torchvisions_weights_give_torchvisions_features": ("75",),
    "server/test_corruption.py::test_an_edited_config_stops_a_resume": ("seed = 0-seed = 1",),
    "server/test_corruption.py::test_lost_rows_of_metrics_stop_a_resume": (
        *("one lost", "the last lost", "swapped"),
    ),
    "server/test_loop.py::test_stopping_at_every_round_changes_nothing": ("fca-0.7",),
    "server/test_loop.py::test_stopping_in_the_middle_of_a_question_changes_nothing": (
        *("train-1", "evaluate-0"),
    ),
    "server/test_masked.py::test_a_masked_run_ends_as_a_plain_one": ("climb",),
    "server/test_robust.py::test_serial_pool_and_any_order_give_the_same_bits": ("krum",),
    "server/test_stop.py::test_broken_off_anywhere_it_ends_as_it_would_have": ("3",),
    "server/test_stop.py::test_rules_and_endings_go_over_the_rounds_there_are": ("mean_last_5",),
    "test_once.py::test_one_run_does_it_once": ("fediic-serial", "fca-pool"),
    "test_pythons.py::test_every_source_compiles": ("3.11", "3.13"),
    "trackers/test_trackers.py::test_one_that_fails_is_left_out_and_named_once": (
        *("begin-True", "row-False", "end-True"),
    ),
    "use/test_export.py::test_safetensors_bring_the_model_back": (
        *("fca-None", "local-site-02", "fedsdc-None"),
    ),
}
"""Rules that many parameters only repeat: with which of them `make test` tries a rule, where the rest is left
to `make test-all`. The first part of a name is the file under tests/."""

RULES, MASKED = "methods/test_conformance.py::test_method", "flower/test_secure.py"
LATER: dict[str, str] = {
    "data/test_stored.py::test_the_same_bits_serial_pool_and_resumed": RULES,
    "evaluate/test_ending.py::test_in_a_pool_it_is_the_same": RULES,
    "flower/test_masked_private.py::test_a_masked_private_run_ends_as_a_plain_one": (
        f"{MASKED}::test_a_masked_run_ends_as_a_plain_one"
    ),
    "flower/test_two_runs.py::test_two_masked_runs": f"{MASKED}::test_a_masked_run_ends_as_a_plain_one",
    "methods/test_climb.py::test_another_method_than_fedavg": RULES,
    "methods/test_disco.py::test_another_method_than_fedavg": RULES,
    "methods/test_fedlsr.py::test_it_is_not_fedavg": RULES,
    "methods/test_fedmas.py::test_neutral_is_fedavg_bit_for_bit": RULES,
    "methods/test_fedmlp.py::test_neutral_is_fedavg_on_the_labels_there_are": RULES,
    "methods/test_fedrep.py::test_differs_from_fedavg": RULES,
    "methods/test_isfl.py::test_another_method_than_fedavg": RULES,
    "methods/test_partial_labels.py::test_missing_labels_make_it_another_method_than_fedavg": RULES,
    "methods/test_shaped.py::test_another_method_than_fedavg": RULES,
    "test_initial.py::test_the_same_bits_in_a_pool_and_after_a_break": RULES,
    "test_testing.py::test_broken_method_fails_nothing_else": RULES,
}
"""Tests that `make test-all` alone has, and the test of `make test` with the same rule. The rules of a method
have its numbers on file, which are not FedAvg's, and its neutral options are held against FedAvg."""


def one_of_a_kind(methods: Iterable[str], *, but: Iterable[str] = ()) -> list[Any]:
    """All methods as parameters; those that are like another (and any that are named) only in the sweep."""
    left = {*ALIKE, *but}
    return [pytest.param(name, marks=[pytest.mark.sweep] if name in left else []) for name in methods]


def sparing(tiny: Callable[..., Any]) -> Callable[..., Any]:
    """`tiny` whose sites make one step a round and which is evaluated after its second round, unless a test
    says otherwise: for rooms whose rules are about runs, files and messages. That batches come in their order
    is tried in `tests/methods`, and that every round is told of in `tests/evaluate`."""

    def make(*given: Any, train: dict[str, Any] | None = None, **sections: Any) -> Any:
        train = {"batch_size": 32, **(train or {})}
        often = {} if "stop" in train else {"evaluate": {"every": 2}}
        return tiny(*given, train=train, **often | sections)

    return make
