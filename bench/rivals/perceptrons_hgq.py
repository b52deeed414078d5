"""Perceptrons by HGQ2 and alkaid: a width learned for every weight, an image per cycle.

    python bench/rivals/perceptrons_hgq.py data digits out/digits.npz
    python bench/rivals/perceptrons_hgq.py data mnist out/mnist.npz --images package/data
    KERAS_BACKEND=jax python bench/rivals/perceptrons_hgq.py train mnist out/mnist.npz out/hgq
    KERAS_BACKEND=jax python bench/rivals/perceptrons_hgq.py convert mnist out/mnist.npz out/hgq

`data` runs where MASE is installed. `train` and `convert` need HGQ2, keras with a backend, alkaid
(x86-64 Linux alone) and MASE with pyosys. The weight of HGQ2's resource term (beta) rises from the
first to the last epoch. Every model is kept that is on the front of accuracy and HGQ2's own
estimate at the end of its epoch. The images that choose are the test images for digits, and those
that are kept back for MNIST. After an interruption, the same command resumes.

`convert` takes models of that front through alkaid, with and without three-input adders and for
two bounds of depth. Cells are counted by the Yosys script that counts the designs of MASE;
`rows.json` has every count. `constant_digits.py rival` and `mnist_tables.py rival` store them.

Inputs come rounded to the width that was learned for each, which takes no cells. MNIST's pixels are
cut there, not rounded, so that nothing has to be added outside either.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = 10
CUTOFF = 5
"""Delay of a stage of alkaid's pipeline, in its units; its own command line's choice."""
BENCH = Path(__file__).resolve().parents[1]
PACKAGES = ("hgq2", "keras", "alkaid", "jax", "torch", "numpy")
SAVED_EVERY = 5
"""Epochs between two checkpoints."""
WAYS = ((False, 2), (True, 2), (False, 5))
"""Conversions of a model: with three-input adders or not, bound of depth."""


@dataclass(frozen=True)
class Run:
    """Settings of a training run."""

    beta0: float
    beta1: float
    """Weight of the resource term in the first and in the last epoch."""
    rate: float
    batch: int
    width: int
    """Bits of a weight at the start."""
    hidden: tuple[int, ...]
    epochs: int
    seed: int = 0
    image_bits: int | None = None
    """Bits of an input behind the point at the start; None: as the subject says."""


@dataclass(frozen=True)
class Subject:
    """Data set, and what is trained for it."""

    inputs: int
    image: dict[str, Any]
    """Format of an input at the start, and its rounding."""
    whole: int
    """Bits of a weight before the point at the start; HGQ2's default is 2."""
    fraction: int
    """Bits of a hidden number behind the point at the start; HGQ2's default is 2."""
    unit: float
    """Number that a code of the file stands for."""
    least: float
    """Models at or below this accuracy are not kept."""
    most: float
    """Models above this estimate of HGQ2's are not converted."""
    moved: bool
    """Training images are moved by up to one pixel, as those of `mnist_tables.py` are."""
    runs: tuple[Run, ...]


def _digits() -> Iterator[Run]:
    for b0, b1 in ((1e-6, 1e-3), (1e-5, 5e-4), (1e-5, 2e-3), (3e-5, 3e-4)):
        for rate, batch in ((3e-3, 64), (1e-2, 256)):
            yield from (Run(b0, b1, rate, batch, width, (32,), 300) for width in (4, 6))
    for b0, b1 in ((1e-6, 3e-4), (1e-5, 2e-4), (1e-5, 6e-4), (3e-5, 3e-4)):
        for rate in (1e-2, 2e-2):
            yield from (Run(b0, b1, rate, 512, width, (32,), 300) for width in (3, 4))


def _mnist() -> Iterator[Run]:
    """Yield four short runs, for one core, and twelve longer ones."""
    yield Run(1e-6, 5e-5, 5e-3, 1024, 4, (64, 32), 120)
    for seed, hidden in enumerate(((64, 32), (32,), (128, 32)), 1):
        yield Run(1e-6, 5e-4, 5e-3, 1024, 4, hidden, 120, seed, image_bits=1)
    for hidden in ((64, 32), (32,), (128, 32), (64,)):
        for beta in (1e-4, 3e-4, 1e-3):
            yield Run(1e-6, beta, 3e-3, 1024, 4, hidden, 250, seed=4, image_bits=1)


