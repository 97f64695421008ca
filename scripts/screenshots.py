"""Pictures of the page for the documentation, in docs/images: needs Chromium and playwright.

python -m scripts.screenshots
"""

import json
import os
import shutil
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, ViewportSize, expect, sync_playwright

from benchmarks.end_to_end.soak import server

IMAGES = Path(__file__).parents[1] / "docs" / "images"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VIEWPORT: ViewportSize = {"width": 1080, "height": 680}
STORY = "Write a short story about a lighthouse keeper who finds a message in a bottle."
SCHEMA = {
    "type": "object",
    "properties": {
        "keeper": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 18, "maximum": 90},
        "found": {"enum": ["bottle", "boat", "key"]},
    },
    "required": ["keeper", "age", "found"],
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
MINUTES = 3 * 60_000.0  # milliseconds, of a busy CPU


def compare(page: Page) -> None:
    """One prompt, a sparse and a dense cache."""
    page.locator("#temperature").fill("0")
    page.locator("#max_tokens").fill("110")
    page.locator("#tab-compare").click()
    page.locator("#compare-prompt").fill(STORY)
    page.locator("#compare-send").click()
    expect(page.locator("#verdict")).to_contain_text("Bytes of KV per token")
    picture(page, "server", "0")


def structure(page: Page) -> None:
    """Answers that are held to schemas, with the probabilities of tokens under them."""
    page.locator("#tab-chat").click()
    page.locator("#settings summary").click()
    page.locator("#structure summary").click()
    page.locator("#logprobs").check()
    ask(page, "Who is the keeper of the lighthouse?", SCHEMA, 1)
    ask(page, "What does the keeper do with it?", {"enum": ["open it", "throw it away"]}, 2)
    page.locator("#schema").fill(shown(SCHEMA))
    page.locator("#tools").fill(shown([TOOL]))
    picture(page, "server-structure", "e.scrollHeight")


def ask(page: Page, text: str, schema: object, count: int) -> None:
    page.locator("#schema").fill(shown(schema))
    page.locator("#prompt").fill(text)
    page.locator("#send").click()
    expect(page.locator(".message.assistant .facts")).to_have_count(count)


def shown(value: object) -> str:
    """JSON in few lines."""
    return json.dumps(value).replace('{"type": "object"', '\n{"type": "object"').strip()


def picture(page: Page, name: str, scrolled: str) -> None:
    """Of 64 colours. scrolled: where the column at the side is, in JavaScript."""
    page.evaluate("document.activeElement.blur()")
    page.locator("textarea").evaluate_all("all => all.forEach((e) => { e.scrollTop = 0; })")
    page.locator("aside").evaluate(f"e => {{ e.scrollTop = {scrolled}; }}")
    image = Image.open(BytesIO(page.screenshot()))
    image.convert("RGB").quantize(64).save(IMAGES / f"{name}.png", optimize=True)


def main() -> None:
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)))
    expect.set_options(timeout=MINUTES)
    with (
        server("smollm2", "--kv", "sparse:k=32,v=32", "--compare", "dense") as (url, _, _),
        sync_playwright() as play,
    ):
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport=VIEWPORT, color_scheme="light")
        page.goto(url)
        expect(page.locator("#status")).to_have_text("ok")
        compare(page)
        structure(page)
        browser.close()


if __name__ == "__main__":
    main()
