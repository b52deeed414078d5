"""Trains a small vision transformer on the digits, compresses it, and writes out/report.html.

    python docs/make_report.py [--picture docs/images/report.png]

With --picture it also opens the report in headless Chromium and takes the picture of the README.
"""

from __future__ import annotations

import argparse
import copy
import shutil
from pathlib import Path

import torch
from torch import Tensor, nn

import chop.passes as passes
from chop import MaseGraph
from chop.actions.fixed_point import fitted_fixed_point, observe_ranges
from chop.dataset import get_dataset
from chop.models import get_model
from chop.report import Report, gather_provenance, write_report

EPOCHS, BATCH, WIDTH, SPARSITY, SEED = 40, 64, 8, 0.5, 0


def train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Fit `model` in place."""
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(images)).split(BATCH):
            optimiser.zero_grad()
            model(pixel_values=images[rows], labels=labels[rows])["loss"].backward()
            optimiser.step()
        schedule.step()


def capture(model: nn.Module, images: Tensor) -> MaseGraph:
    """The annotated graph of `model`."""
    graph = MaseGraph(model.eval(), dummy_in={"pixel_values": images})
    graph, _ = passes.init_metadata_analysis_pass(graph)
    graph, _ = passes.add_common_metadata_analysis_pass(graph)
    return graph


def compress(graph: MaseGraph, images: Tensor) -> MaseGraph:
    """A copy, half of its weights pruned, its linear layers in fixed point fitted to each."""
    after = copy.deepcopy(graph)
    weight = {"sparsity": SPARSITY, "method": "l1-norm", "scope": "local"}
    after, _ = passes.prune_transform_pass(after, {"weight": weight})
    ranges = observe_ranges(after, [{"pixel_values": images}])
    return passes.quantize_transform_pass(after, fitted_fixed_point(ranges, WIDTH))[0]


def accuracy(graph: MaseGraph, images: Tensor, labels: Tensor) -> float:
    """The share of images told right."""
    with torch.no_grad():
        answer = graph.model(pixel_values=images)["logits"].argmax(1)
    return float((answer == labels).float().mean())


def take_picture(report: Path, picture: Path) -> None:
    """The report as a person sees it, one layer selected."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    picture.parent.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport={"width": 1440, "height": 1080}, color_scheme="light")
        page.goto(f"{report.resolve().as_uri()}")
        page.get_by_label("Colour by").select_option("precision")
        page.get_by_role("button", name="Fit the whole graph").click()
        page.get_by_label("Search nodes").fill("fc1")
        page.get_by_label("Search nodes").press("Enter")
        page.get_by_label("Search nodes").fill("")
        page.get_by_role("button", name="Fit the whole graph").click()
        page.wait_for_timeout(300)
        page.screenshot(path=picture)
        browser.close()
    small = Image.open(picture).convert("RGB").quantize(256, Image.Quantize.FASTOCTREE)
    small.save(picture, optimize=True)


def main() -> None:
    """Train, compress, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path, help="also take a picture of the report")
    given = parser.parse_args()
    torch.manual_seed(SEED)
    data = get_dataset("digits")
    (images, labels), (tests, answers) = (
        (data[part].columns["pixel_values"], data[part].columns["labels"])
        for part in ("train", "test")
    )
    model = get_model("tiny_vit")
    train(model, images, labels)
    before = capture(model, tests[:2])
    after = compress(before, images[:256])
    graphs = {"float": before, f"pruned, {WIDTH} bits": after}
    scores = tuple(accuracy(graph, tests, answers) for graph in graphs.values())
    config = {"epochs": EPOCHS, "batch": BATCH, "width": WIDTH, "sparsity": SPARSITY}
    report = Report(
        "Vision transformer on digits",
        graphs,
        {"accuracy": scores},
        provenance=gather_provenance(seed=SEED, config=config),
    )
    path = write_report("out/report.html", report)
    print(path)
    if given.picture:
        take_picture(path, given.picture)


if __name__ == "__main__":
    main()
