"""Several failures become the one error that is raised."""

from maka.runtime.errors import RuntimeInteractionFailStopError, RuntimeOwnerCleanupError
from maka.runtime.kernel.failures import combine

FIRST, SECOND, THIRD = RuntimeError("first"), RuntimeError("second"), RuntimeError("first")


def held(error: BaseException | None) -> list[BaseException]:
    assert isinstance(error, RuntimeOwnerCleanupError)
    assert isinstance(error.cause, BaseExceptionGroup)
    assert error.__cause__ is error.cause
    return list(error.cause.exceptions)


def test_nothing_is_nothing_and_one_is_itself() -> None:
    assert combine("x", [None, None]) is None
    assert combine("x", [None, FIRST, FIRST]) is FIRST


def test_a_fail_stop_is_not_opened() -> None:
    stop = RuntimeInteractionFailStopError("not certain", FIRST)
    assert combine("x", [stop]) is stop
    assert held(combine("x", [stop, FIRST])) == [stop, FIRST]


def test_several_are_one_flat_group_each_once_by_identity() -> None:
    nested = RuntimeOwnerCleanupError("n", BaseExceptionGroup("n", [SECOND, BaseExceptionGroup("m", [FIRST])]))
    error = combine("cleaning up failed", [FIRST, nested, THIRD, None, SECOND])
    # What is equal and not the same is another failure.
    assert held(error) == [FIRST, SECOND, THIRD]
    assert "cleaning up failed" in str(error)
    assert "second" in str(error)


def test_who_holds_them_all_already_is_given_back() -> None:
    whole = combine("x", [FIRST, SECOND])
    assert combine("y", [SECOND, whole, None]) is whole
    assert combine("y", [whole, THIRD]) is not whole
