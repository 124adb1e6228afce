"""python -m multimodal demo [FOLDER]"""

from __future__ import annotations

import argparse
import sys

from zephon_nodes.errors import ZephonError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m multimodal", description="Images in the data of language models.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="images and text through the whole graph: throughput, the proof, a picture")
    demo.add_argument("folder", nargs="?", help="a folder of images of yours (default: drawn scenes)")
    demo.add_argument(
        "--style", choices=["dynamic", "fixed"], default="dynamic", help="dynamic resolution or a fixed grid"
    )
    demo.add_argument("--sheet", default="contact_sheet.png", help="where the contact sheet is saved")
    demo.add_argument("--seconds", type=float, default=5.0, help="how long throughput is measured")
    given = parser.parse_args(arguments)
    try:
        from multimodal.demo import demo as run

        return 0 if run(given.folder, given.sheet, given.style, given.seconds) else 1
    except (ZephonError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
