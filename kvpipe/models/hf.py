"""A model section with a config.json -> ModelGeometry, without torch or transformers.

The file is a folder's (`path`), or a repository's (`repo`, org/name[@revision]). What it leaves out
is supplied by its family; what no family knows is an error, unless `probe` asks transformers.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kvpipe.errors import ConfigError, Problem
from kvpipe.models._draft import with_draft
from kvpipe.models.base import ModelGeometry
from kvpipe.models.config_file import ConfigFile, is_path, open_config, parse_config
from kvpipe.models.draft_files import read_draft
from kvpipe.models.gguf.model import is_gguf, read_gguf
from kvpipe.models.hub import fetch_config, fetch_tensor_table
from kvpipe.models.read_once import geometry_of
from kvpipe.models.stored import Stored, with_stored
from kvpipe.models.weight_files import find_weights, read_weights


class HuggingFace:
    """Reader of a config.json."""

    class Options(BaseModel):
        """path or repo, not both. draft: null, "mtp", or the path or repo of a draft model.
        max_loras: LoRAs held on the device at once, where one lies beside the model."""

        model_config = ConfigDict(frozen=True, extra="forbid")

        reader: str
        dtype: Literal["auto", "float16", "bfloat16", "float32"]
        path: str | None
        repo: str | None
        probe: bool
        draft: str | None
        max_loras: int = Field(default=1, strict=True, ge=0, le=1024)

    def __init__(self, options: HuggingFace.Options) -> None:
        self.options = options

    def read(self) -> ModelGeometry:
        """The geometry; ConfigError where the file is missing, wrong, or of an unknown family."""
        try:
            return self._read()
        except ConfigError as error:
            raise ConfigError([self._named(problem) for problem in error.problems]) from error

    def _named(self, problem: Problem) -> Problem:
        """What is wrong inside a file is a problem of the key that names the file."""
        if problem.key.startswith("model."):
            return problem
        key = "model.repo" if self.options.path is None else "model.path"
        return replace(problem, key=f"{key} ({problem.key})")

    def _read(self) -> ModelGeometry:
        if self.options.path is not None and is_gguf(self.options.path):
            return self._read_gguf(self.options.path)
        file, stored = self._open()
        if self.options.probe:
            from kvpipe.models.probe.as_engine import probe

            geometry = with_stored(probe(file), file, stored)
        else:
            geometry = geometry_of(file, stored)
        geometry = replace(geometry, max_loras=self.options.max_loras)
        if self.options.draft is None:
            return geometry
        return with_draft(geometry, file, self.options.draft, self._draft)

    def _read_gguf(self, path: str) -> ModelGeometry:
        for key in ("probe", "draft"):
            if getattr(self.options, key):
                raise ConfigError(Problem(f"model.{key}", "a config.json beside it", "a GGUF file"))
        return replace(read_gguf(path), max_loras=self.options.max_loras)

    def _open(self) -> tuple[ConfigFile, Stored]:
        path, repo = self.options.path, self.options.repo
        if (path is None) == (repo is None):
            got = "neither" if path is None else "both"
            knob = "for example model.path=./Llama-3.1-8B or model.repo=org/name"
            raise ConfigError(Problem("model.path", "either model.path or model.repo", got, knob))
        if path is not None:
            file = open_config(path)
            return file, stored_beside(file.folder) if file.folder else Stored()
        assert repo is not None
        file = parse_config(fetch_config(repo), f"{repo}/config.json", repo, None)
        return file, Stored(tensors=fetch_tensor_table(repo))

    def _draft(self, place: str) -> ModelGeometry:
        """The draft model, from a path if there is one of that name, else from a repository."""
        where = {"path": place, "repo": None} if is_path(place) else {"path": None, "repo": place}
        options = self.options.model_copy(update={**where, "draft": None, "probe": False})
        try:
            reader = HuggingFace(options)
            if where["path"] is not None and is_gguf(place):
                return reader.read()
            file, stored = reader._open()
            return with_stored(read_draft(file), file, stored)
        except ConfigError as error:
            raise ConfigError([_of_draft(problem) for problem in error.problems]) from error


def stored_beside(folder: Path) -> Stored:
    """Headers of the weights that lie beside a config.json."""
    files = find_weights(folder)
    adapter = read_weights([files.adapter]) if files.adapter else None
    return Stored(tensors=read_weights(files.model), adapter=adapter)


def _of_draft(problem: Problem) -> Problem:
    key = re.sub(r"^model\.(path|repo)", "model.draft", problem.key)
    if not key.startswith("model."):
        key = f"model.draft ({key})"
    return replace(problem, key=key)


PLUGIN = HuggingFace
