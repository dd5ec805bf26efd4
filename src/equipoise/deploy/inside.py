"""Flower's processes beside its SuperLink, with the secret that lets them in.

`python -m equipoise.deploy.inside PROGRAM …` runs one of:

    superexec    looks for runs that were handed in, and starts a process for each
    serverapp    such a process: the coordinator's training loop

Both take the arguments of Flower's own program. A run's token comes by standard input and not as an argument,
which every account of the machine could read.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from equipoise.deploy import flower
from equipoise.deploy.access import SECRET, read_secret
from equipoise.deploy.flower import ExecutionSpec, LaunchResult, SubprocessExecutor, TaskType


def command(program: str, *arguments: str) -> list[str]:
    """The command line of a program in this file."""
    return [sys.executable, "-m", "equipoise.deploy.inside", program, *arguments]


class Starter(SubprocessExecutor):
    """Starts the training loop of a run, and nothing else that Flower knows how to start.

    A process that has not signed in within Flower's half minute, as on a machine that is very busy, is given
    up by the server, and asked for anew. The one before is then ended, or they would keep each other waiting.
    """

    def __init__(self) -> None:
        super().__init__()
        self._started: dict[int, subprocess.Popen[bytes]] = {}

    def get_eligible_capacity(
        self,
        supported_task_types: set[TaskType],
        **options: Any,
    ) -> tuple[set[TaskType], set[str]]:
        return supported_task_types & {TaskType.SERVER_APP}, set()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        if spec.task_type != TaskType.SERVER_APP:
            return LaunchResult.failed(f"this server starts no {spec.task_type}")
        self._started = {task: one for task, one in self._started.items() if one.poll() is None}
        if (before := self._started.get(spec.task_id)) is not None:
            before.kill()
            before.wait()
        process = self._started[spec.task_id] = subprocess.Popen(
            command(
                *("serverapp", "--runtime-api-address", spec.runtime_api_address),
                *("--root-certificates", str(spec.root_certificates_path)),
                *("--parent-pid", str(spec.parent_pid)),
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdin is not None
        with process.stdin as line:
            line.write(f"{spec.token}\n".encode())
        return LaunchResult.accepted()


def main() -> None:
    """Run one of the programs."""
    program = sys.argv.pop(1)
    flower.add_to_every_client({SECRET: read_secret(Path(os.environ[flower.HOME]))})
    if program == "superexec":
        flower.run_superexec(Starter())
    else:
        sys.argv += ["--token", sys.stdin.readline().strip()]
        flower.run_serverapp()


if __name__ == "__main__":
    main()
