"""Small drawn pictures, image files made of them, and a PNG writer for what Pillow can't write."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image

ORIENTATION = 0x0112


def drawn(height, width, channels=3, seed=0):
    """A picture with slopes, edges and noise: uint8 (H, W, channels), or (H, W) for one channel."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    bands = [(3 * y + 5 * x * (c + 1) + 60 * ((x // 5 + y // 7 + c) % 2)) % 256 for c in range(channels)]
    noisy = np.stack(bands, -1) + rng.integers(-9, 10, (height, width, channels))
    out = noisy.clip(0, 255).astype(np.uint8)
    return out[..., 0] if channels == 1 else out


def smooth(height, width):
    """A picture without sharp edges."""
    y, x = np.mgrid[:height, :width]
    waves = [127 + 90 * np.sin(x / (9 + c) + y / 17) + 30 * np.cos(y / (7 + c)) for c in range(3)]
    return np.stack(waves, -1).clip(0, 255).astype(np.uint8)


def written(image, format, **options):
    """The file that Pillow writes."""
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def opened(data):
    return Image.open(io.BytesIO(data))


def exif(orientation):
    tags = Image.Exif()
    tags[ORIENTATION] = orientation
    return tags


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(samples, bits, *extra):
    """A PNG of unsigned samples (H, W) or (H, W, 3) of 1 to 16 bits, with extra chunks before its pixels."""
    height, width = samples.shape[:2]
    rows = samples.reshape(height, -1)
    if bits == 16:
        packed = [row.astype(">u2").tobytes() for row in rows]
    else:
        flags = (rows[..., None] >> np.arange(bits - 1, -1, -1) & 1).reshape(height, -1)
        packed = [np.packbits(row.astype(np.uint8)).tobytes() for row in flags]
    colour = 2 if samples.ndim == 3 else 0
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in packed)))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(extra) + pixels + chunk(b"IEND", b"")


def with_segment(jpeg, marker, body):
    """A JPEG with one more segment behind its first two bytes."""
    return jpeg[:2] + bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body + jpeg[2:]


def without_segment(jpeg, marker):
    """A JPEG without its first segment of a kind."""
    at = jpeg.index(bytes([0xFF, marker]))
    return jpeg[:at] + jpeg[at + 2 + struct.unpack_from(">H", jpeg, at + 2)[0] :]


def one_of_each():
    """A small file of each format and of each way of storing pixels: name to bytes."""
    rgb = Image.fromarray(drawn(20, 28))
    turns = [rgb, rgb.rotate(90), rgb.rotate(180)]
    more = {"save_all": True, "append_images": turns[1:]}
    sixteen = Image.fromarray(drawn(20, 28, 1).astype(np.uint16) * 257)
    return {
        "jpeg": written(rgb, "JPEG", exif=exif(6)),
        "progressive": written(rgb, "JPEG", progressive=True),
        "grey": written(rgb.convert("L"), "JPEG"),
        "cmyk": written(rgb.convert("CMYK"), "JPEG"),
        "png": written(rgb, "PNG", exif=exif(6)),
        "palette": written(rgb.quantize(16), "PNG", transparency=3),
        "png16": written(sixteen, "PNG"),
        "apng": written(rgb, "PNG", **more),
        "gif": written(rgb, "GIF", **more),
        "webp": written(rgb, "WEBP", exif=exif(6)),
        "lossless": written(rgb.convert("RGBA"), "WEBP", lossless=True),
        "animated": written(rgb, "WEBP", **more),
        "tiff": written(rgb, "TIFF", exif=exif(6)),
        "lzw": written(rgb, "TIFF", compression="tiff_lzw"),
        "jpeg_tiff": written(rgb, "TIFF", compression="jpeg"),
        "fax": written(rgb.convert("1"), "TIFF", compression="group4"),
        "tiff16": written(sixteen, "TIFF"),
        "pages": written(rgb, "TIFF", **more),
        "bigtiff": written(rgb, "TIFF", big_tiff=True),
        "bmp": written(rgb, "BMP"),
        "bmp_palette": written(rgb.quantize(16), "BMP"),
    }


FILES = one_of_each()
