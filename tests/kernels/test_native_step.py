"""A native decode step equals the step in PyTorch: logits, tokens and cache."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from generating_models import FAMILIES, PAIRS, VOCABULARY, graph, made, model, prompts, tokens
from torch import Tensor, nn
from transformers import DynamicCache

from chop import MaseGraph
from chop.kernels import QLinearPacked, cpu, pack
from chop.kernels.cache import PackedCache
from chop.kernels.native_step import MOST_FAILURES, MOST_TOKENS, NativeStep
from chop.kernels.ops import ROUNDED
from chop.kernels.step_cache import ROOM
from chop.kernels.step_code import library
from chop.passes import pack_weights_transform_pass
from chop.serve.batch_cache import BatchCache

pytestmark = pytest.mark.skipif(library() is None, reason="needs a C++ compiler")

DECODERS = [name for name in FAMILIES if name not in PAIRS]
WITHOUT = {"Mixtral": "softmax"}
"""Decoders without a native step, and the op that has no native code."""
NATIVE = [name for name in DECODERS if name not in WITHOUT]
WEIGHTS = ("mxint8", "mxint4", "mxfp8", "int4", "rounded", "rounded offsets")
ROUNDED_WEIGHTS = {"rounded": "mxint8", "rounded offsets": "int4"}
"""Formats of the weights where activations are rounded."""
FORMATS = ("mxint8", "mxint4", "int8", "int4", {"default": "mxfp8", 0: "float"})
TOLERANCE = 1e-5
"""Largest difference relative to the largest logit: some hundred sums of 32 to 64 terms, and
functions of one unit in the last place, in another order than PyTorch's."""
PROMPT = 7


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@functools.cache
def packed(name: str, weights: str) -> MaseGraph:
    """The family on packed weights; "rounded" has MXINT8 weights and activations.

    "rounded offsets" has int4 weights with offsets, and MXINT8 activations.
    """
    result, form = copy.deepcopy(graph(name)), ROUNDED_WEIGHTS.get(weights, weights)
    pack_weights_transform_pass(result, {"format": form})
    for layer in result.model.modules():
        if weights in ROUNDED_WEIGHTS and isinstance(layer, QLinearPacked):
            layer.quantizers["data_in"] = ROUNDED
            if weights == "rounded offsets":
                shape = (layer.out_features, -(-layer.in_features // layer.group_size))
                draw = torch.Generator().manual_seed(3)
                layer.register_buffer("offsets", 0.01 * torch.randn(shape, generator=draw))
    return result


def has_byte_products() -> bool:
    weight = pack(torch.ones(4, 32))
    parts = (weight.codes, weight.scales, None, weight.format, weight.group_size)
    return cpu.rounded_linear(torch.ones(1, 32), *parts) is not None


def drawn(count: int) -> Tensor:
    return torch.randint(3, 90, (1, count), generator=torch.Generator().manual_seed(2))


def compare(mg: MaseGraph, steps: int = 12, cache: Callable[[Any], Any] | None = None) -> None:
    """Assert that native steps equal plain ones from one prompt, with caches that `cache` makes."""
    native, ids = NativeStep(mg.model), drawn(PROMPT + steps)
    caches = [(cache or (lambda config: DynamicCache(config=config)))(mg.model.config)] * 2
    caches[1] = copy.deepcopy(caches[0])
    for past in caches:
        mg.model(input_ids=ids[:, :PROMPT], past_key_values=past, **seen(PROMPT))
    for at in range(PROMPT, PROMPT + steps):
        inputs = {"input_ids": ids[:, at : at + 1], **seen(at + 1)}
        expected = mg.model(**inputs, past_key_values=caches[0])
        result = native.run({**inputs, "past_key_values": caches[1]})
        assert result is not None, native.problem
        assert type(result) is type(expected)
        error = (result.logits - expected.logits).abs().max() / expected.logits.abs().max()
        assert error < TOLERANCE, f"token {at}: {error}"
    for one, other in zip(*(past.layers for past in caches), strict=True):
        assert one.get_seq_length() == other.get_seq_length()
        for a, b in ((one.keys, other.keys), (one.values, other.values)):
            torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE * float(a.abs().max()))


def seen(length: int) -> dict[str, Tensor]:
    return {"attention_mask": torch.ones(1, length, dtype=torch.long)}


@pytest.mark.share(4)
@pytest.mark.parametrize("name", NATIVE)
def test_every_family_has_the_logits_and_the_cache_of_the_plain_step(name: str) -> None:
    compare(graph(name))


def test_angles_computed_as_a_matrix_product_are_native() -> None:
    # As transformers before 5.18 writes them: positions as a column, frequencies as a row.
    mg = copy.deepcopy(graph("Llama"))
    angles = next(node for node in mg.fx_graph.nodes if node.target is torch.cat).args[0][0]
    with mg.fx_graph.inserting_before(angles):
        row = mg.fx_graph.call_method("unsqueeze", (angles.args[1], 0))
    angles.target, angles.args = torch.matmul, (angles.args[0], row)
    mg.model.recompile()
    compare(mg, steps=2)


@pytest.mark.parametrize("name", ["Llama", "Mistral"])
def test_a_buffer_grows_where_it_is_full(name: str) -> None:
    compare(graph(name), steps=2 * ROOM + PROMPT + 3)


@pytest.mark.share(3)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", ["Llama", "GPT-2"])
def test_packed_weights_have_the_logits_of_the_plain_step(name: str, weights: str) -> None:
    if weights in ROUNDED_WEIGHTS and not has_byte_products():
        pytest.skip("needs a processor with products of bytes; others round in PyTorch")
    compare(packed(name, weights), steps=4)


@pytest.mark.share(3)
@pytest.mark.parametrize("name", NATIVE)
def test_every_family_packs(name: str) -> None:
    compare(packed(name, "mxint4"), steps=3)


@pytest.mark.share(2)
@pytest.mark.parametrize("formats", FORMATS, ids=str)
@pytest.mark.parametrize("name", ["Llama", "Gemma 2"])
def test_caches_in_number_formats_hold_the_same_codes(name: str, formats: Any) -> None:
    compare(graph(name), cache=lambda config: PackedCache(config, formats))


@pytest.mark.share(2)
@pytest.mark.parametrize("formats", ["float", "mxint8"])
@pytest.mark.parametrize("name", ["Llama", "Mistral", "Gemma 2"])
def test_a_cache_of_the_server_holds_the_same_tokens(name: str, formats: str) -> None:
    steps = 80 if name == "Llama" else 12  # beyond the spare columns of a layer
    compare(graph(name), steps=steps, cache=lambda config: BatchCache(config, formats))


@pytest.mark.share(4)
@pytest.mark.parametrize("name", DECODERS)
def test_generate_gives_the_tokens_of_the_model(name: str) -> None:
    given = {key: value[:1] for key, value in prompts(name).items()}
    expected = tokens(model(name).generate, given, max_new_tokens=24)
    mg = copy.deepcopy(graph(name))
    assert torch.equal(tokens(mg.generate, given, max_new_tokens=24), expected)
    problem = mg.as_transformers()._step.problem
    assert (problem is None) == (name in NATIVE)
    assert WITHOUT.get(name, "") in (problem or "")
    assert torch.equal(tokens(mg.generate, given, max_new_tokens=24, native=False), expected)


@pytest.mark.share(3)
@pytest.mark.parametrize("name", PAIRS)
def test_encoder_decoders_generate_in_pytorch(name: str) -> None:
    given = {key: value[:1] for key, value in prompts(name).items()}
    expected = tokens(model(name).generate, given)
    assert torch.equal(tokens(graph(name).generate, given), expected)


def test_threads_do_not_change_a_bit() -> None:
    results, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            native, past = NativeStep(packed("Llama", "mxint4").model), started("Llama")
            results.append(native.run(step_of(5, past)).logits)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def started(name: str, mg: MaseGraph | None = None) -> DynamicCache:
    """A cache with a prompt."""
    past = DynamicCache(config=graph(name).model.config)
    (mg or graph(name)).model(input_ids=drawn(PROMPT), past_key_values=past)
    return past


def step_of(token: int, past: Any, **more: Any) -> dict[str, Any]:
    return {"input_ids": torch.tensor([[token]]), "past_key_values": past, **more}


def plain(mg: MaseGraph, token: int, past: Any) -> Tensor:
    logits: Tensor = mg.model(**step_of(token, copy.deepcopy(past))).logits
    return logits


def test_copies_of_a_cache_go_on_by_themselves() -> None:
    mg, past = graph("Llama"), started("Llama")
    native = NativeStep(mg.model)
    native.run(step_of(3, past))
    shared, other = copy.copy(past), copy.deepcopy(past)
    shared.layers = [copy.copy(layer) for layer in past.layers]
    expected = {token: plain(mg, token, past) for token in (4, 5, 6)}
    for token, each in ((4, past), (5, shared), (6, other)):
        torch.testing.assert_close(native.run(step_of(token, each)).logits, expected[token])


def test_a_shorter_cache_goes_on_from_its_end() -> None:
    mg, past = graph("Llama"), started("Llama")
    native = NativeStep(mg.model)
    for token in (3, 4, 5):
        native.run(step_of(token, past))
    past.crop(-2)
    torch.testing.assert_close(native.run(step_of(9, past)).logits, plain_after_crop(mg))


def plain_after_crop(mg: MaseGraph) -> Tensor:
    past = started("Llama")
    mg.model(**step_of(3, past))
    return plain(mg, 9, past)


OTHER_CALLS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "many tokens": lambda past: {
        **step_of(3, past),
        "input_ids": torch.full((1, MOST_TOKENS + 1), 3),
    },
    "two tokens of two rows": lambda past: {
        **step_of(3, past),
        "input_ids": torch.tensor([[3, 4], [5, 6]]),
    },
    "two tokens of which one counts": lambda past: {
        **step_of(3, past, logits_to_keep=1),
        "input_ids": torch.tensor([[3, 4]]),
    },
    "two tokens after padding": lambda past: {
        **step_of(3, past, attention_mask=torch.tensor([[0, *[1] * (PROMPT + 1)]])),
        "input_ids": torch.tensor([[3, 4]]),
        "position_ids": torch.tensor([[PROMPT - 1, PROMPT]]),
    },
    "an empty cache": lambda past: step_of(3, DynamicCache(config=model("Llama").config)),
    "no cache": lambda past: step_of(3, None),
    "a masked token": lambda past: step_of(
        3, past, attention_mask=torch.tensor([[0, *[1] * PROMPT]])
    ),
    "a cache in bfloat16": lambda past: step_of(3, in_bfloat16(past)),
}


