"""A report as one HTML file that needs no network: runs, curves, measures, and an explorer of attention."""

import base64
import hashlib
import html
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import torch

from ..errors import writing
from ..metrics.head_maps import HeadMaps

STEP = 1e-4  # of the weights that a page holds: they are shown to four decimals
MAPS = ("raw", "effective", "max_entropy", "slack_lower", "slack_upper")
LIMIT = 150_000_000  # bytes of a file; browsers open it in seconds
CSP = "default-src 'none'; img-src data:; style-src {style}; script-src {script}; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Report:
    """A page of its own, as text; a notebook shows it in a frame."""

    html: str

    def save(self, path: str | Path) -> None:
        """Write the page.

        Raises:
            UserError: If the file cannot be written.
        """
        with writing(path):
            Path(path).write_text(self.html, encoding="utf-8")

    def _repr_html_(self) -> str:
        style = "width: 100%; height: 900px; border: 0"
        return f'<iframe srcdoc="{html.escape(self.html)}" title="identiformer report" style="{style}"></iframe>'


def pack(maps: HeadMaps) -> str:
    """The maps that a page shows, in whole `STEP`s: 5 n^2 numbers, zigzag, low bytes before high ones, zlib, base64.

    A number that is unpacked differs from the original by no more than half a step.
    """
    steps = torch.stack([getattr(maps, name) for name in MAPS]).div(STEP).round().to(torch.int32).numpy(force=True)
    zigzag = np.where(steps < 0, -2 * steps - 1, 2 * steps).astype(np.uint16)
    planes = np.stack([zigzag & 255, zigzag >> 8]).astype(np.uint8)
    return base64.b64encode(zlib.compress(planes.tobytes(), 6)).decode("ascii")


def page(title: str, content: Mapping[str, Any], blocks: Mapping[str, str]) -> Report:
    """The page of a content, as `explorer.js` reads it, and of packed maps by their names."""
    style, script, body = (_source(f"explorer.{kind}") for kind in ("css", "js", "html"))
    policy = CSP.format(style=_hash(style), script=_hash(script))
    packed = "\n".join(f'<script type="text/plain" id="{name}">{block}</script>' for name, block in blocks.items())
    parts = {"policy": policy, "title": html.escape(title), "style": style, "script": script}
    return Report(Template(body).substitute(parts, data=embedded_json(content), blocks=packed))


def embedded_json(content: Any) -> str:
    """JSON in ASCII that can stand in a script element: nothing in it ends the element or begins a comment."""
    text = json.dumps(content, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _source(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    """What a content security policy names an inline element by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
