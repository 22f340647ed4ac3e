"""The engine: continuous batching over a paged KV cache, exact, at a cost that grows with events and not with tokens.

`settings` holds what is simulated, `state` the closed forms between two events, `run` the rules and the loop over
events, `result` what is read off the logs of a run.
"""

from .result import Result
from .run import Deadlock, simulate
from .settings import Policy, RequestView, Server, StepTime

__all__ = ["Deadlock", "Policy", "RequestView", "Result", "Server", "StepTime", "simulate"]
