# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

import pytest

from bpf.decode import LedgerUsage
from enforcer.corrections import Correction, Corrections
from enforcer.model import MIB
from enforcer.plan import ForgetUsage

GPU, OTHER = 768, 1024
POD, BOX, DEAD, SECOND, BOX2 = 100, 101, 102, 200, 201
LIVE = {POD: POD, BOX: POD, SECOND: SECOND, BOX2: SECOND}
Books = Mapping[tuple[int, int], LedgerUsage]


def row(mib: int, tables: int = 0) -> LedgerUsage:
    return LedgerUsage(mib * MIB, resident=mib * MIB, page_tables=tables * MIB)


def everyone(_: int) -> bool:
    return True


def looks(
    books: Books,
    used: int | None,
    drained: Callable[[int], bool] = everyone,
    live: Mapping[int, int] | None = LIVE,
    times: int = 3,
) -> list[tuple[ForgetUsage, Correction]]:
    corrections = Corrections()
    for look in range(times - 1):
        assert corrections.judge(look * 5.0, books, live, lambda _: used, drained, dict) == []
    return corrections.judge(times * 5.0, books, live, lambda _: used, drained, dict)


def test_a_dead_containers_row_that_is_nowhere_in_vram_is_given_up() -> None:
    books = {(POD, GPU): row(64), (DEAD, GPU): row(64)}
    ((action, told),) = looks(books, used=0)
    assert action == ForgetUsage(DEAD, GPU)
    assert (told.cgroup, told.gpu, told.used) == (DEAD, GPU, 64 * MIB)
    assert told.reason.name == "LEDGER_CORRECTED"


def test_a_container_comes_before_its_pod_and_the_pod_after_it() -> None:
    assert looks({(POD, GPU): row(64), (BOX, GPU): row(64)}, 0)[0][0] == ForgetUsage(BOX, GPU)
    assert looks({(POD, GPU): row(64)}, 0)[0][0] == ForgetUsage(POD, GPU)


def test_what_may_lie_in_vram_stays() -> None:
    books = {(POD, GPU): row(64), (DEAD, GPU): row(64)}
    assert looks(books, used=62 * MIB) == []
    assert looks(books, used=200 * MIB) == []
    assert looks(books, used=None) == []


def test_whoever_has_a_process_keeps_its_row() -> None:
    books = {(POD, GPU): row(64), (BOX, GPU): row(64)}
    assert looks(books, 0, drained=lambda cgroup: cgroup not in (BOX, POD)) == []


def test_rows_that_are_together_what_is_too_much_go_together() -> None:
    books = {
        (POD, GPU): row(100),
        (DEAD, GPU): row(60),
        (BOX, GPU): row(40),
        (SECOND, GPU): row(30),
        (BOX2, GPU): row(30),
    }
    found = looks(books, 30 * MIB, lambda cgroup: cgroup in (DEAD, BOX))
    assert [action for action, _ in found] == [ForgetUsage(BOX, GPU), ForgetUsage(DEAD, GPU)]
    assert [told.used for _, told in found] == [40 * MIB, 60 * MIB]


def test_no_row_goes_where_one_of_them_may_be_a_buffer_that_lives_on() -> None:
    # The dead container's 300 MiB may be shared: which 100 MiB are too much is not to be told.
    books = {
        (POD, GPU): row(300),
        (DEAD, GPU): row(300),
        (SECOND, GPU): row(100),
        (BOX2, GPU): row(100),
    }
    assert looks(books, used=300 * MIB) == []
    # 100 MiB too much: two rows' whose end was missed, or the third one's, which fits as well.
    books = {(POD, GPU): row(200), (BOX, GPU): row(40), (DEAD, GPU): row(60), (BOX2, GPU): row(100)}
    assert looks(books, used=100 * MIB) == []


def test_page_tables_lie_in_vram_as_well() -> None:
    books = {(POD, GPU): row(0, 64), (DEAD, GPU): row(0, 64)}
    assert looks(books, used=64 * MIB) == []
    assert looks(books, used=0)[0][0] == ForgetUsage(DEAD, GPU)


def test_a_row_that_moves_is_in_use() -> None:
    corrections = Corrections()
    for look in range(6):
        books = {(POD, GPU): row(64 + look), (DEAD, GPU): row(64 + look)}
        assert corrections.judge(look * 5.0, books, LIVE, lambda _: 0, everyone, dict) == []


def test_looks_that_do_not_agree_begin_anew() -> None:
    corrections = Corrections()
    books = {(POD, GPU): row(64), (DEAD, GPU): row(64)}
    for look, used in enumerate((0, 0, 64, 0, 0)):
        size = used * MIB
        assert corrections.judge(look * 5.0, books, LIVE, {GPU: size}.get, everyone, dict) == []
    assert corrections.judge(30.0, books, LIVE, lambda _: 0, everyone, dict)


def test_it_looks_every_five_seconds_only() -> None:
    asked: list[int] = []

    def used(gpu: int) -> int:
        asked.append(gpu)
        return 0

    corrections = Corrections()
    books = {(POD, GPU): row(64), (DEAD, GPU): row(64)}
    for now in (0.0, 1.0, 4.9, 5.0):
        corrections.judge(now, books, LIVE, used, everyone, dict)
    assert asked == [GPU, GPU]


def test_each_gpu_is_judged_by_itself() -> None:
    books = {(POD, GPU): row(64), (DEAD, GPU): row(64), (POD, OTHER): row(64)}
    corrections = Corrections()
    for look in range(2):
        corrections.judge(look * 5.0, books, LIVE, {GPU: 0, OTHER: 64 * MIB}.get, everyone, dict)
    found = corrections.judge(10.0, books, LIVE, {GPU: 0, OTHER: 64 * MIB}.get, everyone, dict)
    assert [action for action, _ in found] == [ForgetUsage(DEAD, GPU)]


