"""What is decided about a patch, and what has become of it: the same words in a plan, a report and a summary."""

from __future__ import annotations

from enum import Enum


class State(str, Enum):
    """One word a patch. It is a text: JSON and messages have the word itself."""

    # A decision to put it in place, and what comes of that.
    APPLY = "apply"
    #: It waits for its target to be imported.
    ARMED = "armed"
    #: It acts later, when a model is wrapped, say.
    REGISTERED = "registered"
    APPLIED = "applied"
    #: Its targets have been imported, and none needed it.
    NOTHING_TO_DO = "nothing to do"
    #: It raised, and was undone.
    FAILED = "failed"

    # A decision to leave the toolkit as it is, which stays.
    #: No row is about this version.
    SKIP = "skip"
    #: Not wanted: by its switch, by a setting, or because what it needs is not applied.
    OFF = "off"
    #: The toolkit is not installed.
    ABSENT = "absent"
    NOT_AFFECTED = "not-affected"
    NOT_CURED = "not-cured"

    # Python 3.12 would write State.APPLY in a message.
    __str__ = str.__str__

    def __format__(self, form: str) -> str:
        return str.__format__(self, form)


# What a decision may be; the others are what has become of one to apply.
DECISIONS = (State.APPLY, State.SKIP, State.NOT_CURED, State.OFF, State.ABSENT, State.NOT_AFFECTED)
