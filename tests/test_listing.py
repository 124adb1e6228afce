import os
import uuid

import fsspec
import pytest
from files_over_http import serve

from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.listing import find_files

TREE = ("b.jsonl", "a.jsonl", "sub/c.JSONL", "sub/deep/d.pq", "README.md", ".hidden.jsonl", "_SUCCESS.jsonl")
TREE += ("_temporary/e.jsonl", "sub/.git/f.jsonl", "g.jsonl.tmp", "h.tmp/i.jsonl")
FOUND = ["a.jsonl", "b.jsonl", "h.tmp/i.jsonl", "sub/c.JSONL", "sub/deep/d.pq"]
SUFFIXES = (".jsonl", ".pq", ".tmp")


def names(*args, **kwargs):
    return [file.name for file in find_files(*args, **kwargs)]


def write(root, *files):
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


@pytest.fixture(params=["local", "memory"])
def tree(request, tmp_path):
    if request.param == "local":
        write(tmp_path, *TREE)
        return str(tmp_path)
    url = f"memory://{uuid.uuid4().hex}"
    for name in TREE:
        fsspec.filesystem("memory").pipe_file(f"{url}/{name}", name.encode())
    return url


@pytest.mark.parametrize("end", ["", "/"])
def test_a_folder_gives_its_visible_files_of_known_suffix_by_name(tree, end):
    files = find_files(tree + end, SUFFIXES)
    assert [file.name for file in files] == FOUND
    for file in files:
        assert file.path == f"{tree}/{file.name}"
        assert file.size == len(file.name)
        assert file.version
        assert file.read_range(0, file.size) == file.name.encode()


def test_a_single_file_is_named_by_its_last_part_whatever_it_ends_in(tree):
    assert names(f"{tree}/sub/deep/d.pq", SUFFIXES) == ["d.pq"]
    assert names(f"{tree}/README.md", SUFFIXES) == ["README.md"]
    assert names(f"{tree}/_temporary/e.jsonl", SUFFIXES) == ["e.jsonl"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.jsonl", ["a.jsonl", "b.jsonl"]),
        ("[b-z].jsonl", ["b.jsonl"]),
        ("*.md", ["README.md"]),
        ("sub/*/d.pq", ["deep/d.pq"]),
        ("**/*.pq", ["sub/deep/d.pq"]),
        ("s*", None),
        ("?.txt", None),
    ],
)
def test_patterns(tree, pattern, expected):
    if expected is None:
        with pytest.raises(ConfigError, match=r"no file"):
            find_files(f"{tree}/{pattern}", SUFFIXES)
    else:
        assert names(f"{tree}/{pattern}", SUFFIXES) == expected


def test_a_list_keeps_its_order_and_names_files_below_what_the_items_share(tree):
    assert names([f"{tree}/sub/deep", f"{tree}/sub/c.JSONL"], SUFFIXES) == ["deep/d.pq", "c.JSONL"]
    assert names([f"{tree}/b.jsonl", f"{tree}/a.jsonl"], SUFFIXES) == ["b.jsonl", "a.jsonl"]


def test_a_file_given_twice_is_refused(tree):
    with pytest.raises(ConfigError, match=r"sub/c\.JSONL is given twice"):
        find_files([f"{tree}/sub", f"{tree}/sub/c.JSONL"], SUFFIXES)


def test_what_does_not_exist_is_said(tree):
    with pytest.raises(ConfigError, match=r"nowhere' does not exist"):
        find_files(f"{tree}/nowhere", SUFFIXES)
    with pytest.raises(ConfigError, match="empty list of files"):
        find_files([], SUFFIXES)


def test_a_folder_without_known_files_says_what_it_holds(tree):
    with pytest.raises(
        ConfigError, match=r"no file ending in \.csv, \.tsv; found instead: README\.md, a\.jsonl, b\.jsonl$"
    ):
        find_files(tree, (".csv", ".tsv"))


def test_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="found instead: no visible file"):
        find_files(tmp_path, SUFFIXES)


def test_roots_of_the_same_layout_give_the_same_names(tmp_path):
    write(tmp_path / "x", *TREE)
    write(tmp_path / "y" / "_z", *TREE)
    assert names(tmp_path / "x", SUFFIXES) == names(tmp_path / "y" / "_z", SUFFIXES) == FOUND


