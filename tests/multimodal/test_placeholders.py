"""Images in text: marks, parts and placeholders."""

import doctest
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mm_samples import DYNAMIC, FIXED, picture
from runs import run, source
from tokenizers import Tokenizer, models, pre_tokenizers

from multimodal.placeholders import (
    caption_text,
    chat,
    content_parts,
    expand,
    expand_images,
    images_of,
    interleaved_text,
    question_answer,
    with_image_parts,
)
from zephon_nodes import Pipeline, RowError

IMAGE = {"type": "image"}
ids = st.lists(st.integers(0, 3), max_size=30)
around = st.sampled_from([None, 7])


def text(words):
    return {"type": "text", "text": words}


def expanded(input_ids, counts, mask, start, end):
    out, kept, rest = [], [], iter(counts)
    for token, learned in zip(input_ids, mask, strict=True):
        copies = [token]
        if token == 3:
            copies = ([start] if start is not None else []) + [3] * next(rest) + ([end] if end is not None else [])
        out += copies
        kept += [learned and token != 3] * len(copies)
    return out, kept


@given(ids, st.data(), around, around, st.booleans())
def test_the_ith_placeholder_becomes_as_many_as_the_ith_count(tokens, data, start, end, masked):
    n = len(tokens)
    counts = [data.draw(st.integers(1, 6)) for _ in range(tokens.count(3))]
    mask = data.draw(st.lists(st.booleans(), min_size=n, max_size=n)) if masked else [True] * n
    out, kept = expand(tokens, counts, 3, mask if masked else None, start, end)
    assert out.dtype == np.int32 and kept.dtype == np.bool_
    assert (out.tolist(), kept.tolist()) == expanded(tokens, counts, mask, start, end)


@given(ids, st.lists(st.integers(1, 3), max_size=8))
def test_more_or_fewer_placeholders_than_images_are_an_error_that_says_both_numbers(tokens, counts):
    n = tokens.count(3)
    if n == len(counts):
        expand(tokens, counts, 3)
    else:
        with pytest.raises(
            ValueError, match=rf"has {n} image placeholders \(id 3\), the record has {len(counts)} images"
        ):
            expand(tokens, counts, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 3], [0], 3), "image 0 has 0 positions"),
        (([1, 3], [2], 3, [1]), r"loss_mask has shape \(1,\), but input_ids has 2 tokens"),
        (([[1, 3]], [2], 3), r"1-D integers, got int64 of shape \(1, 2\)"),
        (([0.5], [], 3), "1-D integers, got float64"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        expand(*arguments)


def test_what_is_given_is_never_changed():
    tokens, mask = np.array([1, 3, 2], np.int32), np.array([True, True, False])
    for counts in ([2], [1]):
        out, kept = expand(tokens, counts, 3, mask)
        out[:], kept[:] = 9, True
    assert tokens.tolist() == [1, 3, 2] and mask.tolist() == [True, True, False]


@pytest.mark.parametrize("vision", [FIXED, DYNAMIC])
def test_the_counts_are_those_of_the_images_before_and_after_resizing(vision):
    raw = [picture(9, 20), picture(30, 7)]
    payload = {"input_ids": [1, 3, 3, 2], "images": raw, "loss_mask": [1, 1, 1, 1], "other": "kept"}
    before = expand_images(payload, vision, 3)
    after = expand_images({**payload, "images": [vision(image) for image in raw]}, vision, 3)
    want = [vision.token_count(*image.shape[:2]) for image in raw]
    assert before["input_ids"].tolist() == after["input_ids"].tolist() == [1, *[3] * sum(want), 2]
    assert before["loss_mask"].tolist() == [True, *[False] * sum(want), True]
    assert before["other"] == "kept" and payload["input_ids"] == [1, 3, 3, 2]


@pytest.mark.parametrize("images", [None, [], "missing"])
def test_text_without_images_stays_as_it_is(images):
    payload = {"input_ids": [1, 2]} if images == "missing" else {"input_ids": [1, 2], "images": images}
    assert expand_images(payload, FIXED, 3)["input_ids"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (picture(4, 4), "must be a list .*, got ndarray"),
        ([picture(4, 4), b"JPEG"], r"image 1 must be an array \(H, W, 3\), got bytes; decode images"),
        ([np.zeros((4, 4), np.uint8)], r"image 0 must be an array \(H, W, 3\), got shape \(4, 4\)"),
        ([np.zeros((4, 4, 4), np.uint8)], r"got shape \(4, 4, 4\)"),
    ],
)
def test_what_is_no_list_of_images_is_refused(images, message):
    with pytest.raises(ValueError, match=message):
        images_of({"images": images})


