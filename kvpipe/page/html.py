"""The document of a page -> one HTML file that needs nothing else.

Nothing of the document can become markup or a script: it stands in a data block, with `<`, `>` and
`&` escaped, and the script shows it as text. A policy in the head names the one
script and the one style by their hashes, and allows no connection (a served page: to its server).
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from kvpipe.report.map_style import COLOURS, HATCHED, LIGHT_TEXT

_PARTS = Path(__file__).parent
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
_PLACE = re.compile(r"\{\{([A-Z]+)\}\}")


def page_html(document: Mapping[str, Any], *, served: bool = False) -> str:
    """served: the page asks its server for plans; else it has them all."""
    style = colours() + _part("page.css")
    script = "".join(map(_part, ("figures.js", "page.js", *(("live.js",) if served else ()))))
    parts = {
        "POLICY": _policy(script, style, "'self'" if served else "'none'"),
        "STYLE": style,
        "SCRIPT": script,
        "PLANS": data_block(document),
        "UPLOAD": _part("upload.html") if served else "",
    }
    # In one pass: what is put in is not looked through for places.
    return _PLACE.sub(lambda place: parts[place[1]], _part("page.html"))


def _policy(script: str, style: str, connects: str) -> str:
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        f"connect-src {connects}; base-uri 'none'; form-action 'none'"
    )


def data_block(value: Any) -> str:
    """JSON that no HTML parser takes for anything but text. What a terminal would obey is escaped
    too: json writes ASCII alone."""
    text = json.dumps(value, separators=(",", ":"))
    for character, escape in _ESCAPED.items():
        text = text.replace(character, escape)
    return text


def colours() -> str:
    """The memory map's, a variable a cause, light and dark."""
    rules = []
    for dark in (False, True):
        pairs = {name: pair[dark] for name, pair in COLOURS.items()}
        pairs |= {name: four[1 + 2 * dark] for name, four in HATCHED.items()}
        body = "".join(f"--{name}:{colour};" for name, colour in pairs.items())
        rules.append(f":root{{{body}}}")
    light, dark_rules = rules
    classes = "".join(
        f".c-{name}{{background:var(--{name});color:{_ink(name)}}}" for name in (*COLOURS, *HATCHED)
    )
    return f"{light}\n@media (prefers-color-scheme:dark){{{dark_rules}}}\n{classes}\n"


def _ink(name: str) -> str:
    if name in HATCHED:
        return "var(--ink)"
    return "#fff" if name in LIGHT_TEXT else "var(--on-light)"


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8")
