"""Fine-tune BERT-tiny on IMDb once: the classifier that the benchmarks here quantise.

    python bench/ptq/fine_tune.py --data DATA/imdb --model MODELS/bert-tiny --out out/ptq/bert

One epoch over half of the training reviews, 128 tokens of each, with the recipe of bench/imdb and
seed 0: minutes on one core. Writes a folder that transformers loads.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification

from chop.dataset import load_token_arrays

sys.path.append(str(Path(__file__).parents[1] / "imdb"))
from batches import Reviews, evenly
from loop import Recipe, train

RECIPE = Recipe(learning_rate=3e-4)
LENGTH = 128
"""Tokens of a review; the benchmarks cut reviews there as well."""


def main() -> None:
    """Train and save."""
    args = _arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    arrays = load_token_arrays(args.data / "tokens", LENGTH)
    reviews = Reviews.on(evenly(arrays["train"], args.reviews), device)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(args.model, dtype=torch.float32)
    train(model.to(device), reviews, RECIPE, 0, use_graphs=False)
    model.cpu().save_pretrained(args.out)
    for file in args.model.glob("*token*"):
        shutil.copy(file, args.out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with tokens/*.npz")
    parser.add_argument("--model", type=Path, required=True, help="folder of the pretrained model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--reviews", type=int, default=12500)
    return parser.parse_args()


if __name__ == "__main__":
    main()
