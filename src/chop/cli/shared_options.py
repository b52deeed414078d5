"""The typed configurations of commands: one source for flags, TOML tables and Python.

Nothing heavy is imported here, so that help and completion are quick. A configuration that holds
the arguments of a pass is beside its command instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from chop.cli.names import REGISTRIES, SPELLING, known_names, names
from chop.errors import ConfigError
from chop.registry import suggest

POSITIONAL = {"positional": True}
STUDY_NAMES = "mase studies --names"
"""The command that completes studies: there are more of them every day."""


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where results go.

    `out`: the folder that gets checkpoint, records, figures and the run's config.toml.
    """

    out: Path


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Where the model comes from.

    `model`: a hub name, a Hugging Face folder, module:function or file.py:function that builds a
    model (or a pair of model and inputs), a MaseGraph checkpoint, or a reference model (`mase list
    models`). `task`: what a Hugging Face model is for; by default the config's task; for a
    pre-trained model classification, or causal-lm on running text. `inputs`: names of the inputs a
    Hugging Face model is traced with. `input_shape`: shape of the example input of a plain model.
    `classes`: module:Class of your own that a checkpoint holds. `seed`: of random weights, the
    order of data and every other choice. `plugins`: modules or files of your own that register
    formats, passes, ops, datasets …; they are imported first. `trust_remote_code`: run the Python
    files that a Hugging Face model or tokenizer brings. `model_options`: arguments of the builder.
    """

    model: str | None = field(default=None, metadata=names("models", **POSITIONAL))
    task: (
        Literal[
            "sequence-classification",
            "token-classification",
            "question-answering",
            "image-classification",
            "causal-lm",
            "seq2seq-lm",
            "masked-lm",
            "base",
        ]
        | None
    ) = None
    inputs: tuple[str, ...] | None = None
    input_shape: tuple[int, ...] | None = None
    classes: tuple[str, ...] = ()
    seed: int = 0
    plugins: tuple[str, ...] = ()
    trust_remote_code: bool = False
    model_options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """What the model learns and is measured on.

    `dataset`: a built-in one (`mase list datasets`), a hub name, a file or a folder of text (txt,
    parquet, JSON, CSV), or a folder of tokens (train.npz, test.npz with one array `ids`).
    `tokenizer`: hub name or folder; by default the model's own. `max_token_len`: longer texts are
    cut, and running text is cut into rows of so many; by default what the model takes, 512 at most.
    `train_rows`: train on so many rows, drawn at random with every class in its share.
    `test_rows`: measure on so many rows, drawn likewise. `data_seed`: of that draw.
    `validation_share`: of the training rows, held out to choose by where the dataset has no
    validation split; the same rows for every command. `metric`: what is measured; by
    default perplexity of language models, mse of regressions, accuracy of the rest.
    `eval_batch_size`: rows at a time when measuring; by default 8 of running text, 64 of others.
    """

    dataset: str | None = field(default=None, metadata=names("datasets"))
    tokenizer: str | None = None
    max_token_len: int | None = None
    train_rows: int | None = None
    test_rows: int | None = None
    data_seed: int = 0
    validation_share: float = 0.1
    metric: (
        Literal[
            "accuracy",
            "precision",
            "recall",
            "f1",
            "matthews_correlation",
            "mse",
            "mae",
            "perplexity",
            "token_agreement",
        ]
        | None
    ) = None
    eval_batch_size: int | None = None

    @property
    def measure(self) -> str:
        """The metric; accuracy where neither anybody nor the model has said."""
        return self.metric or "accuracy"

    @property
    def rows_measured_at_once(self) -> int:
        """Rows at a time when measuring."""
        return self.eval_batch_size or 64

    def __post_init__(self) -> None:
        for name in ("train_rows", "test_rows"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise ConfigError(f"{name}: {count} rows. Allowed: 1 or more.")
        if not 0 <= self.validation_share < 1:
            raise ConfigError(
                f"validation_share: {self.validation_share}. Allowed: from 0 to less than 1."
            )


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How to train.

    `learning_rate`: by default 5e-5 for a Hugging Face model and 1e-3 for any other. `batch_size`:
    rows at a time when training; by default 8 of running text, 32 of others. `save_steps`: steps
    between checkpoints. `resume`: go on from the checkpoint of an interrupted run; otherwise start
    afresh. `training`: further arguments of transformers' TrainingArguments.
    """

    learning_rate: float | None = None
    batch_size: int | None = None
    save_steps: int = 200
    resume: bool = True
    training: dict[str, Any] = field(default_factory=dict)

    @property
    def rows_trained_at_once(self) -> int:
        """Rows at a time when training."""
        return self.batch_size or 32