def test_a_pod_that_was_seen_counts_after_its_end() -> None:
    corrections = Corrections()
    books = {(POD, GPU): row(64), (DEAD, GPU): row(64)}
    corrections.judge(0.0, books, LIVE, lambda _: 64 * MIB, everyone, dict)
    gone = {SECOND: SECOND}
    for look in (1, 2):
        assert corrections.judge(look * 5.0, books, gone, lambda _: 0, everyone, dict) == []
    assert corrections.judge(15.0, books, gone, lambda _: 0, everyone, dict)[0][0] == ForgetUsage(
        DEAD, GPU
    )


@pytest.mark.parametrize("unknown", ["ledger", "live"])
def test_what_was_not_read_is_no_reason(unknown: str) -> None:
    corrections = Corrections()
    books = {(POD, GPU): row(64)}
    for look in range(4):
        found = corrections.judge(
            look * 5.0,
            None if unknown == "ledger" else books,
            None if unknown == "live" else LIVE,
            lambda _: 0,
            everyone,
            dict,
        )
        assert found == []


class TestACallWithoutAnEnd:
    BOOKS: ClassVar = {(POD, GPU): LedgerUsage(96 * MIB), (BOX, GPU): LedgerUsage(64 * MIB)}
    LOST: ClassVar = {(BOX, GPU): 64 * MIB}

    def looks(
        self,
        books: Books,
        lost: Mapping[tuple[int, int], int],
        empty: Callable[[int], bool] = lambda cgroup: cgroup == BOX,
        used: int | None = 0,
    ) -> list[tuple[ForgetUsage, Correction]]:
        corrections = Corrections()
        for look in range(2):
            found = corrections.judge(look * 5.0, books, LIVE, lambda _: used, empty, lambda: lost)
            assert found == []
        return corrections.judge(10.0, books, LIVE, lambda _: used, empty, lambda: lost)

    def test_is_taken_off_when_its_container_is_empty(self) -> None:
        ((action, told),) = self.looks(self.BOOKS, self.LOST)
        assert action == ForgetUsage(BOX, GPU)
        assert (told.cgroup, told.gpu, told.used) == (BOX, GPU, 64 * MIB)

    def test_and_when_it_is_gone(self) -> None:
        books = {**self.BOOKS, (DEAD, GPU): LedgerUsage(32 * MIB)}
        ((action, _),) = self.looks(books, {(DEAD, GPU): 32 * MIB}, lambda _: False)
        assert action == ForgetUsage(DEAD, GPU)

    def test_stays_while_a_process_is_there(self) -> None:
        assert self.looks(self.BOOKS, self.LOST, lambda _: False) == []

    def test_stays_beside_a_buffer_that_may_live_elsewhere(self) -> None:
        assert self.looks(self.BOOKS, {(BOX, GPU): 32 * MIB}) == []
        in_vram = {**self.BOOKS, (BOX, GPU): LedgerUsage(64 * MIB, resident=MIB)}
        assert self.looks(in_vram, self.LOST) == []

    def test_stays_while_its_buffer_may_live_on_in_vram(self) -> None:
        assert self.looks(self.BOOKS, self.LOST, used=64 * MIB) == []
        assert self.looks(self.BOOKS, self.LOST, used=None) == []
        assert len(self.looks(self.BOOKS, self.LOST, used=64 * MIB - 1)) == 1

    def test_goes_where_what_is_in_vram_is_known_to_be_somebodys(self) -> None:
        books = {**self.BOOKS, (SECOND, GPU): row(500, 12), (BOX2, GPU): row(500, 12)}
        assert len(self.looks(books, self.LOST, used=575 * MIB)) == 1
        assert self.looks(books, self.LOST, used=576 * MIB) == []

    def test_stays_while_what_is_in_vram_comes_and_goes(self) -> None:
        corrections = Corrections()
        for look in range(6):
            books = {**self.BOOKS, (SECOND, GPU): row(500 + look % 2)}
            assert not corrections.judge(
                look * 5.0, books, LIVE, lambda _: 500 * MIB, everyone, lambda: self.LOST
            )

    def test_that_becomes_another_is_looked_at_anew(self) -> None:
        corrections = Corrections()
        for look, mib in enumerate((64, 32, 32)):
            books = {(BOX, GPU): LedgerUsage(mib * MIB)}
            lost = {(BOX, GPU): mib * MIB}
            assert not corrections.judge(
                look * 5.0, books, LIVE, lambda _: 0, everyone, partial(dict, lost)
            )

    def test_is_not_asked_for_where_every_row_has_something_to_show(self) -> None:
        def fail() -> Mapping[tuple[int, int], int]:
            raise AssertionError

        Corrections().judge(0.0, {(BOX, GPU): row(64)}, LIVE, lambda _: 0, everyone, fail)

    def test_is_asked_for_once_of_a_row_that_stays_something_else(self) -> None:
        corrections, asked = Corrections(), []

        def lost() -> Mapping[tuple[int, int], int]:
            asked.append(look)
            return {}

        for look in range(20):
            books = {(BOX, GPU): LedgerUsage((64 if look < 10 else 32) * MIB)}
            assert not corrections.judge(look * 5.0, books, LIVE, lambda _: 0, everyone, lost)
        assert asked == [2, 12], "there can be a million buffers to go through"
