"""Patterns from files: matched as `re` does, in bounded time."""

import random
import re
import time

import pytest

from chop.errors import ConfigError
from chop.patterns import (
    Matcher,
    check_pattern,
    check_patterns,
    fullmatch,
    match,
    parser,
    repeats_a_choice,
)

ATOMS = ["a", "b", r"\.", ".", r"\d", r"\w", "[ab]", "[^a]", "(a|b)", "(?:ab|a)", r"\b", "^", "$"]
ATOMS += ["(?=a)", "(?!b)", "(?<=a)", "(?<!b)", "(?i:A)", "()", "[a-c1]"]
ENDINGS = ["", "", "*", "+", "?", "{2}", "{1,3}", "*?", "{0,2}?", "{2,}"]


def random_pattern(rng: random.Random, depth: int = 2) -> str:
    parts = []
    for _ in range(rng.randrange(1, 4)):
        inner = depth and rng.random() < 0.4
        atom = f"({random_pattern(rng, depth - 1)})" if inner else rng.choice(ATOMS)
        ending = "" if atom in (r"\b", "^", "$") else rng.choice(ENDINGS)
        parts.append(atom + ending)
    return rng.choice(["", "|"]).join(parts)


def test_the_matcher_agrees_with_re():
    rng = random.Random(0)
    texts = ["".join(rng.choice("ab.1A\n") for _ in range(n % 7)) for n in range(60)]
    for _ in range(600):
        pattern = random_pattern(rng)
        compiled = re.compile(pattern)
        ours = Matcher(parser.parse(pattern), compiled.flags)
        for text in rng.sample(texts, 12):
            assert ours.ends_at(text, len(text)) == bool(compiled.fullmatch(text)), (pattern, text)
            assert ours.ends_at(text, None) == bool(compiled.match(text)), (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(a+)+b", "(a|a)*b", "(a|aa)+b", "(.*)*b", "(a*)*(a*)*b", ".*" * 12 + "b"),
        *("(a?){50}a{50}b", "((a+)+)+b", "(?:a+a+)+b", "(a{1,50}){1,50}b", "(a|aa)" * 80 + "b"),
        *("a?" * 100 + "b", "a{0,30}" * 8 + "b", "(?=(a+)+b)a", "(?<!b)(a*)*b"),
    ],
)
def test_no_pattern_takes_exponential_time(pattern):
    start = time.process_time()
    assert not fullmatch(pattern, "a" * 150)
    assert not match(pattern, "a" * 150)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "pattern",
    [r"layer\.\d+\..*", r".*\.(q|k|v)_proj", "(?!lm_head).*", r"(?:.*\.)?fc\d*", "[^.]*", "a|b"],
)
def test_ordinary_patterns_are_taken(pattern):
    check_pattern(pattern, "rules", ConfigError)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", r"rules: '\(' is no regular expression: missing \)"),
        ("a" * 3000, "it has 3000 characters; allowed are 2000"),
        (r"(a*)*(b)\2", "groupref is not supported"),
        ("(" * 30 + "a*" + ")*" * 30, "nested deeper than 20 levels"),
        ("(a*){2000}", "repeats more than 1000 times"),
        ("(?m)(a*)*", "sets flags other than"),
        ("(?s:a*)*", "sets flags other than"),
    ],
)
def test_other_patterns_are_refused(pattern, words):
    with pytest.raises(ConfigError, match=words):
        check_pattern(pattern, "rules", ConfigError)


TOKENIZERS = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'t)?|\s*[\r\n/]+|\s+",
    r"\d{1,3}(?=(?:\d{3})*\b)",
    r"[(+*|]+",
]


@pytest.mark.parametrize("pattern", TOKENIZERS)
def test_patterns_of_published_tokenizers_are_taken(pattern):
    assert not repeats_a_choice(pattern)
    check_patterns({"pre_tokenizer": [{"pattern": {"Regex": pattern}}]}, "t", ConfigError)


@pytest.mark.parametrize("pattern", ["(a+)+", "(a|aa)*b", "((a*))*", "(?:x(a+))+", "(a{1,9}){2,}"])
def test_patterns_of_tokenizers_with_nested_repeats_are_refused(pattern):
    with pytest.raises(ConfigError, match="may take exponential time"):
        check_patterns({"pre_tokenizer": [{"pattern": {"Regex": pattern}}]}, "t", ConfigError)