def test_local_paths_may_be_relative_pathlike_homes_and_file_urls(tmp_path, monkeypatch):
    write(tmp_path, "a.jsonl", "odd[1]*.jsonl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("a.jsonl", tmp_path / "a.jsonl", "~/a.jsonl", f"file://{tmp_path}/a.jsonl", "./x/../a.jsonl"):
        assert [file.path for file in find_files(path, SUFFIXES)] == [str(tmp_path / "a.jsonl")]
    assert names("odd[1]*.jsonl", SUFFIXES) == ["odd[1]*.jsonl"], "a file of that very name comes before a pattern"


def test_links_are_followed_and_circles_end(tmp_path):
    write(tmp_path, "data/a.jsonl", "else/b.jsonl")
    os.symlink(tmp_path / "else", tmp_path / "data" / "linked")
    os.symlink(tmp_path / "data", tmp_path / "data" / "circle")
    os.symlink(tmp_path / "else" / "b.jsonl", tmp_path / "data" / "c.jsonl")
    assert names(tmp_path / "data", SUFFIXES) == ["a.jsonl", "c.jsonl", "linked/b.jsonl"]


def test_a_broken_link_is_not_passed_over(tmp_path):
    write(tmp_path, "a.jsonl")
    os.symlink(tmp_path / "gone", tmp_path / "b.jsonl")
    with pytest.raises(ReadError, match=r"b\.jsonl: can't stat it: No such file"):
        find_files(tmp_path, SUFFIXES)


def test_the_version_of_a_local_file_changes_with_its_mtime(tmp_path):
    write(tmp_path, "a.jsonl")
    versions = set()
    for stamp in (1, 1, 2):
        os.utime(tmp_path / "a.jsonl", ns=(0, stamp))
        versions.add(find_files(tmp_path, SUFFIXES)[0].version)
    assert versions == {"1", "2"}


def test_http_files_have_size_and_tag_and_a_name_without_query():
    with serve({"d/a.jsonl": b"12345"}) as site:
        (file,) = find_files(f"{site.url}/d/a.jsonl?sig=s", SUFFIXES)
        assert (file.name, file.size, file.path) == ("a.jsonl", 5, f"{site.url}/d/a.jsonl?sig=s")
        before = file.version
        site.files["d/a.jsonl"] = b"54321"
        (file,) = find_files(f"{site.url}/d/a.jsonl", SUFFIXES)
        assert file.version != before != ""
        with pytest.raises(ConfigError, match=r"b\.jsonl' does not exist, or can't be reached"):
            find_files(f"{site.url}/b.jsonl", SUFFIXES)


def test_a_server_that_tells_nothing_gives_a_file_without_facts():
    with serve({"a.jsonl": b"12345"}, sizes=False, tags=False, ranges=False) as site:
        (file,) = find_files(f"{site.url}/a.jsonl", SUFFIXES)
        assert (file.size, file.version) == (None, "")
        assert b"".join(file.blocks(2)) == b"12345"


def test_an_unknown_protocol_is_a_config_error():
    with pytest.raises(ConfigError, match=r"nonsense://a.*Protocol not known"):
        find_files("nonsense://a", SUFFIXES)


@pytest.mark.parametrize("path", [None, 5, b"a.jsonl", {"a": "b"}, ["a.jsonl", 5], [None]])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(ConfigError, match="a path must be a str, a Path or a list of those, got "):
        find_files(path, SUFFIXES)


@pytest.mark.parametrize("path", ["", [], [""], ()])
def test_an_empty_path_is_not_the_working_directory(path, tmp_path, monkeypatch):
    write(tmp_path, "a.jsonl")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no path was given"):
        find_files(path, SUFFIXES)
    assert names(".", SUFFIXES) == ["a.jsonl"]


@pytest.mark.parametrize("end", ["", "/", "/?list=1", "?list=1"])
def test_a_server_is_no_file(end):
    with serve({"a.jsonl": b"1"}) as site, pytest.raises(ConfigError, match=r"is a server and no file.*list of URLs"):
        find_files(site.url + end, SUFFIXES)
