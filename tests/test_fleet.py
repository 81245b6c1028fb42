"""`kvpipe find want.device=[...]`: fleets that serve the load, planned anew and counted by hand."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from functools import cache

import pytest
import yaml

from kvpipe.answers.fleet import FleetAnswer, Wanted, plan_fleet
from kvpipe.answers.fleet_candidates import Choice, shapes
from kvpipe.answers.speed import speed_of
from kvpipe.front.main import run
from kvpipe.front.prepared import prepared_request
from kvpipe.pipeline import Prepared, execute
from kvpipe.report.fleet import picture

LENGTH = 8192
DEVICES = ("h100_80gb", "l40s", "l4")


@cache
def prepared(*words: str) -> Prepared:
    return prepared_request([*words, "backend=meta"]).prepared


@cache
def fleets(requests: int = 200, token_s: float | None = None, priced: bool = False) -> FleetAnswer:
    prices = {"h100_80gb": 2.5, "l40s": 0.9, "l4": 0.5} if priced else {}
    load = Wanted(requests=requests, length=LENGTH, token_s=token_s)
    return plan_fleet(prepared("model=llama", "engine=vllm"), load, Choice(devices=DEVICES), prices)


def test_the_first_fleet_serves_the_load_and_one_replica_less_does_not() -> None:
    """Its replica planned as a run of its own; windows hold more while one of them reads."""
    load = Wanted(requests=200, length=LENGTH)
    asked = prepared("model=gpt_oss_20b", "engine=vllm")
    best = plan_fleet(asked, load, Choice(devices=("h100_80gb",)), {}).fleets[0]
    replica = best.replica
    alone = execute(
        prepared(
            "model=gpt_oss_20b",
            "engine=vllm",
            f"device={replica.shape.device}",
            f"parallel.tensor_parallel_size={replica.shape.tp}",
            f"parallel.pipeline_parallel_size={replica.shape.pp}",
            f"scheduler.max_model_len={LENGTH}",
        )
    )
    capacity, most = alone.plan.capacity, alone.prepared.resolved.max_num_seqs
    assert capacity is not None and capacity.requests_running < capacity.requests_steady < most
    assert replica.users == min(most, capacity.requests_running)
    assert (best.replicas - 1) * replica.users < 200 <= best.replicas * replica.users
    assert best.cards == best.replicas * replica.shape.cards
    assert f"--tensor-parallel-size {replica.shape.tp}" in replica.command


def test_fleets_are_ranked_by_cards_and_by_cost_where_prices_are_known() -> None:
    cards = [fleet.cards for fleet in fleets().fleets]
    assert cards == sorted(cards)
    assert all(fleet.cost is None for fleet in fleets().fleets)
    costs = [fleet.cost for fleet in fleets(priced=True).fleets]
    assert None not in costs and costs == sorted(costs)
    prices = {"h100_80gb": 2.5, "l40s": 0.9, "l4": 0.5}
    for fleet in fleets(priced=True).fleets:
        assert fleet.cost == pytest.approx(prices[fleet.replica.shape.device] * fleet.cards)


def test_every_candidate_serves_or_is_refused_and_a_reason_stands_once() -> None:
    answer = fleets()
    refused = [name for names in answer.refused.values() for name in names]
    assert len(answer.fleets) + len(refused) == answer.tried == len(DEVICES) * 8
    assert len(set(refused)) == len(refused)


@cache
def spread() -> FleetAnswer:
    choice = Choice(devices=("h200",))
    load = Wanted(requests=500, length=32_768)
    return plan_fleet(prepared("model=deepseek_v3", "engine=vllm"), load, choice, {})


def test_a_copy_of_latent_attention_holds_its_own_requests_and_shares_the_experts() -> None:
    """Each replica beside a run of its own, whose every rank is one copy's."""
    found = {fleet.replica.shape.words: fleet.replica for fleet in spread().fleets}
    for words, tp, dp, ep in (
        ("TP 1 DP 16 EP", 1, 16, "true"),
        ("TP 2 DP 8 EP", 2, 8, "true"),
        ("TP 2 DP 8", 2, 8, "false"),
    ):
        alone = execute(
            prepared(
                "model=deepseek_v3",
                "engine=vllm",
                "device=h200",
                "profiling=estimate",
                f"parallel.tensor_parallel_size={tp}",
                f"parallel.data_parallel_size={dp}",
                f"parallel.enable_expert_parallel={ep}",
                "scheduler.max_model_len=32768",
            )
        )
        capacity = alone.plan.capacity
        assert capacity is not None and capacity.requests_running < 256
        assert found[words].users == dp * capacity.requests_running
        assert found[words].shape.cards == tp * dp == 16
        flags = found[words].command
        assert f"--data-parallel-size {dp}" in flags
        assert ("--enable-expert-parallel" in flags) == (ep == "true")
    # TP keeps each latent row on every rank; copies keep it once.
    assert found["TP 8"].users * 2 < found["TP 1 DP 16 EP"].users


def test_a_copy_may_compute_its_tokens_experts_with_all_others_and_reads_no_less() -> None:
    """The bound must hold where the other copies have no tokens: an eighth of the operations for
    the experts, which are all that is sure; of weights that every copy has, none less is read."""
    one, eight = (
        speed_of(
            prepared("model=deepseek_v3", "device=h200", f"parallel.data_parallel_size={dp}")
        ).bound
        for dp in (1, 8)
    )
    assert one is not None and eight is not None
    assert eight.weights == pytest.approx(one.weights / 8)
    assert one.weight_bytes / 8 < eight.weight_bytes < one.weight_bytes
    dense = [
        speed_of(prepared("model=llama", "device=h200", f"parallel.data_parallel_size={dp}")).bound
        for dp in (1, 8)
    ]
    assert dense[0] == dense[1]


