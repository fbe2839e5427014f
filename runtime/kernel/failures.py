"""Several failures → the one error that is raised, each in it once by identity. No I/O."""

from collections.abc import Iterable, Iterator

from ..errors import RuntimeOwnerCleanupError, describe


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The failures that an error stands for: groups and cleanup errors opened, all else as it is."""
    if isinstance(error, RuntimeOwnerCleanupError):
        yield from leaves(error.cause)
    elif isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def combine(message: str, failures: Iterable[BaseException | None]) -> BaseException | None:
    """None of none, one as itself, several as a RuntimeOwnerCleanupError around a flat group of them.

    Where one of ``failures`` already holds all of them it is given back, so that everybody gets the same object.
    """
    given = [failure for failure in failures if failure is not None]
    unique = {id(leaf): leaf for failure in given for leaf in leaves(failure)}
    if not unique:
        return None
    if len(unique) == 1:
        return next(iter(unique.values()))
    for failure in given:
        if len({id(leaf) for leaf in leaves(failure)}) == len(unique) and isinstance(failure, RuntimeOwnerCleanupError):
            return failure
    said = "; ".join(describe(leaf, typed=True) for leaf in unique.values())
    sentence = f"{message}: {said}; look at each by itself"
    return RuntimeOwnerCleanupError(sentence, BaseExceptionGroup(message, list(unique.values())))
