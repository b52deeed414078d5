"""Weights written at run time: PyTorch's outputs with the new ones, stalls, aborts, checksums."""

import json
import zlib

import numpy as np
import pytest
import torch
from covering import first_and_slow
from hardware_models import DigitsCnn, digits, fixed_graph, quantize, run_reference
from torch import nn

from chop.actions import simulate
from chop.actions.hardware import emit_hardware
from chop.cli.main import main
from chop.errors import HardwareError
from chop.hw.design.memories import read_codes
from chop.hw.design.reload import all_pieces, checksum
from chop.hw.interfaces import reload_host
from chop.hw.interfaces.axi_wrapper import emit_axi, run_axi_bench
from chop.hw.interfaces.new_weights import emit_new_weights
from chop.hw.lower import Parallelism, lower
from chop.hw.lower.verify import verify
from chop.hw.sim.emit import emit, read_interface, require_ours, top_text
from chop.hw.sim.verilate import lint
from chop.ir.graph import MaseGraph
from chop.passes.graph.analysis import (
    add_common_metadata_analysis_pass,
    add_hardware_metadata_analysis_pass,
    init_metadata_analysis_pass,
)
from chop.passes.graph.transforms import quantize_transform_pass

TESTS = 11
"""Tests of the two benches of a wrapper."""


class Tokens(nn.Module):
    """Two layers with a slope per channel between them, on three tokens, and a residual."""

    def __init__(self, spread=1.0):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(6, 8), nn.PReLU(), nn.Linear(8, 6, bias=False)
        with torch.no_grad():
            self.fc1.weight.mul_(spread)
            self.fc2.weight.mul_(spread)

    def forward(self, x):
        return x + self.fc2(torch.relu(self.fc1(x)))


def tokens(count, seed=0):
    return 4 * torch.randn(count, 3, 6, generator=torch.Generator().manual_seed(seed))


def tokens_graph(seed, spread=1.0):
    torch.manual_seed(seed)
    return fixed_graph(Tokens(spread), tokens(1))


def emitted(graph, folder, inputs, **settings):
    """Emit a graph whose weights can be written, with its wrapper; return the hardware folder."""
    add_hardware_metadata_analysis_pass(
        graph, {"max_parallelism": 2, "weights": "reload", **settings}
    )
    emit_hardware(graph, folder, inputs=inputs)
    emit_axi(folder / "hardware")
    return folder / "hardware"


@pytest.fixture
def hardware(tmp_path):
    return emitted(tokens_graph(0), tmp_path / "first", tokens(6))


def model_outputs(graph, hardware, inputs):
    """Return the codes of what the PyTorch model gives for the inputs of `test/`."""
    stream = read_interface(hardware).outputs["data_out_0"]
    numbers = run_reference(graph, inputs)
    return (numbers * 2**stream.format.frac_width).numpy().reshape(len(inputs), -1)


def new_outputs(hardware):
    stream = read_interface(hardware).outputs["data_out_0"]
    path = hardware / "reload" / "data_out_0.mem"
    return read_codes(path, "data_out_0", stream, (-1, stream.elements))


@pytest.mark.sim("verilator", "iverilog", "cocotbext.axi")
def test_new_weights_give_the_outputs_of_the_pytorch_model(hardware):
    """The new weights are so large that sums as wide as the first weights need would overflow."""
    other = tokens_graph(1, spread=200.0)
    lowered = lower(other, Parallelism(2), weights="reload")
    verify(other, lowered, tokens(6))
    emit_new_weights(hardware, lowered.design)
    held = (tokens(6) * 16).round().clamp(-128, 127) / 16  # what the input port has
    expected = model_outputs(other, hardware, held)
    assert np.array_equal(new_outputs(hardware), expected)
    first = read_codes(
        hardware / "test" / "data_out_0.mem", "data_out_0",
        read_interface(hardware).outputs["data_out_0"], expected.shape,
    )  # fmt: skip
    assert not np.array_equal(first, expected)
    require_ours(hardware, "top")
    assert lint(hardware, "top_axi", ("rtl", "axi")) == ""
    assert simulate(hardware.parent, simulator="axi").tests == TESTS


