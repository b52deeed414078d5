"""The chat page in a real browser."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("starlette", reason="needs the extra 'serve': pip install 'masegraph[serve]'")
pytest.importorskip("uvicorn", reason="needs the extra 'serve': pip install 'masegraph[serve]'")

from browsing import LOOKS, PATIENCE, too_wide
from served_models import NAME, offline_text, running

from chop.serve.http_server import page_text


@pytest.fixture
def open_page(browser):
    """Open the page of a server; nothing but the server is asked."""
    contexts, errors, urls = [], [], []

    def open_at(port, look="light"):
        scheme, width = LOOKS[look]
        contexts.append(
            browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 844})
        )
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: urls.append(request.url))
        page.goto(f"http://127.0.0.1:{port}/")
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert errors == []
    assert [url for url in urls if not url.startswith(("http://127.0.0.1:", "data:"))] == []


def say(page, text):
    page.fill("#text", text)
    page.press("#text", "Enter")


def test_the_page_names_nothing_from_elsewhere():
    assert "http://" not in page_text() and "https://" not in page_text()


def test_a_chat_in_the_browser(open_page, monkeypatch):
    with running(key="secret", max_tokens=390) as client:
        page = open_page(client.port)
        say(page, "hello")
        page.wait_for_selector(".error")
        assert "wrong API key" in page.inner_text(".error")
        page.click("summary")
        page.fill("#key", "secret")
        page.press("#key", "Tab")
        page.locator("#model", has_text=NAME).wait_for()
        page.fill("#temperature", "0")
        page.fill("#limit", "12")
        say(page, "hello")
        page.wait_for_selector(".note")
        expected = offline_text("hello", 12, is_chat=True)
        assert page.evaluate("document.querySelector('.assistant').textContent") == expected
        assert "12 tokens" in page.inner_text(".note")

        step = client.engine.step
        monkeypatch.setattr(client.engine, "step", lambda: (time.sleep(0.05), step())[1])
        page.fill("#limit", "300")
        say(page, "more")
        page.wait_for_selector(".assistant.writing")
        length = "document.querySelectorAll('.assistant')[1].textContent.length"
        client.wait_until(lambda: page.evaluate(length) > 3)
        page.click("#stop")
        page.wait_for_selector("text=stopped")
        client.wait_until(lambda: not client.engine.running)
        page.click("#reset")
        assert page.is_visible(".empty") and page.query_selector(".message") is None


@pytest.mark.parametrize("look", LOOKS)
def test_the_page_fits_its_window(open_page, look):
    with running() as client:
        page = open_page(client.port, look)
        page.locator("#model", has_text=NAME).wait_for()
        assert too_wide(page) == 0
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        is_dark = sum(map(int, back[4:-1].split(","))) < 200
        assert is_dark == (look == "dark")
