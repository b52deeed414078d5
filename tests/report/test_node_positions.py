import itertools

from report_data import many_nodes

from chop.report.node_positions import block_of, place, place_blocks, place_nodes, shorten


def overlaps(a, b):
    return abs(a[0] - b[0]) < (a[2] + b[2]) / 2 and abs(a[1] - b[1]) < (a[3] + b[3]) / 2


def test_a_tall_graph_is_wrapped_into_columns_without_overlap():
    placed = place_nodes(many_nodes(300))
    assert placed["height"] < 2 * placed["width"] < 6 * placed["height"]
    assert placed["far"]
    assert not any(overlaps(a, b) for a, b in itertools.combinations(placed["boxes"], 2))


def test_everything_lies_on_the_page():
    placed = place_nodes(many_nodes(300))
    for x, y, width, height in placed["boxes"]:
        assert width / 2 <= x <= placed["width"] - width / 2
        assert height / 2 <= y <= placed["height"] - height / 2


def test_routes_start_and_end_at_their_boxes():
    record = many_nodes(120)
    placed = place_nodes(record)
    for (source, target), route in zip(record["edges"], placed["routes"], strict=True):
        (x, y, width, height), (u, v, wide, high) = (placed["boxes"][i] for i in (source, target))
        assert abs(route[0] - x) <= width / 2 and abs(route[1] - (y + height / 2)) <= 1
        assert abs(route[-2] - u) <= wide / 2 and abs(route[-1] - (v - high / 2)) <= 1


def test_a_short_graph_is_one_column():
    placed = place([("a",), ("b",), ("c",)], [(0, 1), (1, 2)])
    assert placed["far"] == []
    assert len({box[0] for box in placed["boxes"]}) == 1


def test_an_empty_graph_has_a_layout():
    assert place([], [])["boxes"] == []


def test_blocks_are_paths_up_to_their_number():
    def block(path, kind="call_function", target="add"):
        return block_of({"module": path, "kind": kind, "target": target})

    assert block("bert.encoder.layer.11.attention.self") == "bert.encoder.layer.11"
    assert block("bert.pooler.dense.inner") == "bert.pooler"
    assert block("", "call_module", "layer1.0.conv") == "layer1.0"
    assert block("") == "top level"
    assert block("", "placeholder") == "placeholders"


def test_blocks_hold_every_node_once_and_link_as_nodes_do():
    record = many_nodes(40)
    for i, node in enumerate(record["nodes"]):
        node["module"] = f"layers.{i // 10}"
    blocks = place_blocks(record)
    assert blocks["names"] == [f"layers.{i}" for i in range(4)]
    assert sorted(itertools.chain(*blocks["members"])) == list(range(40))
    assert blocks["edges"] == [(0, 1), (1, 2), (2, 3)]


def test_blocks_that_tell_nothing_are_left_out():
    assert place_blocks(many_nodes(40)) is None  # one block: the top level


def test_a_long_label_loses_its_middle():
    assert len(shorten("a" * 30 + "end")) == 24
    assert shorten("a" * 30 + "end").endswith("end")
