//! The id and the method of a request.
//!
//! An id is stored as the JSON text that was received. A method that is missing from the table below, or that the client's
//! revision does not have, gives `-32601`. The table follows `schema.ts` of each revision; the last three requests are extensions
//! of the gateway.

use std::{
    borrow::Cow,
    fmt,
    hash::{Hash, Hasher},
};

use compact_str::{CompactString, ToCompactString};

use super::{Era, ErrorKind, McpError, Revision, negotiate};

/// A JSON-RPC request id: the raw JSON text of a string or of an integer of any length, echoed byte for byte.
///
/// Two ids are equal if they are the same string or the same integer, whatever escapes a string uses: `"a"` and
/// `"\u0061"` are one id. `1` and `"1"` differ (2026-07-28/basic/index, "Requests").
#[derive(Clone)]
pub struct RequestId {
    raw: CompactString,
    /// `true` if the text has an escape, so that comparing bytes is not enough.
    has_escapes: bool,
}

impl RequestId {
    /// Wraps raw JSON text that the envelope parser has accepted as an id.
    pub fn from_raw(raw: &str) -> Self {
        Self { raw: raw.into(), has_escapes: raw.contains('\\') }
    }

    /// Parses an id from JSON text, which must be one value without surrounding whitespace.
    ///
    /// Returns `None` for null, fractions, exponents, booleans, objects and arrays.
    pub fn from_json(raw: &str) -> Option<Self> {
        is_string_or_integer(raw).then(|| Self::from_raw(raw))
    }

    /// Returns the JSON text of the id, as the client wrote it.
    pub fn as_json(&self) -> &str {
        &self.raw
    }

    /// Returns the raw text with the escapes of a string decoded. Ids with equal canonical texts are equal.
    fn canonical(&self) -> Cow<'_, str> {
        if !self.has_escapes {
            return Cow::Borrowed(&self.raw);
        }
        match serde_json::from_str::<String>(&self.raw) {
            Ok(text) => Cow::Owned(format!("\"{text}\"")),
            Err(_) => Cow::Borrowed(&self.raw),
        }
    }
}

/// Returns `true` if valid JSON text is a string or an integer (no fraction, no exponent).
pub(super) fn is_string_or_integer(raw: &str) -> bool {
    match raw.as_bytes() {
        [b'"', ..] => true,
        [b'-' | b'0'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

impl PartialEq for RequestId {
    fn eq(&self, other: &Self) -> bool {
        if self.has_escapes || other.has_escapes {
            self.canonical() == other.canonical()
        } else {
            self.raw == other.raw
        }
    }
}

impl Eq for RequestId {}

impl Hash for RequestId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.canonical().hash(state);
    }
}

impl From<i64> for RequestId {
    fn from(n: i64) -> Self {
        Self { raw: n.to_compact_string(), has_escapes: false }
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.raw)
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.raw)
    }
}

/// The revisions that have a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Availability {
    All,
    Legacy,
    Modern,
    /// From 2025-11-25: tasks, first experimental and later an extension.
    Since2025Nov,
    /// Only 2025-11-25.
    Only2025Nov,
}

macro_rules! methods {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $availability:ident, $session:literal;)*) => {
        /// A method that the gateway knows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Method { $($(#[$doc])* $variant,)* }

        impl Method {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the method of that name; names are case-sensitive.
            pub fn parse(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }

            /// Returns the name on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            const fn availability(self) -> Availability {
                match self { $(Self::$variant => Availability::$availability,)* }
            }

            /// Returns `true` if a handshake-era client must have an initialized session to send this.
            #[must_use]
            pub const fn needs_session(self) -> bool {
                match self { $(Self::$variant => $session,)* }
            }
        }
    };
}

