"""The page in a real browser. Screenshots go to build/screenshots."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.models.adapters import save_adapter
from tests.server.live import SPARSE, SlowSteps, serving
from tests.server.scripted import Scripted

playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'gossamer[dev]'")
expect = playwright.expect

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
PHONE = {"width": 360, "height": 740}
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser():
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("there is no Chromium; install it, or name it in CHROMIUM")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """Opens the page of a server; no error may show up in its console, and nothing from afar."""
    contexts, problems = [], []

    def open_page(live, **options):
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 800}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda m: m.type == "error" and problems.append(m.text))
        page.on("request", lambda r: r.url.startswith(live.url) or problems.append(r.url))
        page.goto(live.url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    # The browser notes refusals that the page shows to its user.
    assert [p for p in problems if not re.search("status of 40[01]", p)] == []


def keep(page, name):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")


def ready(page):
    expect(page.locator("#status")).to_have_text("ok")
    page.locator("#temperature").fill("0")
    page.locator("#max_tokens").fill("60")


def test_chat_streams(live, open_page):
    page = open_page(live)
    ready(page)
    with SlowSteps(live.llm) as slow:
        slow.gate.clear()
        page.locator("#prompt").fill("Hello there")
        page.locator("#send").click()
        expect(page.locator(".message.user")).to_contain_text("Hello there")
        expect(page.locator("#stop")).to_be_enabled()
        slow.seconds = 0.02
        slow.gate.set()
        answer = page.locator(".message.assistant")
        expect(answer).to_contain_text(re.compile(r"Answer: .{3}", re.DOTALL))
        early = len(answer.inner_text())
        expect(answer.locator(".facts")).to_contain_text("60 tokens")
        assert len(answer.inner_text()) > early
    expect(answer.locator(".facts")).to_contain_text("of KV per token")
    expect(page.locator("#prompt")).to_be_focused()
    keep(page, "chat")
    page.locator("#prompt").fill("And again")  # the conversation goes on
    page.locator("#send").click()
    expect(page.locator(".message.assistant .facts")).to_have_count(2)


def test_a_schema_and_probabilities(live, open_page):
    page = open_page(live)
    ready(page)
    page.locator("#structure summary").click()
    page.locator("#logprobs").check()
    page.locator("#schema").fill('{"enum": ["yes", "no"]')
    page.locator("#prompt").fill("Well?")
    page.locator("#send").click()
    expect(page.locator("#structure-hint")).to_contain_text("The schema is not JSON")
    expect(page.locator(".message")).to_have_count(0)
    page.locator("#schema").fill('{"enum": ["yes", "no"]}')
    page.locator("#send").click()
    answer = page.locator(".message.assistant")
    expect(answer.locator(".facts")).to_have_count(1)
    tokens = answer.locator(".token")
    assert re.fullmatch('"(yes|no)"', "".join(tokens.all_inner_texts()))
    titles = [token.get_attribute("title") for token in tokens.all()]
    assert all(re.match(r"\d+\.\d% \".*\"\n\n(\d+\.\d% .*\n?){5}$", title) for title in titles)
    page.locator("#schema").fill('{"type": "strin"}')
    page.locator("#prompt").fill("And now?")
    page.locator("#send").click()
    expect(page.locator(".message.error")).to_contain_text("Invalid type: strin at #")
    keep(page, "structure")


def test_tool_calls_are_shown(longer, open_page):
    with serving(longer) as live:
        page = open_page(live)
        ready(page)
        call_a_tool(live, page)
        page.close()


def call_a_tool(live, page):
    page.locator("#max_tokens").fill("200")
    page.locator("#structure summary").click()
    page.locator("#tools").fill('[{"type": "function", "function": {"name": "get_time"}}]')
    page.locator("#prompt").fill("What time is it?")
    with Scripted(
        live.llm, '<tool_call>[{"name": "get_time", "arguments": {"a": "<b>"}}]</tool_call>'
    ):
        page.locator("#send").click()
        call = page.locator(".message.assistant .call")
        expect(call.locator(".name")).to_have_text("get_time")
        expect(call.locator("code")).to_have_text('{"a": "<b>"}')
        expect(page.locator(".message.assistant .facts")).to_have_count(1)
    page.locator("#tools").fill("")
    page.locator("#prompt").fill("Thanks")  # the conversation goes on with the call in it
    page.locator("#send").click()
    expect(page.locator(".message.assistant .facts")).to_have_count(2)
    keep(page, "tools")


def test_stopping_frees_the_engine(live, open_page):
    page = open_page(live)
    ready(page)
    page.locator("#max_tokens").fill("400")
    with SlowSteps(live.llm, 0.02):
        page.locator("#prompt").fill("Go on")
        page.locator("#send").click()
        expect(page.locator(".message.assistant")).to_contain_text(re.compile(r"Answer: .", re.S))
        page.keyboard.press("Escape")
        expect(page.locator(".message .facts")).to_have_text("stopped")
        live.assert_empty()


def test_an_error_is_shown_and_the_chat_goes_on(live, open_page):
    page = open_page(live)
    ready(page)
    page.locator("#prompt").fill("x" * 600)
    page.locator("#send").click()
    expect(page.locator(".message.error")).to_contain_text("must have 1 to 511")
    page.locator("#prompt").fill("shorter")
    page.locator("#send").click()
    expect(page.locator(".message.assistant .facts")).to_have_count(1)


def test_compare(live, open_page):
    page = open_page(live)
    ready(page)
    page.locator("#tab-compare").click()
    page.locator("#compare-prompt").fill("The sea is everything. " * 8)
    page.locator("#compare-send").click()
    expect(page.locator("#verdict")).to_contain_text("Bytes of KV per token")
    columns = page.locator(".column")
    expect(columns).to_have_count(2)
    for index, kv in enumerate(("dense", SPARSE)):
        expect(columns.nth(index).locator("h3")).to_have_text(kv)
        assert columns.nth(index).locator(".text").inner_text().strip()
        expect(columns.nth(index).locator(".facts")).to_contain_text("of a dense cache")
    expect(columns.nth(0).locator(".facts")).to_contain_text("100% of a dense cache")
    if columns.nth(0).locator(".text").inner_text() != columns.nth(1).locator(".text").inner_text():
        assert page.locator("mark").count() > 0
    keep(page, "compare")


def test_differences_are_marked(live, open_page):
    page = open_page(live)
    found = page.evaluate(
        """async () => {
            const { diff } = await import("/static/diff.js");
            return [diff("a b c d", "a x c d e"), diff("", "new"), diff("same", "same ")];
        }"""
    )
    assert found[0] == [
        [["a ", True], ["b ", False], ["c d", True]],
        [["a ", True], ["x ", False], ["c d ", True], ["e", False]],
    ]
    assert found[1][1] == [["new", False]]
    assert found[2] == [[["same", True]], [["same ", True]]]


def test_the_panel_is_live(live, open_page):
    page = open_page(live)
    ready(page)
    cards = page.locator(".engine")
    expect(cards).to_have_count(2)
    running = cards.nth(1).locator("dd[data-name='running, waiting']")
    expect(running).to_have_text("0, 0")
    page.locator("#kv").select_option(SPARSE)
    page.locator("#max_tokens").fill("300")
    with SlowSteps(live.llms[SPARSE], 0.02):
        page.locator("#prompt").fill("w " * 80)
        page.locator("#send").click()
        expect(running).to_have_text("1, 0")
        expect(cards.nth(1).locator("dd[data-name='tokens/s']")).not_to_have_text("0.0")
        now = cards.nth(1).locator("dd[data-name='KV memory now']")
        expect(now).not_to_have_text("0 B")
        expect(cards.nth(1).locator("dd[data-name='compressed pages']")).to_contain_text("/")
        expect(cards.nth(1).locator("dd[data-name='window pages']")).to_contain_text("/")
        keep(page, "panel")
        page.locator("#stop").click()
    expect(running).to_have_text("0, 0")


def test_with_the_keyboard_alone(live, open_page):
    page = open_page(live)
    ready(page)
    page.locator("#prompt").focus()
    page.keyboard.type("Hello")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("there")
    page.keyboard.press("Enter")
    expect(page.locator(".message.user")).to_contain_text("Hello\nthere")
    expect(page.locator(".message.assistant .facts")).to_have_count(1)
    for _ in range(12):  # back to the tabs
        page.keyboard.press("Shift+Tab")
        if page.evaluate("document.activeElement.id") == "tab-chat":
            break
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-compare")).to_be_focused()
    expect(page.locator("#view-compare")).to_be_visible()
    reached = set()
    for _ in range(25):  # everything that does something can be reached
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert {"compare-prompt", "compare-send", "temperature", "seed", "kv", "system"} <= reached
    page.locator("#compare-prompt").focus()
    page.keyboard.type("Hello")
    page.keyboard.press("Enter")
    expect(page.locator("#verdict")).to_contain_text("Bytes of KV per token")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone(live, open_page, scheme):
    page = open_page(live, viewport=PHONE, color_scheme=scheme, has_touch=True)
    expect(page.locator("#status")).to_have_text("ok")
    page.locator("#prompt").fill("Hello there")
    page.locator("#send").click()
    expect(page.locator(".message.assistant")).to_have_count(1)
    page.locator("#stop").or_(page.locator("#send")).first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    for name in ("#send", "#stop", "#reset", "#tab-compare"):
        box = page.locator(name).bounding_box()
        assert box["height"] >= 36
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]
    light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(251, 251, 250)"
    assert light == (scheme == "light")
    keep(page, f"phone-{scheme}")
    page.locator("#reset").click()


def test_the_theme_can_be_chosen(live, open_page):
    page = open_page(live, color_scheme="light")
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"


def test_controls_have_names(live, open_page):
    """For those who hear the page."""
    page = open_page(live)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("input, select, textarea, button")].filter(
            (e) => !(e.labels?.length || e.ariaLabel || e.textContent.trim())).map((e) => e.id)"""
    )
    assert nameless == []


