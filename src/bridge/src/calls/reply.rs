//! Turns an upstream's response into the reply to the client.

use serde_json::value::RawValue;

use super::{failed, into_task, ready::Ready};
use crate::{
    questions,
    translation::{error, request::Verb, result::input_result},
};
use countersign_exchange::reply::Reply;
use countersign_protocol::{
    Era, ErrorKind, McpError,
    json::{self, member},
    rpc_error::RpcError,
};
use countersign_upstream::Response;

impl Ready<'_> {
    /// Returns the reply for an upstream's response.
    pub(super) fn reply(&self, response: Response) -> Result<Reply, McpError> {
        let client = self.call.exchange.revision();
        if self.may_be_task()
            && let Response::Result(result) = &response
            && let Some(reply) = into_task::created(self, result)?
        {
            return Ok(reply);
        }
        match response {
            Response::Result(result) => self.result_adapter().reply(result),
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
            questions::is_url_elicitation(questions::ELICITATION, Some(url))
                && questions::check_capabilities(&self.caller.capabilities, questions::ELICITATION, Some(url)).is_ok()
        };
        let server = self.call.upstream.config.name.as_str();
        let urls: Vec<(String, String)> = json::elements(urls)
            .enumerate()
            .filter(|(_, (_, url))| may(url))
            .map(|(at, (_, url))| {
                let name = member(url, "elicitationId").and_then(json::string);
                let name = name.map_or_else(|| format!("url-{}", at + 1), std::borrow::Cow::into_owned);
                let url = questions::attribute_params(server, questions::ELICITATION, Some(url)).unwrap_or_default();
                (name, json::edit(&url, &[("elicitationId", json::MemberEdit::Drop)]))
            })
            .collect();
        if urls.is_empty() {
            return None;
        }
        let requests = urls.iter().map(|(name, url)| (name.as_str(), questions::ELICITATION, Some(url.as_str())));
        Some(Reply::passed_on(input_result(requests, None, &self.server_meta())))
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
            if let Err(why) = countersign_domain::questions::elicitation::checked_url(url) {
                let why =
                    format!("the upstream asks that a page be opened first, and the gateway sends nobody there: {why}");
                return Err(McpError::new(ErrorKind::NotBridgeable, why));
            }
            let url = json::edit(url, &[("mode", json::MemberEdit::Set(r#""url""#))]);
            let server = self.call.upstream.config.name.as_str();
            shown.extend(questions::attribute_params(server, questions::ELICITATION, Some(&url)).map(String::from));
        }
        let data = json::edit(data, &[("elicitations", json::MemberEdit::Set(&format!("[{}]", shown.join(","))))]);
        Ok(Some(RpcError { data: RawValue::from_string(data).ok(), ..error.clone() }))
    }
}