// The columns: the variant, the name, the revisions that have the method, and `true` if it needs a session.
methods! {
    Initialize = "initialize", Legacy, false;
    Discover = "server/discover", Modern, false;
    Ping = "ping", Legacy, false;
    ToolsList = "tools/list", All, false;
    ToolsCall = "tools/call", All, true;
    ResourcesList = "resources/list", All, true;
    ResourceTemplatesList = "resources/templates/list", All, true;
    ResourcesRead = "resources/read", All, true;
    ResourcesSubscribe = "resources/subscribe", Legacy, true;
    ResourcesUnsubscribe = "resources/unsubscribe", Legacy, true;
    PromptsList = "prompts/list", All, true;
    PromptsGet = "prompts/get", All, true;
    Complete = "completion/complete", All, true;
    SetLevel = "logging/setLevel", Legacy, true;
    Listen = "subscriptions/listen", Modern, false;
    /// 2025-11-25/basic/utilities/tasks, and the extension `io.modelcontextprotocol/tasks`.
    TasksGet = "tasks/get", Since2025Nov, true;
    /// Only in the extension.
    TasksUpdate = "tasks/update", Modern, true;
    TasksCancel = "tasks/cancel", Since2025Nov, true;
    TasksResult = "tasks/result", Only2025Nov, true;
    TasksList = "tasks/list", Only2025Nov, true;
    /// An extension of the gateway: the health of the gateway and its store.
    HealthCheck = "health/check", All, false;
    /// An extension of the gateway: its name, version, revisions and transports.
    ServerInfo = "info/server", All, false;
    /// An extension of the gateway: the counters of `GET /metrics`.
    MetricsGet = "metrics/get", All, false;
    Initialized = "notifications/initialized", Legacy, false;
    RootsListChanged = "notifications/roots/list_changed", Legacy, true;
    Cancelled = "notifications/cancelled", All, false;
    Progress = "notifications/progress", All, true;
    LogMessage = "notifications/message", All, true;
    ToolsListChanged = "notifications/tools/list_changed", All, true;
    PromptsListChanged = "notifications/prompts/list_changed", All, true;
    ResourcesListChanged = "notifications/resources/list_changed", All, true;
    ResourcesUpdated = "notifications/resources/updated", All, true;
    TaskStatus = "notifications/tasks/status", Only2025Nov, true;
    TaskChanged = "notifications/tasks", Modern, false;
    SubscriptionsAcknowledged = "notifications/subscriptions/acknowledged", Modern, false;
}

impl Method {
    /// Returns `true` if `revision` has the method.
    #[must_use]
    pub fn exists_in(self, revision: Revision) -> bool {
        match self.availability() {
            Availability::All => true,
            Availability::Legacy => revision.era() == Era::Legacy,
            Availability::Modern => revision.era() == Era::Modern,
            Availability::Since2025Nov => revision >= Revision::V2025_11_25,
            Availability::Only2025Nov => revision == Revision::V2025_11_25,
        }
    }

    /// Returns `true` if messages with this method are answered.
    #[must_use]
    pub fn is_request(self) -> bool {
        !self.as_str().starts_with("notifications/")
    }

    /// Parses the name of a request that a client of `revision` may send.
    ///
    /// # Errors
    /// `-32601` for a name that is unknown, not part of the revision, or only a notification.
    pub fn parse_request(name: &str, revision: Revision) -> Result<Self, McpError> {
        match Self::parse(name) {
            Some(method) if method.is_request() && method.exists_in(revision) => Ok(method),
            // Only handshake-era clients send `initialize`, and they may show the message to a person.
            Some(Self::Initialize) => {
                Err(method_not_found(name).with("supported", negotiate::supported_versions(None)))
            }
            _ => Err(method_not_found(name)),
        }
    }
}

/// Creates the `-32601` error, which names at most 128 characters of the method.
fn method_not_found(name: &str) -> McpError {
    let shortened: String = name.chars().take(128).collect();
    McpError::new(ErrorKind::MethodNotFound, "Method not found").with("method", shortened)
}

#[cfg(test)]
mod tests;
