"""A file's geometry, kept while the file stays what it was.

One request is planned many times, with other settings beside the same model: advice, pages and
searches ask again and again for what was read before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kvpipe.models.base import ModelGeometry
from kvpipe.models.config_file import ConfigFile
from kvpipe.models.reading import read_geometry
from kvpipe.models.stored import Stored, with_stored

KEPT = 4  # a model, its draft, and another pair beside them


@dataclass(frozen=True, kw_only=True)
class _Read:
    file: ConfigFile
    text: str  # of what the file holds: True and 1 are equal, and not the same to a reader
    stored: Stored
    geometry: ModelGeometry

    def is_of(self, file: ConfigFile, text: str, stored: Stored) -> bool:
        """Headers that have not changed are the same object (weight_files.py)."""
        return (
            self.text == text
            and (self.file.name, self.file.folder) == (file.name, file.folder)
            and self.stored.tensors is stored.tensors
            and self.stored.adapter is stored.adapter
        )


_READ: deque[_Read] = deque(maxlen=KEPT)


def geometry_of(file: ConfigFile, stored: Stored) -> ModelGeometry:
    """What the file and the headers beside it say; ConfigError as of `read_geometry`."""
    text = repr(file.raw)
    for read in tuple(_READ):  # another thread may append
        if read.is_of(file, text, stored):
            return read.geometry
    geometry = with_stored(read_geometry(file, stored.tensors), file, stored)
    _READ.append(_Read(file=file, text=text, stored=stored, geometry=geometry))
    return geometry
