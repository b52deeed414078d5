"""Text of answers, piece by piece."""

from __future__ import annotations

import random

import pytest
from served_models import tokenizer

from chop.serve.answer_text import TextStream, TextTokenizer
from chop.serve.request_errors import RequestError

WORDS = TextTokenizer(tokenizer())
TEXT = "then in the inn: größe, 你好, 👩‍👩‍👧, ñ and the end"


def streamed(text, stop=()):
    stream, pieces = TextStream(WORDS, WORDS.encode("say "), stop), []
    for token in WORDS.encode(text):
        pieces.append(stream.add(token))
        if stream.is_stopped:
            break
    return [*pieces, stream.finish()]


def test_pieces_join_to_the_text_and_have_no_half_characters():
    pieces = streamed(TEXT)
    assert "".join(pieces) == TEXT
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)
    assert len([piece for piece in pieces if piece]) > 20


def test_bytes_that_are_no_character_appear_at_the_end():
    half = WORDS.encode("你")[:2]
    stream = TextStream(WORDS, (), ())
    assert [stream.add(token) for token in half] == ["", ""]
    assert stream.finish() == WORDS.decode(half)


@pytest.mark.parametrize("seed", range(20))
def test_a_stop_word_cuts_the_text_wherever_it_is(seed):
    draw = random.Random(seed)
    starts = [draw.randrange(len(TEXT)) for _ in range(3)]
    stop = [TEXT[start : start + draw.randrange(1, 6)] for start in starts]
    stop.append("the end of all")
    _, start = min((TEXT.index(word) + len(word), TEXT.index(word)) for word in stop[:3])
    pieces = streamed(TEXT, stop)
    assert "".join(pieces) == TEXT[:start]


def test_text_that_is_no_stop_word_after_all_comes_later():
    pieces = streamed("the thing", ["then"])
    assert "".join(pieces) == "the thing"


def test_a_tokenizer_without_a_template_names_the_other_path():
    plain = type("Plain", (), {"chat_template": None})()
    with pytest.raises(RequestError, match="no chat template: use /v1/completions"):
        TextTokenizer(plain).encode_chat([{"role": "user", "content": "x"}])
