//! A call with all that is known of both sides, and the request that its upstream gets.

use std::sync::Arc;

use super::{Call, caller};
use crate::{
    questions::relay::Hearer,
    tasks,
    translation::{
        request::{self, Draft, Speaker, Verb, client_info},
        result,
    },
};
use countersign_exchange::reply::SERVER_META;
use countersign_protocol::{
    Era, ErrorKind, McpError,
    json::{self, member, members},
    outline::OutlinedParams,
};
use countersign_upstream::{Caller, NegotiatedSession, Outgoing, cache::CacheLookup};

/// A call with all that is known of both sides.
pub struct Ready<'a> {
    pub call: Call<'a>,
    pub negotiated: Arc<NegotiatedSession>,
    pub caller: Caller,
    pub(super) params: OutlinedParams<'a>,
    pub(super) speaker: Speaker<'a>,
    /// The member that makes the upstream run the call as a task, if the client cannot ask for one itself.
    pub(super) task: Option<(&'static str, &'static str)>,
    /// Its answer may be kept.
    pub(super) question: Option<CacheLookup>,
}

impl<'a> Ready<'a> {
    pub(super) fn new(call: Call<'a>) -> Result<Self, McpError> {
        let config = &call.upstream.config;
        let negotiated = call.upstream.negotiated().ok_or_else(|| {
            McpError::new(ErrorKind::UpstreamUnavailable, format!("{} has not been reached yet", config.name))
                .with("outcome", "not_applied")
        })?;
        let exchange = call.exchange;
        let modern = exchange.is_modern();
        let (caller, less) = caller(exchange, config);
        let params = call.request.outlined_params();
        let speaker = Speaker {
            modern,
            info: exchange.facts.client_info.as_deref().unwrap_or(client_info()).into(),
            capabilities: None,
            log_level: caller.log_level,
        };
        countersign_protocol::ambiguous_keys::check(&params)?;
        let mut ready = Self { call, negotiated, caller, params, speaker, task: None, question: None };
        ready.speaker.capabilities = ready.declared(less);
        Ok(ready)
    }

    /// Returns the capabilities that a stateless upstream is told, if they differ from the client's own declaration.
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
    pub(super) fn outgoing(&self, more: &[(&'static str, &str)]) -> Outgoing {
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
            return Outgoing::new(self.call.upstream.next_request_id(), self.call.subject.text(), None);
        }
        let draft = Draft {
            method: self.call.verb.method().unwrap_or_else(|| self.call.subject.text()),
            params: self.params,
            subject: self.call.subject,
            speaker: self.speaker.clone(),
            more,
        };
        let mut outgoing = request::for_upstream(self.call.upstream.next_request_id(), revision, &draft);
        outgoing.repeatable = self.call.reads && more.is_empty() && !self.call.plan.is_retry;
        if revision.era() == Era::Modern && !self.call.headers.is_empty() {
            let arguments = self.params.object.member("arguments");
            outgoing.headers = countersign_protocol::param_headers::for_call(self.call.headers, arguments);
        }
        outgoing.headers.extend(self.forwarded().cloned());
        outgoing
    }

    /// Headers of the client's own request that the upstream gets.
    pub(super) fn forwarded(&self) -> impl Iterator<Item = &(Box<str>, Box<str>)> {
        let wanted = &self.call.upstream.config.forward_headers;
        let headers = self.call.exchange.headers.as_deref().map(Vec::as_slice).unwrap_or_default();
        headers.iter().filter(|(name, _)| wanted.iter().any(|wanted| **wanted == **name))
    }

    /// The client's own, a JSON object.
    pub(super) fn params(&self) -> &str {
        self.params.object.text()
    }

    /// The gateway asked for a task in the client's place.
    pub(super) fn augmented(&self) -> bool {
        self.task.is_some()
    }

    pub(super) fn hearer(&self) -> Hearer {
        let token = self.params.meta.and_then(|meta| meta.member(countersign_protocol::params::keys::PROGRESS_TOKEN));
        Hearer::for_exchange(self.call.exchange, token, self.caller.log_level)
    }

    /// Returns the adapter for results of this call.
    pub(super) fn result_adapter(&self) -> result::ResultAdapter<'_> {
        result::ResultAdapter {
            verb: self.call.verb,
            client: self.call.exchange.revision(),
            upstream: &self.negotiated,
            scheme: self.call.upstream.names.scheme(),
        }
    }

    /// `_meta` of a result that the gateway makes in the upstream's place.
    pub(super) fn server_meta(&self) -> std::borrow::Cow<'_, str> {
        match &self.negotiated.server_info {
            Some(info) => {
                json::add_members("{}", &[(countersign_protocol::params::keys::SERVER_INFO, info.get())]).into()
            }
            None => SERVER_META.into(),
        }
    }

    /// Returns `true` if a result can be a task or has to become one. Most results are not examined for it.
    pub(super) fn may_be_task(&self) -> bool {
        match (self.negotiated.revision.era(), self.speaker.modern) {
            (_, false) => self.call.plan.wants_task,
            (Era::Legacy, true) => self.augmented(),
            (Era::Modern, true) => self.shares_an_extension(),
        }
    }

    /// Both sides have declared an extension that may have results of its own.
    pub(super) fn shares_an_extension(&self) -> bool {
        let Some(client) = self.caller.capabilities.extensions.as_deref() else { return false };
        let server = member(self.negotiated.capabilities.get(), "extensions").unwrap_or("{}");
        members(client).any(|extension| members(server).any(|other| other.key == extension.key))
    }
}
