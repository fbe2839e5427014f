"""The fold of a session: one ``State`` made of the views' states; ``apply`` for reading, ``check`` for writing. No I/O."""

import attrs

from .findings import FindingList
from .views.admissions import Admissions
from .views.continuations import Continuations
from .views.interactions import Interactions
from .views.plans import Plans
from .views.queue import Queue
from .views.runs import Runs
from .views.session import Session
from .views.turns import Turns
from .views.usage import Usage


@attrs.define(slots=True)
class State:
    """Everything that the events so far amount to. ``problems``: relations that no correct writer produces."""

    session: Session = attrs.field(factory=Session)
    turns: Turns = attrs.field(factory=Turns)
    runs: Runs = attrs.field(factory=Runs)
    interactions: Interactions = attrs.field(factory=Interactions)
    queue: Queue = attrs.field(factory=Queue)
    admissions: Admissions = attrs.field(factory=Admissions)
    continuations: Continuations = attrs.field(factory=Continuations)
    plans: Plans = attrs.field(factory=Plans)
    usage: Usage = attrs.field(factory=Usage)
    problems: FindingList = attrs.field(factory=FindingList)
    last_ts: int = 0