# captions and documents


def test_a_caption_has_its_images_before_it():
    payload = {"images": [b"one", b"two"], "caption": "A cat."}
    assert caption_text(payload) == {**payload, "text": "<image><image>A cat."}
    assert caption_text(payload, "<|pad|>")["text"] == "<|pad|><|pad|>A cat."
    assert caption_text({"alt": "A cat."}, field="alt")["text"] == "A cat."
    assert "text" not in payload


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (
            {"images": [b""], "caption": "an <image> in words"},
            r"has 2 image tokens \('<image>'\), the record has 1 images",
        ),
        ({"images": [b""]}, r"field 'caption' must be a str, the record has \['images'\]"),
        ({"images": [b""], "caption": None}, "field 'caption' must be a str, got NoneType"),
    ],
)
def test_captions_that_cannot_be_used_are_refused(payload, message):
    with pytest.raises(ValueError, match=message):
        caption_text(payload)


@given(st.lists(st.sampled_from(["a", "b c", "", "x<image>y", None, "IMAGE", "TEXT"]), max_size=8))
def test_a_document_has_its_images_where_they_stand_between_texts(items):
    words = {None: "[P]", "IMAGE": "[P]", "TEXT": "t", "x<image>y": "x[P]y"}
    texts = [{"IMAGE": {"type": "image", "text": None}, "TEXT": text("t")}.get(item, item) for item in items]
    want = "".join(words.get(item, item) for item in items)
    payload = {"images": [b""] * want.count("[P]"), "texts": texts}
    assert interleaved_text(payload, "[P]")["text"] == want
    with pytest.raises(ValueError, match=f"has {want.count('[P]')} image tokens"):
        interleaved_text({**payload, "images": [b""] * 9}, "[P]")


def test_a_document_may_be_one_text_with_marks_of_its_own():
    payload = {"images": [b""], "page": "see [[1]] here"}
    assert interleaved_text(payload, "<image>", "page", mark="[[1]]")["text"] == "see <image> here"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (None, "field 'texts' is missing or null"),
        ({"a": 1}, "must be a str or a list, got dict"),
        ([3], "part 0 is of type int"),
        (["a", {"type": "video"}], r"part 1 has type 'video' and the keys \['type'\]"),
        ([{"type": "text", "text": None}], "part 0 has type 'text'"),
    ],
)
def test_documents_that_cannot_be_used_are_refused(texts, message):
    with pytest.raises(ValueError, match=message):
        interleaved_text({"texts": texts})


# conversations

LLAVA = [{"from": "human", "value": "<image>\nWhat is it?"}, {"from": "gpt", "value": "A cat."}]
PARTS = [
    {"role": "user", "content": [IMAGE, text("\nWhat is it?")]},
    {"role": "assistant", "content": [text("A cat.")]},
]


@pytest.mark.parametrize(
    "messages",
    [
        LLAVA,
        PARTS,
        [{"role": "user", "content": "<image>\nWhat is it?"}, {"role": "assistant", "content": "A cat."}],
        [
            {"role": "user", "content": [{"type": "image", "text": None}, {"type": "text", "text": "\nWhat is it?"}]},
            {"role": "assistant", "content": "A cat."},
        ],
        [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}, {"text": "\nWhat is it?"}]},
            PARTS[1],
        ],
    ],
)
def test_messages_of_all_forms_become_the_same_parts(messages):
    assert with_image_parts(messages) == PARTS
    assert with_image_parts(with_image_parts(messages)) == PARTS
    assert [m["content"] for m in with_image_parts(messages, image_token="[P]")] == ["[P]\nWhat is it?", "A cat."]


def test_other_keys_and_messages_without_content_stay():
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "look"}]}
    assert with_image_parts([call, {"role": "tool", "content": "x", "id": 3}]) == [
        call,
        {"role": "tool", "content": [text("x")], "id": 3},
    ]


