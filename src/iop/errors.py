"""The one root of everything that can go wrong, with the code that a peer, a program or a person sees.

An error's ``code`` is a promise: it is stable, it is what goes on a wire or into ``--json``, and it says nothing about
secrets, digests or internals. Its message says what happened; ``hint`` says what to do.
"""

from __future__ import annotations

from typing import ClassVar


class IopError(Exception):
    """Root of every error that leaves a module of this project.

    :param message: what happened, for a person; never a secret, token, digest or path of a peer's machine.
    :param hint: what to do about it, or an empty string.
    """

    code: ClassVar[str] = "internal"
    #: Whether the same call may succeed later without anybody changing anything.
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


# -- what a peer did wrong: the connection is closed ------------------------------------------------------------------


class ProtocolViolation(IopError):
    """A peer broke the wire; its connection is closed and nothing it sent with it is used."""

    code = "protocol_violation"


class FrameTooLarge(ProtocolViolation):
    """A frame announced more bytes than are allowed in this state (P32)."""

    code = "frame_too_large"


class MalformedFrame(ProtocolViolation):
    """A frame or message that does not parse, is empty, or holds fields nobody knows (P35)."""

    code = "malformed_frame"


class UnexpectedMessage(ProtocolViolation):
    """A message that may not travel here: unknown kind, wrong direction, wrong state."""

    code = "unexpected_message"


class DuplicateCorrelation(ProtocolViolation):
    """A correlation id that is already in flight (P36)."""

    code = "duplicate_correlation"


class StrayAnswer(ProtocolViolation):
    """An answer to something that was never asked (P36)."""

    code = "stray_answer"


class TooManyInFlight(ProtocolViolation):
    """More requests at once than a connection may carry."""

    code = "too_many_in_flight"
    retryable = True


class FlowViolation(ProtocolViolation):
    """A peer sent body bytes beyond the window it was given, or returned credit that was never taken."""

    code = "flow_violation"


class PeerSilent(ProtocolViolation):
    """Nothing was heard from a peer for longer than keepalive allows."""

    code = "peer_silent"
    retryable = True


class PeerNotReading(ProtocolViolation):
    """A peer takes so little of what it is sent that more would have to be kept for it without bound."""

    code = "peer_not_reading"
    retryable = True


class EventFlood(ProtocolViolation):
    """An Edge tells events faster than any Edge has them (S13)."""

    code = "event_flood"


class TooManyConnections(IopError):
    """A listener carries as many connections as it may; the newest one was dropped."""

    code = "too_many_connections"
    retryable = True


class HandshakeTimeout(ProtocolViolation):
    """TLS handshake and hello were not done by their absolute deadline (P34)."""

    code = "handshake_timeout"
    retryable = True


class IdentityRefused(IopError):
    """A certificate, or a name that a hello claims, is not the one that may speak here (P1, P3)."""

    code = "identity_refused"


class TlsFailed(IopError):
    """TLS ended a connection for another reason than the peer's identity, or the peer ended it through TLS."""

    code = "tls_failed"
    retryable = True


class EdgeCutOff(IopError):
    """An Edge did not acknowledge a projection in time, so its connection was closed (E10)."""

    code = "edge_cut_off"


class HelloRefused(IopError):
    """The peer answered the hello with a refusal; ``reason`` is the peer's code."""

    code = "hello_refused"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


# -- what happened to a request ---------------------------------------------------------------------------------------


class RequestTimedOut(IopError):
    """The peer did not answer within the deadline; whether it acted is unknown."""

    code = "request_timed_out"
    retryable = True


class PeerDisconnected(IopError):
    """The connection ended before the answer came; whether the peer acted is unknown."""

    code = "peer_disconnected"
    retryable = True


class Draining(IopError):
    """This side is going away and takes nothing new."""

    code = "draining"
    retryable = True


# -- set-up -----------------------------------------------------------------------------------------------------------


class BadConfig(IopError):
    """A configuration that cannot be used; the message names file, table and key."""

    code = "bad_config"