def test_a_conversation_is_exported(live, open_page):
    """With the keyboard: as the API would go on with it, and to read."""
    page = open_page(live, accept_downloads=True)
    ready(page)
    page.locator("#system").fill("Be brief")
    page.locator("#prompt").fill("Hello **there**")
    page.keyboard.press("Enter")
    expect(page.locator(".message.assistant .facts")).to_have_count(1)
    answer = page.locator(".message.assistant span:not(.hidden):not(.facts)").inner_text()
    files = {}
    for name in ("json", "markdown"):
        page.locator("#export summary").focus()
        page.keyboard.press("Enter")
        page.locator(f"#export-{name}").focus()
        with page.expect_download() as download:
            page.keyboard.press("Enter")
        files[download.value.suggested_filename] = Path(download.value.path()).read_text()
        expect(page.locator("#export summary")).to_be_focused()
    request = json.loads(files["conversation.json"])["request"]
    said = {m["role"]: m["content"] for m in request["messages"]}
    assert said["user"] == "Hello **there**"
    assert said["system"] == "Be brief"
    assert said["assistant"].strip() == answer.strip()
    assert (request["model"], request["max_tokens"], request["kv"]) == ("tiny", 60, "dense")
    more = {"messages": [*request["messages"], {"role": "user", "content": "And?"}]}
    assert live.post("/v1/chat/completions", **{**request, **more}).status_code == 200
    text = files["conversation.md"]
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## System",
        "## You",
        "## Answer",
    ]
    assert "Hello **there**" in text


