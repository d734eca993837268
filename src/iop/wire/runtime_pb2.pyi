from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProviderCategory(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROVIDER_CATEGORY_UNSPECIFIED: _ClassVar[ProviderCategory]
    PROVIDER_CATEGORY_CLI: _ClassVar[ProviderCategory]
    PROVIDER_CATEGORY_API: _ClassVar[ProviderCategory]
    PROVIDER_CATEGORY_LOCAL_INFERENCE: _ClassVar[ProviderCategory]

class ProviderStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROVIDER_STATUS_UNSPECIFIED: _ClassVar[ProviderStatus]
    PROVIDER_STATUS_AVAILABLE: _ClassVar[ProviderStatus]
    PROVIDER_STATUS_UNAVAILABLE: _ClassVar[ProviderStatus]

class ProviderHealth(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROVIDER_HEALTH_UNSPECIFIED: _ClassVar[ProviderHealth]
    PROVIDER_HEALTH_HEALTHY: _ClassVar[ProviderHealth]
    PROVIDER_HEALTH_OFFLINE: _ClassVar[ProviderHealth]
    PROVIDER_HEALTH_UNREACHABLE: _ClassVar[ProviderHealth]
PROVIDER_CATEGORY_UNSPECIFIED: ProviderCategory
PROVIDER_CATEGORY_CLI: ProviderCategory
PROVIDER_CATEGORY_API: ProviderCategory
PROVIDER_CATEGORY_LOCAL_INFERENCE: ProviderCategory
PROVIDER_STATUS_UNSPECIFIED: ProviderStatus
PROVIDER_STATUS_AVAILABLE: ProviderStatus
PROVIDER_STATUS_UNAVAILABLE: ProviderStatus
PROVIDER_HEALTH_UNSPECIFIED: ProviderHealth
PROVIDER_HEALTH_HEALTHY: ProviderHealth
PROVIDER_HEALTH_OFFLINE: ProviderHealth
PROVIDER_HEALTH_UNREACHABLE: ProviderHealth

class Binding(_message.Message):
    __slots__ = ("principal", "route", "slot", "profile", "target", "node", "credential_revision", "route_revision", "generation")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_REVISION_FIELD_NUMBER: _ClassVar[int]
    ROUTE_REVISION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    principal: str
    route: str
    slot: str
    profile: str
    target: str
    node: str
    credential_revision: int
    route_revision: int
    generation: int
    def __init__(self, principal: _Optional[str] = ..., route: _Optional[str] = ..., slot: _Optional[str] = ..., profile: _Optional[str] = ..., target: _Optional[str] = ..., node: _Optional[str] = ..., credential_revision: _Optional[int] = ..., route_revision: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class LeaseStatement(_message.Message):
    __slots__ = ("lease_id", "issuer_key_id", "deployment_id", "trust_domain", "edge", "binding", "token_id", "not_before_ms", "expires_ms", "recipient_public_key")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    ISSUER_KEY_ID_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_ID_FIELD_NUMBER: _ClassVar[int]
    TRUST_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    NOT_BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    RECIPIENT_PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    issuer_key_id: bytes
    deployment_id: str
    trust_domain: str
    edge: str
    binding: Binding
    token_id: str
    not_before_ms: int
    expires_ms: int
    recipient_public_key: bytes
    def __init__(self, lease_id: _Optional[str] = ..., issuer_key_id: _Optional[bytes] = ..., deployment_id: _Optional[str] = ..., trust_domain: _Optional[str] = ..., edge: _Optional[str] = ..., binding: _Optional[_Union[Binding, _Mapping[str, object]]] = ..., token_id: _Optional[str] = ..., not_before_ms: _Optional[int] = ..., expires_ms: _Optional[int] = ..., recipient_public_key: _Optional[bytes] = ...) -> None: ...

class SealedLease(_message.Message):
    __slots__ = ("statement", "box", "signature")
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    BOX_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    statement: bytes
    box: bytes
    signature: bytes
    def __init__(self, statement: _Optional[bytes] = ..., box: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class NodeKeyStatement(_message.Message):
    __slots__ = ("trust_domain", "edge", "node", "public_key", "expires_ms")
    TRUST_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    trust_domain: str
    edge: str
    node: str
    public_key: bytes
    expires_ms: int
    def __init__(self, trust_domain: _Optional[str] = ..., edge: _Optional[str] = ..., node: _Optional[str] = ..., public_key: _Optional[bytes] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class NodeKeyAttestation(_message.Message):
    __slots__ = ("certificate_chain", "statement", "signature")
    CERTIFICATE_CHAIN_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    certificate_chain: _containers.RepeatedScalarFieldContainer[bytes]
    statement: bytes
    signature: bytes
    def __init__(self, certificate_chain: _Optional[_Iterable[bytes]] = ..., statement: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class ProviderSnapshot(_message.Message):
    __slots__ = ("provider_id", "category", "status", "health", "capacity", "in_flight", "queued", "long_context_capacity", "long_in_flight", "long_queued")
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HEALTH_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    LONG_CONTEXT_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    LONG_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    LONG_QUEUED_FIELD_NUMBER: _ClassVar[int]
    provider_id: str
    category: ProviderCategory
    status: ProviderStatus
    health: ProviderHealth
    capacity: int
    in_flight: int
    queued: int
    long_context_capacity: int
    long_in_flight: int
    long_queued: int
    def __init__(self, provider_id: _Optional[str] = ..., category: _Optional[_Union[ProviderCategory, str]] = ..., status: _Optional[_Union[ProviderStatus, str]] = ..., health: _Optional[_Union[ProviderHealth, str]] = ..., capacity: _Optional[int] = ..., in_flight: _Optional[int] = ..., queued: _Optional[int] = ..., long_context_capacity: _Optional[int] = ..., long_in_flight: _Optional[int] = ..., long_queued: _Optional[int] = ...) -> None: ...

class NodeHelloRequest(_message.Message):
    __slots__ = ("node_id", "protocol_version")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    protocol_version: int
    def __init__(self, node_id: _Optional[str] = ..., protocol_version: _Optional[int] = ...) -> None: ...

class NodeHelloResponse(_message.Message):
    __slots__ = ("accepted", "code", "message", "edge_id", "config")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EDGE_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    code: str
    message: str
    edge_id: str
    config: NodeConfig
    def __init__(self, accepted: _Optional[bool] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., edge_id: _Optional[str] = ..., config: _Optional[_Union[NodeConfig, _Mapping[str, object]]] = ...) -> None: ...

class NodeConfig(_message.Message):
    __slots__ = ("providers",)
    PROVIDERS_FIELD_NUMBER: _ClassVar[int]
    providers: _containers.RepeatedCompositeFieldContainer[NodeProvider]
    def __init__(self, providers: _Optional[_Iterable[_Union[NodeProvider, _Mapping[str, object]]]] = ...) -> None: ...

class NodeProvider(_message.Message):
    __slots__ = ("provider_id", "category", "profile", "target", "models", "capacity", "long_context_capacity")
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    LONG_CONTEXT_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    provider_id: str
    category: ProviderCategory
    profile: str
    target: str
    models: _containers.RepeatedScalarFieldContainer[str]
    capacity: int
    long_context_capacity: int
    def __init__(self, provider_id: _Optional[str] = ..., category: _Optional[_Union[ProviderCategory, str]] = ..., profile: _Optional[str] = ..., target: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., capacity: _Optional[int] = ..., long_context_capacity: _Optional[int] = ...) -> None: ...

class NodeKeyOfferRequest(_message.Message):
    __slots__ = ("public_key", "attestation")
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    ATTESTATION_FIELD_NUMBER: _ClassVar[int]
    public_key: bytes
    attestation: NodeKeyAttestation
    def __init__(self, public_key: _Optional[bytes] = ..., attestation: _Optional[_Union[NodeKeyAttestation, _Mapping[str, object]]] = ...) -> None: ...

class NodeKeyOfferResponse(_message.Message):
    __slots__ = ("accepted", "code", "message", "sealed_challenge")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SEALED_CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    code: str
    message: str
    sealed_challenge: bytes
    def __init__(self, accepted: _Optional[bool] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., sealed_challenge: _Optional[bytes] = ...) -> None: ...

class NodeKeyProofRequest(_message.Message):
    __slots__ = ("public_key", "answer")
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    public_key: bytes
    answer: bytes
    def __init__(self, public_key: _Optional[bytes] = ..., answer: _Optional[bytes] = ...) -> None: ...

class NodeKeyProofResponse(_message.Message):
    __slots__ = ("accepted", "code", "message")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    code: str
    message: str
    def __init__(self, accepted: _Optional[bool] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class NodeReadyRequest(_message.Message):
    __slots__ = ("served", "refused")
    SERVED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    served: _containers.RepeatedScalarFieldContainer[str]
    refused: _containers.RepeatedCompositeFieldContainer[NodeProviderRefusal]
    def __init__(self, served: _Optional[_Iterable[str]] = ..., refused: _Optional[_Iterable[_Union[NodeProviderRefusal, _Mapping[str, object]]]] = ...) -> None: ...

class NodeProviderRefusal(_message.Message):
    __slots__ = ("provider_id", "code")
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    provider_id: str
    code: str
    def __init__(self, provider_id: _Optional[str] = ..., code: _Optional[str] = ...) -> None: ...

class NodeReadyResponse(_message.Message):
    __slots__ = ("accepted", "code", "message")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    code: str
    message: str
    def __init__(self, accepted: _Optional[bool] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class HeaderField(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class RunRequest(_message.Message):
    __slots__ = ("run", "request_id", "lease", "binding", "token_id", "provider_id", "method", "path", "headers", "body_length", "window")
    RUN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    BINDING_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_LENGTH_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    run: int
    request_id: str
    lease: SealedLease
    binding: Binding
    token_id: str
    provider_id: str
    method: str
    path: str
    headers: _containers.RepeatedCompositeFieldContainer[HeaderField]
    body_length: int
    window: int
    def __init__(self, run: _Optional[int] = ..., request_id: _Optional[str] = ..., lease: _Optional[_Union[SealedLease, _Mapping[str, object]]] = ..., binding: _Optional[_Union[Binding, _Mapping[str, object]]] = ..., token_id: _Optional[str] = ..., provider_id: _Optional[str] = ..., method: _Optional[str] = ..., path: _Optional[str] = ..., headers: _Optional[_Iterable[_Union[HeaderField, _Mapping[str, object]]]] = ..., body_length: _Optional[int] = ..., window: _Optional[int] = ...) -> None: ...

class RunBody(_message.Message):
    __slots__ = ("run", "data", "last")
    RUN_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    run: int
    data: bytes
    last: bool
    def __init__(self, run: _Optional[int] = ..., data: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...

class RunHead(_message.Message):
    __slots__ = ("run", "status", "headers")
    RUN_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    run: int
    status: int
    headers: _containers.RepeatedCompositeFieldContainer[HeaderField]
    def __init__(self, run: _Optional[int] = ..., status: _Optional[int] = ..., headers: _Optional[_Iterable[_Union[HeaderField, _Mapping[str, object]]]] = ...) -> None: ...

class RunCredit(_message.Message):
    __slots__ = ("run", "bytes")
    RUN_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    run: int
    bytes: int
    def __init__(self, run: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class RunCancel(_message.Message):
    __slots__ = ("run", "unless_started")
    RUN_FIELD_NUMBER: _ClassVar[int]
    UNLESS_STARTED_FIELD_NUMBER: _ClassVar[int]
    run: int
    unless_started: bool
    def __init__(self, run: _Optional[int] = ..., unless_started: _Optional[bool] = ...) -> None: ...

class RunStarted(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: int
    def __init__(self, run: _Optional[int] = ...) -> None: ...

class RunFailed(_message.Message):
    __slots__ = ("run", "code", "message", "started")
    RUN_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    run: int
    code: str
    message: str
    started: bool
    def __init__(self, run: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., started: _Optional[bool] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class RuntimeEnvelope(_message.Message):
    __slots__ = ("correlation_id", "ping", "pong", "node_hello_request", "node_hello_response", "node_key_offer_request", "node_key_offer_response", "node_key_proof_request", "node_key_proof_response", "node_ready_request", "node_ready_response", "run_request", "run_body", "run_head", "run_credit", "run_cancel", "run_failed", "run_started")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    NODE_HELLO_REQUEST_FIELD_NUMBER: _ClassVar[int]
    NODE_HELLO_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    NODE_KEY_OFFER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    NODE_KEY_OFFER_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    NODE_KEY_PROOF_REQUEST_FIELD_NUMBER: _ClassVar[int]
    NODE_KEY_PROOF_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    NODE_READY_REQUEST_FIELD_NUMBER: _ClassVar[int]
    NODE_READY_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    RUN_REQUEST_FIELD_NUMBER: _ClassVar[int]
    RUN_BODY_FIELD_NUMBER: _ClassVar[int]
    RUN_HEAD_FIELD_NUMBER: _ClassVar[int]
    RUN_CREDIT_FIELD_NUMBER: _ClassVar[int]
    RUN_CANCEL_FIELD_NUMBER: _ClassVar[int]
    RUN_FAILED_FIELD_NUMBER: _ClassVar[int]
    RUN_STARTED_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    ping: Ping
    pong: Pong
    node_hello_request: NodeHelloRequest
    node_hello_response: NodeHelloResponse
    node_key_offer_request: NodeKeyOfferRequest
    node_key_offer_response: NodeKeyOfferResponse
    node_key_proof_request: NodeKeyProofRequest
    node_key_proof_response: NodeKeyProofResponse
    node_ready_request: NodeReadyRequest
    node_ready_response: NodeReadyResponse
    run_request: RunRequest
    run_body: RunBody
    run_head: RunHead
    run_credit: RunCredit
    run_cancel: RunCancel
    run_failed: RunFailed
    run_started: RunStarted
    def __init__(self, correlation_id: _Optional[int] = ..., ping: _Optional[_Union[Ping, _Mapping[str, object]]] = ..., pong: _Optional[_Union[Pong, _Mapping[str, object]]] = ..., node_hello_request: _Optional[_Union[NodeHelloRequest, _Mapping[str, object]]] = ..., node_hello_response: _Optional[_Union[NodeHelloResponse, _Mapping[str, object]]] = ..., node_key_offer_request: _Optional[_Union[NodeKeyOfferRequest, _Mapping[str, object]]] = ..., node_key_offer_response: _Optional[_Union[NodeKeyOfferResponse, _Mapping[str, object]]] = ..., node_key_proof_request: _Optional[_Union[NodeKeyProofRequest, _Mapping[str, object]]] = ..., node_key_proof_response: _Optional[_Union[NodeKeyProofResponse, _Mapping[str, object]]] = ..., node_ready_request: _Optional[_Union[NodeReadyRequest, _Mapping[str, object]]] = ..., node_ready_response: _Optional[_Union[NodeReadyResponse, _Mapping[str, object]]] = ..., run_request: _Optional[_Union[RunRequest, _Mapping[str, object]]] = ..., run_body: _Optional[_Union[RunBody, _Mapping[str, object]]] = ..., run_head: _Optional[_Union[RunHead, _Mapping[str, object]]] = ..., run_credit: _Optional[_Union[RunCredit, _Mapping[str, object]]] = ..., run_cancel: _Optional[_Union[RunCancel, _Mapping[str, object]]] = ..., run_failed: _Optional[_Union[RunFailed, _Mapping[str, object]]] = ..., run_started: _Optional[_Union[RunStarted, _Mapping[str, object]]] = ...) -> None: ...
