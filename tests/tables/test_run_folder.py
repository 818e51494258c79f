"""The folder of a run: damage is seen, nothing in it is executed, one run at a time, files keep their place."""

import io
import json
import os
import pickle
import random
import shutil
import stat
import subprocess
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest
from test_study import spoilt

from scdro._files import write_file
from scdro.cli import main
from scdro.errors import CheckpointError, DataError, ScdroError
from scdro.tables import load, train
from scdro.tables._folder import lock_folder, seal


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trees") / "run"
    train(spoilt(200), "y", candidates=1, seeds=1, out=folder)
    return folder


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    folder = tmp_path_factory.mktemp("linear") / "run"
    train(
        spoilt(200), "y", model="linear", methods=["worst-case"], candidates=1, seeds=1, out=folder
    )
    return folder


def files_of(folder):
    return [
        p
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name not in (".lock", "report.html")
    ]


def copied(folder, to):
    for path in folder.rglob("*"):
        if path.is_file():
            (to / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
            (to / path.relative_to(folder)).write_bytes(path.read_bytes())
    return to


@pytest.mark.parametrize("name", ["trees", "linear"])
def test_a_flipped_bit_anywhere_is_an_error(name, request, tmp_path):
    folder = copied(request.getfixturevalue(name), tmp_path / "run")
    rng = random.Random(0)
    paths = files_of(folder)
    for k in range(120):
        path = paths[k % len(paths)]
        before = path.read_bytes()
        damaged = bytearray(before)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            load(folder)
        path.write_bytes(before)
    load(folder)


def refusal(folder):
    """What is said when a run is opened and used, None where it works."""
    try:
        load(folder).predict(spoilt(5))
    except ScdroError as error:
        return str(error)
    return None


def test_damaged_and_hostile_json_with_right_checksums(linear, tmp_path):
    """Whoever can write the checksums can write anything; still one line, never a traceback."""
    folder = copied(linear, tmp_path / "run")
    rng, problems = random.Random(0), 0
    for path in (
        folder / "model.json",
        folder / "models" / "plain" / "model.json",
        folder / "summary.json",
    ):
        before = path.read_bytes()
        for k in range(40):
            damaged = bytearray(before)
            if k % 2:
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            else:
                damaged = damaged[: rng.randrange(len(damaged))]
            path.write_bytes(damaged)
            seal(folder)
            said = refusal(folder)
            problems += said is not None
            assert "\n" not in (said or "")
        path.write_bytes(before)
    assert problems > 60


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["verdict"], None),
        (["verdict", "kept"], 5),
        (["verdict", "kept"], "second-look"),
        (["task", "classes"], ["yes"]),
        (["task", "classes"], 7),
        (["data", "columns"], 3),
        (["groups"], [1]),
        (["methods", 0, "candidates"], [{}]),
    ],
)
def test_a_summary_of_another_shape_is_a_line(linear, tmp_path, path, value):
    folder = copied(linear, tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    inner = summary
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    (folder / "summary.json").write_text(json.dumps(summary))
    seal(folder)
    with pytest.raises(CheckpointError):
        load(folder)


class Evil:
    def __reduce__(self):
        return os.system, ("touch executed",)


@pytest.mark.parametrize("name", ["trees", "linear"])
def test_models_of_other_columns_are_refused_when_they_are_opened(name, request, tmp_path):
    folder = copied(request.getfixturevalue(name), tmp_path / "run")
    about = json.loads((folder / "model.json").read_text())
    about["inputs"]["numbers"].pop()
    (folder / "model.json").write_text(json.dumps(about))
    seal(folder)
    with pytest.raises(CheckpointError, match="columns"):
        load(folder)


def test_opening_a_run_executes_nothing(linear, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = copied(linear, tmp_path / "run")
    target = folder / "models" / "plain" / "linear.skops"
    with zipfile.ZipFile(io.BytesIO(target.read_bytes())) as archive:
        schema = json.loads(archive.read("schema.json"))
    schema.update({"__class__": "system", "__module__": "os", "__loader__": "TypeNode"})
    for content in (pickle.dumps(Evil()), _zip({"schema.json": json.dumps(schema)})):
        target.write_bytes(content)
        seal(folder)
        with pytest.raises(CheckpointError):
            load(folder)
    assert not (tmp_path / "executed").exists()


def _zip(files):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return made.getvalue()


def test_files_outside_of_the_folder_are_refused(linear, tmp_path):
    folder = copied(linear, tmp_path / "run")
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(
        json.dumps({**manifest, "files": {**manifest["files"], "../secret.json": "0" * 64}})
    )
    with pytest.raises(CheckpointError, match="secret"):
        load(folder)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "model.json").unlink()
    (folder / "model.json").symlink_to(secret)
    with pytest.raises(CheckpointError, match=r"model\.json"):
        load(folder)


@pytest.mark.parametrize("kind", ["file", "link", "pipe"])
def test_files_that_the_manifest_does_not_name_are_not_read(linear, tmp_path, kind):
    folder = copied(linear, tmp_path / "run")
    own = folder / "models" / "plain" / "linear.skops"
    outside = tmp_path / "outside.skops"
    shutil.copy(own, outside)
    own.unlink()
    seal(folder)  # without the model
    if kind == "file":
        shutil.copy(outside, own)
    elif kind == "link":
        own.symlink_to(outside)
    else:
        os.mkfifo(own)  # reading it would wait for a writer
    with pytest.raises(CheckpointError, match=r"linear\.skops"):
        load(folder)
    own.unlink()
    with pytest.raises(CheckpointError):
        load(folder)
    (folder / "my notes.txt").write_text("a user's own file is no part of the run")
    shutil.copy(outside, own)
    seal(folder)
    (folder / "predictions.csv").write_text("row\n")
    assert load(folder).models


def test_a_page_is_not_written_into_a_pipe_of_the_run(linear, tmp_path, capsys):
    folder = copied(linear, tmp_path / "run")
    (folder / "report.html").unlink(missing_ok=True)
    os.mkfifo(folder / "report.html")
    assert main(["report", str(folder)]) == 1
    assert "--out" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["schema.json", "0.npy"])
