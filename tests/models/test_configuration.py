import pytest
from identiformer.models import IdentiformerConfig
from transformers import AutoConfig


@pytest.mark.parametrize(
    ("name", "near"), [("d_kye", "d_key"), ("num_head", "num_heads"), ("hiden_size", "hidden_size")]
)
def test_an_unknown_argument_raises_with_the_near_match(name, near):
    with pytest.raises(TypeError, match=f"no argument '{name}'.*'{near}'"):
        IdentiformerConfig(**{name: 3})


def test_an_argument_like_none_of_ours_raises_without_a_guess():
    with pytest.raises(TypeError, match=r"no argument 'zzzzzz'\.$"):
        IdentiformerConfig(zzzzzz=1)


ALIASES = {
    "hidden_size": ("d_model", 24),
    "num_attention_heads": ("num_heads", 4),
    "num_hidden_layers": ("num_layers", 3),
    "intermediate_size": ("d_feedforward", 17),
    "max_position_embeddings": ("max_length", 31),
    "hidden_act": ("activation", "relu"),
    "hidden_dropout_prob": ("dropout", 0.3),
}


@pytest.mark.parametrize("alias", ALIASES)
def test_hugging_faces_names_mean_ours(alias):
    name, value = ALIASES[alias]
    config = IdentiformerConfig(**{alias: value})
    assert getattr(config, name) == getattr(config, alias) == value
    assert config.to_dict()[name] == value


def test_hugging_faces_names_can_be_set_later():
    config = IdentiformerConfig()
    config.hidden_size = 24
    assert config.d_model == 24


def test_sizes_that_are_not_given_follow_from_the_others():
    config = IdentiformerConfig(d_model=24, num_heads=4)
    found = (config.d_key, config.d_value, config.num_value_heads, config.d_feedforward)
    assert found == (6, 6, 4, 96)


def test_given_sizes_stay():
    config = IdentiformerConfig(d_model=24, num_heads=4, d_key=7, d_value=11, num_value_heads=2, d_feedforward=17)
    assert (config.d_key, config.d_value, config.num_value_heads, config.d_feedforward) == (7, 11, 2, 17)


def test_defaults_are_those_of_the_design():
    config = IdentiformerConfig()
    found = {
        name: getattr(config, name)
        for name in ("vocab_size", "d_model", "num_heads", "num_layers", "d_feedforward", "max_length", "pooling")
    }
    assert found == {
        "vocab_size": 8000,
        "d_model": 128,
        "num_heads": 8,
        "num_layers": 1,
        "d_feedforward": 512,
        "max_length": 256,
        "pooling": "mean",
    }
    assert (config.activation, config.dropout, config.embedding_dropout) == ("gelu", 0.1, 0.2)
    assert config.norm_first is True


@pytest.mark.parametrize(("d_model", "num_heads"), [(13, 3), (128, 7)])
def test_heads_that_do_not_divide_are_named(d_model, num_heads):
    with pytest.raises(ValueError, match=f"d_model is {d_model} and num_heads {num_heads}"):
        IdentiformerConfig(d_model=d_model, num_heads=num_heads)


@pytest.mark.parametrize("options", [{"merge_heads": "add"}, {"pooling": "max"}, {"d_model": "wide"}])
def test_a_value_of_the_wrong_kind_is_refused_with_its_name(options):
    (name,) = options
    with pytest.raises(Exception, match=name):
        IdentiformerConfig(**options)


OPTIONS = {
    "vocab_size": 29,
    "d_model": 24,
    "num_heads": 4,
    "num_layers": 3,
    "d_key": 7,
    "d_value": 11,
    "num_value_heads": 2,
    "merge_heads": "sum",
    "d_feedforward": 17,
    "max_length": 31,
    "pooling": "first",
    "activation": "relu",
    "dropout": 0.3,
    "embedding_dropout": 0.4,
    "norm_first": False,
    "pad_token_id": 5,
    "vocabulary_hash": "abc",
    "output_attentions": True,
    "output_hidden_states": True,
    "id2label": {0: "bad", 1: "fair", 2: "good"},
    "label2id": {"bad": 0, "fair": 1, "good": 2},
}


@pytest.mark.parametrize("load", [IdentiformerConfig.from_pretrained, AutoConfig.from_pretrained])
def test_every_option_survives_saving(load, tmp_path):
    IdentiformerConfig(**OPTIONS).save_pretrained(tmp_path)
    loaded = load(tmp_path)
    assert type(loaded) is IdentiformerConfig
    assert {name: getattr(loaded, name) for name in OPTIONS} == OPTIONS
    assert loaded.num_labels == 3


def test_a_saved_config_with_an_unknown_name_is_refused(tmp_path):
    config = IdentiformerConfig()
    config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"d_key"', '"d_kye"'))
    with pytest.raises(TypeError, match="d_kye"):
        IdentiformerConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_output_attentions_goes_with_every_kernel(implementation):
    config = IdentiformerConfig(attn_implementation=implementation, output_attentions=True)
    assert config.output_attentions is True
    config.output_attentions = False
    assert config.output_attentions is False
