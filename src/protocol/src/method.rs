//! The methods that the gateway knows, and the revisions that have each of them.
//!
//! The dispatcher reads this one table: a method that is missing here, or missing in the client's revision, gives
//! `-32601`. Sources: `schema.ts` of each revision; the last three requests are extensions of the gateway.

use super::{Era, ErrorKind, McpError, Revision, negotiate};

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

/// The direction of a message and whether it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A client sends it, the gateway answers.
    Request,
    /// A client sends it.
    ClientNotification,
    /// The gateway sends it.
    ServerNotification,
    /// Both sides send it.
    Notification,
}

macro_rules! methods {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $kind:ident, $availability:ident, $session:literal;)*) => {
        /// A method that the gateway knows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Method { $($(#[$doc])* $variant,)* }

        impl Method {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the method of that name; names are case-sensitive.
            #[must_use]
            pub fn parse(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }

            /// Returns the name on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            #[must_use]
            pub const fn kind(self) -> Kind {
                match self { $(Self::$variant => Kind::$kind,)* }
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

methods! {
    Initialize = "initialize", Request, Legacy, false;
    Discover = "server/discover", Request, Modern, false;
    Ping = "ping", Request, Legacy, false;
    ToolsList = "tools/list", Request, All, false;
    ToolsCall = "tools/call", Request, All, true;
    ResourcesList = "resources/list", Request, All, true;
    ResourceTemplatesList = "resources/templates/list", Request, All, true;
    ResourcesRead = "resources/read", Request, All, true;
    ResourcesSubscribe = "resources/subscribe", Request, Legacy, true;
    ResourcesUnsubscribe = "resources/unsubscribe", Request, Legacy, true;
    PromptsList = "prompts/list", Request, All, true;
    PromptsGet = "prompts/get", Request, All, true;
    Complete = "completion/complete", Request, All, true;
    SetLevel = "logging/setLevel", Request, Legacy, true;
    Listen = "subscriptions/listen", Request, Modern, false;
    /// 2025-11-25/basic/utilities/tasks, and the extension `io.modelcontextprotocol/tasks`.
    TasksGet = "tasks/get", Request, Since2025Nov, true;
    /// Only in the extension.
    TasksUpdate = "tasks/update", Request, Modern, true;
    TasksCancel = "tasks/cancel", Request, Since2025Nov, true;
    TasksResult = "tasks/result", Request, Only2025Nov, true;
    TasksList = "tasks/list", Request, Only2025Nov, true;
    /// An extension of the gateway: the health of the gateway and its store.
    HealthCheck = "health/check", Request, All, false;
    /// An extension of the gateway: its name, version, revisions and transports.
    ServerInfo = "info/server", Request, All, false;
    /// An extension of the gateway: the counters of `GET /metrics`.
    MetricsGet = "metrics/get", Request, All, false;
    Initialized = "notifications/initialized", ClientNotification, Legacy, false;
    RootsListChanged = "notifications/roots/list_changed", ClientNotification, Legacy, true;
    Cancelled = "notifications/cancelled", Notification, All, false;
    Progress = "notifications/progress", Notification, All, true;
    LogMessage = "notifications/message", ServerNotification, All, true;
    ToolsListChanged = "notifications/tools/list_changed", ServerNotification, All, true;
    PromptsListChanged = "notifications/prompts/list_changed", ServerNotification, All, true;
    ResourcesListChanged = "notifications/resources/list_changed", ServerNotification, All, true;
    ResourcesUpdated = "notifications/resources/updated", ServerNotification, All, true;
    TaskStatus = "notifications/tasks/status", ServerNotification, Only2025Nov, true;
    TaskChanged = "notifications/tasks", ServerNotification, Modern, false;
    SubscriptionsAcknowledged = "notifications/subscriptions/acknowledged", ServerNotification, Modern, false;
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
    pub const fn is_request(self) -> bool {
        matches!(self.kind(), Kind::Request)
    }

    /// Parses the name of a request that a client of `revision` may send.
    ///
    /// # Errors
    /// `-32601` for a name that is unknown, not part of the revision, or only a notification.
    pub fn parse_request(name: &str, revision: Revision) -> Result<Self, McpError> {
        match Self::parse(name) {
            Some(method) if method.is_request() && method.exists_in(revision) => Ok(method),
            // Only handshake-era clients send this, and they may show the message to a person.
            Some(Self::Initialize) => {
                Err(method_not_found(name).with("supported", negotiate::supported_versions(None)))
            }
            _ => Err(method_not_found(name)),
        }
    }

    /// Parses the name of a notification that a client of `revision` may send. Others return `None` and are ignored.
    #[must_use]
    pub fn parse_client_notification(name: &str, revision: Revision) -> Option<Self> {
        Self::parse(name)
            .filter(|m| matches!(m.kind(), Kind::ClientNotification | Kind::Notification) && m.exists_in(revision))
    }
}

/// Creates the `-32601` error, which names at most 128 characters of the method.
#[must_use]
pub fn method_not_found(name: &str) -> McpError {
    let shortened: String = name.chars().take(128).collect();
    McpError::new(ErrorKind::MethodNotFound, "Method not found").with("method", shortened)
}

#[cfg(test)]
mod tests;
