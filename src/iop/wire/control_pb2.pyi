from iop.wire import runtime_pb2 as _runtime_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CommandPhase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMMAND_PHASE_UNSPECIFIED: _ClassVar[CommandPhase]
    COMMAND_PHASE_ACCEPTED: _ClassVar[CommandPhase]
    COMMAND_PHASE_RUNNING: _ClassVar[CommandPhase]
    COMMAND_PHASE_SUCCEEDED: _ClassVar[CommandPhase]
    COMMAND_PHASE_FAILED: _ClassVar[CommandPhase]
    COMMAND_PHASE_CANCELLED: _ClassVar[CommandPhase]

class LifecycleEvent(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LIFECYCLE_EVENT_UNSPECIFIED: _ClassVar[LifecycleEvent]
    LIFECYCLE_EVENT_NODE_READY: _ClassVar[LifecycleEvent]
    LIFECYCLE_EVENT_NODE_DISCONNECTED: _ClassVar[LifecycleEvent]
    LIFECYCLE_EVENT_NODE_DRAINING: _ClassVar[LifecycleEvent]
    LIFECYCLE_EVENT_NODE_RESUMED: _ClassVar[LifecycleEvent]
    LIFECYCLE_EVENT_EDGE_READY: _ClassVar[LifecycleEvent]
    LIFECYCLE_EVENT_EDGE_DRAINING: _ClassVar[LifecycleEvent]
    LIFECYCLE_EVENT_EDGE_RESUMED: _ClassVar[LifecycleEvent]
    LIFECYCLE_EVENT_EDGE_STOPPING: _ClassVar[LifecycleEvent]

class ProjectionResult(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROJECTION_RESULT_UNSPECIFIED: _ClassVar[ProjectionResult]
    PROJECTION_RESULT_APPLIED: _ClassVar[ProjectionResult]
    PROJECTION_RESULT_HELD: _ClassVar[ProjectionResult]
    PROJECTION_RESULT_REFUSED: _ClassVar[ProjectionResult]
COMMAND_PHASE_UNSPECIFIED: CommandPhase
COMMAND_PHASE_ACCEPTED: CommandPhase
COMMAND_PHASE_RUNNING: CommandPhase
COMMAND_PHASE_SUCCEEDED: CommandPhase
COMMAND_PHASE_FAILED: CommandPhase
COMMAND_PHASE_CANCELLED: CommandPhase
LIFECYCLE_EVENT_UNSPECIFIED: LifecycleEvent
LIFECYCLE_EVENT_NODE_READY: LifecycleEvent
LIFECYCLE_EVENT_NODE_DISCONNECTED: LifecycleEvent
LIFECYCLE_EVENT_NODE_DRAINING: LifecycleEvent
LIFECYCLE_EVENT_NODE_RESUMED: LifecycleEvent
LIFECYCLE_EVENT_EDGE_READY: LifecycleEvent
LIFECYCLE_EVENT_EDGE_DRAINING: LifecycleEvent
LIFECYCLE_EVENT_EDGE_RESUMED: LifecycleEvent
LIFECYCLE_EVENT_EDGE_STOPPING: LifecycleEvent
PROJECTION_RESULT_UNSPECIFIED: ProjectionResult
PROJECTION_RESULT_APPLIED: ProjectionResult
PROJECTION_RESULT_HELD: ProjectionResult
PROJECTION_RESULT_REFUSED: ProjectionResult

class EdgeHelloRequest(_message.Message):
    __slots__ = ("edge_id", "protocol_version", "held_generation", "held_digest", "held_receipt", "legacy")
    EDGE_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    HELD_GENERATION_FIELD_NUMBER: _ClassVar[int]
    HELD_DIGEST_FIELD_NUMBER: _ClassVar[int]
    HELD_RECEIPT_FIELD_NUMBER: _ClassVar[int]
    LEGACY_FIELD_NUMBER: _ClassVar[int]
    edge_id: str
    protocol_version: int
    held_generation: int
    held_digest: bytes
    held_receipt: ProjectionReceipt
    legacy: bool
    def __init__(self, edge_id: _Optional[str] = ..., protocol_version: _Optional[int] = ..., held_generation: _Optional[int] = ..., held_digest: _Optional[bytes] = ..., held_receipt: _Optional[_Union[ProjectionReceipt, _Mapping[str, object]]] = ..., legacy: _Optional[bool] = ...) -> None: ...

class EdgeHelloResponse(_message.Message):
    __slots__ = ("accepted", "code", "message", "deployment_id", "projection", "receipt")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    code: str
    message: str
    deployment_id: str
    projection: PrincipalProjection
    receipt: ProjectionReceipt
    def __init__(self, accepted: _Optional[bool] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., deployment_id: _Optional[str] = ..., projection: _Optional[_Union[PrincipalProjection, _Mapping[str, object]]] = ..., receipt: _Optional[_Union[ProjectionReceipt, _Mapping[str, object]]] = ...) -> None: ...

class EdgeReadyRequest(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: ProjectionOutcome
    def __init__(self, outcome: _Optional[_Union[ProjectionOutcome, _Mapping[str, object]]] = ...) -> None: ...

class EdgeReadyResponse(_message.Message):
    __slots__ = ("accepted", "code", "message")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    code: str
    message: str
    def __init__(self, accepted: _Optional[bool] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class EdgeStatusRequest(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: str
    def __init__(self, after: _Optional[str] = ...) -> None: ...

class EdgeStatusResponse(_message.Message):
    __slots__ = ("edge_id", "generation", "nodes", "more", "event_sequence", "draining")
    EDGE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    EVENT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    edge_id: str
    generation: int
    nodes: _containers.RepeatedCompositeFieldContainer[EdgeNodeSnapshot]
    more: bool
    event_sequence: int
    draining: bool
    def __init__(self, edge_id: _Optional[str] = ..., generation: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[EdgeNodeSnapshot, _Mapping[str, object]]]] = ..., more: _Optional[bool] = ..., event_sequence: _Optional[int] = ..., draining: _Optional[bool] = ...) -> None: ...

class EdgeNodeSnapshot(_message.Message):
    __slots__ = ("node_id", "connected", "config", "provider_snapshots")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    connected: bool
    config: EdgeNodeConfig
    provider_snapshots: _containers.RepeatedCompositeFieldContainer[_runtime_pb2.ProviderSnapshot]
    def __init__(self, node_id: _Optional[str] = ..., connected: _Optional[bool] = ..., config: _Optional[_Union[EdgeNodeConfig, _Mapping[str, object]]] = ..., provider_snapshots: _Optional[_Iterable[_Union[_runtime_pb2.ProviderSnapshot, _Mapping[str, object]]]] = ...) -> None: ...

class EdgeNodeConfig(_message.Message):
    __slots__ = ("providers",)
    PROVIDERS_FIELD_NUMBER: _ClassVar[int]
    providers: _containers.RepeatedCompositeFieldContainer[EdgeProviderConfig]
    def __init__(self, providers: _Optional[_Iterable[_Union[EdgeProviderConfig, _Mapping[str, object]]]] = ...) -> None: ...

class EdgeProviderConfig(_message.Message):
    __slots__ = ("provider_id", "category", "profile", "target", "models", "capacity", "long_context_capacity")
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    LONG_CONTEXT_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    provider_id: str
    category: _runtime_pb2.ProviderCategory
    profile: str
    target: str
    models: int
    capacity: int
    long_context_capacity: int
    def __init__(self, provider_id: _Optional[str] = ..., category: _Optional[_Union[_runtime_pb2.ProviderCategory, str]] = ..., profile: _Optional[str] = ..., target: _Optional[str] = ..., models: _Optional[int] = ..., capacity: _Optional[int] = ..., long_context_capacity: _Optional[int] = ...) -> None: ...

class EdgeCommandRequest(_message.Message):
    __slots__ = ("command_id", "operation", "target_selector", "metadata")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    TARGET_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    operation: str
    target_selector: str
    metadata: _containers.RepeatedCompositeFieldContainer[CommandMetadata]
    def __init__(self, command_id: _Optional[str] = ..., operation: _Optional[str] = ..., target_selector: _Optional[str] = ..., metadata: _Optional[_Iterable[_Union[CommandMetadata, _Mapping[str, object]]]] = ...) -> None: ...

class CommandMetadata(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class EdgeCommandResponse(_message.Message):
    __slots__ = ("accepted", "code", "message", "state")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    code: str
    message: str
    state: EdgeCommandEvent
    def __init__(self, accepted: _Optional[bool] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., state: _Optional[_Union[EdgeCommandEvent, _Mapping[str, object]]] = ...) -> None: ...

class EdgeCommandEvent(_message.Message):
    __slots__ = ("command_id", "operation", "phase", "done", "total", "code", "message", "at_ms")
    COMMAND_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    command_id: str
    operation: str
    phase: CommandPhase
    done: int
    total: int
    code: str
    message: str
    at_ms: int
    def __init__(self, command_id: _Optional[str] = ..., operation: _Optional[str] = ..., phase: _Optional[_Union[CommandPhase, str]] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., at_ms: _Optional[int] = ...) -> None: ...

class EdgeNodeEvent(_message.Message):
    __slots__ = ("sequence", "event", "node_id", "at_ms", "code")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    event: LifecycleEvent
    node_id: str
    at_ms: int
    code: str
    def __init__(self, sequence: _Optional[int] = ..., event: _Optional[_Union[LifecycleEvent, str]] = ..., node_id: _Optional[str] = ..., at_ms: _Optional[int] = ..., code: _Optional[str] = ...) -> None: ...

class PrincipalProjection(_message.Message):
    __slots__ = ("generation", "digest", "tokens", "routes", "next_bucket")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    NEXT_BUCKET_FIELD_NUMBER: _ClassVar[int]
    generation: int
    digest: bytes
    tokens: _containers.RepeatedCompositeFieldContainer[ProjectedToken]
    routes: _containers.RepeatedCompositeFieldContainer[ProjectedRoute]
    next_bucket: int
    def __init__(self, generation: _Optional[int] = ..., digest: _Optional[bytes] = ..., tokens: _Optional[_Iterable[_Union[ProjectedToken, _Mapping[str, object]]]] = ..., routes: _Optional[_Iterable[_Union[ProjectedRoute, _Mapping[str, object]]]] = ..., next_bucket: _Optional[int] = ...) -> None: ...

class ProjectionPageRequest(_message.Message):
    __slots__ = ("generation", "bucket")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    generation: int
    bucket: int
    def __init__(self, generation: _Optional[int] = ..., bucket: _Optional[int] = ...) -> None: ...

class ProjectionPageResponse(_message.Message):
    __slots__ = ("kept", "tokens", "routes", "next_bucket")
    KEPT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    NEXT_BUCKET_FIELD_NUMBER: _ClassVar[int]
    kept: bool
    tokens: _containers.RepeatedCompositeFieldContainer[ProjectedToken]
    routes: _containers.RepeatedCompositeFieldContainer[ProjectedRoute]
    next_bucket: int
    def __init__(self, kept: _Optional[bool] = ..., tokens: _Optional[_Iterable[_Union[ProjectedToken, _Mapping[str, object]]]] = ..., routes: _Optional[_Iterable[_Union[ProjectedRoute, _Mapping[str, object]]]] = ..., next_bucket: _Optional[int] = ...) -> None: ...

class ProjectionDelta(_message.Message):
    __slots__ = ("base_generation", "generation", "digest", "removed_tokens", "removed_routes", "tokens", "routes")
    BASE_GENERATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    REMOVED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_ROUTES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROUTES_FIELD_NUMBER: _ClassVar[int]
    base_generation: int
    generation: int
    digest: bytes
    removed_tokens: _containers.RepeatedScalarFieldContainer[str]
    removed_routes: _containers.RepeatedScalarFieldContainer[str]
    tokens: _containers.RepeatedCompositeFieldContainer[ProjectedToken]
    routes: _containers.RepeatedCompositeFieldContainer[ProjectedRoute]
    def __init__(self, base_generation: _Optional[int] = ..., generation: _Optional[int] = ..., digest: _Optional[bytes] = ..., removed_tokens: _Optional[_Iterable[str]] = ..., removed_routes: _Optional[_Iterable[str]] = ..., tokens: _Optional[_Iterable[_Union[ProjectedToken, _Mapping[str, object]]]] = ..., routes: _Optional[_Iterable[_Union[ProjectedRoute, _Mapping[str, object]]]] = ...) -> None: ...

class ProjectedToken(_message.Message):
    __slots__ = ("token_id", "principal", "digest", "expires_ms")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    principal: str
    digest: bytes
    expires_ms: int
    def __init__(self, token_id: _Optional[str] = ..., principal: _Optional[str] = ..., digest: _Optional[bytes] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class ProjectedRoute(_message.Message):
    __slots__ = ("route", "principal", "slot", "profile", "target", "model", "upstream_model", "selector", "credential_revision", "route_revision")
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_MODEL_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_REVISION_FIELD_NUMBER: _ClassVar[int]
    ROUTE_REVISION_FIELD_NUMBER: _ClassVar[int]
    route: str
    principal: str
    slot: str
    profile: str
    target: str
    model: str
    upstream_model: str
    selector: str
    credential_revision: int
    route_revision: int
    def __init__(self, route: _Optional[str] = ..., principal: _Optional[str] = ..., slot: _Optional[str] = ..., profile: _Optional[str] = ..., target: _Optional[str] = ..., model: _Optional[str] = ..., upstream_model: _Optional[str] = ..., selector: _Optional[str] = ..., credential_revision: _Optional[int] = ..., route_revision: _Optional[int] = ...) -> None: ...

class ProjectionReceiptStatement(_message.Message):
    __slots__ = ("issuer_key_id", "deployment_id", "edge", "generation", "digest")
    ISSUER_KEY_ID_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    issuer_key_id: bytes
    deployment_id: str
    edge: str
    generation: int
    digest: bytes
    def __init__(self, issuer_key_id: _Optional[bytes] = ..., deployment_id: _Optional[str] = ..., edge: _Optional[str] = ..., generation: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class ProjectionReceipt(_message.Message):
    __slots__ = ("statement", "signature")
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    statement: bytes
    signature: bytes
    def __init__(self, statement: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class ProjectionOutcome(_message.Message):
    __slots__ = ("result", "generation", "digest", "code", "unconfirmed")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    UNCONFIRMED_FIELD_NUMBER: _ClassVar[int]
    result: ProjectionResult
    generation: int
    digest: bytes
    code: str
    unconfirmed: int
    def __init__(self, result: _Optional[_Union[ProjectionResult, str]] = ..., generation: _Optional[int] = ..., digest: _Optional[bytes] = ..., code: _Optional[str] = ..., unconfirmed: _Optional[int] = ...) -> None: ...

class PrincipalProjectionApplyRequest(_message.Message):
    __slots__ = ("projection", "delta", "receipt")
    PROJECTION_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    projection: PrincipalProjection
    delta: ProjectionDelta
    receipt: ProjectionReceipt
    def __init__(self, projection: _Optional[_Union[PrincipalProjection, _Mapping[str, object]]] = ..., delta: _Optional[_Union[ProjectionDelta, _Mapping[str, object]]] = ..., receipt: _Optional[_Union[ProjectionReceipt, _Mapping[str, object]]] = ...) -> None: ...

class PrincipalProjectionApplyResponse(_message.Message):
    __slots__ = ("outcome",)
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    outcome: ProjectionOutcome
    def __init__(self, outcome: _Optional[_Union[ProjectionOutcome, _Mapping[str, object]]] = ...) -> None: ...

class AcquireLeaseRequest(_message.Message):
    __slots__ = ("request_id", "binding", "token_id", "token_proof", "recipient_public_key", "attestation")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_PROOF_FIELD_NUMBER: _ClassVar[int]
    RECIPIENT_PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    ATTESTATION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    binding: _runtime_pb2.Binding
    token_id: str
    token_proof: bytes
    recipient_public_key: bytes
    attestation: _runtime_pb2.NodeKeyAttestation
    def __init__(self, request_id: _Optional[str] = ..., binding: _Optional[_Union[_runtime_pb2.Binding, _Mapping[str, object]]] = ..., token_id: _Optional[str] = ..., token_proof: _Optional[bytes] = ..., recipient_public_key: _Optional[bytes] = ..., attestation: _Optional[_Union[_runtime_pb2.NodeKeyAttestation, _Mapping[str, object]]] = ...) -> None: ...

class AcquireLeaseResponse(_message.Message):
    __slots__ = ("lease", "refusal")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    lease: _runtime_pb2.SealedLease
    refusal: LeaseRefusal
    def __init__(self, lease: _Optional[_Union[_runtime_pb2.SealedLease, _Mapping[str, object]]] = ..., refusal: _Optional[_Union[LeaseRefusal, _Mapping[str, object]]] = ...) -> None: ...

class LeaseRefusal(_message.Message):
    __slots__ = ("code", "message", "retryable", "generation")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    retryable: bool
    generation: int
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retryable: _Optional[bool] = ..., generation: _Optional[int] = ...) -> None: ...

class ControlEnvelope(_message.Message):
    __slots__ = ("correlation_id", "ping", "pong", "edge_hello_request", "edge_hello_response", "edge_ready_request", "edge_ready_response", "edge_status_request", "edge_status_response", "edge_command_request", "edge_command_response", "edge_command_event", "edge_node_event", "principal_projection_apply_request", "principal_projection_apply_response", "acquire_lease_request", "acquire_lease_response", "projection_page_request", "projection_page_response")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    EDGE_HELLO_REQUEST_FIELD_NUMBER: _ClassVar[int]
    EDGE_HELLO_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    EDGE_READY_REQUEST_FIELD_NUMBER: _ClassVar[int]
    EDGE_READY_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    EDGE_STATUS_REQUEST_FIELD_NUMBER: _ClassVar[int]
    EDGE_STATUS_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    EDGE_COMMAND_REQUEST_FIELD_NUMBER: _ClassVar[int]
    EDGE_COMMAND_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    EDGE_COMMAND_EVENT_FIELD_NUMBER: _ClassVar[int]
    EDGE_NODE_EVENT_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_PROJECTION_APPLY_REQUEST_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_PROJECTION_APPLY_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_LEASE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_LEASE_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_PAGE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_PAGE_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    ping: _runtime_pb2.Ping
    pong: _runtime_pb2.Pong
    edge_hello_request: EdgeHelloRequest
    edge_hello_response: EdgeHelloResponse
    edge_ready_request: EdgeReadyRequest
    edge_ready_response: EdgeReadyResponse
    edge_status_request: EdgeStatusRequest
    edge_status_response: EdgeStatusResponse
    edge_command_request: EdgeCommandRequest
    edge_command_response: EdgeCommandResponse
    edge_command_event: EdgeCommandEvent
    edge_node_event: EdgeNodeEvent
    principal_projection_apply_request: PrincipalProjectionApplyRequest
    principal_projection_apply_response: PrincipalProjectionApplyResponse
    acquire_lease_request: AcquireLeaseRequest
    acquire_lease_response: AcquireLeaseResponse
    projection_page_request: ProjectionPageRequest
    projection_page_response: ProjectionPageResponse
    def __init__(self, correlation_id: _Optional[int] = ..., ping: _Optional[_Union[_runtime_pb2.Ping, _Mapping[str, object]]] = ..., pong: _Optional[_Union[_runtime_pb2.Pong, _Mapping[str, object]]] = ..., edge_hello_request: _Optional[_Union[EdgeHelloRequest, _Mapping[str, object]]] = ..., edge_hello_response: _Optional[_Union[EdgeHelloResponse, _Mapping[str, object]]] = ..., edge_ready_request: _Optional[_Union[EdgeReadyRequest, _Mapping[str, object]]] = ..., edge_ready_response: _Optional[_Union[EdgeReadyResponse, _Mapping[str, object]]] = ..., edge_status_request: _Optional[_Union[EdgeStatusRequest, _Mapping[str, object]]] = ..., edge_status_response: _Optional[_Union[EdgeStatusResponse, _Mapping[str, object]]] = ..., edge_command_request: _Optional[_Union[EdgeCommandRequest, _Mapping[str, object]]] = ..., edge_command_response: _Optional[_Union[EdgeCommandResponse, _Mapping[str, object]]] = ..., edge_command_event: _Optional[_Union[EdgeCommandEvent, _Mapping[str, object]]] = ..., edge_node_event: _Optional[_Union[EdgeNodeEvent, _Mapping[str, object]]] = ..., principal_projection_apply_request: _Optional[_Union[PrincipalProjectionApplyRequest, _Mapping[str, object]]] = ..., principal_projection_apply_response: _Optional[_Union[PrincipalProjectionApplyResponse, _Mapping[str, object]]] = ..., acquire_lease_request: _Optional[_Union[AcquireLeaseRequest, _Mapping[str, object]]] = ..., acquire_lease_response: _Optional[_Union[AcquireLeaseResponse, _Mapping[str, object]]] = ..., projection_page_request: _Optional[_Union[ProjectionPageRequest, _Mapping[str, object]]] = ..., projection_page_response: _Optional[_Union[ProjectionPageResponse, _Mapping[str, object]]] = ...) -> None: ...
