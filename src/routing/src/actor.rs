//! The Router actor.

use std::{collections::HashMap, sync::Arc};

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, MessageResult};
use serde_json::Value;
use tokio::sync::broadcast::Receiver;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    subscribers::{Clients, List, ListenFilter, ListenSink, Ready, Source, Subscribers},
    table::{Aliases, Build, Published, RouteError, RouteTable},
    target::Target,
};
use countersign_domain::{policy::Policy, principal::Principal};
use countersign_protocol::{RequestId, encode};
use countersign_provider::{ProviderEvent, Subscriber};

/// The only writer of routing state. Lives on an arbiter of its own.
pub struct Router {
    published: Arc<Published>,
    policy: Policy,
    aliases: Aliases,
    pending_schema: Arc<Value>,
    clients: Arc<dyn Clients>,
    subscribers: Subscribers,
    /// Each provider whose events are followed, until its entry is dropped.
    followed: HashMap<usize, (Target, DropGuard)>,
    /// A list has changed and the table was not built again yet.
    stale: bool,
}

impl Router {
    #[must_use]
    pub fn new(
        published: Arc<Published>,
        policy: Policy,
        aliases: Aliases,
        pending_schema: Value,
        clients: Arc<dyn Clients>,
    ) -> Self {
        Self {
            published,
            policy,
            aliases,
            pending_schema: Arc::new(pending_schema),
            clients,
            subscribers: Subscribers::default(),
            followed: HashMap::new(),
            stale: false,
        }
    }

    /// Builds a table of these providers, publishes it, and tells clients of the lists that are others now.
    /// A policy that treats principals differently may have changed what one of them is shown without the list being
    /// another, so then the list counts as changed (`ruled_anew`).
    fn publish(&mut self, providers: &[Target], strict: bool, ruled_anew: bool) -> Result<(), RouteError> {
        let old = self.published.load_full();
        let table = Arc::new(RouteTable::of(&Build {
            providers,
            policy: &self.policy,
            aliases: &self.aliases,
            pending: &self.pending_schema,
            previous: Some(&old),
            strict,
        })?);
        self.published.store(table.clone());
        old.superseded.cancel();
        self.subscribers.move_sources(|uri| source(&table, uri));
        let varies = old.varies_by_principal() || table.varies_by_principal();
        let refuses = old.refusing_policy().is_some() || table.refusing_policy().is_some();
        if old.generation > 0 {
            for (list, before, after) in [
                (List::Tools, old.versions.tools, table.versions.tools),
                (List::Prompts, old.versions.prompts, table.versions.prompts),
                (List::Resources, old.versions.resources, table.versions.resources),
            ] {
                let shown = if list == List::Tools { varies } else { refuses };
                if before != after || (ruled_anew && shown) {
                    self.list_changed(list);
                }
            }
        }
        Ok(())
    }

    /// To handshake-era clients that are initialized, and to those that listen
    /// (2025-11-25/server/tools#list-changed-notification, 2026-07-28/basic/patterns/subscriptions).
    fn list_changed(&mut self, list: List) {
        let message = encode::notification(list.notification(), None);
        self.clients.tell_all(&message);
        self.subscribers.list_changed(list);
    }
}

/// Whose a resource is, if it is an upstream's.
fn source(table: &RouteTable, uri: &str) -> Option<Source> {
    let provider = table.resource(uri)?;
    let upstream = provider.upstream()?;
    let own = upstream.names.own_uri(uri)?.to_owned();
    Some(Source { upstream: upstream.clone(), own })
}

impl Actor for Router {
    type Context = Context<Self>;
}

/// Sent at start and whenever providers come or go: builds a table, publishes it, and follows their events.
/// Fails without any effect when the table cannot be built, for one because two of them claim one name.
#[derive(Message)]
#[rtype(result = "Result<(), RouteError>")]
pub struct PublishProviders(pub Vec<Target>);

impl Handler<PublishProviders> for Router {
    type Result = Result<(), RouteError>;

    fn handle(&mut self, PublishProviders(providers): PublishProviders, ctx: &mut Self::Context) -> Self::Result {
        // Before the lists are read: what changes from now on is an event.
        let new: Vec<_> = providers
            .iter()
            .filter(|provider| !self.followed.contains_key(&provider.address()))
            .map(|provider| (provider.clone(), provider.events()))
            .collect();
        self.publish(&providers, true, false)?;
        self.stale = false;
        self.followed.retain(|_, (followed, _)| providers.iter().any(|provider| provider.is(followed)));
        for (provider, events) in new {
            let guard = follow(&provider, events, ctx.address());
            self.followed.insert(provider.address(), (provider, guard));
        }
        Ok(())
    }
}

/// Sent when the configuration was read again: another policy and other aliases for the same providers. Names that
/// several claim stay where they are; new claims are judged by [`PublishProviders`], which comes after it.
#[derive(Message)]
#[rtype(result = "Result<(), RouteError>")]
pub struct Reconfigure {
    pub policy: Policy,
    pub aliases: Aliases,
}

impl Handler<Reconfigure> for Router {
    type Result = Result<(), RouteError>;

    fn handle(&mut self, Reconfigure { policy, aliases }: Reconfigure, _: &mut Self::Context) -> Self::Result {
        // What reviewers said holds under any policy.
        let policy = policy.after(&self.policy);
        let old = (std::mem::replace(&mut self.policy, policy), std::mem::replace(&mut self.aliases, aliases));
        let providers = self.published.load().providers().to_vec();
        let built = self.publish(&providers, false, true);
        if built.is_err() {
            (self.policy, self.aliases) = old;
        }
        built
    }
}

