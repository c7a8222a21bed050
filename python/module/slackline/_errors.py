"""Exceptions of Slackline."""

from __future__ import annotations


class SlacklineError(Exception):
    """Base of all errors of Slackline."""

    #: Advice, or text to write instead. None if the message is enough.
    hint: str | None = None


class ScenarioError(SlacklineError):
    """A scenario has an error. The message names the place, and `hint` proposes a correction."""

    #: Line and column of the fault, counted from 1. None if the fault is not in the text.
    line: int | None = None
    column: int | None = None


class NotAdmitted(SlacklineError):
    """The vCPUs cannot be admitted together. A policy raises this exception to refuse a vCPU."""


class ContractBroken(SlacklineError):
    """A policy broke the contract with the host, for example by picking a blocked vCPU."""


class ServiceError(SlacklineError):
    """The daemon cannot be reached, refused a request, or gave an answer that cannot be read."""

    #: HTTP status of the refusal. None if there was no refusal.
    status: int | None = None
    #: Kind of the refusal, such as "no-room" or "stale".
    kind: str | None = None
