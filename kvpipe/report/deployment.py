"""A fleet as files to start it with: Docker Compose, a file for machines that are alike, or one
Kubernetes Deployment.

Each replica is one server with the cards that it was planned on. What is not known here (a volume
with the weights, secrets, a router before the replicas) is not in it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from kvpipe.text.figures import count

PORT = 8000  # that a server listens on, inside
MACHINE_CARDS = 8  # of a machine, since Compose starts what one machine runs


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """command: of one replica, `vllm serve ...`. cards: of one replica. image: its container."""

    name: str
    image: str
    command: str
    replicas: int
    cards: int

    @property
    def replicas_a_machine(self) -> int:
        """A replica is not spread over machines, of whatever size it is."""
        return max(1, MACHINE_CARDS // self.cards)

    @property
    def words(self) -> list[str]:
        return shlex.split(self.command)


def compose(wanted: Deployment) -> dict[str, Any]:
    """Of one machine: a service a replica, since each has cards of its own."""
    return {
        "services": {
            f"{wanted.name}-{number}": {
                "image": wanted.image,
                "entrypoint": list(wanted.words),
                "ipc": "host",
                "ports": [f"{PORT + number}:{PORT}"],
                "deploy": {"resources": {"reservations": {"devices": [_devices(wanted, number)]}}},
            }
            for number in range(wanted.replicas)
        }
    }


def _devices(wanted: Deployment, number: int) -> dict[str, Any]:
    first = number * wanted.cards
    ids = [str(card) for card in range(first, first + wanted.cards)]
    return {"driver": "nvidia", "device_ids": ids, "capabilities": ["gpu"]}


def kubernetes(wanted: Deployment) -> dict[str, Any]:
    app = {"app": wanted.name}  # copied: yaml writes what is shared as an alias
    container = {
        "name": "server",
        "image": wanted.image,
        "command": wanted.words,
        "ports": [{"containerPort": PORT}],
        "resources": {"limits": {"nvidia.com/gpu": wanted.cards}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # NCCL's
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": wanted.name, "labels": {**app}},
        "spec": {
            "replicas": wanted.replicas,
            "selector": {"matchLabels": {**app}},
            "template": {
                "metadata": {"labels": {**app}},
                "spec": {
                    "containers": [container],
                    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
                },
            },
        },
    }


def written(kind: str, wanted: Deployment) -> dict[str, str]:
    """File name -> text. kind: compose or kubernetes."""
    if kind == "kubernetes":
        about = f"{wanted.replicas} x {wanted.cards} cards"
        return {"deployment.yaml": _text(about, kubernetes(wanted))}
    machines, rest = divmod(wanted.replicas, wanted.replicas_a_machine)
    files = {}
    if machines:
        files["compose.yaml"] = _of_machines(wanted, machines, wanted.replicas_a_machine)
    if rest:
        name = "compose-last.yaml" if machines else "compose.yaml"
        files[name] = _of_machines(wanted, 1, rest)
    return files


def _of_machines(wanted: Deployment, machines: int, replicas: int) -> str:
    """The file of machines that run so many replicas each."""
    each = replace(wanted, replicas=replicas)
    size = max(MACHINE_CARDS, wanted.cards)
    where = "one machine" if machines == 1 else f"each of {machines:,} machines"
    about = (
        f"{wanted.replicas:,} x {wanted.cards} cards. This file is for {where} of {size} cards: "
        f"{count(replicas, 'replica')} on {count(replicas * wanted.cards, 'card')}"
    )
    return _text(about, compose(each))


def _text(about: str, value: Mapping[str, Any]) -> str:
    return f"# Planned by kvpipe: {about}.\n{yaml.safe_dump(value, sort_keys=False, width=120)}"
