# SPDX-License-Identifier: Apache-2.0
"""The escape matrix of docs/hook.md: a line there is a test here, also where the hook lets go."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from .container import HOOK, PROGRAMS, THUNK, WITHOUT_IMAGES, Container

AUDIT = str(HOOK / "libringfence-audit.so")
TOOL = str(HOOK / "libringfence-hsa.so")
HELD = ["malloc 2"]
ESCAPED = ["malloc 0"]
JEMALLOC = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"
TCMALLOC = "/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4"
TUNABLE = {"GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=4096"}


@pytest.fixture
def limited(container: Container) -> Container:
    """A container of 2 GiB with the third way in not used."""
    container.give_mib(2048)
    return container


def test_python_with_ctypes_is_held(limited: Container) -> None:
    code = (
        "import ctypes; hip = ctypes.CDLL('libamdhip64.so.5'); p = ctypes.c_void_p();"
        "print('malloc', hip.hipMalloc(ctypes.byref(p), ctypes.c_size_t(3 << 30)))"
    )
    assert limited.run("/usr/bin/python3", "-c", code).lines == HELD


def test_hip_get_proc_address_is_held(limited: Container) -> None:
    assert limited.run(PROGRAMS / "procaddress", "3000").lines == HELD


def test_rust_is_held(limited: Container, built: Path) -> None:
    rustc = shutil.which("rustc")
    if rustc is None:
        pytest.skip("needs rustc")
    source = Path(__file__).parent / "programs" / "gpu.rs"
    out = built / "programs" / "gpu-rust"
    subprocess.run([rustc, "-O", "-o", out, source], check=True)
    assert limited.run(PROGRAMS / "gpu-rust", "3000", "1000").lines == ["malloc 2", "malloc 0"]


@pytest.mark.parametrize("variable", ["LD_AUDIT", "HSA_TOOLS_LIB"])
def test_either_way_in_holds_without_the_other(limited: Container, variable: str) -> None:
    assert limited.hip("malloc=3000", env={variable: None}).lines == HELD


def test_eager_binding_does_not_get_past_the_auditor(limited: Container) -> None:
    env = {"LD_BIND_NOW": "1", "HSA_TOOLS_LIB": ""}
    assert limited.hip("malloc=3000", env=env).lines == HELD


def empty(container: Container) -> list[str]:
    """A command that leaves nothing in the environment but what the stand-in needs."""
    kept = ("LD_LIBRARY_PATH", *WITHOUT_IMAGES)
    variables = (f"{name}={container.env[name]}" for name in kept if name in container.env)
    return ["env", "-i", *variables]


def test_a_process_that_drops_both_variables_is_not_held(limited: Container) -> None:
    env = {"LD_AUDIT": None, "HSA_TOOLS_LIB": None}
    assert limited.hip("malloc=3000", env=env).lines == ESCAPED


def test_a_child_with_an_empty_environment_is_not_held(limited: Container) -> None:
    command = [*empty(limited), str(PROGRAMS / "hip"), "malloc=3000"]
    assert limited.run(*command).lines == ESCAPED


def test_a_child_with_an_empty_environment_is_held_by_the_preload_file(limited: Container) -> None:
    (limited.root / "etc" / "ld.so.preload").write_text(f"{TOOL}\n")
    for program in ("hip", "hip-noplt", "hip-dlsym", "hip-hsa"):
        command = [*empty(limited), str(PROGRAMS / program), "malloc=3000", "malloc=1000"]
        assert limited.run(*command).lines == [*HELD, "malloc 0"]
    # Two ways in at once are one.
    assert limited.hip("malloc=1500", "malloc=1500", "free", "malloc=1500").lines == [
        "malloc 0", "malloc 2", "free 0", "malloc 0"
    ]  # fmt: skip


def test_the_preload_file_only_adds_the_tools_variable(limited: Container) -> None:
    (limited.root / "etc" / "ld.so.preload").write_text(f"{TOOL}\n")
    result = limited.run("env", "-i", "HSA_TOOLS_LIB=/other.so", "env")
    assert result.lines == [f"HSA_TOOLS_LIB={TOOL} /other.so"]
    result = limited.run("env", "-i", "env")
    assert (result.out, result.err) == (f"HSA_TOOLS_LIB={TOOL}\n", "")


def test_a_set_uid_program_sheds_the_auditor_and_keeps_the_tool(
    limited: Container, built: Path
) -> None:
    program = built / "programs" / "hip-setuid"
    shutil.copy(built / "programs" / "hip", program)
    program.chmod(0o4755)
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    # In secure mode the loader ignores LD_LIBRARY_PATH too, so the thunk has to be the system's.
    run = (
        f"for one in {THUNK}/*.so.1; do "
        "mount --bind $one $(readlink -f /usr/lib/x86_64-linux-gnu/${one##*/}); done"
    )
    orders = f"{' '.join(nobody)} {{}} {PROGRAMS / 'hip-setuid'} malloc=3000"
    privileged = limited.run("sh", "-c", f"{run}; {orders.format('')}")
    assert privileged.lines == HELD
    privileged = limited.run("sh", "-c", f"{run}; {orders.format('')}", env={"HSA_TOOLS_LIB": None})
    assert privileged.lines == ESCAPED
    without = f"{run}; {orders.format('--no-new-privs')}"
    assert limited.run("sh", "-c", without, env={"HSA_TOOLS_LIB": None}).lines == HELD


def test_a_pod_that_sets_the_variables_itself_is_held_by_what_it_left(limited: Container) -> None:
    for env in ({"LD_AUDIT": "/own.so"}, {"HSA_TOOLS_LIB": "/own.so"}):
        assert limited.hip("malloc=3000", env=env).lines == HELD
    env = {"LD_AUDIT": "/own.so", "HSA_TOOLS_LIB": "/own.so"}
    assert limited.hip("malloc=3000", env=env).lines == ESCAPED
    assert limited.hip("malloc=3000", env={"GLIBC_TUNABLES": "glibc.malloc.check=0"}).lines == HELD


def test_a_second_auditor_works_beside_ours(limited: Container, built: Path) -> None:
    shutil.copy(built / "hook" / "libringfence-audit.so", built / "programs" / "second.so")
    for order in (f"{AUDIT}:{PROGRAMS / 'second.so'}", f"{PROGRAMS / 'second.so'}:{AUDIT}"):
        env = {"LD_AUDIT": order, "HSA_TOOLS_LIB": None}
        if order.startswith(str(PROGRAMS)):
            # The first one's own directory has no tools library; ROCr says so and goes on.
            env["HSA_TOOLS_LIB"] = TOOL
        assert limited.hip("malloc=3000", env=env).lines == HELD


def test_two_versions_side_by_side_share_the_books(limited: Container, built: Path) -> None:
    other = built / "programs" / "v2"
    shutil.copytree(built / "hook", other, dirs_exist_ok=True)
    env = {
        "LD_AUDIT": str(PROGRAMS / "v2" / "libringfence-audit.so"),
        "HSA_TOOLS_LIB": str(PROGRAMS / "v2" / "libringfence-hsa.so"),
    }
    first = limited.start(PROGRAMS / "hip", "malloc=1500", "say=up", "wait", stdin=-1)
    assert first.stdout is not None
    assert [first.stdout.readline() for _ in range(2)] == ["malloc 0\n", "up\n"]
    assert limited.hip("malloc=1500", "malloc=400", env=env).lines == ["malloc 2", "malloc 0"]
    first.communicate("\n", timeout=30)


def test_a_static_program_starts(limited: Container) -> None:
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("needs the package busybox-static")
    result = limited.run(busybox, "echo", "started", env=TUNABLE)
    assert (result.lines, result.err) == (["started"], "")


def test_a_static_pie_program_starts_and_is_not_seen(limited: Container, built: Path) -> None:
    source = Path(__file__).parent / "programs" / "raw.c"
    out = built / "programs" / "raw-static"
    subprocess.run(["cc", "-static-pie", source, "-o", out], check=True)
    result = limited.run(PROGRAMS / "raw-static", "3000", env=TUNABLE)
    # The kernel's own answer: there is no such file.
    assert (result.lines, result.err) == (["alloc 9"], "")
    assert list(limited.ledger.iterdir()) == []


def test_an_ioctl_of_a_programs_own_is_not_held(limited: Container) -> None:
    env = {"LD_PRELOAD": str(THUNK / "libkernel.so"), "KERNEL_LOG": "/srv/kernel.log", **TUNABLE}
    result = limited.run(PROGRAMS / "raw", "3000", env=env)
    assert (result.lines, result.err) == (["alloc 0"], "")
    assert (limited.root / "out/kernel.log").read_text() == f"kfd-alloc {3000 << 20}\n"
    assert list(limited.ledger.iterdir()) == []


def test_a_raw_system_call_is_not_held(limited: Container) -> None:
    env = {"LD_PRELOAD": str(THUNK / "libkernel.so"), "KERNEL_LOG": "/srv/kernel.log", **TUNABLE}
    result = limited.run(PROGRAMS / "raw", "3000", "syscall", env=env)
    # It passes by the stand-in as it passes by us: the answer is the kernel's own.
    assert (result.lines, result.err) == (["alloc 9"], "")
    assert not (limited.root / "out/kernel.log").exists()
    assert list(limited.ledger.iterdir()) == []


@pytest.mark.parametrize("static", [False, True])
def test_a_musl_program_starts_and_is_not_held(
    limited: Container, built: Path, static: bool
) -> None:
    if shutil.which("musl-gcc") is None:
        pytest.skip("needs the package musl-tools")
    here = Path(__file__).parent
    programs = built / "programs"
    musl = ["musl-gcc", "-D_GNU_SOURCE"]
    flags = ["-static"] if static else []
    subprocess.run(
        [*musl, *flags, here / "programs/raw.c", "-o", programs / "raw-musl"], check=True
    )
    subprocess.run(
        [*musl, "-fPIC", "-shared", here / "thunk/kernel.c", "-o", programs / "kernel-musl.so"],
        check=True,
    )
    env = {"LD_PRELOAD": str(PROGRAMS / "kernel-musl.so"), **TUNABLE}
    result = limited.run(PROGRAMS / "raw-musl", "3000", env=env)
    # Nothing is preloaded into a static program: it asks the kernel itself.
    assert (result.lines, result.err) == (["alloc 9" if static else "alloc 0"], "")
    assert list(limited.ledger.iterdir()) == []


def test_our_objects_preloaded_by_musl_do_no_harm(limited: Container, built: Path) -> None:
    if shutil.which("musl-gcc") is None:
        pytest.skip("needs the package musl-tools")
    source = Path(__file__).parent / "programs" / "raw.c"
    out = built / "programs" / "raw-musl-dynamic"
    subprocess.run(["musl-gcc", source, "-o", out], check=True)
    result = limited.run(PROGRAMS / out.name, "3000", env={"LD_PRELOAD": AUDIT})
    assert (result.lines, result.err) == (["alloc 9"], "")


@pytest.mark.parametrize("library", [JEMALLOC, TCMALLOC])
def test_other_allocators_preloaded_start_and_are_held(limited: Container, library: str) -> None:
    if not Path(library).exists():
        pytest.skip("needs the packages libjemalloc2 and libgoogle-perftools-dev")
    result = limited.hip("malloc=3000", "malloc=1000", env={"LD_PRELOAD": library, **TUNABLE})
    assert (result.code, result.lines) == (0, [*HELD, "malloc 0"])


@pytest.mark.parametrize(("library", "name"), [(JEMALLOC, "jemalloc"), (TCMALLOC, "tcmalloc")])
def test_programs_linked_with_other_allocators_start_and_are_held(
    limited: Container, built: Path, library: str, name: str
) -> None:
    if not Path(library).exists():
        pytest.skip("needs the packages libjemalloc2 and libgoogle-perftools-dev")
    source = Path(__file__).parent / "programs" / "procaddress.c"
    subprocess.run(
        ["cc", "-D_GNU_SOURCE", "-D__HIP_PLATFORM_AMD__", source, "-Wl,--no-as-needed", library,
         "-lamdhip64", "-ldl", "-o", built / "programs" / name],
        check=True,
    )  # fmt: skip
    result = limited.run(PROGRAMS / name, "3000", env=TUNABLE)
    assert (result.code, result.lines) == (0, HELD)


def test_a_profiler_sees_our_answers_and_does_not_replace_us(limited: Container) -> None:
    profiler = str(PROGRAMS / "libprofiler.so")
    for value in (profiler, f"{TOOL} {profiler}"):
        result = limited.hip("malloc=1500", "malloc=1000", env={"HSA_TOOLS_LIB": value})
        assert result.lines == ["malloc 0", "malloc 2"]
        assert "profiler: allocate 1500 MiB status 0\n" in result.err
        assert f"profiler: allocate 1000 MiB status {0x1008}\n" in result.err
        assert result.err.count("ringfence:") == 1


def test_queues_a_profiler_intercepts_carry_the_mask(container: Container) -> None:
    container.give_mib(2048, cus="0-15")
    env = {"HSA_TOOLS_LIB": str(PROGRAMS / "libprofiler.so"), "PROFILER_INTERCEPT": "1"}
    # The auditor's variable would do by itself; this is the library's part.
    env["LD_AUDIT"] = ""
    env["HSA_TOOLS_LIB"] = f"{TOOL} {env['HSA_TOOLS_LIB']}"
    result = container.hip("default", program="streams", env=env)
    assert "profiler: intercept queue status 0" in result.err
    assert result.lines == ["stream 0", "sync 0"]
    assert "mask=0000ffff,00000000,00000000,00000000" in result.driver


def test_the_tools_library_named_twice_counts_once(limited: Container) -> None:
    env = {"HSA_TOOLS_LIB": f"{TOOL} {TOOL}"}
    result = limited.hip("malloc=1500", "free", "malloc=1500", "malloc=1000", env=env)
    assert result.lines == ["malloc 0", "free 0", "malloc 0", "malloc 2"]


def test_two_copies_of_the_tools_library_in_one_process_count_once(
    limited: Container, built: Path
) -> None:
    shutil.copytree(built / "hook", built / "programs" / "v2", dirs_exist_ok=True)
    other = PROGRAMS / "v2" / "libringfence-hsa.so"
    result = limited.hip("malloc=1500", "malloc=1000", env={"HSA_TOOLS_LIB": f"{TOOL} {other}"})
    assert result.lines == ["malloc 0", "malloc 2"]


def test_a_program_without_a_gpu_is_not_touched(limited: Container) -> None:
    result = limited.run("/bin/echo", "hello")
    assert (result.out, result.err) == ("hello\n", "")
    assert list(limited.ledger.iterdir()) == []
