//! Calls of clients to upstream servers, whatever era either is of.
//!
//! Never asks the policy: a [`Call`] is one that was allowed. No payload passes through a tree of values, and what an
//! upstream sends meanwhile reaches exactly the client whose call it is ([`relay`]). Only what one era has and the
//! other lacks is changed, in [`request`], [`result`] and [`error`].
//!
//! Where an upstream needs input: a handshake-era one asks its handshake-era client ([`asking`]), and a stateless
//! client's call is parked ([`park`]); for a stateless one the call is made again with the answers ([`rounds`]).
//! [`tasks`] takes tasks across, [`response_cache`] answers reads from the cache, [`extension`] passes unknown methods on.

pub mod asking;
pub mod carried;
pub mod content;
pub mod error;
pub mod extension;
pub mod park;
pub mod questions;
pub mod relay;
pub mod request;
pub mod response_cache;
pub mod result;
pub mod rounds;
pub mod seal;
pub mod tasks;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::value::RawValue;

use countersign_config::UpstreamConfig;
use countersign_exchange::{context::Exchange, reply::Reply};
use countersign_protocol::{
    Era, ErrorKind, McpError,
    envelope::Request,
    json::{self, member, members},
    outline::Params,
    param_headers::ParamHeader,
    params::LoggingLevel,
    rpc_error::RpcError,
};
use countersign_provider::ToolResult;
use countersign_upstream::{Caller, Negotiated, Outgoing, Pinned, Response, Upstream, cache::Question};
use relay::Hearer;
use request::{Draft, Speaker, Subject};

/// The log messages that a handshake-era client gets from upstreams if it never set a level.
const DEFAULT_LEVEL: LoggingLevel = LoggingLevel::Info;

/// What is asked of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Tool,
    Prompt,
    Resource,
    Complete,
    /// A request that the gateway does not know; its method is the subject.
    Extension,
}

impl Verb {
    /// `None` for what the gateway has no word for.
    #[must_use]
    pub const fn method(self) -> Option<&'static str> {
        match self {
            Self::Tool => Some("tools/call"),
            Self::Prompt => Some("prompts/get"),
            Self::Resource => Some("resources/read"),
            Self::Complete => Some("completion/complete"),
            Self::Extension => None,
        }
    }
}

/// What the bridge keeps from one request to the next.
pub struct Bridge {
    /// Tasks of upstreams that clients may ask for.
    pub tasks: tasks::Tasks,
    /// Calls that wait for what their stateless clients answer.
    pub parked: Arc<park::ParkedCalls>,
    /// Seals what stateless upstreams have their clients carry.
    pub carrier: carried::Carrier,
}

impl Bridge {
    #[must_use]
    pub fn new(carrier: carried::Carrier) -> Self {
        Self { tasks: tasks::Tasks::default(), parked: park::ParkedCalls::new(), carrier }
    }
}

/// One call of a client, routed to an upstream and allowed.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    pub exchange: &'a Exchange,
    pub bridge: &'a Arc<Bridge>,
    pub upstream: &'a Arc<Upstream>,
    pub verb: Verb,
    /// What is asked for, as the upstream calls it.
    pub subject: Subject<'a>,
    /// The URI that the client named, where it read a resource.
    pub uri: Option<&'a str>,
    /// As the client wrote it.
    pub request: &'a Request<'a>,
    /// A tool's definition as the upstream wrote it.
    pub definition: Option<&'a RawValue>,
    /// Arguments that are mirrored into headers.
    pub headers: &'a [ParamHeader],
    /// It changes nothing: asking twice does no harm.
    pub reads: bool,
}

/// A call with all that is known of both sides.
pub struct Ready<'a> {
    pub call: Call<'a>,
    pub negotiated: Arc<Negotiated>,
    pub caller: Caller,
    params: Params<'a>,
    speaker: Speaker<'a>,
    /// What makes the upstream run the call as a task, where the client cannot say so itself.
    task: Option<(&'static str, &'static str)>,
    /// The client itself wants the call to be a task.
    wants_task: bool,
    /// Its answer may be kept.
    question: Option<Question>,
}

