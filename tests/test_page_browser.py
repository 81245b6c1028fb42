"""The page in a real browser: it opens, moves, sorts, copies, and can be used by anybody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browser import opened
from page_requests import answered, check_script, places, rows_of, segments, small_page, told

pytestmark = pytest.mark.browser
SCREENS = [(375, "light"), (375, "dark"), (1440, "light"), (1440, "dark")]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(small_page().pictures["page.html"])
    return path.as_uri()


@pytest.fixture(scope="module")
def engines_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    words = ("llama", "device=h100_80gb", "engines=[vllm,sglang]", "command.cards=[1]")
    answer = answered("page", *words, "command.lengths=[8192,32768]")
    path = tmp_path_factory.mktemp("engines") / "page.html"
    path.write_text(answer.pictures["page.html"])
    return path.as_uri()


def drawn(tab: Any) -> list[tuple[str, int]]:
    """(cause, bytes) of the map's parts, as the elements say it."""
    parts = tab.eval_on_selector_all(
        "#map > span", "parts => parts.map(p => [p.dataset.cause, p.dataset.bytes])"
    )
    return [(cause.replace(" ", "_"), int(num_bytes)) for cause, num_bytes in parts]


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_it_opens_without_a_word_and_fits_the_screen(browser, url, engines_url, width, scheme):
    for each in (url, engines_url):
        with opened(browser, each, width=width, scheme=scheme) as tab:
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            assert tab.text_content("#verdict").startswith("IT FITS")


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_axe_finds_nothing_to_complain_about(browser, url, engines_url, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    rules = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
    for each in (url, f"{url}#users=4000", engines_url):
        with opened(browser, each, width=width, scheme=scheme) as tab:
            found = axe.run(tab, options=rules).response["violations"]
            assert not found, json.dumps([(v["id"], v["nodes"][0]["html"]) for v in found])


def test_five_hundred_slider_positions_are_what_the_planner_says(browser, url):
    document = small_page().document
    asked = places(document, 500, seed=5)
    with opened(browser, url) as tab:
        found = tab.evaluate(
            """rows => rows.map(([s, stops, users, length]) => {
                const { page, positionAt, segments, verdict } = window.kvpipe;
                const subject = page.subjects[s], position = positionAt(subject, stops, length);
                return [segments(position, users, page.causes),
                        verdict(position, users, length, subject.device)];
            })""",
            rows_of(document, asked),
        )
    for place, (parts, verdict) in zip(asked, found, strict=True):
        check_script(document, place, parts, verdict)


def test_sliders_move_the_map_the_numbers_and_the_command_to_what_that_command_answers(
    browser, url
):
    with opened(browser, url) as tab:
        before = drawn(tab)
        for key in (
            "scheduler.max_model_len",
            "cache.cache_dtype",
            "parallel.tensor_parallel_size",
        ):
            slider = tab.locator(f"input[data-key='{key}']")
            last = slider.get_attribute("max")
            slider.fill("0" if slider.input_value() == last else last)
        for users in ("7", "900"):
            tab.fill("#users-exact", users)
            tab.press("#users-exact", "Enter")
            line = tab.text_content("#ask")
            assert f"want.requests={users}" in line
            expected = told(line)
            assert tab.text_content("#verdict") == expected.says
            map_now = [(c.replace("too_much", "overflow"), n) for c, n in drawn(tab)]
            assert map_now == list(segments(expected.causes, expected.card_bytes)) != before


def test_cards_are_those_of_every_stage_and_copy(browser, tmp_path):
    words = ("llama-3.1-70b", "device=h200", "tp=2", "parallel.pipeline_parallel_size=2")
    answer = answered("page", *words, "command.cards=[1,2]", "command.lengths=[8192]")
    path = tmp_path / "page.html"
    path.write_text(answer.pictures["page.html"])
    with opened(browser, path.as_uri()) as tab:
        slider = tab.locator("input[data-key='parallel.tensor_parallel_size']")
        told = []
        for stop in ("0", "1"):
            slider.fill(stop)
            told.append(slider.get_attribute("aria-valuetext"))
        assert told == ["2 cards (PP 2)", "4 cards (TP 2 PP 2)"]
        cells = tab.eval_on_selector_all(
            "#plans tbody tr", "rows => rows.map(row => row.cells[1].textContent)"
        )
        assert set(cells) == {"2", "4"}


def test_any_length_between_two_stops_is_shown_and_linked(browser, url):
    with opened(browser, url) as tab:
        tab.fill("#length-exact", "5001")
        tab.press("#length-exact", "Enter")
        line = tab.text_content("#ask")
        assert "scheduler.max_model_len=5001" in line
        expected = told(line)
        assert tab.text_content("#verdict") == expected.says
        parts = drawn(tab)
        assert parts == list(segments(expected.causes, expected.card_bytes))
        assert "--max-model-len 5001" in tab.text_content("#serve")
        assert "of 5,001 tokens" in tab.text_content("#plans-about")
        tab.click("#link")
        link = tab.evaluate("navigator.clipboard.readText()")
        tab.focus("input[data-key='scheduler.max_model_len']")
        tab.keyboard.press("ArrowRight")
        moved = int(tab.input_value("#length-exact"))
        assert 5001 < moved < 32768, "the slider passes lengths between its stops"
        tab.keyboard.press("End")
        assert tab.input_value("#length-exact") == "131072"
    with opened(browser, link) as tab:
        assert drawn(tab) == parts and tab.input_value("#length-exact") == "5001"


def test_where_no_other_length_is_known_the_next_stop_is_shown_and_it_says_so(browser, tmp_path):
    """Of two cards: the first cannot hold the model, the second can."""
    words = ("page", "llama-3.1-70b", "--on", "h200", "command.cards=[1,2]")
    stops = ("command.lengths=[1024,8192]", "command.batches=[2048]", "command.caches=[auto]")
    path = tmp_path / "page.html"
    path.write_text(answered(*words, *stops).pictures["page.html"])
    with opened(browser, f"{path.as_uri()}#parallel.tensor_parallel_size=2") as tab:
        tab.fill("#length-exact", "3000")
        tab.press("#length-exact", "Enter")
        assert tab.input_value("#length-exact") == "3000" and not tab.text_content("#snapped")
        tab.locator("input[data-key='parallel.tensor_parallel_size']").fill("0")
        assert "3,000 tokens" in tab.text_content("#snapped")
        assert tab.input_value("#length-exact") == "8192"
        assert tab.text_content("#verdict") == told(tab.text_content("#ask")).says


def test_why_no_engines_command_follows_is_said(browser, url, tmp_path):
    words = ("page", "llama", "--on", "h100", "cache.sliding_window=4096", "attention=sliding")
    path = tmp_path / "page.html"
    path.write_text(answered(*words, "command.lengths=[8192]").pictures["page.html"])
    with opened(browser, path.as_uri()) as tab:
        assert "is a what-if, and no flag of vLLM says it" in tab.text_content("#no-serve")
        assert tab.is_visible("#no-serve") and tab.is_hidden("#serving")
    with opened(browser, url) as tab:
        assert tab.is_hidden("#no-serve") and tab.is_visible("#serving")


def test_a_verdict_that_straddles_says_how_many_run_at_worst(browser, url):
    with opened(browser, f"{url}#scheduler.max_model_len=20000") as tab:
        users = tab.evaluate(
            "(at => at.low_users + 1)(kvpipe.positionAt(kvpipe.page.subjects[0],"
            " kvpipe.state.stops, kvpipe.state.length))"
        )
        tab.fill("#users-exact", str(users))
        tab.press("#users-exact", "Enter")
        assert tab.text_content("#verdict").startswith("MAY NOT FIT")
        at_worst = f"With the least memory of the estimate {users - 1:,} users run."
        assert at_worst in tab.text_content("#about")


def test_the_table_sorts_both_ways_and_opens_a_row(browser, url):
    with opened(browser, url) as tab:
        for column, key in (("A request", "request"), ("Users", "users")):
            at = tab.locator("#plans th").all_text_contents().index(column)
            button = tab.locator(f"button[data-sorts='{key}']")
            orders = []
            for _ in range(2):
                button.click()
                cells = tab.locator(f"#plans tbody td:nth-child({at + 1})").all_text_contents()
                orders.append(cells)
            head = tab.locator(f"th[data-column='{key}']")
            assert head.get_attribute("aria-sort") in ("ascending", "descending")
            assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])
        row = tab.locator("#plans tbody tr").last
        row.locator("button").click()
        assert tab.locator("#plans tr[aria-current]").count() == 1
        assert tab.locator("#plans tbody tr").last.get_attribute("aria-current") == "true"


