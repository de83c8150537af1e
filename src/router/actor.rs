//! The Router actor.

use std::sync::Arc;

use actix::{Actor, Addr, Context, Handler, Message, MessageResult};
use serde_json::Value;

use super::{
    subscribers::{ListenFilter, ListenSink, Subscribers},
    table::{Aliases, Published, RouteError, RouteTable},
};
use crate::{
    policy::Policy,
    protocol::{RequestId, encode},
    providers::{Provider, ProviderEvent},
    session::{Channel, Registry, SessionShared},
};

/// The only writer of routing state. Lives on an arbiter of its own.
pub struct Router {
    published: Arc<Published>,
    policy: Policy,
    aliases: Aliases,
    pending_schema: Value,
    registry: Arc<Registry>,
    subscribers: Subscribers,
}

impl Router {
    #[must_use]
    pub fn new(
        published: Arc<Published>,
        policy: Policy,
        aliases: Aliases,
        pending_schema: Value,
        registry: Arc<Registry>,
    ) -> Self {
        Self { published, policy, aliases, pending_schema, registry, subscribers: Subscribers::default() }
    }

    /// The same providers offer other things. A table that cannot be built leaves the old one in force.
    fn rebuild(&mut self) {
        let old = self.published.load_full();
        let built =
            RouteTable::build(old.generation + 1, old.providers(), &self.policy, &self.aliases, &self.pending_schema);
        match built {
            Ok(table) => self.published.store(Arc::new(table)),
            Err(error) => tracing::error!(%error, "what the providers offer now cannot be routed"),
        }
    }

    fn resource_list_changed(&mut self) {
        let message = encode::notification("notifications/resources/list_changed", None);
        self.registry.for_each(|session| {
            if session.is_initialized()
                && session.legacy_revision().is_some()
                && !matches!(session.channel, Channel::None)
            {
                session.send_unsolicited(message.clone());
            }
        });
        self.subscribers.resource_list_changed();
    }
}

impl Actor for Router {
    type Context = Context<Self>;
}

/// Sent at start and whenever providers come or go: builds a table, publishes it, and follows their events.
/// Fails without any effect when the table cannot be built.
#[derive(Message)]
#[rtype(result = "Result<(), RouteError>")]
pub struct PublishProviders(pub Vec<Arc<dyn Provider>>);

impl Handler<PublishProviders> for Router {
    type Result = Result<(), RouteError>;

    fn handle(&mut self, PublishProviders(providers): PublishProviders, ctx: &mut Self::Context) -> Self::Result {
        let generation = self.published.load().generation + 1;
        let table = RouteTable::build(generation, &providers, &self.policy, &self.aliases, &self.pending_schema)?;
        self.published.store(Arc::new(table));
        for provider in providers {
            follow(&provider, actix::AsyncContext::address(ctx));
        }
        Ok(())
    }
}

/// Sent when a reviewer accepted or revoked definitions: the same providers, ruled upon anew.
#[derive(Message)]
#[rtype(result = "Result<(), RouteError>")]
pub struct RuleAnew;

impl Handler<RuleAnew> for Router {
    type Result = Result<(), RouteError>;

    fn handle(&mut self, _: RuleAnew, _: &mut Self::Context) -> Self::Result {
        let old = self.published.load_full();
        let generation = old.generation + 1;
        let table = RouteTable::build(generation, old.providers(), &self.policy, &self.aliases, &self.pending_schema)?;
        self.published.store(Arc::new(table));
        Ok(())
    }
}

/// Sent when the configuration changed while the gateway runs: the table of the same providers under another policy and
/// other further names. Fails without any effect when the table cannot be built.
#[derive(Message)]
#[rtype(result = "Result<(), RouteError>")]
pub struct Reconfigure {
    pub policy: Policy,
    pub aliases: Aliases,
}

impl Handler<Reconfigure> for Router {
    type Result = Result<(), RouteError>;

