"""Swapped layers: what is kept, what is refused, what the report says."""

import copy

import pytest
import torch
from asserting import assert_close
from identiformer.models import MultiHeadAttention, record_heads, swap_encoder_layers
from identiformer.models.adapters import attention_modules, heads
from identiformer.models.identifiability import null_space
from small_models import KEEP, OURS, STRUCTURES, TEXTS, TRANSFORMERS, run, shared_model, small_model
from torch import nn

SWAPS = {
    "added": {},
    "averaged": {"merge_heads": "mean"},
    "added, larger values": {"d_value": 29},
    "concatenated, larger values": {"layer": "standard", "d_value": 29},
    "larger keys": {"layer": "standard", "d_key": 11},
    "all at once": {"merge_heads": "sum", "d_value": 26, "d_key": 12},
}
BATCH = {"input_ids": TEXTS, "attention_mask": KEEP.long()}


def rotary(name):
    return name == "ModernBert"


@pytest.mark.parametrize("swap", SWAPS.values(), ids=SWAPS)
@pytest.mark.parametrize("name", STRUCTURES)
def test_the_function_is_kept(name, swap):
    model = small_model(name)
    swap = {**swap, "d_key": None} if rotary(name) else swap
    if name in ("identifiable", "shared_value") and swap.get("layer") == "standard":
        swap = {**swap, "d_value": 29}  # their own values are as wide as the model
    report = swap_encoder_layers(model, **swap)
    tolerance = 1e-6 if rotary(name) else 1e-12  # ModernBERT's softmax is in float32, ours is not
    assert_close(run(model), run(shared_model(name)), tolerance)
    assert report.preserved
    assert not report.score_error.any()
    assert report.score_error.shape == (2, heads(attention_modules(model)[0]).num_heads)
    for module, sizes in zip(attention_modules(model), report.sizes, strict=True):
        assert isinstance(module, MultiHeadAttention)
        for key, size in sizes._asdict().items():
            assert getattr(module, key) == size
            assert swap.get(key) in (None, size)


@pytest.mark.parametrize("name", STRUCTURES)
def test_padding_batch_mates_and_order_change_nothing_after_a_swap(name):
    model = small_model(name)
    swap_encoder_layers(model, "shared_value", preserve=False, d_key=8 if rotary(name) else None)
    logits, order = run(model), torch.tensor([2, 0, 1])
    assert_close(run(model, TEXTS[order], KEEP[order]), logits[order], 1e-6)
    for text, length in enumerate(KEEP.sum(1)):
        assert_close(run(model, TEXTS[text : text + 1, :length], None)[0], logits[text], 1e-6)


@pytest.mark.parametrize("name", ["Bert", "MPNet", "ModernBert", "encoder", "encoder, token first", "standard"])
def test_new_values_take_part_once_training_moves_them(name):
    model = small_model(name).float()
    swap_encoder_layers(model, "standard", d_value=20)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    texts = torch.arange(3, 12)[None]  # no token twice: without positions its values would be the same
    with torch.no_grad(), record_heads(model) as before:
        run(model, texts, None)
    ranks = [null_space(record.value, record.output_map).rank.max().item() for record in before]
    for _ in range(3):
        output = model(input_ids=texts)
        (output if torch.is_tensor(output) else output.logits).square().sum().backward()
        assert all(
            parameter.grad is not None for module in attention_modules(model) for parameter in module.parameters()
        )
        optimizer.step()
    with torch.no_grad(), record_heads(model) as after:
        run(model, texts, None)
    for rank, record in zip(ranks, after, strict=True):
        assert rank <= 8 < null_space(record.value, record.output_map).rank[0].min()


