import os
import pickle
import traceback
import uuid

import fsspec
import pytest
from files_over_http import serve
from fsspec.spec import AbstractFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_nodes.errors import ReadError
from zephon_nodes.retries import Retries
from zephon_nodes.storage import BESIDE, StoredFile, write_atomically

CONTENT = bytes(range(256)) * 40


def local(tmp_path, content=CONTENT, name="a.bin"):
    path = tmp_path / name
    path.write_bytes(content)
    return StoredFile(str(path), name, len(content), "1")


@pytest.fixture(params=["local", "memory", "http"])
def stored(request, tmp_path):
    if request.param == "local":
        yield local(tmp_path)
    elif request.param == "memory":
        url = f"memory://{uuid.uuid4().hex}/a.bin"
        fsspec.filesystem("memory").pipe_file(url, CONTENT)
        yield StoredFile(url, "a.bin", len(CONTENT))
    else:
        with serve({"a.bin": CONTENT}) as site:
            yield StoredFile(f"{site.url}/a.bin", "a.bin", len(CONTENT))


def test_ranges_blocks_and_streams_are_slices_of_the_content(stored):
    ranges = [(0, 10), (250, 260), (len(CONTENT) - 3, len(CONTENT)), (7, 7), (0, len(CONTENT))]
    assert stored.read_ranges(ranges) == [CONTENT[start:stop] for start, stop in ranges]
    assert stored.read_range(3, 9) == CONTENT[3:9]
    assert list(stored.blocks(1000)) == [CONTENT[at : at + 1000] for at in range(0, len(CONTENT), 1000)]
    with stored.open() as stream:
        stream.seek(100)
        assert stream.read(5) == CONTENT[100:105]


def test_a_range_past_the_end_means_that_the_file_has_changed(stored):
    with pytest.raises(
        ReadError, match=r"a\.bin.*changed since the dataset was opened.*make the Dataset again"
    ) as caught:
        stored.read_range(len(CONTENT) - 2, len(CONTENT) + 2)
    assert caught.value.path == stored.path


def test_it_passes_through_pickle_and_hides_options_from_its_repr(stored):
    file = StoredFile(stored.path, "n", None, "v", {"key": "secret"})
    again = pickle.loads(pickle.dumps(file))
    assert again == file
    assert hash(again) == hash(file)
    assert "secret" not in repr(file)


@settings(deadline=None)
@given(st.binary(max_size=50), st.integers(1, 60))
def test_blocks_join_to_the_content(tmp_path_factory, content, nbytes):
    file = local(tmp_path_factory.mktemp("blocks"), content)
    blocks = list(file.blocks(nbytes))
    assert b"".join(blocks) == content
    assert all(len(block) == nbytes for block in blocks[:-1])


@pytest.mark.parametrize("size", [len(CONTENT) - 1, len(CONTENT) + 1])
def test_a_local_file_of_another_size_is_refused(tmp_path, size):
    file = local(tmp_path)
    os.truncate(file.path, size)
    for read in (file.open, lambda: file.read_range(0, 1), lambda: list(file.blocks(100))):
        with pytest.raises(ReadError, match=f"it had {len(CONTENT)} bytes and now has {size}"):
            read()


def test_a_stream_of_another_length_is_refused():
    url = f"memory://{uuid.uuid4().hex}"
    fsspec.filesystem("memory").pipe_file(url, b"abc")
    with pytest.raises(ReadError, match="it had 4 bytes and now has 3"):
        list(StoredFile(url, "a", 4).blocks(2))


def test_a_missing_file_is_a_read_error_with_its_cause(tmp_path):
    with pytest.raises(ReadError, match=r"gone: can't open it: .*No such file") as caught:
        StoredFile(str(tmp_path / "gone"), "gone").open()
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.path) == (str(caught.value), str(tmp_path / "gone"))