MXINT4 = {"name": "mxint", **{
    f"{role}_{end}": number
    for role in ("data_in", "weight", "bias")
    for end, number in (("width", 8), ("block_size", 4), ("exponent_width", 4))
}}  # fmt: skip
"""MXINT with exponents from -7 to 7."""


def blocks_graph(seed, spread=1.0, *, has_bias=True, config=MXINT4):
    """Return two layers in MXINT; `spread` moves the exponents of the weights."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 4, bias=has_bias), nn.ReLU(), nn.Linear(4, 4))
    with torch.no_grad():
        model[0].weight.mul_(spread)
    return quantized(model, torch.randn(1, 8), config)


def blocks_rows(count):
    rows = torch.randn(count, 8, generator=torch.Generator().manual_seed(3))
    return (rows * 256).round() / 256  # what the input port has


@pytest.mark.sim("verilator", "iverilog", "cocotbext.axi")
@pytest.mark.parametrize(
    ("spread", "has_bias"),
    [(16.0, True), pytest.param(1 / 64, False, marks=pytest.mark.slow)],
    ids=["higher", "lower, no bias"],
)
def test_new_blocks_have_other_exponents_than_the_first(tmp_path, spread, has_bias):
    hardware = emitted(blocks_graph(0, has_bias=has_bias), tmp_path, blocks_rows(6))
    other = blocks_graph(1, spread, has_bias=has_bias)
    lowered = lower(other, Parallelism(2), weights="reload")
    verify(other, lowered, blocks_rows(6))
    emit_new_weights(hardware, lowered.design)
    assert np.array_equal(new_outputs(hardware), model_outputs(other, hardware, blocks_rows(6)))
    exponents = [
        stage.component.weights.wire.exponents(stage.component.weights.weight)
        for stage in (lower(g, Parallelism(2), weights="reload").design.stage("_0")
                      for g in (blocks_graph(0, has_bias=has_bias), other))
    ]  # fmt: skip
    assert not set(exponents[0].flat) & set(exponents[1].flat)
    assert lint(hardware, "top_axi", ("rtl", "axi")) == ""
    assert simulate(hardware.parent, simulator="axi").tests == TESTS


@pytest.mark.slow
@pytest.mark.sim("verilator")
def test_a_design_with_reloaded_blocks_is_exact(tmp_path):
    assert simulate(emitted(blocks_graph(0), tmp_path, blocks_rows(6)).parent).is_exact


def test_a_wire_of_reloaded_blocks_depends_on_their_format_alone():
    designs = [
        lower(blocks_graph(seed, spread), Parallelism(2), weights="reload").design
        for seed, spread in ((0, 1.0), (1, 100.0), (2, 0.001))
    ]
    texts = {top_text(design) for design in designs}
    assert len(texts) == 1
    (wire,) = {design.stage("_0").component.weights.wire for design in designs}
    assert (wire.mantissa, wire.top, wire.frac_width) == (8, 14, 13)


@pytest.mark.slow
@pytest.mark.sim("verilator", "cocotbext.axi")
def test_verilator_agrees(hardware):
    emit_new_weights(hardware, lower(tokens_graph(1), Parallelism(2), weights="reload").design)
    assert run_axi_bench(hardware, "verilator").tests == TESTS


@pytest.mark.slow
@pytest.mark.sim("iverilog", "cocotbext.axi")
def test_a_convolutional_network_gets_new_weights(tmp_path):
    graphs = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        graphs.append(quantize(DigitsCnn(4).eval(), digits().train_images[:64]))
    images = digits().test_images[:2]
    hardware = emitted(graphs[0], tmp_path, images, max_parallelism=8)
    lowered = lower(graphs[1], Parallelism(8), weights="reload")
    verify(graphs[1], lowered, images)
    emit_new_weights(hardware, lowered.design)
    assert run_axi_bench(hardware).tests == TESTS


class Alike(nn.Module):
    """Two equal layers, which can share a block."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return torch.relu(self.fc2(torch.relu(self.fc1(x))))


