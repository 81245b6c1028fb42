"""Hydra's launchers that come in packages of their own, and how each is installed."""

from __future__ import annotations

from kvpipe.errors import Problem

GROUP = "hydra/launcher"
_PACKAGES = {
    "joblib": "'kvpipe[joblib]'",
    "submitit_local": "hydra-submitit-launcher",
    "submitit_slurm": "hydra-submitit-launcher",
    "ray": "hydra-ray-launcher",
    "ray_aws": "hydra-ray-launcher",
}


def not_installed(group: str, choice: object) -> Problem | None:
    """Of a choice that no installed package offers: the command, where it is a known launcher."""
    package = _PACKAGES.get(str(choice)) if group == GROUP else None
    if package is None:
        return None
    return Problem(
        group, f"the launcher {choice} to be installed", "none", f"pip install {package}"
    )
