"""The digits MLP 64-32-10 by HGQ2 and alkaid: widths learned for every weight, an image per cycle.

    python bench/rivals/digits_hgq.py data out/digits.npz     # where MASE is installed
    KERAS_BACKEND=torch python bench/rivals/digits_hgq.py train out/digits.npz out/hgq --jobs 16

The second step needs HGQ2, keras, alkaid (x86-64 Linux alone) and MASE with pyosys. The weight of
HGQ2's resource term (beta) rises from the first to the last epoch; whatever model is on the front
of test accuracy and HGQ2's own estimate in any epoch is kept, and of all runs the front goes
through alkaid, with and without three-input adders and for two bounds of depth. Cells are counted
by the Yosys script that counts the designs of MASE; `rows.json` has every count.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

HIDDEN, CLASSES = 32, 10
CUTOFF = 5
"""Delay of a stage of alkaid's pipeline, in its units; its own command line's choice."""
LEAST = 0.92
"""Models below that share of right test images are not kept."""
SETTINGS = [
    (b0, b1, rate, batch, width)
    for b0, b1 in ((1e-6, 1e-3), (1e-5, 5e-4), (1e-5, 2e-3), (3e-5, 3e-4))
    for rate, batch in ((3e-3, 64), (1e-2, 256))
    for width in (4, 6)
] + [
    (b0, b1, rate, 512, width)
    for b0, b1 in ((1e-6, 3e-4), (1e-5, 2e-4), (1e-5, 6e-4), (3e-5, 3e-4))
    for rate in (1e-2, 2e-2)
    for width in (3, 4)
]
"""Of each run: beta at the start and at the end, rate of learning, images of a step, and bits of a
weight at the start."""


def model_of(beta: float, width: int) -> Any:
    """The network, with HGQ2's defaults but for the start of beta and of the widths."""
    import keras
    from hgq.config import LayerConfigScope, QuantizerConfig, QuantizerConfigScope
    from hgq.layers import QDense

    with (
        QuantizerConfigScope(place="all", default_q_type="kbi", overflow_mode="SAT_SYM"),
        QuantizerConfigScope(place="datalane", default_q_type="kif", overflow_mode="WRAP"),
        QuantizerConfigScope(place="weight", b0=width),
        LayerConfigScope(enable_ebops=True, beta0=beta),
    ):
        image = QuantizerConfig("kif", "datalane", k0=False, i0=1, f0=4)
        return keras.Sequential(
            [
                keras.layers.Input((64,)),
                QDense(HIDDEN, activation="relu", iq_conf=image),
                QDense(CLASSES),
            ]
        )


