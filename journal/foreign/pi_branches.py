"""The branches of a pi session: which one is the active one, and where the others leave it. No I/O.

Which branch is active is not stored: it is that of the newest entry of a conversation, for what a dying process appends
at an old place does not count. Another branch is forked behind the last whole turn that it shares; what it shares of a
turn in whose middle it leaves, and all that stands behind a turn's end, is given by it once more.
"""

from array import array
from bisect import bisect_left
from typing import Final

import attrs

from .findings import Report
from .pi_tree import (
    ANSWER,
    APART,
    ASIDE,
    CONVERSATION,
    MESSAGES,
    NONE,
    PROMPT,
    QUIET,
    RESULT,
    SAID,
    Tree,
    numbers,
)
from .records import MAIN

#: Branches that become sessions of their own.
_MOST: Final = 1_000
#: What is given once more may take so many times the bytes of the file, and so many in any case.
_TIMES: Final = 1
_ALWAYS: Final = 1 << 20
_UNNAMED: Final = -2
#: What tells whether a turn goes on.
_TELLING: Final = frozenset({ASIDE, SAID, PROMPT, ANSWER, RESULT})
GOES_ON: Final = frozenset({ANSWER, RESULT})


@attrs.define(eq=False)
class Branch:
    """A thread. ``begin``: the first line of its own; ``at``: the line where it leaves its parent's path. It is forked
    in thread ``parent`` (a number), behind the turn that line ``after`` begins. ``again``: the lines up to ``at`` that
    it gives once more.
    """

    name: str
    begin: int = NONE
    at: int = NONE
    parent: int = NONE
    after: int = NONE
    again: "array[int]" = attrs.Factory(numbers)


@attrs.define(eq=False)
class Branches:
    """By line: its ``threads`` (numbers of ``all``); whether it is ``live``, on the path of its thread, and not only
    kept there; ``following`` it on that path; the kind of what is ``next`` there and tells whether a turn goes on.
    ``first``: branches by the line that they begin with.
    """

    tree: Tree
    all: list[Branch] = attrs.Factory(lambda: [Branch(MAIN)])
    threads: "array[int]" = attrs.Factory(numbers)
    live: bytearray = attrs.Factory(bytearray)
    following: "array[int]" = attrs.Factory(numbers)
    next: bytearray = attrs.Factory(bytearray)
    first: dict[int, Branch] = attrs.Factory(dict)
    #: By line: the next one on its path that is a message.
    _message: "array[int]" = attrs.Factory(numbers)

    def gives(self, thread: int, line: int) -> bool:
        """Is the line on the path of a thread, behind where that is forked?"""
        if self.threads[line] == thread:
            return bool(self.live[line])
        again = self.all[thread].again
        place = bisect_left(again, line)
        return place < len(again) and again[place] == line

    def is_above(self, thread: int, line: int, target: int) -> bool:
        """Does the path of a thread to ``line`` come by ``target``?"""
        if not 0 <= target < line or self.tree.kinds[target] == APART or not self.live[target]:
            return False
        limit = line
        while self.threads[target] != thread:
            limit = self.all[thread].at
            if limit == NONE:
                return False
            thread = self.threads[limit]
        return target <= limit

    def message_from(self, thread: int, line: int) -> int:
        """The first message that a thread gives from this line of its path on."""
        branch = self.all[thread]
        if self.threads[line] == thread:
            return self._message[line]
        for each in branch.again[bisect_left(branch.again, line) :]:
            if self.tree.kinds[each] in MESSAGES:
                return each
        return self._message[branch.begin]

    def again_nexts(self, branch: Branch) -> bytearray:
        """``next`` of the lines that a branch gives once more, as its own path goes on with them."""
        kind = self.tree.kinds[branch.begin]
        following = kind if kind in _TELLING else self.next[branch.begin]
        out = bytearray(len(branch.again))
        for index in range(len(out) - 1, -1, -1):
            out[index] = following
            kind = self.tree.kinds[branch.again[index]]
            following = kind if kind in _TELLING else following
        return out


