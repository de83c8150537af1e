//! The one table of errors that the gateway returns, each with its numeric code, its stable string and its HTTP status.

use std::{
    borrow::Cow,
    ops::{Deref, DerefMut},
};

use serde_json::{Map, Value};

use super::{Era, Revision, redact::redact};

macro_rules! error_table {
    ($($(#[$doc:meta])* $kind:ident = $number:literal, $code:literal, $status:literal;)*) => {
        /// The kinds of errors of requests. The variant determines the JSON-RPC number, `data.code` and the HTTP status.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ErrorKind { $($(#[$doc])* $kind,)* }
        impl ErrorKind {
            pub const ALL: &'static [Self] = &[$(Self::$kind,)*];
            /// Returns the number on the wire, before a revision's exceptions (see [`McpError::number`]).
            #[must_use]
            pub const fn number(self) -> i64 { match self { $(Self::$kind => $number,)* } }
            /// Returns the stable string in `data.code`.
            #[must_use]
            pub const fn code(self) -> &'static str { match self { $(Self::$kind => $code,)* } }
            /// Returns the HTTP status on the plain HTTP and REST endpoints.
            #[must_use]
            pub const fn status(self) -> u16 { match self { $(Self::$kind => $status,)* } }
        }
    };
}

error_table! {
    Parse = -32700, "PARSE_ERROR", 400;
    InvalidRequest = -32600, "INVALID_REQUEST", 400;
    MethodNotFound = -32601, "METHOD_NOT_FOUND", 404;
    InvalidParams = -32602, "INVALID_PARAMS", 400;
    Internal = -32603, "INTERNAL_ERROR", 500;
    /// 2026-07-28/basic/index#error-codes
    HeaderMismatch = -32020, "HEADER_MISMATCH", 400;
    /// 2026-07-28/basic/index#error-codes
    MissingCapability = -32021, "MISSING_CLIENT_CAPABILITY", 400;
    /// 2026-07-28/basic/index#error-codes
    UnsupportedVersion = -32022, "UNSUPPORTED_PROTOCOL_VERSION", 400;
    /// `-32002` in the handshake revisions, `-32602` in 2026-07-28 (2026-07-28/server/resources).
    ResourceNotFound = -32002, "RESOURCE_NOT_FOUND", 404;
    ToolNotFound = -32602, "TOOL_NOT_FOUND", 404;
    PromptNotFound = -32602, "PROMPT_NOT_FOUND", 404;
    ValidationFailed = -32602, "VALIDATION_FAILED", 422;
    Unauthorized = -31001, "UNAUTHORIZED", 401;
    Forbidden = -31002, "FORBIDDEN", 403;
    /// The tool failed. After the status 500, some clients would repeat the call by themselves.
    ToolExecution = -31003, "TOOL_EXECUTION_ERROR", 422;
    ResourceAccessDenied = -31004, "RESOURCE_ACCESS_DENIED", 403;
    NotInitialized = -31005, "NOT_INITIALIZED", 400;
    SessionNotFound = -31006, "SESSION_NOT_FOUND", 404;
    RateLimited = -31007, "RATE_LIMITED", 429;
    Timeout = -31008, "TIMEOUT", 504;
    Overloaded = -31009, "OVERLOADED", 503;
    UpstreamUnavailable = -31010, "UPSTREAM_UNAVAILABLE", 502;
    CircuitOpen = -31011, "CIRCUIT_OPEN", 503;
    PolicyDenied = -31012, "POLICY_DENIED", 403;
    ChangeNotFound = -31013, "CHANGE_NOT_FOUND", 404;
    ChangeNotPending = -31014, "CHANGE_NOT_PENDING", 409;
    ChangeStale = -31015, "CHANGE_STALE", 409;
    ChangeExpired = -31016, "CHANGE_EXPIRED", 409;
    /// The version or digest that a decision was made against is not the current one.
    VersionConflict = -31017, "VERSION_CONFLICT", 409;
    /// A person may not decide on their own call.
    SelfApproval = -31018, "SELF_APPROVAL", 403;
    Cancelled = -31019, "CANCELLED", 499;
    ShuttingDown = -31020, "SHUTTING_DOWN", 503;
    /// The store failed. Unless `data.outcome` is `unknown`, nothing was changed.
    StoreUnavailable = -31021, "STORE_UNAVAILABLE", 503;
    TooLarge = -31022, "TOO_LARGE", 413;
    NotFound = -31023, "NOT_FOUND", 404;
    /// An idempotency key was reused with other arguments.
    IdempotencyConflict = -31024, "IDEMPOTENCY_CONFLICT", 409;
    /// A session cannot be resumed because the missed frames are no longer retained.
    ResumeTooLate = -31025, "RESUME_TOO_LATE", 410;
    /// An upstream returned an error of its own, which is passed through ([`PassthroughError`]).
    UpstreamError = -31026, "UPSTREAM_ERROR", 502;
    /// A request or response of an upstream has no counterpart in the client's revision.
    NotBridgeable = -31027, "NOT_BRIDGEABLE", 502;
    /// An approved change needs an answer from a client that is not connected.
    InputRequired = -31028, "INPUT_REQUIRED", 409;
    /// A server requires OAuth, and the person's account there was never connected or no longer is.
    Authorization = -31029, "AUTHORIZATION", 403;
    /// The rule of the change requires a more recent or stronger sign-in.
    SignInRequired = -31030, "SIGN_IN_REQUIRED", 403;
    /// A reviewer rejected the change.
    ChangeRejected = -31045, "CHANGE_REJECTED", 403;
    /// The rule of the change forbids edits of its arguments.
    EditForbidden = -31040, "EDIT_FORBIDDEN", 403;
    /// The rule of the change requires a preview, and there is none.
    PreviewRequired = -31041, "PREVIEW_REQUIRED", 409;
    /// The rule of the change requires a comment with each decision.
    CommentRequired = -31042, "COMMENT_REQUIRED", 422;
    /// A change whose diff was truncated cannot be approved in bulk.
    Truncated = -31043, "TRUNCATED", 409;
    /// A person has one vote, whichever of their keys they use.
    AlreadyVoted = -31044, "ALREADY_VOTED", 409;
    /// The plan of a step has stopped.
    PlanStopped = -31056, "PLAN_STOPPED", 409;
    /// A call about documents names no project, and its session has no active project.
    ProjectNotActive = -31046, "PROJECT_NOT_ACTIVE", 409;
    /// A project, branch or root is not configured, not checked out or not active.
    ProjectMismatch = -31047, "TENANT_MISMATCH", 403;
    DocumentNotFound = -31048, "DOCUMENT_NOT_FOUND", 404;
    InvalidDocType = -31049, "INVALID_DOC_TYPE", 422;
    /// The front matter of a document violates the schema of its type.
    SchemaValidationFailed = -31050, "SCHEMA_VALIDATION_FAILED", 422;
    /// The embedding model did not answer, or its answer held no embeddings.
    EmbeddingFailed = -31051, "EMBEDDING_FAILED", 502;
    ExternalDocsNotConfigured = -31052, "EXTERNAL_DOCS_NOT_CONFIGURED", 404;
    ExternalDocsNotPromotable = -31053, "EXTERNAL_DOCS_NOT_PROMOTABLE", 403;
    /// A file of a project could not be read or written.
    FileSystem = -31054, "FILE_SYSTEM_ERROR", 500;
    /// The preview of a call showed that it must fail, so nobody was asked to approve it.
    CallMustFail = -31055, "CALL_MUST_FAIL", 422;
}

impl ErrorKind {
    /// Returns `true` if the error is unrelated to the content of the call, so that a retry may succeed.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        matches!(
            self,
            Self::Timeout
                | Self::Overloaded
                | Self::RateLimited
                | Self::UpstreamUnavailable
                | Self::CircuitOpen
                | Self::Cancelled
                | Self::ShuttingDown
                | Self::StoreUnavailable
                | Self::Authorization
                | Self::Internal
        )
    }
}