@dataclass(frozen=True, kw_only=True)
class TraceConfig(ModelOptions, DataOptions, OutputOptions):
    """Tracing.

    `draw`: also write a picture of the graph.
    """

    draw: bool = True
    out: Path = Path("out/trace")


@dataclass(frozen=True, kw_only=True)
class QuantizeConfig(ModelOptions, DataOptions, TrainingOptions, OutputOptions):
    """Number formats.

    `format`: the number format of every operand, by its spelling NAME[/GROUP][:SETTING=VALUE]…:
    mxint4, mxint8/16, mxfp4, fixed8.4, int8/channel, fp8_e4m3 … (see docs/formats.md), or a name of
    `mase list formats` with --width. Default: mxint8, or integer if only --width is given. `width`:
    bits of every operand. `frac_width`: bits behind the point. `type`: ops to quantise; by default
    those with weights: linear, conv1d, embedding … `fit`: choose the bits behind the point of each
    operand of linear layers from values seen on the dataset. `bits`: choose the width of each
    layer's weight for this average over the weights of the model, embeddings included (formats
    mxint, block_fp). `method`: ways to keep accuracy (`mase list methods`); default: round to
    nearest. `observer`: choose the point of fixed point or the scales of integers from values seen
    on the dataset (`mase list observers`); without one scales are measured at each call.
    `calibration_rows`: training rows for `bits`, `method` and `observer`. `evaluate`: measure
    before and after. `qat_epochs`: epochs of training after quantisation. `learn_scales`: train the
    observer's scales, too. `rules`: arguments of quantize_transform_pass in place of the flags
    above. `options`: further arguments of the passes of methods, by method; "calibrate" for the
    observer's.
    """

    format: str | None = field(default=None, metadata=names("formats", check=SPELLING))
    width: int | None = None
    frac_width: int | None = None
    type: tuple[str, ...] | None = field(default=None, metadata=names("ops"))
    fit: bool = False
    bits: float | None = None
    method: tuple[str, ...] | str = field(
        default=("nearest",), metadata=names("methods", closed=True)
    )
    observer: str | None = field(default=None, metadata=names("observers", closed=True))
    calibration_rows: int = 128
    evaluate: bool = False
    qat_epochs: float = 0.0
    learn_scales: bool = False
    rules: dict[str, Any] = field(default_factory=dict)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    out: Path = Path("out/quantize")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.method, str):  # in a file one name, or several as on the command line
            named = tuple(name.strip() for name in self.method.split(","))
            object.__setattr__(self, "method", named)
        short = self.format is not None or self.width is not None or self.frac_width is not None
        if short and self.rules:
            raise ConfigError(
                "format, width and frac_width exclude 'rules'; give one or the other."
            )
        if self.fit and (self.width is None or self.rules):
            raise ConfigError("fit chooses fixed point of a given width: give --width alone.")
        if self.fit and self.observer is not None:
            raise ConfigError("fit is observer min_max for fixed point: give one or the other.")
        if self.bits is not None and (self.width is not None or self.rules or self.fit):
            raise ConfigError("bits chooses the widths: it excludes width, fit and rules.")
        if self.bits is not None and self.type is not None:
            raise ConfigError("bits is the average over all weights: it excludes type.")
        if self.learn_scales and (self.observer is None or not self.qat_epochs):
            raise ConfigError(
                "learn_scales trains what an observer chose: give --observer and --qat-epochs too."
            )
        if self.calibration_rows < 1:
            raise ConfigError(f"calibration_rows must be at least 1, got {self.calibration_rows}.")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(ModelOptions, DataOptions, TrainingOptions, OutputOptions):
    """Training.

    `epochs`: passes over the training rows.
    """

    epochs: float = 1.0
    out: Path = Path("out/train")


@dataclass(frozen=True, kw_only=True)
class EvalConfig(ModelOptions, DataOptions, OutputOptions):
    """Measuring.

    `against`: the model whose choices token_agreement compares with.
    """

    against: str | None = None
    out: Path = Path("out/eval")


