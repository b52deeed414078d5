"""Every forged checkpoint is refused with words that say where, and nothing of it runs."""

import ast
import json

import forgeries
import pytest

from chop import MaseGraph
from chop.errors import CheckpointError

ROWS = forgeries.forgeries()


def test_there_are_hundreds_of_forgeries():
    assert len(ROWS) > 350
    assert len({name for name, _, _ in ROWS}) == len(ROWS)


def test_the_checkpoint_they_start_from_is_valid(tmp_path):
    path = forgeries.write_forged(tmp_path, forgeries.description())
    graph = MaseGraph.from_checkpoint(path)
    assert set(graph.model(graph.dummy_in["x"])) == {"logits"}


@pytest.mark.share(3)
@pytest.mark.parametrize(("edit", "words"), [row[1:] for row in ROWS], ids=[r[0] for r in ROWS])
def test_a_forged_checkpoint_is_refused(tmp_path, edit, words):
    told = forgeries.description()
    edit(told)
    path = forgeries.write_forged(tmp_path, told)
    with (
        forgeries.listening() as heard,
        pytest.raises(CheckpointError, match=words) as refused,
    ):
        MaseGraph.from_checkpoint(path)
    assert heard == []
    assert "\n" not in str(refused.value).removeprefix(str(path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace('"format"', '"format": 1, "format"', 1), "there twice"),
        (lambda text: text.replace('"version": 2', '"version": NaN', 1), "version nan"),
        (lambda text: text.replace('"version": 2', '"version": 1e999', 1), "version inf"),
        (
            lambda text: text.replace('"version": 2', f'"version": {"9" * 5000}', 1),
            "not a readable",
        ),
        (lambda text: text[: len(text) // 2], "not a readable JSON file"),
        (lambda text: "[" * 100_000 + "]" * 100_000, "nested deeper than"),
        (lambda text: '{"format": ' + "[" * 200 + "]" * 200 + "}", "nested deeper than"),
        (lambda text: text + "{}", "not a readable JSON file"),
        (lambda text: "", "not a readable JSON file"),
        (lambda text: text.replace("torch.relu", "torch.tanh", 1), "its checksum is not the one"),
        (
            lambda text: text.replace('"sha256": "', '"sha256": "0', 1),
            "its checksum is not the one",
        ),
    ],
)
def test_text_that_reads_two_ways_or_was_edited_is_refused(tmp_path, change, words):
    text = json.dumps(forgeries.description())
    path = forgeries.write_forged(tmp_path, None, text=change(text))
    with pytest.raises(CheckpointError, match=words):
        MaseGraph.from_checkpoint(path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = forgeries.write_forged(tmp_path, forgeries.description())
    path.with_suffix(".json").write_bytes(b'{"format": "mase-graph\xff"}')
    with pytest.raises(CheckpointError, match="not text in UTF-8"):
        MaseGraph.from_checkpoint(path)


def _header(path, change):
    data = path.with_suffix(".safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    new = json.dumps(header).encode()
    path.with_suffix(".safetensors").write_bytes(
        len(new).to_bytes(8, "little") + new + data[8 + size :]
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h["fc.bias"].update(data_offsets=[0, 2**40]),
        lambda h: h["fc.bias"].update(data_offsets=[-4, 12]),
        lambda h: h["fc.bias"].update(data_offsets=[16, 0]),
        lambda h: h["fc.bias"].update(data_offsets=h["fc.weight"]["data_offsets"]),
        lambda h: h["fc.bias"].update(shape=[2**62]),
        lambda h: h["fc.bias"].update(shape=[-4]),
        lambda h: h["fc.bias"].update(dtype="I32"),
        lambda h: h["fc.bias"].update(dtype="OBJECT"),
        lambda h: h.update({"../../evil": h.pop("fc.bias")}),
        lambda h: h.pop("fc.bias"),
        lambda h: h["__metadata__"].update(id="0" * 32),
        lambda h: h.pop("__metadata__"),
    ],
)
def test_a_forged_header_of_tensors_is_refused(tmp_path, change):
    path = forgeries.write_forged(tmp_path, forgeries.description())
    _header(path, change)
    with pytest.raises(CheckpointError, match=r"damaged safetensors|another|dtype|does not hold"):
        MaseGraph.from_checkpoint(path)


def test_a_changed_weight_is_named(tmp_path):
    path = forgeries.write_forged(tmp_path, forgeries.description())
    file = path.with_suffix(".safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model.safetensors, tensor '.*': its checksum is"):
        MaseGraph.from_checkpoint(path)


def test_generated_source_of_what_loads_is_calls_and_no_more(tmp_path):
    path = forgeries.write_forged(tmp_path, forgeries.description())
    tree = ast.parse(MaseGraph.from_checkpoint(path).model.code)
    functions = [part for part in ast.walk(tree) if isinstance(part, ast.FunctionDef)]
    assert [f.name for f in functions] == ["forward"]
    assert not [p for p in ast.walk(tree) if isinstance(p, ast.Lambda | ast.Import | ast.Global)]
