"""`kvpipe page`: every number of every slider position is the planner's, and no name is markup."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from itertools import product
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from page_requests import (
    SMALL,
    Place,
    answered,
    changes_at,
    check_script,
    command_line,
    places,
    position_at,
    rows_of,
    small_page,
    told,
)

import kvpipe
from kvpipe.commands.page import LARGEST_BYTES
from kvpipe.errors import ConfigError, DoesNotFit
from kvpipe.front.main import run
from kvpipe.front.prepared import prepared_request
from kvpipe.front.words import words_to_overrides
from kvpipe.page.axes import usual_lengths
from kvpipe.page.document import position_document
from kvpipe.page.html import page_html
from kvpipe.page.planner import Planner
from kvpipe.text.figures import size

WINDOWS = ("page", "gemma-3-27b", "--on", "h100", "engine=vllm", "command.caches=[auto]")
WINDOWS = (*WINDOWS, "scheduler.max_num_batched_tokens=2048", "command.batches=[2048]")
WINDOWS = (*WINDOWS, "command.cards=[1]", "command.lengths=[1024,8192]")
TIGHT = ("page", "llama", "--on", "l4", "command.batches=[2048]", "command.caches=[auto]")
TIGHT = (*TIGHT, "command.cards=[1]", "--context", "2048", "command.lengths=[2048,4096,32768]")
COPIES = (*SMALL, "command.caches=[auto]", "parallel.data_parallel_size=3")
FIGURES = Path(kvpipe.__file__).parent / "page" / "figures.js"
MARKUP = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{UPLOAD}}\u202e\x1b[31m"


def check(document: dict[str, Any], place: Place) -> None:
    """A stop's position, evaluated as the page does it (fixed + each * users), and a fresh plan."""
    names = [cause["name"] for cause in document["causes"]]
    position = position_at(document["subjects"][place.subject], place.stops)
    expected = told(command_line(document, place))
    if position["users"] < place.users and position["users"]:
        may = place.users <= position["high_users"]
        assert expected.status == ("may_not_fit" if may else "does_not_fit")
        word = "MAY NOT FIT" if may else "DOES NOT FIT"
        assert expected.says.startswith(f"{word}: only {position['users']:,} of {place.users:,}")
    elif not position["users"] and 1 < place.users > position["high_users"]:
        assert expected.status in ("does_not_fit", "wrong_request")
    elif place.users > max(1, position["low_users"]) and position["users"]:
        assert expected.status == "may_not_fit"
        assert expected.says.startswith(f"MAY NOT FIT: {place.users:,} users of")
    else:
        assert (position["status"], position["says"]) == (expected.status, expected.says)
    if expected.causes:
        users = ceil(place.users / position["copies"])
        got = {names[n]: fixed + each * users for n, fixed, each in position["shares"]}
        assert got == {cause: n for cause, n in expected.causes.items() if n or cause in got}
        assert position["card_bytes"] == expected.card_bytes


def test_slider_positions_are_what_the_planner_says() -> None:
    for document in (small_page().document, answered(*COPIES).document, answered(*TIGHT).document):
        for place in at_stops(document, 40, seed=1):
            check(document, place)


def at_stops(document: dict[str, Any], number: int, seed: int) -> list[Place]:
    axes = [subject["axes"][-1]["stops"] for subject in document["subjects"]]
    found = places(document, number, seed)
    return [replace(p, length=axes[p.subject][p.stops[-1]]) for p in found]


def test_copies_hold_their_users_each() -> None:
    three, one = (
        answered(*words).document["subjects"][0]["positions"] for words in (COPIES, COPIES[:-1])
    )
    assert [position["users"] for position in three] == [3 * each["users"] for each in one]
    assert [position["shares"] for position in three] == [each["shares"] for each in one]


@pytest.mark.full
@pytest.mark.parametrize(
    "words",
    [
        ("page", "llama-3.1-70b", "--on", "2xh200"),
        ("page", "gemma-3-27b", "--on", "h100", "engine=vllm_0_33", "command.batches=[8192]"),
        ("page", "gpt-oss-120b", "--on", "h100", "command.cards=[1,2]", "command.caches=[auto]"),
        ("page", "jamba", "--on", "h200", "command.cards=[1,2]", "command.batches=[2048]"),
        ("page", "deepseek-v3", "--on", "8xh200", "command.cards=[8]", "command.batches=[8192]"),
    ],
)
def test_five_hundred_slider_positions_are_what_the_planner_says(words: tuple[str, ...]) -> None:
    document = answered(*words).document
    for place in at_stops(document, 500, seed=2):
        check(document, place)


