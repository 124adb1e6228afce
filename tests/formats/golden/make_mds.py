"""Writes the MDS golden files with mosaicml-streaming: ``python make_mds.py`` in an environment that has it.

``pip install torch`` (a CPU build) first, then ``pip install --no-deps mosaicml-streaming==0.13.0`` with
``transformers zstd Brotli python-snappy xxhash catalogue cramjam boto3 requests tqdm pyyaml``. ``stand_in`` makes
torchvision unnecessary.
"""

import decimal
import io
import os
import shutil

import numpy as np
from golden_rows import MDS_COLUMNS, encoded, picture, small, text
from PIL import Image
from stand_in import MDSWriter

HERE = os.path.dirname(os.path.abspath(__file__))


def everything(i):
    png, jpeg = Image.open(io.BytesIO(encoded(i, "png"))), Image.open(io.BytesIO(encoded(i, "jpeg")))
    row = {
        "a_bytes": bytes([i]) * i,
        "b_str": text(i),
        "c_int": i - 3,
        "d_any": (np.arange(6 + i) * 1.5).astype([np.float32, np.int64, np.uint8][i % 3]).reshape(1, -1),
        "e_typed": np.arange(2 + 2 * i, dtype=np.int16).reshape(2, -1),
        "f_fixed": np.full((2, 3), i + 0.5, np.float32),
        "i_str_int": 10**30 + i,
        "j_str_float": i / 3,
        "k_str_decimal": decimal.Decimal(i) / 7,
        "l_pil": picture(i, ["RGB", "L", "1"][i % 3]),
        "m_png": png,
        "n_jpeg": jpeg,
        "o_jpeg_array": [encoded(j, "jpeg") for j in range(i)],
        "p_list_png": [Image.open(io.BytesIO(encoded(j, "png"))) for j in range(i)],
        "q_json": {"i": i, "deep": [text(i), None]},
        "r_pkl": {"i": i, "s": {1, 2}},
        "s_list_jpeg": [Image.open(io.BytesIO(encoded(j, "jpeg"))) for j in range(i)],
        "t_list_pil": [picture(j) for j in range(i)],
        "u_jpegarray": [encoded(i, "jpeg")],
    }
    for name, kind in MDS_COLUMNS.items():
        if name[:2] in ("g_", "h_"):
            row[name] = np.dtype(kind).type(i * 2)
    return row


def write(name, columns, rows, **options):
    out = os.path.join(HERE, "mds", name)
    shutil.rmtree(out, ignore_errors=True)
    with MDSWriter(out=out, columns=columns, exist_ok=True, **options) as writer:
        for row in rows:
            writer.write(row)


write("encodings", MDS_COLUMNS, map(everything, range(4)), size_limit=None)
for codec in (None, "zstd", "gz", "br", "snappy", "bz2"):
    columns = {"id": "int", "image": "bytes", "caption": "str"}
    rows = map(small, range(12))
    write(codec or "plain", columns, rows, compression=codec, size_limit=1200, hashes=["sha1", "xxh64"])
write("tiny", {"id": "int", "image": "bytes", "caption": "str"}, map(small, range(3)), size_limit=200)
