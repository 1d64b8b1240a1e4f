"""Files of one process, on texts of several kernels and on garbage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml_lite.procfs.process import (
    Limit,
    ProcessStatus,
    Schedstat,
    parse_io,
    parse_limits,
    parse_schedstat,
    parse_stat,
    parse_status,
)

STAT = (
    "6248 (cat) R 6235 6235 2252 0 -1 4194304 99 0 7 0 12 34 0 0 20 0 3 0 54183 3133440 380 "
    "18446744073709551615 93955976511488 93955976531369 140732738141376 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 "
    "93955976547376 93955976548992 93957048569856 140732738149087 140732738149107 140732738149107 "
    "140732738150379 0\n"
)
STATUS_6_18 = """Name:\tpt_data_worker
State:\tS (sleeping)
PPid:\t41
VmPeak:\t  812344 kB
VmRSS:\t  204800 kB
RssAnon:\t  150000 kB
RssShmem:\t    1024 kB
VmSwap:\t       8 kB
Threads:\t5
Cpus_allowed:\tff
Cpus_allowed_list:\t0-3,8,10-11
voluntary_ctxt_switches:\t150
nonvoluntary_ctxt_switches:\t545
"""
STATUS_3_10 = """Name:\tpython
State:\tR (running)
VmRSS:\t    4096 kB
VmSwap:\t       0 kB
Threads:\t1
Cpus_allowed_list:\t0
voluntary_ctxt_switches:\t1
nonvoluntary_ctxt_switches:\t2
"""
IO = """rchar: 323934931
wchar: 323929600
syscr: 632687
syscw: 632675
read_bytes: 8192
write_bytes: 323932160
cancelled_write_bytes: 0
"""
LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            1024                 524288               files
Max nice priority         0                    0
Max realtime timeout      unlimited            unlimited            us
"""


def test_schedstat_gives_the_run_queue_delay_as_its_second_number():
    assert parse_schedstat("173524 65236 12\n") == Schedstat(173524, 65236, 12)


@pytest.mark.parametrize("text", ["", "0 0\n", "1 2 3 4\n", "1 -2 3\n", "a b c\n", "1 2 " + "9" * 5000])
def test_another_text_is_no_schedstat(text):
    assert parse_schedstat(text) is None


def test_stat_counts_faults_ticks_and_threads():
    stat = parse_stat(STAT, ticks_per_second=100)
    assert stat is not None
    assert (stat.pid, stat.name, stat.state, stat.parent_pid) == (6248, "cat", "R", 6235)
    assert (stat.minor_faults, stat.major_faults) == (99, 7)
    assert (stat.user_ns, stat.system_ns) == (120_000_000, 340_000_000)
    assert (stat.threads, stat.start_ticks, stat.rss_pages) == (3, 54183, 380)


@pytest.mark.parametrize("name", ["a b", "x) R 1 2 (y", ")", "((", ""])
def test_a_process_may_have_blanks_and_parentheses_in_its_name(name):
    stat = parse_stat(STAT.replace("(cat)", f"({name})"), ticks_per_second=100)
    assert stat is not None
    assert (stat.name, stat.parent_pid, stat.rss_pages) == (name, 6235, 380)


@pytest.mark.parametrize(
    "text", ["", "6248 cat R 1", STAT[:60], STAT.replace("6248", "x"), STAT.replace("99", "-")]
)
def test_a_cut_or_foreign_text_is_no_stat(text):
    assert parse_stat(text, ticks_per_second=100) is None


def test_status_gives_memory_threads_affinity_and_switches():
    assert parse_status(STATUS_6_18) == ProcessStatus(
        rss_bytes=204800 * 1024,
        rss_shared_bytes=1024 * 1024,
        swap_bytes=8 * 1024,
        threads=5,
        cpus_allowed=7,
        voluntary_switches=150,
        involuntary_switches=545,
    )


def test_a_line_that_an_old_kernel_lacks_is_unknown_and_not_zero():
    status = parse_status(STATUS_3_10)
    assert status is not None
    assert status.rss_shared_bytes is None
    assert (status.rss_bytes, status.swap_bytes, status.cpus_allowed) == (4096 * 1024, 0, 1)


def test_a_zombie_has_no_memory_lines():
    status = parse_status("Name:\tpython\nState:\tZ (zombie)\nThreads:\t1\n")
    assert status is not None
    assert (status.rss_bytes, status.threads) == (None, 1)


def test_io_keeps_page_cache_and_device_apart():
    io = parse_io(IO)
    assert io is not None
    assert (io.rchar, io.read_bytes, io.read_calls) == (323934931, 8192, 632687)


@pytest.mark.parametrize("text", ["", IO[:40], IO.replace("read_bytes: 8192", "read_bytes: ?")])
def test_io_without_all_its_lines_is_not_measured(text):
    assert parse_io(text) is None


def test_limits_are_found_by_the_kernels_names_and_unlimited_is_none():
    limits = parse_limits(LIMITS)
    assert limits["Max open files"] == Limit(1024, 524288)
    assert limits["Max cpu time"] == Limit(None, None)
    assert limits["Max nice priority"] == Limit(0, 0)
    assert "Limit" not in limits


@given(st.text(max_size=400))
def test_no_text_makes_a_parser_of_processes_raise(text):
    parse_schedstat(text)
    parse_stat(text, 100)
    parse_status(text)
    parse_io(text)
    parse_limits(text)


@given(st.integers(0, len(STATUS_6_18)), st.integers(0, len(STAT)))
def test_a_text_cut_anywhere_does_not_raise(status_end, stat_end):
    parse_status(STATUS_6_18[:status_end])
    parse_stat(STAT[:stat_end], 100)
