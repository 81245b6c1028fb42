"""A request as the user wrote it -> composed, checked, resolved; every problem raised at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from omegaconf import DictConfig

from kvpipe.answers.log_settings import said_by, with_log_settings
from kvpipe.errors import ConfigError, Problem
from kvpipe.pipeline import Prepared, prepare
from kvpipe.request.compose import CONFIG_NAME, compose_request, configuration


@dataclass(frozen=True, kw_only=True)
class PreparedRequest:
    """config: as Hydra composed it, `hydra` included. prepared: the same, checked and resolved."""

    config: DictConfig
    prepared: Prepared


def prepared_values(raw: Mapping[str, Any], overrides: Sequence[str]) -> Prepared:
    """Composed values, checked and resolved; an engine's log speaks where the overrides do not."""
    said = said_by(overrides)
    filled, from_log = with_log_settings(raw, said)
    return replace(prepare(filled), said=said, from_log=from_log)


def prepared_request(
    overrides: Sequence[str],
    *,
    config_dir: str | None = None,
    config_path: str | None = None,
    config_name: str = CONFIG_NAME,
) -> PreparedRequest:
    """ConfigError with the problems of composing, of shape and type, and across fields."""
    with configuration(config_dir, config_path):
        composed = compose_request(overrides, config_name)
        problems: list[Problem] = list(composed.problems)
        try:
            prepared = prepared_values(composed.raw, overrides)
        except ConfigError:
            try:
                prepare(composed.raw, composed.fallback())
            except ConfigError as error:
                problems += error.problems
    if problems:
        raise ConfigError(dict.fromkeys(problems))
    return PreparedRequest(config=composed.config, prepared=prepared)