    fn handle(&mut self, Reconfigure { policy, aliases }: Reconfigure, _: &mut Self::Context) -> Self::Result {
        // What reviewers said of definitions holds under any policy.
        let policy = policy.with_pins(self.policy.pin_source());
        let before = self.published.load();
        let providers = before.providers();
        let table = RouteTable::build(before.generation + 1, providers, &policy, &aliases, &self.pending_schema)?;
        self.published.store(Arc::new(table));
        (self.policy, self.aliases) = (policy, aliases);
        Ok(())
    }
}

/// Forwards a provider's events one at a time, so that a burst waits in the provider's own bounded channel.
fn follow(provider: &Arc<dyn Provider>, router: Addr<Router>) {
    let mut events = provider.events();
    let name = provider.name().to_owned();
    actix::spawn(async move {
        use tokio::sync::broadcast::error::RecvError;
        loop {
            let event = match events.recv().await {
                Ok(event) => event,
                Err(RecvError::Lagged(missed)) => {
                    tracing::warn!(provider = %name, missed, "events lost, clients are told to list again");
                    ProviderEvent::ResourceListChanged
                }
                Err(RecvError::Closed) => break,
            };
            if router.send(ProviderMoved(event)).await.is_err() {
                break;
            }
        }
    });
}

/// Sent by the forwarder of a provider's events.
#[derive(Message)]
#[rtype(result = "()")]
struct ProviderMoved(ProviderEvent);

impl Handler<ProviderMoved> for Router {
    type Result = ();

    fn handle(&mut self, ProviderMoved(event): ProviderMoved, _: &mut Self::Context) {
        match event {
            ProviderEvent::ResourcesUpdated(uris) => uris.iter().for_each(|uri| self.subscribers.updated(uri)),
            ProviderEvent::ResourceListChanged => self.resource_list_changed(),
            ProviderEvent::ToolListChanged | ProviderEvent::PromptListChanged => self.rebuild(),
        }
    }
}

/// Sent by a session for `resources/subscribe`; the answer goes out once it is in force.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Subscribe {
    pub session: Arc<SessionShared>,
    pub uri: String,
}

impl Handler<Subscribe> for Router {
    type Result = ();

    fn handle(&mut self, Subscribe { session, uri }: Subscribe, _: &mut Self::Context) {
        self.subscribers.subscribe(&session, uri);
    }
}

/// Sent by a session for `resources/unsubscribe`.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Unsubscribe {
    pub session: String,
    pub uri: String,
}

impl Handler<Unsubscribe> for Router {
    type Result = ();

    fn handle(&mut self, Unsubscribe { session, uri }: Unsubscribe, _: &mut Self::Context) {
        self.subscribers.unsubscribe(&session, &uri);
    }
}

/// Sent by a session that ended while it had subscriptions: they go.
#[derive(Message)]
#[rtype(result = "()")]
pub struct SessionClosed {
    pub session: String,
    pub uris: Vec<String>,
}

impl Handler<SessionClosed> for Router {
    type Result = ();

    fn handle(&mut self, SessionClosed { session, uris }: SessionClosed, _: &mut Self::Context) {
        for uri in uris {
            self.subscribers.unsubscribe(&session, &uri);
        }
    }
}

/// Sent for `subscriptions/listen`: acknowledges it through `sink` and gives the key to end it with.
#[derive(Message)]
#[rtype(u64)]
pub struct Listen {
    pub id: RequestId,
    pub filter: ListenFilter,
    pub sink: ListenSink,
}

impl Handler<Listen> for Router {
    type Result = MessageResult<Listen>;

    fn handle(&mut self, Listen { id, filter, sink }: Listen, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.subscribers.listen(id, filter, sink))
    }
}

/// Sent when a `subscriptions/listen` request ended.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Unlisten(pub u64);

impl Handler<Unlisten> for Router {
    type Result = ();

    fn handle(&mut self, Unlisten(key): Unlisten, _: &mut Self::Context) {
        self.subscribers.unlisten(key);
    }
}
