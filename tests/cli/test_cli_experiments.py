"""sweep, compare and investigate at the command line: what is refused before anything is started."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from traceml_lite._errors import ComparisonError, TraceFormatError, TracemlLiteError, UsageError
from traceml_lite.cli._experiment import make_request, parse_duration_s
from traceml_lite.cli.compare import command as compare
from traceml_lite.cli.investigate import command as investigate
from traceml_lite.cli.show import command as show
from traceml_lite.cli.sweep import command as sweep


def refused(command, *words: str) -> TracemlLiteError:
    """The error that the command line's boundary would turn into an exit code."""
    result = CliRunner().invoke(command, list(words))
    assert isinstance(result.exception, TracemlLiteError), result.output
    return result.exception


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("t.py", "-s", "num_worker=1,2"), "Did you mean num_workers"),
        (("t.py", "-s", "num_workers"), "expected NAME=VALUE"),
        (("t.py", "-s", "num_workers=a,b"), "expected a whole number from 0"),
        (("t.py", "-s", "num_workers=-1,2"), "expected a whole number from 0"),
        (("demo:cpu", "-s", "foo=1,2", "--out", "nowhere"), "not an option of DataLoader"),
        (("demo:cpu",), "give -s NAME=V1,V2 or --control NAME"),
        (("t.py", "-s", "num_workers=1,2", "--control", "staggered"), "Controls are:"),
        (("t.py", "-s", "num_workers=1,2", "-a", "x=1"), "is a script, which takes no -a"),
        (("t.py", "-s", "num_workers=1,2", "-c", "none"), "is a script"),
        (("demo:cpu", "-s", "num_workers=1,2", "--", "--lr", "1"), "takes no arguments after --"),
        (("demo:cpu", "-s", "num_workers=1,2", "--budget", "soon"), "expected a duration above zero"),
        (("demo:cpu", "-s", "num_workers=1,2", "-a", "cpu_ms"), "expected NAME=VALUE"),
    ],
)
def test_a_sweep_that_cannot_be_meant_is_refused_at_once(words, says):
    error = refused(sweep, *words)
    assert isinstance(error, UsageError)
    assert says in str(error)


def test_every_control_stands_in_the_help_with_its_reason():
    text = CliRunner().invoke(sweep, ["--help"], terminal_width=88).output
    for name in ("in_order", "stagger", "ceiling", "repeat", "trivial", "threads", "persistent", "pin"):
        assert f"  {name}" in text


def test_an_investigation_is_shown_as_it_was_printed_and_options_of_one_trace_are_refused(tmp_path: Path):
    (tmp_path / "chain.txt").write_text("the chain\n")
    (tmp_path / "investigation.json").write_text('{"version": [1, 0], "result": {"ended": "so"}}')
    assert CliRunner().invoke(show, [str(tmp_path)]).output == "the chain\n"
    document = json.loads(CliRunner().invoke(show, [str(tmp_path), "--json"]).output)
    assert document == {"format": "traceml-lite investigation", "version": 1, "ended": "so"}
    assert "--stall is for one trace" in str(refused(show, str(tmp_path), "--stall", "5s"))
    assert "--loader is for one trace" in str(refused(show, str(tmp_path), "--loader", "1"))


def test_names_of_arguments_may_be_typed_with_hyphens_everywhere():
    request = make_request("demo:cpu", module=False, script_arguments=(), arguments=("cpu-ms=3",))
    assert request.arguments == (("cpu_ms", "3"),)


def test_an_investigation_chooses_its_own_settings():
    assert CliRunner().invoke(investigate, ["t.py", "-s", "num_workers=1"]).exit_code == 2


