"""python -m zephon_nodes demo | verify FILE.py:make_pipeline --worlds 1,2,4 --steps 20 | inspect STATE_OR_DATASET |
index URL --out FOLDER"""

from __future__ import annotations

import argparse
import sys

from zephon_nodes.errors import ZephonError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m zephon_nodes", description="Elastic, resumable data loading.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo", help="the main job on text found on this machine: throughput, a batch, the proof"
    )
    demo.add_argument("--folder", help="where the data is put (default: a temporary folder)")
    demo.add_argument("--seconds", type=float, default=5.0, help="how long throughput is measured")
    check = commands.add_parser("verify", help="SHA-256 of every global batch on several numbers of ranks")
    check.add_argument(
        "function", metavar="FILE.py:make_pipeline", help="a function without arguments giving a pipeline"
    )
    check.add_argument("--worlds", type=_numbers, default=[1, 2, 4], help="world sizes, for example 1,2,4")
    check.add_argument("--steps", type=int, default=20, help="rounds: one output of every lane each")
    look = commands.add_parser("inspect", help="what a saved state or a dataset holds")
    look.add_argument(
        "path", metavar="STATE_OR_DATASET", help="a state (JSON or torch.save), or a file, folder, glob or URL of data"
    )
    index = commands.add_parser("index", help="opens every shard once and writes down its rows, for starts in seconds")
    index.add_argument("path", metavar="URL", help="a file, folder, glob or URL of data, as Dataset.from_path gets it")
    index.add_argument("--out", help="a local folder, to be given as index_dir (default: beside the data)")
    index.add_argument("--format", help="name of the format (default: by the endings of the names)")
    index.add_argument(
        "--columns", type=lambda text: text.split(","), help="those that will be read, for example text,id"
    )
    index.add_argument("--storage-options", metavar="FILE.json", help="options for fsspec, as a JSON object in a file")
    index.add_argument("--threads", type=int, default=16, help="shards that are opened at once")
    given = parser.parse_args(arguments)
    try:
        return _run(given)
    except ZephonError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


def _run(given: argparse.Namespace) -> int:
    if given.command == "demo":
        from zephon_nodes.demo import demo

        return 0 if demo(given.folder, given.seconds) else 1
    if given.command == "inspect":
        from zephon_nodes.explore.inspecting import inspect

        print(inspect(given.path))
        return 0
    if given.command == "index":
        from zephon_nodes.index_command import options_from, write_index

        options = options_from(given.storage_options)
        settings = {"fmt": given.format, "columns": given.columns, "storage_options": options, "threads": given.threads}
        report = write_index(given.path, given.out, **settings)
        print(f"{report.rows:,} rows in {report.shards:,} shards ({report.opened:,} opened now): {report.place}")
        return 0
    from zephon_nodes.verify import load_function, verify

    return 0 if verify(load_function(given.function), given.worlds, given.steps) else 1


def _numbers(text: str) -> list[int]:
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"world sizes are whole numbers with commas between them, got {text!r}")
    numbers = [int(part) for part in text.split(",")]
    if any(number < 1 for number in numbers):
        raise argparse.ArgumentTypeError(f"world sizes are at least 1, got {text!r}")
    return numbers


if __name__ == "__main__":
    sys.exit(main())
