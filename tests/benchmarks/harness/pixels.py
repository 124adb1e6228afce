"""How far the pixels of ``LoadImages`` are from those of the harness's own decode, in levels of 255, over 300 images."""

import glob
import io

import numpy as np
import pyarrow.parquet as pq
from common import DATA
from PIL import Image

from multimodal import FixedGrid, LoadImages
from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource


def wanted(jpeg):
    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB").resize((224, 224), Image.BILINEAR)).astype(int)


def main():
    path = min(glob.glob(f"{DATA}/vlm_parquet/*"))
    jpegs = pq.read_table(path, columns=["image"])["image"].to_pylist()[:300]
    source = StaticMixtureWorkSource([Dataset.from_path("d", path)], shuffle="none")
    for resample in ("bilinear", "bilinear_fast"):
        vision = FixedGrid(224, 16, resample=resample, fit="squash")
        loaded = Pipeline(source).then(LoadImages, vision)
        off = [np.abs(wanted(jpeg) - row["images"][0]) for jpeg, row in zip(jpegs, loaded, strict=False)]
        most = [each.max() for each in off]
        print(f"{resample}: mean {np.mean(off):.2f}, most {max(most)}, median of images' most {np.median(most):.0f}")


if __name__ == "__main__":
    main()