def branches(tree: Tree, report: Report) -> Branches:
    """What is odd about the active branch, or cannot be given as a session, is reported."""
    return _Making(tree, report).made()


class _Making:
    def __init__(self, tree: Tree, report: Report) -> None:
        self._tree = tree
        self._report = report
        self._out = Branches(tree)
        #: By line: the newest entry of a conversation at or below it.
        self._tips = numbers(tree.size)
        #: Where the path of the session itself begins, and the entry that it leads to.
        self._root, self._leaf = NONE, NONE
        self._turns = _Turns(tree, self._out, report)

    def made(self) -> Branches:
        self._follow()
        disputed = self._disputed()
        self._look_ahead()
        left = 0
        for line in range(self._tree.size):
            left += not self._assign(line, disputed)
            if self._out.live[line]:
                self._turns.take(line)
        if left:
            self._report.add(
                "misfit", f"of {left + _MOST} branches the first {_MOST} are given; the lines of the others are kept"
            )
        return self._out

    def _follow(self) -> None:
        """Every path goes on towards the newest entry of a conversation; where there is none, to the newest entry."""
        tree, tips = self._tree, self._tips
        self._out.following = following = numbers(tree.size)
        for line in range(tree.size - 1, -1, -1):
            if tree.kinds[line] == APART:
                continue
            if tips[line] == NONE and tree.kinds[line] in CONVERSATION:
                tips[line] = line
            parent = tree.parents[line]
            if parent == NONE:
                if self._root == NONE or tips[line] > self._leaf:
                    self._root, self._leaf = line, tips[line]
            elif following[parent] == NONE or tips[line] > tips[parent]:
                following[parent] = line
                tips[parent] = max(tips[parent], tips[line])

    def _disputed(self) -> int:
        """The tool takes the last line of the file for the end of the active branch. Where that hangs elsewhere, the
        first of its lines that is on no path to a conversation; it begins a branch of its own.
        """
        tree = self._tree
        last = tree.size - 1
        while last >= 0 and tree.kinds[last] == APART:
            last -= 1
        at, begin = last, NONE
        while at != NONE and self._tips[at] == NONE:
            at, begin = tree.parents[at], at
        if self._leaf == NONE or at == self._leaf:
            return NONE
        place = tree.place(last)
        where = "at the very beginning" if at == NONE else f"at line {tree.place(at).line}"
        self._report.add(
            "leaf_disputed",
            f"the last entry hangs {where}, off the branch that the conversation goes on with",
            place.line,
            place.offset,
            place.length,
            related=tree.place(self._leaf).line,
        )
        return begin if at != NONE else NONE

    def _look_ahead(self) -> None:
        tree, out = self._tree, self._out
        out.next = bytearray(tree.size)
        out._message = numbers(tree.size)
        for line in range(tree.size - 1, -1, -1):
            after = out.following[line]
            if after != NONE:
                out.next[line] = tree.kinds[after] if tree.kinds[after] in _TELLING else out.next[after]
            if tree.kinds[line] in MESSAGES:
                out._message[line] = line
            elif after != NONE:
                out._message[line] = out._message[after]

    def _assign(self, line: int, disputed: int) -> bool:
        """The line's thread: its parent's, unless a branch begins with it. False where too many begin."""
        tree, out = self._tree, self._out
        parent = tree.parents[line]
        if tree.kinds[line] == APART:
            out.threads.append(0)
            out.live.append(0)
            return True
        thread, live = (0, 1) if parent == NONE else (out.threads[parent], out.live[parent])
        goes_on = line == (self._root if parent == NONE else out.following[parent])
        begins = not goes_on and bool(live) and (self._tips[line] != NONE or line == disputed)
        room = len(out.all) <= _MOST
        if begins and room:
            thread = len(out.all)
            out.first[line] = branch = Branch(f"branch:{tree.place(line).line}", begin=line, at=parent)
            out.all.append(branch)
        out.threads.append(thread)
        out.live.append(live if goes_on or (begins and room) else 0)
        return room or not begins


