"""A policy of one's own for the commands that plan: a function that a module has, by `module:function`.

Its plans go the way of all plans, and must be valid and within the memory like these.

Source: ours; docs/planner/your_own.md, "A policy of your own".
"""

import json
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tensile_db.commands.own_functions import call, failure, load, require_no_module
from tensile_db.errors import InvalidPlan, InvalidRequest, format_nbytes, format_value

if TYPE_CHECKING:
    from tensile_db.scheduler.plan import DeviceSpec, Plan
    from tensile_db.scheduler.policies import Policy
    from tensile_db.scheduler.request import JobRequest

_HINT = 'docs/planner/your_own.md, "A policy of your own", has one that can be copied.'
_MEANT = "docs/plan_format.md says what order and events mean."


def use_policy(name: str, tell: Callable[[str], None] = lambda _: None) -> None:
    """Have a policy at hand: one of ours, or `module:function`, looked up from where the command runs, too.

    tell: told why it failed, whenever one of others does.
    Raises UnknownName for a name that is no policy's, InvalidRequest where the module offers none.
    """
    from tensile_db.scheduler.policies import POLICIES, require_policy

    if ":" not in name:
        if name not in POLICIES:
            require_no_module("policy", name, example="plan")
        require_policy(name)
    elif name not in POLICIES:
        POLICIES[name] = _checked(name, load("policy", name, hint=_HINT), tell)


def _checked(name: str, function: Callable[..., Any], tell: Callable[[str], None]) -> "Policy":
    """Return the policy whose plans are valid, within the memory, and known by its name."""
    from tensile_db.scheduler.plan import Plan

    def planned(jobs: "Sequence[JobRequest]", device: "DeviceSpec", memory_nbytes: int) -> tuple[object, ...]:
        def made() -> tuple[object, ...]:
            # What they take out of a list is not taken out of ours.
            plans = function(tuple(jobs), device, memory_nbytes)
            if isinstance(plans, Plan):
                raise _returned(name, "a plan, not a sequence with one for each job")
            try:
                each = iter(plans)
            except TypeError:
                return (plans,)
            return tuple(each)

        return call("policy", name, made)

    def plan(jobs: "Sequence[JobRequest]", device: "DeviceSpec", memory_nbytes: int) -> "tuple[Plan, ...]":
        try:
            return _named(name, jobs, planned(jobs, device, memory_nbytes), device, memory_nbytes)
        except InvalidRequest as error:
            tell(f"{error.message} (asked for a plan within {format_nbytes(memory_nbytes)})")
            raise

    return plan


def _returned(name: str, what: str) -> InvalidRequest:
    return InvalidRequest(f'policy "{name}" returned {what}', hint=_HINT)


def _named(
    name: str,
    jobs: "Sequence[JobRequest]",
    made: "Sequence[object]",
    device: "DeviceSpec",
    memory_nbytes: int,
) -> "tuple[Plan, ...]":
    """Return the plans by the policy's name; raise InvalidRequest where they are not what plans must be."""
    from tensile_db.scheduler.checking import check_made
    from tensile_db.scheduler.plan import Plan

    given = [each for each in made if isinstance(each, Plan)]
    if len(given) < len(made):
        raise _returned(name, "something else than a sequence of plans")
    if len(given) != len(jobs):
        raise _returned(name, f"{len(given)} plans for {len(jobs)} job{'s' * (len(jobs) > 1)}")
    plans, held_nbytes = [], 0
    for job, each in zip(jobs, given, strict=True):
        try:
            plan = _plain(each, name)
            # Where its delays are too short, more than is guaranteed would be held: they are raised later.
            held_nbytes += check_made(plan, job, device).guaranteed_peak_nbytes
        except (InvalidPlan, InvalidRequest) as error:
            raise InvalidRequest(
                f'policy "{name}" made an invalid plan: {error.message}', hint=_MEANT
            ) from None
        except Exception as error:  # noqa: BLE001  # whatever stands in place of an event or a tensor
            raise failure("policy", name, error, "made what is no plan") from None
        plans.append(plan)
    if held_nbytes > memory_nbytes:
        raise InvalidRequest(
            f'policy "{name}" plans to hold {format_nbytes(held_nbytes)},'
            f" but the budget is {format_nbytes(memory_nbytes)}",
            hint="Where it cannot keep within it, let it raise tensile_db.errors.DoesNotFit.",
        )
    return tuple(plans)


def _plain(plan: "Plan", name: str) -> "Plan":
    """Return the plan by the policy's name, as a file has it: what is checked is what is used.

    Whatever counts is a whole number, as numpy's, and whatever can be gone through once is a list.
    """
    from tensile_db.scheduler.plan import Event
    from tensile_db.scheduler.plan_json import plan_from_json, schedule_to_json

    events = tuple(plan.events)
    for place, event in enumerate(events):
        if not isinstance(event, Event):
            raise InvalidRequest(f'plan.events[{place}] is "{format_value(event)}", not an event')
    schedule = json.dumps(schedule_to_json(replace(plan, policy=name, events=events)), default=operator.index)
    return plan_from_json({"plan": json.loads(schedule)})
