"""The page in a browser."""

import json
import shutil
import time

import pytest
from identiformer.train import analyze, make_report
from identiformer.train.report.html import STEP
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs Debian's chromium and chromium-driver")

CODE = "window.hacked=true"
WORDS = [
    f"<img/src=x/onerror={CODE}>",
    f"</script><script>{CODE}</script>",
    "<!--",
    "&lt;b&gt;",
    f"\"'`${{{CODE}}}",
    "🎬👩‍👩‍👧",
    "שלום",
    "مرحبا",
    "fine",
    "film",
    "\u2028",
]
TEXTS = [" ".join(WORDS[:6]), "שלום مرحبا fine film " * 3, "fine film"]
LABELS = [f"<svg/onload={CODE}>", "‏טוב \"'&😀"]
CONTROLS = ("search", "text", "layer", "head", "token", "order", "hide", "copy")


def _save_model(folder, num_layers, num_heads):
    """Save a model with heads of 3 values, whose vocabulary and labels are hostile."""
    import torch
    from asserting import randomise
    from identiformer.models import IdentiformerConfig, IdentiformerForSequenceClassification
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    sizes = {
        "d_model": 6,
        "num_heads": num_heads,
        "num_layers": num_layers,
        "d_key": 3,
        "d_value": 3,
        "max_length": 512,
    }
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {name: n for n, name in enumerate(LABELS)}}
    torch.manual_seed(0)
    config = IdentiformerConfig(vocab_size=len(vocabulary), pad_token_id=0, **sizes, **names)
    randomise(IdentiformerForSequenceClassification(config), std=0.5).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **special).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of two layers and two heads whose name is hostile as well."""
    return _save_model(tmp_path_factory.mktemp("models") / "<b>&'model", num_layers=2, num_heads=2)


@pytest.fixture(scope="module")
def explored(model, tmp_path_factory):
    """The page of the texts, with the exact intervals of a row, and their analysis."""
    folder = tmp_path_factory.mktemp("report")
    make_report(model, TEXTS, intervals=[(1, 0, 3)]).save(folder / "report.html")
    analyze(model, TEXTS, json=str(folder / "all.json"))
    analyze(model, TEXTS, row=2, layer=1, head=0, token=3, json=str(folder / "row.json"))
    found = [json.loads((folder / name).read_text(encoding="utf-8"))["texts"] for name in ("all.json", "row.json")]
    return folder / "report.html", *found


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_window_size(1280, 900)
    yield driver
    driver.quit()


@pytest.fixture(autouse=True)
def quiet_page(browser):
    """Nothing that a test does may execute what was typed, ask anybody for anything, or end in an error."""
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    yield
    assert browser.execute_script("return window.hacked") is None
    assert browser.get_log("browser") == []
    messages = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("file:", "data:", "about:"))] == []


def _open(browser, path, view=""):
    browser.get("about:blank")  # so that the page is loaded anew, and not only its hash
    browser.get(f"{path.as_uri()}{view}")
    assert browser.find_elements(By.ID, "title")[0].text


def _wait(browser, text, layer, head, token):
    shown = f"0,{text},{layer},{head},{token}"
    WebDriverWait(browser, 60).until(lambda b: b.execute_script("return document.body.dataset.shown") == shown)


def _choose(browser, **values):
    for name, value in values.items():
        Select(browser.find_element(By.ID, name)).select_by_value(str(value))
        time.sleep(0.1)


def _bars(browser):
    """For each shown place the numbers, the bars' widths in per cent, and the ranges."""
    return browser.execute_script("""
        return [...document.querySelectorAll("#bars tbody tr")].map((line) => ({
          place: +line.dataset.place, token: line.querySelector("th").textContent,
          numbers: [...line.querySelectorAll(".bar span")].map((cell) => cell.textContent),
          widths: [...line.querySelectorAll("rect")].map((bar) => parseFloat(bar.getAttribute("width"))),
          kinds: [...line.querySelectorAll("rect")].map((bar) => bar.getAttribute("class")),
          ranges: [...line.querySelectorAll(".range")].map((cell) => cell.textContent)}))""")


