#!/usr/bin/env bash
# Builds a free-threaded Python 3.13 from Debian's source and runs the project on it: bash tests/benchmarks/free_threaded.sh [FOLDER]
# Takes about 15 minutes on 2 cores, 8 GB of disk and, as root, build-essential and libssl-dev and the like from Debian.
# Not a part of CI. There is no wheel of tokenizers for it, so free_threaded.py uses a stand-in.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="${1:-/tmp/free_threaded}"
mkdir -p "$root/apt/lists/partial" "$root/src"
if [ ! -x "$root/python/bin/python3.13t" ]; then
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main" > "$root/apt/sources.list"
    apt="-o Dir::Etc::sourcelist=$root/apt/sources.list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$root/apt/lists"
    apt-get install -y -qq build-essential dpkg-dev libssl-dev libffi-dev zlib1g-dev libbz2-dev liblzma-dev libsqlite3-dev
    apt-get $apt update -qq
    (cd "$root/src" && apt-get $apt source -qq --download-only python3.13 && dpkg-source --no-check -x python3.13_*.dsc python)
    (cd "$root/src/python" && ./configure -q --disable-gil --disable-test-modules --prefix="$root/python" && nice -n 19 make -s -j2 && make -s install ENSUREPIP=no)
fi
python="$root/python/bin/python3.13t"
if [ ! -d "$root/packages/torchdata" ]; then
    python3 -m pip download -q --no-deps -d "$root" pip  # a pip that knows the names of such wheels
    "$python" "$(ls "$root"/pip-*.whl)/pip" install -q --only-binary :all: --target "$root/packages" numpy==2.4.6 pyarrow==24.0.0 pillow fsspec cloudpickle tqdm torch==2.12.0 torchdata==0.11.0
fi
PYTHONPATH="$here/../..:$root/packages" "$python" "$here/free_threaded.py"
