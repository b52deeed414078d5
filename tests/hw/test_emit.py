import doctest
import json
import re

import pytest
from designs import mlp, residual

from chop.errors import HardwareError
from chop.hw.design.component import ROOMS, rtl_sources
from chop.hw.flow.synth import elaborate
from chop.hw.sim import emit as emit_module
from chop.hw.sim.emit import (
    add_library,
    emit,
    read_interface,
    read_vectors,
    top_text,
    used_components,
    vector_files,
    write_files,
)
from chop.hw.sim.simulate import lint, random_inputs
from chop.hw.timing.cycles import balanced


def files(directory):
    return {p.relative_to(directory): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_same_design_same_bytes(tmp_path):
    for name in ("a", "b"):
        emit(balanced(residual()), tmp_path / name)
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_no_file_speaks_of_the_place_it_was_made(tmp_path):
    emit(mlp((4, 8), (4, 4)), tmp_path)
    assert not [p for p, text in files(tmp_path).items() if str(tmp_path).encode() in text]


def test_exactly_the_components_used_are_written(tmp_path):
    emit(mlp((4, 8), (4, 4)), tmp_path)
    wanted = {"fixed_cast", "fixed_dot_product", "fixed_linear", "rom_source", "skid_buffer", "top"}
    assert {p.stem for p in (tmp_path / "rtl").iterdir()} == wanted


def test_what_an_earlier_design_left_is_removed(tmp_path):
    emit(balanced(residual()), tmp_path)
    emit(mlp((4, 8), (4, 4)), tmp_path)
    assert not (tmp_path / "rtl" / "stream_fork.sv").exists()
    assert sorted(p.name for p in (tmp_path / "mem").iterdir()) == [
        "fc1_bias.mem",
        "fc1_weight.mem",
    ]


def test_a_comment_is_no_use_of_a_component():
    assert used_components("// fixed_relu #(\n/* fifo #( */ gearbox #(") == ["gearbox"]


@pytest.fixture
def libraries(monkeypatch):
    monkeypatch.setattr(emit_module, "_LIBRARIES", [*ROOMS])


def component_in(folder, name, text):
    (folder / name).mkdir(parents=True)
    (folder / name / f"{name}.sv").write_text(text)
    return folder


def test_components_of_a_users_own_library_are_found_with_what_they_use(tmp_path, libraries):
    own = component_in(tmp_path / "rtl", "my_op", "skid_buffer #(.DATA_WIDTH(8)) u_skid ();")
    assert used_components("my_op #(") == []
    add_library(own)
    add_library(own)  # twice is once
    assert used_components("my_op #(") == ["my_op", "skid_buffer"]


def test_a_library_without_components_or_with_taken_names_is_refused(tmp_path, libraries):
    with pytest.raises(HardwareError, match=r"there is no <component>/<component>.sv in"):
        add_library(tmp_path)
    taken = component_in(tmp_path / "rtl", "fifo", "")
    with pytest.raises(HardwareError, match=r"names components that exist: \['fifo'\]"):
        add_library(taken)


def test_top_names_what_users_know():
    text = top_text(mlp((4, 8), (4, 4)))
    for name in ("fixed_linear", "u_fc1_weight_source", "u_fc1_bias_source", "data_in_0_valid",
                 "DATA_IN_0_TENSOR_SIZE_DIM_0", "DATA_OUT_0_PARALLELISM_DIM_0"):  # fmt: skip
        assert name in text


def test_nobody_can_override_the_sizes_of_a_top():
    text = top_text(mlp((4, 8), (4, 4)))
    assert "localparam int DATA_IN_0_PRECISION_0" in text
    assert not re.search(r"\bparameter\b", text)


def test_nothing_is_written_for_a_design_that_is_not_sound(tmp_path):
    design = residual()
    broken = type(design)(design.name, design.inputs, design.stages, {})
    with pytest.raises(HardwareError):
        emit(broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_memory_files_have_as_many_words_and_digits_as_the_rom(tmp_path):
    design = mlp((6, 4), (3, 2))
    emit(design, tmp_path)
    (memory,) = [m for m in design.stage("fc1").component.memories() if m.name == "weight"]
    words = (tmp_path / "mem" / "fc1_weight.mem").read_text().split()
    assert len(words) == len(memory.words) == 4
    assert {len(w) for w in words} == {memory.width // 4}


def test_interface_and_vectors_come_back_from_disk(tmp_path):
    design = balanced(residual())
    inputs = random_inputs(design, 3)
    write_files(emit(design, tmp_path), vector_files(design, inputs))
    interface = read_interface(tmp_path)
    assert interface == design.interface()
    assert (read_vectors(tmp_path, interface.inputs)["data_in_0"] == inputs["data_in_0"]).all()
    wanted = design.golden(inputs)["data_out_0"]
    assert (read_vectors(tmp_path, interface.outputs)["data_out_0"] == wanted).all()


def test_missing_files_name_the_pass_that_writes_them(tmp_path):
    with pytest.raises(HardwareError, match="Run emit_verilog_top_transform_pass first"):
        read_interface(tmp_path)
    with pytest.raises(HardwareError, match="Run emit_cocotb_transform_pass first"):
        read_vectors(tmp_path, mlp((4, 8), (4, 4)).inputs)


def test_design_json_names_every_stage(tmp_path):
    design = balanced(residual())
    told = json.loads((emit(design, tmp_path) / "design.json").read_text())
    assert [s["name"] for s in told["stages"]] == [s.name for s in design.stages]


def test_the_examples_in_the_documentation_run():
    assert doctest.testmod(emit_module).failed == 0


def test_every_component_is_a_folder_with_a_module_of_its_name():
    for name, path in rtl_sources().items():
        assert path.parent.name == name and f"module {name} " in path.read_text()


@pytest.mark.sim("verilator", "pyslang")
def test_emitted_rtl_is_silent_under_lint_and_has_the_ports_of_the_metadata(tmp_path):
    design = balanced(residual())
    emit(design, tmp_path)
    assert lint(tmp_path) == ""
    widths = elaborate(tmp_path)
    for name, stream in {**design.inputs, **design.output_streams()}.items():
        assert widths[name] == stream.beat_width