def in_bfloat16(past: DynamicCache) -> DynamicCache:
    for layer in past.layers:
        layer.keys, layer.values = layer.keys.bfloat16(), layer.values.bfloat16()
    return past


@pytest.mark.parametrize("call", OTHER_CALLS)
def test_other_calls_are_left_to_pytorch(call: str) -> None:
    native = NativeStep(graph("Llama").model)
    assert native.run(OTHER_CALLS[call](started("Llama"))) is None
    assert native.problem is None


def test_a_step_with_gradients_is_left_to_pytorch() -> None:
    with torch.enable_grad():
        assert NativeStep(graph("Llama").model).run(step_of(3, started("Llama"))) is None


def test_a_step_of_inference_mode_runs_outside_of_it_too() -> None:
    native, past = NativeStep(graph("Llama").model), started("Llama")
    with torch.inference_mode():
        native.run(step_of(3, past))
    expected = plain(graph("Llama"), 4, past)
    torch.testing.assert_close(native.run(step_of(4, past)).logits, expected)


def test_hooks_see_their_module() -> None:
    mg, seen = copy.deepcopy(graph("Llama")), []
    native = NativeStep(mg.model)
    layer = next(m for m in mg.model.modules() if isinstance(m, nn.Linear))
    handle = layer.register_forward_hook(lambda *call: seen.append(call))
    assert native.run(step_of(3, started("Llama"))) is None
    handle.remove()
    assert native.run(step_of(3, started("Llama"))) is not None


