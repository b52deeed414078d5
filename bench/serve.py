"""Load on `mase serve`: every answer against the offline one, latency, rate, batching, memory.

    python bench/serve.py tiny --requests 1000 --leak 10000
    python bench/serve.py model --model model.gguf --pack mxint4 --requests 200
    python bench/serve.py all --model model.gguf

"all" is "tiny" with all its parts, and the model with activations rounded and as floats. A phase
is saved when it ends; a command that was stopped goes on with the next one.

"tiny" serves a random Llama of two layers, so that requests cost little: it counts wrong answers,
answers to malformed bodies and bytes that stay. "model" serves a real model. The server is a
process of its own. Its clients are threads of this one; a part of them leaves before the answer
ends. Answers are greedy, of up to --tokens tokens, and each is compared with the text that
`MaseGraph.generate` gives for that prompt alone. Where they differ, the least gap between the two
largest logits of the offline answer is stored: rounding of a batched product may exchange tokens
whose logits are that close. "gain" is the rate of 8 clients over that of one, in turns; the median
of the rounds counts. Results go to bench/results/serve.json, one section for each model.
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/graph.py must not stand for the package `graph`

import argparse
import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import re
import signal
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

CHAT = "/v1/chat/completions"
QUESTIONS = (
    "What is the capital of {}?", "Tell me a story about {}.", "Write a poem about {}.",
    "Explain {} to a child.", "List three facts about {}.", "Who lives in {}?",
)  # fmt: skip
TOPICS = ("France", "the sea", "Hamlet", "gravity", "a garden", "Mars", "music", "rain")
LEAVERS = 0.1
"""Share of clients that leave before their answer ends."""


# -- server ----------------------------------------------------------------------------------


@dataclass
class Server:
    """A running `mase serve`."""

    process: Any
    port: int

    def send(self, path: str, body: bytes, leave_after: int | None = None) -> tuple[int, bytes]:
        """Send a body; leave after so many bytes of the answer, if given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        with contextlib.closing(connection):
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            if leave_after == 0:
                return 0, b""
            answer = connection.getresponse()
            return answer.status, answer.read(leave_after)

    def resident_bytes(self) -> int:
        """Return the memory of the process."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        assert found is not None, "the kernel reports the resident memory"
        return int(found[1]) * 1024


@contextlib.contextmanager
def serving(words: list[str], port: int = 0) -> Iterator[Server]:
    """Run `mase serve` until the end of the context."""
    line = [sys.executable, "-m", "mase", "serve", *words, "--port", str(port), "--name", "m"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)/v1", process.stdout.readline())
        assert found is not None, "the server did not start"
        yield Server(process, int(found[1]))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


# -- questions and offline answers -----------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """A message, the offline answer, its tokens, and the least gap of its two largest logits."""

    text: str
    tokens: int
    answer: str
    least_gap: float

    def body(self, *, stream: bool) -> bytes:
        """Return the request."""
        messages = [{"role": "user", "content": self.text}]
        fields = {"messages": messages, "max_tokens": self.tokens, "temperature": 0}
        return json.dumps({**fields, "stream": stream}).encode()


def questions(graph: Any, tokenizer: Any, count: int, tokens: int) -> list[Question]:
    """Return questions with answers of different lengths, generated one by one."""
    import torch

    from chop.serve.answer_text import TextTokenizer

    draw, words, made = random.Random(0), TextTokenizer(tokenizer), []
    for _ in range(count):
        text = draw.choice(QUESTIONS).format(" and ".join(draw.sample(TOPICS, draw.randint(1, 3))))
        most = draw.randint(max(1, tokens // 2), tokens)
        ids = torch.tensor([words.encode_chat([{"role": "user", "content": text}])])
        result = graph.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, do_sample=False,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
        best = torch.stack(result.logits).float().topk(2).values
        answer = words.decode(result.sequences[0, ids.shape[1] :].tolist())
        made.append(Question(text, most, answer, float((best[..., 0] - best[..., 1]).min())))
    return made


# -- load ------------------------------------------------------------------------------------


@dataclass
class Load:
    """Outcome of many requests."""

    seconds: float
    latencies: list[float]
    tokens: int
    outcomes: Counter[str]
    gaps: list[float]

    def record(self) -> dict[str, Any]:
        """Return the figures."""
        figures = {"requests": sum(self.outcomes.values()), **self.outcomes}
        if self.gaps:
            figures["least gaps of answers that differ"] = [f"{gap:.2g}" for gap in self.gaps]
        ordered = sorted(self.latencies)
        at = {p: ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 99)}
        rate = {"tokens_per_s": self.tokens / self.seconds, "seconds": self.seconds}
        return {**figures, "p50_s": at[50], "p99_s": at[99], **rate}


def text_of(content: bytes, *, stream: bool) -> tuple[str, int]:
    """Return the text of an answer and its number of tokens, 0 for a stream."""
    if not stream:
        body = json.loads(content)
        return body["choices"][0]["message"]["content"], body["usage"]["completion_tokens"]
    lines = [line[6:] for line in content.decode().split("\n\n") if line.startswith("data: {")]
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
    return "".join(delta.get("content") or "" for delta in deltas), 0


def load(
    server: Server, asked: list[Question], clients: int, count: int, *, leavers: float = LEAVERS
) -> Load:
    """Send `count` requests from `clients` threads; compare every answer."""
    draw = random.Random(1)
    plans = [(asked[i % len(asked)], draw.random(), draw.random() < 0.5) for i in range(count)]
    outcomes: Counter[str] = Counter()
    latencies, gaps, tokens = [], [], [0]

    def ask(plan: tuple[Question, float, bool]) -> None:
        question, chance, stream = plan
        body = question.body(stream=stream)
        if chance < leavers:
            server.send(CHAT, body, draw.choice((0, 1)))
            outcomes["left"] += 1
            return
        start = time.perf_counter()
        status, content = server.send(CHAT, body)
        latencies.append(time.perf_counter() - start)
        if status != 200:
            outcomes[f"status {status}"] += 1
            return
        text, number = text_of(content, stream=stream)
        tokens[0] += number or question.tokens
        is_right = text == question.answer
        outcomes["right" if is_right else "different"] += 1
        if not is_right:
            gaps.append(question.least_gap)

    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        list(pool.map(ask, plans))
    return Load(time.perf_counter() - start, latencies, tokens[0], outcomes, gaps)


def malformed(server: Server, count: int) -> dict[str, int]:
    """Return the statuses of answers to bodies that are broken at random."""
    from malformed_bodies import mutated

    draw, statuses = random.Random(2), Counter[str]()
    for _ in range(count):
        path, content = mutated(draw)
        statuses[str(server.send(path, content)[0])] += 1
    return dict(statuses)


def gain(server: Server, asked: list[Question], rounds: int, each: int) -> dict[str, Any]:
    """Return the rate of 8 clients over that of one, in turns."""
    rates: dict[int, list[float]] = {1: [], 8: []}
    for _ in range(rounds):
        for clients, values in rates.items():
            done = load(server, asked, clients, each, leavers=0)
            values.append(done.tokens / done.seconds)
    ratios = [eight / one for one, eight in zip(rates[1], rates[8], strict=True)]
    middle = {f"{n} clients, tokens/s": statistics.median(v) for n, v in rates.items()}
    return {**middle, "gain": statistics.median(ratios), "gains": ratios}


def killed(words: list[str], port: int, asked: list[Question]) -> dict[str, Any]:
    """Kill the server under load, start it again at its port, and compare its answers."""
    with serving(words, port) as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        body = asked[0].body(stream=True)
        waiting = [pool.submit(server.send, CHAT, body) for _ in range(8)]
        time.sleep(0.05)
        server.process.kill()
        errors = [type(job.exception()).__name__ for job in waiting]
    with serving(words, port) as server:
        again = load(server, asked, 8, 40, leavers=0)
    return {"errors of clients": dict(Counter(errors)), "after the restart": dict(again.outcomes)}


def leak(server: Server, asked: list[Question], count: int) -> dict[str, Any]:
    """Return the memory of the server over many requests; every tenth client leaves."""
    warm = max(200, count // 10)
    sizes, outcomes = [], Counter[str]()
    for number in [warm, *[(count - warm) // 9] * 9]:
        outcomes += load(server, asked, 64, number).outcomes
        sizes.append(server.resident_bytes())
    grown = sizes[-1] - sizes[0]
    return {**outcomes, "MiB": [round(s / 2**20, 1) for s in sizes], "grown_bytes": grown}


# -- models ----------------------------------------------------------------------------------


def tiny(arguments: argparse.Namespace, folder: Path) -> tuple[list[str], Any, Any]:
    """Return the words of `mase serve`, the graph and the tokenizer of the random model."""
    from served_models import language_model, tokenizer

    language_model().export(folder / "graph")
    tokenizer().save_pretrained(folder / "tokenizer")
    return [str(folder)], language_model(), tokenizer()


def real(arguments: argparse.Namespace, folder: Path) -> tuple[list[str], Any, Any]:
    """Return the same of a real model, packed and rounded as told."""
    import mase
    from chop.kernels import round_activations
    from chop.passes import pack_weights_transform_pass

    graph = mase.load(arguments.model)
    words = [arguments.model]
    if arguments.pack:
        pack_weights_transform_pass(graph, {"format": arguments.pack})
        words += ["--pack", arguments.pack]
    if arguments.round_activations:
        round_activations(graph.model)
        words.append("--round-activations")
    graph.model.eval()
    return words, graph, mase.load_tokenizer(arguments.model)


MODELS: dict[str, Callable[[argparse.Namespace, Path], Any]] = {"tiny": tiny, "model": real}


@dataclass
class Progress:
    """Results of one section so far; each phase is saved when it ends."""

    section: str
    results: dict[str, Any]

    def phase(self, name: str, run: Callable[[], Any]) -> None:
        """Add the results of a phase, unless they are there."""
        if name in self.results:
            return
        self.results[name] = run()
        show({name: self.results[name]})
        save(self.section, self.results)


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    """Measure all phases of one model that are not measured yet."""
    import torch

    progress = started(arguments, {"threads": torch.get_num_threads()})
    phases = ["64 clients", "batching", "malformed", *["memory"] * bool(arguments.leak)]
    phases += ["killed"] * arguments.kill
    if all(name in progress.results for name in phases):
        print(f"{progress.section}: measured on today's code", flush=True)
        return
    words, graph, tokenizer = MODELS[arguments.section](arguments, folder)
    asked = questions(graph, tokenizer, arguments.questions, arguments.tokens)
    words += ["--max-batch", str(arguments.batch), "--max-queue", "256"]
    with serving(words) as server:
        port = server.port
        load(server, asked, 8, len(asked), leavers=0)  # warm up
        progress.phase("64 clients", lambda: load(server, asked, 64, arguments.requests).record())
        progress.phase("batching", lambda: gain(server, asked, arguments.rounds, arguments.each))
        progress.phase("malformed", lambda: malformed(server, arguments.malformed))
        if arguments.leak:
            progress.phase("memory", lambda: leak(server, asked, arguments.leak))
    if arguments.kill:
        progress.phase("killed", lambda: killed(words, port, asked))


def started(arguments: argparse.Namespace, facts: dict[str, Any]) -> Progress:
    """Return the results of an interrupted run of today's code with these settings, if any."""
    from measuring.record import is_measured, read_section

    names = "requests questions tokens batch rounds each malformed leak kill round_activations"
    settings = {name: getattr(arguments, name) for name in names.split()}
    section = "tiny"
    if arguments.section == "model":
        kinds = (
            Path(arguments.model).stem,
            arguments.pack,
            "rounded" * settings["round_activations"],
        )
        section = " ".join(word for word in kinds if word)
    if not arguments.fresh and is_measured("serve", section, {"settings": settings}):
        return Progress(section, read_section("serve", section))
    at_start = {"load average at the start": os.getloadavg()[0]}
    return Progress(section, {"settings": settings, **facts, **at_start})


