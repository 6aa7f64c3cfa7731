"""From a user's overrides to a whole config, with a user's mistakes in one sentence."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite, nan
from typing import Any

from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from ..models.layers.presets import AttentionSizes, head_size
from .errors import UserError, covers_interruption, first_line, near_match
from .schema import RunSettings, dotted

# Numbers that libraries would refuse late, or by a trace, or take in silence: what they must be, and which may be null.
NUMBERS: dict[str, tuple[Callable[[float], bool], tuple[str, ...]]] = {
    "a number of at least 0": (
        lambda number: number >= 0,
        ("trainer.gradient_clip_val", "optimizer.lr", "optimizer.weight_decay"),
    ),
    "a whole number of at least 0": (
        lambda number: number >= 0 and number == int(number),
        ("trainer.max_epochs", "callbacks.monitor.texts", "model.calibration"),
    ),
    "a whole number from 0 to 4294967295": (lambda number: 0 <= number < 2**32, ("seed",)),
    "a whole number of at least 1": (
        lambda number: number >= 1 and number == int(number),
        ("callbacks.monitor.rows",),
    ),
    "a number above 0": (
        lambda number: number > 0,
        ("trainer.limit_train_batches", "trainer.limit_val_batches", "trainer.limit_test_batches"),
    ),
    "a number from 0 to 1": (
        lambda number: 0 <= number <= 1,
        ("scheduler.warmup", "model.dropout", "model.embedding_dropout", "model.layer_decay"),
    ),
}
NEEDED = ("trainer.max_epochs", "seed", "optimizer.lr")

OmegaConf.register_new_resolver("head_size", head_size, replace=True)


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """The config of `identiformer train` with overrides as Hydra writes them, every reference resolved.

    Raises:
        UserError: If an override names what is not there, or has a value that cannot be.
    """
    with hydra_here() as hydra:
        cfg = hydra.compose_config("train", list(overrides), run_mode=RunMode.RUN)
        preset, kind = cfg.hydra.runtime.choices["layer"], cfg.hydra.runtime.choices["model"]
        typed_keys = {text.lstrip("+~").partition("=")[0] for text in cfg.hydra.overrides.task}
        with open_dict(cfg):
            del cfg["hydra"]
            if kind == "pretrained":  # whose sizes are its own, unless they were typed
                own = {name: None for name in AttentionSizes._fields if f"model.{name}" not in typed_keys}
                cfg.model = OmegaConf.merge(cfg.model, own)
        cfg.preset = preset
        typed: Any = OmegaConf.merge(OmegaConf.structured(RunSettings), cfg)
        for section in (typed.model, typed.scheduler):  # not what people typed: a text may hold ${...}
            OmegaConf.resolve(section)
        if missing := OmegaConf.missing_keys(typed):
            raise UserError(f"{min(missing)} is missing: give {min(missing)}=...")
        _check_numbers(typed)
        _check_paths(typed, typed_keys)
        return typed


@contextmanager
def hydra_here() -> Iterator[Any]:
    """Hydra with our configuration; its errors, and OmegaConf's, become a user's mistakes."""
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("identiformer.conf", version_base="1.3"):
            hydra = GlobalHydra.instance().hydra
            assert hydra is not None
            yield hydra
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        if covers_interruption(error):
            raise KeyboardInterrupt from None
        raise UserError(_explain(error)) from None


def _check_numbers(cfg: DictConfig) -> None:
    for what, (fits, keys) in NUMBERS.items():
        for key in keys:
            value: Any = OmegaConf.select(cfg, key)
            if value is None and key not in NEEDED:
                continue
            number = value if isinstance(value, int | float) and not isinstance(value, bool) else nan
            if not isfinite(number) or not fits(number):
                raise UserError(f"{key} is {'null' if value is None else repr(value)}: give {what}.")


def _check_paths(cfg: DictConfig, typed: set[str]) -> None:
    """Refuse settings that would have a run write elsewhere than into its folder, unless they were typed."""
    for key, value in dotted(OmegaConf.to_container(cfg, resolve=False)):
        writes = key in ("name", "runs") or key.partition(".")[0] in ("callbacks", "logger", "trainer")
        if writes and key not in typed and isinstance(value, str) and _leaves(value):
            raise UserError(
                f"{key} is {value!r}, outside of the run's folder: type it with the command if it is meant."
            )


def _leaves(path: str) -> bool:
    return os.path.isabs(path) or ".." in re.split(r"[/\\]", path)


def override(key: str, value: str) -> str:
    """`key=value` as Hydra reads it, for a value that is to arrive exactly as it is."""
    value = re.sub(r"(\\*)(\$\{)", lambda match: match[1] * 2 + "\\" + match[2], value)  # OmegaConf's escapes
    value = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), value)  # Hydra's
    return f"{key}='{value}'"


def _explain(error: Exception) -> str:
    """One sentence for an error of Hydra's or OmegaConf's, or of a resolver of ours."""
    message = str(error) or first_line(error.__cause__ or error)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = error.missing_cfg_file.rpartition("/")
        options = error.options or []
        return f"There is no {group} {option!r}; choose among {', '.join(options)}.{near_match(option, options)}"
    if found := re.search(r"Could not override '(\S+)'", message):
        return _unknown_key(found[1])
    if found := re.search(r"(?:Ambiguous value for argument|Sweep parameters) '(.*)'", message):
        return f"{found[1]} is several values: add --multirun for a run of each, or quote what is one: key='a,b'."
    if found := re.search(r"Missing mandatory value: (\S+)", message):
        return f"{found[1]} is missing: give {found[1]}=..."
    if isinstance(error, OverrideParseException):
        return f"{error.override} cannot be read: put quotes around its value, as \"key='a value'\"."
    if "is not a ListConfig" in message and isinstance(error, OmegaConfBaseException):
        return f"{error.full_key} takes a list, as {error.full_key}=[a,b]."
    message = message.removeprefix("ValueError raised while resolving interpolation: ")
    key = f"{error.full_key}: " if isinstance(error, OmegaConfBaseException) and error.full_key else ""
    return key + message.strip().splitlines()[0]


def _unknown_key(key: str) -> str:
    with hydra_here() as hydra:
        cfg = hydra.compose_config("train", [], run_mode=RunMode.RUN)
    keys = [*cfg.hydra.runtime.choices, *(name for name, _ in dotted(OmegaConf.to_container(cfg, resolve=False)))]
    if key in keys:
        return f"{key} is no option together with the others that were given: leave it out."
    return f"There is no option {key!r}.{near_match(key, keys)} To add one all the same, write +{key}=..."
