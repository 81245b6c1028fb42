"""No word of an answer is cut in the middle: what it names can be copied."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpipe.front.main import run
from kvpipe.report.on_screen import lines_of, on_screen
from kvpipe.text.lines import Line, Section, lay_out

WORDS = st.text("abcd._=-", min_size=1, max_size=70)
CELLS = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)


@pytest.mark.full
@pytest.mark.parametrize(
    "words",
    [
        ["llama", "--on", "h100", "--context", "8k", "engine=llama_cpp", "report=full"],
        ["-m", "llama", "--on", "h100", "scheduler.max_num_seqs=16,32",
         "scheduler.max_num_batched_tokens=2048,4096", "hydra.sweep.dir=out"],
        ["find", "llama", "--on", "h100", "--context", "8k", "--users", "8"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("columns", ["60", "80", "100"])
def test_the_settings_that_an_answer_names_stand_whole(
    words, columns, capsys, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    assert run(words) == 0
    whole = {word for word in capsys.readouterr().out.split() if "_" in word or "." in word}
    monkeypatch.setenv("COLUMNS", columns)
    assert run(words) == 0
    narrow = capsys.readouterr().out
    named = {word for word in whole if "=" in word or "(engine." in word}
    assert named and {word for word in named if word not in narrow.split()} == set()


def test_a_table_that_is_too_wide_goes_without_what_it_can_spare_before_it_is_told() -> None:
    headers, row = ("name", "spare", "also", "figure"), ("x" * 20, "y" * 30, "z" * 10, "1")
    section = Section(title="t", headers=headers, align="lllr", rows=[row], spare=headers[1:3])
    shown = {width: [line.text for line in lay_out([section], width)] for width in (75, 60, 34, 30)}
    assert shown[75][1].split() == [*headers] and shown[60][1].split() == ["name", "also", "figure"]
    assert shown[34][1].split() == ["name", "figure"] and shown[34][2].split() == [row[0], "1"]
    assert shown[30][1].split() == ["name", "figure"]


@given(st.lists(st.tuples(WORDS, CELLS), min_size=1, max_size=4), st.booleans())
def test_a_table_has_the_words_of_its_cells_and_no_others(rows, headers) -> None:
    section = Section(title="t", align="ll", rows=rows, headers=("a", "b") if headers else ())
    told = [word for line in list(lay_out([section], 60))[1:] for word in line.text.split()]
    known = {word for row in rows for cell in row for word in cell.split()} | {"a", "b"}
    assert [word for word in told if word not in known and word.rstrip(":") not in known] == []


LINES = st.lists(CELLS.map(Line), max_size=4)
BLOCKS = st.dictionaries(st.sampled_from("abcde"), LINES, min_size=1)


@given(BLOCKS, st.lists(BLOCKS, max_size=5), st.integers(1, 12))
def test_a_block_of_a_screen_stands_whole_as_one_of_its_ways_or_as_the_first_that_had_room(
    blocks, steps, room
) -> None:
    shown = on_screen(blocks, steps, room)
    assert list(shown) == list(blocks)  # in their order
    for name, lines in shown.items():
        assert lines in [blocks[name], *(step[name] for step in steps if name in step)]
    if lines_of(blocks) <= room:
        assert shown == blocks
    assert lines_of(shown) <= lines_of(blocks)
