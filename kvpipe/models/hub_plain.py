"""A public file of the Hugging Face Hub without its library: one request, no token, nothing kept.

The base install reads names on the Hub by it: urllib starts in a sixth of the CPU time that
huggingface_hub takes (0.06 s for 0.36 s). Where that library is installed it is asked instead,
since it knows tokens, mirrors and copies.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from kvpipe.models.config_file import LONGEST_FILE

ENDPOINT = "https://huggingface.co"
TIMEOUT_S = 10
_WITHHELD = (401, 403)  # also what the Hub says of a repository that is not there


class Withheld(OSError):
    """The Hub gives this file to nobody who does not say who he is, or has it not."""


def fetch_text(name: str, file: str, revision: str | None, endpoint: str = ENDPOINT) -> str:
    """Its text. OSError (`Withheld` where a token might help), ValueError where it is none."""
    from urllib.error import HTTPError  # slow to import, for whoever names a repository
    from urllib.request import Request, urlopen

    path = "/".join(quote(part, safe="") for part in (*name.split("/"), "resolve"))
    url = f"{endpoint}/{path}/{quote(revision or 'main', safe='')}/{quote(file, safe='')}"
    try:
        with urlopen(Request(url, headers={"User-Agent": "kvpipe"}), timeout=TIMEOUT_S) as answer:
            return _whole(iter(lambda: answer.read(2**16), b"")).decode("utf-8")
    except HTTPError as error:
        if error.code in _WITHHELD:
            raise Withheld(f"HTTP {error.code}: not there, or not public") from error
        raise OSError(f"HTTP {error.code}: {error.reason}") from error


def _whole(pieces: Iterable[bytes]) -> bytes:
    content = bytearray()
    for piece in pieces:
        content += piece
        if len(content) > LONGEST_FILE:
            raise OSError(f"more than {LONGEST_FILE // 2**20} MiB")
    return bytes(content)
