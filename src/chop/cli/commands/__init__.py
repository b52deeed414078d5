"""The commands of `mase`. To add one: a configuration, a function that runs it, and a row here.

A row names both by module, so that showing the help or another command imports neither.
"""

from __future__ import annotations

from dataclasses import dataclass

from chop.cli.places import load_name
from chop.registry import Registry

HERE = "chop.cli.commands"
MODULES = {
    "eval": "evaluate",
    "compile": "compile_model",
    "pass": "run_pass",
    "list": "list_names",
    "export": "export_model",
    "import": "import_model",
}
"""Commands whose names are words of Python's, and the modules that run them."""
CONFIGS = "chop.cli.configs"


@dataclass(frozen=True)
class Command:
    """One command: `config` and `run` are "module:name"."""

    name: str
    summary: str
    config: str
    run: str
    examples: tuple[str, ...]

    def load_config(self) -> type:
        """The dataclass of its configuration."""
        found = load_name(self.config)
        assert isinstance(found, type), f"{self.config} is no class"
        return found


COMMANDS: Registry[Command] = Registry("command")
for _name, _summary, _config, _examples in (
    (
        "trace",
        "capture a model as an annotated graph: summary, picture, checkpoint",
        f"{CONFIGS}:TraceConfig",
        (
            "mase trace mlp",
            "mase trace prajjwal1/bert-tiny --inputs input_ids,attention_mask,labels",
            "mase trace my_project.models:build --input-shape 1,3,32,32 --out out/mine",
        ),
    ),
    (
        "report",
        "one HTML page: the graph, before and after, searches, hardware",
        f"{CONFIGS}:ReportConfig",
        (
            "mase report out/trace",
            "mase report out/quantize --before out/train --dataset digits",
            "mase report out/search --before out/train --studies out/search \\\n"
            "    --hardware out/simulate --title 'Digits in hardware'",
        ),
    ),
    (
        "compare",
        "saved reports side by side: accuracy, bytes, bits, latency, cycles, area, clock",
        f"{HERE}.compare:CompareConfig",
        (
            "mase compare out/report out/other_report",
            "mase compare out/a out/b out/c --out out/abc",
        ),
    ),
    (
        "quantize",
        "put layers into number formats, after training or while training",
        f"{CONFIGS}:QuantizeConfig",
        (
            "mase quantize out/train --format integer --width 8 --frac-width 4",
            "mase quantize out/train --dataset digits --fit --width 6 --qat-epochs 1 --evaluate",
            "mase quantize bert-tiny --set rules.linear.config.name=mxint",
            "mase quantize --config run.toml",
        ),
    ),
    (
        "prune",
        "set the least important weights to zero, or remove channels and heads",
        f"{HERE}.prune:PruneConfig",
        (
            "mase prune out/train --sparsity 0.5 --method l1-norm --scope global",
            "mase prune out/train --granularity 2:4",
            "mase prune out/train --granularity channel --sparsity 0.5 \\\n"
            "    --dataset digits --finetune-epochs 2 --evaluate",
        ),
    ),
    (
        "lora",
        "train low-rank adapters beside frozen layers, and fuse them",
        f"{HERE}.lora:LoraConfig",
        (
            "mase lora out/train --dataset digits --rank 4 --epochs 2",
            "mase lora prajjwal1/bert-tiny --dataset imdb --rank 8 --modules-to-save classifier",
        ),
    ),
    (
        "train",
        "train a model on a dataset; goes on after an interruption",
        f"{CONFIGS}:TrainConfig",
        (
            "mase train mlp --dataset digits --epochs 8 --learning-rate 3e-3",
            "mase train prajjwal1/bert-tiny --dataset imdb --epochs 1 --batch-size 16",
        ),
    ),
    (
        "eval",
        "measure a model on the test rows of a dataset",
        f"{CONFIGS}:EvalConfig",
        (
            "mase eval out/train --dataset digits",
            "mase eval out/quantize --dataset digits --json",
            "mase eval ./llama --metric perplexity --dataset ./text --test-rows 64",
            "mase eval out/quantize --metric token_agreement --against ./llama --dataset ./text",
        ),
    ),
    (
        "generate",
        "let a language model write on from a prompt: tokens/s, memory, cache in a format",
        "chop.cli.generate_config:GenerateConfig",
        (
            "mase generate Qwen/Qwen3-0.6B --prompt 'The weather today is'",
            "mase generate out/mine --tokenizer ./llama --prompt Once --sample --top-k 20",
            "mase generate ./llama --prompt Once --pack mxint4 --cache mxint8",
        ),
    ),
    (
        "explain",
        "why a quantised model is worse: which layers, which operands, what would help",
        f"{CONFIGS}:ExplainConfig",
        (
            "mase explain out/quantize --dataset digits",
            "mase explain out/quantize --dataset digits --against out/train --rows 256",
        ),
    ),
    (
        "sweep",
        "compress over many values, before and after training, with the figure",
        f"{CONFIGS}:SweepConfig",
        (
            "mase sweep fixed_point_width out/train --dataset digits --values 4,6,8",
            "mase sweep sparsity out/train --dataset digits --seeds 0,1,2",
            "mase sweep lora_rank prajjwal1/bert-tiny --dataset imdb",
        ),
    ),
    (
        "search",
        "look for the formats and sparsity that cost least at the same accuracy",
        f"{CONFIGS}:SearchConfig",
        (
            "mase search out/train --dataset digits --formats integer,mxint --trials 40",
            "mase search out/train --dataset digits --formats integer --sparsities 0,0.5,0.9 \\\n"
            "    --costs model_bytes --workers 2 --apply best",
            "mase search --config search.toml --storage postgresql://host/studies",
            "mase search out/train --dataset digits --space hardware --trials 40",
        ),
    ),
    (
        "pass",
        "run any pass on a model, one of your own too",
        f"{CONFIGS}:PassConfig",
        (
            "mase pass summarize_graph_analysis_pass out/train",
            'mase pass report_node_meta_param_analysis_pass mlp --set args.which=["common"]',
            "mase pass remove_dropout_transform_pass prajjwal1/bert-tiny --out out/plain",
        ),
    ),
    (
        "compile",
        "run a model through torch.compile: graph breaks, latency before and after",
        f"{HERE}.compile_model:CompileConfig",
        ("mase compile out/train", "mase compile prajjwal1/bert-tiny --mode max-autotune"),
    ),
    (
        "bench",
        "models side by side: accuracy or perplexity, bytes, bits, latency",
        f"{CONFIGS}:BenchConfig",
        (
            "mase bench out/train out/quantize --dataset digits",
            "mase bench ./llama out/quantize --dataset ./text --test-rows 64 --batch 1",
            "mase bench prajjwal1/bert-tiny --compile --iterations 5,50,200",
        ),
    ),
    (
        "export",
        "write a model for onnxruntime, llama.cpp, transformers or QONNX",
        "chop.cli.export_configs:ExportConfig",
        (
            "mase export out/quantize --to onnx",
            "mase export ./llama --task causal-lm --to gguf --format Q4_0 --tokenizer ./llama",
            "mase export out/quantize --to compressed-tensors --fallback float",
        ),
    ),
    (
        "import",
        "read a GGUF file or a folder of compressed-tensors as a graph",
        "chop.cli.export_configs:ImportConfig",
        ("mase import model.gguf", "mase import ./model --source compressed-tensors"),
    ),
    (
        "emit",
        "write the SystemVerilog of a quantised model, with its test bench",
        f"{HERE}.emit:EmitConfig",
        (
            "mase emit out/quantize --dataset digits --max-parallelism 8",
            "mase emit out/quantize --target-interval 64",
            "mase emit out/quantize --fit ecp5-25k --goal fps",
            "mase emit out/search --trial 7",
        ),
    ),
    (
        "simulate",
        "run emitted hardware bit by bit against the model",
        f"{HERE}.simulate:SimulateConfig",
        ("mase simulate out/emit", "mase simulate out/quantize --dataset digits --waves"),
    ),
    (
        "synth",
        "the area of emitted hardware on a device family",
        f"{HERE}.synth:SynthConfig",
        ("mase synth out/emit", "mase synth out/quantize --family ecp5"),
    ),
    (
        "hw",
        "a quantised model down to a part: simulation, routed clock, bitstream",
        f"{HERE}.hw:HwConfig",
        (
            "mase hw out/quantize --dataset digits --device ecp5-85k",
            "mase hw out/quantize --device ice40-hx8k --max-multipliers 4 --seeds 1,2,3,4,5",
        ),
    ),
    (
        "prove",
        "prove the laws of hardware components for all inputs and all times",
        f"{HERE}.prove:ProveConfig",
        ("mase prove", "mase prove fifo", "mase prove fixed_cast --limit 600"),
    ),
    (
        "shard",
        "plan how a model is split over devices, and check the plan",
        f"{HERE}.shard:ShardConfig",
        (
            "mase shard tiny_bert --mesh-shape 1,4",
            "mase shard prajjwal1/bert-tiny --mesh-shape 2,2 --memory 16000000 --verify",
        ),
    ),
    (
        "demo",
        "the whole system on handwritten digits in about two minutes, without a network",
        f"{CONFIGS}:DemoConfig",
        ("mase demo", "mase demo --trials 60 --synthesize --out out/long_demo"),
    ),
    (
        "list",
        "what is registered: formats, passes, datasets, models, sweeps, samplers …",
        f"{CONFIGS}:ListConfig",
        ("mase list", "mase list formats", "mase list passes --json"),
    ),
    (
        "studies",
        "the searches below out/: trials, best values; a dashboard in the browser",
        f"{CONFIGS}:StudiesConfig",
        ("mase studies", "mase studies out/search", "mase studies out/search --dashboard"),
    ),
    (
        "clean",
        "delete what commands wrote, after saying what and asking",
        f"{CONFIGS}:CleanConfig",
        ("mase clean", "mase clean out/train out/search --yes", "mase clean --unfinished"),
    ),
    (
        "doctor",
        "what is installed, what works on this machine, what to install for the rest",
        f"{CONFIGS}:DoctorConfig",
        ("mase doctor", "mase doctor --json"),
    ),
    (
        "completion",
        "a script that completes commands and options in bash, zsh or fish",
        f"{CONFIGS}:CompletionConfig",
        (
            "mase completion bash > ~/.local/share/bash-completion/completions/mase",
            "mase completion zsh > ~/.zfunc/_mase",
            "mase completion fish > ~/.config/fish/completions/mase.fish",
        ),
    ),
):
    _module = MODULES.get(_name, _name)
    COMMANDS.register(_name, Command(_name, _summary, _config, f"{HERE}.{_module}:run", _examples))
