"""The report's page: its colours differ."""

import re
from pathlib import Path

import numpy as np

from reproduction.engine import report


def test_colours_differ_for_all_eyes():
    """Seen with no red or no green receptors (Machado et al., 2009), by distance in CIELAB; and against the ground."""
    eyes = (
        np.eye(3),
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
    )
    style = (Path(report.__file__).parent / "page.css").read_text()
    for theme in style.split("\n* {")[0].split("@media"):
        known = dict(re.findall(r"--(\w+): #(\w{6})", theme))
        colours = np.array([list(bytes.fromhex(known[f"c{k}"])) for k in range(8)]) / 255
        ground = np.array(list(bytes.fromhex(known["card"]))) / 255
        light = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
        behind = np.where(ground <= 0.04045, ground / 12.92, ((ground + 0.055) / 1.055) ** 2.4)
        shades = np.stack([light @ LUMINANCE, np.broadcast_to(behind @ LUMINANCE, 8)])
        assert ((shades.max(0) + 0.05) / (shades.min(0) + 0.05)).min() >= 3  # WCAG 2.1, 1.4.11
        for eye in eyes:
            lab = cielab(light @ np.array(eye).T)
            distance = np.linalg.norm(lab[:, None] - lab, axis=2) + 1e9 * np.eye(8)
            assert distance.min() > 12


LUMINANCE = np.array([0.2126, 0.7152, 0.0722])


def cielab(light):
    xyz = light @ np.array([[0.4124, 0.3576, 0.1805], LUMINANCE, [0.0193, 0.1192, 0.9505]]).T
    f = np.cbrt(xyz.clip(0) / [0.9505, 1.0, 1.089])
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)
