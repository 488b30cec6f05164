"""The built page in Chromium: one browser, and one page for most of it."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

from helpers import EXAMPLES, run_command
from steerers.matching.strategies import make_strategy
from steerers.models.zoo import build
from web.browser import SMALL, Browser, served

pytestmark = pytest.mark.web
FIXTURE = EXAMPLES.parent / "web" / "test" / "fixture.json"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as url:
        yield url


@pytest.fixture(scope="module")
def browser(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The page with the example pair, matched."""
    browser = Browser(tmp_path_factory.mktemp("downloads"))
    try:
        browser.open(f"{address}#{SMALL}")
        yield browser
    finally:
        browser.close()


@pytest.fixture
def example(browser: Browser) -> Browser:
    """The page as it was on arrival, whatever was done to it before."""
    standard = {
        "strategy": "max-similarity", "order": 16, "inverseTemperature": 20, "threshold": 0.05, "turn": 0,
        "keypoints": 500, "again": False,
    }  # fmt: skip
    names = browser.ask("(page) => page.session.photographs.map((one) => one.name)")
    if names != ["maupertuis_0.jpg", "maupertuis_1.jpg"]:
        browser.change({"example": 0})
    browser.change(standard)
    return browser


def apart(angle: float, other: float) -> float:
    """Degrees between two angles."""
    return abs((angle - other + 180) % 360 - 180)


def photograph(name: str, side: int = 400) -> PIL.Image.Image:
    picture = PIL.Image.open(EXAMPLES / name).convert("RGB")
    picture.thumbnail((side, side))
    return picture


# Arriving -------------------------------------------------------------------------------------------------------------


def test_the_example_pair_is_matched_on_arrival(example: Browser) -> None:
    found = example.found()
    assert found["matches"] > 150
    assert found["inliers"] > 60
    assert abs(found["angle"]) < 6  # both are upright
    assert example.text("matches") == str(found["matches"])
    assert example.text("found").endswith("°")
    assert example.driver.find_element("id", "waiting").get_attribute("hidden")
    assert example.ask("() => crossOriginIsolated")
    assert example.ask("({session}) => session.machine.threads") == min(
        example.ask("() => navigator.hardwareConcurrency"), 8
    )


def test_there_is_no_webgpu_here_and_nothing_is_missed(browser: Browser) -> None:
    assert not browser.ask("async () => Boolean(navigator.gpu && await navigator.gpu.requestAdapter())")
    assert browser.ask("({session}) => session.machine.backend") == "wasm"
    assert "of your processor (WebAssembly)" in browser.text("machine")


def test_nothing_is_loaded_from_elsewhere(browser: Browser) -> None:
    """Nor could it: the page forbids itself to ask for what is not its own."""
    assert browser.asked_elsewhere() == []
    refused = browser.ask("() => fetch('http://example.org/').then(() => 'answered', (error) => String(error))")
    assert "Failed to fetch" in refused
    assert browser.asked_elsewhere() == []
    assert all("Content Security Policy" in error for error in browser.errors())


# Turning --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turn", [37, 90, -120, 180])
def test_the_angle_follows_the_turn(example: Browser, turn: int) -> None:
    before = example.found()
    after = example.change({"turn": turn})
    assert apart(after["angle"], before["angle"] + turn) < 2
    assert after["inliers"] > 0.9 * before["inliers"]
    assert after["curve"]


def test_turning_asks_nothing_of_the_network(example: Browser) -> None:
    asked = """(page) => {
      const own = page.session.network;
      page.asked = [];
      page.session.network = new Proxy(own, { get: (_, name) => (page.asked.push(name), own[name]) });
    }"""
    example.ask(asked)
    for turn in (10, 20, 30):
        example.change({"turn": turn})
    assert example.ask("(page) => page.asked") == []


def test_keys_turn_the_dial(example: Browser) -> None:
    keys = pytest.importorskip("selenium.webdriver").Keys
    dial = example.driver.find_element("id", "dial")
    dial.send_keys(keys.PAGE_UP, keys.PAGE_UP, keys.ARROW_LEFT, keys.ARROW_LEFT, keys.ARROW_RIGHT)
    example.wait_for(lambda: example.found()["turn"] == 31)
    assert dial.get_attribute("aria-valuenow") == "31"
    assert (dial.get_attribute("role"), dial.get_attribute("aria-label")) == ("slider", "Turn the second photograph")
    dial.send_keys(keys.HOME)
    example.wait_for(lambda: example.found()["turn"] == 0)


