"""Campaigns carried out: failures recorded while the rest goes on, nothing left behind, and continued.

The mpirun here is a program of ours, so that hangs and failures come when they are wanted, without MPI.
A campaign under the real one is run by the page docs/campaigns.md.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mpicoll.bench import execution, launch
from mpicoll.bench.campaign import read_campaign
from mpicoll.bench.launch import begin, refuse_inside_a_job
from mpicoll.bench.outlook import outlook
from mpicoll.errors import ArgumentError

FAKE = Path(__file__).with_name("fake_mpirun.py")
TIMEOUT = 60


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A directory with a site whose mpirun is ours."""
    program = tmp_path / "mpirun"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    program.chmod(0o755)
    (tmp_path / "site.toml").write_text(f'mpirun = "{program}"\nprogram = ["mpicoll"]\ncores = 2\n')
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    for name in [name for name in os.environ if name.startswith(("PMI", "OMPI_", "SLURM_"))]:
        monkeypatch.delenv(name)
    return tmp_path


def start(folder, campaign, *flags):
    (folder / "c.toml").write_text(campaign)
    argv = ["launch", folder / "c.toml", "-o", folder / "r", "--site", folder / "site.toml", *flags]
    command = [sys.executable, "-m", "mpicoll", *map(str, argv)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate(timeout=TIMEOUT)
    return process.returncode, out, err


def records(folder):
    whole = json.loads((folder / "r" / "campaign.json").read_text())
    for record in whole["launches"]:
        path = folder / "r" / "launches" / record["id"] / "launch.json"
        if path.exists():
            assert json.loads(path.read_text()) == record
    return whole["launches"]


def alive(folder):
    """The processes that our mpirun noted and that run, after a moment for those that were just killed."""
    for _ in range(100):
        pids = [int(pid) for pid in (folder / "pids").read_text().split()]
        running = [pid for pid in pids if runs(pid)]
        if not running:
            return []
        time.sleep(0.05)
    return running


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def until(condition):
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


MODES = "".join(
    f'[environment.{mode}]\nMODE = "{mode}"\n' for mode in ("good", "wrong", "liar", "few", "hang")
)


def test_a_failed_or_hung_launch_is_recorded_and_the_rest_goes_on(folder, monkeypatch, capsys):
    monkeypatch.setattr(execution, "GRACE", 0.3)
    (folder / "c.toml").write_text(f'ranks = 2\nrepeats = 1\ntimeout = "1s"\n{MODES}')
    argv = [str(folder / "c.toml"), "-o", str(folder / "r"), "--site", str(folder / "site.toml")]
    from mpicoll.bench import cli

    assert cli.main(["launch", *argv]) == 1
    found = {record["environment"]: record for record in records(folder)}
    assert {name: record["state"] for name, record in found.items()} == {
        "good": "complete", "wrong": "failed", "liar": "failed", "few": "failed", "hang": "timed out",
    }  # fmt: skip
    last = {name: record["attempts"][-1] for name, record in found.items()}
    assert last["wrong"]["exit_status"] == 1
    assert "WRONG RESULTS" in last["wrong"]["output_tail"]
    assert last["liar"]["reason"] == "it ended well, but its record says: running"
    assert last["few"]["reason"] == "2 ranks were asked for, but there were 1"
    assert last["hang"]["reason"] == "no end after 1 s; killed"
    assert "a message that never comes" in last["hang"]["output_tail"]
    for attempt in last.values():
        assert attempt["command"].startswith(str(folder / "mpirun"))
        assert attempt["started"] <= attempt["ended"]
    assert alive(folder) == []
    lines = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("[") and "2 ranks, 1 node" in line for line in lines) == 5
    # What is complete stays; the others are tried again.
    assert cli.main(["launch", *argv, "--resume"]) == 1
    tries = {record["environment"]: len(record["attempts"]) for record in records(folder)}
    assert tries == {"good": 1, "wrong": 2, "liar": 2, "few": 2, "hang": 2}
    assert cli.main(["launch", *argv]) == 2
    assert "already holds a campaign" in capsys.readouterr().err


WAITING = 'ranks = 2\nrepeats = 2\n[environment.waiting]\nMODE = "wait"\n'


