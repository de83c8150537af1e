//! On whose behalf an upstream is called.

use std::sync::Arc;

use super::pinned::Pinned;
use countersign_domain::principal::Principal;
use countersign_protocol::{capabilities::ClientCapabilities, params::LoggingLevel};

/// On whose behalf a request goes to an upstream.
#[derive(Clone, Debug)]
pub struct Caller {
    pub principal: Arc<Principal>,
    /// The id of the client's handshake-era session, which `isolation: session` gives a link of its own; `None` for
    /// stateless clients and for the Executor.
    pub session: Option<Arc<str>>,
    /// What the client can be asked for, after the configuration's `sampling` and `elicitation`.
    pub capabilities: ClientCapabilities,
    /// The client is stateless: what it is asked for is parked (2026-07-28/basic/patterns/mrtr).
    pub stateless: bool,
    /// The least severe log messages that it wants; `None` for none at all.
    pub log_level: Option<LoggingLevel>,
    /// Where its requests go among the links that it may use.
    pub pinned: Pinned,
}