def test_no_descriptor_stays_open(tmp_path):
    file = local(tmp_path)
    before = os.listdir("/proc/self/fd")
    files = [StoredFile(file.path, f"{i}", file.size) for i in range(50)]
    for each in files:
        assert each.read_range(0, 4) == CONTENT[:4]
        assert next(each.blocks(4)) == CONTENT[:4]
    assert os.listdir("/proc/self/fd") == before


def test_a_range_request_transfers_the_range_only():
    with serve({"a.bin": CONTENT}) as site:
        StoredFile(f"{site.url}/a.bin", "a.bin", len(CONTENT)).read_ranges([(10, 20), (30, 35)])
        assert sorted(site.sent) == [5, 10]


def test_a_server_that_ignores_ranges_is_an_error_not_wrong_bytes():
    with serve({"a.bin": CONTENT}, ranges=False) as site:
        file = StoredFile(f"{site.url}/a.bin", "a.bin", len(CONTENT))
        with pytest.raises(ReadError, match="bytes 5:9 were asked for and 10240 came: the server ignores ranges"):
            file.read_range(5, 9)
        assert b"".join(file.blocks(100)) == CONTENT


def test_a_failing_server_is_a_read_error_that_hides_the_signature():
    with serve({"a.bin": CONTENT}, failing=True) as site:
        once = {"retries": Retries(give_up_after=0)}
        file = StoredFile(f"{site.url}/a.bin?sig=secret", "a.bin", len(CONTENT), storage_options=once)
        with pytest.raises(ReadError, match=r"/a\.bin: can't read it: 500") as caught:
            file.read_range(0, 5)
        assert str(file) == f"{site.url}/a.bin"
        assert "secret" not in "".join(traceback.format_exception(caught.value))


class VersionedFileSystem(AbstractFileSystem):
    """Its second parameter is not the start, as in s3fs."""

    protocol = "versioned"

    def cat_file(self, path, version_id=None, start=None, end=None, **options):
        assert version_id is None
        return CONTENT[start:end]


def test_ranges_are_asked_for_by_keyword():
    fsspec.register_implementation("versioned", VersionedFileSystem, clobber=True)
    assert StoredFile("versioned://a", "a").read_ranges([(3, 7), (1, 2)]) == [CONTENT[3:7], CONTENT[1:2]]


def test_storage_options_reach_the_file_system():
    class Picky(VersionedFileSystem):
        def __init__(self, token, **options):
            super().__init__(**options)
            self.token = token

        def cat_file(self, path, start=None, end=None, **options):
            return self.token[start:end]

    fsspec.register_implementation("picky", Picky, clobber=True)
    assert StoredFile("picky://a", "a", storage_options={"token": b"xyz"}).read_range(1, 3) == b"yz"


def test_an_atomic_write_replaces_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "down" / "f"
    write_atomically(str(path), [b"ab", b"c"])
    assert path.read_bytes() == b"abc"

    def broken():
        yield b"new"
        assert path.read_bytes() == b"abc"
        raise KeyError("stop")

    with pytest.raises(KeyError):
        write_atomically(str(path), broken())
    assert path.read_bytes() == b"abc"
    assert os.listdir(path.parent) == ["f"]


def test_derived_files_have_names_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    one, two = StoredFile("/d/a.jsonl", "a.jsonl"), StoredFile("/e/a.jsonl", "a.jsonl")
    assert os.path.dirname(one.derived(".x")) == str(tmp_path / ".cache" / "zephon_nodes" / "index")
    named = StoredFile("/d/a.jsonl", "a.jsonl", cache_dir="/c")
    assert os.path.dirname(named.derived(".x")) == "/c"
    beside = StoredFile("/d/a.jsonl", "a.jsonl", cache_dir=BESIDE)
    assert beside.derived(".x") == "/d/.a.jsonl.x"
    for make in (one, named, beside):
        assert len({make.derived(".x"), make.derived(".y"), make.derived(".x", 1), make.derived(".x", 2)}) == 4
        assert make.derived(".x", 1) == make.derived(".x", 1)
    assert one.derived(".x") != two.derived(".x")
