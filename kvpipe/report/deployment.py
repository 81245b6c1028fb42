"""A fleet as a file to start it with: Docker Compose, or a Kubernetes Deployment.

Each replica is one server with the cards that it was planned on. What is not known here (a volume
with the weights, secrets, a router before the replicas) is not in it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

PORT = 8000  # that a server listens on, inside


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """command: of one replica, `vllm serve ...`. cards: of one replica. image: its container."""

    name: str
    image: str
    command: str
    replicas: int
    cards: int

    @property
    def words(self) -> list[str]:
        return shlex.split(self.command)


def compose(wanted: Deployment) -> dict[str, Any]:
    """A service a replica, since each has cards of its own."""
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


KINDS: Mapping[str, tuple[str, Callable[[Deployment], dict[str, Any]]]] = {
    "compose": ("compose.yaml", compose),
    "kubernetes": ("deployment.yaml", kubernetes),
}


def written(kind: str, wanted: Deployment) -> tuple[str, str]:
    """(file name, text)."""
    name, make = KINDS[kind]
    text = yaml.safe_dump(make(wanted), sort_keys=False, width=120)
    cards = f"{wanted.replicas} x {wanted.cards} cards"
    if kind == "compose":
        cards += ", numbered as those of one machine; spread the services over yours"
    return name, f"# Planned by kvpipe: {cards}.\n{text}"
