from importlib import resources

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from identiformer.models import IdentiformerConfig
from identiformer.models.layers import PRESETS, build_encoder_layer
from identiformer.train.composing import compose_config, override
from identiformer.train.errors import UserError
from omegaconf import OmegaConf

CONF = resources.files("identiformer.conf")
OPTIONS = [
    (group.name, option.name.removesuffix(".yaml"))
    for group in CONF.iterdir()
    if group.is_dir() and not group.name.startswith("_")
    for option in group.iterdir()
]
NEEDED = {
    ("data", "folder"): ["data.folder=x"],
    ("experiment", "r8"): ["data.folder=x"],
    ("experiment", "r8_pretrained"): ["data.folder=x", "model.name=x"],
    ("model", "pretrained"): ["model.name=x"],
    ("recipe", "pretrained"): ["model=pretrained", "model.name=x"],
}


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_composes_and_takes_effect(group, option):
    cfg = compose_config([f"{group}={option}", *NEEDED.get((group, option), [])])
    text = (CONF / group / f"{option}.yaml").read_text()
    written = OmegaConf.create(text)
    section = cfg if text.startswith("# @package _global_") else cfg.model if group == "layer" else cfg[group]
    for key, value in _plain(OmegaConf.to_container(written, resolve=False)):
        assert OmegaConf.select(section, key) == value


def _plain(config, prefix=""):
    """Dotted keys and values of a config, without defaults lists, a sweep's axes, references and what must be given."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _plain(value, f"{prefix}{key}.")
        elif (
            key != "defaults"
            and not prefix.startswith("hydra.")
            and not (isinstance(value, str) and ("${" in value or value == "???"))
        ):
            yield prefix + key, value


@pytest.mark.parametrize("preset", PRESETS)
def test_a_layer_file_is_the_preset_of_its_name(preset):
    cfg = compose_config([f"layer={preset}"])
    assert cfg.preset == preset
    config = IdentiformerConfig(**cfg.model, vocab_size=10)
    names = "d_model num_heads d_key d_value num_value_heads merge_heads d_feedforward dropout activation norm_first"
    from_file = build_encoder_layer(**{name: getattr(config, name) for name in names.split()})
    from_function = PRESETS[preset](cfg.model.d_model, cfg.model.num_heads, norm_first=True)
    assert _description(from_file) == _description(from_function)


def _description(layer):
    shapes = {name: tuple(parameter.shape) for name, parameter in layer.named_parameters()}
    return shapes, layer.attention.merge_heads, layer.attention.d_key, layer.norm_first


def test_every_layer_file_has_a_preset():
    assert {option for group, option in OPTIONS if group == "layer"} == PRESETS.keys()


def test_sizes_follow_d_model_and_what_the_user_types_wins():
    cfg = compose_config(["layer=small_key", "model.d_model=96", "model.num_heads=6", "model.d_value=5"])
    assert (cfg.model.d_key, cfg.model.d_value) == (8, 5)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["layer=identifable"], "no layer 'identifable'.*Did you mean 'identifiable'"),
        (["layr=standard"], "no option 'layr'.*Did you mean 'layer'"),
        (["model.d_kye=3"], "no option 'model.d_kye'. Did you mean 'model.d_key'"),
        (["model.d_model=100"], "d_model must be a multiple of num_heads"),
        (["seed=abc"], "seed: Value 'abc'"),
        (["data.text=3"], "data.text"),
        (["model.d_key=(1"], r"model.d_key=\(1 cannot be read: put quotes around its value"),
        (["seed=0,1"], "seed=0,1 is several values: add --multirun"),
        (["seed=range(3)"], "add --multirun"),
    ],
)
def test_a_mistake_is_one_sentence(overrides, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        compose_config(overrides)
    assert "\n" not in str(error.value)


@given(value=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30))
def test_a_text_given_as_an_option_arrives_exactly(value):
    parsed = OverridesParser.create().parse_override(override("command", value)).value()
    assert OmegaConf.create({"command": parsed}).command == value


@pytest.mark.parametrize("value", ["${x}", "a\\", "it's", "\\'", "a=b,c", "#é[1](2) & ;!", "\\${y}\\\\", "'", ""])
def test_odd_texts_arrive_exactly(value):
    assert compose_config([override("command", value)]).command == value
