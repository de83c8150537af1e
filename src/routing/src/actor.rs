//! The Router actor.

use std::{collections::HashMap, sync::Arc};

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, MessageResult};
use serde_json::Value;
use tokio::sync::broadcast::Receiver;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    subscribers::{Clients, Listener, Subscribers, WatchReady},
    table::{Aliases, PublishedTable, RouteError, RouteTable, RouteTarget, TableInputs, ruling::find_refusal},
};
use countersign_domain::{
    policy::{Policy, Requester, Subject},
    principal::Principal,
};
use countersign_protocol::encode;
use countersign_provider::{Audience, List, ProviderEvent, Subscriber};
use countersign_upstream::Upstream;

/// The only writer of routing state. It runs on its own arbiter.
pub struct Router {
    published: Arc<PublishedTable>,
    policy: Policy,
    aliases: Aliases,
    pending_schema: Arc<Value>,
    clients: Arc<dyn Clients>,
    subscribers: Subscribers,
    /// The providers whose events are forwarded. Dropping the guard stops the forwarder.
    event_forwarders: HashMap<usize, (RouteTarget, DropGuard)>,
    /// `true` while a rebuild of the table is queued, because a list has changed.
    rebuild_pending: bool,
}

impl Router {
    pub fn new(
        published: Arc<PublishedTable>,
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
            event_forwarders: HashMap::new(),
            rebuild_pending: false,
        }
    }

    /// Builds and publishes a table of these providers, and notifies clients of changed lists. `rulings_changed` is `true` if
    /// rulings may have changed. An unchanged list may then look different to some principals, so it counts as changed if the
    /// policy distinguishes principals.
    fn publish_table(
        &mut self,
        providers: &[RouteTarget],
        strict: bool,
        rulings_changed: bool,
    ) -> Result<(), RouteError> {
        let old = self.published.load_full();
        let table = Arc::new(RouteTable::build(&TableInputs {
            providers,
            policy: &self.policy,
            aliases: &self.aliases,
            pending_schema: &self.pending_schema,
            previous: Some(&old),
            strict,
        })?);
        self.published.store(table.clone());
        old.superseded.cancel();
        self.subscribers.move_sources(|uri| table.upstream_resource(uri));
        let varies_by_principal = old.varies_by_principal || table.varies_by_principal;
        let may_refuse = old.refusing_policy().is_some() || table.refusing_policy().is_some();
        if old.generation > 0 {
            let (old_lists, lists) = (old.fingerprints, table.fingerprints);
            for (list, before, after) in [
                (List::Tools, old_lists.tools, lists.tools),
                (List::Prompts, old_lists.prompts, lists.prompts),
                (List::Resources, old_lists.resources, lists.resources),
            ] {
                let depends_on_principal = if list == List::Tools { varies_by_principal } else { may_refuse };
                if before != after || (rulings_changed && depends_on_principal) {
                    self.notify_list_changed(list, &|_| true);
                }
            }
        }
        Ok(())
    }

    /// Notifies initialized handshake-era clients and listeners of a changed list, if their principals are concerned
    /// (2025-11-25/server/tools#list-changed-notification, 2026-07-28/basic/patterns/subscriptions).
    fn notify_list_changed(&mut self, list: List, is_concerned: &dyn Fn(&Principal) -> bool) {
        let message = encode::notification(list.notification(), None);
        self.clients.broadcast(&message, is_concerned);
        self.subscribers.notify_list_changed(list, is_concerned);
    }

    /// Notifies the subscribers of an updated resource that may read it now, whatever the policy said when they subscribed.
    fn notify_updated(&mut self, uri: &str, audience: Option<&Audience>) {
        let table = self.published.load();
        let Some(policy) = table.refusing_policy().filter(|policy| !policy.simulates()) else {
            return self.subscribers.notify_updated(uri, audience, None);
        };
        // Nobody can read a resource without a provider.
        let (provider, subject) = (table.provider_for_uri(uri), Subject::Resource(uri));
        let may_read = |requester: &Requester<'_>| {
            provider.as_ref().is_some_and(|provider| find_refusal(policy, provider, subject, requester).is_none())
        };
        self.subscribers.notify_updated(uri, audience, Some(&may_read));
    }
}

impl Actor for Router {
    type Context = Context<Self>;
}

/// Sent at start and whenever providers are added or removed: builds and publishes a table, and forwards the providers' events.
/// Fails without any effect if the table cannot be built, for example because two providers claim one name.
#[derive(Message)]
#[rtype(result = "Result<(), RouteError>")]
pub struct PublishProviders {
    pub providers: Vec<RouteTarget>,
    /// `true` if a new conflict of names is an error ([`TableInputs::strict`]).
    pub strict: bool,
}

impl Handler<PublishProviders> for Router {
    type Result = Result<(), RouteError>;