def test_what_is_neither_trace_nor_sweep_is_not_compared(tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    assert isinstance(refused(compare, str(tmp_path), str(other)), TraceFormatError)


def test_a_place_is_not_compared_with_itself(tmp_path: Path):
    assert isinstance(refused(compare, str(tmp_path), str(tmp_path / ".")), UsageError)


def record_two(tmp_path: Path, sizes: tuple[int, int]) -> list[str]:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from traceml_lite.probe import record

    places = []
    for number, size in enumerate(sizes):
        place = tmp_path / f"trace-{number}"
        with record(place):
            for _ in DataLoader(TensorDataset(torch.zeros(size, 2)), 2):
                pass
        places.append(str(place))
    return places


def test_two_traces_of_one_setting_are_compared(tmp_path: Path):
    result = CliRunner().invoke(compare, record_two(tmp_path, (60, 60)))
    assert result.exit_code == 0, result.output
    assert "mean wait" in result.output
    assert "CPU a batch" in result.output


def test_a_comparison_as_json_has_the_numbers_of_its_arms(tmp_path: Path):
    result = CliRunner().invoke(compare, [*record_two(tmp_path, (60, 60)), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    assert (document["format"], document["version"]) == ("traceml-lite comparison", 1)
    assert len(document["arms"]) == 1


def test_traces_of_other_data_are_refused_and_then_named_where_it_is_allowed(tmp_path: Path):
    places = record_two(tmp_path, (60, 80))
    assert isinstance(refused(compare, *places), ComparisonError)
    allowed = CliRunner().invoke(compare, [*places, "--allow-different"])
    assert allowed.exit_code == 0
    assert "differ" in allowed.output


def test_a_refused_pair_of_traces_is_told_in_the_words_of_the_command_line(tmp_path: Path):
    said = str(refused(compare, *record_two(tmp_path, (60, 80))))
    assert "the runs in" in said
    assert "--allow-different" in said
    assert "allow_different=" not in said


def test_a_damaged_trace_gives_the_error_of_show(tmp_path: Path):
    places = record_two(tmp_path, (60, 60))
    manifest = Path(places[1]) / "manifest.json"
    manifest.write_text("{")
    compared, shown = refused(compare, *places), refused(show, places[1])
    assert isinstance(compared, TraceFormatError)
    assert "manifest.json" in str(compared)
    assert str(compared) == str(shown)
    manifest.unlink()
    assert str(refused(compare, *places)) == str(refused(show, places[1]))


def test_two_databases_of_traceml_are_compared_as_far_as_their_waits_go(tmp_path: Path):
    fixtures = Path(__file__).parents[1] / "integrations" / "fixtures"
    places = []
    for name in ("healthy", "uniform"):
        place = tmp_path / f"{name}.sqlite"
        place.write_bytes(gzip.decompress((fixtures / f"traceml-0.5.0-{name}.sqlite.gz").read_bytes()))
        places.append(str(place))
    result = CliRunner().invoke(compare, places)
    assert result.exit_code == 0, result.output
    assert "it differs" in result.output
    assert "CPU a batch  not measured in either" in result.output


def test_a_database_that_is_not_traceml_is_refused_in_the_words_of_show(tmp_path: Path):
    (tmp_path / "a.sqlite").write_bytes(b"SQLite format 3\0" + bytes(100))
    (tmp_path / "b.sqlite").write_bytes(b"SQLite format 3\0" + bytes(200))
    places = [str(tmp_path / name) for name in ("a.sqlite", "b.sqlite")]
    assert str(refused(compare, *places)) == str(refused(show, places[0]))


@pytest.mark.parametrize("command", [show, compare])
def test_a_stall_of_no_time_is_refused(command, tmp_path: Path):
    result = CliRunner().invoke(command, [str(tmp_path)] * (1 + (command is compare)) + ["--stall", "0s"])
    assert result.exit_code == 2
    assert "above zero" in result.output


def test_a_threshold_is_given_to_compare_as_to_show(tmp_path: Path):
    result = CliRunner().invoke(compare, [*record_two(tmp_path, (60, 60)), "--stall", "300us"])
    assert result.exit_code == 0, result.output
    assert "stalls (from 300 µs)" in result.output


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), ("500ms", 0.5), (None, None)]
)
def test_times_are_read_with_their_units(text, seconds):
    assert parse_duration_s(text, "--budget") == seconds


@pytest.mark.parametrize("text", ["", "0s", "-3s", "3 weeks", "m"])
def test_a_time_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match="--budget"):
        parse_duration_s(text, "--budget")