@pytest.mark.slow
@pytest.mark.sim("verilator", "iverilog", "cocotbext.axi")
def test_layers_that_share_a_block_get_new_weights_bank_by_bank(tmp_path):
    graphs = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        graphs.append(fixed_graph(Alike(), torch.randn(1, 6)))
    inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    hardware = emitted(graphs[0], tmp_path, inputs, share_layers=2)
    assert "BANKS" in (hardware / "rtl" / "top.sv").read_text()
    lowered = lower(graphs[1], Parallelism(2), weights="reload", share_layers=2)
    emit_new_weights(hardware, lowered.design)
    assert simulate(tmp_path).is_exact
    assert run_axi_bench(hardware).tests == TESTS


MUTANTS = {
    "a wrong checksum is right": ("weight_loader", "is_match    = load_data == ~crc_q",
                                  "is_match    = 1'b1"),
    "a design runs with half of its weights": (
        "weight_loader", "LOAD: if (load_abort) state_q <= is_whole_q ? RUN : STOPPED",
        "LOAD: if (load_abort) state_q <= RUN"),
    "a reset makes weights whole": ("weight_loader", "state_q     <= is_whole_q ? RUN : STOPPED",
                                    "state_q     <= RUN"),
    "a reload does not wait": ("weight_loader", "left_q[k] == entered_q[0]", "1'b1"),
    "inputs go on while a reload waits": ("weight_loader", "run && (state_q == RUN || state_q",
                                          "run && (state_q == RUN || 1'b1 || state_q"),
    "the design keeps words that it has read": (
        "weight_loader", "load_rst    = state_q == LOAD || state_q == STOPPED",
        "load_rst    = 1'b0"),
    "the first piece is lost": ("weight_loader", "piece_index <= count_q[INDEX_WIDTH-1:0]",
                                "piece_index <= count_q[INDEX_WIDTH-1:0] + 1'b1"),
    "part of a piece is a piece": ("axi_lite_registers", " && strobe_q == '1", ""),
    "the checksum of the last reload stays": (
        "weight_loader", "if (is_match) inside_crc_q <= load_data;", ""),
}  # fmt: skip


@pytest.mark.sim("iverilog", "cocotbext.axi")
@pytest.mark.parametrize("name", first_and_slow(MUTANTS))
def test_a_fault_of_the_loader_is_noticed(hardware, name):
    emit_new_weights(hardware, lower(tokens_graph(1), Parallelism(2), weights="reload").design)
    module, old, new = MUTANTS[name]
    file = hardware / "axi" / f"{module}.sv"
    assert file.read_text().count(old) == 1
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(HardwareError, match="tests failed"):
        run_axi_bench(hardware)


@pytest.mark.sim("verilator")
def test_a_design_is_exact_before_it_gets_new_weights(hardware):
    assert simulate(hardware.parent).is_exact


def test_pieces_are_the_words_of_the_memories_in_their_order(hardware):
    design = lower(tokens_graph(0), Parallelism(2), weights="reload").design
    pieces = reload_host.own_pieces(hardware)
    assert pieces == all_pieces(design.reloaded_memories)
    record = json.loads((hardware / "design.json").read_text())["reload"]
    assert record["pieces"] == len(pieces) and int(record["crc"], 16) == checksum(pieces)
    firsts = [row["first"] for row in record["memories"]]
    assert firsts == sorted(set(firsts)) and firsts[0] == 0
    assert {row["stage"] for row in record["memories"]} == {"fc1", "fc2"}


def test_a_word_wider_than_a_piece_begins_with_its_low_bits():
    design = lower(tokens_graph(0), Parallelism(6), weights="reload").design
    first = design.reloaded_memories[0]
    assert first.memory.width == 6 * 8 * 4 and first.pieces_per_word == 6
    word = sum(piece << 32 * k for k, piece in enumerate(list(first.pieces())[:6]))
    assert word == first.memory.words[0]


