"""What README and docs/ show is what the program prints, and every command in them runs."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from gguf_files import gguf
from model_facts import configs, models
from readme import BLOCK, block, pages, shown

from docs import DOCS
from docs import pages as made_pages
from kvpipe.front.main import run

ROOT = Path(__file__).parents[1]
LOG = ROOT / "kvpipe" / "logs" / "sample.log"
SPEEDS = LOG.with_name("speed_sample.log")
# Named in a text, not shown as something to type: a command's name alone, placeholders of people.
NAMES = {"find", "replay", "compare", "doctor", "org/name"}
COMMANDS = sorted({line for page in pages() for line in shown(page.read_text())} - NAMES)
OUTPUTS = [
    (str(page.relative_to(ROOT)), found[2], found[3])
    for page in pages()
    for found in BLOCK.finditer(page.read_text())
]


def test_pages_made_from_the_program_are_as_it_says_now() -> None:
    stale = [str(path) for path, text in made_pages().items() if (DOCS / path).read_text() != text]
    assert not stale, f"python tools/docs.py writes {stale} anew"


def test_the_site_has_every_page_and_no_other() -> None:
    named = set(re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert named == {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}


def test_the_pages_show_commands() -> None:
    assert len(COMMANDS) > 30 and len(OUTPUTS) > 8
    text = "```\nkvpipe a \\\n    b\n```\n`kvpipe c`\n    pip install x && python -m kvpipe d\n"
    assert shown(f"<!-- output of: kvpipe e -->\n```\nkvpipe f\n```\n{text}") == [
        "e", "a b", "d", "c",
    ]  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that pages name."""
    monkeypatch.chdir(tmp_path)
    config = json.dumps(configs()[models()["meta-llama/Llama-3.1-8B"]["config"]])
    for name in ("my-model", "folder"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(config)
    for name, log in (("server.log", LOG), ("FILE", LOG), ("LOG", SPEEDS)):
        (tmp_path / name).write_text(log.read_text())
    (tmp_path / "model.gguf").write_bytes(gguf())
    assert run(["llama", "--on", "h100", "hydra.run.dir=FOLDER"]) == 0
    return tmp_path


@pytest.mark.full
@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_that_is_shown_runs(line: str, place: Path, capsys) -> None:
    """Exit 0, or 1 where what is shown is what does not fit; 2 where mistakes are shown."""
    if line.startswith("serve-page"):
        pytest.skip("a server does not end: tests of the page start it")
    if "tiny-llama" in line:
        pytest.skip("tests/transformers_cache runs what docs/transformers.md shows")
    words = shlex.split(line.partition(" | ")[0])
    code = run(words)
    told = capsys.readouterr()
    wrong = "abc" in line  # README's three mistakes
    assert code in ((2,) if wrong else (0, 1)), told.err
    assert wrong or "Traceback" not in told.err


def steady(text: str, is_here: bool) -> str:
    """Without what differs from day to day; what this machine measures is any number."""
    text = re.sub(r"outputs/[\d-]+/[\d-]+/", "outputs/DATE/", text)
    text = re.sub(r"(profiling|grouping|allocation|binding)\s+[\d.,]+\s+m?s", r"\1 #", text)
    if is_here:
        text = re.sub(r"digest \w+", "digest", text)
        text = re.sub(r"[\d.,]+( ?(B|KiB|MiB|GiB|TiB|s|ms|%))?\b", "#", text)
    return " ".join(text.split())


@pytest.mark.full
@pytest.mark.parametrize(("page", "command", "kept"), OUTPUTS)
def test_outputs_that_are_shown_are_current(page: str, command: str, kept: str) -> None:
    is_here = "device=" not in command and "--on" not in command
    fresh, before = (steady(text, is_here) for text in (block(command), kept))
    assert fresh == before, f"python tools/readme.py {page}"
