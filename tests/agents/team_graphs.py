"""Random teams for tests: agents whose replies depend on their prompts alone, with conditions, loops and errors."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from hypothesis import strategies as st

from holdfast import CheckpointStorage
from holdfast.agents import (
    AgentReply,
    AgentRequest,
    AgentWorkflow,
    EdgeCondition,
    Handoff,
    NodeApprovalRequest,
    NodeBuilder,
)

DIGITS = "0123456789abcdef"


def digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class RandomNode:
    policy: str
    """What happens after an error."""
    fails_below: int
    """It fails if the first digit of its digest is below; 0 for never."""
    asks_below: int
    """A person is asked if the first digit of its answer is below."""
    is_router: bool


@dataclass(frozen=True)
class RandomTeam:
    nodes: tuple[RandomNode, ...]
    forward: tuple[tuple[int, int, int], ...]
    """Source, target, and the digits that take the edge: 16 for all, -1 for a default."""
    back: tuple[tuple[int, int, int], ...]

    def reply(self, number: int, request: AgentRequest) -> AgentReply:
        text = digest(f"n{number}", request.prompt)
        node = self.nodes[number]
        if DIGITS.index(text[0]) < node.fails_below:
            raise ValueError(f"n{number} fails for {request.prompt!r}")
        targets = [handoff.target for handoff in request.handoffs]
        chosen = DIGITS.index(text[1]) % (len(targets) + 1) if targets else 0
        handoff = targets[chosen] if chosen < len(targets) else None
        return AgentReply(text[::-1], handoff=handoff)

    def build(self, storage: CheckpointStorage | None = None) -> AgentWorkflow:
        builder = AgentWorkflow.create().with_name("Random").with_max_iterations(12)
        routed = set()
        for number, node in enumerate(self.nodes):
            agent = _agent(self, number)
            targets = [target for source, target, _ in self.forward if source == number]
            if node.is_router and targets:
                routed.add(number)
                handoffs = [Handoff(f"n{target}") for target in dict.fromkeys(targets)]
                builder.add_router_agent(
                    f"n{number}", agent, handoffs, _configure(self, number), default=f"n{targets[-1]}"
                )
            else:
                builder.add_agent(f"n{number}", agent, _configure(self, number))
        for source, target, below in self.forward:
            if source in routed:
                continue
            builder.from_(f"n{source}").to(f"n{target}")
            if 0 <= below < 16:
                builder.when(_first_digit_below(below))
            elif below < 0:
                builder.as_default()
        for source, target, below in self.back:
            builder.from_(f"n{source}").to(f"n{target}").when(_first_digit_below(below))
        led_to = {target for _, target, _ in self.forward} | {target for _, target in self.fallbacks}
        for target in {target for source, target, _ in self.back if source != target} - led_to:
            builder.from_("START").to(f"n{target}")
        if storage is not None:
            builder.with_checkpointing(storage)
        return builder.build()

    @property
    def fallbacks(self) -> list[tuple[int, int]]:
        """The edges that are taken after errors: to the next node."""
        last = len(self.nodes) - 1
        return [(i, i + 1) for i, node in enumerate(self.nodes) if node.policy == "fallback" and i < last]

    def policy_of(self, number: int) -> str:
        """Return the policy for errors; that of the last node, which has no next one, is to skip."""
        node = self.nodes[number]
        return "skip" if node.policy == "fallback" else node.policy


def _agent(team: RandomTeam, number: int) -> Any:
    def reply(request: AgentRequest) -> AgentReply:
        return team.reply(number, request)

    return reply


def _first_digit_below(below: int) -> EdgeCondition:
    return EdgeCondition.test("matches", "answer", f"^[{DIGITS[:below]}]" if below else "^x")


def _configure(team: RandomTeam, number: int) -> Any:
    node = team.nodes[number]

    def configure(options: NodeBuilder) -> None:
        if (number, number + 1) in team.fallbacks:
            options.on_error_fallback(f"n{number + 1}")
        else:
            getattr(options, f"on_error_{team.policy_of(number)}")()
        if node.asks_below:
            options.requires_approval(_first_digit_below(node.asks_below))

    return configure


def answer_to(request: Any) -> bool:
    """Decide as a person who looks at nothing but what is asked."""
    assert isinstance(request.data, NodeApprovalRequest)
    return DIGITS.index(digest(request.data.agent, request.data.text)[0]) < 12


@st.composite
def random_teams(draw: st.DrawFn, *, loops: bool = True) -> RandomTeam:
    count = draw(st.integers(1, 7))
    nodes = tuple(
        RandomNode(
            draw(st.sampled_from(["skip", "isolate", "fallback", "skip", "isolate", "fallback", "stop"])),
            draw(st.sampled_from([0, 0, 4, 8])),
            draw(st.sampled_from([0, 0, 0, 8])),
            draw(st.booleans()),
        )
        for _ in range(count)
    )
    pairs = [(source, target) for source in range(count) for target in range(source + 1, count)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=12)) if pairs else []
    forward = []
    for source, target in sorted(chosen):
        forward.append((source, target, draw(st.sampled_from([16, 16, 8, 4, 12, 0]))))
    for source in range(count):  # at most one default, where another edge has a condition
        own = [edge for edge in forward if edge[0] == source]
        if len(own) > 1 and any(edge[2] < 16 for edge in own[:-1]) and draw(st.booleans()):
            forward[forward.index(own[-1])] = (*own[-1][:2], -1)
    back = []
    if loops:
        ways = [(source, target) for source in range(count) for target in range(source + 1)]
        for source, target in draw(st.lists(st.sampled_from(ways), unique=True, max_size=3)):
            back.append((source, target, draw(st.sampled_from([4, 8]))))
    return RandomTeam(nodes, tuple(forward), tuple(back))