@dataclass(frozen=True, kw_only=True)
class ExplainConfig(ModelOptions, DataOptions, OutputOptions):
    """Where a quantised model loses.

    `against`: the float model; without it the layers without their formats stand for it. `rows`:
    training rows to look at. `share`: of the loss, below which a group of layers is not looked
    into. `most`: so many layers are looked into.
    """

    against: str | None = None
    rows: int = 64
    share: float = 0.02
    most: int = 8
    out: Path = Path("out/explain")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rows < 1:
            raise ConfigError(f"rows must be at least 1, got {self.rows}.")


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """What to look at.

    `run`: also load torch, quantise a small model, build the CPU kernels and ask torch for a GPU,
    which takes seconds. `compile`: also compile a small model with torch.compile.
    """

    run: bool = False
    compile: bool = False


@dataclass(frozen=True, kw_only=True)
class ListConfig:
    """What to list.

    `kind`: formats, passes, datasets …; by default all. `plugins`: modules or files of your own
    whose names are listed too.
    """

    kind: str | None = field(default=None, metadata={**POSITIONAL, "choices": REGISTRIES.keys})
    plugins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in REGISTRIES:
            raise ConfigError(f"kind: unknown '{self.kind}'. {suggest(self.kind, REGISTRIES)}")


@dataclass(frozen=True, kw_only=True)
class StudiesConfig:
    """Which studies.

    `study`: one of them, by its folder or name; by default all are listed. `root`: the folder to
    look below. `names`: print the folders alone. `dashboard`: serve the study to a browser until
    Ctrl-C. `port`: where. `browser`: open it there.
    """

    study: str | None = field(default=None, metadata={**POSITIONAL, "lister": STUDY_NAMES})
    root: Path = Path("out")
    names: bool = False
    dashboard: bool = False
    port: int = 8080
    browser: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.port < 2**16:
            raise ConfigError(f"port: {self.port} is none. Allowed: 1 to 65535.")


@dataclass(frozen=True, kw_only=True)
class CleanConfig:
    """What to delete.

    `folders`: output folders of commands, or folders of such folders; by default out. `yes`: do not
    ask. `unfinished`: delete only what interrupted runs keep to go on.
    """

    folders: tuple[str, ...] = field(default=("out",), metadata=POSITIONAL)
    yes: bool = False
    unfinished: bool = False


@dataclass(frozen=True, kw_only=True)
class PassConfig(ModelOptions, DataOptions, OutputOptions):
    """The pass.

    `name`: of a registered pass (`mase list passes`). `args`: its arguments, as in Python.
    """

    name: str | None = field(default=None, metadata=names("passes", closed=True, **POSITIONAL))
    args: dict[str, Any] = field(default_factory=dict)
    out: Path = Path("out/pass")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is None:
            raise ConfigError("no pass given. `mase list passes` shows them.")


@dataclass(frozen=True, kw_only=True)
class CompletionConfig:
    """Which shell.

    `shell`: bash, zsh or fish.
    """

    shell: Literal["bash", "zsh", "fish"] = field(default="bash", metadata=POSITIONAL)


@dataclass(frozen=True, kw_only=True)
class SweepConfig(ModelOptions, DataOptions, TrainingOptions, OutputOptions):
    """The sweep.

    `name`: what varies (`mase list sweeps`). `values`: where to measure, in place of the sweep's
    own values. `seeds`: repeat with each of them. `epochs`: train so long after each compression.
    """

    name: str | None = field(default=None, metadata=names("sweeps", **POSITIONAL))
    values: tuple[float, ...] | None = None
    seeds: tuple[int, ...] = (0,)
    epochs: float = 1.0
    out: Path = Path("out/sweep")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is None:
            raise ConfigError(f"no sweep given. Known: {', '.join(known_names('sweeps'))}.")


@dataclass(frozen=True, kw_only=True)
class BenchConfig(ModelOptions, DataOptions, OutputOptions):
    """The comparison.

    `others` and `against`: further models to measure on the same rows and to time on the same
    inputs, in turns; the first one is the baseline. With --dataset each is measured, too.
    `compile`: also time each through torch.compile. `iterations`: calls to time, each number anew.
    `devices`: cpu, cuda; by default those there are. `batch`: rows of the input, by default as the
    model was traced.
    """

    others: tuple[str, ...] = field(default=(), metadata=names("models", **POSITIONAL))
    against: tuple[str, ...] = ()
    compile: bool = False
    iterations: tuple[int, ...] = (5, 50)
    devices: tuple[str, ...] | None = None
    batch: int | None = None
    out: Path = Path("out/bench")


SearchMode = Literal[
    "compress",
    "compress->train",
    "train",
    "train->compress",
    "train->compress->train",
]