def test_a_pointer_turns_the_ring_and_the_photograph(example: Browser) -> None:
    chains = pytest.importorskip("selenium.webdriver").ActionChains
    canvas = example.driver.find_element("id", "canvas")
    radius, x, y = example.ask(
        """(page) => {
          const { places, radius } = page.stage.layout, box = page.stage.canvas.getBoundingClientRect();
          return [radius, places[1].x - box.width / 2, places[1].y - box.height / 2];
        }"""
    )
    for reach in (radius, 0.5 * radius):  # the ring, the photograph
        example.change({"turn": 0})
        chain = chains(example.driver).move_to_element_with_offset(canvas, round(x + reach), round(y)).click_and_hold()
        for angle in (0.2, 0.4, math.radians(30)):
            place = round(x + reach * math.cos(angle)), round(y - reach * math.sin(angle))
            chain = chain.move_to_element_with_offset(canvas, *place)
        chain.release().perform()
        example.wait_for(lambda: apart(example.found()["turn"], 30) < 2)


def test_describing_again_finds_the_same(example: Browser) -> None:
    steered = example.change({"turn": 70, "again": True})
    example.wait_for(lambda: example.ask("({session}) => session.again?.turn") == 70)
    again = example.ask("({session: {again}}) => [again.angle * 180 / Math.PI, again.scores.length, again.msNetwork]")
    assert apart(again[0], steered["angle"]) < 2
    assert again[1] > 0.6 * steered["matches"]
    example.wait_for(lambda: example.text("matches-again") == str(again[1]))
    assert example.text("time-again").endswith((" s", " ms"))


# Matching as the package does -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "order"),
    [("max-similarity", 8), ("max-similarity", None), ("max-matches", 16), ("subset", 16), ("dual-softmax", 16)],
)
def test_matches_are_those_of_the_package(example: Browser, strategy: str, order: int | None) -> None:
    """What the page makes of its own descriptions, at a turn, is what Python makes of them."""
    turn = 25
    example.change({"strategy": strategy, "order": order, "turn": turn})
    steerer = build("compact").steerer
    assert steerer is not None
    given = {} if strategy == "dual-softmax" else {"order": order}
    made = make_strategy(strategy, steerer, inverse_temperature=20.0, threshold=0.05, **given)
    first, second = (
        torch.from_numpy(example.floats(f"page.session.photographs[{side}].descriptions").copy()).view(-1, 256)[:500]
        for side in (0, 1)
    )
    expected = made.match(first, steerer.steer(second, math.radians(turn)))
    indices = np.stack([example.floats(f"page.session.match.{name}") for name in ("first", "second")], axis=1)
    scores = dict(
        zip(map(tuple, indices.astype(int).tolist()), example.floats("page.session.match.scores"), strict=True)
    )
    told = dict(zip(map(tuple, expected.indices.tolist()), expected.scores.tolist(), strict=True))
    assert scores.keys() == told.keys()
    assert len(told) > 5
    np.testing.assert_allclose([scores[pair] for pair in told], list(told.values()), atol=1e-4)
    found = example.found()["angle"]
    if expected.angle is None:
        assert found is None
    else:
        assert apart(found, math.degrees(expected.angle)) < 0.01


def test_the_network_is_pytorchs(browser: Browser) -> None:
    given = json.loads(FIXTURE.read_text(encoding="utf-8"))["network"]
    found = browser.ask(
        """async (page, text, width, height) => {
          const { keypoints, descriptions } = await page.session.describe(
            Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)), width, height);
          return [[...keypoints], [...descriptions]];
        }""",
        given["pixels"], given["width"], given["height"],
    )  # fmt: skip
    keypoints, descriptions = (torch.tensor(values).double() for values in found)
    expected = [
        torch.from_numpy(np.frombuffer(base64.b64decode(given[name]), "<f4").copy()).double()
        for name in ("keypoints", "descriptions")
    ]
    distance, nearest = torch.cdist(expected[0].view(-1, 2), keypoints.view(-1, 2)).min(dim=1)
    assert float(distance.max()) < 0.01
    cosines = torch.cosine_similarity(expected[1].view(-1, 256), descriptions.view(-1, 256)[nearest], dim=1)
    assert float(cosines.min()) > 0.999


