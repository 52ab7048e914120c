"""Stands for an mpirun: takes its flags, starts a child of its own, and ends in the way that MODE asks for.

fake_mpirun.py -n P … -genv MODE good|wrong|liar|hang|few|wait … mpicoll sweep … -o DIR --resume
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def main(argv: list[str]) -> NoReturn:
    """Be an mpirun."""
    if argv == ["--version"]:
        print("HYDRA build details:")
        sys.exit()
    settings = {argv[k + 1]: argv[k + 2] for k, word in enumerate(argv) if word == "-genv"}
    mode, ranks = settings.get("MODE", "good"), int(argv[argv.index("-n") + 1])
    directory = Path(argv[argv.index("-o") + 1])
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    with Path(os.environ["PIDS"]).open("a") as file:
        file.write(f"{os.getpid()} {child.pid}\n")

    def end(number: int) -> NoReturn:
        """As a launcher does: take the ranks along."""
        child.kill()
        child.wait()
        print(f"mpirun ends with {number}", flush=True)
        sys.exit(number)

    if mode == "hang":  # and hear nothing
        for number in ASKING:
            signal.signal(number, signal.SIG_IGN)
        print("waiting for a message that never comes", flush=True)
        time.sleep(60)
    if mode == "wait" and not (directory / "run.json").exists():
        for number in ASKING:
            signal.signal(number, lambda number, frame: end(128 + number))
        time.sleep(60)
    if mode == "wrong":
        print("WRONG RESULTS")
        end(1)
    there = ranks - 1 if mode == "few" else ranks
    places = [{"rank": rank, "host": "here", "node": 0, "cpus": "0"} for rank in range(there)]
    status = "running" if mode == "liar" else "complete"
    facts = {"ranks": there, "nodes": 1, "placement": places, "oversubscribed": ranks > 2}
    run = {"launches": [{"status": status, **facts}]}
    (directory / "run.json").write_text(json.dumps(run))
    end(0)


if __name__ == "__main__":
    main(sys.argv[1:])
