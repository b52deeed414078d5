"""Fixtures of a real browser, shared by the tests of the report and of the site.

Headless Chromium is started once for each worker; a page is opened as a user opens it, from disk.
"""

import shutil

import pytest

PATIENCE = 300_000
"""Milliseconds after which a page that does not answer is taken for broken."""
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
LOOKS = {"light": ("light", 1280), "dark": ("dark", 1280), "phone": ("light", 390)}
"""How pages are looked at: the scheme of colours, and the width in pixels."""


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install 'masegraph[test]'"
    )
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE
        )
        yield started
        started.close()


@pytest.fixture
def visit(browser):
    """Open a file; afterwards, no error was logged and nothing but files was asked for."""
    context = browser.new_context(
        viewport={"width": 1280, "height": 900}, reduced_motion="reduce", color_scheme="light"
    )
    page, errors, requests = context.new_page(), [], []
    page.set_default_timeout(PATIENCE)
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url.partition("#")[0]))

    def open_file(path, fragment="", look="light"):
        scheme, width = LOOKS[look]
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 844 if width == 390 else 900})
        page.goto(f"{path.as_uri()}{fragment}")
        return page

    open_file.requests = requests
    yield open_file
    context.close()
    assert errors == []
    assert [url for url in requests if not url.startswith(("file:", "about:"))] == []


def too_wide(page):
    """By how many pixels the page is wider than its window."""
    script = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    return page.evaluate(script)


def next_frame(page):
    """Let the page draw what it was told."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def until(page, holds):
    """Wait for a claim to hold: the policy of a report forbids the browser to evaluate one."""
    for _ in range(PATIENCE // 50):
        if holds():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it did not come to hold")