def test_dropout_in_training_is_left_to_pytorch() -> None:
    mg = copy.deepcopy(graph("GPT-2"))
    native = NativeStep(mg.model)
    layers = [m for m in mg.model.modules() if isinstance(m, nn.Linear)]
    layers[0].train()  # has no other result in training
    assert native.run(step_of(3, started("GPT-2"))) is not None
    mg.model.train()
    assert native.run(step_of(3, started("GPT-2"))) is None
    assert native.run(step_of(3, started("GPT-2"))) is None and "dropout" in str(native.problem)


@pytest.mark.parametrize("way", ["in place", "moved", "other parameters", "other modules"])
def test_changed_weights_are_read(way: str) -> None:
    mg = copy.deepcopy(graph("Llama"))
    native = NativeStep(mg.model)
    native.run(step_of(3, started("Llama")))
    if way == "other modules":
        pack_weights_transform_pass(mg, {"format": "mxint4"})
    for module in list(mg.model.modules()):
        for name, parameter in module.named_parameters(recurse=False):
            change(module, name, parameter, way)
    native.run(step_of(3, started("Llama", mg)))  # the first one after a move runs in PyTorch
    result, expected = native.run(step_of(3, started("Llama", mg))), started("Llama", mg)
    torch.testing.assert_close(result.logits, plain(mg, 3, expected))


