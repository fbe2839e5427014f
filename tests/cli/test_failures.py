"""Exceptions → exit code and one sentence."""

import errno

import pytest
import typer

from maka.cli.failures import failure_of
from maka.journal import errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.SessionNotFound("there is none"), 2),
        (errors.JournalLocked("somebody has it"), 3),
        (errors.JournalWriteError("the disk is full"), 2),
        (errors.JournalConflict("it changed"), 2),
        (errors.JournalDamaged("it is damaged"), 4),
        (errors.JournalUnsupported("it is newer"), 4),
        (errors.JournalError("it cannot be read"), 4),
        (errors.InvalidEvent("no such event", type="x"), 2),
    ],
)
def test_the_journal_s_own_errors_speak_for_themselves(error: errors.JournalError, code: int) -> None:
    failure = failure_of(error)
    assert (failure.code, failure.sentence) == (code, str(error))


def test_the_system_s_errors_name_their_place() -> None:
    failure = failure_of(PermissionError(13, "Permission denied", "some/where"))
    assert failure.code == 2
    assert failure.sentence is not None
    assert "Permission denied" in failure.sentence
    assert "some/where" in failure.sentence


def test_the_advice_fits_the_errno_and_a_long_name_is_cut() -> None:
    failure = failure_of(OSError(errno.ENAMETOOLONG, "File name too long", "x" * 5000))
    assert failure.sentence is not None
    assert len(failure.sentence) < 300
    assert failure.sentence.endswith("; give a shorter name")
    full = failure_of(OSError(errno.ENOSPC, "No space left on device", "standard output")).sentence
    assert full == "No space left on device: standard output; free some space, then try again"


def test_wrong_usage_is_one_line_that_says_where_help_is() -> None:
    failure = failure_of(typer.BadParameter("not\nthis one."))
    assert failure.code == 2
    assert failure.sentence is not None
    assert "not this one; see `maka --help`" in failure.sentence


def test_an_interrupt_says_nothing() -> None:
    failure = failure_of(typer.Abort())
    assert (failure.code, failure.sentence) == (130, None)


def test_a_defect_says_what_and_where() -> None:
    try:
        raise KeyError("missing")
    except KeyError as error:
        failure = failure_of(error)
    assert failure.code == 2
    assert failure.sentence is not None
    assert "KeyError: 'missing' at test_failures.py:" in failure.sentence
    assert "--debug" in failure.sentence


def test_too_little_memory_is_no_defect() -> None:
    failure = failure_of(MemoryError())
    assert failure.code == 2
    assert failure.sentence is not None
    assert "let this process have more" in failure.sentence