def train(data: Any, folder: Path, seed: int, settings: dict[str, float]) -> None:
    """One run of `seconds`: the front of its epochs, as files."""
    import keras
    import torch
    from hgq.utils.sugar import BetaScheduler, FreeEBOPs, ParetoFront, PieceWiseSchedule

    torch.set_num_threads(1)
    keras.utils.set_random_seed(seed)
    batch = int(settings["batch"])
    model = model_of(settings["beta0"], int(settings["width"]))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(settings["rate"]), loss, metrics=["accuracy"])
    model.fit(data["train_x"], data["train_y"], batch_size=batch, epochs=1, verbose=0)
    start = time.perf_counter()
    model.fit(data["train_x"], data["train_y"], batch_size=batch, epochs=3, verbose=0)
    epochs = max(20, int(settings["seconds"] / ((time.perf_counter() - start) / 3 * 1.25)))
    key = [(0, settings["beta0"]), (epochs // 8, settings["beta0"]), (epochs, settings["beta1"])]
    steps = epochs * -(-len(data["train_x"]) // batch)
    rate = keras.optimizers.schedules.CosineDecay(settings["rate"], steps, alpha=0.1)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    front = ParetoFront(
        folder,
        ["val_accuracy", "ebops"],
        [1, -1],
        fname_format="{epoch:05d}_{val_accuracy:.5f}_{ebops:.0f}.keras",
        enable_if=lambda logs: logs["val_accuracy"] > LEAST,
    )
    model.fit(
        data["train_x"],
        data["train_y"],
        batch_size=batch,
        epochs=epochs,
        verbose=0,
        validation_data=(data["test_x"], data["test_y"]),
        callbacks=[
            BetaScheduler(PieceWiseSchedule([(*k, "log") for k in key])),
            FreeEBOPs(),
            front,
        ],
    )


def train_one(file: Path, folder: Path, seed: int, settings: dict[str, float]) -> str:
    """A run in a process of its own."""
    place = folder / f"run{seed}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "settings.json").write_text(json.dumps(settings | {"seed": seed}))
    start = time.perf_counter()
    try:
        train(dict(np.load(file)), place, seed, settings)
    except Exception:  # the other runs go on
        return f"run {seed}: {traceback.format_exc()}"
    return f"run {seed}: {time.perf_counter() - start:.0f} s"


def kept(folder: Path, most: int) -> list[Path]:
    """For each count of right images the model with the least estimate, on the front or near it."""
    found: dict[float, tuple[float, Path]] = {}
    for path in folder.glob("run*/*.keras"):
        _, accuracy, estimate = path.stem.split("_")
        each = (float(estimate), path)
        found[float(accuracy)] = min(found.get(float(accuracy), each), each)
    front: list[tuple[float, Path]] = []
    for accuracy in sorted(found, reverse=True):
        if not front or found[accuracy][0] < 1.1 * front[-1][0]:
            front.append(found[accuracy])
    return [path for _, path in front[:most]]


def rounded_inputs(model: Any, options: dict[str, int]) -> Any:
    """Inputs that come rounded to the width that was learned for each, as they do in MASE."""
    import keras
    from alkaid.trace import FVArray

    quantizer = model.layers[0].iq.quantizer
    kif = [
        np.asarray(keras.ops.convert_to_numpy(quantizer.bw_mapper.bw_to_x(x, (1, 64))))
        for x in quantizer.kif
    ]
    k, i, f = (x.astype(np.int8)[0] for x in kif)
    return FVArray.from_kif(k, i, f, solver_options=options)


def convert(file: Path, path: Path, place: Path, ternary: bool, depth: int) -> dict[str, Any]:
    """A model as Verilog by alkaid, and its cells by Yosys."""
    import hgq  # noqa: F401  (its layers, for keras)
    import keras
    from alkaid.codegen import RTLModel
    from alkaid.converter import trace_model
    from alkaid.trace import trace
    from hgq.utils import trace_minmax

    from chop.hw.flow.synth import synthesize

    data = dict(np.load(file))
    model = keras.models.load_model(path, compile=False)
    estimate = trace_minmax(model, data["train_x"], verbose=False)
    inputs, outputs = trace_model(
        model, solver_options={"hard_dc": depth}, inputs=rounded_inputs(model, {"hard_dc": depth})
    )
    logic = trace(inputs, outputs)
    images = np.asarray(keras.ops.convert_to_numpy(model.layers[0].iq(data["test_x"])))
    answer = logic.predict(images.astype(np.float64), n_threads=1)
    soft = np.asarray(keras.ops.convert_to_numpy(model(data["test_x"])))
    rtl = RTLModel(
        logic, place, "top", latency_cutoff=CUTOFF, print_latency=False, ternary_fuse=ternary
    )
    rtl.write()
    (place / "rtl").mkdir(exist_ok=True)
    for source in (place / "src").rglob("*.v"):
        if "wrapper" not in source.name:
            (place / "rtl" / f"{source.stem}.sv").write_bytes(source.read_bytes())
    area = synthesize(place)
    return {
        "model": f"{path.parent.name}/{path.name}",
        "ternary": ternary,
        "hard_dc": depth,
        "right": int((answer.reshape(-1, CLASSES).argmax(1) == data["test_y"]).sum()),
        "right_in_keras": int((soft.argmax(1) == data["test_y"]).sum()),
        "ebops": float(estimate),
        "alkaid_cost": float(logic.cost),
        "latency": rtl.latency,
        **{name: getattr(area, name) for name in ("lut", "ff", "dsp", "lutram", "bram")},
    }


def convert_one(job: tuple[Any, ...]) -> dict[str, Any]:
    """A conversion whose failure is written down."""
    try:
        return convert(*job)
    except Exception:
        return {"model": str(job[1]), "error": traceback.format_exc()}


def run(args: argparse.Namespace) -> None:
    """Train, choose, convert, count."""
    kinds = [
        {"beta0": b0, "beta1": b1, "rate": rate, "batch": batch, "width": width}
        for b0, b1, rate, batch, width in SETTINGS
    ]
    args.folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        runs = [
            pool.submit(train_one, args.file, args.folder, n, kind | {"seconds": args.seconds})
            for n, kind in list(enumerate(kinds))[args.first : args.first + args.runs]
        ]
        for done in runs:
            print(done.result(), flush=True)
        jobs = [
            (args.file, path, args.folder / f"rtl_{n}_{int(t)}_{depth}", t, depth)
            for n, path in enumerate(kept(args.folder, args.models))
            for t, depth in ((True, 2), (False, 2), (False, 5))
        ]
        print(len(jobs), "conversions", flush=True)
        rows = []
        for row in as_completed([pool.submit(convert_one, job) for job in jobs]):
            rows.append(row.result())
            print(json.dumps(rows[-1]), flush=True)
            (args.folder / "rows.json").write_text(json.dumps(rows, indent=1))


def write_data(args: argparse.Namespace) -> None:
    """The images of `examples/digits_hardware.py`, split as there."""
    sys.path.append(str(Path(__file__).parents[2] / "examples"))
    import digits_hardware

    data = digits_hardware.load()
    np.savez(
        args.file,
        train_x=data.train_images.flatten(1).numpy(),
        train_y=data.train_labels.numpy(),
        test_x=data.test_images.flatten(1).numpy(),
        test_y=data.test_labels.numpy(),
    )


def main() -> None:
    """One of the two steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    steps = parser.add_subparsers(required=True)
    data = steps.add_parser("data")
    data.add_argument("file", type=Path)
    data.set_defaults(run=write_data)
    training = steps.add_parser("train")
    training.add_argument("file", type=Path)
    training.add_argument("folder", type=Path)
    training.add_argument("--jobs", type=int, default=16)
    training.add_argument("--seconds", type=float, default=200, help="of each run")
    training.add_argument("--first", type=int, default=0, help="run, of 32")
    training.add_argument("--runs", type=int, default=32)
    training.add_argument("--models", type=int, default=20, help="that go through alkaid")
    training.set_defaults(run=run)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
