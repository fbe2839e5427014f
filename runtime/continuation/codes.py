"""Why a plan parks, how a plan goes stale, and what a plan remarks on: each code once, for people. No I/O."""

from collections.abc import Sequence
from typing import Any, Final

import attrs
import orjson

from ...journal.events import Purpose
from .shapes import Diagnostic

#: Characters of a value in a sentence.
SHOWN: Final = 120


@attrs.frozen
class Code:
    """``meaning``: a sentence of what is so. ``remedy``: a sentence of what to do about it.

    ``handed``: what to do for the successor of a run that was handed over, or is about to be, where that is something
    else: as long as its turn has no end the session takes no messages.
    """

    meaning: str
    remedy: str
    handed: str | None = None

    def advice(self, purpose: Purpose) -> str:
        """What to do where this was planned for."""
        return self.remedy if purpose == "resume" or self.handed is None else self.handed


_REPAIR: Final = "Repair the session first: `maka session resume` and `maka journal repair` do."
_ANOTHER: Final = (
    "Send a new message instead (`manager.send` of a program): it goes on from all that the journal holds."
)
_DAMAGED: Final = "Look at it with `maka journal inspect`, and send a new message instead."
#: Of a successor, for which there is no way.
_LATER: Final = "Only a new message goes on, once the turn has its end."
_DAMAGED_LATER: Final = f"Look at it with `maka journal inspect`. {_LATER}"

_UNOBSERVED: Final = Code(
    "The state of the workspace could not be observed.",
    "Mend the app's safety inspector, or what it looks at, and plan again.",
)