def test_a_packed_model_is_refused_before_it_takes_memory(linear, tmp_path, what):
    folder = copied(linear, tmp_path / "run")
    target = folder / "models" / "plain" / "linear.skops"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(what, b"[" + b" " * 200_000_000 + b"]")
    assert target.stat().st_size < 1_000_000
    seal(folder)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match="compression"):
        load(folder)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 20_000_000


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"format": 1}', '{"format": 2, "files": {}}', "null", "[" * 10_000]
)
def test_wrong_manifests(linear, tmp_path, content):
    folder = copied(linear, tmp_path / "run")
    (folder / "manifest.json").write_text(content)
    with pytest.raises(CheckpointError):
        load(folder)


# -- the lock and other runs
# ------------------------------------------------------------------------------------------


def test_a_folder_is_of_one_run(linear):
    before = {path: path.read_bytes() for path in files_of(linear)}
    given = {"model": "linear", "methods": ["worst-case"], "candidates": 1, "seeds": 1}
    for other, fact in (
        ({"rho": 0.1}, "rho"),
        ({"drop": ["noise"]}, "data"),
        ({"seed": 3}, "seed"),
    ):
        with pytest.raises(CheckpointError, match=fact):
            train(spoilt(200), "y", out=linear, **{**given, **other})
    with pytest.raises(CheckpointError, match="data"):
        train(spoilt(200, seed=4), "y", out=linear, **given)
    assert {path: path.read_bytes() for path in files_of(linear)} == before
    assert train(spoilt(200), "y", out=linear, **given).models


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError):
        train(spoilt(100), "y", model="linear", candidates=1, seeds=1, out=tmp_path)
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".")] == ["thesis.txt"]


RACE = """
import sys, time
sys.path[:0] = sys.argv[3:]
from pathlib import Path
from scdro.errors import ScdroError
from scdro.tables._folder import lock_folder, check_same_run
print("ready", flush=True)
sys.stdin.readline()
try:
    with lock_folder(Path(sys.argv[1])):
        check_same_run(Path(sys.argv[1]), {"number": sys.argv[2]})
        time.sleep(0.05)
    print("accepted", flush=True)
except ScdroError:
    print("refused", flush=True)
"""


def test_two_runs_at_once_in_one_folder(tmp_path):
    """Started within a millisecond: of two different runs one is accepted, every time."""
    for trial in range(3):
        command = [sys.executable, "-c", RACE, str(tmp_path / str(trial))]
        started = [
            subprocess.Popen(
                [*command, str(k), *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for k in range(2)
        ]
        for process in started:
            assert process.stdout.readline() == "ready\n"
        for process in started:
            process.stdin.write("\n")
            process.stdin.flush()
        assert sorted(process.communicate(timeout=60)[0].strip() for process in started) == [
            "accepted",
            "refused",
        ]


def test_the_lock_is_given_back(tmp_path):
    with (
        lock_folder(tmp_path / "run"),
        pytest.raises(CheckpointError),
        lock_folder(tmp_path / "run"),
    ):
        pass
    with lock_folder(tmp_path / "run"):
        pass


# -- files that a user names
# ------------------------------------------------------------------------------------------


def test_written_files_keep_mode_and_place(tmp_path):
    private = tmp_path / "private.csv"
    private.write_text("old")
    private.chmod(0o600)
    write_file(private, "new")
    assert (private.read_text(), stat.S_IMODE(private.stat().st_mode)) == ("new", 0o600)
    link = tmp_path / "link.csv"
    link.symlink_to(private)
    write_file(link, "newer")
    assert link.is_symlink()
    assert private.read_text() == "newer"
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    write_file(tmp_path / "fresh.csv", "x")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "fresh.csv").stat().st_mode) == 0o666 & ~mask
    with pytest.raises(DataError):
        write_file(tmp_path, "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fresh.csv", "link.csv", "private.csv"]


@pytest.mark.skipif(not os.path.exists("/dev/null"), reason="no devices")
def test_a_device_stays_a_device():
    from pathlib import Path

    write_file(Path("/dev/null"), "x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True)
    write_file(pipe, "through")
    assert reader.communicate(timeout=30)[0] == "through"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_arrays_that_claim_to_be_huge_are_computed_again(tmp_path):
    """A stored fit whose header claims 800 GB."""
    from scdro.tables._folder import Fits

    fits = Fits(tmp_path)
    fits.get({"a": 1}, lambda: {"x": np.arange(3)})
    (path,) = (tmp_path / "fits").glob("*.npz")
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (100000000000,), }"
    header += b" " * (118 - len(header)) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    assert fits.get({"a": 1}, lambda: {"x": np.arange(3)})["x"].tolist() == [0, 1, 2]