def test_smaller_keys_are_best_on_what_the_layer_sees():
    model, text = small_model("Bert"), TEXTS[:1]
    errors, reports = [], []
    for calibration in (None, {"input_ids": text}):
        swapped = copy.deepcopy(model)
        reports.append(swap_encoder_layers(swapped, "small_key", calibration=calibration))
        assert all(sizes.d_key == 4 for sizes in reports[-1].sizes)
        with record_heads(model, [0]) as own, record_heads(swapped, [0]) as new:
            run(model, text, None), run(swapped, text, None)
        scores, found = (record.query @ record.key.mT / record.query.shape[-1] ** 0.5 for record in (own[0], new[0]))
        scores, found = (part - part.mean(-1, keepdim=True) for part in (scores, found))  # all that the softmax sees
        errors.append(torch.linalg.norm(scores - found, dim=(2, 3))[0] / torch.linalg.norm(scores, dim=(2, 3))[0])
    assert_close(reports[1].score_error[0], errors[1], 1e-10)
    assert (errors[1] < errors[0]).all()
    assert reports[0].total_variation is None
    assert "total variation" in str(reports[1])


def test_total_variation_is_that_of_the_recorded_weights():
    model = small_model("Bert")
    swapped = copy.deepcopy(model)
    report = swap_encoder_layers(swapped, "small_key", layers=[0], calibration=BATCH)
    with record_heads(model, [0]) as own, record_heads(swapped, [0]) as new:
        run(model), run(swapped)
    distance = (own[0].weights - new[0].weights).abs().sum(-1) / 2  # (text, head, query)
    assert_close(report.total_variation[0], distance.transpose(1, 2)[KEEP].mean(0), 1e-10)
    assert report.layers == (0,)


def test_calibration_leaves_the_models_modes_alone():
    model = small_model("Bert").train()
    model.bert.encoder.layer[0].eval()
    modes = {name: module.training for name, module in model.named_modules()}
    swap_encoder_layers(model, "small_key", calibration=BATCH)
    kept = {name: module.training for name, module in model.named_modules() if name in modes and ".dense" not in name}
    assert kept.items() <= modes.items()
    assert [module.training for module in attention_modules(model)] == [False, True]


def test_fresh_layers_have_the_presets_sizes():
    for layer, sizes in {"identifiable": (16, 24, 3, "sum"), "shared_value": (16, 24, 1, "mean")}.items():
        model = small_model("Bert")
        report = swap_encoder_layers(model, layer, preserve=False)
        assert report.sizes == (sizes, sizes)
        assert (report.score_error, report.preserved) == (None, False)
        assert "afresh" in str(report)
        assert (run(model) - run(shared_model("Bert"))).abs().max() > 1e-3


@pytest.mark.parametrize("name", STRUCTURES)
def test_asked_layers_alone_are_swapped(name):
    model = small_model(name)
    report = swap_encoder_layers(model, layers=[1])
    swapped = [isinstance(module, MultiHeadAttention) for module in attention_modules(model)]
    assert swapped == [name in OURS, True]
    assert (report.layers, len(report.sizes)) == ((1,), 1)
    assert_close(run(model), run(shared_model(name)), 1e-6)


@pytest.mark.parametrize("name", ["Bert", "encoder", "standard"])
def test_a_swapped_model_can_be_swapped_again(name):
    model = small_model(name)
    swap_encoder_layers(model)
    swap_encoder_layers(model, layers=[0], d_value=31)
    assert [module.d_value for module in attention_modules(model)] == [31, 24]
    assert_close(run(model), run(shared_model(name)), 1e-12)


def test_hooks_device_precision_and_the_module_itself_stay():
    model, calls = small_model("Bert").bfloat16(), []
    attention = model.bert.encoder.layer[0].attention.self
    attention.register_forward_hook(lambda *_: calls.append(1))
    swap_encoder_layers(model)
    assert model.bert.encoder.layer[0].attention.self is attention
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert run(model).dtype == torch.bfloat16
    assert calls == [1]


