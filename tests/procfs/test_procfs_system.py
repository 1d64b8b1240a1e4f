"""Files of the machine, on texts of several kernels and on garbage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml_lite.procfs.system import parse_cpu_list, parse_cpu_times, parse_meminfo, parse_pressure

STAT_6 = """cpu  5722 10 2360 99743 167 3 24 21 40 0
cpu0 923 0 690 52345 25 0 4 6 0 0
cpu1 4799 10 1670 47398 142 3 20 15 40 0
intr 123 0 0
ctxt 99
"""
STAT_2_6_9 = "cpu  100 0 50 1000 20 1 2\ncpu0 100 0 50 1000 20 1 2\n"
PRESSURE_5_4_CPU = "some avg10=6.10 avg60=2.41 avg300=0.66 total=4525179\n"
PRESSURE_6 = PRESSURE_5_4_CPU + "full avg10=0.00 avg60=1.50 avg300=0.00 total=12\n"


def test_busy_time_is_everything_but_idle_iowait_steal_and_the_guests_twice():
    total = parse_cpu_times(STAT_6, ticks_per_second=100)["cpu"]
    assert total.busy_ns == (5722 + 10 + 2360 + 3 + 24) * 10_000_000
    assert (total.idle_ns, total.iowait_ns) == (99743 * 10_000_000, 167 * 10_000_000)
    assert total.steal_ns == 21 * 10_000_000


def test_each_cpu_has_its_own_line_and_other_lines_are_left_out():
    assert set(parse_cpu_times(STAT_6, 100)) == {"cpu", "cpu0", "cpu1"}


def test_a_kernel_without_a_steal_column_did_not_measure_it():
    assert parse_cpu_times(STAT_2_6_9, 100)["cpu"].steal_ns is None


def test_a_line_cut_off_by_a_short_read_is_left_out():
    cut = STAT_6[: STAT_6.index("cpu1") + 20]
    assert set(parse_cpu_times(cut, 100)) == {"cpu", "cpu0"}


def test_pressure_totals_are_microseconds_in_the_file_and_nanoseconds_here():
    pressure = parse_pressure(PRESSURE_6)
    assert pressure is not None
    assert pressure.some.total_ns == 4_525_179_000
    assert pressure.some.avg10_share == pytest.approx(0.061)
    assert pressure.full is not None
    assert pressure.full.avg60_share == pytest.approx(0.015)


def test_cpu_pressure_of_an_older_kernel_has_no_full_line():
    pressure = parse_pressure(PRESSURE_5_4_CPU)
    assert pressure is not None
    assert pressure.full is None


@pytest.mark.parametrize(
    "text", ["", "some\n", "some avg10=x avg60=0 avg300=0 total=1\n", "full avg10=0.00\n"]
)
def test_another_text_is_no_pressure(text):
    assert parse_pressure(text) is None


def test_memory_is_in_bytes_and_counts_without_a_unit_are_left_out():
    meminfo = parse_meminfo("MemTotal:   24683652 kB\nHugePages_Total:   7\nActive(anon): 5 kB\n")
    assert meminfo == {"MemTotal": 24683652 * 1024, "Active(anon)": 5 * 1024}


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8\n", (0, 1, 2, 3, 8)),
        ("5", (5,)),
        ("\n", ()),
        ("3-1", None),
        ("0-", None),
        ("a", None),
        ("0,,1", None),
    ],
)
def test_a_list_of_cpus_is_ranges_and_single_numbers(text, cpus):
    assert parse_cpu_list(text) == cpus


def test_a_range_of_cpus_that_no_machine_has_is_refused_without_building_it():
    assert parse_cpu_list("0-99999999999999999999") is None


@given(st.text(max_size=300))
def test_no_text_makes_a_parser_of_the_machine_raise(text):
    parse_cpu_times(text, 100)
    parse_cpu_times("cpu " + text, 100)
    parse_pressure(text)
    parse_pressure("some " + text)
    parse_meminfo(text)
    parse_cpu_list(text)