@pytest.mark.parametrize("place", [(0, 0, 0, 0), (0, 1, 1, 5), (1, 0, 1, 2), (1, 1, 0, 12)])
def test_choosing_text_layer_head_and_token_shows_the_numbers_of_the_json(browser, explored, place):
    path, texts, _ = explored
    text, layer, head, token = place
    _open(browser, path)
    _choose(browser, text=text, layer=layer, head=head, token=token)
    _wait(browser, *place)
    (expected,) = [line for line in texts[text]["heads"] if (line["layer"], line["head"]) == (layer, head)]
    bars = _bars(browser)
    assert [bar["token"] for bar in bars] == texts[text]["tokens"]
    names = ("raw", "effective", "max_entropy")
    scale = max(bar["widths"][0] for bar in bars) / max(abs(float(bar["numbers"][0])) for bar in bars)
    for key, bar in enumerate(bars):
        weights = [expected[name][token][key] for name in names]
        assert [float(number) for number in bar["numbers"]] == pytest.approx(weights, abs=STEP / 2 * 1.001, rel=0)
        sizes = [abs(float(number)) * scale for number in bar["numbers"]]
        assert bar["widths"] == pytest.approx(sizes, abs=2e-3, rel=0)
        assert bar["kinds"][1] == ("negative" if float(bar["numbers"][1]) < 0 else "positive")
        ends = [expected[name][token][key] for name in ("slack_lower", "slack_upper")]
        assert [float(end) for end in bar["ranges"][0].split(" to ")] == pytest.approx(ends, abs=STEP / 2 * 1.001)


def test_exact_intervals_are_shown_in_the_row_that_was_asked_for_only(browser, explored):
    path, _, (text,) = explored
    _open(browser, path, "#text=1&layer=1&head=0&token=3")
    _wait(browser, 1, 1, 0, 3)
    interval = next(head["interval"] for head in text["heads"] if (head["layer"], head["head"]) == (1, 0))
    for bar, lower, upper in zip(_bars(browser), interval["lower"], interval["upper"], strict=True):
        found = [float(end) for end in bar["ranges"][1].split(" to ")]
        assert found == pytest.approx([lower, upper], abs=STEP / 2 * 1.001)
    _choose(browser, token=4)
    _wait(browser, 1, 1, 0, 4)
    assert {len(bar["ranges"]) for bar in _bars(browser)} == {1}


def test_what_people_typed_is_shown_as_text(browser, explored, model):
    path, texts, _ = explored
    for text, (written, found) in enumerate(zip(TEXTS, texts, strict=True)):
        _open(browser, path, f"#text={text}&layer=0&head=0&token=1")
        _wait(browser, text, 0, 0, 1)
        shown = browser.execute_script("return document.getElementById('source').textContent")
        assert shown == written
        strip = browser.execute_script("return [...document.querySelectorAll('#strip button')].map(b => b.textContent)")
        assert strip == found["tokens"]
        predicted = browser.execute_script("return document.getElementById('prediction').textContent")
        assert all(label in predicted for label in LABELS)
    assert "<b>&'model" in browser.title
    _open(browser, path, "#view=overview")
    assert LABELS[0] in browser.find_element(By.ID, "overview").text
    assert browser.find_elements(By.CSS_SELECTOR, "main img, main b, main script") == []


def test_a_text_of_512_tokens_can_be_explored(browser, tmp_path):
    model = _save_model(tmp_path / "model", num_layers=1, num_heads=1)
    make_report(model, [" ".join(WORDS[k % 9] for k in range(600))]).save(tmp_path / "long.html")
    _open(browser, tmp_path / "long.html", "#token=511")
    _wait(browser, 0, 0, 0, 511)
    assert len(_bars(browser)) == 512
    assert browser.execute_script("return document.querySelector('#maps canvas').width") == 512
    _choose(browser, order="effective")
    sizes = [abs(float(bar["numbers"][1])) for bar in _bars(browser)]
    assert sizes == sorted(sizes, reverse=True)


def test_a_link_restores_the_view_and_a_wrong_one_does_no_harm(browser, explored):
    _open(browser, explored[0])
    _choose(browser, text=1, layer=1, head=1, token=2, order="raw", theme="dark")
    browser.find_element(By.ID, "hide").click()
    _wait(browser, 1, 1, 1, 2)
    before, link = _bars(browser), browser.current_url
    _open(browser, explored[0], link[link.index("#") :])
    _wait(browser, 1, 1, 1, 2)
    assert _bars(browser) == before
    assert "[CLS]" not in [bar["token"] for bar in before]
    assert browser.execute_script("return document.documentElement.dataset.theme") == "dark"
    _open(browser, explored[0], f"#view=x&text=99&layer=-1&head=1e9&token=NaN&order=constructor&theme=<b>{CODE}")
    _wait(browser, 0, 0, 0, 0)


