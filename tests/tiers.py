# SPDX-License-Identifier: Apache-2.0
"""`make test`: runs every tier of tests, says which ran, and accepts no skip in any of them.

Two tiers run at a time, as the virtual node takes one core: those of this machine beside those of
the node, and when the machine's are done the node's from the other end.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from tests.hook.build import NotHere
from tests.testbed import client, hook, kubernetes, otherbuild
from tests.testbed import installed as installation
from tests.testbed.cache import Cache, Report, StepError
from tests.testbed.prometheus import VARIABLE as PROMETHEUS
from tests.testbed.prometheus import prepare as prepare_prometheus
from tests.testbed.stopping import stop_by_exception
from tests.testbed.vm import PROJECT, NodeOptions, VmError, run_vm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_PYTEST = ("python", "-m", "pytest", "-p", "no:cacheprovider")
_GUEST_SECONDS = 3000.0
_ESCAPES = (
    "tests/vm/guest/test_escape_accomplice.py",
    "tests/vm/guest/test_escape_arguments.py",
    "tests/vm/guest/test_escape_processes.py",
    "tests/vm/guest/test_escape_sharing.py",
    "tests/vm/guest/test_gate_before_others.py",
    "tests/vm/guest/test_gate_compute.py",
    "tests/vm/guest/test_gate_contexts.py",
    "tests/vm/guest/test_gate_passed.py",
    "tests/vm/guest/test_gate_switch.py",
    "tests/vm/guest/test_random_use.py",
)
_BESIDES = (
    "tests/vm/guest/test_enforcer_kill.py",
    "tests/vm/guest/test_enforcer_reload.py",
)
_SCRAPE = "tests/contract/test_prometheus.py"
_WITHOUT_KUBELET = "--ignore=tests/vm/guest/kubelet"
_STOP_SECONDS = 20.0
_NAMED = 5
"""Of the tests of a tier that did not pass, so many are named at the end."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A part of the tests; ``node`` is the virtual node it runs on, None is this machine."""

    name: str
    what: str
    paths: tuple[str, ...]
    node: NodeOptions | None = None
    environment: tuple[tuple[str, str], ...] = ()
    only_on: tuple[str, ...] = ()
    """ID, or ID and VERSION_ID, of the distribution whose packages it is written for."""
    kubernetes: bool = False
    """Has a kubelet and an API server, whose programs are in $RINGFENCE_KUBERNETES."""
    installed: bool = False
    """Has the image and the rendered chart, in $RINGFENCE_INSTALLED."""
    steps: tuple[str, ...] = ()
    """What `tests/testbed/prepare` has to build for it, beside what its node needs."""
    soak: bool = False
    """Takes so long that it runs only when asked for."""


