"""The layered drawing: geometry, text safety, determinism and size."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise

import pytest
from work import count_calls

from graph.drawing import Box, DrawError, Edge, Layout, layout, to_dot, to_svg

SVG = "{http://www.w3.org/2000/svg}"


def random_drawing(seed: int, count: int = 40) -> tuple[list[Box], list[Edge]]:
    rng = random.Random(seed)
    boxes = [
        Box(f"n{i}", ("op",) * rng.randint(1, 4) + ("x" * rng.randint(1, 30),))
        for i in range(count)
    ]
    pairs = [(rng.randrange(i), i) for i in range(1, count) for _ in range(rng.randint(0, 3))]
    return boxes, [Edge(f"n{a}", f"n{b}") for a, b in pairs]


def spans(found: Layout) -> list[tuple[float, float, float, float]]:
    return [
        (b.x - b.width / 2, b.x + b.width / 2, b.y - b.height / 2, b.y + b.height / 2)
        for b in found.boxes
    ]


@pytest.mark.parametrize("seed", range(8))
def test_boxes_never_overlap_and_lie_inside_the_canvas(seed: int) -> None:
    found = layout(*random_drawing(seed))
    for a, b in combinations(spans(found), 2):
        assert a[1] <= b[0] or b[1] <= a[0] or a[3] <= b[2] or b[3] <= a[2]
    for left, right, top, bottom in spans(found):
        assert left >= 0 and top >= 0 and right <= found.width and bottom <= found.height


@pytest.mark.parametrize("seed", range(8))
def test_edges_run_down_from_box_to_box_and_cross_no_other_box(seed: int) -> None:
    boxes, edges = random_drawing(seed)
    found = layout(boxes, edges)
    number = {box.name: i for i, box in enumerate(boxes)}
    for edge, route in zip(edges, found.routes, strict=True):
        source, target = found.boxes[number[edge.source]], found.boxes[number[edge.target]]
        assert route[0][1] == source.y + source.height / 2
        assert route[-1][1] == target.y - target.height / 2
        assert abs(route[0][0] - source.x) <= source.width / 2
        assert abs(route[-1][0] - target.x) <= target.width / 2
        ys = [y for _, y in route]
        assert all(below >= above - 1e-9 for above, below in pairwise(ys))
        for (x, top), (_, bottom) in zip(route[2:-2:2], route[3:-2:2], strict=True):
            for left, right, box_top, box_bottom in spans(found):
                assert not (left < x < right and box_top < bottom and top < box_bottom)


def test_crossing_free_order_is_found_for_crossed_pairs() -> None:
    boxes = [Box(name, (name,)) for name in "abcd"]
    found = layout(boxes, [Edge("a", "d"), Edge("b", "c")])
    a, b, c, d = found.boxes
    assert (a.x < b.x) == (d.x < c.x)


def test_long_edge_is_straight_beside_a_chain() -> None:
    boxes = [Box(f"n{i}", (f"n{i}",)) for i in range(6)]
    edges = [Edge(f"n{i}", f"n{i + 1}") for i in range(5)] + [Edge("n0", "n5")]
    inner = {x for x, _ in layout(boxes, edges).routes[-1][2:-2]}
    assert len(inner) == 1


def test_inputs_sink_to_the_row_above_their_user() -> None:
    boxes = [Box(name, (name,)) for name in ("x", "f", "g", "w")]
    found = layout(boxes, [Edge("x", "f"), Edge("f", "g"), Edge("w", "g")])
    assert found.boxes[3].y == found.boxes[1].y


def test_cycles_and_self_edges_are_drawn() -> None:
    boxes = [Box(name, (name,)) for name in "abc"]
    edges = [Edge("a", "b"), Edge("b", "c"), Edge("c", "a"), Edge("b", "b")]
    root = ET.fromstring(to_svg(boxes, edges))
    assert len(root.findall(f".//{SVG}path[@class='edge']")) == 4
    back = layout(boxes, edges).routes[2]
    assert back[0][1] > back[-1][1]  # c -> a points upwards


def test_output_is_deterministic() -> None:
    boxes, edges = random_drawing(3)
    assert to_svg(boxes, edges, "t") == to_svg(boxes, edges, "t")


def test_text_is_escaped_and_boxes_can_be_found_by_name() -> None:
    nasty = 'a<b> & "c"'
    root = ET.fromstring(to_svg([Box(nasty, (nasty,), "#123", nasty)], [], nasty))
    group = root.find(f".//{SVG}g[@class='box']")
    assert group is not None and group.get("data-name") == nasty
    assert group.findtext(f"{SVG}title") == nasty and group.findtext(f"{SVG}text") == nasty
    assert " " not in str(group.get("id"))


def test_ids_stay_distinct_for_names_that_look_alike() -> None:
    root = ET.fromstring(to_svg([Box("a b", ("1",)), Box("a_b", ("2",)), Box("a.b", ("3",))], []))
    ids = [group.get("id") for group in root.findall(f".//{SVG}g[@class='box']")]
    assert ids == ["box-a%20b", "box-a_b", "box-a.b"]


def test_text_colour_follows_the_fill_and_dark_viewers_have_rules() -> None:
    svg = to_svg(
        [Box("a", ("a",), "#0b1f4d"), Box("b", ("b",), "#fff"), Box("c", ("c",), "gold")], []
    )
    inks = [text.get("fill") for text in ET.fromstring(svg).findall(f".//{SVG}text")]
    assert inks == ["#f8fafc", "#0f172a", "#0f172a"]
    assert "prefers-color-scheme: dark" in svg


def test_edge_labels_and_the_title_are_drawn() -> None:
    svg = to_svg([Box("a", ("a",)), Box("b", ("b",))], [Edge("a", "b", "data_in_0")], "Two boxes")
    texts = [text.text for text in ET.fromstring(svg).findall(f".//{SVG}text")]
    assert texts == ["Two boxes", "a", "b", "data_in_0"]


def test_wide_characters_make_wide_boxes() -> None:
    narrow, wide = layout([Box("a", ("abcd",)), Box("b", ("図図図図",))], []).boxes
    assert wide.width > narrow.width


def test_empty_drawing_is_valid() -> None:
    assert ET.fromstring(to_svg([], [])).tag == f"{SVG}svg"


def test_dot_quotes_names_lines_and_labels() -> None:
    dot = to_dot([Box('a"', ("x", "y\\z")), Box("b", ("b",))], [Edge('a"', "b", "l")], "T")
    assert 'digraph "T" {' in dot
    assert '"a\\"" [label="x\\ny\\\\z"' in dot
    assert '"a\\"" -> "b" [label="l"];' in dot


@pytest.mark.parametrize("draw", [to_svg, to_dot])
def test_errors_name_the_box(draw: object) -> None:
    assert callable(draw)
    with pytest.raises(DrawError, match="box 'a' is given twice; names must be unique"):
        draw([Box("a", ()), Box("a", ())], [])
    message = "edge 'relu' -> 'out': no box is called 'out'. Did you mean 'out_1'\\?"
    with pytest.raises(DrawError, match=message):
        draw([Box("relu", ()), Box("out_1", ())], [Edge("relu", "out")])


@pytest.mark.no_cover  # calls are counted: nothing else may count them
@pytest.mark.parametrize("kind", ["local", pytest.param("mirrored", marks=pytest.mark.slow)])
def test_the_work_for_a_large_drawing_is_bounded(kind: str) -> None:
    assert count_calls(draw_many, kind, 500) < 5_000_000  # without the bound on sweeps: 12 times


def draw_many(kind: str, count: int) -> None:
    """Draw boxes with edges to boxes near by, or from each to its mirror image."""
    rng = random.Random(0)
    if kind == "local":
        pairs = [(max(0, i - rng.randint(1, 9)), i) for i in range(1, count)]
        pairs += [
            (max(0, i - rng.randint(2, 60)), i) for i in rng.choices(range(count), k=count // 2)
        ]
    else:  # long edges, as in a gradient graph
        pairs = [(i, i + 1) for i in range(count - 1)]
        pairs += [(i, count - 1 - i) for i in range(count // 2)]
    boxes = [Box(f"n{i}", (f"n{i}", "add")) for i in range(count)]
    to_svg(boxes, [Edge(f"n{a}", f"n{b}") for a, b in pairs])


@pytest.mark.parametrize("seed", range(4))
def test_no_path_ends_in_a_line_without_length(seed: int) -> None:
    for path in ET.fromstring(to_svg(*random_drawing(seed))).findall(
        f".//{SVG}path[@class='edge']"
    ):
        points = re.findall(r"-?[\d.]+ -?[\d.]+(?=[LC]|$)", str(path.get("d")))
        assert all(a != b for a, b in pairwise(points))