def running(folder):
    return (folder / "pids").exists() and (folder / "pids").read_text().endswith("\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_stopped_campaign_waits_for_its_launch_and_is_continued(folder, number):
    process = start(folder, WAITING)
    until(lambda: running(folder))
    status, _, err = finish(start(folder, WAITING, "--resume"))  # meanwhile, our mpirun begins to listen
    assert status == 2
    assert f"another `mpicoll launch` works in {folder / 'r'} (process {process.pid} on " in err
    process.send_signal(number)
    status, _, err = finish(process)
    assert status == 128 + number
    assert "continue with the same command and --resume" in err
    assert [record["state"] for record in records(folder)] == ["stopped", "planned"]
    assert alive(folder) == []
    for one in records(folder):  # let them end
        (folder / "r" / "launches" / one["id"]).mkdir(parents=True, exist_ok=True)
        (folder / "r" / "launches" / one["id"] / "run.json").write_text("{}")
    status, out, _ = finish(start(folder, WAITING, "--resume"))
    assert status == 0
    assert "2 complete" in out
    assert [len(record["attempts"]) for record in records(folder)] == [2, 1]


def test_a_second_interrupt_kills(folder):
    process = start(folder, 'ranks = 2\nrepeats = 2\n[environment.deaf]\nMODE = "hang"\n')
    until(lambda: running(folder))
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    status, _, _ = finish(process)
    assert status == 130
    assert [record["state"] for record in records(folder)] == ["stopped", "planned"]
    assert alive(folder) == []


def test_nothing_survives_a_killed_campaign_and_it_is_continued(folder):
    process = start(folder, WAITING)
    until(lambda: running(folder))
    time.sleep(0.3)
    process.kill()
    finish(process)
    assert alive(folder) == []  # the launcher was told that its parent died
    assert [record["state"] for record in records(folder)] == ["running", "planned"]
    status, out, _ = finish(start(folder, WAITING.replace("wait", "good"), "--resume"))
    assert status == 2  # another campaign
    for one in records(folder):
        (folder / "r" / "launches" / one["id"]).mkdir(parents=True, exist_ok=True)
        (folder / "r" / "launches" / one["id"] / "run.json").write_text("{}")
    status, out, _ = finish(start(folder, WAITING, "--resume"))
    assert (status, "2 complete" in out) == (0, True)


def test_other_conditions_do_not_continue_a_campaign(tmp_path):
    head = {"campaign": {"ranks": [2]}, "conditions": {"mpi": "MPICH 5.0.2", "cpu_model": "A"}}
    begin(tmp_path, head, {}, resume=False)
    begin(tmp_path, head, {}, resume=True)
    other = {**head, "conditions": {"mpi": "Open MPI 5.0.11", "cpu_model": "A"}}
    with pytest.raises(ArgumentError, match=r"other conditions.*\n  mpi: 'MPICH 5.0.2' → 'Open MPI 5.0.11'"):
        begin(tmp_path, other, {}, resume=True)
    with pytest.raises(ArgumentError, match="already holds a campaign"):
        begin(tmp_path, head, {}, resume=False)


def test_a_dry_run_prints_what_is_run_and_leaves_nothing(folder):
    status, out, err = finish(start(folder, "ranks = [1, 2]\nrepeats = 2\n", "--dry-run", "--repeat", "1"))
    assert status == 0, err
    commands = [line for line in out.splitlines() if not line.startswith("#")]
    assert len(commands) == 2
    assert all(line.startswith(f"{folder / 'mpirun'} -n ") and line.endswith("--resume") for line in commands)
    assert not (folder / "r").exists()
    assert "# 2 launches × about " in out
    assert "# 2 repeats give no verdicts: a verdict needs 5 launches (repeats = 5)" in out


def test_a_campaign_says_what_it_takes_and_whether_it_decides(tmp_path):
    (tmp_path / "c.toml").write_text(
        "ranks = [2, 4]\nrepeats = 4\n[sweep]\nsizes = '4,1K'\ncase-time = '3s'\n"
        "[options.a]\ncache = 'warm'\n[options.b]\ncache = 'warm,cold'\ntime-limit = '10s'\n"
    )
    campaign = read_campaign(tmp_path / "c.toml")
    (launches, _), specs = campaign.plan(), launch.check_sweeps(campaign, tmp_path / "c.toml")
    took, undecided = outlook(campaign, launches, specs)  # 2 + 2 cases of 3 s; 2 + the limit, 10 s
    assert took.startswith("16 launches × about 8 s to 12 s at most = 2.67 min one after the other (")
    assert undecided.startswith("4 repeats give no verdicts")
    assert len([*outlook(replace(campaign, repeats=5), launches[:1], specs)]) == 1


def test_a_root_that_one_configuration_lacks_is_refused_by_name(tmp_path, capsys):
    """As the sweep of that launch would refuse it, but before any is launched."""
    from mpicoll.bench import cli

    path = tmp_path / "c.toml"
    path.write_text(
        "ranks = [8, 2]\n[sweep]\nsizes = '4'\n[options.a]\n[options.b]\ncollective = 'bcast'\nroot = '3'\n"
    )
    assert cli.main(["launch", str(path), "-o", str(tmp_path / "r")]) == 2
    said = "the launch of 2 ranks, 1 node, b would be refused: root 3 does not exist among 2 ranks\n"
    assert capsys.readouterr().err.endswith(f"mpicoll: {said}")
    assert not (tmp_path / "r").exists()


def test_more_ranks_than_cores_are_refused_or_said(folder, capsys, monkeypatch):
    from mpicoll.bench import cli

    (folder / "c.toml").write_text("ranks = 3\nrepeats = 1\n")
    argv = ["launch", folder / "c.toml", "-o", folder / "r", "--site", folder / "site.toml"]
    assert cli.main(list(map(str, argv))) == 2
    assert "3 ranks on a node of 2 cores" in capsys.readouterr().err
    assert cli.main([*map(str, argv), "--oversubscribe"]) == 0
    assert "complete; OVERSUBSCRIBED: no performance result" in capsys.readouterr().err
    text = (folder / "site.toml").read_text().replace("cores = 2\n", "")
    (folder / "site.toml").write_text(text)
    assert cli.main([*map(str, argv), "--dry-run", "--hosts", "a,b"]) == 0
    assert "# 3 ranks on a host: if it has fewer cores" in capsys.readouterr().err
    monkeypatch.setattr(launch.machine, "affinity", lambda: [0])
    assert cli.main([*map(str, argv), "--dry-run", "--hosts", "localhost"]) == 2
    assert "3 ranks on a node of 1 cores" in capsys.readouterr().err
    assert cli.main([*map(str, argv), "--dry-run", "--hosts", "a,b,a"]) == 2
    assert "named twice among the hosts: a" in capsys.readouterr().err


def test_slurm_is_told_this(folder):
    status, out, err = finish(start(folder, "ppn = 2\nnodes = [1, 4]\n", "--slurm", "--dry-run"))
    assert status == 0, err
    made, script, words = out.splitlines()
    assert made == f"mkdir -p {folder}/r"
    assert script.endswith(f"launch --script campaign --site {folder}/site.toml > {folder}/r/campaign.sbatch")
    assert words == (
        f"sbatch --nodes=4 --ntasks-per-node=2 --array=0-4%1 --output={folder}/r/slurm-%A_%a.log"
        f" {folder}/r/campaign.sbatch {folder}/c.toml -o {folder}/r"
    )
    assert not (folder / "r").exists()


def test_flavours_are_told_apart(tmp_path):
    for words, flavour in (("HYDRA build details", "mpich"), ("mpirun (Open MPI) 5.0.11", "openmpi")):
        program = tmp_path / "mpirun"
        program.write_text(f"#!/bin/sh\necho '{words}'\n")
        program.chmod(0o755)
        assert launch.flavour_of(str(program)) == flavour
    program.write_text("#!/bin/sh\necho other\n")
    with pytest.raises(ArgumentError, match="neither MPICH's nor Open MPI's"):
        launch.flavour_of(str(program))
    with pytest.raises(ArgumentError, match="does not answer"):
        launch.flavour_of(str(tmp_path / "none"))


def test_a_batch_script_is_no_rank(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("PMI", "OMPI_", "SLURM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_PROCID", "0")  # Slurm sets it in batch scripts as well,
    monkeypatch.setenv("SLURM_STEP_ID", "4294967290")  # and these in the shell of salloc
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    refuse_inside_a_job()


@pytest.mark.parametrize("name", ["campaign.json", "launches/0000/launch.json"])
@pytest.mark.parametrize("content", ["[]", "{", "7"])
def test_a_broken_record_is_refused_in_a_line(folder, capsys, name, content):
    from mpicoll.bench import cli

    (folder / "c.toml").write_text("ranks = 2\nrepeats = 1\n")
    (folder / "r" / name).parent.mkdir(parents=True)
    (folder / "r" / name).write_text(content)
    argv = ["launch", folder / "c.toml", "-o", folder / "r", "--site", folder / "site.toml", "--resume"]
    assert cli.main(list(map(str, argv))) == 2
    said = capsys.readouterr().err
    assert said.startswith("mpicoll: ")
    assert name in said
    assert said.count("\n") == 1


def test_a_place_where_nothing_can_be_written_is_named_in_a_line(folder, capsys):
    from mpicoll.bench import cli

    (folder / "c.toml").write_text("ranks = 2\nrepeats = 1\n")
    argv = ["launch", folder / "c.toml", "-o", folder / "c.toml" / "r", "--site", folder / "site.toml"]
    assert cli.main(list(map(str, argv))) == 2
    said = capsys.readouterr().err
    assert "Not a directory" in said
    assert said.count("\n") == 1


def test_a_full_disk_is_said_of_the_file(folder, capsys, monkeypatch):
    from mpicoll.bench import cli, records

    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(records.os, "fsync", full)
    (folder / "c.toml").write_text("ranks = 2\nrepeats = 1\n")
    argv = ["launch", folder / "c.toml", "-o", folder / "r", "--site", folder / "site.toml"]
    assert cli.main(list(map(str, argv))) == 2
    assert capsys.readouterr().err == f"mpicoll: {folder}/r/campaign.json: No space left on device\n"
    assert [path.name for path in (folder / "r").iterdir()] == [".repeat-0.lock"]
