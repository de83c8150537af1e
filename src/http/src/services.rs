//! What serving HTTP needs besides what sessions do.

use std::{ops::Deref, sync::Arc};

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::{
    rest::{ProviderInfo, ProvidersView, SessionsView},
    transports::connections::Connections,
};
use countersign_attach::{Users, proof::Secret};
use countersign_auth::Identity;
use countersign_domain::principal::Principal;
use countersign_exchange::shared::{Channel, SessionShared};
use countersign_provider::{CallContext, NoProgress};
use countersign_routing::Target;
use countersign_session::{SessionServices, Sessions, services::SessionInfo};
use countersign_telemetry::metrics::Transport;

/// See the module's page.
pub struct HttpServices {
    pub sessions: Arc<Sessions>,
    pub connections: Arc<Connections>,
    /// What the terminal knows this gateway by.
    pub proof: Option<Secret>,
}

impl Deref for HttpServices {
    type Target = Sessions;

    fn deref(&self) -> &Sessions {
        &self.sessions
    }
}

impl HttpServices {
    #[must_use]
    pub fn new(sessions: SessionServices, users: Users) -> Self {
        let connections = Connections::new(&sessions.config.transports, Arc::clone(&sessions.state.inflow), users);
        Self { sessions: Arc::new(Sessions::new(sessions)), connections: Arc::new(connections), proof: Secret::new() }
    }
}

impl HttpServices {
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

impl SessionsView for HttpServices {
    fn sessions(&self) -> Vec<SessionInfo> {
        self.sessions.sessions()
    }
}

impl ProvidersView for HttpServices {
    fn providers(&self) -> BoxFuture<'_, Vec<ProviderInfo>> {
        Box::pin(self.provider_infos())
    }
}

impl HttpServices {
    async fn provider_infos(&self) -> Vec<ProviderInfo> {
        let table = self.routes.load_full();
        let count =
            |provider: &Target| table.tools().iter().filter(|route| route.provider.name() == provider.name()).count();
        let context = CallContext {
            principal: Arc::new(Principal::local_agent()),
            cancel: CancellationToken::new(),
            progress: Arc::new(NoProgress),
            change_id: None,
            inquirer: None,
        };
        let mut infos = Vec::new();
        for provider in table.providers() {
            let resources = self.in_time(provider.resources(&context)).await;
            let upstream = provider.upstream().map(|upstream| upstream.status());
            infos.push(ProviderInfo {
                name: provider.name().to_owned(),
                kind: if upstream.is_some() { "upstream" } else { "module" },
                status: match &upstream {
                    Some(upstream) => upstream.status,
                    None if resources.is_ok() => "up",
                    None => "down",
                },
                upstream,
                tools: count(provider),
                resources: resources.map_or(0, |r| r.len()),
                prompts: provider.prompts().len(),
                warnings: table.warnings(provider.name()),
            });
        }
        infos
    }
}
