"""Patterns from files are matched in bounded time."""

import time

import pytest

from chop.errors import ConfigError
from chop.patterns import check_pattern, check_patterns, fullmatch, match, repeats_a_choice


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
    for matches in (fullmatch, match):
        try:
            assert not matches(pattern, "a" * 150)
        except ConfigError as error:
            assert "takes more than 0.2 s to match" in str(error)
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