TIERS = (
    Tier("unit", "pure functions, readers and writers on made-up trees", ("tests/unit",)),
    Tier(
        "contract",
        "the device plugin against peers of the real protocols",
        # They wait more than they work.
        ("tests/contract", "--numprocesses=6", "--dist=worksteal", f"--ignore={_SCRAPE}"),
    ),
    Tier(
        "scrape",
        "a real Prometheus while 200 containers come and go, which needs a core of its own",
        (_SCRAPE,),
    ),
    Tier(
        "hook",
        "the in-process hook over the distribution's ROCm",
        ("tests/hook", "--ignore=tests/hook/soak"),
        only_on=("debian",),
    ),
    Tier(
        "vm",
        "the runner, and every BPF object on the unmodified amdgpu of stock kernels",
        ("tests/vm", "--ignore=tests/vm/guest"),
        steps=("kernel", "driver", "stock"),
    ),
    Tier(
        "guest-dmem",
        "slices held on a kernel with dmem",
        ("tests/vm/guest", _WITHOUT_KUBELET),
        NodeOptions(kernel="dmem", gpus=2),
    ),
    Tier(
        "guest-nodmem",
        "slices held on a kernel without dmem",
        ("tests/vm/guest", _WITHOUT_KUBELET),
        NodeOptions(kernel="nodmem", gpus=2),
    ),
    Tier(
        "guest-kubelet",
        "a real kubelet, API server and container runtime, on a kernel with dmem",
        ("tests/vm/guest/kubelet",),
        NodeOptions(kernel="dmem", gpus=2, memory_mib=3072),
        only_on=("debian",),
        kubernetes=True,
    ),
    Tier(
        "soak-hook",
        "the hook over ROCm that is large to fetch, under the oldest and newest glibc, fuzzed",
        ("tests/hook/soak", "tests/hook/test_fuzz.py"),
        environment=(("RINGFENCE_FUZZ_SECONDS", "600"), ("RINGFENCE_STORM_SECONDS", "300")),
        only_on=("debian", "12"),
        soak=True,
    ),
    Tier(
        "soak-scrape",
        "a real Prometheus for a minute, while 200 containers come and go",
        (_SCRAPE,),
        environment=(("RINGFENCE_CHURN_SECONDS", "60"),),
        soak=True,
    ),
    Tier(
        "soak-installed",
        "the built image as the chart runs it, on a kernel with dmem",
        ("tests/vm/guest/installed/test_image.py",),
        NodeOptions(kernel="dmem", gpus=2),
        installed=True,
        soak=True,
    ),
    Tier(
        "soak-installed-nodmem",
        "the same on a kernel without dmem",
        ("tests/vm/guest/installed/test_image.py",),
        NodeOptions(kernel="nodmem", gpus=2),
        installed=True,
        soak=True,
    ),
    Tier(
        "soak-runtime",
        "the built image begun by containerd's client, and as a static pod of a real kubelet",
        (
            "tests/vm/guest/installed/test_containerd.py",
            "tests/vm/guest/installed/test_static_pod.py",
        ),
        NodeOptions(kernel="dmem", gpus=2, memory_mib=3072),
        only_on=("debian",),
        kubernetes=True,
        installed=True,
        soak=True,
    ),
    Tier(
        "soak-update",
        "one built image put in the place of another under a tenant, and all of it removed",
        ("tests/vm/guest/installed/test_update.py",),
        NodeOptions(kernel="dmem", gpus=2),
        installed=True,
        soak=True,
    ),
    Tier(
        "soak-image",
        "the image built twice, from two places with nothing cached",
        ("tests/image",),
        only_on=("debian",),
        soak=True,
    ),
    Tier(
        "soak-newcomer",
        "the README followed on fresh roots of Debian 12 and 13",
        ("tests/newcomer",),
        only_on=("debian",),
        soak=True,
    ),
    Tier(
        "soak-dmem",
        "the enforcer killed 200 times, 100,000 random operations, on a kernel with dmem",
        ("tests/vm/guest/test_enforcer_kill.py", "tests/vm/guest/test_random_use.py"),
        NodeOptions(kernel="dmem", gpus=2),
        (("RINGFENCE_ROUNDS", "200"), ("RINGFENCE_OPERATIONS", "100000")),
        soak=True,
    ),
    Tier(
        "soak-nodmem",
        "the enforcer killed 200 times, 100,000 random operations, on a kernel without dmem",
        ("tests/vm/guest/test_enforcer_kill.py", "tests/vm/guest/test_random_use.py"),
        NodeOptions(kernel="nodmem", gpus=2),
        (("RINGFENCE_ROUNDS", "200"), ("RINGFENCE_OPERATIONS", "100000")),
        soak=True,
    ),
    Tier(
        "soak-full",
        "a million buffers of a page each: the ledger really full",
        ("tests/vm/guest/full",),
        NodeOptions(kernel="nodmem", gpus=2, memory_mib=8192),
        (("RINGFENCE_FULL", "1"),),
        soak=True,
    ),
    Tier(
        "soak-dmem-7.2",
        "slices held on the last kernel that takes no dmem.max below what is in use",
        ("tests/vm/guest", _WITHOUT_KUBELET),
        NodeOptions(kernel="dmem-7.2", gpus=2),
        soak=True,
    ),
    Tier(
        "soak-fmod-ret",
        "escapes and random use where no security module is BPF's, on a kernel that preempts",
        _ESCAPES,
        NodeOptions(kernel="dmem", gpus=2, lsm="capability"),
        soak=True,
    ),
    Tier(
        "soak-fmod-ret-nodmem",
        "the same on a kernel without dmem, which preempts nobody in the kernel",
        _ESCAPES,
        NodeOptions(kernel="nodmem", gpus=2, lsm="capability"),
        soak=True,
    ),
    Tier(
        "soak-probes",
        "escapes, random use and kills on a kernel with dmem, the driver without type information",
        _ESCAPES + _BESIDES,
        NodeOptions(kernel="dmem", gpus=2, module_btf=False),
        (("RINGFENCE_ROUNDS", "5"),),
        soak=True,
    ),
    Tier(
        "soak-fmod-ret-probes",
        "the same where no security module is BPF's either, as Ubuntu with amdgpu-dkms",
        _ESCAPES + _BESIDES,
        NodeOptions(kernel="dmem", gpus=2, lsm="capability", module_btf=False),
        (("RINGFENCE_ROUNDS", "5"),),
        soak=True,
    ),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tier came to; ``error`` says why it did not come to its end."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    error: str = ""
    red: tuple[str, ...] = ()
    """A line for each test that did not pass: its name, and what it said first."""

    @property
    def green(self) -> bool:
        """Every test ran and passed, and there was one."""
        return self.passed > 0 and not (self.failed or self.skipped or self.error)


def outcome(junit: Path, status: int, seconds: float) -> Outcome:
    """A tier's outcome from pytest's JUnit file and exit status."""
    try:
        root = ElementTree.parse(junit).getroot()  # noqa: S314 - our own
    except (OSError, ElementTree.ParseError) as error:
        return Outcome(seconds=seconds, error=f"exit status {status}, no result: {error}")
    counts = {
        name: sum(int(suite.get(name, 0)) for suite in root.iter("testsuite"))
        for name in ("tests", "failures", "errors", "skipped")
    }
    failed = counts["failures"] + counts["errors"]
    return Outcome(
        passed=counts["tests"] - failed - counts["skipped"],
        failed=failed,
        skipped=counts["skipped"],
        seconds=seconds,
        error="" if failed or status == 0 else f"exit status {status}",
        red=tuple(_red(root)),
    )


def _red(root: ElementTree.Element) -> Iterator[str]:
    for case in root.iter("testcase"):
        for kind in ("failure", "error", "skipped"):
            for found in case.iterfind(kind):
                said = (found.get("message") or "").strip().partition("\n")[0]
                yield f"{case.get('classname')}::{case.get('name')}: {kind}: {said}"


def table(results: Mapping[str, Outcome]) -> str:
    """The tiers that ran, a line each, the tests that did not pass, and the closing line.

    The last lines of a long log are the ones that are kept, so they have to name them.
    """
    lines = ["", f"{'tier':<22}{'passed':>7}{'failed':>7}{'skipped':>8}{'seconds':>9}"]
    for name, one in results.items():
        counts = f"{one.passed:>7}{one.failed:>7}{one.skipped:>8}{one.seconds:>9.0f}"
        lines.append(f"{name:<22}{counts}  {'ok' if one.green else one.error or 'NOT OK'}")
    passed = sum(one.passed for one in results.values())
    # A tier that fell over, or skipped what it should have run, counts as a failure.
    failed = sum(max(one.failed, int(not one.green)) for one in results.values())
    red = [f"{name}: {line}" for name, one in results.items() for line in one.red[:_NAMED]]
    if red:
        lines += ["", *red]
    return "\n".join([*lines, "", f"{passed} passed, {failed} failed"])


def fits(tier: Tier, os_release: Mapping[str, str]) -> bool:
    """Whether the tier is written for the machine with these fields of os-release."""
    machine = os_release.get("ID"), os_release.get("VERSION_ID")
    return tier.only_on == machine[: len(tier.only_on)]


def choose(names: Sequence[str], *, soak: bool) -> list[Tier]:
    """The tiers named, or without names every one that is, or is not, a soak."""
    return [tier for tier in TIERS if (tier.name in names if names else tier.soak == soak)]


def needs(tiers: Iterable[Tier]) -> list[str]:
    """The words for `tests/testbed/prepare`; never none, which it takes for everything."""
    words = ["packages"]
    for tier in tiers:
        words += tier.steps
        if tier.node is not None:
            words += ["kernel", tier.node.kernel, "driver", tier.node.kernel]
        if tier.kubernetes:
            words.append("kubelet")
    return words


def main(argv: Sequence[str]) -> int:
    """Run the tiers named, or all; 0 if every one of them is green."""
    parser = argparse.ArgumentParser(prog="python -m tests.tiers", description=__doc__)
    names = [tier.name for tier in TIERS]
    parser.add_argument(
        "tiers", nargs="*", metavar="TIER", help=f"{', '.join(names)}; default all but soak"
    )
    parser.add_argument("--soak", action="store_true", help="default the soak tiers alone")
    parser.add_argument(
        "--needs", action="store_true", help="print what to prepare for them, and run nothing"
    )
    options = parser.parse_args(argv)
    if unknown := set(options.tiers) - set(names):
        parser.error(f"expected {', '.join(names)}, found {', '.join(sorted(unknown))}")
    chosen = choose(options.tiers, soak=options.soak)
    machine = platform.freedesktop_os_release()
    elsewhere = [tier for tier in chosen if not fits(tier, machine)]
    if options.needs:
        print(*needs(tier for tier in chosen if tier not in elsewhere))
        return 0
    cache = Cache.from_environment(os.environ)
    report = Report()
    for tier in elsewhere:
        report(
            f"tier {tier.name} is not for this distribution: it runs on {' '.join(tier.only_on)}"
        )
    chosen = [tier for tier in chosen if tier not in elsewhere]
    stop_by_exception()
    here = Here()
    waiting = deque(tier for tier in chosen if tier.node)
    # Before the others look: a process begun for one tier has none to begin another process for.
    first = _next(waiting.popleft)

    def beside() -> dict[str, Outcome]:
        done = dict(_outcome(tier, cache, report, here) for tier in chosen if tier.node is None)
        while last := _next(waiting.pop):
            done[last.name] = _apart(last, cache, report, here)
        return done

    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(beside)
        try:
            # In the main thread, where a signal arrives: it ends the machine on its way out.
            nodes: dict[str, Outcome] = {}
            while first:
                nodes.update([_outcome(first, cache, report, here)])
                first = _next(waiting.popleft)
            found = nodes | others.result()
        except BaseException:
            here.stop()
            raise
    print(table({tier.name: found[tier.name] for tier in chosen}), flush=True)
    return 0 if all(one.green for one in found.values()) else 1


def _next(take: Callable[[], Tier]) -> Tier | None:
    try:
        return take()
    except IndexError:
        return None


def _apart(tier: Tier, cache: Cache, report: Report, here: Here) -> Outcome:
    """A tier of the node by a process of its own, whose main thread takes the signals."""
    started = time.monotonic()
    try:
        status = here.run([sys.executable, "-m", "tests.tiers", tier.name], {}, _show)
    except StepError as error:
        report(f"tier {tier.name}: {error}")
        return Outcome(error=str(error).splitlines()[0])
    return outcome(_junit(cache, tier), status, time.monotonic() - started)


def _outcome(tier: Tier, cache: Cache, report: Report, here: Here) -> tuple[str, Outcome]:
    report(f"tier {tier.name}: {tier.what}")
    try:
        # Two at once would take each other's results away.
        with cache.lock(f"tier-{tier.name}", cache.step(tier.name, report, f"{tier.name}.log")):
            return tier.name, _run(tier, cache, report, here)
    except (StepError, VmError, OSError) as error:
        report(f"tier {tier.name}: {error}")
        return tier.name, Outcome(error=str(error).splitlines()[0])


class Here:
    """Commands on this machine, one at a time, until told to stop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def run(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        show: Callable[[bytes], object],
    ) -> int:
        """The exit status. Raises StepError if there is nothing to be begun any more."""
        with self._lock:
            if self._stopped:
                raise StepError("stopped before it began")
            self._process = process = subprocess.Popen(
                argv,
                cwd=PROJECT,
                env={**os.environ, **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                # A terminal's Ctrl-C is passed on by `stop`, once.
                start_new_session=True,
            )
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                show(line)
        return process.returncode

    def stop(self, seconds: float = _STOP_SECONDS) -> None:
        """Let the command clean up, and end it and what it left if it takes longer."""
        with self._lock:
            self._stopped = True
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)


class Prefixed:
    """Writes whole lines with the tier's name in front, as two tiers print at a time."""

    def __init__(self, name: str, write: Callable[[bytes], object]) -> None:
        self._prefix = f"{name}: ".encode()
        self._write = write
        self._rest = b""

    def __call__(self, chunk: bytes) -> None:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self._write(b"".join(self._prefix + line + b"\n" for line in lines))

    def close(self) -> None:
        """Write what is left of a line that never ended."""
        if self._rest:
            self(b"\n")


def _show(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _junit(cache: Cache, tier: Tier) -> Path:
    return cache.root / "results" / tier.name / "junit.xml"


def _run(tier: Tier, cache: Cache, report: Report, here: Here) -> Outcome:
    junit = _junit(cache, tier)
    results = junit.parent
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    command = [*_PYTEST, *tier.paths, f"--junit-xml={junit}"]
    environment = {
        "RINGFENCE_CLIENT": str(client.prepare(cache, report)),
        PROMETHEUS: str(prepare_prometheus(cache, report)),
        otherbuild.VARIABLE: str(otherbuild.prepare(cache, report)),
        **dict(tier.environment),
    }
    if tier.installed:
        environment["RINGFENCE_INSTALLED"] = str(installation.prepare(cache, report))
    if tier.kubernetes:
        environment["RINGFENCE_KUBERNETES"] = str(kubernetes.prepare(cache, report).directory)
    if tier.node is not None:
        # Where the distribution has no ROCm, the cases that need it are left out.
        with suppress(NotHere):
            environment["RINGFENCE_HOOK"] = str(hook.prepare(cache, report))
    show = Prefixed(tier.name, _show)
    started = time.monotonic()
    if tier.node is None:
        status = here.run([sys.executable, *command[1:]], environment, show)
    else:
        status = run_vm(
            command,
            tier.node,
            env=environment,
            out=results,
            stdout=show,
            stderr=show,
            timeout_s=_GUEST_SECONDS,
            log=results / "kernel.log",
            cache=cache,
            report=report,
        ).returncode
    show.close()
    return outcome(junit, status, time.monotonic() - started)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
