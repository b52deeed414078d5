"""The digits MLP of few LUTs, chosen without its test images: held-out ones, a teacher, distortion.

    python bench/constant_digits_held_out.py search out/held_out  # trains
    python bench/constant_digits_held_out.py build out/held_out   # the chosen: RTL, cells

As bench/constant_digits.py, but trained on distorted images and on what a convolutional teacher
says of them (bench/digits_lessons.py). The last epoch is kept. Of the seeds of a setting, the one
that knows most of the training images which were held out is built; all test images then go through
its RTL. They are looked at there and nowhere else, whereas the rows of the rival and those of
bench/constant_digits.py are the epochs with the most test images right.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from constant_digits import Setting, digits, estimate, measure, prepare, prune, reload, right
from digits_lessons import BATCH, Lessons, loss_of, prepare_lessons
from measuring.record import save_section

from chop import MaseGraph
from chop.passes.graph.transforms.prune import CubicSchedule

EPOCHS = 800
TAUGHT, DISTORTED = 0.7, 0.5
"""How much of the loss is the teacher's, and how many of the images of a batch are distorted."""


def settings() -> list[Setting]:
    """What is tried: widths and counts that fill tables of six and five bits, three seeds each."""
    few, some = (4, 2), (5, 3)
    kinds = [
        Setting((2, 2), (3, 1), few, (8, 12)),
        Setting((3, 3), (3, 1), few, (12, 12)),
        Setting((3, 3), (3, 1), some, (17, 17)),
        Setting((3, 3), (3, 1), some, (22, 22)),
        Setting((3, 3), (3, 1), some, (37, 27)),
    ]
    return [replace(kind, seed=seed, epochs=EPOCHS) for seed in range(3) for kind in kinds]


def train(setting: Setting, lessons: Lessons) -> MaseGraph:
    """Trained and pruned."""
    graph = prune(prepare(setting, lessons.images), {"fc1": 0.0, "fc2": 0.0})
    optimiser = torch.optim.Adam(graph.model.parameters(), setting.rate)
    steps = -(-lessons.originals // BATCH)
    rates = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, setting.rate, setting.epochs * steps, pct_start=0.1
    )
    begin, end = setting.epochs // 10, setting.epochs * 6 // 10
    finals = {"fc1": 1 - setting.kept[0] / 64, "fc2": 1 - setting.kept[1] / 32}
    schedules = {name: CubicSchedule(f, begin, end, every=8) for name, f in finals.items()}
    for epoch in range(setting.epochs):
        if schedules["fc1"].is_due(epoch):
            graph = prune(graph, {name: each(epoch) for name, each in schedules.items()})
        for _ in range(steps):
            batch = lessons.draw(DISTORTED)
            optimiser.zero_grad()
            answer = graph.model(lessons.images[batch])
            told = lessons.labels[batch], lessons.scores[batch]
            loss_of(answer, *told, taught=TAUGHT).backward()
            optimiser.step()
            rates.step()
    return graph


def file_of(setting: Setting) -> str:
    """Where the weights of a run are."""
    parts = (*setting.image, *setting.hidden, *setting.weight, *setting.kept, setting.seed)
    return "_".join(str(n) for n in parts) + ".pt"


def try_one(setting: Setting, lessons: Lessons, folder: Path) -> dict[str, Any]:
    """Train, keep the weights, estimate."""
    torch.set_num_threads(1)
    graph = train(setting, lessons)
    graph.model.eval()
    name = file_of(setting)
    torch.save(graph.model.state_dict(), folder / name)
    held = right(graph.model, lessons.held_images, lessons.held_labels)
    told = {"held_out_right": held, "held_out": len(lessons.held_labels)}
    return {**asdict(setting), **told, "estimate": estimate(graph, setting), "file": name}


def search(args: argparse.Namespace) -> None:
    """Train every setting with every seed that is not yet there."""
    args.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    table, stored = args.folder / "tried.json", args.folder / "lessons.pt"
    if not stored.exists():
        torch.save(asdict(prepare_lessons(digits.load())), stored)
    lessons = Lessons(**torch.load(stored, weights_only=True))
    rows = json.loads(table.read_text()) if table.exists() else []
    known = {row["file"] for row in rows}
    missing = [each for each in settings() if file_of(each) not in known][: args.most]
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        runs = [pool.submit(try_one, each, lessons, args.folder) for each in missing]
        for done in as_completed(runs):
            rows.append(done.result())
            print(json.dumps(rows[-1]), flush=True)
            table.write_text(json.dumps(rows, indent=1))


def chosen(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each setting the seed that knows most of the images that were held out."""
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        kind = row["file"].rpartition("_")[0]
        if kind not in best or row["held_out_right"] > best[kind]["held_out_right"]:
            best[kind] = row
    return sorted(best.values(), key=lambda row: row["estimate"])


def build(args: argparse.Namespace) -> None:
    """What a search chose, in RTL."""
    data = digits.load()
    rows = json.loads((args.folder / "tried.json").read_text())
    each = [row | {"adders_per_stage": n} for row in chosen(rows) for n in args.adders_per_stage]
    found = []
    for row in each:
        setting, graph = reload(row, args.folder, data)
        place = f"{Path(row['file']).stem}_every_{setting.adders_per_stage}"
        told = {name: row[name] for name in ("held_out_right", "held_out")}
        found.append(measure(setting, graph, data, args.folder / place) | told)
        print(found[-1], flush=True)
        save_section("constant_digits", "mase_held_out", {"tried": len(rows), "built": found})


def main() -> None:
    """One of the steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    steps = parser.add_subparsers(required=True)
    searching = steps.add_parser("search")
    searching.add_argument("folder", type=Path)
    searching.add_argument("--jobs", type=int, default=2)
    searching.add_argument("--most", type=int, help="runs, of those that are missing")
    searching.set_defaults(run=search)
    building = steps.add_parser("build")
    building.add_argument("folder", type=Path)
    building.add_argument("--adders-per-stage", type=int, nargs="+", default=[3])
    building.set_defaults(run=build)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
