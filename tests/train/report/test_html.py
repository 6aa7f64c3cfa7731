import base64
import html
import json
import re
import zlib

import numpy as np
import pytest
import torch
from identiformer.train.errors import UserError
from identiformer.train.metrics.head_maps import HeadMaps
from identiformer.train.report.html import MAPS, STEP, Report, embedded_json, pack, page

HOSTILE = ["</script><script>alert(1)</script>", "<!--", "a & b", "\u2028\u2029", "\ud83d 😀", "'\"`${x}"]


def _unpack(block):
    """What the page does, number by number."""
    data = zlib.decompress(base64.b64decode(block))
    size = len(data) // 2
    zigzag = [low + 256 * high for low, high in zip(data[:size], data[size:], strict=True)]
    return np.array([-(number + 1) // 2 if number % 2 else number // 2 for number in zigzag])


def _maps(n, **given):
    generator = torch.Generator().manual_seed(0)
    made = {name: torch.rand(n, n, generator=generator, dtype=torch.float64) for name in MAPS}
    made["effective"] = made["effective"] * 2 - 1
    rest = {"effective_preserve_sum": made["raw"], "max_entropy_converged": torch.ones(n), "intervals": {}}
    return HeadMaps(**(made | rest | {"key_ambiguity_by_row": torch.zeros(n)} | given))


@pytest.mark.parametrize("n", [1, 7, 40])
def test_maps_come_back_to_half_a_step(n):
    maps = _maps(n)
    found = _unpack(pack(maps)).reshape(len(MAPS), n, n) * STEP
    for name, matrix in zip(MAPS, found, strict=True):
        np.testing.assert_allclose(matrix, getattr(maps, name), atol=STEP / 2 * (1 + 1e-9), rtol=0)


def test_the_largest_and_the_least_weight_come_back():
    ends = torch.tensor([[1.0, 0.0], [-1.0, -STEP]], dtype=torch.float64)
    found = _unpack(pack(_maps(2, effective=ends))).reshape(len(MAPS), 4)
    assert found[MAPS.index("effective")].tolist() == [10000, 0, -10000, -1]


def test_embedded_json_holds_everything_and_ends_no_script():
    text = embedded_json(HOSTILE)
    assert json.loads(text) == HOSTILE
    assert text.isascii()
    assert not set("<>&\u2028\u2029") & set(text)


def test_the_policy_names_the_style_and_the_script_that_are_there():
    found = page("x", {}, {}).html
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', found)[1]
    assert "default-src 'none'" in policy
    assert policy.count("sha256-") == 2
    assert "unsafe" not in policy
    assert not re.search(r"""(src|href)=["'](?!data:)""", found)


def test_a_title_is_escaped():
    assert "<title>&lt;/title&gt;&lt;b&gt; $x</title>" in page("</title><b> $x", {}, {}).html


def test_a_notebook_shows_the_page_in_a_frame():
    report = page("x", {"text": HOSTILE}, {})
    (source,) = re.findall(r'srcdoc="([^"]*)"', report._repr_html_())
    assert html.unescape(source) == report.html


def test_a_page_that_cannot_be_written_is_a_users_mistake(tmp_path):
    with pytest.raises(UserError, match=r"nowhere/x.html cannot be written: No such file or directory\."):
        Report("").save(tmp_path / "nowhere" / "x.html")