def change(module: nn.Module, name: str, parameter: nn.Parameter, way: str) -> None:
    """Multiply a parameter by 1.5."""
    if way == "other parameters":
        setattr(module, name, nn.Parameter(parameter * 1.5))
    elif way == "moved":
        parameter.data = parameter.data * 1.5
    else:
        parameter.mul_(1.5)


def test_a_token_without_a_row_raises_as_in_pytorch() -> None:
    mg = copy.deepcopy(graph("Llama"))
    past, caller = started("Llama"), mg.as_transformers()
    with pytest.raises(IndexError):
        caller(input_ids=torch.tensor([[VOCABULARY]]), past_key_values=past)
    assert past.get_seq_length() == PROMPT


def test_activations_that_cannot_be_rounded_leave_the_cache_alone() -> None:
    mg = copy.deepcopy(packed("Llama", "rounded"))
    for parameter in mg.model.parameters():
        parameter.fill_(float("nan"))
    native = NativeStep(mg.model)
    past = PackedCache(mg.model.config, "mxint8")
    graph("Llama").model(input_ids=drawn(PROMPT), past_key_values=past)
    for _ in range(MOST_FAILURES):
        assert native.run(step_of(3, past)) is None
        assert past.get_seq_length() == PROMPT
    assert "activations" in (native.problem or "")


def test_an_error_of_the_cache_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    past = PackedCache(graph("Llama").model.config, "mxint8")
    graph("Llama").model(input_ids=drawn(PROMPT), past_key_values=past)

    def refuse(*args: Any) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(past.layers[1], "update", refuse)
    with pytest.raises(RuntimeError, match="no room"):
        NativeStep(graph("Llama").model).run(step_of(3, past))


def test_a_model_in_bfloat16_runs_in_pytorch() -> None:
    mg = MaseGraph(made("Llama").bfloat16(), cache=True)
    ids = drawn(PROMPT)
    assert torch.equal(
        mg.generate(input_ids=ids, max_new_tokens=4, do_sample=False),
        mg.generate(input_ids=ids, max_new_tokens=4, do_sample=False, native=False),
    )


def test_copies_of_a_step_build_their_own_program() -> None:
    native = NativeStep(graph("Llama").model)
    expected = native.run(step_of(3, started("Llama"))).logits
    again = copy.deepcopy(native)
    assert torch.equal(again.run(step_of(3, started("Llama"))).logits, expected)


def test_a_profile_names_what_took_time() -> None:
    native, past = NativeStep(graph("Llama").model), started("Llama")
    native.run(step_of(3, past))
    seconds = native.profile(step_of(4, past))
    assert seconds["float_product"] > 0 and seconds["attend"] > 0
    assert past.get_seq_length() == PROMPT + 1
