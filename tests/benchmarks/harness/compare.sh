#!/usr/bin/env bash
# Sets up what is missing, and runs this project beside the limit and the peers. Arguments go to run.py.
set -eu
here=$(cd "$(dirname "$0")" && pwd); venv=$HOME/.cache/zephon_bench/venv
bash "$here/setup.sh" lite
"$venv/bin/pip" install -q -e "$here/../../.."
cd "$here"
"$venv/bin/python" run.py --repeat 3 --warm 3 --secs 5 --jobs "
  limit:inline:1 limit:thread:2 limit:noipc:2 zephon_:thread:2 zephon_:thread:4 grain_:thread:2 grain_:process:2 torchdata_:thread:2
  zephon_nodes_:inline:1 zephon_nodes_:thread:2 zephon_nodes_:thread:4 zephon_nodes_:process:2
  zephon_nodes_load_:thread:2 zephon_nodes_load_:thread:2:resample=bilinear_fast zephon_nodes_load_:thread:2:pixels=uint8,resample=bilinear_fast" "$@"
