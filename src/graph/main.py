"""Tour of the package in five phases, each with its output and a question answered.

python -m graph.main
"""

from __future__ import annotations

import numpy as np

from graph.backward import backward
from graph.compiler import compile_graph
from graph.errors import CycleError
from graph.evaluator import evaluate, topological_sort
from graph.ir import Graph, Node
from graph.passes import constant_fold, dead_code_elimination, optimize


def example() -> tuple[Graph, Node]:
    """Return loss = (x * w + b)², with a constant sum and an unread node to optimise."""
    graph = Graph()
    x, w = graph.add_input("x"), graph.add_input("w")
    b = graph.add_op("add", [graph.add_const(1.0), graph.add_const(2.0)], name="b")
    y = (x * w).apply("add", b, name="y")
    y.apply("exp", name="unused")
    return graph, y.apply("mul", y, name="loss")


VALUES = {"x": 2.0, "w": 5.0}


def phase_1() -> None:
    """Print the graph as data."""
    graph, _ = example()
    print(graph)
    looped = Graph.from_nodes(_tie_a_knot(graph))
    try:
        topological_sort(looped)
    except CycleError as error:
        print(f"\nWith y reading loss: {error}")
    answer(
        "Why a DAG? An edge says 'is needed to compute'. In a cycle every node would need itself",
        "to exist already: no order of evaluation exists, and no value is defined.",
    )


def _tie_a_knot(graph: Graph) -> list[Node]:
    """Return the example's nodes, but y reads the loss."""
    other = Graph()
    for node in graph:
        inputs = ("mul", "loss") if node.name == "y" else node.inputs
        knot = Node(
            node.name, node.op, inputs, node.shape, node.dtype, value=node.value, graph=other
        )
        other.add_node(knot)
    return list(other)


def phase_2() -> None:
    """Evaluate in topological order."""
    graph, _ = example()
    print("order:", " ".join(node.name for node in topological_sort(graph)))
    for name, value in evaluate(graph, VALUES).items():
        print(f"{name:<7} = {float(value):.6g}")
    answer(
        "Why in topological order? A node's function is called with its inputs' values. Computed",
        "before them, a mul would find nothing to multiply: the values table has no such entry.",
    )


def phase_3() -> None:
    """Add gradients as nodes, and check them by finite differences."""
    graph, loss = example()
    larger, gradients = backward(graph, loss)
    values = evaluate(larger, VALUES)
    step = 1e-6
    for name, node in gradients.items():
        up, down = (
            float(evaluate(graph, {**VALUES, name: VALUES[name] + h}, [loss])["loss"])
            for h in (step, -step)
        )
        exact, estimate = float(values[node.name]), (up - down) / (2 * step)
        print(f"d loss / d {name} = {exact:g}   (finite differences: {estimate:.4f})")
    second, bends = backward(larger, gradients["x"])
    bend = float(evaluate(second, VALUES)[bends["x"].name])
    print(f"d² loss / d x² = {bend:g}   (the gradient is a graph, so it has a gradient)")
    print(f"nodes: {len(graph)} forward, {len(larger)} with gradients")
    answer(
        "Why reverse mode? One backward walk gives the slope of one output for every input; one",
        "forward walk gives every output's slope for one input. Training has one loss and",
        "millions of weights, so reverse mode needs one walk where forward mode needs millions.",
    )


def phase_4() -> None:
    """Optimise: show each pass, and that the order matters."""
    graph, loss = example()
    swept_first = constant_fold(dead_code_elimination(graph, [loss]))
    folded_first = dead_code_elimination(constant_fold(graph), [loss])
    print(f"nodes at first:                 {len(graph)}")
    print(f"eliminate, then fold:           {len(swept_first)}")
    print(f"fold, then eliminate:           {len(folded_first)}")
    larger, gradients = backward(graph, loss)
    outputs = [loss, *gradients.values()]
    done = optimize(larger, outputs)
    print(f"\nloss and gradients, all passes until nothing changes:\n{done}\n\n{done.graph}")
    print(f"\nas Python:\n{compile_graph(done.graph, outputs).source}")
    before, after = (evaluate(g, VALUES, outputs) for g in (larger, done.graph))
    print("\nsame values:", all(np.array_equal(before[name], after[name]) for name in before))
    answer(
        "In what order? Fold first: a folded node no longer reads its inputs, which leaves them",
        "dead for elimination to remove. Elimination never makes anything constant. Simplifying",
        "and merging make more of both, so the four go round until nothing changes.",
    )


def phase_5() -> None:
    """Compare with the same network in torch.fx."""
    from graph import fx_compare  # the one part that needs torch

    fx_compare.main()
    answer(
        "What does torch.fx capture that this IR does not? The module hierarchy, the parameters",
        "that belong to it, and Python calls as written, so that it can be turned back into code.",
        "Shapes and dtypes fx learns only by running the graph; here they are part of every node.",
    )


def answer(*lines: str) -> None:
    """Print the answer to a phase's question."""
    print("\n" + "\n".join(f"  {line}" for line in lines))


PHASES = {
    "computation graph": phase_1,
    "forward evaluation": phase_2,
    "backward pass": phase_3,
    "optimisation passes": phase_4,
    "comparison with torch.fx": phase_5,
}


def main() -> None:
    """Run the five phases in order."""
    for number, (title, phase) in enumerate(PHASES.items(), start=1):
        print(f"{'' if number == 1 else chr(10)}Phase {number}: {title}\n{'=' * 72}")
        phase()


if __name__ == "__main__":
    main()