SUBJECTS = {
    "digits": Subject(
        inputs=64,
        image={"k0": False, "i0": 1, "f0": 4},
        whole=2,
        fraction=2,
        unit=1.0,
        least=0.92,
        most=float("inf"),
        moved=False,
        runs=tuple(_digits()),
    ),
    "mnist": Subject(
        inputs=784,
        image={"k0": False, "i0": 0, "f0": 2, "round_mode": "TRN"},
        whole=-2,  # weights of 784 inputs start below 0.09
        fraction=4,
        unit=1 / 256,
        least=0.90,
        most=12_000,  # each bit takes about a LUT, since inputs have one or two
        moved=True,
        runs=tuple(_mnist()),
    ),
}


# -- data ------------------------------------------------------------------------------------------


def write_data(args: argparse.Namespace) -> None:
    """Write the images of training, choice and test of a subject."""
    args.file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.file, **DATA[args.subject](args))


def digits_data(args: argparse.Namespace) -> dict[str, np.ndarray]:
    """Return the images of `examples/digits_hardware.py`, split as there."""
    sys.path.append(str(BENCH.parent / "examples"))
    import digits_hardware

    data = digits_hardware.load()
    tests = (data.test_images.flatten(1).numpy(), data.test_labels.numpy())
    learned = (data.train_images.flatten(1).numpy(), data.train_labels.numpy())
    return _named(learned, tests, tests)


def mnist_data(args: argparse.Namespace) -> dict[str, np.ndarray]:
    """Return the images of `mnist_tables.py`, split as there."""
    sys.path.append(str(BENCH))
    from mnist_tables import HELD_BACK, load

    pixels, labels = (each.numpy() for each in load(args.images, "train"))
    tests, test_labels = (each.numpy() for each in load(args.images, "t10k"))
    return _named(
        (pixels[:-HELD_BACK].reshape(-1, 784), labels[:-HELD_BACK]),
        (pixels[-HELD_BACK:].reshape(-1, 784), labels[-HELD_BACK:]),
        (tests.reshape(-1, 784), test_labels),
    )


