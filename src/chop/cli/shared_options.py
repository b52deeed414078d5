"""Options that several commands share: the model, the data, the training, the output folder.

Nothing heavy is imported here, so that help and completion are fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from chop.cli.names import names
from chop.errors import ConfigError

POSITIONAL = {"positional": True}
SECOND = {"positional": 2}
"""Metadata of the second word without a flag."""
STUDY_NAMES = "mase studies --names"
"""Shell command that lists studies for completion."""
Task = Literal[
    "sequence-classification",
    "token-classification",
    "question-answering",
    "image-classification",
    "causal-lm",
    "seq2seq-lm",
    "masked-lm",
    "base",
]


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Output."""

    out: Annotated[
        Path, "Folder for the checkpoint, the records, the figures and the run's config.toml."
    ]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Model."""

    keeps_packed: ClassVar[bool] = False
    """True if the packed weights of a file stay packed; False for commands that change them."""
    keeps_cache: ClassVar[bool] = False
    """True if language models are captured with their cache, so that the result generates."""
    joins_experts: ClassVar[bool] = False
    """True if a mixture of experts is captured as one layer, so that its experts can be split."""

    model: Annotated[
        str | None,
        "A hub name, a Hugging Face folder (also of compressed-tensors), a GGUF, ONNX, QONNX "
        "or torch.export file, module:function or file.py:function that returns a model (or a "
        "model and its inputs), a MaseGraph checkpoint, or a reference model (`mase list models`).",
    ] = field(default=None, metadata=names("models", **POSITIONAL))
    task: Annotated[
        Task | None,
        "Task of a Hugging Face model. Default: the task in its config; for a pre-trained model "
        "classification, or causal-lm if the data is running text.",
    ] = None
    inputs: Annotated[
        tuple[str, ...] | None, "Names of the inputs with which a Hugging Face model is captured."
    ] = None
    input_shape: Annotated[
        tuple[int, ...] | None, "Shape of the example input of a plain model."
    ] = None
    classes: Annotated[
        tuple[str, ...], "Your own classes in a checkpoint, each as module:Class."
    ] = ()
    seed: Annotated[int, "Seed of random weights, data order and all other random choices."] = 0
    plugins: Annotated[
        tuple[str, ...],
        "Your own modules or files that register formats, passes, ops, datasets …; they are "
        "imported first.",
    ] = ()
    trust_remote_code: Annotated[
        bool,
        "Run the Python files that come with a Hugging Face model or tokenizer, and read files of "
        "torch.export, which torch reads with pickle.",
    ] = False
    model_options: Annotated[dict[str, Any], "Arguments of the function that builds the model."] = (
        field(default_factory=dict)
    )


@dataclass(frozen=True, kw_only=True)
class LanguageOptions(ModelOptions):
    """Language model."""

    keeps_packed: ClassVar[bool] = True

    tokenizer: Annotated[
        str | None, "Hub name or folder of the tokenizer. Default: the model's own."
    ] = None
    cache: Annotated[
        str,
        "Number format of keys and values: float, mxint8, mxfp4/16, fixed8.4 …; int8 and int4 have "
        "a scale per row.",
    ] = "float"
    cache_layers: Annotated[
        tuple[str, ...], "Cache formats of single layers, as 0=mxint8,5=float."
    ] = ()
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        "Type in which a Hugging Face model computes. Default: its own type, float32 on a CPU.",
    ] = None
    pack: Annotated[
        str | None,
        "Pack the weights into this format first: mxint8, mxint4/16, mxfp8, mxfp4, int4, int8 …",
    ] = field(default=None, metadata={"check": "chop.kernels.packed_formats:check_pack_format"})
    round_activations: Annotated[
        bool,
        "Round activations to 8 bits (mxint8) in products with packed weights: faster on a CPU.",
    ] = False
    device: Annotated[str, "cpu or cuda."] = "cpu"
    native: Annotated[bool, "Run each decode step on the CPU as one native call, if it can be."] = (
        True
    )


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Data and metric."""

    dataset: Annotated[
        str | None,
        "A built-in dataset (`mase list datasets`), a hub name, a file or folder of text (txt, "
        "parquet, JSON, CSV), or a folder of tokens (train.npz and test.npz, each with an array "
        "`ids`).",
    ] = field(default=None, metadata=names("datasets"))
    tokenizer: Annotated[
        str | None, "Hub name or folder of the tokenizer. Default: the model's own."
    ] = None
    max_token_len: Annotated[
        int | None,
        "Tokens per row: longer texts are cut, running text is split. Default: the model's limit, "
        "at most 512.",
    ] = None
    train_rows: Annotated[
        int | None, "Number of training rows, drawn at random with the same share of each class."
    ] = None
    test_rows: Annotated[
        int | None, "Number of test rows, drawn at random with the same share of each class."
    ] = None
    all_rows: Annotated[
        bool,
        "Evaluate on all test rows. Default: as many as take about a minute on two cores.",
    ] = False
    data_seed: Annotated[int, "Seed of the random draw of rows."] = 0
    validation_share: Annotated[
        float,
        "Share of the training rows to hold out for validation if the dataset has no validation "
        "split. All commands hold out the same rows.",
    ] = 0.1
    metric: Annotated[
        str | None,
        "Metric to report (`mase list metrics`). Default: perplexity for language models, mse for "
        "regression, otherwise accuracy.",
    ] = field(default=None, metadata=names("metrics", closed=True))
    eval_batch_size: Annotated[
        int | None, "Rows per batch for evaluation. Default: 8 for running text, otherwise 64."
    ] = None

    @property
    def measure(self) -> str:
        """Metric to report; accuracy if neither the user nor the model decides."""
        return self.metric or "accuracy"

    @property
    def rows_measured_at_once(self) -> int:
        """Rows per batch for evaluation."""
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
    """Training."""

    learning_rate: Annotated[
        float | None,
        "Learning rate. Default: 5e-5 for a Hugging Face model, 1e-3 for any other.",
    ] = None
    batch_size: Annotated[
        int | None, "Rows per batch for training. Default: 8 for running text, otherwise 32."
    ] = None
    save_steps: Annotated[int, "Training steps between checkpoints."] = 200
    resume: Annotated[bool, "Resume an interrupted run from its checkpoint."] = True
    training: Annotated[dict[str, Any], "Further arguments of transformers' TrainingArguments."] = (
        field(default_factory=dict)
    )

    @property
    def rows_trained_at_once(self) -> int:
        """Rows per batch for training."""
        return self.batch_size or 32


@dataclass(frozen=True, kw_only=True)
class TeacherOptions:
    """Teacher."""

    teacher: Annotated[
        str | None,
        "A float model to follow instead of the labels, in a form of the model. Its vocabulary or "
        "classes are those of the model.",
    ] = None
    temperature: Annotated[
        float, "Divisor of the scores of the model and the teacher before the softmax."
    ] = 1.0
    follow: Annotated[
        tuple[str, ...], "Paths of modules whose outputs follow those of the teacher, too."
    ] = ()
    follow_weight: Annotated[
        float, "Weight of the relative squared errors of these outputs in the loss."
    ] = 1.0
    label_weight: Annotated[float, "Weight of the loss for the labels, with a teacher."] = 0.0