@attrs.define
class _Stand:
    """How a path stands behind a line. ``turn``: the line that the newest turn begins with; is it ``open``? ``whole``:
    of the turns that are over the last that can be named (an index, see ``_Turns``). ``aside``: was something said
    since the last turn was over?
    """

    turn: int = NONE
    open: bool = False
    whole: int = NONE
    aside: bool = False


class _Turns:
    """Follows the turns of every path, as they are closed when its records are read, and forks the branches."""

    def __init__(self, tree: Tree, out: Branches, report: Report) -> None:
        self._tree, self._out, self._report = tree, out, report
        self._left = _ALWAYS + _TIMES * sum(tree.lengths)
        #: By line: the fields of its stand.
        self._turn = numbers(tree.size)
        self._whole = numbers(tree.size)
        self._open, self._aside = bytearray(tree.size), bytearray(tree.size)
        #: Turns that are over: thread, first and last line, one behind the other.
        self._over = numbers()

    def take(self, line: int) -> None:
        """Lines that are live, in the order of the file."""
        tree, out = self._tree, self._out
        branch, parent = out.first.get(line), tree.parents[line]
        stand = _Stand() if parent == NONE else self._stand(parent)
        if branch is not None and parent != NONE:
            stand = self._fork(branch, stand)
        kind = tree.kinds[line]
        if kind in (ASIDE, SAID):
            stand.aside = not stand.open
        if kind == PROMPT:
            self._close(stand, out.threads[line], parent)
            stand.turn, stand.open = line, True
        elif kind in GOES_ON:
            if not stand.open:
                # A result that begins a turn does so as what nobody asked for.
                stand.turn, stand.open = line if kind == ANSWER else _UNNAMED, True
            if tree.last[line] and out.next[line] not in GOES_ON:
                self._close(stand, out.threads[line], line)
        self._turn[line], self._whole[line] = stand.turn, stand.whole
        self._open[line], self._aside[line] = stand.open, stand.aside

    def _stand(self, line: int) -> _Stand:
        return _Stand(self._turn[line], bool(self._open[line]), self._whole[line], bool(self._aside[line]))

    def _close(self, stand: _Stand, thread: int, line: int) -> None:
        if stand.open and stand.turn >= 0:
            stand.whole = len(self._over)
            self._over.extend((thread, stand.turn, line))
        stand.open = stand.aside = False

    def _fork(self, branch: Branch, stand: _Stand) -> _Stand:
        """How a branch stands before its first line, given how its parent does where it leaves that."""
        tree, out = self._tree, self._out
        kind = tree.kinds[branch.begin]
        goes_on = (kind if kind in _TELLING else out.next[branch.begin]) in GOES_ON
        if stand.open and stand.turn >= 0 and not goes_on and self._is_over(branch.at):
            self._close(stand, out.threads[branch.at], branch.at)
        elif stand.turn >= 0 and (stand.open or (goes_on and not stand.aside)):
            # It goes on in the branch: that begins before it.
            stand.whole, stand.open = self._whole[stand.turn], True
        end = NONE
        if stand.whole != NONE:
            branch.parent, branch.after, end = self._over[stand.whole : stand.whole + 3]
        if not self._give_again(branch, end):
            return _Stand(whole=stand.whole)
        return stand

    def _is_over(self, line: int) -> bool:
        """Is the next on the line's own path a prompt, which ends what is open?"""
        following = self._out.following[line]
        while following != NONE and self._tree.kinds[following] == QUIET:
            following = self._out.following[following]
        return following != NONE and self._tree.kinds[following] == PROMPT

    def _give_again(self, branch: Branch, end: int) -> bool:
        """What stands behind the turn that a branch is forked behind, up to where it leaves; False if that is too
        much.
        """
        tree, at = self._tree, branch.at
        found = numbers()
        while at != end and at != NONE and self._left > 0:
            found.append(at)
            self._left -= tree.lengths[at]
            at = tree.parents[at]
        if self._left > 0:
            found.reverse()
            branch.again = found
            return True
        place = tree.place(branch.begin)
        told = "the branch is given without what it shares of the turn that it leaves: branches share too much"
        self._report.add("misfit", told, place.line, place.offset, place.length)
        return False


__all__ = ["Branch", "Branches", "branches"]