#: Why a plan parks, in the order of the checks. Those up to ``continuation_already_exists`` stand alone; of the others
#: a plan names all that hold.
REASONS: Final[dict[str, Code]] = {
    "resume_feature_disabled": Code(
        "The app has continuations switched off.",
        "Set `safe_boundary_resume_enabled` of the app to True, or send a new message instead.",
    ),
    "safety_observation_unavailable": _UNOBSERVED,
    "source_run_unreadable": Code(
        "The run does not exist in this journal, or its header is not readable.",
        "Name a run that `maka journal inspect` lists for this session, or send a new message; a fork cannot "
        "continue its parent's runs.",
        f"Look at it with `maka journal inspect`. {_LATER}",
    ),
    "resume_candidate_missing": Code(
        "No run of the session was interrupted, or the session has gone on without it since.",
        "Send a new message, or name the run that is meant with `--run ID`.",
        "Plan a resume of the run that is meant, or send a new message.",
    ),
    "workspace_identity_missing": Code(
        "The run does not say in which workspace it worked.",
        "Send a new message instead: nobody can tell whether this workspace is the one that the run left.",
        f"Nobody can tell whether this workspace is the one that the run left. {_LATER}",
    ),
    "runtime_identity_mismatch": Code(
        "The run was handed to a successor and only that one goes on; or a handoff was asked for and the run has none.",
        "Plan a handed-off run for its handoff, and every other run for a resume.",
    ),
    "runtime_lineage_missing": Code(
        "A run that the continued one goes back to is not in the journal.", _DAMAGED, _DAMAGED_LATER
    ),
    "source_prefix_digest_mismatch": Code(
        "A run that the continued one goes back to does not end with the line that was claimed.",
        _DAMAGED,
        _DAMAGED_LATER,
    ),
    "runtime_lineage_claim_mismatch": Code(
        "A claim in the run's lineage does not fit the runs that it names.", _DAMAGED, _DAMAGED_LATER
    ),
    "runtime_lineage_start_mismatch": Code(
        "A start in the run's lineage does not fit its claim.", _DAMAGED, _DAMAGED_LATER
    ),
    "runtime_lineage_cycle": Code("The run's lineage comes back to itself.", _DAMAGED, _DAMAGED_LATER),
    "continuation_claim_repair_required": Code("The run was claimed, and what claimed it was cut off.", _REPAIR),
    "continuation_started_indeterminate": Code(
        "The run's continuation was started, and whether it reached the provider is not known. A call that was to be "
        "made again may have run, too.",
        "End it with `maka session settle --claim ID`, then continue the run that it started; or send a new message.",
    ),
    "continuation_already_exists": Code(
        "The run has been continued already.",
        "Continue the run that came of it, or send a new message.",
    ),
    "pending_permission": Code(
        "A permission or a question of the run waits for an answer.",
        "Answer it where the run is alive; where it is dead, repair the session first: that closes it.",
    ),
    "runtime_ledger_empty": Code("The run never began: there is nothing to go on from.", _ANOTHER, _LATER),
    "terminal_repair_failed": Code(
        "The run, or a turn that stands open in the session, has no end on record.", _REPAIR
    ),
    "source_prefix_unverified": Code(
        "Lines before the run's end cannot be proven to be as they were written, or lines behind it were lost and may "
        "have claimed it.",
        _DAMAGED,
        _DAMAGED_LATER,
    ),
    "dangling_tool_state": Code(
        "A tool was called, and whether its effect happened is not known.",
        "Look whether it did, and state it with `maka session settle --call ID --ok` or `--error TEXT`.",
    ),
    "workspace_identity_mismatch": Code(
        "The workspace is not the one that the run worked in.",
        "Put that workspace back, or send a new message instead.",
        "Put that workspace back.",
    ),
    "background_operation_pending": Code(
        "Something that an earlier run began in the background still goes on.",
        "Wait until it has ended, or stop it, and plan again; where nobody can tell whether it has, in a new process.",
    ),
    "checkpoint_restore_failed": Code(
        "The workspace is not as it was saved behind the run's last event.",
        "Restore that checkpoint and plan again.",
    ),
    "tool_catalog_mismatch": Code(
        "The run called a tool that is not available any more.",
        "Use an app that has the tool, or send a new message instead.",
        "Use an app that has the tool.",
    ),
    "continuation_identity_reused": Code(
        "An id of the new run, turn or claim is in use already.",
        "Plan again with ids that were never used.",
        f"The ids of its successor were reserved before. {_LATER}",
    ),
    "provider_resume_head_unsupported": Code("What would be replayed does not begin with the user.", _ANOTHER, _LATER),
    "provider_resume_boundary_unsupported": Code(
        "Nothing that was asked of the model and not answered is left to go on from.", _ANOTHER, _LATER
    ),
    "session_archived": Code(
        "The session is archived, and takes no turns.",
        "Take it back before, with `maka session archive ID --undo` or `unarchive`.",
    ),
    "backend_unknown": Code(
        "The app has not the backend that the session is set up with.",
        "Use an app that has it, or set the session up with another (`update`).",
        "Use an app that has it: a successor has the backend of its source.",
    ),
    "composition_changed": Code(
        "The app says beforehand that the successor of a run that was handed over would be another agent.",
        "Use the app as it was, or give the handoff up (`maka session settle --handoff ID`) and go on from the run "
        "that comes of that.",
    ),
    "composition_unavailable": Code(
        "The app says beforehand that its backend cannot take over a run that was handed over.",
        "Use the app as it was, or give the handoff up (`maka session settle --handoff ID`) and go on from the run "
        "that comes of that.",
    ),
}