/// Takes a call to its upstream and brings the answer back.
///
/// Not bounded in time here: the upstream's own time-out is, and it stands still while somebody is asked.
///
/// # Errors
/// The upstream's own errors as its client's era has them ([`McpError::foreign`]), those of
/// [`Upstream::call`], and `NOT_BRIDGEABLE`.
pub async fn call(call: Call<'_>) -> Result<Reply, McpError> {
    let mut ready = Ready::new(call)?;
    ready.task = tasks::augmentation(&ready)?;
    if ready.may_be_task() {
        // What is asked about the task later must reach the process that has it.
        ready.caller.pinned = Pinned::noted();
    }
    ready.question = response_cache::question(&ready);
    if let Some(reply) = response_cache::answer(&ready)? {
        return Ok(reply);
    }
    match (ready.negotiated.revision.era(), call.exchange.is_modern()) {
        (Era::Modern, true) => rounds::pass_through(&ready).await,
        (Era::Modern, false) => rounds::gather(&ready).await,
        (Era::Legacy, false) => ready.reply(asking::call(&ready).await?),
        (Era::Legacy, true) => park::call(&ready).await,
    }
}

/// As whom an upstream is called for a client, and whether the configuration keeps something of it back.
fn caller(exchange: &Exchange, config: &UpstreamConfig) -> (Caller, bool) {
    let stateless = exchange.is_modern();
    let (capabilities, less) = questions::capabilities(exchange, config);
    let level =
        if stateless { exchange.log_level } else { Some(exchange.session.log_level().unwrap_or(DEFAULT_LEVEL)) };
    let caller = Caller {
        principal: exchange.identity.principal.clone(),
        session: (!stateless).then(|| Arc::clone(&exchange.session.id)),
        capabilities,
        stateless,
        log_level: level,
        pinned: Pinned::default(),
    };
    (caller, less)
}

/// Subscribes a client to a resource, or ends that, on a connection of its own, where it has one at this upstream:
/// some servers tell only the session that asked, and the gateway's own connection is another. What arrives there
/// counts like what arrives elsewhere. Best effort, since the gateway's own subscription stands anyway.
pub async fn subscribe_own(exchange: &Exchange, upstream: &Arc<Upstream>, own_uri: &str, method: &'static str) {
    let (caller, _) = caller(exchange, &upstream.config);
    if !upstream.keeps_apart(&caller) {
        return;
    }
    let params = serde_json::json!({ "uri": own_uri }).to_string();
    let outgoing = Outgoing::new(upstream.mint(), method, Some(&params));
    let relay = relay::Relay::new(Hearer::of(exchange, None, None), false);
    if let Err(error) = upstream.call(&caller, &outgoing, relay).await {
        tracing::debug!(upstream = %upstream.config.name, %error, method, "not on the client's own connection");
    }
}

impl<'a> Ready<'a> {
    fn new(call: Call<'a>) -> Result<Self, McpError> {
        let config = &call.upstream.config;
        let negotiated = call.upstream.negotiated().ok_or_else(|| {
            McpError::new(ErrorKind::UpstreamUnavailable, format!("{} has not been reached yet", config.name))
                .with("outcome", "not_applied")
        })?;
        let exchange = call.exchange;
        let modern = exchange.is_modern();
        let (caller, less) = caller(exchange, config);
        let params = call.request.object();
        let speaker = Speaker {
            modern,
            info: exchange.facts.client_info.as_deref().unwrap_or(client_info()).into(),
            capabilities: None,
            log_level: caller.log_level,
        };
        countersign_protocol::alike::check(&params)?;
        let wants_task = call.verb == Verb::Tool && tasks::wanted(call.exchange, &params.object);
        let mut ready = Self { call, negotiated, caller, params, speaker, task: None, wants_task, question: None };
        ready.speaker.capabilities = ready.declared(less);
        Ok(ready)
    }