/// An error as a client sees it. Details for the log are logged where the error occurs.
///
/// The error is a single pointer, because nearly every result on the path of a call can hold an error but hardly any does.
#[derive(Clone, Debug, PartialEq)]
pub struct McpError(Box<ErrorBody>);

/// The content of a [`McpError`].
#[derive(Clone, Debug, PartialEq)]
pub struct ErrorBody {
    pub kind: ErrorKind,
    pub message: Cow<'static, str>,
    /// Members of `data` in addition to `code`.
    pub data: Map<String, Value>,
    /// The error of another server. Its code and data are sent instead of those of `kind` and `data`.
    pub passthrough: Option<PassthroughError>,
}

impl Deref for McpError {
    type Target = ErrorBody;

    fn deref(&self) -> &ErrorBody {
        &self.0
    }
}

impl DerefMut for McpError {
    fn deref_mut(&mut self) -> &mut ErrorBody {
        &mut self.0
    }
}

/// The code and data of an error that an upstream returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassthroughError {
    pub code: i64,
    /// JSON text on one line, otherwise unchanged.
    pub data: Option<Box<str>>,
}

impl McpError {
    /// Creates an error of the gateway. The message may quote another server; configured secrets in it are masked.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        let message = match message.into() {
            Cow::Owned(text) => match redact(&text) {
                Cow::Owned(masked) => masked.into(),
                Cow::Borrowed(_) => text.into(),
            },
            literal @ Cow::Borrowed(_) => literal,
        };
        Self::from_parts(kind, message)
    }

    /// Creates the error in a cold function, which keeps error paths out of the fast path of successful calls.
    #[cold]
    #[inline(never)]
    fn from_parts(kind: ErrorKind, message: Cow<'static, str>) -> Self {
        Self(Box::new(ErrorBody { kind, message, data: Map::new(), passthrough: None }))
    }

    /// Creates an error that passes an upstream's error through unchanged. The gateway counts the error as `kind`. `data` is
    /// JSON text.
    pub fn from_upstream(
        kind: ErrorKind,
        code: i64,
        message: impl Into<Cow<'static, str>>,
        data: Option<&str>,
    ) -> Self {
        // Raw line breaks occur only between tokens, and a message is one line.
        let data = data.map(|data| data.replace(['\n', '\r'], " ").into_boxed_str());
        let mut error = Self::from_parts(kind, message.into());
        error.passthrough = Some(PassthroughError { code, data });
        error
    }

    /// Creates `SHUTTING_DOWN`, which clients may answer with the same request after a second.
    pub fn shutting_down() -> Self {
        Self::new(ErrorKind::ShuttingDown, "the gateway is shutting down").with("retryAfter", 1)
    }

    /// Creates `VALIDATION_FAILED` with the list `details.errors`, whose items hold a JSON pointer, the violated rule
    /// and a message. `details` of an error is always an object.
    pub fn validation_failed(message: impl Into<Cow<'static, str>>, errors: Vec<Value>) -> Self {
        Self::new(ErrorKind::ValidationFailed, message).with("details", serde_json::json!({ "errors": errors }))
    }

    /// Creates `INVALID_PARAMS` about a member.
    pub(crate) fn invalid_param(member: &str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidParams, message).with("member", member)
    }

    /// Creates the error for a duplicate member, which two readers could resolve differently.
    pub(crate) fn repeated_member(member: &str) -> Self {
        Self::invalid_param(member, format!("`{member}` is given more than once"))
    }

    /// Adds a member to `data`.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.data.insert(key.to_owned(), value.into());
        self
    }

    /// Returns the `WWW-Authenticate` header of an HTTP response with this error (RFC 6750, section 3), if another
    /// credential could help. Its parameters come from `data`: `tokenError` if the client sent a token, the required `scope`, and
    /// `details` of the required sign-in.
    pub fn challenge(&self) -> Option<Cow<'static, str>> {
        let text = |member: &str| self.data.get(member).and_then(Value::as_str);
        match (self.kind, text("tokenError"), text("scope")) {
            (ErrorKind::Unauthorized, Some(code), _) => Some(format!(r#"Bearer error="{code}""#).into()),
            (ErrorKind::Unauthorized, None, _) => Some("Bearer".into()),
            (ErrorKind::Forbidden, _, Some(scope)) => {
                Some(format!(r#"Bearer error="insufficient_scope", scope="{scope}""#).into())
            }
            (ErrorKind::SignInRequired, Some(code), _) => Some(self.sign_in_challenge(code).into()),
            _ => None,
        }
    }

    /// Returns the challenge that asks for a token from a newer or stronger sign-in (RFC 9470, section 3).
    fn sign_in_challenge(&self, code: &str) -> String {
        let details = |member: &str| self.data.get("details").and_then(|details| details.get(member));
        let max_age = details("maxAge").and_then(Value::as_u64);
        // Another character would end the quoted text, or cannot be sent in a header.
        let is_quotable = |value: &&str| value.bytes().all(|b| matches!(b, b'!'..=b'~') && !matches!(b, b'"' | b'\\'));
        let acr = details("acr").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let acr: Vec<&str> = acr.filter(is_quotable).collect();
        let mut challenge = format!(r#"Bearer error="{code}""#);
        if let Some(max_age) = max_age {
            challenge.push_str(&format!(r#", max_age="{max_age}""#));
        }
        if !acr.is_empty() {
            challenge.push_str(&format!(r#", acr_values="{}""#, acr.join(" ")));
        }
        challenge
    }

    /// Returns the number on the wire in `revision`.
    pub fn number(&self, revision: Revision) -> i64 {
        if let Some(foreign) = &self.passthrough {
            let is_defined = foreign.code == self.kind.number();
            return if is_defined { foreign.code } else { code_for_client(foreign.code, revision) };
        }
        match self.kind {
            ErrorKind::ResourceNotFound => revision.rules().resource_not_found,
            kind => kind.number(),
        }
    }

    /// Returns the `data` member: `code` first, then the added members.
    pub fn data(&self) -> Value {
        let added = self.data.iter().filter(|(key, _)| *key != "code").map(|(key, value)| (key.clone(), value.clone()));
        std::iter::once(("code".to_owned(), self.kind.code().into())).chain(added).collect()
    }
}

/// Returns the code with which an error of an upstream reaches a client. The stateless era reserves some codes for meanings that
/// they do not have here (2026-07-28/basic/index#error-codes).
pub fn code_for_client(code: i64, client: Revision) -> i64 {
    let is_reserved = matches!(code, -32099..=-32020 | -32002);
    if is_reserved && client.era() == Era::Modern { ErrorKind::Internal.number() } else { code }
}

impl std::fmt::Display for McpError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.kind.code(), self.message)
    }
}

impl std::error::Error for McpError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_codes_of_upstreams_are_replaced_in_stateless_era() {
        let number = |code: i64, revision| {
            McpError::from_upstream(ErrorKind::UpstreamError, code, "theirs", None).number(revision)
        };
        for code in [-32002, -32042, -32020, -32022, -32023, -32099] {
            assert_eq!((number(code, Revision::MODERN), number(code, Revision::V2025_11_25)), (-32603, code));
        }
        for code in [-32603, -32602, -32000, -32019, -32100, -1, 4711] {
            assert_eq!(number(code, Revision::MODERN), code);
        }
        let missing = McpError::from_upstream(ErrorKind::MissingCapability, -32021, "theirs", None);
        assert_eq!(missing.number(Revision::MODERN), -32021);
    }

    #[test]
    fn own_errors_mask_secrets_and_upstream_errors_do_not() {
        crate::redact::register_secrets(["error-secret-1".to_owned()]);
        let message = || "bad key: Bearer error-secret-1".to_owned();
        assert_eq!(McpError::new(ErrorKind::UpstreamUnavailable, message()).message, "bad key: Bearer [secret]");
        assert_eq!(McpError::from_upstream(ErrorKind::UpstreamError, -1, message(), None).message, message());
    }
}
