"""``python -m multimodal demo`` on less of everything: it shows what the README promises and leaves nothing but the sheet."""

from __future__ import annotations

import re
import tempfile

import mm_pictures as mm
import pytest
from PIL import Image

from multimodal import demo
from multimodal.__main__ import main
from zephon_nodes.verify import verify


@pytest.fixture
def few(monkeypatch, tmp_path):
    """Fewer documents, ranks and steps; temporary files in a folder of their own."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    for name, value in {"DOCUMENTS": 48, "LENGTH": 512, "MICROBATCH": 1, "_LEAST_DOCUMENTS": 40}.items():
        monkeypatch.setattr(demo, name, value)
    monkeypatch.setattr(demo, "verify", lambda make, worlds, steps, say: verify(make, worlds[:2], 2, say))
    return tmp_path


@pytest.mark.parametrize("style", ["dynamic", "fixed"])
def test_the_demo_shows_throughput_padding_memory_and_the_proof(few, capsys, style):
    assert main(["demo", "--style", style, "--sheet", str(few / "sheet.png"), "--seconds", "0.3"]) == 0
    out, err = capsys.readouterr()
    assert "48 documents with 60 images" in out and "load_images" in out
    assert re.search(r"pixel_values +uint8", out) and re.search(r"labels +int64 +\(1, 512\)", out)
    assert re.search(r"[1-9][\d,]* images/s, [1-9][\d,]* usable tokens/s", out)
    assert re.search(r"Padding: \d+\.\d% of", out) and re.search(r"Peak memory: [1-9][\d,]* MiB", out)
    assert "Drop report: nothing was left out" in out and "2 global batches are equal everywhere" in out
    assert Image.open(few / "sheet.png").width == 1600
    assert not err  # no bar where nobody watches
    assert sorted(path.name for path in few.iterdir()) == ["sheet.png", "temporary"]
    assert not list((few / "temporary").iterdir())


def test_a_folder_of_images_with_captions_beside_them_and_a_broken_one(few, capsys):
    folder = few / "mine"
    (folder / "deeper").mkdir(parents=True)
    for i in range(6):
        path = folder / "deeper" / f"a_blue-cat {i}.jpg"
        path.write_bytes(mm.written(Image.fromarray(mm.drawn(60, 80, seed=i)), "JPEG"))
        if i % 2:
            path.with_suffix(".txt").write_text(f"Caption {i} with <image> in it.", encoding="utf-8")
    (folder / "broken.PNG").write_bytes(b"no image")
    (folder / "notes.md").write_text("not looked at")
    assert main(["demo", str(folder), "--sheet", str(few / "sheet.png"), "--seconds", "0.2"]) == 0
    out = capsys.readouterr().out
    assert "40 documents with 40 images" in out and "equal everywhere" in out
    assert "load_images: ImageError: image 0: not an image: starts with b'no image'" in out


def test_a_folder_without_images_is_an_error_that_says_what_is_looked_for(few, capsys):
    assert main(["demo", str(few)]) == 2
    assert "there are no images in" in capsys.readouterr().err


def test_the_command_line_says_what_there_is(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--style", "other"])
    assert caught.value.code == 2 and "dynamic" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sheet", "sheet.txt"], "must be a .png file in a folder that exists, got 'sheet.txt'"),
        (["--sheet", "no/such/folder/sheet.png"], "must be a .png file in a folder that exists"),
        (["--seconds", "0"], "seconds must be above 0"),
    ],
)
def test_what_would_fail_at_the_end_is_refused_at_the_beginning(few, capsys, arguments, message):
    assert main(["demo", *arguments]) == 2
    out, err = capsys.readouterr()
    assert message in err and not out


def test_a_folder_of_which_nothing_can_be_used(few, capsys):
    (few / "mine").mkdir()
    (few / "mine" / "a.jpg").write_bytes(b"")
    assert main(["demo", str(few / "mine"), "--sheet", str(few / "sheet.png")]) == 2
    assert "no image can be used, or all texts are too long: 40 records left out" in capsys.readouterr().err
