"""A PNG of a small image, with nothing but zlib."""

from __future__ import annotations

import base64
import struct
import zlib

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["data_uri", "png", "small"]

LARGEST = 64  # pixels on the page; larger images are made smaller


def png(image: Tensor) -> bytes:
    """An image (3, h, w) of uint8."""
    _, height, width = image.shape
    rows = image.permute(1, 2, 0).reshape(height, 3 * width).contiguous().numpy()
    raw = b"".join(b"\0" + row.tobytes() for row in rows)  # a filter byte, none, before each row
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, *zip(*parts, strict=True)))


def small(image: Tensor) -> Tensor:
    """The image, shrunk to at most `LARGEST` pixels per side."""
    factor = max(image.shape[1:]) / LARGEST
    if factor <= 1:
        return image
    size = [max(round(side / factor), 1) for side in image.shape[1:]]
    return F.interpolate(image[None].float(), size, mode="area")[0].round().to(torch.uint8)


def data_uri(content: bytes) -> str:
    """A PNG as a data URI."""
    return "data:image/png;base64," + base64.b64encode(content).decode()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )
