import numpy as np
import pytest
from identiformer.train.errors import UserError
from identiformer.train.report.plots import DPI, PANEL, draw_attention
from PIL import Image


def _maps(n):
    generator = np.random.default_rng(0)
    raw = generator.dirichlet(np.ones(n), n)
    return {"raw": raw, "effective": raw - 0.6 / n, "maximum entropy": raw}


@pytest.mark.parametrize("n", [1, 10, 64])
def test_a_picture_grows_with_the_text(tmp_path, n):
    draw_attention(str(tmp_path / "map.png"), [f"word{i}" for i in range(n)], _maps(n), "title")
    width, height = Image.open(tmp_path / "map.png").size
    side = max(PANEL[0], 0.17 * n)
    assert width == pytest.approx(DPI * (3 * (side + 0.3) + 2), abs=1)
    assert height == pytest.approx(DPI * (side + 2), abs=1)


def test_a_long_text_does_not_make_a_picture_without_bounds(tmp_path):
    draw_attention(str(tmp_path / "map.png"), ["w"] * 300, _maps(300), "title")
    assert Image.open(tmp_path / "map.png").size[0] < 100 * 100


def test_the_same_weight_has_the_same_colour_in_every_map_and_what_is_negative_is_blue(tmp_path):
    maps = {"a": np.full((1, 1), 0.2), "b": np.full((1, 1), -0.2), "c": np.full((1, 1), 0.2)}
    draw_attention(str(tmp_path / "map.png"), ["w"], maps, "title")
    pixels = np.asarray(Image.open(tmp_path / "map.png").convert("RGB")).astype(int)
    middle = pixels[pixels.shape[0] // 2]
    red, blue = (middle[:, 0] > middle[:, 2] + 50), (middle[:, 2] > middle[:, 0] + 50)
    edges = np.flatnonzero(np.diff((red | blue).astype(int)))
    assert len(edges) >= 6  # three maps
    colours = [tuple(middle[(edges[place] + edges[place + 1]) // 2]) for place in (0, 2, 4)]
    assert colours[0] == colours[2] != colours[1]
    assert colours[1][2] > colours[1][0]


def test_tokens_that_look_like_formulas_are_written_as_they_are(tmp_path):
    tokens = ["$", "$\\frac{$", "[b]", "_", "^"]
    draw_attention(str(tmp_path / "map.png"), tokens, _maps(5), "$x$ and $\\bad{")
    assert (tmp_path / "map.png").stat().st_size > 0


def test_a_place_that_cannot_be_written_is_a_users_mistake(tmp_path):
    with pytest.raises(UserError, match=r"nowhere/map\.png cannot be written: No such file"):
        draw_attention(str(tmp_path / "nowhere" / "map.png"), ["w"], _maps(1), "title")
