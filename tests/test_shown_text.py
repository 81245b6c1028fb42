"""Text out of a file is shown, never obeyed: on stdout, stderr, in pictures, in JSON, on pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvpipe.front.main import run
from kvpipe.text.clean import clean, clean_lines

ESCAPES = "\x1b]0;OWNED\x07\x1b[31mred\r\u202ertl\u200b<script>\n\x9b2J"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def obeyed(text: str) -> list[str]:
    """Characters of a text that are not shown as they are, line feeds between lines left out."""
    return [c for c in text if not c.isprintable() and c != "\n"]


def theirs(name: str = ESCAPES) -> list[str]:
    folder = Path("theirs/example")
    folder.mkdir(parents=True)
    texts = {"device": {"name": name, "source": name}, "model": {"name": name}, "example": {}}
    (folder / "t.yaml").write_text(f"# @package _global_\n{json.dumps(texts)}\n")
    return ["--config-dir", "theirs", "example=t", "device=h100_80gb", "model=gpt2"]


def test_a_report_a_picture_and_a_page_hold_nothing_a_terminal_obeys(capsys, tmp_path):
    asked = [*theirs(), "backend=meta", "hydra.run.dir=out"]
    assert run(asked) == 0
    out, err = capsys.readouterr()
    assert "OWNED" in out and not obeyed(out + err)
    picture = (tmp_path / "out/memory_map.svg").read_text()
    assert "OWNED" in picture and not obeyed(picture) and "<script>" not in picture
    assert run([*asked, "report=json"]) == 0
    text = capsys.readouterr().out
    assert json.loads(text)["headline"]["device"] == ESCAPES and not obeyed(text)
    assert run([*asked, "--cfg", "job"]) == 0
    assert not obeyed(capsys.readouterr().out)


def test_complaints_hold_nothing_a_terminal_obeys(capsys):
    asked = [*theirs(), "backend=meta", "scheduler.max_model_len=999999"]
    assert run([*asked, "cache.kv_cache_memory_bytes=1MiB"]) == 2
    assert run(["--config-dir", "theirs", "model=gpt2", f"cache.cache_dtype='{ESCAPES}'"]) == 2
    out, err = capsys.readouterr()
    assert err and not obeyed(out + err)


def test_the_name_of_an_option_file_is_text_too(capsys):
    theirs()
    Path("theirs/model").mkdir()
    Path("theirs/model/\x1b[31mred.yaml").write_text("{}")
    assert run(["--config-dir", "theirs", "--help", "all"]) == 0
    out = capsys.readouterr().out
    assert "?[31mred" in out and not obeyed(out)


def test_clean_keeps_length_and_plain_text():
    assert clean("Größe 4 GiB, 模型") == "Größe 4 GiB, 模型"
    assert len(clean(ESCAPES)) == len(ESCAPES) and not obeyed(clean(ESCAPES))
    assert clean_lines("a\x1b\nb\r") == "a?\nb?"