@given(st.text(alphabet="ab<>", max_size=6), st.text(alphabet="ab ", max_size=6))
def test_marks_split_a_text_and_nothing_is_lost(before, behind):
    parts = content_parts(f"{before}<image>{behind}")
    assert "".join(part.get("text", "<image>") for part in parts) == f"{before}<image>{behind}"
    assert parts.count(IMAGE) == 1 and text("") not in parts


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("Hi", "must be a list of messages, got str"),
        (None, "must be a list of messages, got NoneType"),
        (["Hi"], "message 0 must be a dict with role and content, got str"),
        ([{"role": "user", "content": 3}], r"message 0 \(user\): a text with images must be a str or a list, got int"),
        ([{"role": "user", "content": [{"type": "audio"}]}], r"message 0 \(user\): part 0 has type 'audio'"),
    ],
)
def test_messages_that_cannot_be_used_are_refused(messages, message):
    with pytest.raises(ValueError, match=message):
        with_image_parts(messages)


@pytest.mark.parametrize("token", [None, "[P]"])
def test_a_conversation_mentions_each_image_once(token):
    payload = {"images": [b""], "conversations": LLAVA}
    assert chat(payload, "conversations", image_token=token)["messages"] == with_image_parts(LLAVA, image_token=token)
    what = "1 image parts" if token is None else r"1 image tokens \('\[P\]'\)"
    with pytest.raises(ValueError, match=rf"has {what}, the record has 2 images"):
        chat({**payload, "images": [b"", b""]}, "conversations", image_token=token)


def test_questions_and_answers_become_conversations():
    payload = {"images": [b"", b""], "question": "Which?", "answer": "Both."}
    messages = question_answer(payload)["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant"]
    assert [m["content"] for m in messages] == [[IMAGE, IMAGE, text("Which?")], [text("Both.")]]
    plain = question_answer({"q": "Which?", "a": "Both.", "images": [b""]}, "q", "a", image_token="[P]")["messages"]
    assert [m["content"] for m in plain] == ["[P]Which?", "Both."]


TEMPLATE = (
    "{% for m in messages %}{{ m.role }} : {% for p in m.content %}"
    "{% if p.type == 'image' %}<v> <pad> </v> {% elif m.role == 'assistant' %}{% generation %}{{ p.text }} {% endgeneration %}"
    "{% else %}{{ p.text }} {% endif %}{% endfor %}{% endfor %}"
)


def tokenizer():
    words = ["?", "user", "assistant", ":", "<v>", "<pad>", "</v>", "what", "cat", "dog"]
    out = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="?"))
    out.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return out


def chats(rows):
    pipeline = Pipeline(source(rows), runner="inline").map(chat)
    tokenized = pipeline.tokenize_chat(tokenizer(), chat_template=TEMPLATE)
    return tokenized.map(lambda payload: expand_images(payload, FIXED, 5))


def test_a_conversation_goes_through_a_chat_template_and_only_its_answers_are_learned():
    rows = [
        {
            "images": [picture(8, 8), picture(4, 9)],
            "messages": [
                {"role": "user", "content": "<image> what <image>"},
                {"role": "assistant", "content": "cat dog"},
            ],
        },
        {"messages": [{"role": "user", "content": "what"}, {"role": "assistant", "content": "dog"}]},
    ]
    (first, second), error = run(chats(rows))
    assert error is None
    assert first["input_ids"].tolist() == [1, 3, 4, 5, 5, 5, 5, 6, 7, 4, 5, 5, 5, 5, 6, 2, 3, 8, 9]
    assert first["loss_mask"].tolist() == [False] * 17 + [True] * 2
    assert second["input_ids"].tolist() == [1, 3, 7, 2, 3, 9] and second["loss_mask"].sum() == 1


def test_a_user_who_writes_the_image_token_makes_a_bad_record():
    spoof = {"messages": [{"role": "user", "content": "what <pad>"}, {"role": "assistant", "content": "dog"}]}
    error = run(chats([spoof]))[1]
    assert isinstance(error, RowError) and "has 1 image placeholders (id 5), the record has 0 images" in str(error)


def test_the_examples_run():
    report = doctest.testmod(sys.modules["multimodal.placeholders"])
    assert report.attempted and not report.failed
