"""Command lines that are wrong, each in a way that a person may get them wrong.

A line is read as a shell reads it. `{trained}` is the folder of a trained perceptron, `{report}`
that of its report; the other files are those of `FILES`.
"""

from __future__ import annotations

import shlex
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

from chop.cli.commands import COMMANDS
from chop.cli.option import CommandOption, options_of

FILES = {
    "empty.toml": "",
    "broken.toml": "[train\nepochs = ",
    "other.toml": "[prune]\nsparsity = 0.5\n",
    "typo.toml": "[train]\nmodel = 'mlp'\nepoch = 3\n",
    "typed.toml": "[train]\nmodel = 'mlp'\nepochs = 'three'\n",
    "scalar.toml": "train = 3\n",
    "latin.toml": b"[train]\nmodel = '\xe9'\n",
    "text.txt": "this is no checkpoint\n",
    "long.txt": "a line of text that is long enough to be cut into rows\n" * 40,
    "latin.txt": b"caf\xe9 " * 400,
    "table.csv": "a,b\n1,2\n",
    "broken.parquet": b"PAR1 and no more",
    "half.json": '{"format": "mase',
    "own.py": (
        "import torch\n"
        "linear = torch.nn.Linear(4, 2)\n"
        "def model(): return torch.nn.Linear(4, 2)\n"
        "def wants(size): return torch.nn.Linear(size, 2)\n"
        "def number(): return 3\n"
        "def relu(): return torch.nn.ReLU(), torch.zeros(2, 4)\n"
        "def nothing(): return None\n"
        "def three(): return model(), 1, 2\n"
        "def branches():\n"
        "    class Branches(torch.nn.Module):\n"
        "        def forward(self, x): return x if x.sum() > 0 else -x\n"
        "    return Branches(), torch.ones(2, 4)\n"
    ),
    "broken.py": "def model(:\n",
    "needs.py": "import a_package_that_is_not_there\n",
}
FOLDERS = {"empty": {}, "half": {"graph.json": '{"format": "mase-graph"', "graph.safetensors": ""}}

NUMBERS = {int: ("many", "1.5", ""), float: ("many", "")}
"""Texts that are no such number."""


def prepare(folder: Path, mase: Callable[[list[str]], int]) -> None:
    """Write files that are not what they should be, and a checkpoint that is."""
    for name, content in FILES.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    for name, files in FOLDERS.items():
        (folder / name).mkdir()
        for file, content in files.items():
            (folder / name / file).write_text(content)
    train = "train mlp --dataset digits --train-rows 64 --set model_options.hidden=[8] --quiet"
    assert mase([*train.split(), "--out", str(folder / "trained")]) == 0
    report = ["report", str(folder / "trained"), "--quiet", "--out", str(folder / "reported")]
    assert mase(report) == 0


def words_of(line: str, folder: Path) -> list[str]:
    """Return the words of a line, as a shell gives them to a program."""
    places = {"trained": folder / "trained", "report": folder / "reported"}
    for name, place in places.items():
        line = line.replace(f"{{{name}}}", str(place))
    return shlex.split(line)


def is_clear(code: int, told: str) -> bool:
    """Whether a line ended as a wrong one must: with a message of ours, and no other."""
    is_ours = "not an error MASE foresaw" not in told and "Traceback" not in told
    return code in (1, 2) and "mase: " in told and is_ours


def misspelt_options() -> Iterator[str]:
    """Every command with a number that is none, a name that is not allowed, a flag misspelt."""
    for name, command in COMMANDS.items():
        start = (
            f"{name} mlp"
            if name not in ("demo", "doctor", "completion", "sweep", "clean")
            else name
        )
        start = "sweep sparsity mlp" if name == "sweep" else start
        yield f"{start} --no-such-flag"
        yield f"{start} --set nothing=1"
        yield f"{start} --set =1"
        yield f"{start} --config nowhere.toml"
        for option in options_of(command.config):
            yield from _misread(start, option)


