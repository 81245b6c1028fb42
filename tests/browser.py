"""Debian's chromium, driven by Playwright: one start for all tests that look at pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def program() -> str | None:
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


@contextmanager
def started() -> Iterator[Any]:
    """A browser; skips where there is none, or nothing to drive it."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason='playwright is not installed: pip install -e ".[browser]"'
    )
    found = program()
    if found is None:
        pytest.skip("chromium is not installed: apt-get install -y chromium")
    # A sandbox of its own needs rights that root in a container does not have.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=arguments)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, url: str, *, width: int = 1440, scheme: str = "light") -> Iterator[Any]:
    """A tab; it fails the test if the page complained on the console, or raised."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        permissions=["clipboard-read", "clipboard-write"],
    )
    tab = context.new_page()
    said: list[str] = []
    tab.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    tab.on("pageerror", lambda error: said.append(f"raised: {error}"))
    tab.goto(url)
    tab.locator("#verdict:not(:empty)").wait_for()
    yield tab
    context.close()
    assert said == []