def test_copies_are_tried_of_models_with_experts_alone_and_names_differ() -> None:
    plain, experts = (prepared(f"model={name}").resolved.model for name in ("llama", "mixtral"))
    assert all(shape.dp == 1 for shape in shapes(Choice(devices=DEVICES), plain))
    tried = shapes(Choice(devices=DEVICES, caches=("auto", "fp8"), seqs=(8, 16)), experts)
    assert len({shape.name for shape in tried}) == len(tried) == len(DEVICES) * 42 * 4


def test_settings_to_choose_from_are_planned_as_if_they_had_been_set() -> None:
    load, card = Wanted(requests=200, length=LENGTH), ("h100_80gb",)
    choice = Choice(devices=card, caches=("auto", "fp8"), batches=(2048, 16384))
    answer = plan_fleet(prepared("model=llama", "engine=vllm"), load, choice, {})
    assert answer.tried == 8 * 4
    for cache_type, batch in (("auto", 16384), ("fp8", 2048)):
        asked = (
            f"cache.cache_dtype={cache_type}",
            f"scheduler.max_num_batched_tokens={batch}",
        )
        set_so = prepared("model=llama", "engine=vllm", *asked)
        alone = plan_fleet(set_so, load, Choice(devices=card), {}).fleets
        mine = [
            f for f in answer.fleets if f.replica.shape.name.endswith(f"{cache_type} batch {batch}")
        ]
        told = [{(f.replica.users, f.replica.command) for f in fleets} for fleets in (mine, alone)]
        assert told[0] == told[1] and len(mine) == len(alone) > 0


@pytest.mark.full
def test_a_bound_takes_away_exactly_the_users_that_provably_wait_longer() -> None:
    limit = 0.012
    for fleet in fleets(token_s=limit).fleets:
        replica = fleet.replica
        asked = prepared(
            "model=llama",
            "engine=vllm",
            f"device={replica.shape.device}",
            f"parallel.tensor_parallel_size={replica.shape.tp}",
            f"parallel.pipeline_parallel_size={replica.shape.pp}",
            f"scheduler.max_model_len={LENGTH}",
        )
        bound = speed_of(asked).bound
        assert bound is not None
        assert bound.token_seconds(replica.users, LENGTH) <= limit
        if replica.limit.endswith("(bound)"):
            assert bound.token_seconds(replica.users + 1, LENGTH) > limit
    refused = fleets(token_s=0.0001)
    assert not refused.fleets
    assert any("not one user within 0.1 ms" in reason for reason in refused.refused)


@pytest.mark.full
def test_a_fleet_is_told_in_a_table_and_a_wrong_card_with_those_that_are(
    capsys, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["find", "model=llama", "want.requests=64", "want.length=8192"]
    assert run([*words, "want.device=[h100]"]) == 0
    assert "candidates" in capsys.readouterr().out
    assert run([*words, "want.device=[h101]"]) == 2
    assert "want.device: expected names of device=..., got 'h101'" in capsys.readouterr().err
    assert run([*words, "want.device=[t4]", "want.token_ms=0.1"]) == 1


def test_fleets_of_which_not_all_have_a_price_are_drawn_by_their_cards() -> None:
    answer, load = fleets(), Wanted(requests=200, length=LENGTH)
    some = tuple(
        replace(fleet, cost=7.5) if fleet.replica.shape.device == "l4" else fleet
        for fleet in answer.fleets
    )
    assert 0 < sum(fleet.cost is not None for fleet in some) < len(some)
    assert picture(replace(answer, fleets=some), load, "m") == picture(answer, load, "m")
    assert ">price an hour</text>" in str(picture(fleets(priced=True), load, "m"))


@pytest.mark.parametrize("kind", ["compose", "kubernetes"])
def test_a_fleet_is_written_as_a_file_that_starts_it(kind, tmp_path, monkeypatch) -> None:
    """Every replica with the planned line, on as many cards as it was planned on, none twice."""
    monkeypatch.chdir(tmp_path)
    words = ["find", "model=llama", "engine=vllm", "want.requests=150", "want.length=8192"]
    asked = ["want.device=[l40s]", f"want.write={kind}", "hydra.run.dir=out", "report=none"]
    assert run([*words, *asked]) == 0
    best = json.loads((tmp_path / "out/find.json").read_text())["fleets"][0]
    line, each = shlex.split(best["command"]), best["tp"] * best["pp"]
    assert best["replicas"] > 1 and line[:2] == ["vllm", "serve"]
    if kind == "compose":
        services = yaml.safe_load((tmp_path / "out/compose.yaml").read_text())["services"]
        assert len(services) == best["replicas"]
        assert all(service["entrypoint"] == line for service in services.values())
        assert len({service["ports"][0] for service in services.values()}) == best["replicas"]
        cards = [
            card
            for service in services.values()
            for device in service["deploy"]["resources"]["reservations"]["devices"]
            for card in device["device_ids"]
        ]
        assert cards == [str(card) for card in range(best["cards"])]
    else:
        spec = yaml.safe_load((tmp_path / "out/deployment.yaml").read_text())["spec"]
        [server] = spec["template"]["spec"]["containers"]
        assert spec["replicas"] == best["replicas"] and server["command"] == line
        assert server["resources"]["limits"]["nvidia.com/gpu"] == each
        assert server["image"].startswith("vllm/vllm-openai:v0.")