def test_a_bare_attention_is_swapped_in_place():
    module = nn.MultiheadAttention(24, 3, batch_first=False).double().eval()
    hidden, mask = torch.randn(5, 2, 24).double(), torch.ones(5, 5).triu(1).bool()
    expected = module(hidden, hidden, hidden, attn_mask=mask, average_attn_weights=False)
    swap_encoder_layers(module)
    for average in (False, True):
        output, weights = module(hidden, hidden, hidden, attn_mask=mask, average_attn_weights=average)
        assert_close(output, expected[0], 1e-12)
        assert_close(weights, expected[1].mean(1) if average else expected[1], 1e-12)
    assert module(hidden, hidden, hidden, need_weights=False)[1] is None
    text = hidden[:, 0]
    assert_close(module(text, text, text, attn_mask=mask)[0], expected[0][:, 0], 1e-12)
    with pytest.raises(ValueError, match="same tensor as query, key and value"):
        module(hidden, hidden, 2 * hidden)


# What is refused, before anything is changed.


@pytest.mark.parametrize(
    ("name", "swap", "message"),
    [
        ("Bert", {"layer": "identifyable"}, "layer is 'identifyable': choose one of standard"),
        (
            "Bert",
            {"layer": "shared_value"},
            "several heads share one value map, which cannot do what 3 different ones did",
        ),
        ("Bert", {"d_value": 23}, "d_value 23 cannot do exactly .* must be 24, since heads that are added share one"),
        ("Bert", {"layer": "standard", "d_value": 7}, "d_value 7 cannot do exactly .* must be 8, as the model's own"),
        ("Bert", {"layers": [0, 2]}, "There is no layer 2: the model has layers 0 to 1"),
        ("Bert", {"layers": [-1]}, "There is no layer -1"),
        ("Bert", {"d_key": 0}, "d_key is 0: it must be at least 1"),
        ("Bert", {"merge_heads": "median"}, "merge_heads is 'median'"),
        ("Bert", {"num_value_heads": 2}, "num_value_heads is 2: it must divide num_heads, 3"),
        ("ModernBert", {"d_key": 4}, "Positions turn this model's keys of size 8: d_key cannot be 4"),
        ("ModernBert", {"preserve": False}, "d_key cannot be 16"),
        ("standard", {"layer": "shared_value"}, "share one value map"),
    ],
)
def test_what_cannot_be_is_refused(name, swap, message):
    model = small_model(name)
    with pytest.raises(ValueError, match=message):
        swap_encoder_layers(model, **swap)
    assert torch.equal(run(model), run(shared_model(name)))


def test_a_model_without_known_attention_is_told_what_is_known():
    with pytest.raises(ValueError, match=r"Linear holds no attention .*BERT.*ModernBERT.*nn.TransformerEncoderLayer"):
        swap_encoder_layers(nn.Linear(3, 4))


def test_attention_to_other_inputs_is_refused():
    module = nn.MultiheadAttention(24, 3, kdim=10)
    with pytest.raises(ValueError, match="only self-attention can be swapped"):
        swap_encoder_layers(module, preserve=False)
    assert module(torch.randn(5, 24), torch.randn(5, 10), torch.randn(5, 24))[0].shape == (5, 24)


@pytest.mark.parametrize("name", [*TRANSFORMERS, "standard"])
@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_attentions_are_returned_under_any_kernel(name, kernel):
    if kernel == "sdpa" and name in TRANSFORMERS and not shared_model(name)._supports_sdpa:
        pytest.skip("this model has no such kernel")
    model = small_model(name, **({"attn_implementation": kernel} if name in TRANSFORMERS else {}))
    swap_encoder_layers(model)
    with torch.no_grad(), record_heads(model) as records:
        asked = model(**BATCH, output_attentions=True)
        model.config.output_attentions = True
        configured = model(**BATCH)
    assert len(asked.attentions) == len(configured.attentions) == 2
    for record, weights in zip(records, asked.attentions, strict=False):
        kept = KEEP[:, None, :, None].expand_as(weights)
        assert_close(weights[kept], record.weights[kept], 1e-12)
    assert_close(asked.logits, run(shared_model(name)), 1e-6)