#: How a plan goes stale, in the order of the checks. What none of them covers and a new plan would park for is told by
#: its reason, before ``session_advanced``.
STALE: Final[dict[str, Code]] = {
    "continuation_claim_conflict": Code(
        "Somebody else has claimed the run since the plan was made.",
        "Plan again: the new plan says how that one stands.",
    ),
    "target_run_conflict": Code(
        "The plan's new run or turn is taken, or another turn stands open.",
        "Wait until that turn has ended, or repair the session, and plan again.",
    ),
    "source_identity_changed": Code("The run that is to be continued is not there any more.", "Plan again."),
    "source_terminal_changed": Code(
        "The end of the run is not what it was.", "Look at it with `maka journal inspect`, and plan again."
    ),
    "source_high_water_changed": Code("The run ends with another event than it did.", "Plan again."),
    "source_replay_changed": Code(
        "What the model would be given has changed, a call's outcome for example.", "Plan again."
    ),
    "source_configuration_changed": Code(
        "Backend, model, connection or permission mode have been changed.",
        "Plan again, or change them back.",
        "Change them back (`update`), or give the handoff up: planning again gives the same.",
    ),
    "workspace_identity_changed": Code(
        "The workspace is not the one that was planned for.",
        "Put that workspace back, or plan again.",
        "Put that workspace back.",
    ),
    "background_operation_started": Code(
        "Something goes on in the background that did not when the plan was made.",
        "Wait until it has ended, and plan again.",
    ),
    "tool_catalog_changed": Code("There are other tools than when the plan was made.", "Plan again."),
    "workspace_checkpoint_changed": Code(
        "The saved state of the workspace is not the one that was planned for.", "Restore it, or plan again."
    ),
    "safety_observation_unavailable": _UNOBSERVED,
    "sandbox_denial_unknown": Code(
        "Whether a person has denied the run a sandbox boundary cannot be told.",
        "Mend what looks it up and resume again, or send a new message instead.",
        "Mend what looks it up and resume again, or give the handoff up.",
    ),
    "composition_unavailable": Code(
        "The backend has not recorded what the run that a turn was handed over to is made of.",
        "Use a backend that does, then continue that run, or send a new message.",
    ),
    "composition_changed": Code(
        "The run that a turn was handed over to is made of something else than its source: another agent.",
        "Put that back and continue that run, or send a new message.",
    ),
    "session_advanced": Code(
        "Another run of the session has begun since the plan was made.",
        "Plan again: the new plan says what is left out.",
    ),
    "dangling_tool_state": Code(
        "A call was executed again, and what it came to is unknown even so.",
        "Look whether its effect happened and state it with `maka session settle --call`, then plan again.",
    ),
}

#: What a plan remarks on and does not park for.
REMARKS: Final[dict[str, Code]] = {
    "workspace_location_changed": Code(
        "The same workspace is found in another place.",
        "Nothing needs to be done; paths in the history are the old ones.",
    ),
    "configuration_changed": Code(
        "The session is set up differently than when the run began.",
        "The new run has what is set now; change it back if that is not meant.",
        "Change it back (`update`): a successor has what its source had, and is refused otherwise "
        "(`source_configuration_changed`).",
    ),
    "composition_changed": Code(
        "What the agent is made of, its prompt or its tools for one, is not what it was when the run began.",
        "The new run has what there is now; use the app as it was if that is not meant.",
    ),
    "composition_missing": Code(
        "The run was handed over, and what its agent was made of is not on record, or cannot be read.",
        "Its successor will be refused (`source_identity_changed`): give the handoff up, and go on from the run that "
        "comes of that.",
    ),
    "handoff_pending": Code(
        "The turn was handed over and waits for its successor.",
        "Until that has gone on, or the handoff is given up with `maka session settle --handoff ID`, new messages are "
        "refused.",
    ),
    "source_completed": Code(
        "The run has completed. Going on from it answers the same message anew.",
        "The answer that was given stays in the journal, and no model is told of it any more; send a new message if "
        "that is not meant.",
    ),
    "tools_missing": Code(
        "A tool that the run had, and did not call, is not available any more.",
        "Use an app that has the tool if the model should go on with it.",
    ),
    "later_turn_left_out": Code(
        "The session has gone on since the run, and what was said then is not given to the model.",
        "Send a new message instead if the model should know of it.",
        "The successor goes on without it.",
    ),
}


def said(code: str, what: str, remedy: str | None = None, *, purpose: Purpose = "resume") -> Diagnostic:
    """Why a plan parks: what is so here, and what to do, by the code itself if ``remedy`` is None."""
    return Diagnostic(code, f"{what}. {remedy or REASONS[code].advice(purpose)}")


def remarked(code: str, what: str, remedy: str | None = None, *, purpose: Purpose = "resume") -> Diagnostic:
    """What a plan remarks on, likewise."""
    return Diagnostic(code, f"{what}. {remedy or REMARKS[code].advice(purpose)}")


def shown(value: Any) -> str:
    """A value in a sentence: ids and names may be long, and are somebody else's."""
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def listed(values: Sequence[str]) -> str:
    """Names in a sentence, the first ten of them."""
    return ", ".join(map(shown, values[:10])) + (f" and {len(values) - 10} more" if len(values) > 10 else "")