def test_the_form_changes_the_match(example: Browser) -> None:
    select = pytest.importorskip("selenium.webdriver.support.select").Select
    example.driver.execute_script("document.querySelector('#settings').open = true")
    strategies = select(example.driver.find_element("id", "strategy"))
    closed = [option.get_attribute("value") for option in strategies.options if not option.is_enabled()]
    assert closed == ["procrustes"]  # not defined for this model
    strategies.select_by_value("dual-softmax")
    example.wait_for(lambda: example.found()["angle"] is None)
    assert not example.driver.find_element("id", "order").is_enabled()
    example.change({"turn": 140})
    example.wait_for(lambda: "no angles are tried" in example.text("verdict"))
    strategies.select_by_value("max-matches")
    example.wait_for(lambda: example.found()["angle"] is not None)
    many = example.found()["matches"]
    example.ask("""() => {
      const range = document.querySelector('#threshold');
      range.value = 0.9;
      range.dispatchEvent(new Event('input'));
    }""")
    example.wait_for(lambda: example.found()["matches"] < 0.8 * many)
    few = example.change({"keypoints": 250})
    assert few["matches"] < many


def test_looking_at_a_keypoint(example: Browser) -> None:
    keys = pytest.importorskip("selenium.webdriver").Keys
    example.driver.find_element("id", "canvas").send_keys(keys.ARROW_RIGHT)  # the best match
    example.wait_for(lambda: "Its like has a similarity of" in example.text("look"))
    at, before = example.ask("({looking}) => [looking.index, looking.look.spectrum]")
    assert example.ask("({session}) => session.match.second[0]") == at
    assert example.ask("({looking}) => looking.look.neighbours[0].index") == example.ask(
        "({session}) => session.match.first[0]"
    )
    example.change({"turn": 40})
    after = example.ask("({looking}) => looking.look.spectrum")
    for one, other in zip(before, after, strict=True):
        assert one["magnitude"] == pytest.approx(other["magnitude"], rel=1e-4, abs=1e-6)
        turned = one["phase"] + math.radians(40) * one["frequency"]
        assert math.remainder(turned - other["phase"], 2 * math.pi) == pytest.approx(0, abs=1e-3)


# Photographs of one's own ---------------------------------------------------------------------------------------------


def test_dropped_photographs(browser: Browser, tmp_path: Path) -> None:
    picture = photograph("coffee.jpg")
    picture.save(tmp_path / "a.png")
    picture.rotate(52, PIL.Image.Resampling.BICUBIC, expand=True, fillcolor=(128, 128, 128)).save(tmp_path / "b.webp")
    browser.drop(tmp_path / "a.png", tmp_path / "b.webp")
    browser.wait_for(lambda: browser.ask("({session}) => session.photographs[1].name") == "b.webp")
    browser.wait_for(lambda: (browser.found() or {"inliers": 0})["inliers"] > 50)
    turn = browser.found()["turn"]
    assert apart(browser.found()["angle"], 52 + turn) < 2
    assert browser.ask("({session}) => session.photographs.map((one) => one.name)") == ["a.png", "b.webp"]
    assert apart(browser.change({"turn": -100})["angle"], 52 - 100) < 2


def test_a_photograph_on_its_side_is_taken_as_stored(browser: Browser, tmp_path: Path) -> None:
    picture = photograph("coffee.jpg")
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # shown a quarter turn clockwise
    picture.save(tmp_path / "side.jpg", exif=exif)
    browser.choose(1, tmp_path / "side.jpg")
    browser.wait_for(lambda: browser.ask("({session}) => session.photographs[1].name") == "side.jpg")
    stored = browser.ask("({session}) => session.photographs[1].stored")
    assert (stored["width"], stored["height"]) == picture.size


def test_a_broken_file_leaves_everything_as_it_was(example: Browser, tmp_path: Path) -> None:
    before = example.found()
    for name, content in (("broken.jpg", b"\xff\xd8\xff\xe1no picture at all"), ("empty.png", b"")):
        (tmp_path / name).write_bytes(content)
        example.choose(0, tmp_path / name)
        example.wait_for(lambda name=name: name in example.text("message"))  # type: ignore[misc]
    assert "is empty" in example.text("message")
    assert example.ask("({session}) => session.photographs[0].name") == "maupertuis_0.jpg"
    assert example.change({"turn": 5})["matches"] == pytest.approx(before["matches"], rel=0.1)