def _named(*parts: tuple[np.ndarray, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        f"{name}_{kind}": array
        for name, part in zip(("train", "choice", "test"), parts, strict=True)
        for kind, array in zip("xy", part, strict=True)
    }


DATA = {"digits": digits_data, "mnist": mnist_data}


def read_data(file: Path, subject: Subject) -> dict[str, np.ndarray]:
    """Return the arrays of a file, with inputs in the unit of the subject."""
    with np.load(file) as arrays:
        return {
            name: array if name.endswith("y") else array.astype(np.float32) * subject.unit
            for name, array in arrays.items()
        }


def moved(images: np.ndarray) -> np.ndarray:
    """Return images of 28 x 28 pixels moved by up to one pixel each way."""
    import torch

    sys.path.append(str(BENCH))
    from mnist_tables import shifted

    pixels = torch.from_numpy(images).reshape(-1, 28, 28)
    return np.asarray(shifted(pixels).flatten(1))


# -- training --------------------------------------------------------------------------------------


def model_of(subject: Subject, run: Run) -> Any:
    """Return the network, with HGQ2's defaults but for inputs, beta and the widths at the start."""
    import keras
    from hgq.config import LayerConfigScope, QuantizerConfig, QuantizerConfigScope
    from hgq.layers import QDense

    with (
        QuantizerConfigScope(place="all", default_q_type="kbi", overflow_mode="SAT_SYM"),
        QuantizerConfigScope(place="datalane", default_q_type="kif", overflow_mode="WRAP"),
        QuantizerConfigScope(place="datalane", f0=subject.fraction),
        QuantizerConfigScope(place="weight", b0=run.width, i0=subject.whole),
        LayerConfigScope(enable_ebops=True, beta0=run.beta0),
    ):
        bits = {} if run.image_bits is None else {"f0": run.image_bits}
        image = QuantizerConfig("kif", "datalane", **{**subject.image, **bits})
        first, *others = run.hidden
        return keras.Sequential(
            [
                keras.layers.Input((subject.inputs,)),
                QDense(first, activation="relu", iq_conf=image),
                *(QDense(size, activation="relu") for size in others),
                QDense(CLASSES),
            ]
        )


def compiled(subject: Subject, run: Run, images: int) -> Any:
    """Return the network with its optimiser, whose rate falls to a tenth."""
    import keras

    model = model_of(subject, run)
    steps = run.epochs * -(-images // run.batch)
    rate = keras.optimizers.schedules.CosineDecay(run.rate, steps, alpha=0.1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    return model


def train(subject: Subject, run: Run, data: dict[str, np.ndarray], place: Path) -> None:
    """Train, and leave the front of the epochs as files."""
    import keras
    from hgq.utils.sugar import BetaScheduler, FreeEBOPs, ParetoFront, PieceWiseSchedule

    rises = [(0, run.beta0), (run.epochs // 8, run.beta0), (run.epochs, run.beta1)]
    front = ParetoFront(
        place,
        ["val_accuracy", "ebops"],
        [1, -1],
        fname_format="{epoch:05d}_{val_accuracy:.5f}_{ebops:.0f}.keras",
        enable_if=lambda logs: logs["val_accuracy"] > subject.least,
    )
    beta = BetaScheduler(PieceWiseSchedule([(*each, "log") for each in rises]))
    checkpoint = place / "last" / "model.keras"
    keras.utils.set_random_seed(run.seed)
    if checkpoint.exists():
        model, done = keras.models.load_model(checkpoint), int((place / "epochs").read_text())
    else:
        model, done = compiled(subject, run, len(data["train_x"])), 0
    for epoch in range(done, run.epochs):
        seed_all(1000 * run.seed + epoch)
        told = model.fit(
            moved(data["train_x"]) if subject.moved else data["train_x"],
            data["train_y"],
            batch_size=run.batch,
            initial_epoch=epoch,
            epochs=epoch + 1,
            verbose=0,
            validation_data=(data["choice_x"], data["choice_y"]),
            callbacks=[beta, FreeEBOPs(), front],
        )
        print(place.name, epoch, {k: f"{v[0]:.5g}" for k, v in told.history.items()}, flush=True)
        if (epoch + 1) % SAVED_EVERY == 0 or epoch + 1 == run.epochs:
            checkpoint.parent.mkdir(exist_ok=True)
            model.save(checkpoint)
            (place / "epochs").write_text(str(epoch + 1))


def seed_all(seed: int) -> None:
    """Seed keras and torch, whose numbers move the images."""
    import keras
    import torch

    keras.utils.set_random_seed(seed)
    torch.manual_seed(seed)


def train_one(name: str, file: Path, folder: Path, number: int) -> str:
    """Run or resume a training in a process of its own."""
    subject = SUBJECTS[name]
    run = subject.runs[number]
    place = folder / f"run{number}"
    place.mkdir(parents=True, exist_ok=True)
    facts = {**asdict(run), "versions": versions(), "machine": platform.machine()}
    (place / "settings.json").write_text(json.dumps(facts, indent=1))
    try:
        train(subject, run, read_data(file, subject), place)
    except Exception:  # the other runs go on
        return f"run {number}: {traceback.format_exc()}"
    return f"run {number}: done"


def versions() -> dict[str, str]:
    """Return the versions of the packages that are installed, and of Python."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


# -- hardware --------------------------------------------------------------------------------------


def kept(folder: Path, most: int, largest: float = float("inf")) -> list[Path]:
    """Return the model with the least estimate for each accuracy, on the front or near it.

    `most`: number of models; `largest`: estimate that none exceeds.
    """
    found: dict[float, tuple[float, Path]] = {}
    for path in sorted(folder.glob("run*/*.keras")):
        _, accuracy, estimate = path.stem.split("_")
        each = (float(estimate), path)
        if each[0] > largest:
            continue
        found[float(accuracy)] = min(found.get(float(accuracy), each), each)
    front: list[tuple[float, Path]] = []
    for accuracy in sorted(found, reverse=True):
        if not front or found[accuracy][0] < 1.1 * front[-1][0]:
            front.append(found[accuracy])
    return [path for _, path in spread(front, most)]


def spread(front: list[tuple[float, Path]], most: int) -> list[tuple[float, Path]]:
    """Return at most `most` models, with estimates in nearly equal ratios."""
    if len(front) <= most:
        return front
    estimates = np.log([estimate for estimate, _ in front])
    wanted = np.linspace(estimates[0], estimates[-1], most)
    return [front[k] for k in sorted({int(np.abs(estimates - x).argmin()) for x in wanted})]


def rounded_inputs(model: Any, inputs: int, options: dict[str, int]) -> Any:
    """Return inputs that come rounded to the width that was learned for each."""
    import keras
    from alkaid.trace import FVArray

    quantizer = model.layers[0].iq.quantizer
    kif = [
        np.asarray(keras.ops.convert_to_numpy(quantizer.bw_mapper.bw_to_x(x, (1, inputs))))
        for x in quantizer.kif
    ]
    k, i, f = (x.astype(np.int8)[0] for x in kif)
    return FVArray.from_kif(k, i, f, solver_options=options)


def convert(name: str, file: Path, path: Path, place: Path, way: tuple[bool, int]) -> Any:
    """Convert a model to Verilog by alkaid, and count its cells by Yosys."""
    import hgq  # noqa: F401  (its layers, for keras)
    import keras
    from alkaid.codegen import RTLModel
    from alkaid.converter import trace_model
    from alkaid.trace import trace
    from hgq.utils import trace_minmax

    from chop.hw.flow.synth import synthesize

    subject, (ternary, depth) = SUBJECTS[name], way
    data = read_data(file, subject)
    model = keras.models.load_model(path, compile=False)
    estimate = trace_minmax(model, data["train_x"], verbose=False)
    options = {"hard_dc": depth}
    inputs, outputs = trace_model(
        model,
        solver_options=options,
        inputs=rounded_inputs(model, subject.inputs, options),
    )
    logic = trace(inputs, outputs)
    counts = {}
    for part in ("choice", "test"):
        images = np.asarray(keras.ops.convert_to_numpy(model.layers[0].iq(data[f"{part}_x"])))
        answer = logic.predict(images.astype(np.float64), n_threads=1).reshape(-1, CLASSES)
        soft = np.asarray(keras.ops.convert_to_numpy(model(data[f"{part}_x"])))
        counts[part] = [int((x.argmax(1) == data[f"{part}_y"]).sum()) for x in (answer, soft)]
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
        "right": counts["test"][0],
        "right_in_keras": counts["test"][1],
        "choice_right": counts["choice"][0],
        "ebops": float(estimate),
        "alkaid_cost": float(logic.cost),
        "latency": rtl.latency,
        **{kind: getattr(area, kind) for kind in ("lut", "ff", "dsp", "lutram", "bram")},
    }


def convert_one(job: tuple[Any, ...]) -> dict[str, Any]:
    """Convert; write a failure down."""
    _, _, path, _, (ternary, depth) = job
    try:
        found: dict[str, Any] = convert(*job)
    except Exception:
        model = f"{path.parent.name}/{path.name}"
        known = {"model": model, "ternary": ternary, "hard_dc": depth}
        return {**known, "error": traceback.format_exc()}
    return found


# -- steps -----------------------------------------------------------------------------------------


def train_all(args: argparse.Namespace) -> None:
    """Train the runs that are asked for, each in a process."""
    count = len(SUBJECTS[args.subject].runs)
    numbers = range(count) if args.runs is None else args.runs
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        runs = [pool.submit(train_one, args.subject, args.file, args.folder, n) for n in numbers]
        for done in runs:
            print(done.result(), flush=True)


def convert_all(args: argparse.Namespace) -> None:
    """Convert the models of the front that have no row yet; the first way of all comes first."""
    rows_file = args.folder / "rows.json"
    rows = json.loads(rows_file.read_text()) if rows_file.exists() else []
    done = {(row["model"], row["ternary"], row["hard_dc"]) for row in rows if "lut" in row}
    rows = [row for row in rows if "lut" in row]
    jobs = [
        (args.subject, args.file, path, args.folder / f"rtl_{path.parent.name}_{path.stem}_{n}", w)
        for n, w in enumerate(WAYS[: args.ways])
        for path in kept(args.folder, args.models, SUBJECTS[args.subject].most)
        if (f"{path.parent.name}/{path.name}", *w) not in done
    ]
    print(len(jobs), "conversions", flush=True)
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        for row in as_completed([pool.submit(convert_one, job) for job in jobs]):
            rows.append(row.result())
            print(json.dumps(rows[-1]), flush=True)
            rows_file.write_text(json.dumps(rows, indent=1))


def main() -> None:
    """Run one of the steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    steps = parser.add_subparsers(required=True)
    for name, run in (("data", write_data), ("train", train_all), ("convert", convert_all)):
        step = steps.add_parser(name)
        step.add_argument("subject", choices=SUBJECTS)
        step.add_argument("file", type=Path, help="images, as `data` writes them")
        step.set_defaults(run=run)
        if name == "data":
            step.add_argument("--images", type=Path, help="folder of the unpacked files of MNIST")
            continue
        step.add_argument("folder", type=Path, help="of the trained models")
        step.add_argument("--jobs", type=int, default=1)
        if name == "train":
            step.add_argument("--runs", type=int, nargs="+", help="numbers; default: all")
        else:
            step.add_argument("--models", type=int, default=20, help="that go through alkaid")
            step.add_argument("--ways", type=int, default=len(WAYS), help="conversions of each")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