def evaluated_by_node(document: dict[str, Any], asked: list[Place]) -> Any:
    """segments() and verdict() of figures.js, as the page calls them."""
    script = f"""{FIGURES.read_text()}
    const [page, places] = JSON.parse(require("fs").readFileSync(0, "utf8"));
    console.log(JSON.stringify(places.map(([s, stops, users, length]) => {{
      const subject = page.subjects[s], position = positionAt(subject, stops, length);
      const told = verdict(position, users, length, subject.device);
      return [segments(position, users, page.causes), told, size(position.cache_bytes), position];
    }})));"""
    rows = rows_of(document, asked)
    done = subprocess.run(
        ["node", "-e", script], input=json.dumps([document, rows]), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize("words", [SMALL, COPIES, TIGHT], ids=["alone", "copies", "tight"])
def test_the_pages_own_script_says_what_the_planner_says(words: tuple[str, ...]) -> None:
    document = answered(*words).document
    asked = places(document, 50, seed=3)
    found = evaluated_by_node(document, asked)
    for place, (drawn, verdict, cache, position) in zip(asked, found, strict=True):
        check_script(document, place, drawn, verdict)
        assert cache == size(position["cache_bytes"])


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_where_the_line_has_room_the_cache_stands_beside_the_users_that_are_too_many() -> None:
    words = ("page", "qwen3-0.6b", "--on", "l4", "command.cards=[1]", "command.batches=[2048]")
    words = (*words, "scheduler.max_num_seqs=1", "command.caches=[auto]")
    document = answered(*words, "command.lengths=[512]").document
    subject = document["subjects"][0]
    stops = tuple(
        axis["stops"].index(value)
        for axis, value in zip(subject["axes"], (1, "auto", 2048, 512), strict=True)
    )
    place = Place(
        subject=0, stops=stops, users=position_at(subject, stops)["users"] + 1, length=512
    )
    ((drawn, verdict, _, _),) = evaluated_by_node(document, [place])
    assert "only" in verdict["says"] and "GiB (" in verdict["says"]
    check_script(document, place, drawn, verdict)


BETWEEN = {
    "full attention": ("llama-3.1-70b", "--on", "2xh200", "command.cards=[1,2]"),
    "windows": ("gemma-3-27b", "--on", "h100", "engine=vllm", "command.cards=[1,2]"),
    "chunks": ("llama-4-scout", "--on", "8xh100", "engine=vllm", "command.cards=[8]"),
    "sinks, an estimate that straddles": ("gpt-oss-120b", "--on", "h100", "engine=vllm"),
    "states": ("jamba", "--on", "h200", "engine=vllm", "command.cards=[1,2]"),
    "kept states": ("jamba", "--on", "h200", "engine=vllm", "cache.mamba_cache_mode=align"),
    "latent rows": ("deepseek-v3", "--on", "8xh200", "command.cards=[4,8]"),
    "copies": ("llama", "--on", "h100", "parallel.data_parallel_size=3"),
    "a release with other bounds": ("gemma-2-9b", "--on", "l4", "engine=vllm_0_17"),
}


def check_between(document: dict[str, Any], asked: list[Place]) -> None:
    """Every figure of the page at those places, beside the planner's."""
    planners: dict[str, Planner] = {}
    found = evaluated_by_node(document, asked)
    for place, (*_, position) in zip(asked, found, strict=True):
        subject = document["subjects"][place.subject]
        asked_words = tuple(subject["words"])
        if subject["title"] not in planners:
            raw = prepared_request(words_to_overrides(asked_words)).prepared.raw
            planners[subject["title"]] = Planner(raw=raw)
        planned = planners[subject["title"]].position(changes_at(document, place))
        expected = position_document(planned)
        for key in ("serve", "no_serve"):
            words = " ".join(document["words"][n] for n in position[key])
            assert words.replace("{length}", str(place.length)) == expected.pop(key), place
        shares = {number: values for number, *values in position["shares"] if any(values)}
        assert shares == {number: values for number, *values in expected.pop("shares")}, place
        assert {key: position[key] for key in expected} == expected, place


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_lengths_between_the_stops_are_what_the_planner_says() -> None:
    for document in (small_page().document, answered(*WINDOWS).document):
        asked = [place for place in places(document, 200, seed=7) if place.users == 2]
        assert any(is_between(document, place) for place in asked)
        check_between(document, asked)


def is_between(document: dict[str, Any], place: Place) -> bool:
    return place.length not in document["subjects"][place.subject]["axes"][-1]["stops"]


@pytest.mark.full
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize("words", BETWEEN.values(), ids=BETWEEN)
def test_five_hundred_lengths_between_the_stops_are_what_the_planner_says(
    words: tuple[str, ...],
) -> None:
    document = answered("page", *words, "command.batches=[512,8192]").document
    check_between(document, [*anywhere_between(document, 500), *at_every_edge(document)])


@pytest.mark.full
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_request_that_held_more_before_decides_between_the_stops_too() -> None:
    """Chunks of 8,192 tokens in a small pool: just after one begins a request holds little, and
    what it held at the end of the last one decides how many reach that length."""
    words = ("page", "llama-4-scout", "--on", "h100", "engine=vllm", "command.cards=[8]")
    small = ("cache.kv_cache_memory_bytes=2GiB", "cache.may_exceed_device=true")
    stops = ("command.lengths=[4096,40000]", "command.batches=[2048]", "command.caches=[auto]")
    document = answered(*words, *small, *stops).document
    others = product(*(range(len(axis["stops"])) for axis in document["subjects"][0]["axes"][:-1]))
    lengths = [chunk * 8192 + past for chunk in (1, 2, 3) for past in (-1, 0, 1, 2, 17, 900)]
    asked = [
        Place(subject=0, stops=(*stop, 0), users=1, length=length)
        for stop, pieces in zip(others, document["subjects"][0]["between"], strict=True)
        for length in lengths
        if any(piece["first"] <= length <= piece["last"] for piece in pieces)
    ]
    assert len(asked) > 10
    check_between(document, asked)


def anywhere_between(document: dict[str, Any], number: int) -> list[Place]:
    """Of the first subject: a combination of the other sliders, a stretch, a length in it."""
    subject, chance = document["subjects"][0], random.Random(8)
    others = product(*(range(len(axis["stops"])) for axis in subject["axes"][:-1]))
    cells = [cell for cell in zip(others, subject["between"], strict=True) if cell[1]]
    found = []
    for _ in range(number):
        stops, pieces = chance.choice(cells)
        piece = chance.choice(pieces)
        length = chance.randint(piece["first"], piece["last"])
        found.append(Place(subject=0, stops=(*stops, 0), users=1, length=length))
    return found


def at_every_edge(document: dict[str, Any]) -> list[Place]:
    """The ends of each stretch, where forms meet."""
    found = []
    for number, subject in enumerate(document["subjects"]):
        others = product(*(range(len(axis["stops"])) for axis in subject["axes"][:-1]))
        for stops, pieces in zip(others, subject["between"], strict=True):
            ends = [piece[end] for piece in pieces for end in ("first", "last")]
            found += [
                Place(subject=number, stops=(*stops, 0), users=1, length=length) for length in ends
            ]
    return found


def test_of_groups_that_are_chosen_for_a_length_no_other_length_is_told() -> None:
    words = ("page", "gemma-3-27b", "--on", "h100", "command.cards=[1]", "command.caches=[auto]")
    words = (*words, "scheduler.max_num_batched_tokens=8192", "command.batches=[8192]")
    document = answered(*words, "command.lengths=[8192,16384]").document
    assert not any(document["subjects"][0]["between"])


def test_the_page_is_one_small_file_without_a_network() -> None:
    html = small_page().pictures["page.html"]
    assert len(html.encode()) < LARGEST_BYTES
    assert not re.search(r"(src|href)=|https?://|@import|url\(", html)
    assert "connect-src 'none'" in html and "default-src 'none'" in html


@pytest.mark.full
def test_a_page_of_all_usual_stops_is_under_its_limit() -> None:
    page = answered("page", "deepseek-v3", "--on", "8xh200").pictures["page.html"]
    assert len(page.encode()) < LARGEST_BYTES


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.data = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.data += data if self.tags[-1:] == ["script"] else ""


def test_no_name_out_of_a_file_becomes_markup() -> None:
    document = json.loads(json.dumps(small_page().document))
    plain, odd = Tags(), Tags()
    plain.feed(page_html(document))
    for subject in document["subjects"]:
        subject |= {key: MARKUP for key in ("title", "model", "device")} | {"words": [MARKUP]}
        subject["positions"][0]["says"] = MARKUP
    document["notes"], document["words"] = [MARKUP], [MARKUP] * len(document["words"])
    html = page_html(document)
    odd.feed(html)
    assert odd.tags == plain.tags and "alert" in odd.data
    assert not [c for c in html if not c.isprintable() and c != "\n"]
    block = html.partition('id="plans-data">')[2].partition("</script>")[0]
    assert json.loads(block) == document


def test_a_page_is_written_whole_and_says_what_is_in_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["page", "llama", "device=l4", "command.lengths=[1024]", "command.batches=[2048]"]
    assert run([*words, "command.cards=[1]", "hydra.run.dir=out"]) == 0
    assert "page.html" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {".hydra", "page.html", "page.json", "result.json"}


@pytest.mark.full
def test_the_best_fleets_stand_side_by_side_and_each_server_is_the_planners() -> None:
    """Ranked as find ranks them; positions of each beside a run of its words."""
    words = ("model=llama", "want.requests=100", "want.length=8192", "want.device=[l40s,h100]")
    stops = ("command.lengths=[8192,16384]", "backend=meta")
    document = answered("page", *words, *stops).document
    every = answered("find", *words).document["fleets"]
    assert document["kind"] == "fleet" and len(document["subjects"]) == 6
    firsts = [next(f for f in every if f["device"] == name) for name in ("l40s", "h100_80gb")]
    rest = [f for f in every if f not in firsts][: 6 - len(firsts)]
    ranked = [f for f in every if f in firsts or f in rest]
    for subject, fleet in zip(document["subjects"], ranked, strict=False):
        assert subject["title"].startswith(f"{fleet['cards']} card")
        assert f": {fleet['replicas']} x TP {fleet['tp']}" in subject["title"]
        assert subject["title"].endswith(f"of {fleet['device']}")
    assert document["users"] == -(-100 // ranked[0]["replicas"])
    notes = "\n".join(document["notes"])
    assert f"{ranked[0]['users']} users each" in notes and "candidates serve them" in notes
    for place in at_stops(document, 12, seed=3):
        check(document, place)


@pytest.mark.full
def test_the_best_of_each_device_has_a_map_and_cards_are_those_of_a_server(
    monkeypatch, tmp_path, capsys
) -> None:
    """A slider's stop is ranks of one pipeline stage: a server has as many of each stage."""
    words = ("llama-3.1-70b", "want.requests=16", "want.length=32768", "command.lengths=[32768]")
    document = answered("page", *words, "want.device=[h100,h200,l40s]").document
    devices = [subject["device"] for subject in document["subjects"]]
    assert {"h100_80gb", "h200", "l40s"} == set(devices) and len(devices) == 6
    for subject in document["subjects"]:
        cards, replicas = map(int, re.findall(r"(\d+) cards?: (\d+) x", subject["title"])[0])
        stop = next(a for a in subject["axes"] if "tensor_parallel" in a["key"])["stops"][0]
        assert stop * subject["pipeline"] * subject["copies"] * replicas == cards
    assert any("more serve the load and have no map here" in note for note in document["notes"])
    monkeypatch.chdir(tmp_path)
    asked = ["page", "llama-3.1-70b", "--on", "4xh200", "tp=2", "parallel.pipeline_parallel_size=2"]
    assert run([*asked, "command.cards=[1,2]", "command.lengths=[1024]"]) == 0
    assert re.search(r"cards\s+2, 4\n", capsys.readouterr().out)


def test_a_page_of_fleets_says_what_it_is_not_made_of() -> None:
    words = ("page", "model=llama", "want.device=[h100]", "want.length=8192")
    with pytest.raises(ConfigError, match="command.engines: expected engines or cards, not both"):
        answered(*words, "engines=[vllm]")
    with pytest.raises(DoesNotFit, match="none of these cards serves the load"):
        answered(*words, "want.token_ms=0.001")


@pytest.mark.full
def test_the_jobs_of_a_sweep_stand_side_by_side(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sweep = ["-m", "model=llama", "device=h100_80gb", "cache.block_size=16,32", "backend=meta"]
    assert run([*sweep, "hydra.sweep.dir=sweep"]) == 0
    (tmp_path / "sweep/1/.hydra/config.yaml").write_text("a: &a [*a]")
    document = answered("page", "folder=sweep", "command.lengths=[8192]").document
    (subject,) = document["subjects"]
    assert "cache.block_size=16" in subject["title"]
    assert len(document["notes"]) == 1 and document["notes"][0].startswith("job 1 ")
    for place in at_stops(document, 5, seed=4):
        check(document, place)
    with pytest.raises(ConfigError, match="sweep"):
        answered("page", "folder=.")


@pytest.mark.full
def test_engines_stand_side_by_side_as_compare_has_them() -> None:
    words = ("llama", "device=h100_80gb", "scheduler.max_model_len=8192", "engines=[vllm,sglang]")
    document = answered("page", *words, "command.lengths=[8192]", "command.caches=[auto]").document
    compared = answered("compare", *words).fields
    for subject in document["subjects"]:
        start = [axis["start"] for axis in subject["axes"]]
        assert position_at(subject, start)["steady_users"] == compared[f"users_{subject['title']}"]
    with pytest.raises(ConfigError, match="sglong"):
        answered("page", "llama", "device=l4", "engines=[sglong]")


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_bytes_are_written_as_everywhere_else() -> None:
    asked = [0, 1, 1023, 1024, 1025, 102_349, 2**20 - 1, 2**30 - 1, 3 * 2**30, 10**13, 2**52]
    script = f"{FIGURES.read_text()}; console.log(JSON.stringify({asked}.map(size)))"
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [size(n) for n in asked]


def test_lengths_have_stops_up_to_the_context() -> None:
    for context in (1, 512, 1024, 8000, 131072, 10**7):
        for most in (2, 5, 18, 60):
            stops = usual_lengths(context, most)
            assert list(stops) == sorted(set(stops)) and stops[-1] == context
            assert len(stops) <= most, (context, most)
