"""Small files in the formats that `scdro train` reads."""

from __future__ import annotations

import csv

import numpy as np

COLOURS = ("red", "green", "blue")


def rows(n=300, seed=0):
    """Dicts: two numbers and a colour that decide the class with some noise, gaps, rare texts, and a group."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        a, b = rng.normal(10.0, 3.0), rng.normal(-1.0, 0.5)
        colour = COLOURS[int(rng.integers(3))]
        score = (a - 10) / 3 + (b + 1) + (colour == "red") + 0.3 * rng.normal()
        made.append(
            {
                "a": f"{a:.4f}" if rng.random() > 0.1 else "NA",
                "b": f"{b:.4f}",
                "colour": colour if rng.random() > 0.02 else f"odd{rng.integers(1000)}",
                "site": ("north", "south")[int(rng.random() < 0.3)],
                "label": "yes" if score > 0.8 else "no",
            }
        )
    return made


def write_csv(path, content, delimiter=","):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(content[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(content)
    return path


def read_csv(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def write_images(folder, each=16, seed=0, sizes=((24, 24), (30, 20), (17, 40))):
    """PNG and JPEG images of several sizes: reddish ones in a/, bluish ones in b/."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    for name, colour in (("a", (200, 60, 60)), ("b", (60, 60, 200))):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            width, height = sizes[i % len(sizes)]
            pixels = rng.integers(-50, 50, size=(height, width, 3)) + np.array(colour)
            ending = "png" if i % 2 else "jpg"
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(
                folder / name / f"{i:02d}.{ending}"
            )
    return folder