def test_commands_and_the_link_are_copied_and_the_link_restores_the_state(browser, url):
    with opened(browser, url) as tab:
        tab.fill("#users-exact", "23")
        tab.press("#users-exact", "Enter")
        tab.locator("input[data-key='cache.cache_dtype']").fill("1")
        for name in ("ask", "serve"):
            tab.click(f"button[data-copies='{name}']")
            copied = tab.evaluate("navigator.clipboard.readText()")
            assert copied == tab.text_content(f"#{name}") and "\n" not in copied
        tab.click("#link")
        link, verdict = tab.evaluate("navigator.clipboard.readText()"), tab.text_content("#verdict")
        parts, line = drawn(tab), tab.text_content("#ask")
    with opened(browser, link) as tab:
        assert (drawn(tab), tab.text_content("#ask")) == (parts, line)
        assert tab.text_content("#verdict") == verdict and tab.input_value("#users-exact") == "23"
        tab.goto(f"{url}#users=-3&s=99&cache.cache_dtype=<b>&scheduler.max_model_len=7")
        assert drawn(tab), "a link that says nothing sensible opens the page as it was made"


def test_everything_is_reached_and_moved_by_the_keyboard_alone(browser, url):
    with opened(browser, url) as tab:
        reached = []
        for _ in range(60):
            tab.keyboard.press("Tab")
            reached.append(
                tab.evaluate(
                    "(e => e.id || e.dataset.copies || e.dataset.sorts || e.className)"
                    "(document.activeElement)"
                )
            )
            outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none" or not reached[-1]
        assert {"users", "users-exact", "ask", "serve", "link", "scroll", "verdict"} <= set(reached)
        tab.focus("#users")
        before = tab.input_value("#users-exact")
        tab.keyboard.press("ArrowRight")
        assert int(tab.input_value("#users-exact")) > int(before)
        tab.focus("button[data-sorts='cards']")
        tab.keyboard.press("Enter")
        assert tab.get_attribute("th[data-column='cards']", "aria-sort") == "descending"


def test_no_name_out_of_a_file_runs_or_becomes_an_element(browser, tmp_path: Path):
    from kvpipe.page.html import page_html

    evil = "</script><script>window.owned=1</script><img src=x onerror=window.owned=1>"
    document = json.loads(json.dumps(small_page().document))
    for subject in document["subjects"]:
        subject |= {key: evil for key in ("title", "model", "device")} | {"words": [evil]}
        for position in subject["positions"]:
            position["says"] = evil
    document["notes"], document["words"] = [evil], [evil] * len(document["words"])
    path = tmp_path / "page.html"
    path.write_text(page_html(document))
    with opened(browser, path.as_uri()) as tab:
        assert tab.evaluate("window.owned") is None and tab.locator("img").count() == 0
        assert tab.text_content("#verdict") == evil and evil in tab.text_content("#model")
        assert f"'{evil}'" in tab.text_content("#ask")
