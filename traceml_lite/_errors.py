"""Errors that this package raises on purpose. Each says what was expected, what was found and what to do.

Library code raises these; only the command line turns them into exit codes. An exception that is not
one of these is a bug of ours and keeps its traceback.
"""

from __future__ import annotations


class TracemlLiteError(Exception):
    """Base of every error meant for the user. ``exit_code`` is what the command line exits with."""

    exit_code = 1


class UsageError(TracemlLiteError):
    """The request itself cannot be carried out as worded: unknown option, impossible combination."""

    exit_code = 2


class TargetError(TracemlLiteError):
    """A target (script, factory, demo, dataset) could not be found or did not give a DataLoader."""


class TraceFormatError(TracemlLiteError):
    """A file or directory is not a trace, is damaged beyond reading, or is newer than this version."""

    exit_code = 4


class MissingColumnError(TracemlLiteError):
    """A column was asked for that the run does not have; the message carries the reason."""


class ComparisonError(TracemlLiteError):
    """Two runs or arms may not be compared: different data, order, machine or versions."""