class FileRefused(IopError):
    """A file that cannot be used: missing, of another kind or content; if it holds secrets, a link, not ours, open."""

    code = "file_refused"


# -- the store --------------------------------------------------------------------------------------------------------


class NotFound(IopError):
    """There is no such thing, or it is somebody else's; nobody can tell which (P16)."""

    code = "not_found"


class AlreadyExists(IopError):
    """The name is taken."""

    code = "already_exists"


class QuotaReached(IopError):
    """There is no room for more of this; nothing was changed."""

    code = "quota_reached"


class RevisionMismatch(IopError):
    """The expected revision is not the current one (K13)."""

    code = "revision_mismatch"


class FinalState(IopError):
    """The thing was revoked, and that is final."""

    code = "final_state"


class StoreBusy(IopError):
    """The store could not take its lock in time; nothing was changed."""

    code = "store_busy"
    retryable = True


class StoreUnavailable(IopError):
    """The store cannot answer; for a mutation the outcome is as its message says."""

    code = "store_unavailable"
    retryable = True


class AlreadyRunning(IopError):
    """Another Control Plane runs on this store; SQLite serves one."""

    code = "already_running"


class NotConfirmed(IopError):
    """A mutation is committed, but not every Edge was seen to follow it (K14)."""

    code = "not_confirmed"


class DeploymentMismatch(IopError):
    """A database, key file or peer belongs to another deployment."""

    code = "deployment_mismatch"


# -- cryptography: uniform on purpose ---------------------------------------------------------------------------------


class CannotOpen(IopError):
    """A sealed value does not open here. One error for every reason (P4)."""

    code = "cannot_open"

    def __init__(self) -> None:
        super().__init__("the sealed value cannot be opened")


class BadCredential(IopError):
    """A provider credential that its profile cannot send (P18)."""

    code = "bad_credential"


class KeyMissing(IopError):
    """A stored secret names an encryption key that the keyring does not hold."""

    code = "key_missing"


class AttestationRefused(IopError):
    """A recipient key is not attested by the Node it is claimed for (P11)."""

    code = "attestation_refused"


class PossessionRefused(IopError):
    """A Node did not prove that it holds the private half of its key (P14)."""

    code = "possession_refused"


class ReceiptRefused(IopError):
    """A projection receipt is not one that this deployment's issuer signed for this Edge."""

    code = "receipt_refused"


class MalformedToken(IopError):
    """A string that is not an iop token: wrong prefix, length, alphabet or check characters."""

    code = "malformed_token"


