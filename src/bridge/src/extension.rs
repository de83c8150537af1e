//! Requests with methods that the gateway does not know. They belong to an extension or experimental capability that
//! both the client and a server declare. They pass unchanged: names and URIs inside are not translated, and eras are
//! not bridged.

use std::sync::Arc;

use crate::{
    calls::{self, Bridge, Call},
    translation::request::{Subject, Verb},
};
use countersign_exchange::{context::Exchange, reply::Reply};
use countersign_protocol::{ErrorKind, McpError, envelope::Request};
use countersign_upstream::Upstream;

/// Passes a request on to its server.
///
/// # Errors
/// `-32602` for parameters that are not an object; the errors of [`calls::call`].
pub async fn call(
    bridge: &Arc<Bridge>,
    exchange: &Exchange,
    upstream: &Arc<Upstream>,
    request: &Request<'_>,
) -> Result<Reply, McpError> {
    if request.params.is_some_and(|params| !params.get().starts_with('{')) {
        return Err(McpError::new(ErrorKind::InvalidParams, "`params` is not an object"));
    }
    tracing::debug!(upstream = %upstream.config.name, "a request of an extension is passed on");
    let subject = Subject::Method(&request.method);
    calls::call(Call::new(exchange, bridge, upstream, Verb::Extension, subject, request)).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Fixture, value};
    use countersign_exchange::testing::request;
    use countersign_protocol::{Era, Revision};

    const EXTENSION_DECLARATION: &str = r#"{"extensions":{"acme/x":{}}}"#;

    #[actix::test]
    async fn parameters_and_result_pass_unchanged() {
        let fixture = Fixture::with(Era::Modern, &json!({ "tools": {}, "extensions": { "acme/x": {} } }), |_| {}).await;
        fixture.server.answers(|request| {
            let result = json!({ "method": request.method, "n": request.params["n"], "name": request.params["name"] });
            Box::pin(std::future::ready(countersign_upstream::testing::fake::ok(result)))
        });
        let exchange = fixture.bench.exchange(Revision::MODERN, EXTENSION_DECLARATION);
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"acme/do","params":{"n":1,"name":"s__x"}}"#;
        let reply = call(&fixture.bridge, &exchange, &fixture.upstream, &request(text)).await.unwrap();
        assert_eq!(value(&reply), json!({ "method": "acme/do", "n": 1, "name": "s__x" }));
    }
}