    /// What a stateless upstream is told that the client can do, where that is not what the client itself says.
    fn declared(&self, less: bool) -> Option<std::borrow::Cow<'a, str>> {
        if self.negotiated.revision.era() == Era::Legacy {
            return None;
        }
        let can = &self.caller.capabilities;
        if tasks::speaks_for(self.call.exchange.revision(), &self.negotiated) {
            let capabilities = can.to_json(self.negotiated.revision).to_string();
            return Some(tasks::ask::with_extension(&capabilities).into());
        }
        let facts = &self.call.exchange.facts;
        if *facts.capabilities == *"{}" {
            return (!self.speaker.modern).then_some("{}".into());
        }
        if self.speaker.modern && !less {
            return None;
        }
        Some(can.to_json(self.negotiated.revision).to_string().into())
    }

    /// The request as the upstream gets it, each time under a new id.
    fn outgoing(&self, more: &[(&'static str, &str)]) -> Outgoing {
        let with_task: Vec<_>;
        let more = match self.task {
            None => more,
            Some(task) => {
                with_task = more.iter().copied().chain([task]).collect();
                &with_task
            }
        };
        let revision = self.negotiated.revision;
        if self.call.verb == Verb::Extension && self.call.request.params.is_none() && revision.era() == Era::Legacy {
            // It has none, and gets none.
            return Outgoing::new(self.call.upstream.mint(), self.call.subject.text(), None);
        }
        let draft = Draft {
            method: self.call.verb.method().unwrap_or_else(|| self.call.subject.text()),
            params: self.params,
            subject: self.call.subject,
            speaker: self.speaker.clone(),
            more,
        };
        let mut outgoing = request::for_upstream(self.call.upstream.mint(), revision, &draft);
        outgoing.repeatable = self.call.reads && more.is_empty() && !response_cache::is_retry(&self.params.object);
        if revision.era() == Era::Modern && !self.call.headers.is_empty() {
            let arguments = self.params.object.member("arguments");
            outgoing.headers = countersign_protocol::param_headers::of_call(self.call.headers, arguments);
        }
        outgoing.headers.extend(self.forwarded().cloned());
        outgoing
    }

    /// Headers of the client's own request that the upstream gets.
    fn forwarded(&self) -> impl Iterator<Item = &(Box<str>, Box<str>)> {
        let wanted = &self.call.upstream.config.forward_headers;
        let headers = self.call.exchange.headers.as_deref().map(Vec::as_slice).unwrap_or_default();
        headers.iter().filter(|(name, _)| wanted.iter().any(|wanted| **wanted == **name))
    }

    /// The client's own, a JSON object.
    fn params(&self) -> &str {
        self.params.object.text()
    }

    /// The gateway asked for a task in the client's place.
    fn augmented(&self) -> bool {
        self.task.is_some()
    }

    fn hearer(&self) -> Hearer {
        let token = self.params.meta.and_then(|meta| meta.member(countersign_protocol::params::keys::PROGRESS_TOKEN));
        Hearer::of(self.call.exchange, token, self.caller.log_level)
    }

    /// Between whom a result passes.
    fn dress(&self) -> result::Dress<'_> {
        result::Dress {
            verb: self.call.verb,
            client: self.call.exchange.revision(),
            upstream: &self.negotiated,
            scheme: self.call.upstream.names.scheme(),
            gateway_meta: &self.call.exchange.services.server_meta,
        }
    }

    /// What the client is answered.
    fn reply(&self, response: Response) -> Result<Reply, McpError> {
        let client = self.call.exchange.revision();
        if self.may_be_task()
            && let Response::Result(result) = &response
            && let Some(reply) = tasks::created(self, result)?
        {
            return Ok(reply);
        }
        match response {
            Response::Result(result) => self.dress().reply(result),
            Response::Error(rpc) => {
                if rpc.code == error::URL_ELICITATION_REQUIRED
                    && let Some(reply) = self.urls_required(&rpc)
                {
                    return Ok(reply);
                }
                let shown = self.urls_shown(&rpc)?;
                let rpc = shown.unwrap_or(rpc);
                let eras = (client, self.negotiated.revision);
                let scheme = match self.call.verb {
                    Verb::Extension => "",
                    _ => self.call.upstream.names.scheme(),
                };
                let error = error::for_client(&rpc, self.call.verb, eras, self.call.uri, scheme);
                // No code of its era says so; a result at least reaches the model.
                if error.kind == ErrorKind::NotBridgeable && self.call.verb == Verb::Tool {
                    return Ok(failed(&error));
                }
                Err(error)
            }
        }
    }

    /// A handshake-era upstream wants URLs to be opened before the call is made: for a stateless client that is input
    /// which is needed, and with its retry the call is made for the first time (2025-11-25/client/elicitation).
    fn urls_required(&self, error: &RpcError) -> Option<Reply> {
        let (client, upstream) = (self.call.exchange.revision(), self.negotiated.revision);
        if (upstream.era(), client.era()) != (Era::Legacy, Era::Modern)
            || self.call.verb == Verb::Complete
            || !self.caller.capabilities.elicitation_url
        {
            return None;
        }
        let urls = member(error.data.as_deref()?.get(), "elicitations")?;
        let may = |url: &str| {
            questions::is_url(questions::ELICITATION, Some(url))
                && questions::may_ask(&self.caller.capabilities, questions::ELICITATION, Some(url)).is_ok()
        };
        let server = self.call.upstream.config.name.as_str();
        let urls: Vec<(String, String)> = json::elements(urls)
            .enumerate()
            .filter(|(_, (_, url))| may(url))
            .map(|(at, (_, url))| {
                let name = member(url, "elicitationId").and_then(json::string);
                let name = name.map_or_else(|| format!("url-{}", at + 1), std::borrow::Cow::into_owned);
                let url = questions::attributed(server, questions::ELICITATION, Some(url)).unwrap_or_default();
                (name, json::edit(&url, &[("elicitationId", json::Op::Drop)]))
            })
            .collect();
        if urls.is_empty() {
            return None;
        }
        let requests = urls.iter().map(|(name, url)| (name.as_str(), questions::ELICITATION, Some(url.as_str())));
        Some(Reply::passed_on(park::input_result(requests, None, &self.server_meta())))
    }

    /// The same for a client of the handshake era, which opens the URLs itself: who wants that stands in each.
    ///
    /// # Errors
    /// [`ErrorKind::NotBridgeable`] where one of them is no page of the web.
    fn urls_shown(&self, error: &RpcError) -> Result<Option<RpcError>, McpError> {
        if error.code != error::URL_ELICITATION_REQUIRED {
            return Ok(None);
        }
        let Some(data) = error.data.as_deref().map(RawValue::get) else { return Ok(None) };
        let Some(urls) = member(data, "elicitations") else { return Ok(None) };
        let mut shown = Vec::new();
        for (_, url) in json::elements(urls) {
            if let Err(why) = countersign_upstream::elicitation::address(url) {
                let why =
                    format!("the upstream asks that a page be opened first, and the gateway sends nobody there: {why}");
                return Err(McpError::new(ErrorKind::NotBridgeable, why));
            }
            let url = json::edit(url, &[("mode", json::Op::Set(r#""url""#))]);
            let server = self.call.upstream.config.name.as_str();
            shown.extend(questions::attributed(server, questions::ELICITATION, Some(&url)).map(String::from));
        }
        let data = json::edit(data, &[("elicitations", json::Op::Set(&format!("[{}]", shown.join(","))))]);
        Ok(Some(RpcError { data: RawValue::from_string(data).ok(), ..error.clone() }))
    }

    /// `_meta` of a result that the gateway makes in the upstream's place.
    fn server_meta(&self) -> std::borrow::Cow<'_, str> {
        match &self.negotiated.server_info {
            Some(info) => {
                json::add_members("{}", &[(countersign_protocol::params::keys::SERVER_INFO, info.get())]).into()
            }
            None => self.call.exchange.services.server_meta.as_str().into(),
        }
    }

    /// Whether a result can be a task at all, or has to become one: most calls are spared the look.
    fn may_be_task(&self) -> bool {
        match (self.negotiated.revision.era(), self.speaker.modern) {
            (_, false) => self.wants_task,
            (Era::Legacy, true) => self.augmented(),
            (Era::Modern, true) => self.shares_an_extension(),
        }
    }

    /// Both sides have declared an extension that may have results of its own.
    fn shares_an_extension(&self) -> bool {
        let Some(client) = self.caller.capabilities.extensions.as_deref() else { return false };
        let server = member(self.negotiated.capabilities.get(), "extensions").unwrap_or("{}");
        members(client).any(|extension| members(server).any(|other| other.key == extension.key))
    }
}

/// A tool's result that says what went wrong.
#[must_use]
pub fn failed(error: &McpError) -> Reply {
    let result = ToolResult::error(error);
    let json = format!(r#"{{"content":{},"isError":true}}"#, result.content.get());
    Reply::new(json).failing(Some(error.kind))
}

/// How the gateway names itself to upstreams for clients that do not name themselves.
fn client_info() -> &'static str {
    concat!(r#"{"name":"countersign","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#)
}