class ApiRefused(IopError):
    """A call of the credential HTTPS API or the operator socket that is refused.

    :param status: the HTTP status to answer with.
    :param reason: the stable code in the problem document.
    :param retry_after: seconds after which the same call may succeed, or 0.
    """

    code = "api_refused"

    def __init__(self, status: int, reason: str, message: str, *, hint: str = "", retry_after: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


# -- projection, fences, leases ---------------------------------------------------------------------------------------


class ProjectionRefused(IopError):
    """A projection that must not be applied; ``reason`` is the stable code sent back (P8)."""

    code = "projection_refused"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ProjectionSuperseded(IopError):
    """The Control Plane does not keep that generation any more: a newer projection is on its way (E12)."""

    code = "projection_superseded"
    retryable = True

    def __init__(self, generation: int) -> None:
        super().__init__("the Control Plane has a newer projection already", hint="try again")
        self.generation = generation


class FenceRefused(IopError):
    """A fence found the binding and a projection to differ; ``fields`` names what differs, never its values."""

    code = "fence_refused"
    retryable = True

    def __init__(self, fields: tuple[str, ...]) -> None:
        super().__init__("the request's binding is no longer current")
        self.fields = fields


class LeaseRefused(IopError):
    """The Control Plane gave no lease.

    :param reason: the stable wire code.
    :param again: whether a newer projection (of ``generation`` or later) may change the answer.
    """

    code = "lease_refused"

    def __init__(self, reason: str, message: str, *, again: bool, generation: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.again = again
        self.generation = generation


# -- commands to an Edge ---------------------------------------------------------------------------------------------


class CommandRefused(IopError):
    """A command that an Edge does not take; ``reason`` is the stable wire code (S6-S10)."""

    code = "command_refused"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class UnexpectedStep(IopError):
    """Something was to happen to a command that cannot happen to it now, such as anything after its end (S10)."""

    code = "unexpected_step"


class NodeDismissed(IopError):
    """A Node's connection was ended by ``node.disconnect``."""

    code = "disconnected"


class Superseded(IopError):
    """A Node's connection was ended because it registers on another one."""

    code = "superseded"


# -- a request at the Edge ---------------------------------------------------------------------------------------------


class TokenRefused(IopError):
    """A caller's token opens nothing here. One error for every reason (P20)."""

    code = "invalid_api_key"

    def __init__(self) -> None:
        super().__init__("the token is not one that opens this service")


class EdgeDraining(IopError):
    """This Edge was drained: it finishes what it has and takes nothing new (S11)."""

    code = "edge_draining"
    retryable = True

    def __init__(self) -> None:
        super().__init__("this service takes no new requests at the moment", hint="try again, or elsewhere")


class NoSuchModel(IopError):
    """The principal has no route of that model; somebody else's is the same (P16)."""

    code = "model_not_found"

    def __init__(self) -> None:
        super().__init__("the model does not exist or you do not have access to it")


class NoNode(IopError):
    """No ready Node serves what a route asks for."""

    code = "no_node"
    retryable = True


class ProviderUnreachable(IopError):
    """No provider that fits can be connected to.

    :param retry_seconds: seconds until one of them is tried again.
    """

    code = "provider_unreachable"
    retryable = True

    def __init__(self, message: str, *, retry_seconds: float) -> None:
        super().__init__(message, hint="try again")
        self.retry_seconds = retry_seconds


class QueueFull(IopError):
    """As many requests as allowed are waiting for the Nodes that could serve this one."""

    code = "queue_full"
    retryable = True


class QueueLate(IopError):
    """No Node became free within the time that a request may wait."""

    code = "queue_timeout"
    retryable = True


class ControlPlaneUnavailable(IopError):
    """The Control Plane is not there, or gives no answer, and the request cannot go on without it."""

    code = "control_plane_unavailable"
    retryable = True


# -- strict parsing ---------------------------------------------------------------------------------------------------


class MalformedInput(IopError):
    """JSON, base64url or another text that is not in the one accepted form (P37, P38)."""

    code = "malformed_input"


# -- upstream and HTTP ------------------------------------------------------------------------------------------------


class UpstreamFailed(IopError):
    """The provider could not be reached or broke off; its own HTTP answers are not this."""

    code = "upstream_unreachable"
    retryable = True

    def __init__(self, message: str, *, started: bool) -> None:
        super().__init__(message)
        #: False only if no byte of the request was written upstream.
        self.started = started


class UpstreamBusy(UpstreamFailed):
    """This side has as many connections to the provider as it may; that says nothing about the provider."""

    code = "upstream_busy"


class UpstreamLate(UpstreamFailed):
    """A call could not begin by the time until which it was allowed to; nothing was sent to the provider."""

    code = "upstream_late"


class UpstreamTls(UpstreamFailed):
    """The TLS handshake with the provider failed, or it is not who it should be; nothing was sent to it."""

    code = "upstream_tls"


class UpstreamTimedOut(UpstreamFailed):
    """The provider took longer than allowed to be reached, to answer, or to go on answering."""

    code = "upstream_timeout"


class UpstreamBroke(UpstreamFailed):
    """The provider's connection ended inside the exchange, or what came over it is not HTTP/1.1 within the limits."""

    code = "upstream_broke"


class BadHttp(IopError):
    """A peer's HTTP that is malformed, ambiguous, too large or too slow.

    :param status: the HTTP status to answer with.
    """

    code = "bad_http"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
