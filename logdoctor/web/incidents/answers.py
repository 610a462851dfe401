"""What the service tells of incidents, as the OpenAPI document has it: types, each with an example."""

import msgspec

from logdoctor.store.incidents import Incident, IncidentEvent, IncidentPage


class IncidentStory(msgspec.Struct, frozen=True):
    """What happened to an incident, the newest first."""

    items: list[IncidentEvent]


_AT = 1795255505.2
_INCIDENT = Incident(
    id=3,
    event=14,
    fingerprint="4d1f0c9be2a70f15",
    node="gpu-12",
    state="acknowledged",
    by="ops",
    note="draining the node",
    changed=_AT + 60,
    opened=_AT - 86_400,
    last=_AT,
    merged_into=None,
    attempts=7,
    jobs=2,
    newest=None,
    on_node=9,
    others=1,
)
_EVENT = IncidentEvent(21, 3, _AT + 60, "ops", "acknowledged", "draining the node", None, None)
EXAMPLES = (_INCIDENT, IncidentPage([_INCIDENT], None), IncidentStory([_EVENT]))
"""One of each answer."""
