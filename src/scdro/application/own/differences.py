"""In what a run differs from the one that its folder holds, in the user's terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["differences"]

FREE = ("methods", "trials", "grid")  # of a study: may differ from one call to the next


def differences(known: Mapping[str, Any], now: Mapping[str, Any], trained: bool) -> list[str]:
    """Nothing where a run may go on in its folder. A baseline may be added, and until it is trained, other settings.

    Both are what study.json holds: the study, the fingerprint of the data, and `options`, what the user said of the
    data and of the run. An option that explains a difference is named; what follows from it is not.
    """
    before, after = _fixed(known, trained), _fixed(now, trained)
    wrong = [key for key in after if before.get(key) != after[key]]
    said = {kind: _changed(known, now, kind, trained) for kind in ("data", "run")}
    found = [*said["data"]] if "data" in wrong else []
    if "data" in wrong and not found:
        found.append(f"the data in {_files(known, now)} differ from those of the run")
    if any(key != "data" for key in wrong):
        found += said["run"]
    return found or [f"{key} was {before.get(key)}, is now {after[key]}" for key in wrong]


def _fixed(saved: Mapping[str, Any], trained: bool) -> dict[str, Any]:
    """What every run in a folder has in common; of one with a model also its settings."""
    study = saved["study"]
    shared = {key: value for key, value in study.items() if key not in FREE}
    if trained:
        own = {key: value for key, value in study["grid"] if key.startswith(f"{saved['method']}.")}
        shared |= own | {"trials": study["trials"]}
    return {key: saved[key] for key in ("method", "seed", "data")} | shared


def _changed(known: Mapping[str, Any], now: Mapping[str, Any], kind: str, trained: bool) -> list[str]:
    """Options that are not as they were, without those that may change."""
    before, after = (saved["options"][kind] for saved in (known, now))
    free = () if trained else ("--search", "--lr", "--set")
    names = [name for name in {**before, **after} if name.split()[0] not in free]
    return [_was(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]


def _was(name: str, before: Any, after: Any) -> str:
    if before in (None, []):
        return f"{name} was not given before"
    return f"{name} was {_shown(before)}, is " + ("not given" if after in (None, []) else f"now {_shown(after)}")


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _files(known: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Those whose samples have changed: the data are fingerprints of training, validation and test samples."""
    options = now["options"]["data"]
    before, after = (saved["data"].split("-") for saved in (known, now))
    parts = zip(("DATA", "--validation", "--test"), before, after, strict=False)
    changed = [options.get(name) for name, was, is_now in parts if was != is_now]
    files = [str(name) for name in changed if isinstance(name, str)]
    return " and ".join(dict.fromkeys(files)) or str(options.get("DATA") or "the file")