def save(section: str, results: dict[str, Any]) -> None:
    """Save the results of a section."""
    from measuring.record import save_section

    save_section("serve", section, results)


def show(results: dict[str, Any]) -> None:
    print(json.dumps(results, indent=2), flush=True)


ALL_TINY = {"section": "tiny", "questions": 24, "tokens": 12, "leak": 10_000, "kill": True}
ALL_MODEL = {
    "section": "model", "requests": 200, "questions": 8, "tokens": 64, "batch": 8, "malformed": 0,
    "each": 48,
}  # fmt: skip
"""Settings of `all` that differ from the default ones. With 48 requests in a round, 8 clients have
six each, so that the batch is full for most of it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section", choices=[*MODELS, "all"])
    parser.add_argument("--model", help="model of the section `model`")
    parser.add_argument("--pack", help="format of its weights")
    parser.add_argument("--round-activations", action="store_true", help="as in mase serve")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--questions", type=int, default=48, help="different requests")
    parser.add_argument("--tokens", type=int, default=32, help="largest answer")
    parser.add_argument("--batch", type=int, default=16, help="--max-batch of the server")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the gain of batching")
    parser.add_argument("--each", type=int, default=16, help="requests of a round")
    parser.add_argument("--malformed", type=int, default=500)
    parser.add_argument("--leak", type=int, default=0, help="requests over which memory is read")
    parser.add_argument("--kill", action="store_true", help="kill the server and start it again")
    parser.add_argument(
        "--fresh", action="store_true", help="measure again what is of today's code"
    )
    arguments = parser.parse_args()
    runs: list[dict[str, Any]] = [{}]
    if arguments.section == "all":
        rounded = [{**ALL_MODEL, "round_activations": is_rounded} for is_rounded in (True, False)]
        runs = [ALL_TINY, *(rounded if arguments.model else [])]
    sys.argv = [word if word != arguments.model else Path(word).name for word in sys.argv]
    for changes in runs:
        with tempfile.TemporaryDirectory() as folder:
            measure(argparse.Namespace(**{**vars(arguments), **changes}), Path(folder))


if __name__ == "__main__":
    main()
