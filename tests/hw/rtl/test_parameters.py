"""Every module refuses parameters that it cannot have, when it is elaborated, and says which."""

import os
import subprocess

import pytest

from chop import toolchain
from chop.hw.design.component import rtl_sources

WRONG = {
    "fifo": ({"DEPTH": 0}, {"DATA_WIDTH": 0}),
    "fixed_arithmetic": (
        {"OPERATION": 3},
        {"ALPHA": -1},
        {"OPERATION": 2, "ALPHA": 2},
        {"DATA_IN_1_PRECISION_0": 0},
    ),
    "fixed_batch_norm": ({"WEIGHT_PRECISION_0": 0},),
    "fixed_argmax": ({"DATA_IN_0_PARALLELISM_DIM_0": 1}, {"DATA_OUT_0_PRECISION_0": 1}),
    "fixed_cast": (
        {"DATA_OUT_0_ROUNDING": 4},
        {"DATA_OUT_0_PRECISION_0": 0},
        {"DATA_OUT_0_OVERFLOW": 3},
        {"DATA_OUT_0_OVERFLOW": 1, "DATA_OUT_0_IS_SIGNED": 0},
        {"IS_HALF_ADDED": 1, "DATA_OUT_0_ROUNDING": 1},
    ),
    "fixed_clamp": ({"DATA_IN_0_PARALLELISM_DIM_0": 0}, {"LOW_AT": 98}),
    "fixed_conv": (
        {"DATA_IN_0_PARALLELISM_DIM_0": 3},
        {"DATA_OUT_0_PARALLELISM_DIM_0": 3},
        {"BIAS_PRECISION_0": 0},
    ),
    "fixed_divide": ({"DIVISOR": 0},),
    "fixed_dot_product": ({"OUTPUTS": 0}, {"WEIGHT_PRECISION_0": 0}),
    "fixed_embedding": ({"ROWS": 9}, {"DATA_OUT_0_PARALLELISM_DIM_0": 3}),
    "fixed_hard_activation": ({"DATA_IN_0_PRECISION_1": -1}, {"DATA_IN_0_PARALLELISM_DIM_0": 0}),
    "fixed_leaky_relu": ({"NEGATIVE_SLOPE": -1}, {"WEIGHT_PRECISION_0": 0}),
    "fixed_linear": (
        {"DATA_IN_0_PARALLELISM_DIM_0": 3},
        {"DATA_OUT_0_PARALLELISM_DIM_0": 3},
        {"DATA_IN_0_PRECISION_0": 0},
        {"WEIGHT_EXPONENT_WIDTH": -1},
        {"ACC_WIDTH": 4},
    ),
    "fixed_lut": ({"DATA_IN_0_PRECISION_0": 17}, {"DATA_OUT_0_PRECISION_0": 0}),
    "fixed_matmul": ({"DATA_IN_0_TENSOR_SIZE_DIM_1": 0}, {"DATA_IN_1_EXPONENT_WIDTH": 2}),
    "fixed_norm": (
        {"DATA_IN_0_PRECISION_0": 17},
        {"DATA_IN_0_PARALLELISM_DIM_0": 3},
        {"GUARD": 3},
    ),
    "fixed_piecewise": ({"SLOPE_WIDTH": 0}, {"LOW_BITS": 14}),
    "fixed_pool": (
        {"DATA_IN_0_PARALLELISM_DIM_0": 2},
        {"DIVISOR": 0},
        {"IS_MAXIMUM": 1, "DATA_OUT_0_PRECISION_0": 7},
        {"COUNTS_PADDING": 0, "DIVISOR": 3},
    ),
    "fixed_relu": ({"DATA_IN_0_PARALLELISM_DIM_0": 0},),
    "fixed_shift_add": ({"ACC_WIDTH": 65}, {"DATA_IN_0_TENSOR_SIZE_DIM_0": 2}),
    "fixed_softmax": ({"DATA_IN_0_PRECISION_0": 17}, {"DATA_IN_0_PARALLELISM_DIM_0": 3}),
    "fixed_table_sum": ({"ACC_WIDTH": 65}, {"TABLES": 0}),
    "fixed_to_mxint": (
        {"DATA_OUT_0_PRECISION_0": 1},
        {"BLOCK_SIZE": 3},
        {"HIGHEST": 14},
    ),
    "gearbox": ({"UNIT": 3}, {"DATA_IN_0_PRECISION_0": 0}),
    "lookup_tables": ({"TABLE_INPUTS": 7}, {"DATA_IN_0_TENSOR_SIZE_DIM_0": 0}),
    "mxint_to_fixed": ({"DATA_IN_0_TOP": 8}, {"DATA_OUT_0_PRECISION_0": 0}),
    "ram_source": ({"DEPTH": 0}, {"BANKS": 0}, {"REPEATS": 0}, {"PIECE_BITS": 0}),
    "rom_bank_source": ({"DEPTH": 0}, {"BANKS": 0}, {"REPEATS": 0}),
    "rom_source": ({"DEPTH": 0},),
    "row_buffer": ({"SCALAR_WIDTH": 0},),
    "serial_in": ({"DATA_WIDTH": 0},),
    "serial_out": ({"DATA_WIDTH": 0},),
    "skid_buffer": ({"DATA_WIDTH": 0},),
    "sliding_window": (
        {"PADDING_DIM_0": 3},
        {"STRIDE_DIM_1": 0},
        {"KERNEL_SIZE_DIM_0": 7},
        {"DATA_IN_0_TENSOR_SIZE_DIM_2": 0},
    ),
    "stream_cast": ({"DATA_IN_0_PARALLELISM_DIM_0": 0},),
    "stream_concat": ({"DATA_IN_1_BEATS": 0},),
    "stream_fork": ({"BRANCHES": 0},),
    "stream_join": ({"DATA_IN_1_WIDTH": 0},),
    "stream_reorder": ({"DATA_IN_0_PARALLELISM_DIM_0": 3}, {"DATA_IN_0_PRECISION_0": 0}),
    "stream_route": ({"FIRST_BEATS": 0}, {"SECOND_BEATS": 0}),
    "stream_slice": ({"FIRST": 3},),
    "thermometer": ({"DATA_IN_0_PRECISION_0": 63}, {"LEVELS": 0}),
    "tile_buffer": ({"GROUP": 3}, {"REPEATS": 0}),
    "whole_window": ({"PADDING_DIM_0": 2}, {"STRIDE_DIM_0": 0}, {"KERNEL_SIZE_DIM_1": 7}),
}


