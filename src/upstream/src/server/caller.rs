//! The client for which an upstream is called.

use std::sync::Arc;

use super::link_choice::LinkChoice;
use countersign_domain::principal::Principal;
use countersign_protocol::{capabilities::ClientCapabilities, params::LoggingLevel};

/// The client for which a request is sent to an upstream.
#[derive(Clone, Debug)]
pub struct Caller {
    pub principal: Arc<Principal>,
    /// The id of the client's handshake-era session, which gets its own link with `isolation: session`. `None` for
    /// stateless clients and for the Executor.
    pub session: Option<Arc<str>>,
    /// The client's capabilities, reduced by the configured `sampling` and `elicitation`.
    pub capabilities: ClientCapabilities,
    /// The client is stateless, so questions to it are parked (2026-07-28/basic/patterns/mrtr).
    pub stateless: bool,
    /// The minimum severity of log messages that the client wants; `None` for no messages.
    pub log_level: Option<LoggingLevel>,
    /// The choice among the links that the client may use.
    pub link_choice: LinkChoice,
}