    fn handle(
        &mut self,
        PublishProviders { providers, strict }: PublishProviders,
        ctx: &mut Self::Context,
    ) -> Self::Result {
        // The events are subscribed to before the lists are read, so that no later change is missed.
        let new: Vec<_> = providers
            .iter()
            .filter(|provider| !self.event_forwarders.contains_key(&provider.identity()))
            .map(|provider| (provider.clone(), provider.as_provider().events()))
            .collect();
        self.publish_table(&providers, strict, false)?;
        self.rebuild_pending = false;
        self.event_forwarders
            .retain(|_, (forwarded, _)| providers.iter().any(|provider| provider.is_same_provider(forwarded)));
        for (provider, events) in new {
            let guard = forward_events(&provider, events, ctx.address());
            self.event_forwarders.insert(provider.identity(), (provider, guard));
        }
        Ok(())
    }
}

/// Sent after a reload of the configuration: applies another policy and other aliases to the same providers. Contested names
/// stay with their providers, and a [`PublishProviders`] message that follows does not refuse these conflicts.
#[derive(Message)]
#[rtype(result = "Result<(), RouteError>")]
pub struct Reconfigure {
    pub policy: Policy,
    pub aliases: Aliases,
}

impl Handler<Reconfigure> for Router {
    type Result = Result<(), RouteError>;

    fn handle(&mut self, Reconfigure { policy, aliases }: Reconfigure, _: &mut Self::Context) -> Self::Result {
        // The reviewers' decisions are kept under the new policy.
        let policy = policy.with_sources_of(&self.policy);
        let old = (std::mem::replace(&mut self.policy, policy), std::mem::replace(&mut self.aliases, aliases));
        let providers = self.published.load().providers().to_vec();
        let result = self.publish_table(&providers, false, true);
        if result.is_err() {
            (self.policy, self.aliases) = old;
        }
        result
    }
}

/// Sent when a reviewer accepted or revoked definitions: builds the table again with new rulings.
#[derive(Message)]
#[rtype(result = "Result<(), RouteError>")]
pub struct RefreshRulings;

impl Handler<RefreshRulings> for Router {
    type Result = Result<(), RouteError>;

    fn handle(&mut self, _: RefreshRulings, _: &mut Self::Context) -> Self::Result {
        let providers = self.published.load().providers().to_vec();
        self.publish_table(&providers, false, true)
    }
}

/// Sent by the Router to itself when lists of providers have changed. All changes before the message is handled share one
/// rebuild.
#[derive(Message)]
#[rtype(result = "()")]
struct RebuildTable;

impl Handler<RebuildTable> for Router {
    type Result = ();

    fn handle(&mut self, _: RebuildTable, _: &mut Self::Context) {
        if !std::mem::take(&mut self.rebuild_pending) {
            return;
        }
        let providers = self.published.load().providers().to_vec();
        if let Err(error) = self.publish_table(&providers, false, false) {
            tracing::error!(%error, "the new route table cannot be built; the old one stays in use");
        }
    }
}

/// Forwards a provider's events one at a time, so that a burst waits in the provider's bounded channel. Dropping the
/// guard stops the task.
fn forward_events(provider: &RouteTarget, mut events: Receiver<ProviderEvent>, router: Addr<Router>) -> DropGuard {
    use tokio::sync::broadcast::error::RecvError;
    let (name, upstream) = (provider.name().to_owned(), provider.upstream().cloned());
    let cancelled = CancellationToken::new();
    let guard = cancelled.clone().drop_guard();
    actix::spawn(cancelled.run_until_cancelled_owned(async move {
        loop {
            let forwarded = match events.recv().await {
                Ok(event) => ForwardedEvent::Event(event, upstream.clone()),
                Err(RecvError::Lagged(missed)) => {
                    tracing::warn!(provider = %name, missed, "events of a provider were lost; clients are notified to read the lists again");
                    ForwardedEvent::EventsLost
                }
                Err(RecvError::Closed) => break,
            };
            if router.send(forwarded).await.is_err() {
                break;
            }
        }
    }));
    guard
}

/// An event sent by the forwarder of a provider.
#[derive(Message)]
#[rtype(result = "()")]
enum ForwardedEvent {
    /// An event of a provider, with the provider if it is an upstream.
    Event(ProviderEvent, Option<Arc<Upstream>>),
    /// Events were missed, so anything may have changed.
    EventsLost,
}

impl Handler<ForwardedEvent> for Router {
    type Result = ();