def test_there_is_a_wrong_parameter_for_every_check_of_every_module():
    modules = {name: path.read_text() for name, path in rtl_sources().items()}
    assert set(modules) == set(WRONG)
    for module, text in modules.items():
        assert len(WRONG[module]) >= text.count("$error(") > 0, module


def verilated(module, parameters):
    """What Verilator says of the module with these parameters, and whether it takes it."""
    tool = toolchain.verilator()
    command = [str(tool.program), "--lint-only", "-Wno-fatal", "-Werror-USERERROR"]
    command += ["--top-module", module]
    command += [part for path in rtl_sources().values() for part in ("-y", str(path.parent))]
    command += [f"-G{name}={value}" for name, value in parameters.items()]
    command += [str(rtl_sources()[module])]
    environment = os.environ | tool.environment()
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return done.returncode == 0, done.stdout + done.stderr


@pytest.mark.share(2)
@pytest.mark.sim("verilator")
@pytest.mark.parametrize("module", sorted(WRONG))
def test_verilator_takes_the_defaults_and_refuses_a_wrong_parameter(module):
    is_taken, told = verilated(module, {})
    assert is_taken and "%" not in told, told  # newer ones report on themselves; warnings begin so
    is_taken, told = verilated(module, WRONG[module][0])
    assert not is_taken and f"{module}: " in told, told


@pytest.mark.share(2)
@pytest.mark.sim("pyslang")
@pytest.mark.parametrize("module", sorted(WRONG))
def test_slang_takes_the_defaults_and_refuses_the_wrong_ones(module):
    assert slang(module, {}) == []
    for wrong in WRONG[module]:
        assert any(f"{module}: " in told for told in slang(module, wrong)), wrong


def slang(module, parameters):
    """The errors of slang for the module with these parameters."""
    import pyslang

    options = pyslang.ast.CompilationOptions()
    options.topModules = {module}
    options.paramOverrides = [f"{name}={value}" for name, value in parameters.items()]
    compilation = pyslang.ast.Compilation(pyslang.Bag([options]))
    for path in rtl_sources().values():
        compilation.addSyntaxTree(pyslang.syntax.SyntaxTree.fromFile(str(path)))
    errors = [d for d in compilation.getAllDiagnostics() if d.isError()]
    report = pyslang.DiagnosticEngine.reportAll
    return [report(compilation.sourceManager, [error]) for error in errors]