def empty_texts() -> Iterator[str]:
    """Yield every command with every option and first word that takes text given as nothing."""
    for name, command in COMMANDS.items():
        for option in options_of(command.config):
            if option.is_switch or option.path[-1] in ("prompt", "shell"):
                continue
            if option.is_positional:
                yield f'{name} ""'
            elif name not in MODELS:
                yield f'{name} {option.flag} ""'
            else:
                yield f'{name} {MODELS[name]} {option.flag} ""'


MODELS = {
    **dict.fromkeys(COMMANDS, "mlp"),
    "sweep": "sparsity mlp",
    "pass": "summarize_graph_analysis_pass mlp",
    "prune": "mlp --sparsity 0.5",
    "generate": "tiny_llama --prompt a",
    "list": "formats",
    "import": "text.txt",
    "prove": "fifo",
}
"""Command -> words that it accepts before its options."""
for _alone in ("demo", "doctor", "completion", "clean", "studies"):
    del MODELS[_alone]


READ = ("dataset", "tokenizer", "sweeps", "studies", "hardware", "runs", "before", "storage")
"""Options that name a folder or a file to read."""


def places() -> Iterator[str]:
    """Yield commands with the root, a file or a folder where another kind of thing is due."""
    for name, words in MODELS.items():
        fields = {option.path[-1] for option in options_of(COMMANDS[name].config)}
        if "model" in fields:
            for place in ("/", ".", "..", "text.txt"):
                more = words.replace("tiny_llama", "mlp")
                yield f"{name} {more.replace('mlp', place)}"
        if "out" in fields:
            for place in ("/", "text.txt", "text.txt/below"):
                yield f"{name} {words} --out {place}"
        for field in READ:
            if field in fields:
                yield f"{name} {words} --{field} /"


def _misread(start: str, option: CommandOption) -> Iterator[str]:
    if option.is_positional or option.is_switch or option.path[-1] in COMMON:
        return
    hints = [h for h in typing.get_args(option.hint) or (option.hint,) if h is not type(None)]
    if typing.get_origin(option.hint) is typing.Literal:
        yield f"{start} {option.flag} nonesuch"
    elif hints[0] in NUMBERS:
        yield f"{start} {option.flag} {NUMBERS[hints[0]][0]}"


COMMON = ("seed", "max_token_len", "eval_batch_size", "save_steps", "test_rows", "metric", "task")
"""Options that many commands share are tried with one of them."""

