//! What serving HTTP needs besides what sessions do.

use std::{ops::Deref, sync::Arc};

use countersign_domain::principal::{Identity, Principal};
use countersign_exchange::shared::{Channel, SessionShared};
use countersign_http::connections::Connections;
use countersign_protocol::McpError;
use countersign_session::{SessionServices, Sessions};
use countersign_telemetry::metrics::Transport;

/// See the module's page.
pub struct HttpServices {
    pub sessions: Arc<Sessions>,
    pub connections: Arc<Connections>,
}

impl Deref for HttpServices {
    type Target = Sessions;

    fn deref(&self) -> &Sessions {
        &self.sessions
    }
}

impl HttpServices {
    #[must_use]
    pub fn new(sessions: SessionServices, connections: Arc<Connections>) -> Self {
        Self { sessions: Arc::new(Sessions::new(sessions)), connections }
    }
}

impl HttpServices {
    /// Makes room for one more session that clients reach through any node.
    ///
    /// # Errors
    /// As [`Sessions::room_for_session`]; `STORE_UNAVAILABLE` while other nodes may count this one as gone.
    pub fn admit_session(&self, principal: &Principal) -> Result<(), McpError> {
        self.check_lease()?;
        self.room_for_session(principal)
    }

    /// A session of that transport. It is found by its own principal only, so a stranger cannot tell a wrong id from
    /// somebody else's.
    #[must_use]
    pub fn session_of(&self, identity: &Identity, transport: Transport, id: &str) -> Option<Arc<SessionShared>> {
        self.registry.get(id).filter(|shared| {
            shared.transport == transport
                && !matches!(shared.channel, Channel::None)
                && !shared.ended.is_cancelled()
                && shared.principal().name == identity.principal.name
        })
    }
}