    fn handle(&mut self, forwarded: ForwardedEvent, ctx: &mut Self::Context) {
        match forwarded {
            ForwardedEvent::Event(ProviderEvent::ResourcesUpdated(uris), _) => {
                return uris.iter().for_each(|uri| self.notify_updated(uri, None));
            }
            ForwardedEvent::Event(ProviderEvent::PrivateResourcesUpdated(updated), _) => {
                return updated.iter().for_each(|(uri, audience)| self.notify_updated(uri, Some(audience)));
            }
            ForwardedEvent::Event(ProviderEvent::AccountListChanged { list, holder }, upstream) => {
                let is_concerned = |principal: &Principal| {
                    upstream.as_ref().is_some_and(|upstream| upstream.is_account_of(principal, &holder))
                };
                return self.notify_list_changed(list, &is_concerned);
            }
            // The table contains the lists of upstreams and detects their changes. The resources of modules are read for each
            // request.
            ForwardedEvent::Event(ProviderEvent::ListChanged(List::Resources), None) => {
                return self.notify_list_changed(List::Resources, &|_| true);
            }
            ForwardedEvent::Event(ProviderEvent::ListChanged(_), _) => {}
            ForwardedEvent::EventsLost => {
                List::ALL.into_iter().for_each(|list| self.notify_list_changed(list, &|_| true))
            }
        }
        // Several servers often change at once; one rebuild covers them all.
        if !std::mem::replace(&mut self.rebuild_pending, true) {
            ctx.notify(RebuildTable);
        }
    }
}

/// Sent by a session for `resources/subscribe`. The session answers once the subscription is in force, which may
/// require an upstream's answer.
#[derive(Message)]
#[rtype(result = "Option<WatchReady>")]
pub struct Subscribe {
    pub session: Arc<dyn Subscriber>,
    pub uri: String,
}

impl Handler<Subscribe> for Router {
    type Result = MessageResult<Subscribe>;

    fn handle(&mut self, Subscribe { session, uri }: Subscribe, _: &mut Self::Context) -> Self::Result {
        let table = self.published.load();
        MessageResult(self.subscribers.subscribe(&session, uri, |uri| table.upstream_resource(uri)))
    }
}

/// Sent by a session for `resources/unsubscribe`, and when the session ends with open subscriptions.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Unsubscribe {
    pub session: Arc<str>,
    pub uris: Vec<String>,
}

impl Handler<Unsubscribe> for Router {
    type Result = ();

    fn handle(&mut self, Unsubscribe { session, uris }: Unsubscribe, _: &mut Self::Context) {
        for uri in uris {
            self.subscribers.unsubscribe(&session, &uri);
        }
    }
}

/// Sent for `subscriptions/listen`. Returns the registered listener, and the resources of upstreams with their answers.
/// [`Acknowledge`] must follow, because nothing is sent before it.
#[derive(Message)]
#[rtype(result = "(RegisteredListener, Vec<(String, WatchReady)>)")]
pub struct Listen(pub Listener);

impl Handler<Listen> for Router {
    type Result = MessageResult<Listen>;

    fn handle(&mut self, Listen(listener): Listen, ctx: &mut Self::Context) -> Self::Result {
        let table = self.published.load();
        let (key, resources) = self.subscribers.add_listener(listener, |uri| table.upstream_resource(uri));
        MessageResult((RegisteredListener { router: ctx.address(), key }, resources))
    }
}

/// A listener of the Router, which is removed when this value is dropped. The Router creates the value itself, so that the
/// listener does not remain if the request ends before it receives the answer of [`Listen`].
pub struct RegisteredListener {
    router: Addr<Router>,
    /// The key for [`Acknowledge`].
    pub key: u64,
}

impl Drop for RegisteredListener {
    fn drop(&mut self) {
        self.router.do_send(StopListening(self.key));
    }
}

/// Sent when the subscription is in force. `refused` are the resources that their servers refused to watch.
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

/// Sent by a [`RegisteredListener`] when its `subscriptions/listen` request has ended.
#[derive(Message)]
#[rtype(result = "()")]
struct StopListening(u64);

impl Handler<StopListening> for Router {
    type Result = ();

    fn handle(&mut self, StopListening(key): StopListening, _: &mut Self::Context) {
        self.subscribers.remove_listener(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subscribers::{ListenFilter, ListenSink};
    use bytes::Bytes;
    use countersign_domain::policy::{OwnedRequester, PolicyDefault};
    use countersign_protocol::RequestId;

    struct NoClients;

    impl Clients for NoClients {
        fn broadcast(&self, _: &Bytes, _: &dyn Fn(&Principal) -> bool) {}
    }

    #[actix::test]
    async fn listener_is_removed_if_its_answer_is_dropped() {
        let policy = Policy::new(&PolicyDefault::Allow.into());
        let clients = Arc::new(NoClients);
        let published = Arc::new(PublishedTable::default());
        let router = Router::new(published, policy, Aliases::default(), Value::Null, clients).start();
        let sink: ListenSink = Arc::new(|_| true);
        let remaining_sink = Arc::downgrade(&sink);
        let id = RequestId::from_json("1").unwrap();
        let principal = Arc::new(Principal::local_agent());
        let requester = OwnedRequester { principal, transport: "http", revision: "2026-07-28", client: None };
        let answer = router.send(Listen(Listener::new(id, requester, ListenFilter::default(), sink)));
        // The Router has handled a message once it answers a later one.
        router.send(RefreshRulings).await.unwrap().unwrap();
        assert!(remaining_sink.upgrade().is_some());
        drop(answer);
        router.send(RefreshRulings).await.unwrap().unwrap();
        assert!(remaining_sink.upgrade().is_none());
    }
}
