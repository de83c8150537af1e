//! Turns an upstream's response into the reply to the client.

use serde_json::value::RawValue;

use super::{into_task, prepared_call::PreparedCall, tool_error_reply};
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

impl PreparedCall<'_> {
    /// Converts an upstream's response into the reply.
    pub(super) fn reply(&self, response: Response) -> Result<Reply, McpError> {
        let client = self.call.exchange.revision();
        if self.may_be_task()
            && let Response::Result(result) = &response
            && let Some(reply) = into_task::reply_if_task(self, result)?
        {
            return Ok(reply);
        }
        match response {
            Response::Result(result) => self.result_adapter().reply(result),
            Response::Error(rpc) => {
                if rpc.code == error::URL_ELICITATION_REQUIRED
                    && let Some(reply) = self.urls_as_input(&rpc)
                {
                    return Ok(reply);
                }
                let attributed = self.attribute_urls(&rpc)?;
                let rpc = attributed.unwrap_or(rpc);
                let eras = (client, self.negotiated.revision);
                let scheme = match self.call.verb {
                    Verb::Extension => "",
                    _ => self.call.upstream.names.scheme(),
                };
                let error = error::for_client(&rpc, self.call.verb, eras, self.call.uri, scheme);
                // No error code of the client's era expresses this, but a tool result at least reaches the model.
                if error.kind == ErrorKind::NotBridgeable && self.call.verb == Verb::Tool {
                    return Ok(tool_error_reply(&error));
                }
                Err(error)
            }
        }
    }

    /// Returns the reply of a handshake-era upstream that wants pages to be opened before the call, for a stateless
    /// client. The reply asks for input, and the client's retry is then the first real call
    /// (2025-11-25/client/elicitation).
    fn urls_as_input(&self, error: &RpcError) -> Option<Reply> {
        let (client, upstream) = (self.call.exchange.revision(), self.negotiated.revision);
        if (upstream.era(), client.era()) != (Era::Legacy, Era::Modern)
            || self.call.verb == Verb::Complete
            || !self.caller.capabilities.elicitation_url
        {
            return None;
        }
        let urls = member(error.data.as_deref()?.get(), "elicitations")?;
        let is_allowed = |url: &str| {
            questions::is_url_elicitation(questions::ELICITATION, Some(url))
                && questions::check_capabilities(&self.caller.capabilities, questions::ELICITATION, Some(url)).is_ok()
        };
        let server = self.call.upstream.config.name.as_str();
        let urls: Vec<(String, String)> = json::elements(urls)
            .enumerate()
            .filter(|(_, (_, url))| is_allowed(url))
            .map(|(index, (_, url))| {
                let name = member(url, "elicitationId").and_then(json::string);
                let name = name.map_or_else(|| format!("url-{}", index + 1), std::borrow::Cow::into_owned);
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

    /// Names the upstream in the pages that it wants to be opened, for a handshake-era client, which opens them itself.
    /// Returns `None` for any other error.
    ///
    /// # Errors
    /// [`ErrorKind::NotBridgeable`] if one of the URLs is no web page.
    fn attribute_urls(&self, error: &RpcError) -> Result<Option<RpcError>, McpError> {
        if error.code != error::URL_ELICITATION_REQUIRED {
            return Ok(None);
        }
        let Some(data) = error.data.as_deref().map(RawValue::get) else { return Ok(None) };
        let Some(urls) = member(data, "elicitations") else { return Ok(None) };
        let mut attributed = Vec::new();
        for (_, url) in json::elements(urls) {
            if let Err(reason) = countersign_domain::questions::elicitation::checked_url(url) {
                let message =
                    format!("the upstream asks that a page be opened first, which the gateway refuses: {reason}");
                return Err(McpError::new(ErrorKind::NotBridgeable, message));
            }
            let url = json::edit(url, &[("mode", json::MemberEdit::Set(r#""url""#))]);
            let server = self.call.upstream.config.name.as_str();
            attributed
                .extend(questions::attribute_params(server, questions::ELICITATION, Some(&url)).map(String::from));
        }
        let data = json::edit(data, &[("elicitations", json::MemberEdit::Set(&format!("[{}]", attributed.join(","))))]);
        Ok(Some(RpcError { data: RawValue::from_string(data).ok(), ..error.clone() }))
    }
}