def test_forty_megapixels(browser: Browser, tmp_path: Path) -> None:
    photograph("coffee.jpg").resize((7300, 5500), PIL.Image.Resampling.BILINEAR).save(
        tmp_path / "large.jpg", quality=60
    )
    browser.choose(0, tmp_path / "large.jpg")
    browser.wait_for(lambda: browser.ask("({session}) => session.photographs[0].name") == "large.jpg")
    size, stored = browser.ask("({session}) => [session.photographs[0].size, session.photographs[0].stored]")
    assert (stored["width"], stored["height"]) == (7300, 5500)
    assert (size["width"], size["height"]) == (320, 241)


def test_photographs_with_nothing_in_common(browser: Browser, tmp_path: Path) -> None:
    photograph("coffee.jpg").save(tmp_path / "coffee.png")
    photograph("hubble.jpg").save(tmp_path / "stars.png")
    browser.drop(tmp_path / "coffee.png", tmp_path / "stars.png")
    browser.wait_for(lambda: browser.ask("({session}) => session.photographs[1].name") == "stars.png")
    browser.wait_for(lambda: "nothing in common" in browser.text("verdict"))


# Taking along ---------------------------------------------------------------------------------------------------------


def test_saved_matches_are_those_of_the_command(example: Browser, tmp_path: Path) -> None:
    found = example.change({"turn": 60})
    example.click("save-matches")
    saved: dict[str, Any] = json.loads(example.downloaded("matches.json"))
    photograph("coffee.jpg", 150).save(tmp_path / "small.png")
    run_command("match", tmp_path / "small.png", tmp_path / "small.png", "--json", tmp_path / "m.json")
    assert list(saved) == [*json.loads((tmp_path / "m.json").read_text()), "turned_deg"]
    assert (saved["num_matches"], saved["num_inliers"]) == (found["matches"], found["inliers"])
    assert saved["turned_deg"] == 60
    assert abs(saved["angle_deg"]) < 6  # between the files, as they are stored
    points0, points1 = np.array(saved["keypoints0"]), np.array(saved["keypoints1"])
    assert points0.shape == points1.shape == (found["matches"], 2)
    assert 320 < points0[:, 0].max() <= 1024  # pixels of the file, which was shrunk
    mapped = np.c_[points0, np.ones(len(points0))] @ np.array(saved["homography"]).T
    off = np.linalg.norm(mapped[:, :2] / mapped[:, 2:] - points1, axis=1)
    assert off[np.array(saved["inliers"])].max() < 3 * 1024 / 320 + 0.1


def test_the_saved_picture(example: Browser) -> None:
    example.click("save-picture")
    picture = PIL.Image.open(io.BytesIO(example.downloaded("matches.png")))
    assert min(picture.size) > 200
    assert picture.convert("RGBA").getextrema()[3] == (255, 255)  # not transparent
    assert len(np.unique(np.asarray(picture.convert("L").resize((64, 64))))) > 50


def test_a_link_restores_the_settings(example: Browser, address: str) -> None:
    example.change({"strategy": "max-matches", "order": 8, "turn": 45, "threshold": 0.2})
    link = example.ask("() => location.href")
    example.driver.switch_to.new_window("tab")
    try:
        example.open(link)
        found = example.found()
        assert (found["strategy"], found["turn"]) == ("max-matches", 45)
        assert example.ask("({settings}) => [settings.order, settings.threshold, settings.side]") == [8, 0.2, 320]
    finally:
        example.driver.close()
        example.driver.switch_to.window(example.driver.window_handles[0])


# Without this and that ------------------------------------------------------------------------------------------------


def test_without_shared_memory(browser: Browser) -> None:
    """As on a host that does not send the headers: one thread, and the same result."""
    with served(isolated=False) as url:
        browser.driver.switch_to.new_window("tab")
        try:
            browser.open(f"{url}#{SMALL}")
            assert not browser.ask("() => crossOriginIsolated")
            assert not browser.ask("() => typeof SharedArrayBuffer !== 'undefined'")
            assert browser.ask("({session}) => session.machine.threads") == 1
            assert browser.found()["inliers"] > 60
        finally:
            browser.driver.close()
            browser.driver.switch_to.window(browser.driver.window_handles[0])


def test_what_a_screen_reader_finds(browser: Browser) -> None:
    unnamed = browser.ask("""() => [...document.querySelectorAll('button, input, select, canvas, svg[tabindex]')]
      .filter((one) => !(one.getAttribute('aria-label') || one.textContent.trim() || one.labels?.length))
      .map((one) => one.id)""")
    assert unnamed == []
    assert browser.driver.find_element("id", "summary").get_attribute("aria-live") == "polite"
