"""As the checkpoint has them: what the reader of the model found."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from kvpipe.models.base import ModelGeometry


class Published:
    class Options(BaseModel):
        model_config = ConfigDict(frozen=True, extra="forbid")

        name: str

    def __init__(self, options: Options) -> None:
        self.options = options

    def stored(self, model: ModelGeometry) -> ModelGeometry:
        return model


PLUGIN = Published