def test_search_finds_texts(browser, explored):
    _open(browser, explored[0])
    _wait(browser, 0, 0, 0, 0)
    browser.find_element(By.ID, "search").send_keys("FILM")
    assert browser.find_element(By.ID, "found").text == "2 of 3 texts hold “FILM”."
    listed = Select(browser.find_element(By.ID, "text")).options
    assert [option.get_attribute("value") for option in listed] == ["0", "1", "2"]  # the chosen one stays
    browser.find_element(By.ID, "search").send_keys("x")
    assert len(Select(browser.find_element(By.ID, "text")).options) == 1


def test_everything_can_be_done_by_keyboard_and_has_a_name(browser, explored):
    _open(browser, explored[0])
    _wait(browser, 0, 0, 0, 0)
    reached = []
    for _ in range(16):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        active = browser.switch_to.active_element
        reached.append(active.get_attribute("id") or active.text)
        assert active.accessible_name or active.tag_name in ("body", "summary"), (reached, active.tag_name)
    assert set(CONTROLS) <= set(reached)
    browser.find_element(By.ID, "head").send_keys(Keys.ARROW_DOWN)
    _wait(browser, 0, 0, 1, 0)
    browser.find_element(By.CSS_SELECTOR, "#strip button[tabindex='0']").send_keys(Keys.ARROW_RIGHT)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    _wait(browser, 0, 0, 1, 1)
    assert browser.switch_to.active_element.get_attribute("data-place") == "1"  # the focus stays
    summary = browser.find_element(By.ID, "summary")
    assert summary.get_attribute("aria-live") == "polite"
    assert summary.text.startswith(f"Layer 0, head 1, query “{WORDS[0]}” (1) of 7 tokens.")


def test_colours_follow_the_system_and_the_switch(browser, explored):
    def page_is_dark():
        colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour[4:-1].split(",")) < 150

    _open(browser, explored[0])
    for system in ("dark", "light"):
        features = [{"name": "prefers-color-scheme", "value": system}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        for chosen, expected in (("", system), ("dark", "dark"), ("light", "light"), ("", system)):
            _choose(browser, theme=chosen)
            assert page_is_dark() == (expected == "dark")


def test_every_view_fits_a_narrow_screen(browser, finished, tmp_path):
    make_report(str(finished.folder), ["A fine film."]).save(tmp_path / "run.html")
    size = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for view in ("attention", "overview", "curves", "measures"):
        _open(browser, tmp_path / "run.html", f"#view={view}")
        section = browser.find_element(By.ID, view)
        WebDriverWait(browser, 30).until(lambda _, section=section: section.find_elements(By.CSS_SELECTOR, "td"))
        assert section.is_displayed()
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 400
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_curves_and_measures_are_those_of_the_run(browser, finished, tmp_path):
    make_report(str(finished.folder)).save(tmp_path / "run.html")
    _open(browser, tmp_path / "run.html", "#view=curves")
    titles = [caption.text for caption in browser.find_elements(By.CSS_SELECTOR, "#curves figcaption")]
    assert titles[1].startswith("accuracy")
    assert len(browser.find_elements(By.CSS_SELECTOR, "#curves figure:nth-child(2) circle")) == 2  # epochs
    _open(browser, tmp_path / "run.html", "#view=measures")
    lines = [json.loads(line) for line in (finished.folder / "identifiability.jsonl").read_text().splitlines()]
    _choose(browser, **{"measures-name": "identifiability/nullity"})
    expected = [f"{line['identifiability/nullity']:g}" for line in lines if line["epoch"] == 1]
    assert [cell.text for cell in browser.find_elements(By.CSS_SELECTOR, "#measures td")] == expected


def test_a_notebooks_frame_shows_the_same_page(browser, explored, model, tmp_path):
    page = make_report(model, TEXTS[:1])
    (tmp_path / "notebook.html").write_text(f"<!DOCTYPE html><p>cell</p>{page._repr_html_()}", encoding="utf-8")
    browser.get((tmp_path / "notebook.html").as_uri())
    browser.switch_to.frame(0)
    _choose(browser, head=1)
    _wait(browser, 0, 0, 1, 0)
    assert len(_bars(browser)) == 7
    browser.switch_to.default_content()
