//! The methods that the gateway knows, and in which revisions each exists.
//!
//! One table, read by the dispatcher: a method that is not here, or not in the client's revision, is
//! `-32601`. Sources: `schema.ts` of each revision; the last three requests are our own extensions.

use super::{Era, ErrorKind, McpError, Revision, negotiate};

/// In which revisions a method exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    All,
    Legacy,
    Modern,
    /// From 2025-11-25 on: tasks, first experimental and then an extension.
    Newest,
    /// 2025-11-25 alone.
    LastLegacy,
}

/// How a message with that method is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A client asks, the gateway answers.
    Request,
    /// A client tells the gateway.
    ClientNotification,
    /// The gateway tells a client.
    ServerNotification,
    /// Either tells the other.
    Notification,
}

macro_rules! methods {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $kind:ident, $span:ident, $session:literal;)*) => {
        /// A method that the gateway knows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Method { $($(#[$doc])* $variant,)* }

        impl Method {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The method of that name; names are case-sensitive.
            #[must_use]
            pub fn parse(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }

            /// The name on the wire.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            #[must_use]
            pub const fn kind(self) -> Kind {
                match self { $(Self::$variant => Kind::$kind,)* }
            }

            const fn span(self) -> Span {
                match self { $(Self::$variant => Span::$span,)* }
            }

            /// Whether a handshake-era client must have an initialized session before it may send this.
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
    TasksGet = "tasks/get", Request, Newest, true;
    /// The extension's own.
    TasksUpdate = "tasks/update", Request, Modern, true;
    TasksCancel = "tasks/cancel", Request, Newest, true;
    TasksResult = "tasks/result", Request, LastLegacy, true;
    TasksList = "tasks/list", Request, LastLegacy, true;
    /// Ours: whether the gateway and its store work.
    HealthCheck = "health/check", Request, All, false;
    /// Ours: name, version, revisions, transports.
    ServerInfo = "info/server", Request, All, false;
    /// Ours: the counters of `GET /metrics`.
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
    TaskStatus = "notifications/tasks/status", ServerNotification, LastLegacy, true;
    TaskChanged = "notifications/tasks", ServerNotification, Modern, false;
    SubscriptionsAcknowledged = "notifications/subscriptions/acknowledged", ServerNotification, Modern, false;
}

impl Method {
    /// Whether the method exists in that revision.
    #[must_use]
    pub fn exists_in(self, revision: Revision) -> bool {
        match self.span() {
            Span::All => true,
            Span::Legacy => revision.era() == Era::Legacy,
            Span::Modern => revision.era() == Era::Modern,
            Span::Newest => revision >= Revision::V2025_11_25,
            Span::LastLegacy => revision == Revision::V2025_11_25,
        }
    }

    /// Whether messages with this method are answered.
    #[must_use]
    pub const fn is_request(self) -> bool {
        matches!(self.kind(), Kind::Request)
    }

    /// The request that a client of that revision may send under this name.
    ///
    /// # Errors
    /// `-32601` for a name that does not exist, not in that revision, or only as a notification.
    pub fn parse_request(name: &str, revision: Revision) -> Result<Self, McpError> {
        match Self::parse(name) {
            Some(method) if method.is_request() && method.exists_in(revision) => Ok(method),
            // Nobody but a handshake-era client sends this, and it may show the message to a person.
            Some(Self::Initialize) => {
                Err(method_not_found(name).with("supported", negotiate::supported_versions(None)))
            }
            _ => Err(method_not_found(name)),
        }
    }

    /// The notification that a client of that revision may send under this name; others are ignored.
    #[must_use]
    pub fn parse_client_notification(name: &str, revision: Revision) -> Option<Self> {
        Self::parse(name)
            .filter(|m| matches!(m.kind(), Kind::ClientNotification | Kind::Notification) && m.exists_in(revision))
    }
}

/// `-32601`, naming the method as far as any real one is long.
#[must_use]
pub fn method_not_found(name: &str) -> McpError {
    let shown: String = name.chars().take(128).collect();
    McpError::new(ErrorKind::MethodNotFound, "Method not found").with("method", shown)
}

#[cfg(test)]
mod tests;