def test_what_is_heard(live, open_page):
    """An answer once and whole; focus is never lost; nothing in a list that is not of it."""
    page = open_page(live)
    ready(page)
    announcer = page.get_by_role("status").and_(page.locator("#announcer"))
    with SlowSteps(live.llm) as slow:
        slow.gate.clear()
        page.locator("#prompt").fill("Hello")
        page.locator("#send").focus()
        page.keyboard.press("Space")
        expect(announcer).to_have_text("Answering")
        expect(page.locator("#stop")).to_be_focused()
        slow.gate.set()
        expect(page.locator(".message.assistant .facts")).to_have_count(1)
    body = page.locator(".message.assistant span:not(.hidden):not(.facts)").text_content()
    assert announcer.text_content() == f"Answer: {body}"
    assert page.locator("#log").get_attribute("aria-live") == "off"
    page.locator("#prompt").fill("x" * 600)
    page.locator("#send").click()
    expect(page.get_by_role("alert")).to_contain_text("must have 1 to 511")
    wrong = page.evaluate(
        """() => [...document.querySelectorAll("dl > *")].filter(
            (e) => !["DT", "DD"].includes(e.tagName)).length"""
    )
    assert wrong == 0
    page.locator("#tab-chat").focus()
    for pressed, tab in (("End", "compare"), ("Home", "chat"), ("ArrowLeft", "compare")):
        page.keyboard.press(pressed)
        expect(page.locator(f"#tab-{tab}")).to_be_focused()


def test_adapters_can_be_chosen(tiny, tmp_path, open_page):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    lora = {"poet": save_adapter(tmp_path / "poet", model)}
    with serving(tiny, lora=lora) as live:
        page = open_page(live)
        ready(page)
        page.locator("#lora").select_option("poet")
        with page.expect_request("**/v1/chat/completions") as sent:
            page.locator("#prompt").fill("Hello")
            page.keyboard.press("Enter")
        assert sent.value.post_data_json["model"] == "poet"
        expect(page.locator(".message.assistant .facts")).to_have_count(1)
        page.close()


def test_a_page_that_needs_a_key(tiny, open_page):
    with serving(tiny, settings={"api_key": "k3y"}) as live:
        page = open_page(live)
        expect(page.locator("#status")).to_have_text("needs the API key")
        page.locator("#key").fill("k3y")
        page.locator("#key").blur()
        expect(page.locator("#status")).to_have_text("ok")
        page.locator("#tab-compare").click()  # with one cache there is nothing to compare
        expect(page.locator("#compare-hint")).to_be_visible()
        expect(page.locator("#compare")).to_be_hidden()
        page.close()


def test_what_a_model_writes_is_text(live, open_page):
    page = open_page(live)
    ready(page)
    page.locator("#prompt").fill("<img src=x onerror=alert(1)><script>alert(2)</script>")
    page.locator("#send").click()
    expect(page.locator(".message.user")).to_contain_text("<script>alert(2)</script>")
    assert page.locator("#log img, #log script").count() == 0
    expect(page.locator(".message.assistant .facts")).to_have_count(1)