RANGES = """
train mlp --dataset digits --epochs -1
train mlp --dataset digits --epochs nan
train mlp --dataset digits --epochs inf
train mlp --dataset digits --batch-size 0
train mlp --dataset digits --batch-size -4
train mlp --dataset digits --learning-rate -1
train mlp --dataset digits --learning-rate nan
train mlp --dataset digits --learning-rate 0
train mlp --dataset digits --save-steps 0
train mlp --dataset digits --save-steps -5
train mlp --dataset digits --train-rows 0
train mlp --dataset digits --train-rows -3
train mlp --dataset digits --test-rows 0
train mlp --dataset digits --test-rows -3
train mlp --dataset digits --eval-batch-size 0
train mlp --dataset digits --seed -1
train mlp --dataset digits --seed 99999999999999999999
train mlp --dataset digits --seed x
train mlp --dataset digits --max-token-len x
train mlp --dataset digits --eval-batch-size x
train mlp --dataset digits --save-steps x
train mlp --dataset digits --test-rows x
train mlp --dataset digits --metric acuracy
train mlp --dataset digits --task classify
train mlp --dataset digits --metric mse
train mlp --dataset digits --max-token-len 0
eval mlp --dataset digits --test-rows 0
eval mlp --dataset digits --test-rows -1
eval mlp --dataset digits --eval-batch-size 0
eval mlp --dataset digits --eval-batch-size -1
eval mlp --dataset digits --seed -5
eval mlp --dataset digits --metric f2
prune mlp --sparsity -0.1
prune mlp --sparsity 1
prune mlp --sparsity nan
prune mlp --sparsity 0.5 --finetune-epochs -1 --dataset digits
prune mlp --sparsity 0.5 --finetune-epochs 1
prune mlp --granularity 4:2
prune mlp --granularity 0:4
prune mlp --granularity 2:0
prune mlp --granularity two:four
prune mlp --granularity 2:4:8
prune mlp --granularity channels --sparsity 0.5
prune mlp --sparsity 0.5 --method l3-norm
prune mlp --sparsity 0.5 --scope globally
prune mlp --sparsity 0.5 --method wanda
prune mlp --sparsity 0.5 --seed -1
prune mlp --activation-sparsity 2
prune mlp --sparsity 0.5 --evaluate
quantize mlp --width 0 --format integer
quantize mlp --width -8 --format integer
quantize mlp --width 4096 --format integer
quantize mlp --format integer --width 8 --frac-width 999
quantize mlp --format fp9
quantize mlp --format mxnt4
quantize mlp --format mxint99
quantize mlp --format mxint4/0
quantize mlp --format fixed8.4/32
quantize mlp --format mxint4:widht=3
quantize mlp --format mxint4 --width 8
quantize mlp --width 8 --type liner
quantize mlp --width 8 --type ,
quantize mlp --width 8 --qat-epochs -1 --dataset digits
quantize mlp --width 8 --qat-epochs 1
quantize mlp --width 8 --fit --dataset digits --train-rows 0
quantize mlp --format mxint --width 1
quantize mlp --format mxint --width 8 --frac-width 4
quantize mlp --set rules.linear=3
quantize mlp --set rules.linear.config=3
quantize mlp --set rules.linear.config.name=3
quantize mlp --set rules.linear.config.widht=3
quantize mlp --set rules.linear.confg.width=3
quantize mlp --set rules.by=shape
quantize mlp --set rules.by=name --set rules.nowhere.config.name=integer
quantize mlp --set rules=3
quantize mlp --set rules.linear.config.name=integer --set rules.linear.config.weight_width=wide
lora mlp --dataset digits --rank -1
lora mlp --dataset digits --rank 1.5
lora mlp --dataset digits --alpha nan
lora mlp --dataset digits --dropout 2
lora mlp --dataset digits --dropout -1
lora mlp --dataset digits --target-modules nowhere
lora mlp --dataset digits --epochs -1
lora mlp --rank 4
lora mlp --dataset digits --modules-to-save nowhere
lora mlp --dataset digits --rank 4 --batch-size 0
sweep sparsity mlp
sweep sparsity mlp --dataset digits --values 2
sweep sparsity mlp --dataset digits --values -1
sweep sparsity mlp --dataset digits --values x
sweep fixed_point_width mlp --dataset digits --values 0
sweep fixed_point_width mlp --dataset digits --values 2.5
sweep lora_rank mlp --dataset digits --values 0
sweep lora_rank mlp --dataset digits --values 1.5
sweep fraction_bits mlp --dataset digits --values x
sweep sparsity mlp --dataset digits --values 0.5 --seeds -1
sweep sparsity mlp --dataset digits --values 0.5 --seeds x
sweep sparsity mlp --dataset digits --epochs -2
sweep sparsty mlp --dataset digits
sweep sparsity --dataset digits
search mlp --formats integer
search mlp --dataset digits --formats intger
search mlp --dataset digits --formats integer --trials 0
search mlp --dataset digits --formats integer --trials -5
search mlp --dataset digits --formats integer --workers 0
search mlp --dataset digits --formats integer --workers -1
search mlp --dataset digits --formats integer --sampler tpee
search mlp --dataset digits --formats integer --pruner medain
search mlp --dataset digits --formats integer --engine rey
search mlp --dataset digits --formats integer --engine rey --workers 2
search mlp --dataset digits --formats integer --costs average_bit
search mlp --dataset digits --formats integer --ops liner
search mlp --dataset digits --formats integer --by names
search mlp --dataset digits --formats integer --mode compres
search mlp --dataset digits --formats integer --timeout -1
search mlp --dataset digits --formats integer --timeout nan
search mlp --dataset digits --formats integer --tolerance -1
search mlp --dataset digits --formats integer --tolerance nan
search mlp --dataset digits --formats integer --trials 1 --apply worst
search mlp --dataset digits --formats integer --trials 1 --apply 99
search mlp --dataset digits --formats integer --storage mysql://host/db
search mlp --dataset digits --formats integer --storage empty
search mlp --dataset digits --formats integer --storage text.txt
search mlp --dataset digits --formats integer --storage postgresql://
search mlp --dataset digits --formats integer --storage postgresql://[
search mlp --dataset digits --sparsities 2
search mlp --dataset digits --sparsities -1
search mlp --dataset digits --sparsities x
search mlp --dataset digits --set space.precison.formats=["integer"]
search mlp --dataset digits --set space=3
search mlp --dataset digits --set space.precision=3
search mlp --dataset digits --formats integer --set space.precision.formats=["integer"]
search mlp --dataset digits --formats integer --epochs -1 --mode compress->train
search mlp --dataset digits --formats integer --seed -1
search mlp --dataset digits --formats integer --name
bench mlp --iterations 0
bench mlp --iterations -1
bench mlp --iterations x
bench mlp --iterations ,
bench mlp --batch 0
bench mlp --batch -1
bench mlp --devices tpu
bench mlp --devices cuda:99
bench mlp --against nowhere
bench mlp --against text.txt
bench mlp --against tiny_bert
bench mlp nowhere
bench mlp text.txt
bench mlp tiny_bert
bench mlp cnn --dataset sequences
bench mlp cnn --against nowhere
bench --dataset digits
studies nowhere
studies --root text.txt
studies --root /
studies /
clean /
studies --port 0
studies --port 99999
studies --port x
studies --root empty --dashboard
studies mlp --root empty --dashboard
studies a b
clean nowhere
clean text.txt
clean nowhere --yes
clean --yes nowhere
clean trained
clean --folders out
clean --out x
search mlp --dataset digits --carbon-intensity -1
search mlp --dataset digits --carbon-intensity nan
search mlp --dataset digits --pruner hypervolum
search own.py:relu --dataset digits
quantize own.py:relu
quantize mlp --type embedding
eval tiny_llama
eval tiny_llama --dataset digits
eval tiny_llama --dataset empty
eval tiny_llama --dataset text.txt
eval tiny_llama --dataset latin.txt
eval tiny_llama --dataset own.py
eval tiny_llama --dataset nowhere.txt
eval tiny_llama --dataset half.json
eval tiny_llama --dataset table.csv
eval tiny_llama --dataset nowhere.parquet
eval tiny_llama --dataset broken.parquet
eval tiny_llama --dataset long.txt --max-token-len 0
eval tiny_llama --dataset long.txt --max-token-len 1
eval tiny_llama --dataset long.txt --max-token-len 100000
eval tiny_llama --dataset long.txt --metric accuracy
eval tiny_llama --dataset long.txt --tokenizer nowhere
eval tiny_llama --dataset long.txt --tokenizer empty
eval mlp --dataset markov
eval mlp --dataset long.txt
eval tiny_bert --dataset markov
eval tiny_bert --dataset long.txt
train tiny_llama --dataset markov --metric accuracy
train tiny_llama --task base --dataset markov
train tiny_llama --dataset markov --set model_options.vocab_size=4
train tiny_llama --dataset markov --set model_options.num_labels=4
compile mlp --iterations 0
compile mlp --batch 0
compile mlp --mode fastest
compile mlp --backend nonesuch
emit mlp
emit mlp --max-parallelism 0
emit mlp --max-parallelism -1
emit {trained} --target-interval 0
emit {trained} --fit ecp5-58k
emit {trained} --fit ice40-hx8k
emit {trained} --fit ecp5-85k --goal speed
emit {trained} --fit ecp5-85k --least-fps -1
emit {trained} --goal lut
hw {trained} --device ecp5-58k
hw {trained} --board ulx4s
hw {trained} --board ulx3s --device ecp5-85k
hw {trained} --board ulx3s --decode
hw {trained} --board ulx3s --baud 0
hw {trained} --baud 9600
hw {trained} --no-bitstream
simulate {trained} --simulator board
hw {trained} --goal energy
emit {trained} --dataset nowhere
emit text.txt
simulate mlp
simulate mlp --simulator modelsim
simulate empty
simulate nowhere
simulate text.txt
synth mlp
synth mlp --family stratix
synth empty
synth nowhere
shard mlp --mesh-shape 0
shard mlp --mesh-shape -1
shard mlp --mesh-shape 0,2
shard mlp --mesh-shape x
shard mlp --mesh-shape ,
shard mlp --memory -1
shard mlp --memory 0
shard mlp --memory 10 --mesh-shape 2
shard mlp --batch 0
shard mlp --mesh-shape 2 --batch -1
compare
compare nowhere
compare nowhere empty
compare text.txt text.txt
compare {report} {report}
compare {report} {report}/report.html
report mlp --runs nowhere
report nowhere
report mlp --before nowhere
report mlp --studies nowhere
report mlp --studies empty
report mlp --studies text.txt
report mlp --sweeps nowhere
report mlp --sweeps empty
report mlp --sweeps text.txt
report mlp --hardware nowhere
report mlp --hardware empty
report mlp --hardware text.txt
report text.txt
demo --trials 0
demo --trials -1
demo --epochs -1
demo --epochs nan
demo --tune-epochs -1
demo --sparsity 2
demo --sparsity -1
demo --tolerance -1
demo --test-rows 0
demo --test-rows -1
demo --seed -1
demo --out text.txt
demo mlp
doctor mlp
completion tcsh
completion bash zsh
completion --shell bash
"""