@dataclass(frozen=True, kw_only=True)
class SearchConfig(ModelOptions, DataOptions, TrainingOptions, OutputOptions):
    """The search.

    `trials`: how many points to evaluate, those of earlier runs included. `sampler`: who proposes
    them. `pruner`: who stops trainings that go badly: by the metric, or with hypervolume by the
    metric and the costs together. `workers`: processes that share the work. `engine`: processes of
    this machine, or ray. `storage`: where the study is kept: a file, or a postgresql:// URL that
    machines share. `name`: of the study there. `timeout`: seconds after which no trial is started.
    `formats`: number formats to choose from, layer by layer: names, whose settings are searched, or
    spellings as mxint4 and fixed8.4. Default: mxint. `sparsities`: shares of weights to prune to
    choose from. `by`: choose for each layer (name) or for all layers of a type. `ops`: the ops
    whose formats are chosen; by default those with weights: linear, conv2d, embedding … `costs`:
    what to minimise beside the metric: average_bits, model_bytes, cycles, multipliers, latency,
    flops … `mode`: what happens to a model before it is measured. `epochs`: of each training.
    `apply`: then save the model of this trial: its number, an objective for the best by it, or
    best. `tolerance`: with several objectives, best is the cheapest trial that loses no more than
    this. `carbon_intensity`: grams of CO2 for a kWh of this machine's electricity, where it tells
    what it takes; by default the world's average of 2024 (Ember). `space`: kinds of space to search
    (`mase list spaces`), such as hardware; their tables come from a file, and formats and
    sparsities are short for one.
    """

    trials: int = 20
    sampler: str = field(default="tpe", metadata=names("samplers", closed=True))
    pruner: str = field(default="none", metadata=names("pruners", closed=True))
    workers: int = 1
    engine: str = field(default="processes", metadata=names("engines", closed=True))
    storage: str | None = None
    name: str = "search"
    timeout: float | None = None
    formats: tuple[str, ...] = field(default=(), metadata=names("formats", check=SPELLING))
    sparsities: tuple[float, ...] = ()
    by: Literal["name", "type"] = "name"
    ops: tuple[str, ...] | None = field(default=None, metadata=names("ops"))
    costs: tuple[str, ...] = field(default=("average_bits",), metadata=names("costs", closed=True))
    mode: SearchMode = "compress"
    epochs: float = 1.0
    apply: str | None = None
    tolerance: float = 0.01
    carbon_intensity: float = 473.0
    space: dict[str, Any] = field(default_factory=dict, metadata=names("spaces", tables=True))
    out: Path = Path("out/search")

    def __post_init__(self) -> None:
        super().__post_init__()
        short = bool(self.formats or self.sparsities)
        if short and self.space:
            raise ConfigError("formats and sparsities exclude 'space'; give one or the other.")


@dataclass(frozen=True, kw_only=True)
class ReportConfig(ModelOptions, DataOptions, OutputOptions):
    """The report.

    `title`: at the top of the page. `before`: the model to compare with. `studies`: folders of
    searches. `sweeps`: folders of sweeps. `hardware`: a folder that `mase simulate` wrote for a
    model. `runs`: folders of `mase generate` and `mase shard`, shown too. What is not measured
    anew is taken from the results of the runs that made the models.
    """

    title: str | None = None
    before: str | None = None
    studies: tuple[str, ...] = field(default=(), metadata={"lister": STUDY_NAMES})
    sweeps: tuple[str, ...] = ()
    hardware: str | None = None
    runs: tuple[str, ...] = ()
    out: Path = Path("out/report")


@dataclass(frozen=True, kw_only=True)
class DemoConfig(OutputOptions):
    """The tour.

    `epochs`: of the first training; half of it after pruning and in the formats found.
    `tune_epochs`: of each training inside a sweep.
    `sparsity`: share of the weights to prune. `trials`: of the search. `tolerance`: accuracy that
    may be lost for fewer bytes. `test_rows`: test images to measure and to simulate. `synthesize`:
    also count the cells of the design, which takes longer. `fresh`: repeat the stages that are
    done. `seed`: of weights, data order and search.
    """

    epochs: float = 20.0
    tune_epochs: float = 2.0
    sparsity: float = 0.5
    trials: int = 40
    tolerance: float = 0.03
    test_rows: int = 360
    synthesize: bool = False
    fresh: bool = False
    seed: int = 0
    out: Path = Path("out/demo")