def test_sums_hold_any_weights_of_the_format():
    widths = {
        place: lower(tokens_graph(0), Parallelism(2), weights=place)
        .components["fc1"]
        .parameters()["ACC_WIDTH"]
        for place in ("memory", "reload")
    }
    largest = 6 * 128 * 128 + 128 * 16  # inputs and weights of 8 bits, a bias shifted by 4
    assert widths["reload"] >= largest.bit_length() + 1 - 4 > 0
    assert widths["memory"] < widths["reload"]


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["shift_add", "tables"])
def test_weights_in_the_logic_are_refused_by_name(how):
    spec = Parallelism(2, multiplier={"fc2": how})
    words = r"node 'fc2' \(linear\): weights = 'reload', and its weights are part of the logic of "
    with pytest.raises(
        HardwareError, match=words + rf"multiplier '{how}'\. Allowed: weights in a memory"
    ):
        lower(tokens_graph(0), spec, weights="reload")
    kept = lower(tokens_graph(0), spec, weights={"default": "reload", "fc2": "memory"})
    assert kept.design.reloaded == ("fc1",)


def test_a_node_without_weights_is_refused_by_name():
    with pytest.raises(HardwareError, match="node 'relu': weights = 'reload', and no memory of"):
        lower(tokens_graph(0), Parallelism(2), weights={"relu": "reload"})


def test_a_model_without_weights_is_refused():
    graph = fixed_graph(nn.ReLU(), torch.randn(1, 4))
    with pytest.raises(HardwareError, match="weights = 'reload': no layer has weights in a memory"):
        lower(graph, Parallelism(2), weights="reload")


def quantized(model, x, config):
    """Return the graph of a model whose weights have the format `config`."""
    graph = MaseGraph(model.eval(), dummy_in=x)
    graph, _ = init_metadata_analysis_pass(graph)
    graph, _ = add_common_metadata_analysis_pass(graph)
    op = "embedding" if isinstance(model[0], nn.Embedding) else "linear"
    graph, _ = quantize_transform_pass(graph, {"by": "type", op: {"config": config}})
    for node in graph.fx_graph.find_nodes(op="placeholder") if op == "linear" else ():
        value = node.meta["mase"]["common"]["results"]["data_out_0"]
        value["type"], value["precision"] = "fixed", [12, 8]
    return graph


INTEGER = {"name": "integer", **{
    f"{role}_{end}": number
    for role in ("data_in", "weight", "bias") for end, number in (("width", 8), ("frac_width", 4))
}}  # fmt: skip
MXINT = {"name": "mxint", **{
    f"{role}_{end}": number
    for role in ("data_in", "weight", "bias") for end, number in (("width", 8), ("block_size", 4))
}}  # fmt: skip
FIXED_WEIGHTS = {
    "table": (nn.Embedding(5, 4), torch.randint(5, (1, 3)), INTEGER,
              r"node '0' \(embedding\): .* part of the logic of 'fixed_embedding'\. Allowed"),
    "blocks": (nn.Linear(8, 4), torch.randn(1, 8), MXINT,
               r"node '0' \(linear\): .* exponents from -127 to 127 with exponent_width = 8 and "
               r"width = 8\. Allowed: exponent_width up to 5\."),
}  # fmt: skip


@pytest.mark.parametrize("name", FIXED_WEIGHTS)
def test_tables_and_blocks_of_any_exponent_are_refused_by_name(name):
    layer, x, config, words = FIXED_WEIGHTS[name]
    graph = quantized(nn.Sequential(layer), x, config)
    with pytest.raises(HardwareError, match=words.replace("'0'", "'_0'")):
        lower(graph, Parallelism(2), weights="reload")


def test_new_weights_of_another_design_are_refused_with_the_difference(hardware):
    torch.manual_seed(1)
    graph = fixed_graph(Tokens(), tokens(1), weight=(7, 4))
    other = lower(graph, Parallelism(2), weights="reload").design
    words = (
        r"these weights need another design: .*stage 'fc1': WEIGHT_PRECISION_0 is 7 instead of 8"
    )
    with pytest.raises(HardwareError, match=words):
        emit_new_weights(hardware, other)
    assert not (hardware / "reload").exists()


def test_new_weights_in_other_beats_are_refused(hardware):
    other = lower(tokens_graph(1), Parallelism(6), weights="reload").design
    with pytest.raises(HardwareError, match="port 'data_in_0' has another stream"):
        emit_new_weights(hardware, other)