PLACES = """
trace
trace nowhere
trace ./nowhere
trace /nowhere/at/all
trace empty
trace half
trace half/graph.json
trace text.txt
trace half.json
trace own.py
trace own.py:
trace :model
trace own.py:nowhere
trace own.py:model
trace own.py:number
trace own.py:nothing
trace own.py:three
trace own.py:linear
trace own.py:wants
trace own.py:branches
trace own.py:model --input-shape 2,3
trace own.py:model --input-shape 0,4
trace own.py:model --input-shape -1,4
trace own.py:model --input-shape x
trace own.py:model --input-shape ,
trace own.py:wants --set model_options.size=four --input-shape 2,4
trace own.py:wants --set model_options.size=-4 --input-shape 2,4
trace own.py:wants --set model_options.sise=4 --input-shape 2,4
trace own.py:model --dataset digits
trace broken.py:model
trace needs.py:model
trace nowhere.py:model
trace no_such_module:build
trace os:getcwd
trace json:nowhere
trace mlp --inputs input_ids
trace mlp --input-shape 2,3
trace mlp --input-shape 0,64
trace mlp --set model_options.hidden=wide
trace mlp --set model_options.hidden=[-4]
trace mlp --set model_options.hiden=[4]
trace mlp --set model_options=3
trace tiny_bert --task base
trace tiny_bert --task causal-lm
trace mlp --task masked-lm
trace tiny_vit --task question-answering
trace tiny_bert --set model_options.hiden_size=16
trace tiny_bert --set model_options.hidden_size=wide
trace tiny_vit --set model_options.num_layers=3
trace mlp --classes json:JSONDecoder
trace own.py:model --task base --input-shape 2,4
trace {trained} --task base
trace {trained} --inputs input_ids
trace {trained} --set model_options.hidden=[8]
trace tiny_bert --inputs input_idz
trace tiny_bert --inputs labels
trace tiny_bert --inputs ,
trace tiny_bert --input-shape 2,3
trace mlpp
trace mlp cnn
trace mlp --seed -1
trace {trained} --classes nowhere:Class
trace {trained} --classes Class
trace {trained} --classes json:dumps
trace {trained} --input-shape 2,3
trace mlp --out text.txt
trace mlp --out text.txt/below
trace mlp --out /proc/nowhere
trace mlp --config empty.toml
trace mlp --config broken.toml
trace mlp --config text.txt
trace mlp --config empty
trace mlp --config latin.toml
train --config other.toml
train --config typo.toml
train --config typed.toml
train --config scalar.toml
train --config latin.toml
train mlp
train --dataset digits
train nowhere --dataset digits
train mlp --dataset digit
train mlp --dataset nowhere
train mlp --dataset empty
train mlp --dataset empty --tokenizer empty
train mlp --dataset text.txt --tokenizer nowhere
train mlp --dataset sequences
train tiny_bert --dataset digits
train mlp --dataset digits --set training.learning_rat=1
train mlp --dataset digits --set training.optim=adamm
train mlp --dataset digits --set training.lr_scheduler_type=square
train mlp --dataset digits --set training=3
train mlp --dataset digits --set training.learning_rate=abc
train mlp --dataset digits --set training.learning_rate=[1]
train mlp --dataset digits --set training.num_train_epochs=many
train mlp --dataset digits --set model.x=3
train mlp --dataset digits --set dataset.x=3
train mlp --dataset digits --set epochs.x=3
train mlp --dataset digits --epochs 1 --set epochs.x=3
quantize mlp --set training.learning_rate=abc
quantize mlp --set training.learning_rat=1
quantize mlp --set model.x=3
quantize mlp --set model_options=3
quantize mlp --method ""
quantize mlp --method ,
quantize mlp --set method=""
quantize mlp --set method=[]
quantize mlp --set out=""
quantize mlp --set format=""
quantize mlp --format integer8
prune mlp --sparsity 0.5 --set training.learning_rate=abc
lora mlp --dataset digits --set training.learning_rate=abc
search mlp --dataset digits --set training.learning_rate=abc
sweep sparsity mlp --dataset digits --set training.learning_rate=abc
train mlp --dataset digits --set training.gradient_accumulation_steps=0
train mlp --dataset digits --set training.max_steps=many
train mlp --dataset digits --out text.txt
eval mlp
eval nowhere --dataset digits
eval mlp --dataset sequences
eval tiny_bert --dataset digits
eval {trained} --dataset sequences
quantize
quantize --width 8
quantize nowhere --width 8
quantize text.txt --width 8
quantize tiny_bert --width 8 --evaluate --dataset digits
prune
prune nowhere --sparsity 0.5
lora
lora nowhere --dataset digits
lora mlp --dataset sequences
sweep sparsity nowhere --dataset digits
search --dataset digits --formats integer
search nowhere --dataset digits --formats integer
bench
bench nowhere
compile
compile nowhere
emit
simulate
synth
shard
report
tarce mlp
--nope
-x
trace --
trace mlp --set
trace mlp --set seed=
trace mlp --set seed=[
trace mlp --set a.b.c=1
trace mlp --set seed.x=1
trace mlp --config
trace mlp --out
"""


def wrong_lines() -> list[str]:
    """All of them, each once."""
    written = [line for text in (RANGES, PLACES) for line in text.strip().splitlines()]
    made = (*misspelt_options(), *empty_texts(), *places())
    return list(dict.fromkeys([*made, *written]))
