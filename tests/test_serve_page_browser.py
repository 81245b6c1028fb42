"""The served page in a real browser: any model, files dropped on it, plans made as sliders move."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import opened
from gguf_files import gguf
from page_requests import told
from test_serve_page import CONFIG, SAMPLE

from kvpipe.page.axes import CACHE, CARDS, LENGTH

pytestmark = pytest.mark.browser
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server as users start it, on a free port, and ended as they end it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    root = Path(__file__).parents[1]
    words = ["serve-page", "--on", "h100", f"command.port={port}", "hydra.run.dir=out"]
    folder = tmp_path_factory.mktemp("served")
    server = subprocess.Popen(
        [sys.executable, "-m", "kvpipe", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root)},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    line = server.stderr.readline()
    assert f"http://127.0.0.1:{port}/" in line, line
    yield f"http://127.0.0.1:{port}/"
    server.send_signal(signal.SIGINT)
    out, err = server.communicate(timeout=60)
    assert server.returncode == 0 and "is closed" in out and not err, (server.returncode, out, err)
    assert (folder / "out" / "served.json").is_file()


def shows(tab: Any, name: str, says: str) -> None:
    """Waited for by the browser's own selectors: the page's policy allows no eval."""
    tab.locator(f"#{name}", has_text=says).wait_for()


@pytest.mark.parametrize("width", [375, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_without_a_word_and_axe_finds_nothing(
    browser, url, width, scheme, tmp_path
) -> None:
    """Nor while a problem and what a log says stand on it."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    (tmp_path / "vllm.log").write_bytes(SAMPLE.read_bytes())
    with opened(browser, url, width=width, scheme=scheme) as tab:
        check_rules(axe, tab, width)
        tab.set_input_files("#pick-file", str(tmp_path / "vllm.log"))
        tab.locator("#told:not(:empty)").wait_for()
        tab.evaluate("document.getElementById('problem').textContent = 'odd.json: no model'")
        check_rules(axe, tab, width)


def check_rules(axe: Any, tab: Any, width: int) -> None:
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    found = axe.run(tab, options={"runOnly": RULES}).response["violations"]
    assert not found, json.dumps([(v["id"], v["nodes"][0]["html"]) for v in found])


def test_every_change_shows_what_its_command_answers(browser, url) -> None:
    with opened(browser, url) as tab:
        for key in (LENGTH, CACHE, CARDS):
            slider = tab.locator(f"input[data-key='{key}']")
            last = slider.get_attribute("max")
            with tab.expect_response("**/plan"):
                slider.fill("0" if slider.input_value() == last else last)
        tab.fill("#users-exact", "5000")
        tab.press("#users-exact", "Enter")
        shows(tab, "verdict", "of 5,000 users")
        line = tab.text_content("#ask")
        assert tab.text_content("#verdict") == told(line).says
        assert tab.locator("#plans tbody tr").count() >= 1


def test_any_length_is_planned(browser, url) -> None:
    with opened(browser, url) as tab:
        with tab.expect_response("**/plan"):
            tab.fill("#length-exact", "777")
            tab.press("#length-exact", "Enter")
        shows(tab, "verdict", "777 tokens")
        assert tab.text_content("#verdict") == told(tab.text_content("#ask")).says


def test_a_link_restores_model_device_and_sliders(browser, url) -> None:
    with opened(browser, url) as tab:
        tab.select_option("#pick-device", "l4")
        shows(tab, "model", "on l4")
        tab.select_option("#pick-model", "qwen3_0_6b")
        shows(tab, "model", "Qwen3-0.6B")
        tab.fill("#length-exact", "5001")
        tab.press("#length-exact", "Enter")
        shows(tab, "verdict", "5,001 tokens")
        tab.click("#link")
        link, line = tab.evaluate("navigator.clipboard.readText()"), tab.text_content("#ask")
    with opened(browser, link) as tab:
        shows(tab, "verdict", "5,001 tokens on l4")
        assert tab.text_content("#ask") == line
        tab.click("button[data-copies='ask']")
        assert tab.evaluate("navigator.clipboard.readText()") == line
        tab.goto(f"{url}#model=../../etc&device=<b>&s=7")
        shows(tab, "verdict", "on l4")


def test_everything_is_done_by_the_keyboard_alone(browser, url) -> None:
    """A model, a device, a length, the table's order; the field for files is reached."""
    with opened(browser, url) as tab:
        reached = []
        for _ in range(40):
            tab.keyboard.press("Tab")
            here = tab.evaluate(
                "(e => e.id || e.dataset.copies || e.dataset.sorts || e.className)"
                "(document.activeElement)"
            )
            reached.append(here)
            assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            if here == "pick-device":
                tab.keyboard.type("l4", delay=20)
                shows(tab, "model", "on l4")
            if here == "length-exact":
                tab.keyboard.press("Control+a")
                tab.keyboard.type("3001")
                tab.keyboard.press("Enter")
                shows(tab, "ask", "max_model_len=3001")
            if here == "cards":
                tab.keyboard.press("Enter")
                head = tab.locator("th[data-column='cards']")
                assert head.get_attribute("aria-sort") == "descending"
                break
        assert {"pick-model", "pick-file", "users", "ask", "serve", "link"} <= set(reached)


def test_any_model_and_device_is_chosen(browser, url) -> None:
    with opened(browser, url) as tab:
        tab.select_option("#pick-device", "l4")
        shows(tab, "model", "on l4")
        tab.select_option("#pick-model", "qwen3_0_6b")
        shows(tab, "model", "Qwen3-0.6B")
        shows(tab, "ask", "model=qwen3_0_6b device=l4")
        tab.select_option("#pick-model", "deepseek_v3")
        shows(tab, "verdict", "gpu_memory_utilization")


def test_files_are_chosen_and_dropped(browser, url, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "some.gguf").write_bytes(gguf())
    (tmp_path / "vllm.log").write_bytes(SAMPLE.read_bytes())
    with opened(browser, url) as tab:
        tab.set_input_files("#pick-file", str(tmp_path / "config.json"))
        shows(tab, "verdict", "4,096 tokens")
        tab.set_input_files("#pick-file", str(tmp_path / "some.gguf"))
        shows(tab, "ask", "some.gguf")
        drop(tab, "vllm.log", SAMPLE.read_bytes())
        shows(tab, "told", "vLLM")
        drop(tab, "other.json", json.dumps({**CONFIG, "max_position_embeddings": 2048}).encode())
        shows(tab, "verdict", "2,048 tokens")
        drop(tab, "other.gguf", gguf())
        shows(tab, "ask", "other.gguf")


def drop(tab: Any, name: str, data: bytes) -> None:
    """As a hand does it, on the page."""
    tab.evaluate(
        """([name, bytes]) => {
            const files = new DataTransfer();
            files.items.add(new File([new Uint8Array(bytes)], name));
            const dropped = { dataTransfer: files, bubbles: true };
            document.dispatchEvent(new DragEvent("drop", dropped));
        }""",
        [name, list(data)],
    )