/// Sent when a reviewer accepted or revoked definitions: the same providers, ruled upon anew.
#[derive(Message)]
#[rtype(result = "Result<(), RouteError>")]
pub struct RuleAnew;

impl Handler<RuleAnew> for Router {
    type Result = Result<(), RouteError>;

    fn handle(&mut self, _: RuleAnew, _: &mut Self::Context) -> Self::Result {
        let providers = self.published.load().providers().to_vec();
        self.publish(&providers, false, true)
    }
}

/// Sent by the Router to itself when lists of providers have changed, once for all that have changed by then.
#[derive(Message)]
#[rtype(result = "()")]
struct Rebuild;

impl Handler<Rebuild> for Router {
    type Result = ();

    fn handle(&mut self, _: Rebuild, _: &mut Self::Context) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        let providers = self.published.load().providers().to_vec();
        if let Err(error) = self.publish(&providers, false, false) {
            tracing::error!(%error, "the old route table stays");
        }
    }
}

/// Forwards a provider's events one at a time, so that a burst waits in the provider's own bounded channel, until the
/// guard is dropped.
fn follow(provider: &Target, mut events: Receiver<ProviderEvent>, router: Addr<Router>) -> DropGuard {
    use tokio::sync::broadcast::error::RecvError;
    let name = provider.name().to_owned();
    let upstream = provider.upstream().is_some();
    let over = CancellationToken::new();
    let guard = over.clone().drop_guard();
    actix::spawn(over.run_until_cancelled_owned(async move {
        loop {
            let moved = match events.recv().await {
                // The table knows what upstreams list, and tells whether it has changed. A module is asked each time.
                Ok(ProviderEvent::ResourceListChanged) if !upstream => ProviderMoved::LiveListChanged,
                Ok(event) => ProviderMoved::Event(event),
                Err(RecvError::Lagged(missed)) => {
                    tracing::warn!(provider = %name, missed, "events lost, clients are told to list again");
                    ProviderMoved::Lost
                }
                Err(RecvError::Closed) => break,
            };
            if router.send(moved).await.is_err() {
                break;
            }
        }
    }));
    guard
}

/// Sent by the forwarder of a provider's events.
#[derive(Message)]
#[rtype(result = "()")]
enum ProviderMoved {
    Event(ProviderEvent),
    /// A module has other resources.
    LiveListChanged,
    /// Events were missed: anything may have changed.
    Lost,
}

impl Handler<ProviderMoved> for Router {
    type Result = ();

    fn handle(&mut self, moved: ProviderMoved, ctx: &mut Self::Context) {
        let rebuild = match moved {
            ProviderMoved::Event(ProviderEvent::ResourcesUpdated(uris)) => {
                uris.iter().for_each(|uri| self.subscribers.updated(uri, None));
                false
            }
            ProviderMoved::Event(ProviderEvent::PrivateUpdated(updated)) => {
                updated.iter().for_each(|(uri, audience)| self.subscribers.updated(uri, Some(audience)));
                false
            }
            ProviderMoved::LiveListChanged => {
                self.list_changed(List::Resources);
                false
            }
            ProviderMoved::Event(
                ProviderEvent::ToolListChanged | ProviderEvent::PromptListChanged | ProviderEvent::ResourceListChanged,
            ) => true,
            ProviderMoved::Lost => {
                self.list_changed(List::Resources);
                true
            }
        };
        // Several servers often change at once, and then one table is enough.
        if rebuild && !std::mem::replace(&mut self.stale, true) {
            ctx.notify(Rebuild);
        }
    }
}

/// Sent by a session for `resources/subscribe`; the answer goes out once it is in force, which may take an upstream's
/// answer.
#[derive(Message)]
#[rtype(result = "Option<Ready>")]
pub struct Subscribe {
    pub session: Arc<dyn Subscriber>,
    pub uri: String,
}

impl Handler<Subscribe> for Router {
    type Result = MessageResult<Subscribe>;

    fn handle(&mut self, Subscribe { session, uri }: Subscribe, _: &mut Self::Context) -> Self::Result {
        let table = self.published.load();
        MessageResult(self.subscribers.subscribe(&session, uri, |uri| source(&table, uri)))
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

/// Sent for `subscriptions/listen`: gives the key to end it with, and the resources that an upstream must be asked to
/// tell of. [`Acknowledge`] must follow; until then it hears nothing.
#[derive(Message)]
#[rtype(result = "(u64, Vec<(String, Ready)>)")]
pub struct Listen {
    pub id: RequestId,
    /// Who listens: of what not everybody may read, only those hear who may.
    pub principal: Arc<Principal>,
    pub filter: ListenFilter,
    pub sink: ListenSink,
}

impl Handler<Listen> for Router {
    type Result = MessageResult<Listen>;

    fn handle(&mut self, Listen { id, principal, filter, sink }: Listen, _: &mut Self::Context) -> Self::Result {
        let table = self.published.load();
        MessageResult(self.subscribers.listen(id, principal, filter, sink, |uri| source(&table, uri)))
    }
}

/// Sent when what a listener asked for is in force, but for the resources that their servers refused.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Acknowledge {
    pub key: u64,
    pub refused: Vec<String>,
}

impl Handler<Acknowledge> for Router {
    type Result = ();

    fn handle(&mut self, Acknowledge { key, refused }: Acknowledge, _: &mut Self::Context) {
        self.subscribers.acknowledge(key, &refused);
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
