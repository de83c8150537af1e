//! Stateless clients of handshake-era upstreams, and the questions that a client could not be asked.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, value::RawValue};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{missing_capabilities, missing_capability_error};
use crate::translation::result::{InputRequest, is_error_result};
use countersign_domain::{
    questions::{check_capabilities, elicitation::params_for_client},
    text::truncate,
};
use countersign_protocol::{McpError, Revision, json::string, negotiate::ClientCapabilities};
use countersign_provider::request::{Replier, UpstreamRequest};
use countersign_upstream::Response;

/// A stateless client of a handshake-era upstream. It gets questions in a result, and answers them with a later request.
pub struct StatelessClient {
    /// The capabilities that the upstream may use.
    capabilities: ClientCapabilities,
    /// The client's own declaration as JSON text. `capabilities` may be only a part of it.
    declared_capabilities: Arc<str>,
    /// The name of the upstream.
    upstream: String,
    declined: DeclinedQuestions,
}

/// A question in the form that a stateless client gets.
#[derive(Clone, Debug)]
pub struct ClientQuestion {
    /// The key of the question in `inputRequests`, and of its answer in `inputResponses`.
    pub key: String,
    pub method: String,
    pub params: Option<String>,
}

impl ClientQuestion {
    /// Returns the question as a request in `inputRequests`.
    pub fn as_input_request(&self) -> InputRequest<'_> {
        InputRequest { key: &self.key, method: &self.method, params: self.params.as_deref() }
    }
}

/// A question of an upstream without an answer.
pub struct OpenQuestion {
    pub content: ClientQuestion,
    /// `true` if the id of the upstream's request is a string, which the client may know from an earlier call.
    pub has_string_id: bool,
    pub reply: Replier,
    pub cancelled: CancellationToken,
    pub asked_at: Instant,
}

impl StatelessClient {
    pub fn new(capabilities: ClientCapabilities, declared_capabilities: Arc<str>, upstream: String) -> Self {
        Self { capabilities, declared_capabilities, upstream, declined: DeclinedQuestions::default() }
    }

    /// Accepts a question of the upstream, or declines it if the client cannot be asked. Its key is the id of the request.
    pub fn accept(&self, request: UpstreamRequest) -> Option<OpenQuestion> {
        let UpstreamRequest { id, method, params, reply, cancelled } = request;
        let text = params.as_deref().map(RawValue::get);
        if let Err(refused) = check_capabilities(&self.capabilities, &method, text) {
            self.declined.record(&method, params);
            reply.answer(Err(refused));
            return None;
        }
        let params = params_for_client(&self.upstream, &method, text, Revision::MODERN, None);
        let (key, has_string_id) = match string(id.as_json()) {
            Some(text) => (text.into_owned(), true),
            None => (id.as_json().to_owned(), false),
        };
        let content = ClientQuestion { key, method, params };
        Some(OpenQuestion { content, has_string_id, reply, cancelled, asked_at: Instant::now() })
    }

    /// Returns the response, unless the call failed after one of its questions was declined.
    ///
    /// # Errors
    /// The errors of [`DeclinedQuestions::check_response`].
    pub fn check_response(&self, response: Response) -> Result<Response, McpError> {
        self.declined.check_response(response, &self.declared_capabilities, &self.upstream)
    }
}

/// The questions of an upstream that were declined because their client cannot be asked.
#[derive(Default)]
pub struct DeclinedQuestions(Mutex<Vec<DeclinedQuestion>>);

/// The method and the parameters of a declined question.
type DeclinedQuestion = (String, Option<Box<RawValue>>);

/// The maximum number of declined questions that are remembered. There are only three methods, one of them with two
/// modes.
const MAX_DECLINED: usize = 8;

impl DeclinedQuestions {
    /// Remembers a declined question.
    pub fn record(&self, method: &str, params: Option<Box<RawValue>>) {
        let mut all = self.0.lock();
        if all.len() < MAX_DECLINED {
            all.push((truncate(method, 64).to_owned(), params));
        }
    }

    /// Returns the capabilities that the client would have needed for the declined questions, in the form of
    /// `requiredCapabilities`. `declared` are the capabilities that it has.
    pub fn missing_capabilities(&self, declared: &ClientCapabilities) -> Option<Value> {
        let all = self.0.lock();
        let questions = all.iter().map(|(method, params)| (method.as_str(), params.as_deref().map(RawValue::get)));
        missing_capabilities(declared, questions)
    }

    /// Returns the response, unless the call failed after its upstream had asked for something that the client did not
    /// declare. `declared` is the complete declaration of the client as JSON text, including capabilities that the
    /// configuration withholds.
    ///
    /// # Errors
    /// `-32021` with the capability (2026-07-28/basic/index, "Capabilities").
    pub fn check_response(&self, response: Response, declared: &str, upstream: &str) -> Result<Response, McpError> {
        // Nearly always nothing was declined, so nothing has to be parsed.
        if self.0.lock().is_empty() || matches!(&response, Response::Result(result) if !is_error_result(result.get())) {
            return Ok(response);
        }
        match self.missing_capabilities(&ClientCapabilities::from_declaration(declared)) {
            Some(missing) => Err(missing_capability_error(upstream, missing)),
            None => Ok(response),
        }
    }
}
