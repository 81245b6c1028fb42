"""Compose files of a fleet, one for machines that are alike: every replica has its own cards."""

from __future__ import annotations

import re

import pytest
import yaml

from kvpipe.report.deployment import MACHINE_CARDS, Deployment, written


def fleet(replicas: int, cards: int) -> Deployment:
    line = "vllm serve m --tensor-parallel-size 2"
    return Deployment(name="m", image="i", command=line, replicas=replicas, cards=cards)


@pytest.mark.parametrize("cards", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("replicas", [1, 2, 3, 7, 8, 9, 150])
def test_the_machines_of_all_files_run_every_replica_on_cards_that_a_machine_has(
    replicas: int, cards: int
) -> None:
    started, files = 0, written("compose", fleet(replicas, cards))
    assert "compose.yaml" in files
    for text in files.values():
        said = re.search(r"for (?:one machine|each of (\d+) machines) of (\d+) cards", text)
        assert said is not None, text
        services = yaml.safe_load(text)["services"].values()
        used = [
            int(card)
            for service in services
            for device in service["deploy"]["resources"]["reservations"]["devices"]
            for card in device["device_ids"]
        ]
        assert used == list(range(cards * len(services)))
        assert len(used) <= max(MACHINE_CARDS, cards) == int(said[2])
        assert len({service["ports"][0] for service in services}) == len(services)
        started += int(said[1] or 1) * len(services)
    assert started == replicas


def test_machines_that_are_alike_share_a_file() -> None:
    assert list(written("compose", fleet(150, 2))) == ["compose.yaml", "compose-last.yaml"]
    assert list(written("compose", fleet(152, 2))) == ["compose.yaml"]
    assert list(written("kubernetes", fleet(150, 2))) == ["deployment.yaml"]