def test_a_design_with_fixed_weights_takes_no_new_ones(tmp_path):
    design = lower(tokens_graph(0), Parallelism(2)).design
    hardware = emit(design, tmp_path)
    with pytest.raises(HardwareError, match=r"no memory of this design can be written. Emit it w"):
        emit_new_weights(hardware, design)


def test_forged_weights_are_not_run(hardware):
    emit_new_weights(hardware, lower(tokens_graph(1), Parallelism(2), weights="reload").design)
    file = hardware / "reload" / "weights.mem"
    file.write_text("0" * 8 + file.read_text()[8:])
    with pytest.raises(HardwareError, match=r"weights\.mem: changed since it was emitted"):
        simulate(hardware.parent, simulator="axi")


def test_a_design_that_is_emitted_again_has_no_old_weights(hardware):
    emit_new_weights(hardware, lower(tokens_graph(1), Parallelism(2), weights="reload").design)
    emit(lower(tokens_graph(0), Parallelism(2)).design, hardware)
    assert not list((hardware / "reload").iterdir()) and not list((hardware / "axi").iterdir())


# -- the host --------------------------------------------------------------------------------------


class Registers:
    """The control words of a design that is never busy, as `weight_loader.sv` keeps them."""

    def __init__(self, pieces, is_busy=False, loses=None):
        self.expected, self.taken, self.status, self.crc = pieces, [], 0, 0
        self.is_busy, self.loses = is_busy, loses

    def read(self, address):
        return {0x04: 1, 0x08: self.status, 0x24: len(self.taken), 0x28: self.crc}[address]

    def write(self, address, value):
        if address == 0x04:
            self.status = 8 if value & 4 and self.is_busy else 16 if value & 4 else 0
        elif len(self.taken) == self.expected:
            data = b"".join(word.to_bytes(4, "little") for word in self.taken)
            is_right = zlib.crc32(data) == value
            self.status, self.crc = (0, value) if is_right else (96, self.crc)
        elif len(self.taken) == self.loses:
            return False
        else:
            self.taken.append(value)
        return True


def test_a_host_writes_the_words_in_order_and_checks_the_sum():
    port = Registers(3)
    words = reload_host.with_checksum([7, 1 << 31, 9])
    reload_host.reload_weights(words, port.read, port.write)
    assert port.taken == words[:3] and port.crc == words[3]


FAILURES = {
    "tensors stay inside": ({"is_busy": True}, 0, "not empty after 5 reads of its status (0x8)"),
    "a word is refused": ({"loses": 2}, 0, "word 2 of 4 was refused: 2 were expected"),
    "the sum is wrong": ({}, 1, "the checksum {crc:08x} is wrong: the design takes no input"),
    "words are missing": ({"pieces": 5}, 0, "the design took 4 pieces and waits for more"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_host_says_what_failed(name):
    settings, error, words = FAILURES[name]
    port = Registers(**{"pieces": 3, **settings})
    sent = reload_host.with_checksum([1, 2, 3])
    sent[-1] ^= error
    with pytest.raises(reload_host.ReloadError) as failure:
        reload_host.reload_weights(sent, port.read, port.write, patience=5)
    assert words.format(crc=sent[-1]) in str(failure.value)


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.sim("iverilog", "cocotbext.axi")
def test_the_command_emits_new_weights_and_simulates_them(tmp_path, capsys):
    first, second, both = (str(tmp_path / name) for name in ("a", "b", "both"))
    for seed, folder in (("0", first), ("1", second)):
        line = ["quantize", "mlp", "--dataset", "digits", "--width", "8", "--seed", seed]
        line += ["--out", folder]
        assert main(line) == 0, capsys.readouterr().err
    design = str(tmp_path / "design")
    assert main(["emit", first, "--axi", "--weights", "reload", "--out", design]) == 0
    line = ["emit", second, "--weights", "reload", "--weights-for", design, "--out", both]
    assert main(line) == 0, capsys.readouterr().err
    assert main(["simulate", both, "--simulator", "axi", "--out", str(tmp_path / "sim")]) == 0


def test_the_command_wants_a_folder_with_hardware(tmp_path, capsys):
    line = ["emit", "mlp", "--weights-for", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(line) != 0
    assert "is no folder that `mase emit` wrote" in capsys.readouterr().err
